"""How commands are carried out where the log does not go along: full, contended, silent. On the store in memory."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from development.commands import carry_out, training
from events.aggregate import TENANT, WORKLOAD, Aggregate, Chain, Draft, draft
from events.asset import ChangeAsset, CreateAsset, CreateCredential
from events.cluster import AddCluster
from events.commands import UserCommand
from events.commit import Actor
from events.envelope import Accepted, AdmittedCommand, CommandReply, OutcomeUnknown, Refused
from events.ids import TENANT_KEY, key_of_id
from events.policy import SetPolicy
from events.project import CreateProject, GrantProjectRole, RevokeProjectRole
from events.refusal import Refusal
from events.tenant import GrantTenantRole, RevokeTenantRole
from events.workload.commands import (
    Changeable,
    ChangeWorkload,
    DeleteWorkload,
    OpenSession,
    PlacePods,
    ReportPods,
    ResumeWorkload,
    SuspendWorkload,
    TransferWorkload,
    UndoAct,
)
from events.workload.fields.metadata import Annotation
from events.workload.fields.process import EnvironmentVariable
from events.workload.life import UndoableAct
from events.workload.pod import PodRef
from services.commands.counts import Counts
from services.commands.handle import MAX_TRIES, Commands, utc_now
from services.commands.limits import ACT_BYTES, CreationLimits
from services.commands.turns import Turns
from services.runtime.identity.directory import Directory
from services.runtime.log.jetstream import STREAM_FULL_CODE, TOO_LARGE_CODE
from services.runtime.log.memory import MemoryEventStore
from services.runtime.log.store import Conflict, Outcome, Rejected, Unknown
from services.runtime.nats.requests import UnansweredError
from tests.events.given import SERVICE, context, fact, placement
from tests.support.memory_keys import MemoryKeys

pytestmark = pytest.mark.anyio

ADA = Actor(id="ada")
LIMITS = CreationLimits(living=3, creations_per_hour=6, project_bytes_per_hour=2**20, user_bytes_per_hour=2**20)


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

    async def load[S](
        self, aggregate: Aggregate[S], key: str, until: int | None = None, *, min_seq: int = 0, seconds: float = 5.0
    ) -> Chain[S]:
        if self.silent:
            raise UnansweredError("no answer")
        return await super().load(aggregate, key, until, min_seq=min_seq, seconds=seconds)


class Scene:
    def __init__(self, store: Store, commands: Commands, project_id: str, cluster_id: str) -> None:
        self.store, self.commands = store, commands
        self.project_id, self.cluster_id = project_id, cluster_id

    async def when(self, command: UserCommand, command_id: str, **envelope: Any) -> CommandReply:
        envelope = {"body_hash": "b", "actor": ADA} | envelope
        admitted = AdmittedCommand(command_id=command_id, command=command, **envelope)
        return await self.commands.answer("cmd.admitted.X", admitted)

    async def create(self, name: str, command_id: str, **spec: Any) -> CommandReply:
        command = training(name, self.project_id, self.cluster_id)
        command = msgspec.structs.replace(command, spec=msgspec.structs.replace(command.spec, **spec))
        return await self.when(command, command_id)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    store = Store()
    await carry_out(store, "p", CreateProject(name="vision"))
    await carry_out(store, "c", AddCluster(name="lab", kind="kubernetes"))
    directory = Directory(store)
    await directory.start()
    (project_id,), (cluster_id,) = directory.projects, directory.clusters
    store.appends = 0
    counts = Counts(store, LIMITS)
    counting = asyncio.create_task(counts.run())
    commands = Commands(store=store, keys=MemoryKeys(), directory=directory, counts=counts)
    yield Scene(store, commands, project_id, cluster_id)
    counting.cancel()
    await directory.close()


def code(reply: CommandReply) -> str:
    assert isinstance(reply, Refused), reply
    return reply.refusal.code


async def test_with_a_full_log_what_makes_room_and_what_administrators_do_goes_on(scene: Scene) -> None:
    made = await scene.create("early", "1")
    assert isinstance(made, Accepted)
    grant = GrantProjectRole(project_id=scene.project_id, subject="eve", actor="eve", role="viewer")
    assert isinstance(await scene.when(grant, "0"), Accepted)
    scene.commands.log_full = "the log is full"

    assert code(await scene.create("late", "2")) == "log_full"
    assert code(await scene.when(CreateProject(name="late"), "3", override=True)) == "log_full"
    assert code(await scene.when(AddCluster(name="late", kind="kubernetes"), "4", override=True)) == "log_full"
    for number, everyday in enumerate(
        (
            SuspendWorkload(workload_id=made.id),
            ResumeWorkload(workload_id=made.id),
            ChangeWorkload(workload_id=made.id, priority_class="high"),
            GrantProjectRole(project_id=scene.project_id, subject="eve", actor="eve", role="researcher"),
        )
    ):
        reply = await scene.when(everyday, f"5{number}")
        # Resuming what runs is no change, and needs no room.
        assert isinstance(reply, Accepted) if isinstance(everyday, ResumeWorkload) else code(reply) == "log_full"
    assert isinstance(await scene.when(SuspendWorkload(workload_id=made.id), "6", override=True), Accepted)
    assert isinstance(
        await scene.when(GrantTenantRole(subject="bob", actor="bob", role="viewer"), "7", override=True), Accepted
    )
    revoke = RevokeProjectRole(project_id=scene.project_id, subject="eve", actor="eve", role="viewer")
    assert isinstance(await scene.when(revoke, "8"), Accepted)
    assert await scene.create("early", "1") == made, "what was carried out before is answered as it was"
    assert isinstance(await scene.when(DeleteWorkload(workload_id=made.id), "9"), Accepted)


async def test_a_project_may_have_so_many_living_workloads_and_no_more(scene: Scene) -> None:
    made = [await scene.create(f"t-{number}", f"{number}") for number in range(LIMITS.living)]
    assert all(isinstance(reply, Accepted) for reply in made)

    refused = await scene.create("one-more", "x")

    assert code(refused) == "too_many_workloads"
    assert isinstance(refused, Refused)
    assert f"has {LIMITS.living} living workloads and may have {LIMITS.living}" in refused.refusal.message
    assert "when 1 of them has ended or is deleted" in refused.refusal.message
    assert await scene.create("t-0", "0") == made[0], "what was carried out before is answered as it was"
    assert isinstance(made[0], Accepted)
    assert isinstance(await scene.when(DeleteWorkload(workload_id=made[0].id), "d"), Accepted)
    assert isinstance(await until_accepted(scene, "one-more", "x"), Accepted)


async def test_creations_that_come_at_once_do_not_pass_a_projects_limit_together(scene: Scene) -> None:
    replies = await asyncio.gather(*(scene.create(f"t-{number}", f"{number}") for number in range(4 * LIMITS.living)))
    assert sum(isinstance(reply, Accepted) for reply in replies) == LIMITS.living


async def test_an_hour_holds_so_many_creations_of_a_project_and_no_more(scene: Scene) -> None:
    for number in range(LIMITS.creations_per_hour):
        made = await until_accepted(scene, f"t-{number}", f"{number}")
        assert isinstance(made, Accepted)
        assert isinstance(await scene.when(DeleteWorkload(workload_id=made.id), f"d{number}"), Accepted)

    refused = await scene.create("one-more", "x")

    assert code(refused) == "too_many_creations"
    assert isinstance(refused, Refused)
    assert refused.refusal.retry_seconds is not None
    assert 0 < refused.refusal.retry_seconds <= 3600
    figures = f"created {LIMITS.creations_per_hour} workloads within 60 minutes and may create"
    assert figures in refused.refusal.message


async def test_an_hour_holds_so_many_bytes_of_creations_and_no_more(scene: Scene) -> None:
    """Few and large ones fill the log as well as many small ones."""
    large = {"environment_variables": (EnvironmentVariable(name="BLOB", value="x" * 600_000),)}
    assert isinstance(await scene.create("t-0", "0", **large), Accepted)
    refused = await scene.create("t-1", "1", **large)
    assert isinstance(refused, Refused)
    assert refused.refusal.code == "too_many_bytes"
    assert "may have 1,048,576" in refused.refusal.message
    assert isinstance(await scene.create("t-2", "2"), Accepted), "a small one fits"


async def test_changes_assets_and_policies_fill_the_hour_like_creations(scene: Scene) -> None:
    """Whoever may only change one workload could fill the log for everybody."""
    made = await scene.create("t-0", "0")
    assert isinstance(made, Accepted)
    fields = {"image": "x" * 60_000}
    asset = CreateAsset(kind="environment", name="python", scope="project", project_id=scene.project_id, spec=fields)
    policy = SetPolicy(workload_type="Training", project_id=scene.project_id, defaults=fields, rules={})
    created = await scene.when(asset, "1")
    assert isinstance(created, Accepted)
    assert isinstance(await scene.when(policy, "2"), Accepted)

    def noted(size: int) -> ChangeWorkload:
        return ChangeWorkload(workload_id=made.id or "", annotations=(Annotation(name="note", value="x" * size),))

    assert isinstance(await scene.when(noted(400_000), "3"), Accepted)
    assert isinstance(await scene.when(noted(500_000), "4"), Accepted)

    assert code(await scene.when(noted(100_000), "5")) == "too_many_bytes"
    change = ChangeAsset(asset_id=created.id or "", project_id=scene.project_id, spec={"image": "y" * 60_000})
    assert code(await scene.when(change, "6")) == "too_many_bytes"
    other = msgspec.structs.replace(policy, workload_type="Workspace")
    assert code(await scene.when(other, "7")) == "too_many_bytes"
    everywhere = CreateAsset(kind="environment", name="everywhere", scope="tenant", spec=fields)
    assert code(await scene.when(everywhere, "8")) == "too_many_bytes", "what is of no project counts for its user"
    assert isinstance(await scene.when(everywhere, "9", actor=Actor(id="bob")), Accepted)
    small = ChangeWorkload(workload_id=made.id, priority_class="high")
    assert isinstance(await scene.when(small, "10"), Accepted), "a small one fits"
    before = Changeable(annotations=(Annotation(name="note", value="x" * 400_000),))
    undo = UndoAct(workload_id=made.id, sequence=1, act="WorkloadChanged", before=before)
    assert code(await scene.when(undo, "11")) == "too_many_bytes", "back and forth would fill it, too"
    secret = CreateCredential(project_id=scene.project_id, name="s", spec={"credential": {"keys": ["k" * 60] * 900}})
    assert code(await scene.when(secret, "12")) == "too_many_bytes"


async def test_acts_back_and_forth_fill_the_hour_of_who_does_them(scene: Scene) -> None:
    """One request does a hundred of them: one person filled the log of everybody with suspending and resuming."""
    made = await scene.create("t-0", "0")
    assert isinstance(made, Accepted)
    blob = Annotation(name="blob", value="x" * (LIMITS.user_bytes_per_hour - 12 * ACT_BYTES))
    assert isinstance(await scene.when(ChangeWorkload(workload_id=made.id, annotations=(blob,)), "1"), Accepted)

    acts = [ResumeWorkload if number % 2 else SuspendWorkload for number in range(12)]
    replies = [await scene.when(act(workload_id=made.id or ""), f"act-{n}") for n, act in enumerate(acts)]
    done = sum(isinstance(reply, Accepted) for reply in replies)
    assert 8 <= done < len(acts)
    assert {code(reply) for reply in replies[done::2]} == {"too_many_bytes"}
    state = (await scene.store.load(WORKLOAD, key_of_id(made.id or "") or "")).state
    last: UndoableAct = "WorkloadSuspended" if done % 2 else "WorkloadResumed"
    undo = UndoAct(workload_id=state.workload_id, sequence=1, act=last, attempt=state.attempt)
    give = TransferWorkload(workload_id=state.workload_id, subject="bob", actor="bob")
    assert [code(await scene.when(give, "give")), code(await scene.when(undo, "undo"))] == ["too_many_bytes"] * 2
    of_bob = acts[done](workload_id=state.workload_id)
    assert isinstance(await scene.when(of_bob, "bobs", actor=Actor(id="bob")), Accepted), "it is ada's share alone"
    assert isinstance(await scene.when(DeleteWorkload(workload_id=made.id or ""), "del"), Accepted), "it makes room"


async def test_sessions_fill_the_hour_with_their_commands_which_are_kept(scene: Scene) -> None:
    """A researcher filled the log of everybody with them: each has as many words as fit a URL."""
    made = await scene.create("t-0", "0")
    assert isinstance(made, Accepted)
    key, pod, now = key_of_id(made.id or "") or "", PodRef(pod_set="main", index=0, attempt=1, try_=0), utc_now()
    for command in (
        PlacePods(workload_id=made.id or "", placements=(placement(pod),)),
        ReportPods(workload_id=made.id or "", facts=(fact("running", pod),)),
    ):
        chain = await scene.store.load(WORKLOAD, key)
        events = WORKLOAD.decide(command, chain.state, context(now=now, actor=SERVICE))
        assert not isinstance(events, Refusal)
        command_id = type(command).__name__
        await scene.store.append(draft(WORKLOAD, key, chain, events, command_id=command_id, actor=SERVICE, now=now))
    blob = Annotation(name="blob", value="x" * (LIMITS.user_bytes_per_hour - 60_000))
    assert isinstance(await scene.when(ChangeWorkload(workload_id=made.id or "", annotations=(blob,)), "1"), Accepted)
    words, workload_id = ("x" * 4_000,), made.id or ""
    ways = [
        OpenSession(
            workload_id=workload_id,
            session_id=f"s{n}",
            kind="exec",
            pod_set="main",
            index=0,
            seconds=9,
            command=words,
        )
        for n in range(12)
    ]
    replies = [await scene.when(way, way.session_id) for way in ways]
    done = sum(isinstance(reply, Accepted) for reply in replies)
    assert 7 <= done <= 10
    assert {code(reply) for reply in replies[done:]} == {"too_many_bytes"}


async def until_accepted(scene: Scene, name: str, command_id: str) -> CommandReply:
    """The counts follow the log, some milliseconds behind it."""
    async with asyncio.timeout(60):
        while not isinstance(reply := await scene.create(name, command_id), Accepted):
            assert code(reply) == "too_many_workloads"
            await asyncio.sleep(0.01)
    return reply


async def test_a_conflict_is_decided_again_on_the_new_state(scene: Scene) -> None:
    grant = GrantTenantRole(subject="bob", actor="bob", role="viewer")
    scene.store.outcomes = [Conflict(), Conflict()]
    assert isinstance(await scene.when(grant, "1"), Accepted)
    assert scene.store.appends == 3


async def test_a_command_that_loses_every_race_ends_with_an_unknown_outcome(scene: Scene) -> None:
    scene.store.outcomes = [Conflict()] * 50
    assert await scene.when(GrantTenantRole(subject="bob", actor="bob", role="viewer"), "1") == OutcomeUnknown()
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
    assert await scene.when(GrantTenantRole(subject="bob", actor="bob", role="viewer"), "1") == OutcomeUnknown()


async def test_an_unknown_outcome_repeated_with_its_key_ends_well_and_is_stored_once(scene: Scene) -> None:
    scene.store.outcomes = [Unknown("lost")]
    assert await scene.create("t", "1") == OutcomeUnknown()
    first = await scene.create("t", "1")
    assert isinstance(first, Accepted)
    assert await scene.create("t", "1") == first


async def test_while_an_outcome_is_unknown_its_key_is_for_nothing_else(scene: Scene) -> None:
    """As after a crash between the pledge and the commit: no second effect, and the request itself is not barred."""
    scene.store.outcomes = [Unknown("lost")]
    assert await scene.create("t", "1") == OutcomeUnknown()
    assert code(await scene.create("u", "1")) == "idempotency_key_reused"
    assert isinstance(await scene.create("t", "1"), Accepted)
    assert code(await scene.create("u", "1")) == "idempotency_key_reused"


async def test_a_request_in_doubt_that_is_refused_later_keeps_its_key(scene: Scene) -> None:
    """Its first try may still be under way: were the key free, both could take effect."""
    scene.store.outcomes = [Unknown("lost")]
    assert await scene.create("t", "1") == OutcomeUnknown()
    assert isinstance(await scene.create("t", "2"), Accepted)
    assert code(await scene.create("t", "1")) == "name_taken"
    assert code(await scene.create("u", "1")) == "idempotency_key_reused"


async def test_a_refusal_by_the_log_leaves_the_key_free(scene: Scene) -> None:
    scene.store.outcomes = [Rejected(STREAM_FULL_CODE, "maximum bytes exceeded")]
    assert code(await scene.create("t", "1")) == "log_full"
    assert isinstance(await scene.create("u", "1"), Accepted)


async def test_an_id_that_was_never_given_out_is_not_found(scene: Scene) -> None:
    assert code(await scene.when(DeleteWorkload(workload_id="no-id"), "1")) == "not_found"
    never = DeleteWorkload(workload_id="00000000-0000-8000-8000-000000000000")
    assert code(await scene.when(never, "2")) == "not_found"


async def test_commands_on_one_aggregate_take_turns_and_none_conflicts(scene: Scene) -> None:
    grants = [GrantTenantRole(subject=f"s{n}", actor=f"s{n}", role="viewer") for n in range(100)]
    replies = await asyncio.gather(*(scene.when(grant, f"c{n}") for n, grant in enumerate(grants)))
    assert all(isinstance(reply, Accepted) for reply in replies)
    assert scene.store.appends == 100


async def test_the_last_administrator_stays_though_two_leave_at_once(scene: Scene) -> None:
    for subject in ("ann", "bob"):
        await scene.when(GrantTenantRole(subject=subject, actor=subject, role="administrator"), f"grant {subject}")
    leave = [RevokeTenantRole(subject=subject, actor=subject, role="administrator") for subject in ("ann", "bob")]
    replies = await asyncio.gather(*(scene.when(command, f"leave {n}") for n, command in enumerate(leave)))
    assert sorted(type(reply).__name__ for reply in replies) == ["Accepted", "Refused"]
    roles = (await scene.store.load(TENANT, TENANT_KEY)).state.roles
    assert list(roles.values()) == [("administrator",)]


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
