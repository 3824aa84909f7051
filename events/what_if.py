"""What the api asks the scheduler, and what it answers: where a workload would run that nobody has submitted. It goes
over core NATS, and is kept nowhere.
"""

from datetime import datetime
from typing import Final, Literal

import msgspec

from events.why import Kept
from events.workload.spec import Beside, Distributed, Inference, TrainingSpec


class WhatIfAsked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A workload as it would be created now."""

    kind: str
    name: str
    project_id: str
    cluster_id: str
    """Empty where the scheduler chooses it."""
    among: tuple[str, ...] = ()
    """Ids of the clusters among which it does."""
    spec: TrainingSpec
    """With every default filled in."""
    distributed: Distributed | None = None
    inference: Inference | None = None
    at: datetime
    """When it is asked: what was asked long ago has nobody who waits for it."""

    @property
    def beside(self) -> Beside:
        return self.distributed or self.inference

    asker: str = ""
    """Who asks, in any words that are theirs alone: those who ask have their turns."""


class WouldRun(msgspec.Struct, frozen=True, kw_only=True):
    """Pods of one pod set that would get the same node."""

    pod_set: str
    cluster: str
    """Its name."""
    node: str
    node_pool: str
    pods: int
    gpu_milli: int
    """That they would hold there together."""


class WouldEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A workload whose place it would take. Who asks may see it: it is of the same project."""

    workload_id: str
    name: str
    pods: int
    rule: str
    """`preempted`, `reclaimed` or `backfilled`."""


class WhatIf(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the next plan would do with it, beside everything that waits now."""

    outcome: Literal["runs", "waits", "never", "unknown"]
    """runs: all pods that begin with it have room. waits: some, or all, wait. never: it cannot be placed as it is,
    however much becomes free. unknown: it was not found out.
    """
    placed: tuple[WouldRun, ...] = ()
    """At most MOST_TOLD; by pod set and node."""
    more: int = 0
    """Nodes beyond them."""
    waiting_pods: int = 0
    """Those that would wait."""
    reason: str = ""
    """Code of why they wait, such as `insufficient_gpu`."""
    message: str = ""
    """The same in a sentence, with numbers."""
    evicted: tuple[WouldEnd, ...] = ()
    """At most MOST_TOLD."""
    kept: tuple[Kept, ...] = ()
    """Those whose places it could not take yet."""
    evicted_elsewhere: int = 0
    """Pods of workloads of other projects, and of those beyond MOST_TOLD."""


MOST_TOLD: Final = 100
"""Nodes of one answer."""
