"""What may stand in the spec of each kind of asset: fields of a workload's spec, and a few of the asset's own.

The fields of workloads come from their sections (events/workload/fields) and keep their paths, so that a spec is merged
as it is. Every field can be left out: what is mandatory is so after the merge (R7).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, cast

import msgspec

from events.asset import OFFERED, Asset, AssetKind, DataSourceKind, is_data_source
from events.fields.declare import About, Section, joined
from events.fields.node import Node, tree
from events.fields.values import LongName, Uuid
from events.workload.fields.compute import Resources
from events.workload.fields.creation import AssetChoice
from events.workload.fields.process import Process
from events.workload.fields.scheduling import Scheduling
from events.workload.fields.storage import (
    ConfigMapVolume,
    DataVolume,
    GitVolume,
    HostPathVolume,
    NfsVolume,
    PvcVolume,
    S3Volume,
    SecretVolume,
    StorageSpec,
)
from events.workload.kinds import KINDS
from events.workload.spec import WorkloadSpec
from events.workload.volumes import Volume, volumes

if TYPE_CHECKING:
    type WorkloadType = str
else:
    WorkloadType = Literal[*KINDS]

_ORDER: Final = frozenset({"priority_class", "preemptibility", "terminate_after_preemption"})
"""Of the section Scheduling, what says nothing of where pods run."""


class EnvironmentUse(Section, frozen=True, kw_only=True):
    """What only an environment has."""

    TITLE: ClassVar[str] = "Use of the environment"

    workload_types: Annotated[tuple[WorkloadType, ...], About(rows="S015")] = ()
    """Kinds of workloads that can use it. Default: all of them."""
    override_uid_gid_in_workspace: Annotated[bool, About(rows="R22")] = False
    """Whether a request may give another user and groups. Not where uidGidSource is fromTheImage. Default: no."""


CredentialKind = Literal["password", "access-key", "docker-registry", "generic-secret", "ngc-key"]


class KeptCredential(Section, frozen=True, kw_only=True):
    """What the log has of a credential: all but its value."""

    kind: CredentialKind
    """What it is for."""
    keys: tuple[str, ...] = ()
    """Names of what it holds."""
    value: str
    """Id under which the value is kept, sealed, and apart from the log. Each value has another one."""


class CredentialUse(Section, frozen=True, kw_only=True):
    """What only a credential has."""

    TITLE: ClassVar[str] = "Credential"

    credential: KeptCredential | None = None
    """Kind, keys and the id of the value."""


class OfferedClaim(Section, frozen=True, kw_only=True):
    """A claim that a project shares with others."""

    project_id: Annotated[Uuid, About(rows="S060", example="7b0e9f2a-6f0e-4c55-9c6b-2f2f6b3f1a10")]
    """Id of the project whose claim it is. Its administrators share it. It cannot be changed."""
    cluster_id: Annotated[Uuid, About(rows="S060", example="7b0e9f2a-6f0e-4c55-9c6b-2f2f6b3f1a10")]
    """Id of the cluster that has the claim, of kind kubernetes. It cannot be changed."""
    claim_name: Annotated[LongName, About(rows="S060", example="imagenet")]
    """Name of the claim in the project's namespace. It cannot be changed."""


class DataVolumeUse(Section, frozen=True, kw_only=True):
    """What only a data volume has."""

    TITLE: ClassVar[str] = "Data volume"

    offered_claim: OfferedClaim | None = None
    """The claim that it is."""


class TemplateAssets(Section, frozen=True, kw_only=True):
    """What only a template has."""

    TITLE: ClassVar[str] = "Assets"

    assets: Annotated[AssetChoice | None, About(rows="S009 S015 S034")] = None
    """Environment, compute resource and data sources that it takes its fields from, where a request names none."""


if TYPE_CHECKING:

    class EnvironmentSpec(Process, EnvironmentUse, frozen=True, kw_only=True):
        """What an environment can set: what runs, and as whom."""

    class ComputeResourceSpec(Resources, Scheduling, frozen=True, kw_only=True):
        """What a compute resource can set: what a pod asks for, and on which nodes."""

    class TemplateSpec(WorkloadSpec, TemplateAssets, frozen=True, kw_only=True):
        """What a template can set: any field of the spec of its kind of workload."""

    class AssetSpec(TemplateSpec, EnvironmentUse, CredentialUse, DataVolumeUse, frozen=True, kw_only=True):
        """Every field that an asset of some kind can set: the form of what is stored."""

else:
    EnvironmentSpec = joined(
        "EnvironmentSpec", __name__, Process, EnvironmentUse, without=frozenset({"code"}), optional=True
    )
    ComputeResourceSpec = joined("ComputeResourceSpec", __name__, Resources, Scheduling, without=_ORDER, optional=True)
    TemplateSpec = joined(
        "TemplateSpec", __name__, *WorkloadSpec.PARTS, TemplateAssets, without=frozenset({"code"}), optional=True
    )
    AssetSpec = joined(
        "AssetSpec",
        __name__,
        *WorkloadSpec.PARTS,
        TemplateAssets,
        EnvironmentUse,
        CredentialUse,
        DataVolumeUse,
        without=frozenset({"code"}),
        optional=True,
    )

_NOT_OF_SOURCES: Final = frozenset({"id", "name", "exclude", "ephemeral", "claim_info"})
"""Of a volume: its name or id is the data source's, and a new claim is a workload's own."""


def _source(name: str, *sections: type[Section]) -> type[Section]:
    return joined(name, __name__, *sections, without=_NOT_OF_SOURCES)


SOURCES: Final[dict[DataSourceKind, tuple[str, type[Section]]]] = {
    "pvc": ("pvc", _source("PvcSource", PvcVolume)),
    "git": ("git", _source("GitSource", GitVolume)),
    "nfs": ("nfs", _source("NfsSource", NfsVolume)),
    "s3": ("s3", _source("S3Source", S3Volume)),
    "host-path": ("hostPath", _source("HostPathSource", HostPathVolume)),
    "config-map": ("configMapVolume", _source("ConfigMapSource", ConfigMapVolume)),
    "secret": ("secretVolume", _source("SecretSource", SecretVolume)),
    "data-volume": ("dataVolume", _source("DataVolumeSource", OfferedClaim, DataVolume)),
}
"""By kind of data source: the list of spec.storage that its volume goes into, and what people say of it."""
SPECS: Final[dict[AssetKind, type[Section]]] = {
    "environment": EnvironmentSpec,
    "compute": ComputeResourceSpec,
    "template": TemplateSpec,
    **{kind: spec for kind, (_, spec) in SOURCES.items()},
    "credentials": CredentialUse,
}
OWN: Final = frozenset(
    field.name for section in (EnvironmentUse, TemplateAssets, DataVolumeUse) for field in tree(section).fields
)
"""Fields that say how an asset is used, and are no part of what is merged."""
_OFFERED_FIELDS: Final = frozenset(field.name for field in tree(OfferedClaim).fields)


def volume_spec(kind: DataSourceKind, name: str, source: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a workload's spec that a data source sets: one volume, of its name."""
    field, _ = SOURCES[kind]
    if kind == "data-volume":
        # It is known by its id, which nobody knows before it is made.
        offered = {name: value for name, value in source.items() if name in _OFFERED_FIELDS}
        volume = {name: value for name, value in source.items() if name not in _OFFERED_FIELDS}
        return {OFFERED: offered, "storage": {field: [volume]}}
    return {"storage": {field: [{"name": name, **source}]}}


def source_spec(kind: DataSourceKind, spec: Mapping[str, Any]) -> dict[str, Any]:
    """What people say of a data source, of its stored spec."""
    field, _ = SOURCES[kind]
    volume = {name: value for name, value in spec["storage"][field][0].items() if name != "name"}
    return {**(spec.get(OFFERED) or {}), **volume}


def layer_of(asset: Asset) -> dict[str, Any]:
    """What an asset sets of a workload's spec."""
    fields = {name: value for name, value in asset.spec.items() if name not in OWN}
    if asset.kind != "data-volume":
        return fields
    return {"storage": {"dataVolume": [{"id": asset.asset_id, **fields["storage"]["dataVolume"][0]}]}}


def volume_of(kind: DataSourceKind, spec: Mapping[str, Any]) -> Volume:
    """The volume of a data source, of its stored spec. Raises msgspec.ValidationError, ValueError where it is none, as
    one from an older version may be.
    """
    field, _ = SOURCES[kind]
    (found,) = volumes(msgspec.convert({field: [_without_nulls(spec["storage"][field][0])]}, StorageSpec))
    return found


def _without_nulls(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_nulls(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value
        for name, value in given.items()
        if value is not None
    }


def mount_path(kind: AssetKind, spec: Mapping[str, Any]) -> str:
    """Where pods find the volume of a data source, of its stored spec."""
    if not is_data_source(kind):
        return ""
    field, struct = SOURCES[kind]
    volume = spec["storage"][field][0]
    return volume.get("mountPath" if "mountPath" in tree(struct).by_name else "path") or ""


def spec_node(workload_type: str) -> Node:
    """The spec of a kind of workload, as requests have it."""
    return tree(KINDS[workload_type].creation).by_name["spec"]
