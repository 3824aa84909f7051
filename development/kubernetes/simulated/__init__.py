"""A real Kubernetes control plane on this machine, with kubelets that kwok plays: for tests and development only.

`programs` says how each program is run, `credentials` makes keys and certificates, `admin` is a small client,
`nodes` describes simulated nodes, and `stages.yaml` what happens to nodes and pods. Starting and stopping is the matter
of `development.kubernetes.control_plane` (tests) and `development.kubernetes.up` (`make up-kubernetes`).
"""
