"""Section "Scheduling": where and in which order a workload runs."""

from typing import Annotated, Literal

from pydantic import Field

from events.workload.spec import PRIORITY_RANK
from services.api.fields.about import MAX_LIST_ITEMS, About, FieldsModel

SECTION = "Scheduling"


class SchedulingFields(FieldsModel):
    """Node pools, priority, preemption."""

    node_pools: Annotated[
        Annotated[list[Annotated[str, Field(max_length=63)]], Field(max_length=MAX_LIST_ITEMS)] | None,
        About(
            label="Node pools",
            help="Names, in the order in which they are tried. Default: the project's order.",
            section=SECTION,
            row="S039",
            flag="--node-pools",
        ),
    ] = None
    priority_class: Annotated[
        str | None,
        About(
            label="Priority class",
            help="very-low, low, medium-low, medium, medium-high, high or very-high. Default for trainings: low.",
            section=SECTION,
            row="S045 R18",
            flag="--priority",
            options=tuple(PRIORITY_RANK),
        ),
    ] = None
    preemptibility: Annotated[
        Literal["preemptible", "non-preemptible"] | None,
        About(
            label="Preemptibility",
            help="Whether it may be stopped for others. Default: preemptible below the class high.",
            section=SECTION,
            row="S046 R19",
            flag="--preemptibility",
        ),
    ] = None
