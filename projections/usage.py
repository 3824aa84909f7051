"""What the pods of a workload used over time, as one statement and its series. Runs no query."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Double, Executable, RowMapping, func, literal, select

from projections.tables import usage_samples, workloads

MAX_USAGE_SAMPLES: Final = 1000
"""Of one series (public-api.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSeries:
    pod: str
    """Pod set and index, such as `main-0`."""
    points: list["UsagePoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePoint:
    """Averages over one interval."""

    at: datetime
    cpu_milli: float
    memory_bytes: float
    gpu_utilization_percent: float | None
    gpu_memory_bytes: float | None


def usage_statement(workload_id: str, start: datetime, end: datetime, width: timedelta) -> Executable:
    """Means over intervals of this width, from the start on."""
    u = usage_samples.c
    bucket = func.date_bin(literal(width), u.at, start).label("bucket")

    def mean(column: Any) -> Any:
        return func.avg(column).cast(Double).label(column.name)

    return (
        select(
            u.pod_set,
            u.index,
            bucket,
            mean(u.cpu_milli),
            mean(u.memory_bytes),
            mean(u.gpu_utilization_percent),
            mean(u.gpu_memory_bytes),
        )
        # A cluster's agent speaks only for the workloads of its own cluster.
        .join(workloads, (workloads.c.id == u.workload_id) & (workloads.c.cluster_id == u.cluster_id))
        .where(u.workload_id == workload_id, u.at >= start, u.at < end)
        .group_by(u.pod_set, u.index, bucket)
        .order_by(u.pod_set, u.index, bucket)
    )


def usage_series(rows: Sequence[RowMapping]) -> list[UsageSeries]:
    """Of its rows, one for each pod."""
    series: dict[str, UsageSeries] = {}
    for row in rows:
        pod = f"{row['pod_set']}-{row['index']}"
        point = UsagePoint(
            at=row["bucket"],
            cpu_milli=row["cpu_milli"],
            memory_bytes=row["memory_bytes"],
            gpu_utilization_percent=row["gpu_utilization_percent"],
            gpu_memory_bytes=row["gpu_memory_bytes"],
        )
        series.setdefault(pod, UsageSeries(pod=pod, points=[])).points.append(point)
    return list(series.values())
