"""How commands are carried out where the log does not go along: full, contended, silent. On the store in memory."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from events.aggregate import TENANT, Aggregate, Chain, Draft
from events.cluster import AddCluster
from events.commit import Actor
from events.envelope import Accepted, AdmittedCommand, CommandReply, OutcomeUnknown, Refused, UserCommand
from events.ids import TENANT_KEY
from events.project import CreateProject
from events.tenant import GrantTenantRole, RevokeTenantRole
from events.workload.commands import DeleteWorkload
from services.commands.handle import MAX_TRIES, Commands
from services.commands.recent import RecentCommands, Turns
from services.runtime.directory import Directory
from services.runtime.jetstream import STREAM_FULL_CODE, TOO_LARGE_CODE
from services.runtime.memory import MemoryEventStore
from services.runtime.requests import UnansweredError
from services.runtime.store import Conflict, Outcome, Rejected, Unknown
from tests.support.commands import carry_out, training

pytestmark = pytest.mark.anyio

ADA = Actor(iss="muster", sub="ada")


class Store(MemoryEventStore):
    """The store in memory; the next appends and loads go as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[Outcome] = []
        self.appends = 0
        self.silent = False

    async def append(self, draft: Draft, *, deadline_seconds: float = 5.0) -> Outcome:
        self.appends += 1
        await asyncio.sleep(0)  # as a real one, so that commands can overtake each other
        return self.outcomes.pop(0) if self.outcomes else await super().append(draft)

    async def load[S](self, aggregate: Aggregate[S], key: str) -> Chain[S]:
        if self.silent:
            raise UnansweredError("no answer")
        return await super().load(aggregate, key)


class Scene:
    def __init__(self, store: Store, commands: Commands, project_id: str, cluster_id: str) -> None:
        self.store, self.commands = store, commands
        self.project_id, self.cluster_id = project_id, cluster_id

    async def when(self, command: UserCommand, command_id: str, **envelope: Any) -> CommandReply:
        envelope = {"body_hash": "b", "actor": ADA} | envelope
        admitted = AdmittedCommand(command_id=command_id, command=command, **envelope)
        return await self.commands.answer("cmd.admitted.X", admitted)

    async def create(self, name: str, command_id: str) -> CommandReply:
        return await self.when(training(name, self.project_id, self.cluster_id), command_id)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    store = Store()
    await carry_out(store, "p", CreateProject(name="vision"))
    await carry_out(store, "c", AddCluster(name="lab", kind="local"))
    directory = Directory(store)
    await directory.start()
    (project_id,), (cluster_id,) = directory.projects, directory.clusters
    store.appends = 0
    yield Scene(store, Commands(store=store, directory=directory), project_id, cluster_id)
    await directory.close()


def code(reply: CommandReply) -> str:
    assert isinstance(reply, Refused), reply
    return reply.refusal.code


async def test_with_a_full_log_creations_are_refused_and_the_rest_goes_on(scene: Scene) -> None:
    made = await scene.create("early", "1")
    assert isinstance(made, Accepted)
    scene.commands.log_full = True

    assert code(await scene.create("late", "2")) == "log_full"
    assert code(await scene.when(CreateProject(name="late"), "3")) == "log_full"
    assert code(await scene.when(AddCluster(name="late", kind="local"), "4")) == "log_full"
    assert await scene.create("early", "1") == made, "what was carried out before is answered as it was"
    assert isinstance(await scene.when(DeleteWorkload(workload_id=made.id), "5"), Accepted)


async def test_a_conflict_is_decided_again_on_the_new_state(scene: Scene) -> None:
    grant = GrantTenantRole(subject="bob", role="viewer")
    scene.store.outcomes = [Conflict(), Conflict()]
    assert isinstance(await scene.when(grant, "1"), Accepted)
    assert scene.store.appends == 3


async def test_a_command_that_loses_every_race_ends_with_an_unknown_outcome(scene: Scene) -> None:
    scene.store.outcomes = [Conflict()] * 50
    assert await scene.when(GrantTenantRole(subject="bob", role="viewer"), "1") == OutcomeUnknown()
    assert scene.store.appends == MAX_TRIES


@pytest.mark.parametrize(
    ("outcome", "answer"),
    [
        (Unknown("lost"), "unknown"),
        (Rejected(STREAM_FULL_CODE, "maximum bytes exceeded"), "log_full"),
        (Rejected(TOO_LARGE_CODE, "message size exceeds maximum allowed"), "invalid"),
        (Rejected(10999, "something new"), "unknown"),
    ],
)
async def test_what_the_log_answers_is_told_truly(scene: Scene, outcome: Outcome, answer: str) -> None:
    scene.store.outcomes = [outcome]
    reply = await scene.create("t", "1")
    assert ("unknown" if isinstance(reply, OutcomeUnknown) else code(reply)) == answer


async def test_a_silent_log_is_an_unknown_outcome(scene: Scene) -> None:
    scene.store.silent = True
    assert await scene.when(GrantTenantRole(subject="bob", role="viewer"), "1") == OutcomeUnknown()


async def test_an_unknown_outcome_repeated_with_its_key_ends_well_and_is_stored_once(scene: Scene) -> None:
    scene.store.outcomes = [Unknown("lost")]
    assert await scene.create("t", "1") == OutcomeUnknown()
    first = await scene.create("t", "1")
    assert isinstance(first, Accepted)
    assert await scene.create("t", "1") == first


async def test_an_id_that_was_never_given_out_is_not_found(scene: Scene) -> None:
    assert code(await scene.when(DeleteWorkload(workload_id="no-id"), "1")) == "not_found"
    never = DeleteWorkload(workload_id="00000000-0000-8000-8000-000000000000")
    assert code(await scene.when(never, "2")) == "not_found"


async def test_commands_on_one_aggregate_take_turns_and_none_conflicts(scene: Scene) -> None:
    grants = [GrantTenantRole(subject=f"s{n}", role="viewer") for n in range(100)]
    replies = await asyncio.gather(*(scene.when(grant, f"c{n}") for n, grant in enumerate(grants)))
    assert all(isinstance(reply, Accepted) for reply in replies)
    assert scene.store.appends == 100


async def test_the_last_administrator_stays_though_two_leave_at_once(scene: Scene) -> None:
    for subject in ("ann", "bob"):
        await scene.when(GrantTenantRole(subject=subject, role="administrator"), f"grant {subject}")
    leave = [RevokeTenantRole(subject=subject, role="administrator") for subject in ("ann", "bob")]
    replies = await asyncio.gather(*(scene.when(command, f"leave {n}") for n, command in enumerate(leave)))
    assert sorted(type(reply).__name__ for reply in replies) == ["Accepted", "Refused"]
    roles = (await scene.store.load(TENANT, TENANT_KEY)).state.roles
    assert list(roles.values()) == [("administrator",)]


async def test_a_key_that_came_for_another_thing_is_known_until_it_is_forgotten() -> None:
    recent = RecentCommands(limit=2)
    assert not recent.differs("1", "ev.workload.a", "h")
    assert not recent.differs("1", "ev.workload.a", "h")
    assert recent.differs("1", "ev.workload.b", "h")
    assert recent.differs("1", "ev.workload.a", "other")
    recent.forget("1")
    assert not recent.differs("1", "ev.workload.b", "h")
    for number in range(2, 5):
        recent.differs(str(number), "s", "h")
    assert not recent.differs("1", "ev.workload.a", "other"), "bounded: the oldest went"


async def test_turns_leave_nothing_behind() -> None:
    turns = Turns()

    async def take() -> None:
        async with turns.of("s"):
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(take()) for _ in range(10)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert turns._turns == {}
