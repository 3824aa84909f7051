"""Logs of any events that can be decoded, in any order, and everybody who folds them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import hypothesis.strategies as st
import msgspec

from events.aggregate import AGGREGATES, BrokenChainError, Chain, apply
from events.cluster import ClusterAdded
from events.codec import EVENTS_OF, check_moment, decode_commit, encode_commit, encode_event
from events.commit import About, Commit, CommitRecord
from events.ids import cluster_key, incarnation_id, node_key, project_key, workload_key
from events.node import NodeRegistered, PodsReserved
from events.project import ProjectCreated
from events.subjects import aggregate_subject
from events.workload.fields.inference import Serving, ServingPort
from events.workload.fields.saving import CheckpointSpec, PreStop
from events.workload.fields.storage import StorageSpec
from events.workload.life import WorkloadCreated, WorkloadQueued
from events.workload.pod import PodRunning, PodsBound, PodStarting
from events.workload.spec import Inference
from projections.fold import Fold
from services.cluster_sync.fold import DesiredState
from services.cluster_sync.reconcile import reconcile
from services.projector.expected import Expected
from services.runtime.identity.directory import Directory
from services.runtime.log.log_fold import STEPS, Steps
from services.runtime.log.memory import MemoryEventStore
from services.scheduler.fold import SchedulingState
from services.scheduler.plan import plan
from tests.support.drafts import ACTOR
from tests.support.fuzz import of_struct
from tests.support.tables import Tables

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CLUSTER = incarnation_id(cluster_key("c"), "1")
PROJECT = incarnation_id(project_key("p"), "1")
WORKLOAD_KEY = workload_key(PROJECT, "w")
KEYS = {
    "workload": WORKLOAD_KEY,
    "node": node_key(CLUSTER, "n"),
    "cluster": cluster_key("c"),
    "project": project_key("p"),
    "tenant": "default",
}
OTHER_ID = incarnation_id(workload_key(PROJECT, "other"), "1")
LIKELY: dict[str, Sequence[Any]] = {
    "workload_id": (incarnation_id(WORKLOAD_KEY, "1"), incarnation_id(WORKLOAD_KEY, "2")),
    "project_id": (PROJECT,),
    "cluster_id": (CLUSTER,),
    "workload_key": (WORKLOAD_KEY,),
    "node_key": (KEYS["node"],),
    "kind": ("Training",),
    "pod_set": ("main",),
    "index": (0, 1),
    "attempt": (1, 1, 1, 2),
    "try_": (0, 0, 0, 1),
    "ids": (("r1",), ("r2",), ("r1", "r1", "unknown")),
    "id": ("r1", "r2"),
    "completions": (1, 2),
    "parallelism": (1, 2, 2**40),
    "token": (1, 2),
    "inference": (None, None, Inference(serving=Serving(serving_port=ServingPort(container=80)), replicas=2)),
    "replicas": (0, 1, 2, 3),
    # Large, and looked at by few.
    "storage": (StorageSpec(),),
    # Any text is hardly ever a size, or has its quotes closed.
    "checkpoint": (None, CheckpointSpec()),
    "pre_stop": (None, PreStop(command="a b")),
    "exposed_urls": ((),),
    "ports": ((),),
}
OFTEN: dict[str, list[Any]] = {
    "workload": [PodsBound] * 6 + [PodStarting, PodRunning, WorkloadQueued] * 3,
    "node": [NodeRegistered, PodsReserved] * 2,
}
"""So that there is something for the others to fit to."""
BEGINNINGS: dict[str, Any] = {
    "workload": WorkloadCreated,
    "node": NodeRegistered,
    "cluster": ClusterAdded,
    "project": ProjectCreated,
}
TWO_OF = {"node": (KEYS["node"], node_key(CLUSTER, "m"))}
"""Kinds with more than one key, on which the same ids may stand."""


@st.composite
def commits(draw: st.DrawFn) -> tuple[str, str, tuple[Any, ...], About | None, datetime]:
    """Of which aggregate and key, its events, what it says it is about (None: the truth), and when it was decided."""
    name = draw(st.sampled_from(["workload"] * 6 + ["node"] * 3 + ["cluster", "project", "tenant"]))
    kinds = sorted(EVENTS_OF[name], key=lambda kind: kind.__name__)
    picked = draw(st.lists(st.sampled_from(kinds + OFTEN.get(name, [])), min_size=1, max_size=3))
    events = tuple(draw(of_struct(kind, LIKELY)) for kind in picked)
    about = draw(st.sampled_from([None] * 12 + [About(), About(id=OTHER_ID), About(id=LIKELY["workload_id"][0])]))
    if draw(st.integers(0, 3)) == 0 and name in BEGINNINGS:
        events = (draw(of_struct(BEGINNINGS[name], LIKELY)), *events)
    return (
        name,
        draw(st.sampled_from(TWO_OF.get(name, (KEYS[name],)))),
        events,
        about,
        NOW + timedelta(seconds=draw(st.integers(-5, 500))),
    )


@st.composite
def any_workload_events(draw: st.DrawFn) -> list[Any]:
    """Of one workload, in any order, most of which begin with its creation."""
    kinds = sorted(EVENTS_OF["workload"], key=lambda kind: kind.__name__)
    picked = draw(st.lists(st.sampled_from(kinds + OFTEN["workload"]), max_size=25))
    created = [WorkloadCreated] if draw(st.integers(0, 9)) else []
    return [draw(of_struct(kind, LIKELY).filter(can_be_read)) for kind in created + picked]


def can_be_read(event: msgspec.Struct) -> bool:
    """Whether the log's codec takes its times: no reader sees others."""
    try:
        for field in msgspec.structs.fields(type(event)):
            moment = getattr(event, field.name)
            if isinstance(moment, datetime):
                check_moment(field.name, moment)
    except ValueError:
        return False
    return True


class Readers:
    """Everybody who folds the log."""

    def __init__(self) -> None:
        places = [(name, key) for name in KEYS for key in TWO_OF.get(name, (KEYS[name],))]
        self.chains: dict[tuple[str, str], Chain[Any]] = {
            (name, key): Chain(state=AGGREGATES[name].initial) for name, key in places
        }
        self.judge = {place: Fold({}) for place in places}
        self.tables, self.expected = Tables(), Expected()
        self.sync = DesiredState()
        self.scheduler, self.late_sync = self._of_one_process()
        self.late_sync.note_nothing()
        self.directory = Directory(MemoryEventStore())
        self.seq = 0

    def _of_one_process(self) -> tuple[SchedulingState, DesiredState]:
        """Which fold a commit once."""
        token = STEPS.set(Steps())
        try:
            return SchedulingState(), DesiredState()
        finally:
            STEPS.reset(token)

    def commit(self, name: str, key: str, events: tuple[Any, ...], about: About | None, at: datetime) -> Commit | None:
        """What these events would be in the log; None where no message of the log can hold them."""
        chain, aggregate = self.chains[name, key], AGGREGATES[name]
        state = chain.state
        for event in events:
            state = aggregate.evolve(state, event)
        try:
            record = CommitRecord(
                commit_id=f"c{self.seq}",
                command_id=f"c{self.seq}",
                actor=ACTOR,
                occurred_at=at,
                parent_seq=chain.version,
                events=tuple(map(encode_event, events)),
                about=aggregate.about(state) if about is None else about,
                body_hash="h",
            )
            return decode_commit(aggregate_subject(name, key), self.seq + 1, encode_commit(record))
        except (ValueError, msgspec.MsgspecError):
            return None

    def take(self, commit: Commit) -> Commit:
        """The commit, or nothing in its place where the rows cannot follow it; what was taken."""
        name, place = commit.aggregate, (commit.aggregate, commit.key)
        try:
            self.judge[place].add([commit])
        except BrokenChainError:
            about = AGGREGATES[name].about(self.chains[place].state)
            record = msgspec.structs.replace(commit.record, events=(), about=about, body_hash="")
            commit = msgspec.structs.replace(commit, record=record, events=())
            self.judge[place].add([commit])
        self.seq = commit.seq
        self.chains[place] = apply(AGGREGATES[name], self.chains[place], commit)
        self.tables.project([commit])
        self.expected.apply(commit)
        self.scheduler.apply(commit)
        self.sync.apply(commit)
        self.late_sync.apply(commit)
        if name in ("cluster", "project", "tenant"):
            self.directory.apply(commit)
        return commit

    def look(self) -> None:
        """What the services make of their folds."""
        for later in (0, 400, 10**6):
            plan(self.scheduler.snapshot(NOW + timedelta(seconds=later)))
        reconcile(self.sync.desired, self.sync.desired, {})
        self.sync.runs_without_place()
        assert self.late_sync.chains == self.sync.chains
        self.late_sync.note_all()
        assert _told(self.late_sync) == _told(self.sync)
        self.late_sync.note_nothing()


def _told(sync: DesiredState) -> dict[str, tuple[int, bool]]:
    return {subject: (desired.token, desired.stop) for subject, desired in sync.desired.items()}
