"""One context of a kubeconfig, made independent of where its file stands: what `muster up` keeps of a cluster.

Certificates and keys are put in place of the files that hold them. A file with a token, and the program that gets one,
are only named with their whole path: what they say changes.
"""

import base64
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

_EMBEDDED: Final = ("certificate-authority", "client-certificate", "client-key")


class KubeconfigError(Exception):
    """The file, or one that it names, cannot be used; the message says which and why."""


class _Entry(msgspec.Struct):
    name: str
    context: dict[str, Any] = {}
    cluster: dict[str, Any] = {}
    user: dict[str, Any] = {}


class _Config(msgspec.Struct, rename="kebab"):
    current_context: str = ""
    contexts: list[_Entry] = []
    clusters: list[_Entry] = []
    users: list[_Entry] = []


def minified(file: Path, context: str = "") -> str:
    """The text of a kubeconfig that holds this context alone; the current one where none is named."""
    config = _read(file)
    link = _named("context", context or config.current_context, config.contexts, file)
    cluster = _named("cluster", link.context.get("cluster"), config.clusters, file)
    user = _named("user", link.context.get("user"), config.users, file)
    kept = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": link.name,
        "contexts": [{"name": link.name, "context": link.context}],
        "clusters": [{"name": cluster.name, "cluster": _independent(cluster.cluster, file)}],
        "users": [{"name": user.name, "user": _independent(user.user, file)}],
    }
    return yaml.safe_dump(kept, sort_keys=False)


def _read(file: Path) -> _Config:
    try:
        return msgspec.convert(yaml.safe_load(file.read_text()), _Config)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise KubeconfigError(f"kubeconfig {file} cannot be read: {error}") from error


def _named(kind: str, name: object, entries: list[_Entry], file: Path) -> _Entry:
    for entry in entries:
        if entry.name == name:
            return entry
    wanted, known = name or "(none is named)", ", ".join(entry.name for entry in entries) or "none"
    raise KubeconfigError(f"kubeconfig {file} has no {kind} {wanted}; there are: {known}")


def _independent(entry: dict[str, Any], file: Path) -> dict[str, Any]:
    made = dict(entry)
    for key in _EMBEDDED:
        named = made.pop(key, None)
        if named and f"{key}-data" not in made:
            made[f"{key}-data"] = base64.b64encode(_bytes(_beside(file, named))).decode()
    if named := made.get("tokenFile"):
        made["tokenFile"] = str(_beside(file, named))
    plugin: object = made.get("exec")
    if isinstance(plugin, dict):
        made["exec"] = _with_whole_path(msgspec.convert(plugin, dict[str, Any]), file)
    return made


def _with_whole_path(plugin: dict[str, Any], file: Path) -> dict[str, Any]:
    command = str(plugin.get("command", ""))
    # A bare name is looked for in PATH.
    return {**plugin, "command": str(_beside(file, command))} if "/" in command else plugin


def _beside(file: Path, named: object) -> Path:
    """A relative path counts from the kubeconfig's folder."""
    return (file.absolute().parent / Path(str(named)).expanduser()).resolve()


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KubeconfigError(f"{path}, which the kubeconfig names, cannot be read: {error.strerror}") from error
