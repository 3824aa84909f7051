"""Parts of batches of creations: each item for itself, all at once, and again. On the store in memory."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
from msgspec.structs import replace

from development.commands import carry_out, training
from events.aggregate import Draft
from events.cluster import AddCluster
from events.commit import Actor
from events.envelope import (
    MAX_UNPACKED_BYTES,
    Accepted,
    AdmittedBatch,
    BatchAnswered,
    BatchItem,
    BatchReply,
    CommandReply,
    ItemReply,
    OutcomeUnknown,
    Refused,
    packed,
    unpacked,
)
from events.ids import item_command_id
from events.project import CreateProject
from events.refusal import Refusal
from events.workload.commands import CreateWorkload, DeleteWorkload
from services.commands.batches import Batches
from services.commands.counts import Counts
from services.commands.handle import Commands
from services.commands.limits import CreationLimits
from services.runtime.identity.directory import Directory
from services.runtime.log.jetstream import STREAM_FULL_CODE
from services.runtime.log.memory import MemoryEventStore
from services.runtime.log.store import Outcome, Rejected, Unknown
from tests.support.memory_keys import MemoryKeys

pytestmark = pytest.mark.anyio

ADA = Actor(id="ada")
LIVING = 40
LIMITS = CreationLimits(
    living=LIVING, creations_per_hour=10_000, project_bytes_per_hour=2**30, user_bytes_per_hour=2**30
)


class Store(MemoryEventStore):
    """The store in memory; the next batches are stored, and answered as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[Outcome] = []
        self.batches: list[int] = []

    async def append_batch(self, drafts: Sequence[Draft], *, deadline_seconds: float = 5.0) -> Outcome:
        self.batches.append(len(drafts))
        await asyncio.sleep(0)  # as a real one, so that batches can overtake each other
        stored = await super().append_batch(drafts, deadline_seconds=deadline_seconds)
        return self.outcomes.pop(0) if self.outcomes else stored


class Scene:
    def __init__(self, store: Store, batches: Batches, commands: Commands, project_id: str, cluster_id: str) -> None:
        self.store, self.batches, self.commands = store, batches, commands
        self.project_id, self.cluster_id = project_id, cluster_id

    def creation(self, name: str, **more: str) -> CreateWorkload:
        return msgspec.structs.replace(training(name, self.project_id, self.cluster_id), **more)

    async def send(
        self,
        items: Sequence[str | CreateWorkload],
        batch_id: str = "b",
        *,
        body_hash: str = "h",
        refused: tuple[ItemReply, ...] = (),
        all_or_nothing: bool = False,
    ) -> BatchReply:
        creations = [self.creation(one) if isinstance(one, str) else one for one in items]
        given = [BatchItem(index=index, command=one) for index, one in enumerate(creations)]
        batch = AdmittedBatch(
            batch_id=batch_id,
            actor=ADA,
            packed=packed(given),
            body_hash=body_hash,
            refused=refused,
            all_or_nothing=all_or_nothing,
        )
        return await self.batches.answer(batch, unpacked(batch.packed))

    async def replies(
        self, items: Sequence[str | CreateWorkload], batch_id: str = "b", **more: bool
    ) -> list[CommandReply]:
        answer = await self.send(items, batch_id, **more)  # pyright: ignore[reportArgumentType] - all_or_nothing
        assert isinstance(answer, BatchAnswered), answer
        assert [one.index for one in answer.items] == [*range(len(answer.items))]
        return [one.reply for one in answer.items]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    store = Store()
    await carry_out(store, "p", CreateProject(name="vision"))
    await carry_out(store, "c", AddCluster(name="lab", kind="kubernetes"))
    directory = Directory(store)
    await directory.start()
    (project_id,), (cluster_id,) = directory.projects, directory.clusters
    counts = Counts(store, LIMITS)
    counting = asyncio.create_task(counts.run())
    keys = MemoryKeys()
    commands = Commands(store=store, keys=keys, directory=directory, counts=counts)
    yield Scene(store, Batches(commands, store=store, keys=keys, counts=counts), commands, project_id, cluster_id)
    counting.cancel()
    await directory.close()


def names(count: int) -> list[str]:
    return [f"t-{number}" for number in range(count)]


def codes(replies: Sequence[CommandReply]) -> list[str]:
    return [
        reply.refusal.code if isinstance(reply, Refused) else "ok" if isinstance(reply, Accepted) else "unknown"
        for reply in replies
    ]


async def test_all_items_are_appended_in_one_atomic_batch_each_as_a_command_of_its_own(scene: Scene) -> None:
    replies = await scene.replies(names(30))

    assert codes(replies) == ["ok"] * 30
    assert scene.store.batches == [30]
    commits = [commit for commit in scene.store._log if commit.aggregate == "workload"]
    assert [commit.record.command_id for commit in commits] == [item_command_id("b", index) for index in range(30)]
    assert {commit.record.batch.count for commit in commits if commit.record.batch} == {30}


async def test_the_same_batch_again_gives_the_same_answers_and_stores_nothing(scene: Scene) -> None:
    first = await scene.replies(names(LIVING))
    before = await scene.store.last_seq()

    assert await scene.replies(names(LIVING)) == first, "also where the project is at its limit"
    scene.commands.log_full = "the log is full"
    assert await scene.replies(names(LIVING)) == first
    assert await scene.store.last_seq() == before


async def test_an_item_is_answered_as_it_was_after_its_workload_is_gone_and_its_name_is_anothers(scene: Scene) -> None:
    (first,) = await scene.replies(["a"])
    assert isinstance(first, Accepted)
    await carry_out(scene.store, "d", DeleteWorkload(workload_id=first.id))
    (other,) = await scene.replies(["a"], "other")
    assert isinstance(other, Accepted)

    (again,) = await scene.replies(["a"])

    assert isinstance(again, Accepted)
    assert (again.id, again.at) == (first.id, first.at)
    assert other.id != first.id


async def test_a_key_that_stands_for_another_batch_is_refused(scene: Scene) -> None:
    await scene.replies(["a"])
    before = await scene.store.last_seq()

    answer = await scene.send(["b"], body_hash="another")

    assert isinstance(answer, Refused)
    assert answer.refusal.code == "idempotency_key_reused"
    assert await scene.store.last_seq() == before


async def test_items_are_refused_one_by_one_and_the_others_are_created(scene: Scene) -> None:
    await scene.replies(["taken"], "before")

    replies = await scene.replies(
        [
            "a",
            "taken",
            scene.creation("b", project_id="nowhere"),
            scene.creation("c", cluster_id="nowhere"),
            "a",
            "d",
        ]
    )

    assert codes(replies) == ["ok", "name_taken", "unknown_project", "unknown_cluster", "name_taken", "ok"]


async def test_all_or_nothing_creates_nothing_where_one_is_refused(scene: Scene) -> None:
    await scene.replies(["taken"], "before")
    before = await scene.store.last_seq()

    replies = await scene.replies(["a", "taken", "b"], all_or_nothing=True)

    assert codes(replies) == ["others_refused", "name_taken", "others_refused"]
    gate = (ItemReply(index=1, reply=Refused(refusal=Refusal(code="not_permitted", message="no"))),)
    answer = await scene.send(["x"], "gate", refused=gate, all_or_nothing=True)
    assert isinstance(answer, BatchAnswered)
    assert codes([one.reply for one in answer.items]) == ["others_refused", "not_permitted"]
    assert await scene.store.last_seq() == before
    assert codes(await scene.replies(["a", "b"], "good", all_or_nothing=True)) == ["ok", "ok"]


async def test_each_item_counts_as_one_creation(scene: Scene) -> None:
    replies = await scene.replies(names(LIVING + 2))

    assert codes(replies) == ["ok"] * LIVING + ["too_many_workloads"] * 2
    assert codes(await scene.replies(["one-more"], "later")) == ["too_many_workloads"]


async def test_of_two_batches_with_the_same_names_at_once_each_name_is_created_once(scene: Scene) -> None:
    one, other = await asyncio.gather(scene.replies(["a", "b", "c"], "one"), scene.replies(["b", "c", "d"], "other"))

    told = dict(zip("abc", codes(one), strict=True)), dict(zip("bcd", codes(other), strict=True))
    assert told[0]["a"] == told[1]["d"] == "ok"
    for name in "bc":
        assert sorted((told[0][name], told[1][name])) == ["name_taken", "ok"]


async def test_the_same_batch_in_two_processes_at_once_is_carried_out_once(scene: Scene) -> None:
    one, other = await asyncio.gather(scene.replies(names(5)), scene.replies(names(5)))

    assert one == other
    assert len([commit for commit in scene.store._log if commit.aggregate == "workload"]) == 5


async def test_a_lost_answer_is_unknown_and_the_repetition_tells(scene: Scene) -> None:
    scene.store.outcomes = [Unknown("no answer")]
    lost = await scene.replies(["a", "b"])
    assert lost == [OutcomeUnknown(), OutcomeUnknown()]

    assert codes(await scene.replies(["a", "b"])) == ["ok", "ok"]
    assert len([commit for commit in scene.store._log if commit.aggregate == "workload"]) == 2


async def test_a_full_log_refuses_what_is_new(scene: Scene) -> None:
    scene.store.append_batch = _full  # a real server would take hours
    assert codes(await scene.replies(["a", "b"])) == ["log_full", "log_full"]


async def _full(*_: object, **__: object) -> Outcome:
    return Rejected(STREAM_FULL_CODE, "maximum bytes exceeded")


def test_items_that_are_no_items_or_too_many_bytes_are_not_unpacked() -> None:
    nothing, no_command = b'{"commands":[],"items":[]}', b'{"commands":[],"items":[[0,0,"a","a"]]}'
    assert unpacked(zlib.compress(nothing)) == ()
    below = no_command.replace(b"[0,0", b"[0,-1")
    wrong = (zlib.compress(b"[{}]"), zlib.compress(nothing)[:-1], zlib.compress(no_command), zlib.compress(below))
    for data in (b"", b"nothing", *wrong):
        with pytest.raises((msgspec.MsgspecError, ValueError)):
            unpacked(data)
    with pytest.raises(ValueError, match="larger"):
        unpacked(zlib.compress(b" " * (MAX_UNPACKED_BYTES + 1)))


def test_items_of_one_command_may_not_be_unpacked_to_more_than_a_body_may_hold() -> None:
    command = training("a", "p", "c")
    large = replace(command, spec=replace(command.spec, args="x" * 200_000))
    items = [BatchItem(index=index, command=replace(large, name=f"a{index}")) for index in range(170)]
    with pytest.raises(ValueError, match="larger"):
        unpacked(packed(items))
    assert unpacked(packed(items[:100])) == tuple(items[:100])


def test_items_that_differ_in_their_names_share_a_spec_once_they_are_unpacked() -> None:
    command = training("a", "p", "c")
    other = replace(command, spec=replace(command.spec, args="other"))
    alike = [replace(one, name=name, requested_name=name) for one in (command, other) for name in ("a", "b", "c")]
    items = [BatchItem(index=number, command=one) for number, one in enumerate(alike)]
    found = unpacked(packed(items))
    assert found == tuple(items)
    assert len({id(item.command.spec) for item in found}) == 2
