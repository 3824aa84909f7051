"""Whether a cluster's pods run on this machine, and what folder they then start in: the one in which a person typed."""

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from muster.cli.exits import usage
from muster.cli.values import Row, row_of, rows_of, set_field, text_of

if TYPE_CHECKING:
    from muster.cli.client import Api

_FIELD: Final = "spec.workingDir"
_LOOPBACK: Final = ("localhost", "::1")


def set_working_dir(api: "Api", request: Row, cluster: Row, *, code: str | None) -> None:
    """Where the pods run on this machine, they start in the caller's folder, and a relative folder is meant from there.
    Raises Problem (usage) for a relative folder of any other cluster, and for one that is not there.
    """
    spec = row_of(request, "spec")
    given = text_of(spec, "workingDir")
    if code is not None or text_of(spec, "code"):
        if given:
            raise usage(
                f"--working-dir {given!r}: with code each run starts in the folder that was sent",
                todo="leave it out, and give the path within that folder, such as src/train.py",
            )
        return
    if given.startswith("/"):
        return
    if not _runs_here(api, cluster):
        if given:
            raise usage(
                f"--working-dir {given!r} is relative, and the pods of cluster {text_of(cluster, 'name')!r} do not run "
                "in a folder of this machine",
                todo="give the path of a folder in the image, from `/`",
            )
        return
    folder = Path(given or ".").resolve()
    if given and not folder.is_dir():
        raise usage(
            f"--working-dir {given!r}: there is no folder {str(folder)!r}", todo="give the path of an existing folder"
        )
    set_field(request, _FIELD, str(folder))


def _runs_here(api: "Api", cluster: Row) -> bool:
    """A tunnel to another machine's api is told apart by the name of its node."""
    if text_of(cluster, "kind") != "local":
        return False
    host = urlsplit(api.url).hostname or ""
    if host not in _LOOPBACK and not host.startswith("127."):
        return False
    nodes = rows_of(api.get("/nodes", [("clusterId", text_of(cluster, "id"))]), "nodes")
    return socket.gethostname() in {text_of(node, "name") for node in nodes}
