"""Given/when/then for deciders: facts in, command, facts out."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from events.aggregate import PROJECT, WORKLOAD
from events.commit import Actor
from events.decision import Context
from events.ids import incarnation_id, workload_key
from events.project import CreateProject, Project
from events.refusal import REFUSALS, Refusal
from events.workload.commands import CreateWorkload, PlacePods, PodFact, PodFactKind, ReportPods
from events.workload.places import bindable
from events.workload.pod import Placement, PodRef
from events.workload.spec import TrainingSpec
from events.workload.state import Workload

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
ALICE = Actor(id="alice")
BOB = Actor(id="bob")
SERVICE = Actor(id="muster.scheduler", kind="service")
ID = incarnation_id(workload_key("p1", "train"), "create-1")


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def context(*, now: datetime = NOW, actor: Actor = ALICE, command_id: str = "create-1", **more: Any) -> Context:
    return Context(now=now, actor=actor, command_id=command_id, **more)


def creation(name: str = "train", **spec: Any) -> CreateWorkload:
    return CreateWorkload(
        kind="Training",
        name=name,
        requested_name=name,
        project_id="p1",
        cluster_id="c1",
        spec=TrainingSpec(image="i", **spec),
    )


def ref(index: int = 0, attempt: int = 1, try_: int = 0) -> PodRef:
    return PodRef(pod_set="main", index=index, attempt=attempt, try_=try_)


def placement(pod: PodRef) -> Placement:
    return Placement(pod=pod, node_key="n1", node_name="node-1", pool="default")


def fact(kind: PodFactKind, pod: PodRef | None = None, *, seconds: float = 0, **more: Any) -> PodFact:
    return PodFact(pod=pod or ref(), kind=kind, at=at(seconds), **more)


def report(*facts: PodFact) -> ReportPods:
    return ReportPods(workload_id=ID, facts=facts)


class Story:
    """A workload and what happens to it; every refused step fails the test unless it is asked for."""

    def __init__(self) -> None:
        self.state: Workload = WORKLOAD.initial
        self.version = 0

    def when(self, command: Any, ctx: Context | None = None) -> tuple[Any, ...]:
        """Decide, fold, and give back the events; deciding the same again must change nothing more."""
        decision = self.decide(command, ctx)
        assert not isinstance(decision, Refusal), decision
        for event in decision:
            before, self.state = self.state, WORKLOAD.evolve(self.state, event)
            assert self.state is not before, f"{event} was decided, and does not fit"
        self.version += 1 if decision else 0
        return decision

    def refused(self, command: Any, ctx: Context | None = None) -> Refusal:
        decision = self.decide(command, ctx)
        assert isinstance(decision, Refusal), f"expected a refusal, got {decision}"
        return decision

    def decide(self, command: Any, ctx: Context | None = None) -> tuple[Any, ...] | Refusal:
        return WORKLOAD.decide(command, self.state, replace(ctx or context(), version=self.version))

    def created(self, **spec: Any) -> "Story":
        self.when(creation(**spec))
        return self

    def bound(self, now: datetime = NOW) -> "Story":
        """Give every pod that may have one a node."""
        pods = bindable(self.state, now)
        self.when(PlacePods(workload_id=ID, placements=tuple(placement(pod) for pod in pods)), context(now=now))
        return self

    def saw(self, *facts: PodFact, now: datetime = NOW) -> "Story":
        self.when(report(*facts), context(now=now, actor=SERVICE))
        return self


def names(events: Sequence[Any]) -> list[str]:
    return [type(event).__name__ for event in events]


class ProjectGiven:
    """A project, and what is done to it."""

    def __init__(self) -> None:
        self.state: Project = PROJECT.initial
        self.do(CreateProject(name="vision"), command_id="create")
        self.id = self.state.project_id

    def do(self, command: Any, **circumstances: Any) -> tuple[Any, ...]:
        events = PROJECT.decide(command, self.state, context(**circumstances))
        assert not isinstance(events, Refusal), events
        for event in events:
            self.state = PROJECT.evolve(self.state, event)
        return events

    def refusal(self, command: Any, **circumstances: Any) -> str:
        refused = PROJECT.decide(command, self.state, context(**circumstances))
        assert isinstance(refused, Refusal), refused
        assert refused.code in REFUSALS
        return refused.code
