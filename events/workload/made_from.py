"""From which template and assets a workload was made, and who set the fields of its spec. Pure.

A workload stores what came of them, never a reference that anybody has to follow. Of who set a field only that stands
here which its value does not say itself (docs/adr/0082): most workloads are made from no asset, and store nothing.
"""

import re
from typing import Final, Literal, get_args

import msgspec
from msgspec.structs import replace

from events.workload.spec import TrainingSpec

Source = Literal[
    "request",
    "data source",
    "compute",
    "environment",
    "template",
    "project policy",
    "department policy",
    "tenant policy",
    "default",
]
"""Who can set a field; the first goes before the others."""
SOURCES: Final[tuple[Source, ...]] = get_args(Source)


class AssetUsed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An asset as it was when the workload was made from it."""

    id: str
    """UUID of the asset."""
    name: str
    """Its name."""
    version: int
    """Sequence of its last commit at that time."""


class MadeFrom(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """From what a workload was made."""

    template: AssetUsed | None = None
    """The template; null where there is none. Likewise the two below."""
    environment: AssetUsed | None = None
    """The environment."""
    compute: AssetUsed | None = None
    """The compute resource."""
    data_sources: tuple[AssetUsed, ...] = ()
    """The data sources. Each is the volume of its name."""
    tenant_policy: int = 0
    """Sequence of the commit that set the policy of the tenant, as it was then; 0: there was none. Likewise below."""
    project_policy: int = 0
    """Of the policy of the project."""
    department_policy: int = 0
    """Of the policy of the department in which the project stood."""
    department_id: str = ""
    """UUID of that department, where it had a policy."""
    set_by: dict[str, tuple[str, ...]] = {}
    """Fields of the spec by who set them, such as `image` or `labels[0]`, where the value does not say it: one that
    differs from its default is taken to be set by the request, and every other to be a default.
    """

    def used(self, source: Source) -> AssetUsed | None:
        """The asset behind a source."""
        match source:
            case "template":
                return self.template
            case "environment":
                return self.environment
            case "compute":
                return self.compute
            case _:
                return None

    def after(self, was: TrainingSpec, now: TrainingSpec) -> "MadeFrom":
        """The same once somebody gave fields other values: it is no longer an asset that set those."""
        names = zip(was.__struct_fields__, was.__struct_encode_fields__, strict=True)
        changed = {wire for name, wire in names if getattr(was, name) != getattr(now, name)}
        kept = {
            source: tuple(field for field in fields if _STEP.split(field, maxsplit=1)[0] not in changed)
            for source, fields in self.set_by.items()
        }
        return replace(self, set_by={source: fields for source, fields in kept.items() if fields})


_STEP: Final = re.compile(r"[.\[]")
