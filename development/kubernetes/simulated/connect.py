"""One-shot child of `make up-kubernetes`, once all is ready: the cluster `kubernetes`, and an agent's way to it.

As `muster cluster add NAME --kubeconfig FILE` does it, with a kubeconfig of the agent's own ServiceAccount.
"""

import http.client
import sys
from pathlib import Path
from typing import Any, Final

from development.kubernetes.simulated import programs
from development.kubernetes.simulated.fill import admin_of
from muster.embedded.api import Api, CallError
from muster.embedded.datadir import DataDir, write_private
from muster.embedded.welcome import ensure

CLUSTER: Final = "kubernetes"
NAMESPACE: Final = "muster-system"
ACCOUNT: Final = "muster-agent"
TOKEN_SECONDS: Final = 365 * 24 * 3600
"""Made anew at every start; nobody runs one for a year."""


def main(port: int, root: Path) -> None:
    """Make the cluster known where it is not, and have the supervisor run an agent for it."""
    data, folder = DataDir(root=root), programs.folder_of(root)
    api = Api(port, data.token_file.read_text())
    ensure(api, "/clusters", "clusters", {"name": CLUSTER, "kind": "kubernetes"})
    clusters: Any = api.get("/clusters")["clusters"]
    cluster_id = next(each["id"] for each in clusters if each["name"] == CLUSTER)
    text = programs.kubeconfig(
        url=programs.url_of(programs.ports_of(folder)),
        ca_file=folder / "credentials" / "ca.crt",
        token=admin_of(folder).token_of(NAMESPACE, ACCOUNT, TOKEN_SECONDS),
    )
    file = data.clusters / cluster_id
    if file.exists() and str(folder) not in file.read_text():
        raise CallError(
            http.client.CONFLICT, f"the cluster {CLUSTER!r} is another one, added with a kubeconfig: {file}"
        )
    write_private(file, text)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), Path(sys.argv[2]))
    except CallError as refused:
        print(f"muster: {refused}", file=sys.stderr)
        sys.exit(refused.exit_code)
