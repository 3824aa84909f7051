"""ConfigMaps and Secrets of this machine: folders `config-maps/<project id>/<name>` and `secrets/<project id>/<name>`
of the cluster's data folder, of which each file is a key. Whoever runs this machine makes them; Muster changes none.

A run gets copies, with the rights that it asks for, in its own folder; they go with it.
"""

import re
from pathlib import Path
from typing import Final

from events.cluster_protocol import RunPod
from events.workload.volumes import ConfigFiles

MOST_BYTES: Final = 1024**2
"""Of one of them, as Kubernetes has it."""
MOST_TOLD: Final = 20
"""Keys in one sentence."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}\Z")
_PROJECT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,252}\Z")
_KEY: Final = re.compile(r"(?!\.\.)[A-Za-z0-9._-]{1,253}\Z")


class NoFilesError(Exception):
    """A run cannot have the files of a ConfigMap or Secret; the message says why."""


class ConfigFolders:
    def __init__(self, root: Path) -> None:
        self._root = root

    def has(self, project_id: str, volume: ConfigFiles) -> bool:
        """Whether it is there."""
        fits = bool(_NAME.match(volume.object_name) and _PROJECT.match(project_id))
        return fits and self._folder(project_id, volume).is_dir()

    def copy(self, run: RunPod, volume: ConfigFiles, target: Path) -> None:
        """Lay its keys as files into this folder, which is there. Raises NoFilesError, OSError."""
        what, name = "Secret" if volume.secret else "ConfigMap", volume.object_name
        if not (_NAME.match(name) and _PROJECT.match(run.project_id)):
            raise NoFilesError(f"{name!r} is no name of a {what}")
        folder = self._folder(run.project_id, volume)
        if not folder.is_dir():
            raise NoFilesError(
                f"there is no {what} {name} in this project on this machine: make the folder {folder}, with a file for "
                "each key"
            )
        keys = {path.name: path for path in sorted(folder.iterdir()) if _KEY.match(path.name) and path.is_file()}
        if sum(path.stat().st_size for path in keys.values()) > MOST_BYTES:
            raise NoFilesError(f"{what} {name} has more than 1 MiB on this machine; put large files into a claim")
        if volume.only_key and volume.only_key not in keys:
            has = ", ".join([*keys][:MOST_TOLD]) or "none"
            raise NoFilesError(f"{what} {name} has no key {volume.only_key} on this machine; it has {has}")
        for key, path in keys.items():
            if volume.only_key in {"", key}:
                # A start that failed halfway left some.
                (target / key).unlink(missing_ok=True)
                (target / key).touch(mode=0o600)
                (target / key).write_bytes(path.read_bytes())
                (target / key).chmod(volume.mode)

    def _folder(self, project_id: str, volume: ConfigFiles) -> Path:
        return self._root / ("secrets" if volume.secret else "config-maps") / project_id / volume.object_name
