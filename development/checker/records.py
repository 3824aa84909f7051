"""Messages of the log as JSON, and what several books of the checker read in them."""

import json
import math
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

POD_ENDS: Final = frozenset({"PodSucceeded", "PodFailed", "PodInterrupted", "PodStopped"})

type Fields = dict[str, Any]
type Place = tuple[str, int]
"""(pod set, index)."""


@dataclass(frozen=True)
class RawMessage:
    seq: int
    subject: str
    payload: bytes


@dataclass(frozen=True)
class Record:
    """One commit, parsed and no more."""

    seq: int
    kind: str
    """Of the aggregate: the second word of the subject."""
    key: str
    fields: Fields

    @property
    def subject(self) -> str:
        return f"ev.{self.kind}.{self.key}"

    @property
    def at(self) -> datetime:
        return moment(self.fields["occurred_at"])

    @property
    def author(self) -> str:
        """`user`, or the name of the service."""
        actor = self.fields["actor"]
        return str(actor["id"]).removeprefix("muster.") if actor.get("kind") == "service" else "user"


def parse(message: RawMessage) -> Record:
    """Raises ValueError, with what is wrong, on what is no commit."""
    prefix, kind, key = message.subject.split(".")
    fields = json.loads(message.payload)
    if prefix != "ev" or not isinstance(fields, dict) or not fields.get("events"):
        raise ValueError(f"no commit on {message.subject}")
    return Record(message.seq, kind, key, fields)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def run_name(workload_id: str, pod: Fields) -> str:
    return f"{workload_id}/{pod['pod_set']}-{pod['index']}/{pod['attempt']}.{pod['try']}"


_POWERS: Final = {letter: power for power, letter in enumerate("kMGTPE", start=1)}


def quantity(text: str) -> Decimal:
    """`1.5Gi`, `500m`, `2e3`: in bytes or cores."""
    number = text.strip().lstrip("+")
    if number.endswith("i"):
        return Decimal(number[:-2]) * Decimal(1024) ** _POWERS["k" if number[-2] == "K" else number[-2]]
    small = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("0.001")}
    if number[-1] in small:
        return Decimal(number[:-1]) * small[number[-1]]
    if number[-1] in _POWERS:
        return Decimal(number[:-1]) * Decimal(1000) ** _POWERS[number[-1]]
    return Decimal(number)


def thousandths(value: float) -> int:
    return math.ceil(Decimal(str(value)) * 1000)


@dataclass(frozen=True)
class Asked:
    """What one pod of a spec asks for."""

    cpu_milli: int
    memory_bytes: int
    devices: int
    milli: int
    """Of each device; 0 where memory decides."""
    gpu_memory_bytes: int
    """Of each device; 0 where the share decides."""
    extended: dict[str, int]
    """Extended resources by name."""

    def shares(self, device_memory_bytes: int) -> list[int]:
        """Thousandths of each device, on a node whose devices have so much memory; empty where it is not known."""
        if not self.gpu_memory_bytes:
            return [self.milli] * self.devices
        if not device_memory_bytes:
            return []
        return [math.ceil(Decimal(1000 * self.gpu_memory_bytes) / device_memory_bytes)] * self.devices


def asked(spec: Fields) -> Asked:
    compute = spec.get("compute") or {}
    by = compute.get("gpuRequestType")
    devices = compute.get("gpuDevicesRequest")
    count = (1 if by else 0) if devices is None else devices
    milli, memory = (1000 if count else 0), 0
    if by == "portion" and count:
        milli = thousandths(compute.get("gpuPortionRequest") or 0)
    elif by == "memory" and count:
        milli, memory = 0, math.ceil(quantity(compute.get("gpuMemoryRequest") or "0"))
    return Asked(
        cpu_milli=thousandths(compute.get("cpuCoreRequest") or 0),
        memory_bytes=math.ceil(quantity(compute.get("cpuMemoryRequest") or "0")),
        devices=count,
        milli=milli,
        gpu_memory_bytes=memory,
        extended={
            each["resource"]: int(quantity(each.get("quantity") or "0"))
            for each in compute.get("extendedResources") or []
        },
    )
