"""One-shot child of `make up-kubernetes`, once the API server serves: its nodes, and the rights of our agent.

As many nodes as were asked for: nodes above that number, of an earlier run, are removed.
"""

import sys
from pathlib import Path
from typing import Any, Final

import yaml

from development.kubernetes.simulated import credentials, programs
from development.kubernetes.simulated.admin import Admin
from development.kubernetes.simulated.nodes import node

PACKAGED_MANIFESTS: Final = Path(__file__).parents[2] / "kubernetes_manifests"
MANIFESTS: Final = Path(__file__).parents[3] / "deploy" / "kubernetes"
"""In the source tree; in a package, they are where PACKAGED_MANIFESTS says."""
OF_THE_AGENT: Final = ("namespace.yaml", "accounts.yaml", "roles.yaml", "reservations.yaml", "policy.yaml")
"""All that an agent outside the cluster needs in it."""


def main(folder: Path, count: int) -> None:
    """Make the cluster what it should be; done again, it changes nothing."""
    ports = programs.ports_of(folder)
    admin = admin_of(folder)
    admin.apply(agent_manifests())
    wanted = [f"kubernetes-{number}" for number in range(1, count + 1)]
    for name in [each["metadata"]["name"] for each in admin.call("GET", "/api/v1/nodes")["items"]]:
        if name not in wanted:
            admin.call("DELETE", f"/api/v1/nodes/{name}")
    admin.create_all("/api/v1/nodes", [node(name, kubelet_port=ports.kubelet) for name in wanted])


def admin_of(folder: Path) -> Admin:
    """A client of the cluster in that folder, as its administrator."""
    keys = folder / "credentials"
    url = programs.url_of(programs.ports_of(folder))
    return Admin(url=url, ca_file=keys / "ca.crt", token=credentials.admin_token(keys))


def agent_manifests() -> list[dict[str, Any]]:
    """What `kubectl apply` would apply for an agent that runs outside the cluster."""
    manifests = PACKAGED_MANIFESTS if PACKAGED_MANIFESTS.is_dir() else MANIFESTS
    return [each for name in OF_THE_AGENT for each in yaml.safe_load_all((manifests / name).read_text())]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
