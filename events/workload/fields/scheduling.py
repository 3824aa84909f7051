"""Where and in which order a workload runs."""

from typing import Annotated, ClassVar, Final, Literal

from events.fields.declare import About, Limits, Section
from events.fields.values import Items, PoolWord

PriorityClass = Literal["very-low", "low", "medium-low", "medium", "medium-high", "high", "very-high"]
DEFAULT_TRAINING_PRIORITY: Final = "low"
"""Trainings are unattended: people who wait at a workspace go first."""
DEFAULT_WORKSPACE_PRIORITY: Final = "high"
"""The lowest class that is not preempted: nobody shall lose the notebook that they work in."""


class Scheduling(Section, frozen=True, kw_only=True):
    """Node pools, priority, preemption."""

    TITLE: ClassVar[str] = "Scheduling"

    node_pools: Annotated[Items[PoolWord], About(rows="S039", flag="--node-pools")] = ()
    """Names of node pools, in the order in which they are tried. Default: the project's order."""
    priority_class: Annotated[
        PriorityClass, Limits(hides_options=True), About(rows="S045 R18", flag="--priority", later=True)
    ] = DEFAULT_TRAINING_PRIORITY
    """Priority: very-low, low, medium-low, medium, medium-high, high or very-high. Default: low; for workspaces
    high.
    """
    preemptibility: Annotated[
        Literal["preemptible", "non-preemptible"] | None, About(rows="S046 R19", flag="--preemptibility")
    ] = None
    """Whether the scheduler may preempt it. Default: preemptible if the priority is below high."""
