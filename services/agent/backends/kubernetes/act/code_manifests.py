"""How code comes into a pod: ConfigMaps with its parts, and a container that unpacks them before the pod's own. Pure.

That container runs the pod's own image: no other has to be found, pulled or trusted. It needs four usual programs, and
says which one is missing. What it unpacks was checked by the agent; it checks the digest again, for whoever may make
ConfigMaps in the namespace could have made one of this name before.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.objects import CODE_CONTAINER

MAP_BYTES: Final = 512 * 1024
"""Of one part. Kubernetes takes a MiB in a ConfigMap; a request of less than that is sent in one piece."""
CODE_FOLDER: Final = "/muster/code"
"""Where a run with code starts. No image has anything there."""
KEY: Final = "part"
"""In each of the ConfigMaps."""
LACKS_PROGRAM, IS_CHANGED = 81, 82
"""Exit codes of the script."""

_PARTS_FOLDER: Final = "/muster/code-parts"
_FOLDER_VOLUME, _PARTS_VOLUME = "code", "code-parts"
UNPACK: Final = f"""\
digest=$1 parts=$2 folder=$3
for program in cat sha256sum tar; do
  command -v "$program" >/dev/null 2>&1 || {{ echo "the image has no $program" >&2; exit {LACKS_PROGRAM}; }}
done
cat "$parts"/* | sha256sum | {{ read -r found rest && [ "$found" = "$digest" ]; }} ||
  {{ echo "it is not what its digest says" >&2; exit {IS_CHANGED}; }}
cat "$parts"/* | tar -x -m -o -f - -C "$folder"
"""
"""For any shell: the digest, the folder of the parts and the folder to fill are its arguments. Times are those of the
unpacking, and everything belongs to the user who unpacks, as on other clusters. Kubernetes takes `$(...)` in a command
for its own, so there is none.
"""

type Manifest = dict[str, Any]


def unpack_command(digest: str, parts: str = _PARTS_FOLDER, folder: str = CODE_FOLDER) -> list[str]:
    return ["sh", "-ec", UNPACK, CODE_CONTAINER, digest, parts, folder]


def code_container(*, image: str, digest: str, environment: Sequence[Manifest], resources: Manifest) -> Manifest:
    """What runs before the pod's own container. What it asks for is at most what that one does, and so counts nothing
    beside it.
    """
    return {
        "name": CODE_CONTAINER,
        "image": image,
        "command": unpack_command(digest),
        # Nothing of the workload's own environment: it is no part of the program.
        "env": list(environment),
        "resources": resources,
        "volumeMounts": [
            {"name": _FOLDER_VOLUME, "mountPath": CODE_FOLDER},
            {"name": _PARTS_VOLUME, "mountPath": _PARTS_FOLDER, "readOnly": True},
        ],
        # Its last words are its reason.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def code_mount() -> Manifest:
    """Of the pod's own container: it writes where its code lies, and no other pod sees that."""
    return {"name": _FOLDER_VOLUME, "mountPath": CODE_FOLDER}


def code_volumes(cluster_id: str, digest: str, maps: int) -> list[Manifest]:
    """The folder has no limit of its own: a program may write beside its code what it may write elsewhere in its
    container, and a node that runs short evicts the pod for the one as for the other.
    """
    sources = [
        {
            "configMap": {
                "name": names.code_map_name(cluster_id, digest, number),
                "items": [{"key": KEY, "path": f"{number:03}"}],
            }
        }
        for number in range(maps)
    ]
    return [
        {"name": _FOLDER_VOLUME, "emptyDir": {}},
        {"name": _PARTS_VOLUME, "projected": {"sources": sources}},
    ]


def code_map_manifest(
    data: bytes, *, cluster_id: str, namespace: str, digest: str, number: int, labels: Mapping[str, str]
) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.code_map_name(cluster_id, digest, number),
            "namespace": namespace,
            "labels": dict(labels),
        },
        # Its name says what is in it; and nodes need not watch it.
        "immutable": True,
        "binaryData": {KEY: base64.b64encode(data).decode()},
    }
