"""What a filter, a score and an order are. Each is one module in its folder, and one line in `registry`. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from events.phases import WaitingReason
from events.workload.spec import PodRequest
from events.workload.state import Workload
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans, Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One ground on which nodes are refused."""

    refuses: Callable[[View], Booleans]
    """Per node of the view."""
    words: Callable[[View], str]
    """Why, for a person, of nodes that were all refused; see the fields of Filter for the sentence they end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which nodes a pod may go to: those that no filter refuses."""

    name: str
    asks: Callable[[PodRequest], bool]
    """Whether this request gives the filter anything to look at; where not, it refuses no node."""
    never: Check | None = None
    """What no waiting helps: the node is too small even when empty. The words say what is needed and what the largest
    node has; they are empty where no single number says it.
    """
    barred: Check | None = None
    """What the workload itself rules out, by the labels of nodes: no waiting helps. The words follow a number of nodes:
    "3 not of node type a100".
    """
    closed: Check | None = None
    """What pods that come and go do not change: the node takes no such pod now. The words say what may be the cause;
    they are empty where another filter's say it.
    """
    full: Check | None = None
    """What pods that end may change. The words follow a number of nodes: "2 short of CPU (need 4, most free 1)"."""
    by_room: bool = False
    """Whether `full` follows from what is free on the node alone: it is asked once for nodes alike (Room.state)."""
    reason: WaitingReason = WaitingReason.INSUFFICIENT_RESOURCES
    """The code of a workload that every node refuses as full on this ground."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Which of the nodes with room is the best: the one with the least value. The first score in the registry that
    tells two nodes apart decides between them.
    """

    name: str
    bits: int
    """The values are from 0 to 2**bits - 1; what is outside counts as the nearest of these. At most 62."""
    value: Callable[[View], Integers]
    """Per node of the view. Asked for nodes without room too, whose values do not count."""
    by_room: bool = False
    """Whether it follows from what is free on the node alone: then it is asked once for nodes alike (Room.state)."""
    lasting: bool = False
    """Whether no pod that comes or goes changes it: then it is asked once. Only scores that are packed first may be."""


class Age(NamedTuple):
    """Of a workload that waits."""

    since: float
    """When it began to wait, in seconds since 1970, as if what it had waited for before had been just before that."""
    head_start_seconds: float
    """For so long one of a rank less must have waited before it goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Which workload goes first: the one with the least value. The first order in the registry that tells two apart
    decides.
    """

    name: str
    value: Callable[[Workload, Age], float]
