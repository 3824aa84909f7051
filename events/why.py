"""What the api asks the scheduler of a workload that is there, and what it answers: why it waits, or runs where it
does. It goes over core NATS, and is kept nowhere.
"""

from datetime import datetime
from typing import Any, Final, Literal

import msgspec

MOST_HOLDERS: Final = 20
"""Workloads that are named as holders in one answer."""
MOST_CHANGES: Final = 3
"""Changes of one answer."""
MOST_PLACES: Final = 5
"""Nodes of the workload in one answer, and as many others for each."""

MOST_KEPT: Final = 20
"""Workloads of one answer that keep their places for a while."""

type KeptBy = Literal["minimum_runtime", "gave_up_a_place", "got_its_place"]
"""minimum_runtime: its project, or department, lets what runs run for so long. gave_up_a_place: it gave up a place just
before, and keeps the next one for a while. got_its_place: what waits gave up its own place for it.
"""

type Act = Literal[
    "change_workload",
    "set_quota",
    "set_limit",
    "end_workloads",
    "uncordon_node",
    "open_node",
    "add_node",
    "connect_cluster",
    "wait",
]


class WhyAsked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of one workload."""

    workload_id: str
    seq: int = 0
    """Sequence of its last commit: a scheduler that has not read so far knows nothing of it."""
    readable: tuple[str, ...] | None = None
    """Ids of the projects whose workloads the asker may see; None: of all."""
    at: datetime
    """When it is asked: what was asked long ago has nobody who waits for it."""
    asker: str = ""
    """Who asks, in any words that are theirs alone: those who ask have their turns."""


class NodeCount(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that one ground keeps the pods from, or that have room."""

    pods: str
    """Which pods, by what each asks for; where they ask for different things, with the names of their pod sets."""
    ground: str
    """`room`, or the rule of the scheduler, such as `gpu` or `taints`; `size` where it is too small even when empty."""
    nodes: int
    """A node that is short of several things counts at each."""
    message: str
    cluster: str = ""
    """Name of the cluster that they are of, where the scheduler chooses among several."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """What one workload holds of the capacity that is asked for."""

    workload_id: str
    name: str
    project_id: str
    pods: int
    gpu_milli: int
    cpu_milli: int
    memory_bytes: int


class Others(msgspec.Struct, frozen=True, kw_only=True):
    """What workloads hold that the asker may not see, or that are beyond MOST_HOLDERS."""

    workloads: int = 0
    pods: int = 0
    gpu_milli: int = 0


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing to be done, or waited for."""

    act: Act
    field: str = ""
    """Of change_workload: path of the field, such as `spec.compute.gpuDevicesRequest`. The workload is submitted again
    with it."""
    value: Any = None
    """What the field, quota or limit (in GPUs) is set to, as in JSON. Of add_node: what the node has free."""
    of: str = ""
    """Name of the project or department, node or cluster; of change_workload, of what its value is the id of; of
    wait, until when where that is known."""
    pool: str = ""
    """Of a quota or limit in a node pool, and of add_node."""
    cluster: str = ""
    """Of what is done to nodes, where the scheduler chooses among several clusters: name of theirs."""
    workloads: tuple[str, ...] = ()
    """Of end_workloads: names of those that the asker may see."""
    hidden: int = 0
    """Of end_workloads: how many more there are."""


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Places that what waits may not take, or not yet, though the rules would let it otherwise."""

    workload_id: str = ""
    """Empty for those that the asker may not see; likewise the name."""
    name: str = ""
    workloads: int = 1
    """How many; more than one of those only that are not named."""
    until: datetime | None = None
    """The first moment when a place of theirs may be taken; None: never."""
    rule: KeptBy


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What would let it start. The scheduler has planned with it, and it started."""

    steps: tuple[Step, ...]
    message: str
    waits: bool = False
    """Whether it did not start yet, and waited for room as others do: without this, it never could."""


class ScoreOf(msgspec.Struct, frozen=True, kw_only=True):
    """What one score says of a node: the least is the best."""

    name: str
    value: int


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """A node on which a pod could be."""

    node: str
    node_pool: str
    scores: tuple[ScoreOf, ...]
    """In the order in which they count."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where pods of the workload are, and how that compares with other nodes now."""

    pod_set: str
    node: str
    node_pool: str
    pods: int
    chosen: Option | None
    """None where the node would not be possible any more."""
    others: tuple[Option, ...]
    """The best of the other nodes that have room."""
    rank: int
    """1 where no other node would be better now; 0 where the node would not be possible any more."""
    refused: tuple[NodeCount, ...]


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """When it is expected to start."""

    earliest: datetime
    latest: datetime
    """Four in five of the past waits came out within such a range."""
    measured: int = 0
    """Past estimates, whose outcome is known, from which the range is. 0: its end is one that is known."""
    typical_error: float = 0.0
    """The median of how far they were off, as a part of what was expected."""
    latest_known: bool = False
    """Whether, as the queue stands, all that it waits for has surely ended then: that is sooner than past waits say."""


class Why(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a workload waits, or runs where it does."""

    outcome: Literal["waits", "never", "starts", "runs", "ended", "unknown"]
    """waits: some of its pods wait for what may become free. never: it cannot ever fit as written. starts: the next
    plan places it. runs: none of its pods waits. ended: it asks for no place. unknown: it was not found out, or the
    cluster of its pods does not report.
    """
    reason: str = ""
    """Code of why it waits, such as `insufficient_gpu`."""
    message: str = ""
    """The same in a sentence, with numbers."""
    waiting_pods: int = 0
    ahead: int = 0
    """Workloads that wait in the same cluster and go before it."""
    nodes: tuple[NodeCount, ...] = ()
    holders: tuple[Holder, ...] = ()
    others: Others = Others()
    kept: tuple[Kept, ...] = ()
    """Those whose places it may not take yet, the first to be over first."""
    own: Kept | None = None
    """Of what runs: until when nobody takes its place."""
    changes: tuple[Change, ...] = ()
    """The smallest first."""
    places: tuple[Place, ...] = ()
    estimate: Estimate | None = None
    no_estimate: str = ""
    """Why there is none, of what waits."""
