"""An independent reader of the log: checks what must hold at every commit, from the raw messages alone.

It shares no code with the deciders, `evolve` or the codec on purpose: it reads JSON, and keeps its own books.
Invariants I1 to I3 of the design's log.md, section 7.1.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig

WHOLE_DEVICE_MILLI = 1000
READ_MESSAGES = 1_000
POD_ENDS = {"PodSucceeded", "PodFailed", "PodInterrupted", "PodStopped"}


@dataclass(frozen=True)
class RawMessage:
    seq: int
    subject: str
    payload: bytes


@dataclass
class NodeBook:
    """What a node has, and who holds it."""

    name: str = ""
    present: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    held: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class Report:
    """What was found. `violations` empty is the only pass."""

    messages: int = 0
    bindings: int = 0
    reservations: int = 0
    releases: int = 0
    most_devices_milli: int = 0
    """The most GPU that was held at once, over all nodes."""
    completed: set[str] = field(default_factory=set)
    """Ids of the workloads that are Completed."""
    failed: set[str] = field(default_factory=set)
    created: dict[str, str] = field(default_factory=dict)
    """Workload id by name: the newest incarnation of each."""
    left_reserved: int = 0
    """Reservations that are held at the end."""
    left_live: int = 0
    violations: list[str] = field(default_factory=list)


class Checker:
    """Fed with every message of the log in order; ask `report` at the end."""

    def __init__(self) -> None:
        self.report = Report()
        self._nodes: dict[str, NodeBook] = {}
        self._last_seq: dict[str, int] = {}
        self._commands: dict[tuple[str, str], int] = {}
        self._live: dict[tuple[str, str, int], str] = {}
        """Reservation id of the live run, by (workload key, pod set, index)."""
        self._ids: dict[str, str] = {}
        """Workload id by key."""
        self._held_milli = 0
        self._seq = 0
        self._batch: dict[str, Any] | None = None
        self._reserved_now: list[tuple[str, dict[str, Any]]] = []
        self._bound_now: dict[str, dict[str, Any]] = {}
        self._released_now: list[tuple[str, str]] = []

    def feed(self, message: RawMessage) -> None:
        report = self.report
        report.messages += 1
        record = json.loads(message.payload)
        if message.seq != self._seq + 1:
            self._wrong(f"sequence {message.seq} follows {self._seq}: a gap in the log")
        self._seq = message.seq
        self._check_chain(message, record)
        self._check_batch(message, record)
        _, kind, key = message.subject.split(".")
        for event in record["events"]:
            if kind == "workload":
                self._workload(key, event["type"], event["data"])
            elif kind == "node":
                self._node(key, event["type"], event["data"])
        batch = record.get("batch")
        if batch is None or batch["index"] == batch["count"]:
            self._whole_step()

    def finish(self) -> Report:
        if self._batch is not None:
            self._wrong(f"the log ends inside batch {self._batch['id']}")
        self.report.left_reserved = sum(len(node.held) for node in self._nodes.values())
        self.report.left_live = len(self._live)
        return self.report

    def check_acknowledged(self, acknowledged: Mapping[str, str]) -> None:
        """Every answered submission (workload id by name) is in the log exactly once."""
        for name, workload_id in acknowledged.items():
            if self.report.created.get(name) != workload_id:
                self._wrong(f"{name}: acknowledged as {workload_id}, the log has {self.report.created.get(name)}")

    def _wrong(self, text: str) -> None:
        self.report.violations.append(f"at {self._seq}: {text}")

    def _check_chain(self, message: RawMessage, record: dict[str, Any]) -> None:
        before = self._last_seq.get(message.subject, 0)
        if record["parent_seq"] != before:
            self._wrong(f"I2: {message.subject} names parent {record['parent_seq']}, its last commit was {before}")
        self._last_seq[message.subject] = message.seq
        command = (message.subject, record["command_id"])
        if command in self._commands:
            self._wrong(f"I1: command {record['command_id']} is on {message.subject} twice")
        self._commands[command] = message.seq

    def _check_batch(self, message: RawMessage, record: dict[str, Any]) -> None:
        batch, open_batch = record.get("batch"), self._batch
        expected = 1 if open_batch is None else open_batch["index"] + 1
        if batch is None:
            if open_batch is not None:
                self._wrong(f"batch {open_batch['id']} has only {open_batch['index']} of {open_batch['count']} parts")
            self._batch = None
            return
        if batch["index"] != expected or (open_batch is not None and open_batch["id"] != batch["id"]):
            self._wrong(f"part {batch['index']} of batch {batch['id']} does not follow")
        self._batch = None if batch["index"] == batch["count"] else batch

    def _workload(self, key: str, type_: str, data: dict[str, Any]) -> None:
        report = self.report
        if type_ == "WorkloadCreated":
            if any(live[0] == key for live in self._live):
                self._wrong(f"{data['name']} was made anew while a pod of the one before lives")
            self._ids[key] = data["workload_id"]
            report.created[data["name"]] = data["workload_id"]
        elif type_ == "PodsBound":
            for placement in data["placements"]:
                self._bound(key, placement)
        elif type_ in POD_ENDS:
            self._ended(key, data["pod"])
        elif type_ == "WorkloadCompleted":
            report.completed.add(self._ids[key])
        elif type_ == "WorkloadFailed":
            report.failed.add(self._ids[key])

    def _run_id(self, key: str, pod: dict[str, Any]) -> str:
        return f"{self._ids[key]}/{pod['pod_set']}-{pod['index']}/{pod['attempt']}.{pod['try']}"

    def _bound(self, key: str, placement: dict[str, Any]) -> None:
        pod = placement["pod"]
        place, run = (key, pod["pod_set"], pod["index"]), self._run_id(key, pod)
        if place in self._live:
            self._wrong(f"I3: {run} is bound while {self._live[place]} lives")
        self._live[place] = run
        self._bound_now[run] = placement
        self.report.bindings += 1

    def _ended(self, key: str, pod: dict[str, Any]) -> None:
        place, run = (key, pod["pod_set"], pod["index"]), self._run_id(key, pod)
        if self._live.get(place) != run:
            self._wrong(f"{run} ended, but what lives there is {self._live.get(place)}")
        self._live.pop(place, None)

    def _node(self, key: str, type_: str, data: dict[str, Any]) -> None:
        node = self._nodes.setdefault(key, NodeBook())
        if type_ == "NodeRegistered":
            node.name, node.present, node.facts = data["name"], True, data["facts"]
        elif type_ == "NodeChanged":
            node.facts = data["facts"]
        elif type_ == "NodeRemoved":
            node.present = False
        elif type_ == "PodsReserved":
            for reservation in data["reservations"]:
                if reservation["id"] in node.held:
                    self._wrong(f"{node.name}: {reservation['id']} is reserved twice")
                node.held[reservation["id"]] = reservation
                self._reserved_now.append((key, reservation))
                self._held_milli += _milli(reservation)
                self.report.reservations += 1
        elif type_ == "ReservationsReleased":
            for id_ in data["ids"]:
                if id_ not in node.held:
                    self._wrong(f"{node.name}: {id_} is released but was not held")
                self._held_milli -= _milli(node.held.pop(id_, {}))
                self._released_now.append((node.name, id_))
                self.report.releases += 1

    def _whole_step(self) -> None:
        """After a commit that stands alone, or the last of a batch: what must hold between facts and reservations."""
        self.report.most_devices_milli = max(self.report.most_devices_milli, self._held_milli)
        for key, reservation in self._reserved_now:
            self._check_room(self._nodes[key], reservation)
            placement = self._bound_now.pop(reservation["id"], None)
            if placement is None:
                self._wrong(f"{reservation['id']} is reserved, but its pod was not bound in the same step")
            elif placement["node_key"] != key or placement.get("devices", []) != reservation.get("devices", []):
                self._wrong(f"{reservation['id']} is reserved elsewhere than it is bound")
        for run in self._bound_now:
            self._wrong(f"{run} is bound, but nothing was reserved for it in the same step")
        live = set(self._live.values()) if self._released_now else set()
        for name, id_ in self._released_now:
            if id_ in live:
                self._wrong(f"{name}: {id_} is released while its pod lives")
        self._reserved_now, self._released_now, self._bound_now = [], [], {}

    def _check_room(self, node: NodeBook, new: dict[str, Any]) -> None:
        facts = node.facts
        if not node.present or not facts.get("ready", True) or facts.get("unschedulable", False):
            self._wrong(f"I3: {node.name} takes no pods, and got {new['id']}")
        cpu = sum(held.get("cpu_milli", 0) for held in node.held.values()) + facts.get("foreign_cpu_milli", 0)
        if new.get("cpu_milli", 0) and cpu > facts["cpu_milli"]:
            self._wrong(f"I3: {node.name} has {facts['cpu_milli']} milli of CPU, and {cpu} are held")
        memory = sum(held.get("memory_bytes", 0) for held in node.held.values()) + facts.get("foreign_memory_bytes", 0)
        if new.get("memory_bytes", 0) and memory > facts["memory_bytes"]:
            self._wrong(f"I3: {node.name} has {facts['memory_bytes']} bytes of memory, and {memory} are held")
        pods = len(node.held) + facts.get("foreign_pods", 0)
        if pods > facts.get("max_pods", 110):
            self._wrong(f"I3: {node.name} takes {facts.get('max_pods', 110)} pods, and has {pods}")
        ours = facts.get("gpu_count", 0) - facts.get("foreign_gpus", 0)
        for share in new.get("devices", []):
            device = share["device"]
            used = sum(s["milli"] for h in node.held.values() for s in h.get("devices", []) if s["device"] == device)
            if device >= ours or used > WHOLE_DEVICE_MILLI:
                self._wrong(f"I3: {node.name} device {device} of {ours}: {used} thousandths are held")


def _milli(reservation: dict[str, Any]) -> int:
    return sum(share["milli"] for share in reservation.get("devices", []))


def check(messages: Iterable[RawMessage], acknowledged: Mapping[str, str] | None = None) -> Report:
    """The whole log at once."""
    checker = Checker()
    for message in messages:
        checker.feed(message)
    checker.check_acknowledged(acknowledged or {})
    return checker.finish()


async def read_log(nc: Client) -> list[RawMessage]:
    """All messages of EVENTS, as they are stored; for a user who may read streams."""
    js = nc.jetstream()
    last = (await js.stream_info("EVENTS")).state.last_seq
    messages: list[RawMessage] = []
    if not last:
        return messages
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True)
    subscription = await js.pull_subscribe("ev.>", stream="EVENTS", config=config)
    try:
        while not messages or messages[-1].seq < last:
            fetched = await subscription.fetch(min(READ_MESSAGES, last - len(messages)), timeout=10)
            messages += [RawMessage(m.metadata.sequence.stream, m.subject, m.data) for m in fetched]
    finally:
        await subscription.unsubscribe()
    return messages
