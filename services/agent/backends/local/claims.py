"""Persistent volume claims of this machine: folders `claims/<project id>/<name>` of the cluster's data folder, which
outlive the pods that use them.

Beside each that a workload made stands whose it is (`.<name>.json`). One without is nobody's to delete: an
administrator made it. Records are written before their folders and deleted after them, so a workload's folder has one.
"""

import contextlib
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

import msgspec

from events.cluster_protocol import RunPod
from events.workload.volumes import ClaimedFolder
from services.agent.backends.interface import HeldClaims
from services.agent.backends.local import shim

REMOVED: Final = ".removed"
"""Folder of what is being deleted."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}\Z")


class ClaimError(Exception):
    """A run cannot have a claim; the message says why."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    workload_id: str
    ephemeral: bool = False


class Claims:
    """All calls are made on one thread, and none waits: what was looked at holds until the call ends."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._records: dict[Path, _Record] = {}
        """By the claim's folder."""

    def open(self) -> None:
        """Read which there are. Raises OSError."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Now, and not once there is no room for another folder: deleting is what makes room.
        (self._root / REMOVED).mkdir(mode=0o700, exist_ok=True)
        for path in self._root.glob("*/.*.tmp"):
            path.unlink()  # of a record that an agent could not finish
        for path in self._root.glob("*/.*.json"):
            with contextlib.suppress(msgspec.DecodeError):
                folder = path.parent / path.name.removeprefix(".").removesuffix(".json")
                self._records[folder] = msgspec.json.decode(path.read_bytes(), type=_Record)

    def folder_of(self, run: RunPod, claim: ClaimedFolder) -> Path:
        """Where the claim lies. Raises ClaimError where its name is none."""
        name = claim.claim or f"{run.workload_id}-{claim.number}"
        if not (_NAME.match(name) and _NAME.match(run.project_id)):
            raise ClaimError(f"{name!r} is no name of a claim")
        return self._root / run.project_id / name

    def has(self, project_id: str, name: str) -> bool:
        """Whether a claim of this name is there that a pod could name."""
        fits = bool(_NAME.match(name) and _NAME.match(project_id))
        return fits and (self._root / project_id / name).is_dir()

    def ensure(self, run: RunPod) -> None:
        """Have all claims of the run there. Raises ClaimError, OSError."""
        for claim in run.volumes:
            if isinstance(claim, ClaimedFolder):
                folder = self.folder_of(run, claim)
                if claim.new is None:
                    self._find(folder)
                else:
                    self._make(folder, _Record(workload_id=run.workload_id, ephemeral=claim.new.ephemeral))

    def held(self) -> Iterator[HeldClaims]:
        """By workload."""
        workloads = {record.workload_id: False for record in self._records.values()}
        for record in self._records.values():
            workloads[record.workload_id] |= record.ephemeral
        return (HeldClaims(workload_id=workload, ephemeral=some) for workload, some in workloads.items())

    def remove(
        self, workload_id: str, *, ephemeral_only: bool, in_use: AbstractSet[Path] = frozenset()
    ) -> Sequence[Path]:
        """Take a workload's claims away; what is to be deleted now. Raises OSError.

        Args:
            in_use: folders that a pod of whichever workload has now: they stay, to be taken away once it is gone.
        """
        aside: list[Path] = []
        for folder, record in list(self._records.items()):
            if record.workload_id == workload_id and (record.ephemeral or not ephemeral_only) and folder not in in_use:
                target = self._root / REMOVED / uuid.uuid4().hex
                with contextlib.suppress(FileNotFoundError):
                    folder.rename(target)
                _record_of(folder).unlink(missing_ok=True)
                del self._records[folder]
                aside.append(target)
        return aside

    def clear(self) -> None:
        """Delete what an earlier agent took away. It may take long."""
        for folder in (self._root / REMOVED).iterdir():
            shutil.rmtree(folder, ignore_errors=True)

    def folders_of(self, run: RunPod) -> Iterator[Path]:
        """Of the claims that the run has."""
        for claim in run.volumes:
            if isinstance(claim, ClaimedFolder):
                with contextlib.suppress(ClaimError):
                    yield self.folder_of(run, claim)

    def _find(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ClaimError(
                f"there is no claim {folder.name} in this project on this machine: make the folder {folder}, or leave "
                "existingPvc out to have it made"
            )

    def _make(self, folder: Path, record: _Record) -> None:
        known = self._records.get(folder)
        if (known is None and folder.exists()) or (known is not None and known.workload_id != record.workload_id):
            raise ClaimError(
                f"there is a claim {folder.name} in this project that this workload did not make: give another "
                "claimName, or existingPvc true to use it"
            )
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        if known is None:
            content: dict[str, object] = msgspec.to_builtins(record)
            shim.write_record(str(folder.parent), _record_of(folder).name, content, durable=True)
            self._records[folder] = record
        folder.mkdir(mode=0o700, exist_ok=True)


def _record_of(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.json"
