"""How each program of a simulated cluster is run: where it is found, its arguments, its configuration.

Nothing is started here. Standard library only: the supervisor of `muster up` imports it.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muster.embedded.datadir import write_private

TOOLS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
ADMIN_KUBECONFIG: Final = "admin.kubeconfig"
CONTEXT: Final = "simulated"
CONTROLLERS: Final = (
    # What the backend meets in a real cluster: namespaces that go, nodes that fall silent, their pods, quotas, owners.
    "namespace-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "pod-garbage-collector-controller",
    "garbage-collector-controller",
    "resourcequota-controller",
    "serviceaccount-controller",
)
REQUESTS_IN_FLIGHT: Final = 3000
"""A thousand simulated nodes speak through one kwok, which no limit meant for single clients should slow down."""
CLIENT_QPS: Final = 5000
"""The same, for the limit that controllers keep for themselves."""
KUBELET_CALLS: Final = 64
"""Calls that kwok makes at once for all its kubelets, which in a real cluster do not wait for each other; its own
default of 4 makes a thousand nodes slower than one.
"""
POD_NETWORK: Final = "10.128.0.0/9"
"""Addresses that pods are said to have; eight million, so that none is given twice."""
ECHO_PORT: Final = 7
"""Of every pod, where kubelets serve ways."""
PORTS_FILE: Final = "ports.json"
STAGES: Final = Path(__file__).with_name("stages.yaml")
AUDIT_POLICY: Final = Path(__file__).with_name("audit.yaml")
CONTAINER_LOG: Final = Path(__file__).with_name("container.log")


class ToolsMissingError(Exception):
    """A program of the control plane is not on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Loopback ports of one simulated cluster."""

    api: int
    etcd: int
    etcd_peer: int
    kubelet: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What the arguments of all programs are made of."""

    folder: Path
    tools: Mapping[str, Path]
    ports: Ports
    node_monitor_grace_seconds: int
    fsync: bool
    audit: bool = False
    """Whether the API server notes down when it made which pod."""

    @property
    def credentials(self) -> Path:
        """Made by `credentials.make`."""
        return self.folder / "credentials"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's, for the programs themselves."""
        return self.folder / ADMIN_KUBECONFIG

    @property
    def container_log(self) -> Path:
        """What every simulated container says, in a container runtime's format; may be appended to."""
        return self.folder / CONTAINER_LOG.name

    @property
    def audit_log(self) -> Path:
        """JSON lines, `Event` of `audit.k8s.io/v1`."""
        return self.folder / "audit.log"

    @property
    def url(self) -> str:
        return url_of(self.ports)


def folder_of(data: Path) -> Path:
    """Of the simulated cluster, in a data folder of `muster up`: its data, its keys, the administrator's kubeconfig."""
    return data / "kubernetes"


def find_tools(folder: Path | None = None) -> dict[str, Path]:
    """Where each of TOOLS is: in `folder` if one is given, else in $KUBEBUILDER_ASSETS or what `make kube-tools` fills.

    Raises ToolsMissingError where one of them is nowhere.
    """
    places = _places() if folder is None else [folder]
    found = {tool: place / tool for tool in TOOLS for place in reversed(places) if (place / tool).exists()}
    if missing := [tool for tool in TOOLS if tool not in found]:
        raise ToolsMissingError(
            f"the Kubernetes control plane is not on this machine: {', '.join(missing)} not found in "
            f"{' or '.join(map(str, places)) or 'any folder'}. Run `make kube-tools`, or set KUBEBUILDER_ASSETS to a "
            "folder that holds them"
        )
    return found


def _places() -> list[Path]:
    places = [Path(value)] if (value := os.environ.get("KUBEBUILDER_ASSETS")) else []
    script = Path(__file__).parents[3] / "tools" / "kube" / "kube-tools"
    if script.exists():
        where = subprocess.run([str(script), "--where"], check=True, capture_output=True, text=True)
        places.append(Path(where.stdout.strip()))
    return places


def etcd(cluster: Cluster) -> list[str]:
    client = f"https://127.0.0.1:{cluster.ports.etcd}"
    peer = f"https://127.0.0.1:{cluster.ports.etcd_peer}"
    keys = cluster.credentials
    return [
        str(cluster.tools["etcd"]),
        *("--name", "simulated", "--data-dir", str(cluster.folder / "etcd"), "--log-level", "warn"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"simulated={peer}"),
        # Who may write here is master of the cluster: not everybody on this machine, but who can read our keys.
        *("--cert-file", str(keys / "server.crt"), "--key-file", str(keys / "server.key")),
        *("--client-cert-auth", "--trusted-ca-file", str(keys / "ca.crt")),
        *("--peer-cert-file", str(keys / "server.crt"), "--peer-key-file", str(keys / "server.key")),
        *("--peer-client-cert-auth", "--peer-trusted-ca-file", str(keys / "ca.crt")),
        *([] if cluster.fsync else ["--unsafe-no-fsync"]),
    ]


def api_server(cluster: Cluster) -> list[str]:
    credentials = cluster.credentials
    return [
        str(cluster.tools["kube-apiserver"]),
        f"--etcd-servers=https://127.0.0.1:{cluster.ports.etcd}",
        f"--etcd-cafile={credentials / 'ca.crt'}",
        f"--etcd-certfile={credentials / 'server.crt'}",
        f"--etcd-keyfile={credentials / 'server.key'}",
        "--bind-address=127.0.0.1",
        f"--secure-port={cluster.ports.api}",
        f"--tls-cert-file={credentials / 'server.crt'}",
        f"--tls-private-key-file={credentials / 'server.key'}",
        f"--token-auth-file={credentials / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={credentials / 'service-accounts.key'}",
        f"--service-account-signing-key-file={credentials / 'service-accounts.key'}",
        # No kubelet mounts a token, and nobody is to wait for the account `default` of a fresh namespace; nodes are
        # ready from their first moment, and need no taint until a controller has seen that.
        "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--endpoint-reconciler-type=none",
        # kwok's port for container logs has a certificate of its own making.
        "--kubelet-preferred-address-types=InternalIP",
        f"--max-requests-inflight={REQUESTS_IN_FLIGHT}",
        f"--max-mutating-requests-inflight={REQUESTS_IN_FLIGHT}",
        "--profiling=false",
        *([f"--audit-policy-file={AUDIT_POLICY}", f"--audit-log-path={cluster.audit_log}"] if cluster.audit else []),
    ]


def controller_manager(cluster: Cluster) -> list[str]:
    grace = cluster.node_monitor_grace_seconds
    return [
        str(cluster.tools["kube-controller-manager"]),
        f"--kubeconfig={cluster.kubeconfig}",
        "--leader-elect=false",
        "--secure-port=0",
        f"--controllers={','.join(CONTROLLERS)}",
        f"--node-monitor-grace-period={grace}s",
        f"--node-monitor-period={max(1, min(5, grace // 4))}s",
        f"--kube-api-qps={CLIENT_QPS}",
        f"--kube-api-burst={2 * CLIENT_QPS}",
        "--profiling=false",
    ]


def scheduler(cluster: Cluster) -> list[str]:
    return [
        str(cluster.tools["kube-scheduler"]),
        f"--kubeconfig={cluster.kubeconfig}",
        "--leader-elect=false",
        "--secure-port=0",
        f"--kube-api-qps={CLIENT_QPS}",
        f"--kube-api-burst={2 * CLIENT_QPS}",
        "--profiling=false",
    ]


def kwok(cluster: Cluster) -> list[str]:
    return [
        str(cluster.tools["kwok"]),
        f"--kubeconfig={cluster.kubeconfig}",
        "--manage-all-nodes",
        f"--config={cluster.folder / 'kwok.yaml'}",
        "--node-ip=127.0.0.1",
        f"--node-port={cluster.ports.kubelet}",
        f"--server-address=127.0.0.1:{cluster.ports.kubelet}",
        f"--node-lease-duration-seconds={cluster.node_monitor_grace_seconds}",
        f"--cidr={POD_NETWORK}",
        "--v=WARN",
    ]


def url_of(ports: Ports) -> str:
    """Of the API server."""
    return f"https://127.0.0.1:{ports.api}"


def ports_of(folder: Path) -> Ports:
    """The ports that the supervisor chose for the cluster in that folder."""
    return Ports(**json.loads((folder / PORTS_FILE).read_text()))


def write_configuration(folder: Path, ports: Ports, admin_token: str, *, ways: bool = False) -> None:
    """Write the files that the arguments name; the credentials are there already. `ways`: kubelets run what is asked of
    their pods, as processes of this machine. For tests alone: whoever may exec in a simulated pod may do so here.
    """
    ca_file = folder / "credentials" / "ca.crt"
    write_private(folder / ADMIN_KUBECONFIG, kubeconfig(url=url_of(ports), ca_file=ca_file, token=admin_token))
    log = folder / CONTAINER_LOG.name
    log.write_text(CONTAINER_LOG.read_text())
    logs = {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "ClusterLogs",
        "metadata": {"name": "every-container"},
        "spec": {"logs": [{"logsFile": str(log), "follow": True}]},
    }
    options = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        # Where any is given, kwok takes no defaults for the others.
        "options": {
            "podPlayStageParallelism": KUBELET_CALLS,
            "nodePlayStageParallelism": KUBELET_CALLS,
            "nodeLeaseParallelism": KUBELET_CALLS,
            "podsOnNodeSyncParallelism": KUBELET_CALLS,
            "enablePodsOnNodeSyncListPager": True,
            "enableDebuggingHandlers": True,
        },
    }
    documents = (STAGES.read_text(), *(json.dumps(one) for one in (options, logs, *(_ways(log) if ways else ()))))
    (folder / "kwok.yaml").write_text("\n---\n".join(documents) + "\n")


def _ways(log: Path) -> list[dict[str, Any]]:
    """Of every pod: a command runs in our folder, whoever attaches follows the log, and one port gives back what it is
    sent.
    """
    specs = {
        "ClusterExec": {"execs": [{"local": {"workDir": str(log.parent)}}]},
        "ClusterAttach": {"attaches": [{"logsFile": str(log)}]},
        "ClusterPortForward": {"forwards": [{"ports": [ECHO_PORT], "command": ["cat"]}]},
    }
    return [
        {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": kind, "metadata": {"name": "every-pod"}, "spec": spec}
        for kind, spec in specs.items()
    ]


def kubeconfig(*, url: str, ca_file: Path, token: str) -> str:
    """A kubeconfig with one context, as JSON, which is YAML, too."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": {"server": url, "certificate-authority": str(ca_file)}}],
        "users": [{"name": CONTEXT, "user": {"token": token}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
        "current-context": CONTEXT,
    }
    return json.dumps(config, indent=1) + "\n"
