"""Whether a cluster's pods run on this machine, and what folder they then start in: the one in which a person typed."""

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from muster.cli.exits import usage
from muster.cli.values import Row, row_of, rows_of, set_field, text_of

if TYPE_CHECKING:
    from muster.cli.client import Api

_FLAGS: Final = {"spec": "--working-dir", "masterSpec": "--master-working-dir"}
"""By the part of a request that says what its pods run."""
_LOOPBACK: Final = ("localhost", "::1")


def set_working_dir(api: "Api", request: Row, cluster: Row, *, code: str | None) -> None:
    """Where the pods run on this machine, they start in the caller's folder, and a relative folder is meant from there.
    So does a master that is made otherwise than its workers. Raises Problem (usage) for a relative folder of any other
    cluster, and for one that is not there.
    """
    sent = code is not None or text_of(row_of(request, "spec"), "code")
    parts = [part for part in _FLAGS if part == "spec" or row_of(request, part)]
    given = {part: text_of(row_of(request, part), "workingDir") for part in parts}
    if sent:
        for part, folder in given.items():
            if folder:
                raise usage(
                    f"{_FLAGS[part]} {folder!r}: with code each run starts in the folder that was sent",
                    todo="leave it out, and give the path within that folder, such as src/train.py",
                )
        return
    relative = {part: folder for part, folder in given.items() if not folder.startswith("/")}
    here = bool(relative) and _runs_here(api, cluster)
    for part, folder in relative.items():
        if here:
            set_field(request, f"{part}.workingDir", _resolved(_FLAGS[part], folder))
        elif folder:
            raise usage(
                f"{_FLAGS[part]} {folder!r} is relative, and the pods of cluster {text_of(cluster, 'name')!r} do not "
                "run in a folder of this machine",
                todo="give the path of a folder in the image, from `/`",
            )


def _resolved(flag: str, given: str) -> str:
    folder = Path(given or ".").resolve()
    if given and not folder.is_dir():
        raise usage(f"{flag} {given!r}: there is no folder {str(folder)!r}", todo="give the path of an existing folder")
    return str(folder)


def _runs_here(api: "Api", cluster: Row) -> bool:
    """A tunnel to another machine's api is told apart by the name of its node."""
    if text_of(cluster, "kind") != "local":
        return False
    host = urlsplit(api.url).hostname or ""
    if host not in _LOOPBACK and not host.startswith("127."):
        return False
    nodes = rows_of(api.get("/nodes", [("clusterId", text_of(cluster, "id"))]), "nodes")
    return socket.gethostname() in {text_of(node, "name") for node in nodes}
