"""Who used what in a span of time. Pure."""

from services.api.answers.forms import Form
from services.api.answers.workloads import Moment


class HoursSum(Form, frozen=True, kw_only=True):
    """What some workloads used in a span of time."""

    reserved_gpu_hours: float
    """GPUs that were reserved, times hours; a share of a GPU counts as its fraction. From the moment that a pod gets
    its node until it has ended."""
    used_gpu_hours: float | None
    """Of `measured_gpu_hours`, each part times how busy the GPU was. Null if nothing was measured."""
    measured_gpu_hours: float
    """Reserved GPU hours of which it is known how busy the GPUs were. Hours are measured once they are over; of the
    rest, nothing is known."""
    waiting_hours: float | None
    """Hours in which workloads waited for nodes, summed over the workloads. Null for node pools and GPU models: what
    waits is in none."""
    runs: int
    """Number of runs of pods that got a node in this time."""
    cost: str | None
    """What the reserved GPU hours cost, as a decimal; without those that have no price. Null if none has one."""
    unpriced_gpu_hours: float
    """Reserved GPU hours of models that had no price at the time. They are not in `cost`."""


class HoursPeriod(HoursSum, frozen=True, kw_only=True):
    """One hour, day or month of the span."""

    begins: Moment
    """When it begins."""
    ends: Moment
    """When it ends; in the last one, the end of the span."""


class HoursRow(HoursSum, frozen=True, kw_only=True):
    """What one project, department, user, node pool, priority, cluster or GPU model used."""

    name: str
    """Name of the project, department, node pool, priority or cluster; subject of the user; GPU model, empty if
    unknown.
    """
    id: str | None
    """Id of the project, department or cluster. Null for others."""
    cluster_name: str | None
    """Cluster of the node pool."""
    periods: list[HoursPeriod]
    """The same by period, those in which there is anything. Empty if no periods were asked for."""


class UseHours(Form, frozen=True, kw_only=True):
    """Who used what in a span of time, as far as the caller may read."""

    begins: Moment
    """When the span begins: the beginning of an hour."""
    ends: Moment
    """When it ends: the beginning of an hour, or now."""
    rows: list[HoursRow]
    """Sums, the most reserved GPU hours first."""
    total: HoursSum
    """The sum of everything that the filters leave."""
    currency: str | None
    """Of all costs. Null if there are no prices."""
    unpriced_models: list[str]
    """GPU models with reserved hours that had no price; an empty one is that of nodes whose model is unknown."""
    next: int | None
    """Offset of the next page. Null if this is the last."""
