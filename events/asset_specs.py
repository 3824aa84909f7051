"""What may stand in the spec of each kind of asset: fields of a workload's spec, and a few of the asset's own.

The fields of workloads come from their sections (events/workload/fields) and keep their paths, so that a spec is merged
as it is. Every field can be left out: what is mandatory is so after the merge (R7).
"""

from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

from events.asset import AssetKind
from events.fields.declare import About, Section, joined
from events.fields.node import Node, tree
from events.workload.fields.compute import Resources
from events.workload.fields.creation import AssetChoice
from events.workload.fields.process import Process
from events.workload.fields.scheduling import Scheduling
from events.workload.kinds import KINDS
from events.workload.spec import WorkloadSpec

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
    """Whether a request may give another user and groups. Only where uidGidSource is custom. Default: no."""


class TemplateAssets(Section, frozen=True, kw_only=True):
    """What only a template has."""

    TITLE: ClassVar[str] = "Assets"

    assets: Annotated[AssetChoice | None, About(rows="S009 S015 S034")] = None
    """Environment and compute resource that it takes its fields from, where a request names none."""


if TYPE_CHECKING:

    class EnvironmentSpec(Process, EnvironmentUse, frozen=True, kw_only=True):
        """What an environment can set: what runs, and as whom."""

    class ComputeResourceSpec(Resources, Scheduling, frozen=True, kw_only=True):
        """What a compute resource can set: what a pod asks for, and on which nodes."""

    class TemplateSpec(WorkloadSpec, TemplateAssets, frozen=True, kw_only=True):
        """What a template can set: any field of the spec of its kind of workload."""

    class AssetSpec(TemplateSpec, EnvironmentUse, frozen=True, kw_only=True):
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
        without=frozenset({"code"}),
        optional=True,
    )

SPECS: Final[dict[AssetKind, type[Section]]] = {
    "environment": EnvironmentSpec,
    "compute": ComputeResourceSpec,
    "template": TemplateSpec,
}
OWN: Final = frozenset(field.name for section in (EnvironmentUse, TemplateAssets) for field in tree(section).fields)
"""Fields that say how an asset is used, and are no part of what is merged."""


def spec_node(workload_type: str) -> Node:
    """The spec of a kind of workload, as requests have it."""
    return tree(KINDS[workload_type].creation).by_name["spec"]
