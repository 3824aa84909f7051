"""The fold of states that services keep: what it takes in, what it passes by, and where it ends."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, override

import msgspec
import pytest
from nats.aio.client import Client

from events.aggregate import (
    AGGREGATES,
    CLUSTER,
    NODE,
    PROJECT,
    TENANT,
    WORKLOAD,
    Aggregate,
    BrokenChainError,
    Chain,
    Draft,
)
from events.codec import encode_commit
from events.commit import BatchPart, Commit
from events.node import Node
from events.project import Project
from events.workload.commands import DeleteWorkload
from services.runtime.log.folding import follow_into, take
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.log_fold import STEPS, LogFold, Steps
from services.runtime.log.memory import MemoryEventStore
from services.runtime.log.store import Committed, UnreadableMessageError
from tests.support.drafts import grant, project_grant, subjects_of
from tests.support.erasable import erasable_log
from tests.support.lives import FIRST, World, feed

pytestmark = pytest.mark.anyio
KINDS = (WORKLOAD, NODE, CLUSTER, PROJECT)


@dataclass
class Lived:
    """A workload that lived and was deleted, and its name used again."""

    commits: list[Commit]
    key: str
    ended: int
    """Sequence at which the first was deleted."""


@pytest.fixture
def lived() -> Lived:
    world = World()
    cluster, project = world.cluster(), world.project()
    node = world.node(cluster, "n")
    key = world.training("w", project, cluster)
    world.place([(key, FIRST, node, 0)])
    for kind in ("starting", "running", "succeeded"):
        world.report(key, FIRST, kind, exit_code=0 if kind == "succeeded" else None)
    assert world.do("workload", key, DeleteWorkload(workload_id=world.state("workload", key).workload_id)) is None
    ended = len(world.commits)
    world.training("w", project, cluster)
    return Lived(commits=world.commits, key=key, ended=ended)


def versions(fold: LogFold) -> dict[tuple[str, str], int]:
    return {(name, key): chain.version for name, chains in fold.chains.items() for key, chain in chains.items()}


def test_it_keeps_the_states_of_its_kinds_and_no_others(lived: Lived) -> None:
    fold, whole = LogFold((NODE, PROJECT)), LogFold(KINDS)
    assert take(fold, lived.commits) is None
    assert take(whole, lived.commits) is None
    assert set(fold.chains) == {"node", "project"}
    assert versions(fold).items() <= versions(whole).items()
    assert fold.seq == whole.seq == lived.commits[-1].seq
    assert fold.chain(NODE, "unknown").state == Node()


def test_a_commit_that_is_in_already_changes_nothing(lived: Lived) -> None:
    fold = LogFold(KINDS)
    take(fold, lived.commits)
    once = versions(fold)
    take(fold, lived.commits)
    assert versions(fold) == once


def test_folds_of_one_process_share_what_they_read_together(lived: Lived) -> None:
    alone = LogFold(KINDS)
    token = STEPS.set(Steps())
    one, two = LogFold(KINDS), LogFold(KINDS, forgets=True)
    STEPS.reset(token)
    for fold in (alone, one, two):
        assert take(fold, lived.commits) is None
    assert one.chains == two.chains == alone.chains
    assert all(two.chains[name][key] is one.chains[name][key] for name, key in versions(one))
    assert not any(alone.chains[name][key] is one.chains[name][key] for name, key in versions(one))


def test_a_fold_that_missed_a_commit_is_refused_what_another_has_taken(lived: Lived) -> None:
    token = STEPS.set(Steps())
    ahead, behind = LogFold(KINDS), LogFold(KINDS)
    STEPS.reset(token)
    void = msgspec.structs.replace(lived.commits[0], record=lived.commits[0].record, events=())
    first, second = _twice(lived, void)
    take(ahead, [first, second])
    with pytest.raises(BrokenChainError):
        behind.apply(second)


def _twice(lived: Lived, void: Commit) -> tuple[Commit, Commit]:
    """Two commits of nothing on one chain: the state stays the very same, and only the version tells them apart."""
    follows = msgspec.structs.replace(void.record, parent_seq=void.seq)
    last = len(lived.commits)
    return void, msgspec.structs.replace(void, seq=last + 1, record=follows)


def test_a_commit_that_does_not_follow_is_refused(lived: Lived) -> None:
    fold = LogFold(KINDS)
    second = next(c for c in lived.commits if c.aggregate == "workload" and c.record.parent_seq)
    with pytest.raises(BrokenChainError):
        fold.apply(second)


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "in a process of several"])
async def test_what_a_service_decided_is_not_folded_again_and_is_what_a_fold_from_scratch_finds(
    monkeypatch: pytest.MonkeyPatch, *, shared: bool
) -> None:
    """Given a fold and a commit that its service wrote, when it takes that in with the draft, then nobody folds its
    events again, and the state is the one that the log tells.
    """
    token = STEPS.set(Steps() if shared else None)
    fold, other, store = LogFold(KINDS), LogFold(KINDS), MemoryEventStore()
    STEPS.reset(token)
    made = project_grant("p", 0)
    outcome = await store.append(made)
    assert isinstance(outcome, Committed)
    with monkeypatch.context() as patch:
        patch.setattr(Aggregate, "after", None)
        fold.apply(outcome.commits[0], made)
    other.apply(outcome.commits[0])
    scratch = LogFold(KINDS, until=1)
    await scratch.read(store)
    assert fold.chains == other.chains == scratch.chains
    assert fold.of(PROJECT)[made.key].state is made.after


async def test_a_draft_on_another_state_than_the_one_kept_counts_for_nothing(lived: Lived) -> None:
    """Given a draft that was decided on another state, and says what became of that, when its commit comes, then its
    events are folded on the state that is kept; and the commit must follow that.
    """
    fold, store = LogFold(KINDS), MemoryEventStore()
    made = project_grant("p", 0)
    right = made.after
    made = msgspec.structs.replace(made, before=Project(name="another"), after=Project(name="wrong"))
    outcome = await store.append(made)
    assert isinstance(outcome, Committed)
    fold.apply(outcome.commits[0], made)
    assert fold.of(PROJECT)[made.key].state == right
    second = next(c for c in lived.commits if c.aggregate == "workload" and c.record.parent_seq)
    drafted = Draft(
        aggregate=second.aggregate, key=second.key, record=second.record, events=second.events, before=WORKLOAD.initial
    )
    with pytest.raises(BrokenChainError):
        fold.apply(second, drafted)


class Forgetful(LogFold):
    def __init__(self) -> None:
        super().__init__(KINDS, forgets=True)
        self.told: list[tuple[str, int, int]] = []

    @override
    def took(self, commit: Commit, before: Chain[Any], after: Chain[Any]) -> None:
        self.told.append((commit.aggregate, before.version, after.version))


def test_what_was_forgotten_is_passed_by_until_its_name_is_used_again(lived: Lived) -> None:
    """Given a fold that forgot a workload before its last commits, when these come, then they change nothing; the next
    workload of that name begins anew, at any version of the chain.
    """
    fold = Forgetful()
    of_it = [c for c in lived.commits if (c.aggregate, c.key) == ("workload", lived.key)]
    take(fold, of_it[:2])
    fold.forget(WORKLOAD, lived.key)
    take(fold, [c for c in of_it[2:] if c.seq <= lived.ended])
    assert fold.chains["workload"] == {}
    take(fold, [c for c in of_it if c.seq > lived.ended])
    assert versions(fold) == {("workload", lived.key): of_it[-1].seq}
    assert fold.told[-1] == ("workload", 0, of_it[-1].seq)


def test_it_goes_on_from_a_snapshot_as_if_it_had_read_all(lived: Lived) -> None:
    middle = lived.ended // 2
    while not lived.commits[middle - 1].ends_batch:
        middle += 1
    first, second, whole = LogFold(KINDS), LogFold(KINDS), LogFold(KINDS)
    take(first, lived.commits[:middle])
    second.restore(first.seq, first.chains)
    view = second.of(WORKLOAD)
    take(second, lived.commits[middle:])
    take(whole, lived.commits)
    assert (second.seq, second.chains, second.from_snapshot) == (whole.seq, whole.chains, True)
    assert view is second.of(WORKLOAD)


async def test_as_of_any_sequence_it_is_what_each_aggregate_was_then_and_holds_no_part_of_a_batch(lived: Lived) -> None:
    store = MemoryEventStore()
    feed(store, lived.commits)
    for until in range(len(lived.commits) + 1):
        fold = LogFold(KINDS, until)
        await fold.read(store)
        assert fold.seq == max((c.seq for c in lived.commits if c.ends_batch and c.seq <= until), default=0)
        for name, key in versions(fold):
            aggregate = AGGREGATES[name]
            assert fold.chain(aggregate, key).state == (await store.load(aggregate, key, fold.seq)).state


async def test_as_of_a_time_on_a_real_log(client: Client) -> None:
    store = JetStreamEventStore(client)
    await store.append(grant("a", 0, subject="ann"))
    await store.append_batch([grant("a", 1, subject="bob"), project_grant("p", 0)])
    then = datetime.now(UTC)
    await store.append(grant("a", 2, subject="cid"))
    fold = LogFold((TENANT,), await store.sequence_at(then))
    await fold.read(store)
    assert (fold.seq, subjects_of(fold.chain(TENANT, "a"))) == (3, {"ann", "bob"})


async def test_a_fold_that_is_read_once_does_not_wait_before_what_cannot_be_read(client: Client) -> None:
    store = JetStreamEventStore(client)
    await store.append(grant("a", 0))
    await client.jetstream().publish("ev.tenant.a", b"{")
    await store.append(grant("b", 0))
    fold = LogFold((TENANT,), 3)
    with pytest.raises(UnreadableMessageError):
        await fold.read(store)
    assert fold.seq == 1


async def test_a_time_in_a_log_with_holes_is_the_last_message_before_it(client: Client) -> None:
    """Given a log without its front part and with holes, also at its end: what is gone is passed over."""
    await erasable_log(client)
    store, times = JetStreamEventStore(client), [datetime.now(UTC)]
    for n in range(8):
        await asyncio.sleep(0.02)
        await store.append(grant(f"k{n}", 0))
        await asyncio.sleep(0.02)
        times.append(datetime.now(UTC))
    js = client.jetstream()
    await js.purge_stream("EVENTS", seq=3)
    for seq in (5, 6, 8):
        await js.delete_msg("EVENTS", seq)
    assert [await store.sequence_at(time) for time in times] == [0, 0, 0, 3, 4, 4, 4, 7, 7]
    await js.purge_stream("EVENTS")
    assert await store.sequence_at(times[-1]) == 0


async def test_a_time_is_found_beside_what_cannot_be_read(client: Client) -> None:
    """Given an atomic batch whose last part but one cannot be read, a time within it is before the batch."""
    await erasable_log(client)
    store = JetStreamEventStore(client)
    await store.append(grant("a", 0))
    times = [datetime.now(UTC)]
    drafts = [grant(f"k{n}", 0) for n in range(3)]
    for index, one in enumerate(drafts, start=1):
        part = encode_commit(one.in_batch(BatchPart(id="b", index=index, count=3)).record)
        await client.jetstream().publish(one.subject, b"{" if index == 2 else part)
        await asyncio.sleep(0.02)
        times.append(datetime.now(UTC))
    assert [await store.sequence_at(time) for time in times] == [1, 1, 1, 4]


async def test_only_of_the_whole_log_is_there_an_until() -> None:
    with pytest.raises(ValueError, match="all kinds"):
        await anext(
            follow_into(MemoryEventStore(), LogFold((TENANT,)), on_standing=None, aggregates=("tenant",), until=1)
        )
    with pytest.raises(ValueError, match="never done"):
        await LogFold((TENANT,)).read(MemoryEventStore())
