"""What an agent may report: bounds of every number, text and list in its messages, with reasons. Pure.

Other people administer the machine of an agent, and its reports become events that every service reads and that stay
for ever. So each field of each message has a bound here, and a test fails if one has none. The bounds are far above the
values of real clusters, and below what 64-bit numbers, columns, records and the scheduler's time allow.
"""

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec

from events.cluster import StorageClass
from events.cluster_protocol import (
    MAX_ISSUE,
    MOST_SOURCES,
    Looked,
    ObservedCluster,
    ObservedNode,
    ObservedPod,
    SourcesRequest,
    UsageReport,
    UsageSample,
)
from events.ids import KEY_PATTERN
from events.node import MOST_DEVICES, NodeFacts, Taint
from events.workload.commands import PodWarning
from events.workload.pod import PodAddress, PodRef, PortAddress

MAX_NODE_BYTES: Final = 64 * 1024
"""Of a node's report as JSON: one with 200 labels of usual length has 16 KiB. Every change of a node is a record."""
MAX_NODES: Final = 20_000
"""Of one cluster: Kubernetes is tested up to 5,000, and the scheduler looks at all of them."""
MAX_CPU_MILLI: Final = 100_000_000
MAX_BYTES: Final = 2**60
MOST_SESSIONS: Final = 500
"""Ways into the pods of one cluster that are open at a time."""
MAX_GPUS: Final = MOST_DEVICES
MAX_EXTENDED: Final = 100
"""Extended resources of one node."""
MAX_PIECES: Final = 2**50
"""Of one extended resource of one node; some count in bytes."""
MAX_PODS: Final = 10_000
"""Of one node, each of these; what an administrator may have simulated is held to the same."""
MAX_STORAGE_CLASSES: Final = 100
"""Of one cluster: they stand in each heartbeat."""
MAX_ATTRIBUTES: Final = 20
"""Of the claims of one storage class. A value has 10,000 characters, and all annotations of an object 256 KiB."""
SHOWN_CHARACTERS: Final = 80
"""Of a refused value, and of the name of what it was said of."""
MAX_SHOWN_BITS: Final = 256

EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    least: float = 0
    most: float
    why: str

    @property
    def rule(self) -> str:
        return f"{self.least:,} to {self.most:,}"

    def wrong(self, value: Any) -> bool:
        return not self.least <= value <= self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    most: int
    why: str
    least: int = 0
    key: bool = False
    """Whether it becomes a part of a subject."""

    @property
    def rule(self) -> str:
        if self.key:
            return "1 to 64 letters, digits, - and _"
        return f"{self.least} to {self.most:,} characters" if self.least else f"at most {self.most:,} characters"

    def wrong(self, value: Any) -> bool:
        return not self.least <= len(value) <= self.most or (self.key and not KEY_PATTERN.match(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    why: str

    @property
    def rule(self) -> str:
        return f"a time with its zone, {EARLIEST.year} to {LATEST.year - 1}"

    def wrong(self, value: Any) -> bool:
        return value.tzinfo is None or not EARLIEST <= value < LATEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """A list, or the entries of a mapping."""

    most: int
    why: str
    of: Text | Number | None = None
    """Bound of each entry (of each value); entries that are messages have bounds of their own."""
    keys: Text | None = None

    @property
    def rule(self) -> str:
        return f"at most {self.most:,} entries"

    def wrong(self, value: Any) -> bool:
        return len(value) > self.most


Bound = Number | Text | Moment | Many

_CODE: Final = Text(most=253, why="codes are short; a Kubernetes reason has at most 128 characters")
_SENTENCE: Final = Text(most=4_096, why="agents cut texts of clusters at 1,000 characters")
_KEY: Final = Text(least=1, most=64, key=True, why="it is part of subjects")
_NAME: Final = Text(least=1, most=253, why="Kubernetes allows 253 characters in a name")
_LABEL_KEY: Final = Text(most=317, why="Kubernetes: a prefix of 253 characters, a slash, a name of 63")
_LABEL_VALUE: Final = Text(most=63, why="Kubernetes allows 63 characters")
_CPU: Final = Number(most=MAX_CPU_MILLI, why="100,000 cores; the largest machines have some 2,000")
_BYTES: Final = Number(most=MAX_BYTES, why="1 EiB; the largest machines have some 64 TiB")
_GPUS: Final = Number(most=MAX_GPUS, why="the scheduler keeps a column for each; the largest machines have 16 to 72")
_PODS: Final = Number(most=MAX_PODS, why="kubelets take 110 by default, large machines some 1,000")
_RESOURCE: Final = Text(least=1, most=317, why="Kubernetes: a prefix of 253 characters, a slash, a name of 63")
_PIECES: Final = Number(most=MAX_PIECES, why="far above any number of pieces, and sums of it fit 64 bits")
_PORT: Final = Number(least=1, most=65_535, why="it is a port")
_RUN: Final = Number(most=2**31 - 1, why="attempts and tries rise by one")
_MOMENT: Final = Moment(why="times are compared and subtracted; a clock that was never set shows 1970")

BOUNDS: Final[dict[type[msgspec.Struct], dict[str, Bound]]] = {
    PodRef: {
        "pod_set": Text(least=1, most=63, why="it becomes a label on Kubernetes"),
        "index": Number(most=2**31 - 1, why="a workload has at most a million completions"),
        "attempt": _RUN,
        "try_": _RUN,
    },
    PodWarning: {"reason": _CODE, "message": _SENTENCE, "at": _MOMENT},
    PortAddress: {"container": _PORT, "port": _PORT, "external": Number(most=65_535, why="0 says that there is none")},
    PodAddress: {
        "host": Text(least=2, most=45, why="it is an IP address"),
        "ports": Many(most=2_000, why="a workload has at most 1,000 ports and 1,000 URLs"),
        "node": Text(most=45, why="it is an IP address"),
        "service": Text(most=253, why="it is a DNS name"),
    },
    ObservedPod: {
        "pod_key": _KEY,
        "token": Number(
            most=2**53, why="it is a sequence of the log; some JSON readers cannot read larger numbers exactly"
        ),
        "workload_id": _KEY,
        "at": _MOMENT,
        "node_name": Text(most=253, why=_NAME.why),
        "exit_code": Number(least=-(2**31), most=2**32 - 1, why="32 bits, signed or not"),
        "reason": _CODE,
        "message": _SENTENCE,
        "note": _SENTENCE,
        "started_at": _MOMENT,
        "checkpoint_at": _MOMENT,
        "warnings": Many(most=100, why="each reason is reported once, and ten of them reach the history"),
    },
    Taint: {"key": _LABEL_KEY, "value": _LABEL_VALUE, "effect": _LABEL_VALUE, "since": _MOMENT},
    NodeFacts: {
        "cpu_milli": _CPU,
        "memory_bytes": _BYTES,
        "gpu_count": _GPUS,
        "gpu_model": Text(most=253, why="it is the value of a label, or comes from the driver"),
        "gpu_memory_bytes": Number(most=MAX_BYTES, why="like the memory of a node"),
        "max_pods": _PODS,
        "pool": Text(most=63, why="cluster_sync sets it from the labels"),
        "labels": Many(most=1_000, keys=_LABEL_KEY, of=_LABEL_VALUE, why="feature discovery adds some 200"),
        "taints": Many(most=100, why="nodes have a few"),
        "foreign_cpu_milli": _CPU,
        "foreign_memory_bytes": _BYTES,
        "foreign_gpus": _GPUS,
        "foreign_pods": _PODS,
        "extended": Many(most=MAX_EXTENDED, keys=_RESOURCE, of=_PIECES, why="device plugins offer a few"),
        "foreign_extended": Many(most=MAX_EXTENDED, keys=_RESOURCE, of=_PIECES, why="like those of the node"),
    },
    ObservedNode: {"name": _NAME},
    StorageClass: {
        "name": _NAME,
        "attributes": Many(
            most=MAX_ATTRIBUTES,
            of=Text(least=1, most=63, why="a request may name keys of 63 characters"),
            why="all values of a claim fit its annotations",
        ),
    },
    ObservedCluster: {
        "at": _MOMENT,
        "storage_classes": Many(most=MAX_STORAGE_CLASSES, why="agents list at most a hundred"),
        "agent_version": Text(most=63, why="it is a version number"),
        "nodes": Number(most=1_000_000, why="it is only a count; the number of accepted nodes has its own limit"),
        "problem": _SENTENCE,
        "orphans": Many(
            most=100, of=Text(most=100, why="each is a pod key and a token"), why="agents list at most a hundred"
        ),
        "sessions": Many(most=MOST_SESSIONS, of=_KEY, why="as many are open on a cluster at a time"),
    },
    UsageSample: {
        "workload_id": _KEY,
        "at": _MOMENT,
        "cpu_milli": _CPU,
        "memory_bytes": _BYTES,
        "gpu_utilization_percent": Number(most=102_400, why="100 for each device of a node"),
        "gpu_memory_bytes": Number(most=MAX_BYTES, why="the sum over all devices of a pod"),
    },
    Looked: {
        "asset_id": _KEY,
        "spec_at": _MOMENT,
        "issue": Text(most=MAX_ISSUE, why="agents cut it, and it stands in the log"),
    },
    SourcesRequest: {
        "after": Text(most=64, why="it is an id"),
        "looked": Many(most=MOST_SOURCES, why="agents are told as many at a time"),
    },
    UsageReport: {"samples": Many(most=1_000, why="agents send 500 per message")},
}
"""By message and field. Yes or no, and words of a closed list, are bounded by being decoded."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A value that is refused."""

    field: str
    """Path within the message."""
    rule: str
    """What would be accepted."""
    value: str
    """The given value, cut."""


def refused(message: msgspec.Struct) -> Refused | None:
    """The first value of a message that is out of its bounds; None if there is none."""
    return next(_refused(message, ""), None)


def _refused(message: msgspec.Struct, path: str) -> Iterator[Refused]:
    bounds = BOUNDS[type(message)]
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if value is not None:
            yield from _refused_value(value, path + name, bounds.get(name))


def _refused_value(value: Any, path: str, bound: Bound | None) -> Iterator[Refused]:
    if bound is not None and bound.wrong(value):
        yield Refused(field=path, rule=bound.rule, value=shown(value))
        return
    if isinstance(value, msgspec.Struct):
        yield from _refused(value, f"{path}.")
    elif isinstance(value, tuple):
        of = bound.of if isinstance(bound, Many) else None
        for number, entry in enumerate(cast("tuple[Any, ...]", value)):
            yield from _refused_value(entry, f"{path}[{number}]", of)
    elif isinstance(value, dict) and isinstance(bound, Many):
        # Labels are many, and paths are made only where they are needed.
        for key, entry in cast("dict[str, Any]", value).items():
            if bound.keys is not None and bound.keys.wrong(key):
                yield Refused(field=path, rule=bound.keys.rule, value=shown(key))
            if bound.of is not None and bound.of.wrong(entry):
                yield Refused(field=f"{path}[{shown(key)}]", rule=bound.of.rule, value=shown(entry))


def shown(value: object) -> str:
    """A value as it may stand in a record and before people: short, and on one line."""
    if isinstance(value, tuple | dict):
        text = f"{len(cast(Sized, value)):,} entries"
    elif isinstance(value, int) and value.bit_length() > MAX_SHOWN_BITS:
        text = f"a number of {value.bit_length():,} bits"  # Python refuses to write out thousands of digits
    else:
        text = str(value)
    cut = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text[:SHOWN_CHARACTERS])
    return cut if len(text) <= SHOWN_CHARACTERS else f"{cut}…"
