"""Where a living workload finds its claims and Secrets, changed: the fields of volumes that may change later (R30).

Pure. A volume is named by where pods find it now, which is the only thing that each volume has.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from msgspec.structs import replace

from events.fields.declare import Body
from events.fields.values import FilePath, Items
from events.workload.fields.storage import FileMode, PvcVolume, SecretVolume, StorageSpec
from events.workload.spec import NO_SPEC, Distributed, MasterSpec, TrainingSpec
from services.api.issues import Issue, fault, none_of
from services.api.mpi_rules import check_places
from services.api.storage_rules import check_storage


class PvcPath(Body, frozen=True, kw_only=True):
    """Where pods find a claim from now on."""

    mounted_at: FilePath
    """Where they find it now: `path` of the volume."""
    path: FilePath
    """Where runs that begin later find it."""


class SecretPath(Body, frozen=True, kw_only=True):
    """Where pods find the files of a Secret from now on, and with which rights."""

    mounted_at: FilePath
    """Where they find them now: `mountPath` of the volume."""
    mount_path: FilePath | None = None
    """Where runs that begin later find them. Default: where they are."""
    default_mode: FileMode | None = None
    """Rights of the files in four octal digits, in runs that begin later. Default: as they are."""


class MountPaths(Body, frozen=True, kw_only=True):
    """What of its volumes may change while a workload lives. What is left out stays."""

    pvc: Items[PvcPath] = ()
    """Claims that pods are to find elsewhere."""
    secret_volume: Items[SecretPath] = ()
    """Secrets likewise, and the rights of their files."""


class MasterChange(Body, frozen=True, kw_only=True):
    """What of a master with volumes of its own may change while a workload lives."""

    storage: MountPaths | None = None
    """Where runs of the master that begin later find its claims and Secrets."""


MOST_TOLD: Final = 20
"""Paths in one sentence."""
_CHANGEABLE: Final = MountPaths.__struct_encode_fields__


def fixed_volumes(body: Mapping[str, Any]) -> Iterator[Issue]:
    """What of a change of volumes names what stays as it was submitted. Args: body, as it came."""
    yield from _fixed(body.get("storage"), "storage")
    master = body.get("masterSpec")
    if not isinstance(master, dict):
        return
    given = cast("dict[str, Any]", master)
    for name in MasterSpec.__struct_encode_fields__:
        if name in given and name != "storage":
            details = "cannot be changed once a workload is submitted; of a master only paths of its own volumes can"
            yield Issue(field=f"masterSpec.{name}", details=details, rule="canEdit")
    yield from _fixed(given.get("storage"), "masterSpec.storage")


def _fixed(given: Any, at: str) -> Iterator[Issue]:
    if not isinstance(given, dict):
        return
    for name in StorageSpec.__struct_encode_fields__:
        if name in cast("dict[str, Any]", given) and name not in _CHANGEABLE:
            details = "cannot be changed once a workload is submitted; paths of pvc and secretVolume can"
            yield Issue(field=f"{at}.{name}", details=details, rule="canEdit")


def moved(
    spec: TrainingSpec, asked: MountPaths, distributed: Distributed | None = None
) -> tuple[StorageSpec, list[Issue]]:
    """The volumes once they are changed, and what is wrong with that. `distributed`: of a distributed training."""
    return _all_moved(spec.storage, asked, spec, distributed, "storage")


def moved_of_master(
    spec: TrainingSpec, asked: MountPaths, distributed: Distributed | None
) -> tuple[StorageSpec, list[Issue]]:
    """Likewise of a master that has volumes of its own."""
    master, at = None if distributed is None else distributed.master, "masterSpec.storage"
    if master is None:
        return StorageSpec(), [fault(at, "the workload has no master", "canEdit")]
    if master.storage == spec.storage:
        details = "its master has the volumes of its workers, and goes where they go; change storage"
        return master.storage, [fault(at, details, "canEdit")]
    return _all_moved(master.storage, asked, spec, distributed, at)


def _all_moved(
    storage: StorageSpec, asked: MountPaths, spec: TrainingSpec, distributed: Distributed | None, at: str
) -> tuple[StorageSpec, list[Issue]]:
    """Args: spec, of the workload; at, the field of these volumes."""
    issues: list[Issue] = []
    claims = _moved(
        storage.pvc,
        {place: index for index, one in enumerate(storage.pvc) if (place := one.path)},
        [(one.mounted_at, one.path, {"path": one.path}) for one in asked.pvc],
        f"{at}.pvc",
        issues,
    )
    secrets = _moved(
        storage.secret_volume,
        {place: index for index, one in enumerate(storage.secret_volume) if (place := one.mount_path)},
        [(one.mounted_at, one.mount_path, _of_secret(one)) for one in asked.secret_volume],
        f"{at}.secretVolume",
        issues,
    )
    after = replace(storage, pvc=claims, secret_volume=secrets)
    if not issues and after != storage:
        taken = check_places(after, spec.checkpoint, distributed.distribution) if distributed is not None else ()
        found = check_storage(replace(NO_SPEC, storage=after, checkpoint=spec.checkpoint))
        for issue in (*found, *taken):
            field = issue.field.removeprefix("spec.").partition("[")[0]
            field = field.replace("storage", at, 1) if field.startswith("storage") else field
            issues.append(Issue(field=field, details=issue.details, rule=issue.rule))
    return after, issues


def _of_secret(one: SecretPath) -> dict[str, str]:
    given = {"mount_path": one.mount_path, "default_mode": one.default_mode}
    return {name: value for name, value in given.items() if value is not None}


def _moved[V: (PvcVolume, SecretVolume)](
    volumes: tuple[V, ...],
    places: Mapping[str, int],
    asked: Sequence[tuple[str, str | None, dict[str, str]]],
    field: str,
    issues: list[Issue],
) -> tuple[V, ...]:
    """Args: places, by where each is now; asked, of each change where it is, where it is to be, and its fields."""
    after = list(volumes)
    seen: set[int] = set()
    for number, (at, to, fields) in enumerate(asked):
        # One that is there already: said again, after its answer was lost.
        index = places.get(at, places.get(to or ""))
        if index is None:
            details = none_of(at, list(places)[:MOST_TOLD]) if places else "it has no volume of this kind"
            issues.append(fault(f"{field}[{number}].mountedAt", details, "options"))
        elif index in seen:
            issues.append(fault(f"{field}[{number}].mountedAt", "is changed twice; say it once"))
        else:
            seen.add(index)
            after[index] = replace(after[index], **fields)
    return tuple(after)
