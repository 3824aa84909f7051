"""The checker of the log: fed with every message in order, it keeps its own books and names what must not be.

Nothing of the product is imported here, nor in any module beside: it reads JSON (tests/checker/test_apart.py).
A violation begins with its place in the log and the name of the invariant; docs/adr/0032 lists them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from development.checker.nodes import Node, Nodes, milli
from development.checker.places import Places
from development.checker.records import Fields, RawMessage, Record, parse, run_name
from development.checker.workloads import Model, Workload, Wrong, created

AUTHORS: Final[Mapping[str, str]] = {
    # Who may say what. WebhookDisabled and BudgetReopened come from users and from a service,
    # SessionClosed from one of two services. WorkloadDeletionRequested
    # is judged by its reason; what follows from a fact, with it.
    "WorkloadCreated": "user",
    "WorkloadSuspended": "user",
    "WorkloadResumed": "user",
    "WorkloadChanged": "user",
    "WorkloadTransferred": "user",
    "ActUndone": "user",
    "SessionOpened": "user",
    "WorkloadQueued": "scheduler",
    "ClusterChosen": "scheduler",
    "ClusterLeft": "scheduler",
    "LeftPodEnded": "cluster_sync",
    "WorkloadScaled": "autoscaler",
    "PodsEvicted": "scheduler",
    "WorkloadWaiting": "scheduler",
    "PodsBound": "scheduler",
    "PodsReserved": "scheduler",
    "ReservationsReleased": "scheduler",
    "PodStarting": "cluster_sync",
    "PodRunning": "cluster_sync",
    "PodUnreachable": "cluster_sync",
    "PodWarned": "cluster_sync",
    "CheckpointSaved": "cluster_sync",
    "PodSucceeded": "cluster_sync",
    "PodFailed": "cluster_sync",
    "PodInterrupted": "cluster_sync",
    "PodStopped": "cluster_sync",
    "NodeRegistered": "cluster_sync",
    "NodeChanged": "cluster_sync",
    "NodeRemoved": "cluster_sync",
    "NodeCordoned": "user",
    "NodeUncordoned": "user",
    "NodeDrainStarted": "user",
    "MaintenancePlanned": "user",
    "MaintenanceCancelled": "user",
    "CapacityReserved": "user",
    "CapacityReservationCancelled": "user",
    "ProjectDeleted": "user",
    "DepartmentCreated": "user",
    "DepartmentChanged": "user",
    "DepartmentDeleted": "user",
    "ServiceAccountCreated": "user",
    "ServiceAccountRotated": "user",
    "ServiceAccountUsed": "user",
    "ServiceAccountDeleted": "user",
    "LogRestored": "restore",
    "SubscriptionCreated": "user",
    "SubscriptionDeleted": "user",
    "WebhookCreated": "user",
    "WebhookChanged": "user",
    "WebhookKeyRotated": "user",
    "WebhookEnabled": "user",
    "WebhookDeleted": "user",
    "AssetCreated": "user",
    "AssetChanged": "user",
    "AssetDeleted": "user",
    "DataSourceMarked": "cluster_sync",
    "PolicySet": "user",
    "PolicyDeleted": "user",
    "PriceSet": "user",
    "PriceRemoved": "user",
    "BudgetSet": "user",
    "BudgetRemoved": "user",
    "TimeLimitsSet": "user",
    "StartWindowsSet": "user",
    "WorkloadLimitReached": "auto_deletion",
    "BudgetWarned": "auto_deletion",
    "BudgetExhausted": "auto_deletion",
    "HoursMeasured": "auto_deletion",
}


_OF_MAINTENANCE: Final = frozenset({"NodeCordoned", "NodeUncordoned", "NodeDrainStarted"})


@dataclass
class Report:
    """What was found. `violations` empty is the only pass."""

    messages: int = 0
    bindings: int = 0
    reservations: int = 0
    releases: int = 0
    most_devices_milli: int = 0
    """The most GPU that was held at once, over all nodes."""
    completed: set[str] = field(default_factory=set[str])
    """Ids of the workloads that are Completed."""
    failed: set[str] = field(default_factory=set[str])
    over: set[str] = field(default_factory=set[str])
    """Ids of those that will not run again unless somebody says so: ended, stopped or deleted."""
    created: dict[str, str] = field(default_factory=dict[str, str])
    """Workload id by name: the newest incarnation of each."""
    left_reserved: int = 0
    """Reservations that are held at the end."""
    left_live: int = 0
    violations: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class CommitSeen:
    """What is remembered of a commit."""

    seq: int
    kind: str
    key: str
    at: datetime
    author: str
    command_id: str
    correlation_id: str
    body_hash: str
    workload_id: str
    """Of the incarnation, after it."""
    types: tuple[str, ...]


class LogChecker:
    """`stand_ins`: a test itself speaks for people and clusters, so nobody looks at who said what, nor whether a run
    was seen to run before it succeeded.
    """

    def __init__(self, *, stand_ins: bool = False) -> None:
        self.report = Report()
        self.nodes = Nodes()
        self.places = Places()
        self.workloads: dict[str, Workload] = {}
        """Every incarnation, by id."""
        self.newest: dict[str, Workload] = {}
        """By key."""
        self.commits: dict[int, CommitSeen] = {}
        self.seq = 0
        self.last_commit_id = ""
        self.now = datetime.min.replace(tzinfo=UTC)
        """The greatest time that a commit names."""
        self._stand_ins = stand_ins
        self._last_seq: dict[str, int] = {}
        self._commands: set[tuple[str, str]] = set()
        self._tokens: dict[str, int] = {}
        self._unreadable: dict[int, str] = {}
        """What is wrong with each message that is no commit, unless a later one voids it."""
        self._batch: Fields | None = None
        self._incarnation = 0
        self._bound: dict[str, tuple[Workload, Fields]] = {}
        """Placements of this step, by run."""

    def feed(self, message: RawMessage) -> None:
        self.report.messages += 1
        if message.seq != self.seq + 1:
            self._wrong("gap", f"sequence {message.seq} follows {self.seq}")
        self.seq = message.seq
        try:
            record = parse(message)
        except (ValueError, TypeError) as error:
            self._unreadable[message.seq] = f"at {message.seq}: form: {message.subject} cannot be read: {error}"
            self._last_seq[message.subject] = message.seq
            return
        self.last_commit_id = record.fields["commit_id"]
        self.now = max(self.now, record.at)
        self._chain(record)
        self._part(record)
        self._person(record)
        self._events(record)
        batch = record.fields.get("batch")
        if batch is None or batch["index"] == batch["count"]:
            self._step()

    def finish(self) -> Report:
        if self._batch is not None:
            self._wrong("batch", f"the log ends inside batch {self._batch['id']}")
        report = self.report
        report.violations += self._unreadable.values()
        self._unreadable = {}
        workloads = self.workloads.values()
        report.left_reserved = sum(len(node.held) for node in self.nodes.by_key.values())
        report.left_live = sum(len(workload.live) + len(workload.left) for workload in workloads)
        report.most_devices_milli = self.nodes.most_milli
        report.completed = {each.id for each in workloads if each.ended == "Completed"}
        report.failed = {each.id for each in workloads if each.ended == "Failed"}
        report.over = {each.id for each in workloads if each.ended or each.halted or each.deleted}
        report.created = {each.name: each.id for each in sorted(workloads, key=lambda each: each.made_seq)}
        return report

    def acknowledged(self, workload_ids: Mapping[str, str]) -> None:
        """Every answered submission (workload id by name) is in the log, under its name."""
        for name, id_ in workload_ids.items():
            known = self.workloads.get(id_)
            if known is None or known.name != name:
                self._wrong("acknowledged", f"{name} was acknowledged as {id_}; the log has {known and known.name}")

    def _wrong(self, name: str, text: str) -> None:
        self.report.violations.append(f"at {self.seq}: {name}: {text}")

    def _all_wrong(self, found: Iterable[Wrong]) -> None:
        for name, text in found:
            self._wrong(name, text)

    def _chain(self, record: Record) -> None:
        before = self._last_seq.get(record.subject, 0)
        if record.fields["parent_seq"] != before:
            self._wrong(
                "chain", f"{record.subject} names parent {record.fields['parent_seq']}, its last commit was {before}"
            )
        self._last_seq[record.subject] = record.seq
        command = (record.subject, record.fields["command_id"])
        if command in self._commands:
            self._wrong("once", f"command {command[1]} is on {record.subject} twice")
        self._commands.add(command)

    def _part(self, record: Record) -> None:
        batch, before = record.fields.get("batch"), self._batch
        self._batch = None
        if batch is None:
            if before is not None:
                self._wrong("batch", f"{before['id']} has only {before['index']} of {before['count']} parts")
            return
        expected = 1 if before is None else before["index"] + 1
        if batch["index"] != expected or (before is not None and before["id"] != batch["id"]):
            self._wrong("batch", f"part {batch['index']} of {batch['id']} does not follow")
        self._batch = None if batch["index"] == batch["count"] else batch

    def _events(self, record: Record) -> None:
        model: Model | None = None
        for index, event in enumerate(record.fields["events"]):
            type_, data = event["type"], event["data"]
            self._author(record, type_)
            if type_ == "MessageVoided":
                if self._unreadable.pop(data["seq"], None) is None:
                    self._wrong("void", f"{record.seq} declares {data['seq']} void, which can be read")
            elif type_ == "LogRestored":
                self._restored(record, data)
            elif record.kind == "project":
                self._all_wrong(self.places.take_project(record, type_, data))
            elif record.kind == "department":
                self._all_wrong(self.places.take_department(record, type_, data))
            elif record.kind == "cluster":
                self._all_wrong(self.places.take_cluster(record, type_, data))
            elif record.kind == "asset":
                self._all_wrong(self.places.take_asset(record, type_, data))
            elif record.kind == "policy":
                self._all_wrong(self.places.take_policy(record, type_, data))
            elif record.kind == "node":
                self._all_wrong(self.nodes.take(record.key, type_, data, record.seq))
            elif record.kind == "workload":
                if type_ == "WorkloadCreated":
                    self._created(record, data)
                    model = None
                workload = self.newest.get(record.key)
                if workload is None:
                    self._wrong("name", f"{type_} on {record.subject}, where nothing was created")
                    continue
                model = model or self._model(workload, record)
                workload.told.append((record.seq, index, type_))
                if type_ == "WorkloadCreated":
                    continue
                gone = self.places.is_gone(workload.project_id)
                if type_ == "WorkloadDeletionRequested" and data["reason"] == "project_deleted" and not gone:
                    self._wrong("project", f"{workload.name} is deleted with its project, which is there")
                if type_ == "WorkloadDeletionRequested" and data["reason"] == "cluster_removed":
                    self._all_wrong(self._ended_with_cluster(workload))
                self._all_wrong(model.take(type_, data))
                if type_ == "ClusterLeft":
                    self._all_wrong(self.places.left(workload.name, data))
                self._note(workload, type_, data)
        if model is not None:
            self._all_wrong(model.settle())
        self._remember(record, model.workload.id if model else "")

    def _ended_with_cluster(self, workload: Workload) -> Iterator[Wrong]:
        if self.places.cluster_is_there(workload.cluster_id):
            yield "cluster", f"{workload.name} is deleted with its cluster, which is there"
        if workload.phase in {"Completed", "Failed"}:
            yield "cluster", f"{workload.name} is deleted with its cluster, and had ended"

    def _restored(self, record: Record, data: Fields) -> None:
        if data["incarnation"] != self._incarnation + 1:
            self._wrong("restore", f"incarnation {data['incarnation']} follows {self._incarnation}")
        if data["seq"] != record.seq - 1:
            self._wrong("restore", f"{record.seq} says that the log was restored up to {data['seq']}")
        self._incarnation = data["incarnation"]

    def _model(self, workload: Workload, record: Record) -> Model:
        last = self._tokens.get(record.key, -1)
        return Model(workload, record, stand_ins=self._stand_ins, last_token=last, incarnation=self._incarnation)

    def _created(self, record: Record, data: Fields) -> None:
        workload, wrong = created(record, data, self.newest.get(record.key))
        self._all_wrong(wrong)
        if workload.id in self.workloads:
            self._wrong("name", f"{workload.id} was made twice")
        self.newest[record.key] = self.workloads[workload.id] = workload

    def _note(self, workload: Workload, type_: str, data: Fields) -> None:
        if type_ == "PodsBound":
            self._tokens[workload.key] = max(self._tokens.get(workload.key, -1), data["token"])
            self.report.bindings += len(data["placements"])
            for placement in data["placements"]:
                self._bound[run_name(workload.id, placement["pod"])] = (workload, placement)

    def _person(self, record: Record) -> None:
        """The log says of nobody more than an id."""
        if more := record.fields["actor"].keys() - {"id", "kind"}:
            self._wrong("person", f"{record.subject} tells {', '.join(sorted(more))} of who gave the command")

    def _author(self, record: Record, type_: str) -> None:
        expected = AUTHORS.get(type_)
        if type_ in _OF_MAINTENANCE and any("maintenance" in each["data"] for each in record.fields["events"]):
            expected = "scheduler"  # what is done to a node for it, and what stays of what was done before
        if expected is not None and record.author != expected and not self._stand_ins:
            self._wrong("author", f"{type_} on {record.subject} comes from {record.author}")

    def _remember(self, record: Record, workload_id: str) -> None:
        self.commits[record.seq] = CommitSeen(
            seq=record.seq,
            kind=record.kind,
            key=record.key,
            at=record.at,
            author=record.author,
            command_id=record.fields["command_id"],
            correlation_id=record.fields.get("correlation_id", ""),
            body_hash=record.fields.get("body_hash", ""),
            workload_id=workload_id,
            types=tuple(event["type"] for event in record.fields["events"]),
        )

    # -- between workloads and nodes, after a whole step ---------------------------------------------------------------

    def _step(self) -> None:
        nodes = self.nodes
        self._all_wrong(nodes.settle())
        self.report.reservations += len(nodes.reserved)
        self.report.releases += len(nodes.released)
        for node, reservation in nodes.reserved:
            bound = self._bound.pop(reservation["id"], None)
            if bound is None:
                self._wrong("step", f"{reservation['id']} is reserved, but not bound in the same step")
            else:
                self._match(node, reservation, *bound)
        for run in self._bound:
            self._wrong("step", f"{run} is bound, but nothing is reserved for it in the same step")
        for node, id_ in nodes.released:
            if self._lives(id_):
                self._wrong("released", f"{node.name}: {id_} is released while its pod lives")
        nodes.reserved, nodes.released, self._bound = [], [], {}

    def _match(self, node: Node, reservation: Fields, workload: Workload, placement: Fields) -> None:
        id_, asked = reservation["id"], workload.asked_of(placement["pod"]["pod_set"])
        if placement["node_key"] != node.key or placement.get("devices", []) != reservation.get("devices", []):
            self._wrong("step", f"{id_} is reserved elsewhere than it is bound")
        if workload.cluster_id != node.cluster_id:
            self._wrong("step", f"{id_} is bound to {node.name}, which is in another cluster")
        got = (reservation.get("cpu_milli", 0), reservation.get("memory_bytes", 0))
        if got != (asked.cpu_milli, asked.memory_bytes):
            self._wrong("asked", f"{id_} holds CPU and memory {got}, asked was {asked}")
        pieces = {each["resource"]: each["amount"] for each in reservation.get("extended", [])}
        if pieces != asked.extended:
            self._wrong("asked", f"{id_} holds {pieces} of extended resources, asked was {asked.extended}")
        shares = sorted(share["milli"] for share in reservation.get("devices", []))
        if shares != asked.shares(node.facts.get("gpu_memory_bytes", 0)):
            self._wrong("asked", f"{id_} holds {shares} of devices ({milli(reservation)} together), asked was {asked}")

    def _lives(self, run: str) -> bool:
        workload = self.workloads.get(run.partition("/")[0])
        if workload is None or run in workload.left:
            return workload is not None
        return any(pod.name == run for pod in workload.live.values())


def check_log(messages: Iterable[RawMessage], *, stand_ins: bool = False) -> LogChecker:
    """The whole log at once: the books, for those who hold something else against them."""
    checker = LogChecker(stand_ins=stand_ins)
    for message in messages:
        checker.feed(message)
    checker.finish()
    return checker


def check(
    messages: Iterable[RawMessage], acknowledged: Mapping[str, str] | None = None, *, stand_ins: bool = False
) -> Report:
    """The whole log at once. `acknowledged`: workload id of every 202, by name."""
    checker = check_log(messages, stand_ins=stand_ins)
    checker.acknowledged(acknowledged or {})
    return checker.report
