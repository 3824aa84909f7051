"""Any events that can be decoded, in any order: no fold raises, the rows are what the aggregates' fold says, and
Postgres can hold them. What the rows cannot follow is seen so by those who judge messages, and is void from then on.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck, Phase, given, settings
from sqlalchemy import ARRAY, BigInteger, DateTime, Text

from events.aggregate import AGGREGATES, BrokenChainError, Chain, apply
from events.cluster import ClusterAdded
from events.codec import EVENTS_OF, decode_commit, encode_commit, encode_event
from events.commit import About, Commit, CommitRecord
from events.ids import cluster_key, incarnation_id, node_key, project_key, workload_key
from events.node import NodeRegistered, PodsReserved
from events.project import ProjectCreated
from events.subjects import aggregate_subject
from events.workload.events import PodRunning, PodsBound, PodStarting, WorkloadCreated, WorkloadQueued
from projections.fold import Fold
from projections.tables import derived
from services.cluster_sync.fold import Fold as SyncFold
from services.cluster_sync.reconcile import reconcile
from services.projector.expected import Expected
from services.runtime.directory import Directory
from services.runtime.memory import MemoryEventStore
from services.scheduler.fold import Fold as SchedulerFold
from services.scheduler.plan import plan
from tests.support.drafts import ACTOR
from tests.support.fuzz import of_struct
from tests.support.tables import Tables, differences

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
    "pod_set": ("main",),
    "index": (0, 1),
    "attempt": (1, 1, 1, 2),
    "try_": (0, 0, 0, 1),
    "ids": (("r1",), ("r2",), ("r1", "r1", "unknown")),
    "id": ("r1", "r2"),
    "completions": (None, 2),
    "parallelism": (None, 2, 2**40),
    "token": (1, 2),
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
MAX_BIGINT = 2**63
SATURATES = 2**62


@st.composite
def commits(draw: st.DrawFn) -> tuple[str, tuple[Any, ...], About | None, datetime]:
    """Of which aggregate, its events, what it says it is about (None: the truth), and when it was decided."""
    name = draw(st.sampled_from(["workload"] * 6 + ["node"] * 3 + ["cluster", "project", "tenant"]))
    kinds = sorted(EVENTS_OF[name], key=lambda kind: kind.__name__)
    picked = draw(st.lists(st.sampled_from(kinds + OFTEN.get(name, [])), min_size=1, max_size=3))
    events = tuple(draw(of_struct(kind, LIKELY)) for kind in picked)
    about = draw(st.sampled_from([None] * 12 + [About(), About(id=OTHER_ID), About(id=LIKELY["workload_id"][0])]))
    if draw(st.integers(0, 3)) == 0 and name in BEGINNINGS:
        events = (draw(of_struct(BEGINNINGS[name], LIKELY)), *events)
    return name, events, about, NOW + timedelta(seconds=draw(st.integers(-5, 500)))


class Readers:
    """Everybody who folds the log."""

    def __init__(self) -> None:
        self.chains: dict[str, Chain[Any]] = {name: Chain(state=AGGREGATES[name].initial) for name in KEYS}
        self.judge = {name: Fold({}) for name in KEYS}
        self.tables, self.expected = Tables(), Expected()
        self.scheduler, self.sync = SchedulerFold(), SyncFold()
        self.directory = Directory(MemoryEventStore())
        self.seq = 0

    def commit(self, name: str, events: tuple[Any, ...], about: About | None, at: datetime) -> Commit | None:
        chain, aggregate = self.chains[name], AGGREGATES[name]
        state = chain.state
        for event in events:
            state = aggregate.evolve(state, event)
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
        subject = aggregate_subject(name, KEYS[name])
        try:
            return decode_commit(subject, self.seq + 1, encode_commit(record))
        except (ValueError, msgspec.MsgspecError):
            return None

    def take(self, commit: Commit) -> None:
        """The commit, or nothing in its place where the rows cannot follow it."""
        name = commit.aggregate
        try:
            self.judge[name].add([commit])
        except BrokenChainError:
            about = AGGREGATES[name].about(self.chains[name].state)
            record = msgspec.structs.replace(commit.record, events=(), about=about, body_hash="")
            commit = msgspec.structs.replace(commit, record=record, events=())
            self.judge[name].add([commit])
        self.seq = commit.seq
        self.chains[name] = apply(AGGREGATES[name], self.chains[name], commit)
        self.tables.project([commit])
        self.expected.add(commit)
        self.scheduler.apply(commit)
        self.sync.apply(commit)
        if name in ("cluster", "project", "tenant"):
            self.directory.apply(commit)

    def look(self) -> None:
        """What the services make of their folds."""
        for later in (0, 400, 10**6):
            plan(self.scheduler.snapshot(NOW + timedelta(seconds=later)))
        reconcile(self.sync.desired, self.sync.desired, {})
        self.sync.runs_without_place()


@settings(
    max_examples=40,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(log=st.lists(commits(), min_size=8, max_size=24))
def test_no_event_in_any_order_stops_a_reader(log: list[Any]) -> None:
    readers = Readers()
    for drawn in log:
        commit = readers.commit(*drawn)
        if commit is not None:
            readers.take(commit)
    readers.look()
    assert_postgres_can_hold(readers.tables)
    expected, actual = readers.expected.tables(), readers.tables.plain()
    if any(abs(number) >= SATURATES for use in expected["project_use"].values() for number in use.values()):
        # Sums over workloads stop at the largest number, and do not come down from there by what is taken away.
        expected["project_use"], actual["project_use"] = {}, {}
    assert differences(expected, actual) == []


def assert_postgres_can_hold(tables: Tables) -> None:
    for name, rows in tables.rows.items():
        for row in rows.values():
            for column in derived.tables[f"projection.{name}"].columns:
                value = getattr(row, column.name)
                for one in value if isinstance(column.type, ARRAY) else (value,):
                    match one:
                        case None:
                            assert column.nullable, (name, column.name)
                        case bool():
                            pass
                        case int():
                            assert isinstance(column.type, BigInteger | ARRAY), (name, column.name)
                            assert -MAX_BIGINT <= one < MAX_BIGINT, (name, column.name, one)
                        case str():
                            assert "\x00" not in one, (name, column.name)
                        case _:
                            assert isinstance(column.type, DateTime), (name, column.name, one)
                            one.astimezone(UTC)
                if isinstance(column.type, Text):
                    assert isinstance(value, str)
