"""Rows of hourly use: one declaration per column (projections/columns.py). Pure.

They do not hold what was used, but how it changed: an amount that begins counts from then on, and one that ends counts
against it from then on. So a run of a year is two changes, what still goes on needs no row of its own, and what a span
of whole hours comes to follows exactly (projections/use_hours.py).
"""

from datetime import datetime
from typing import Annotated

import msgspec

from projections.columns import Column


class HourRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What began and ended within one hour (UTC), of one project, user, cluster, node pool, priority and GPU model.

    A weight is the sum of the changes, each times the microseconds from the beginning of the hour to it.
    """

    hour: Annotated[datetime, Column(key=True)]
    """When it begins."""
    key: Annotated[str, Column(key=True)]
    """Digest of the texts below: an index could not hold them."""
    project_id: str
    owner: str
    """Actor id."""
    cluster_id: str
    pool: str
    """Of the nodes; empty for what waits."""
    priority_class: str
    gpu_model: str
    """Empty where it is not known, or there is none."""
    gpu_milli: int = 0
    """Change of what is reserved, in thousandths of a GPU."""
    gpu_weight: int = 0
    waiting: int = 0
    """Change of the number of workloads that wait."""
    waiting_weight: int = 0
    runs: int = 0
    """Runs that were given a node."""
    measured: int = 0
    """How much of what was reserved in the hour is known to have been busy or not, in thousandths of a GPU times
    seconds: an amount, and no change."""
    used: int = 0
    """That, each part times how busy the GPU was."""


class RateRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The sum of all changes: what is reserved and waits now. Rows of zeros may stay."""

    key: Annotated[str, Column(key=True)]
    project_id: str
    owner: str
    cluster_id: str
    pool: str
    priority_class: str
    gpu_model: str
    gpu_milli: int = 0
    waiting: int = 0
