"""Messages that cannot be read, and what readers of the log do before and after they were declared void."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from nats.aio.client import Client

from development.servers import NatsServer
from events.aggregate import TENANT, VOID, Chain, draft
from events.commit import BatchPart
from events.decision import Context
from events.ids import incarnation_id, project_key
from events.tenant import TenantRoleGranted
from events.void import MessageVoided, VoidMessage, decide
from services.runtime.identity.directory import Directory
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.store import Committed, LogUnavailableError, UnreadableMessageError
from services.runtime.nats.connection import connect
from tests.support.drafts import ACTOR, NOW, grant
from tests.support.poison import UNREADABLE, VIEWER, put, record
from tests.support.stores import collect, flat

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(client: Client) -> JetStreamEventStore:
    return JetStreamEventStore(client)


async def declare_void(store: JetStreamEventStore, seq: int) -> None:
    """As `commands` does, without asking anybody."""
    found = await store.examine(seq)
    assert found is not None, f"message {seq} can be read"
    event = MessageVoided(
        seq=seq,
        subject=found.subject,
        cause=found.cause,
        reason="test",
        parent_seq=found.parent_seq,
        about=found.about,
    )
    chain = Chain(state=VOID.initial)
    made = draft(VOID, str(seq), chain, (event,), command_id=f"void {seq}", actor=ACTOR, now=NOW)
    assert isinstance(await store.append(made), Committed)


HEALED_SECONDS = 60
"""A pull that overtook its consumer is noticed after 5 s of silence, and asked again: on a busy machine twice."""


async def follow_to_the_end(store: JetStreamEventStore, handed: list[int]) -> None:
    async with asyncio.timeout(HEALED_SECONDS), contextlib.aclosing(store.follow(0, idle_seconds=0.2)) as seen:
        async for commits in seen:
            handed.extend(commit.seq for commit in commits)


async def test_what_follows_a_void_message_without_a_body_comes_to_every_reader(
    client: Client, store: JetStreamEventStore
) -> None:
    """Servers take such a message for the end of an answer from another account; their heartbeats say what was sent."""
    await store.append(grant("default", 0, subject="ada"))
    seq = await put(client, "ev.tenant.default", b"")
    behind = await put(client, "ev.tenant.other", record(VIEWER, parent=0))
    await declare_void(store, seq)
    for _ in range(2):
        readers = [collect(JetStreamEventStore(client), 0, 4) for _ in range(5)]
        for handed in await asyncio.gather(*readers):
            assert [commit.seq for commit in flat(handed)] == [1, seq, behind, 4]


@pytest.mark.parametrize("kind", sorted(UNREADABLE))
async def test_what_cannot_be_read_stops_readers_by_name_and_no_longer_once_it_is_void(
    client: Client, store: JetStreamEventStore, kind: str
) -> None:
    await store.append(grant("default", 0, subject="ada"))
    seq = await put(client, "ev.tenant.default", UNREADABLE[kind])
    behind = await put(client, "ev.tenant.other", record(VIEWER, parent=0))

    handed: list[int] = []
    with pytest.raises(UnreadableMessageError, match=f"message {seq} of the log"):
        await follow_to_the_end(store, handed)
    assert handed == [1], "what stands before it is handed out"
    with pytest.raises(UnreadableMessageError, match=f"message {seq} of the log"):
        await store.load(TENANT, "default")
    directory = Directory(store)
    await directory.start()
    assert directory.unreadable is not None
    assert (directory.seq, directory.unreadable.seq) == (1, seq)
    assert directory.grants("ada").tenant_roles == ("viewer",), "what was known before still holds"

    await declare_void(store, seq)

    assert await directory.reached(1, timeout_seconds=60)
    async with asyncio.timeout(HEALED_SECONDS):
        while directory.seq < behind:
            await asyncio.sleep(0.01)
    assert directory.unreadable is None
    await directory.close()
    chain = await store.load(TENANT, "default")
    assert (chain.version, set(chain.state.roles)) == (seq, {"ada"})
    assert isinstance(await store.append(grant("default", chain.version, subject="bob")), Committed)
    for reader in (store, JetStreamEventStore(client)):
        assert set((await reader.load(TENANT, "default")).state.roles) == {"ada", "bob"}
        commits = flat(await collect(reader, 0, 5))
        assert [commit.seq for commit in commits] == [1, seq, behind, 4, 5]
        assert commits[1].events == ()


@pytest.mark.parametrize("parent", [0, 2, 999_999])
async def test_a_commit_that_follows_from_nothing_stops_folds_by_name(
    client: Client, store: JetStreamEventStore, parent: int
) -> None:
    await store.append(grant("default", 0, subject="ada"))
    seq = await put(client, "ev.tenant.default", record(VIEWER, parent=parent))
    with pytest.raises(UnreadableMessageError, match=f"message {seq} of the log"):
        await store.load(TENANT, "default")
    directory = Directory(store)
    await directory.start()
    assert directory.unreadable is not None
    assert directory.unreadable.seq == seq

    await declare_void(store, seq)

    async with asyncio.timeout(HEALED_SECONDS):
        while directory.unreadable is not None:
            await asyncio.sleep(0.01)
    assert isinstance(await store.append(grant("default", seq, subject="bob")), Committed)
    assert await directory.reached(4, timeout_seconds=60)
    assert set((await store.load(TENANT, "default")).state.roles) == {"ada", "bob"}
    assert directory.grants("mallory").tenant_roles == ()
    await directory.close()


async def test_an_atomic_batch_that_is_not_whole_stops_readers_by_name(
    client: Client, store: JetStreamEventStore
) -> None:
    parts = [record(VIEWER, parent=0, batch=BatchPart(id="b", index=n, count=3)) for n in (1, 2)]
    for number, part in enumerate(parts):
        await put(client, f"ev.tenant.k{number}", part)
    await store.append(grant("z", 0))
    for seq in (1, 2):
        with pytest.raises(UnreadableMessageError, match=f"message {seq} .*batch"):
            await follow_to_the_end(store, [])
        with pytest.raises(UnreadableMessageError, match=f"message {seq} .*batch"):
            await store.load(TENANT, f"k{seq - 1}")
        await declare_void(store, seq)
    assert [commit.seq for commit in flat(await collect(store, 0, 5))] == [1, 2, 3, 4, 5]
    assert (await store.load(TENANT, "k0")).state.roles == {}


async def test_what_only_the_rows_cannot_follow_can_be_declared_void(
    client: Client, store: JetStreamEventStore
) -> None:
    foreign = incarnation_id(project_key("other"), "1").encode()
    created = b'{"project_id":"' + foreign + b'","name":"p","at":"2026-01-02T00:00:00Z"}'
    subject = f"ev.project.{project_key('p')}"
    await put(client, subject, record(("ProjectCreated", 1, created), parent=0))
    await put(client, subject, record(("ProjectChanged", 1, b"{}"), parent=1))
    found = await store.examine(1)
    assert found is not None
    assert "another subject" in found.cause
    with pytest.raises(UnreadableMessageError, match="message 1 "):
        await store.examine(2)
    await declare_void(store, 1)
    assert await store.examine(2) is None, "rows are made of the state, on which it changes nothing"
    assert [len(commit.events) for commit in flat(await collect(store, 0, 3))][:2] == [0, 1]


async def test_only_what_cannot_be_read_can_be_declared_void(client: Client, store: JetStreamEventStore) -> None:
    await store.append_batch([grant("a", 0), grant("b", 0)])
    await put(client, "ev.tenant.c", b"x")
    assert await store.examine(1) is None
    assert await store.examine(2) is None
    with pytest.raises(KeyError):
        await store.examine(99)
    found = await store.examine(3)
    assert found is not None
    assert "malformed" in found.cause


async def test_of_two_that_cannot_be_read_on_one_chain_the_first_goes_first(
    client: Client, store: JetStreamEventStore
) -> None:
    await store.append(grant("a", 0, subject="ada"))
    await put(client, "ev.tenant.a", b"x")
    await put(client, "ev.tenant.a", b"y")
    with pytest.raises(UnreadableMessageError, match="message 2 "):
        await store.examine(3)
    await declare_void(store, 2)
    await declare_void(store, 3)
    chain = await store.load(TENANT, "a")
    assert (chain.version, set(chain.state.roles)) == (3, {"ada"})


@pytest.mark.parametrize("unreadable", [1, 2, 3])
async def test_a_part_of_an_atomic_batch_is_void_alone_and_the_rest_is_handed_out_whole(
    client: Client, store: JetStreamEventStore, unreadable: int
) -> None:
    parts = [record(VIEWER, parent=0, batch=BatchPart(id="b", index=n, count=3)) for n in (1, 2, 3)]
    parts[unreadable - 1] = b"x"
    for number, payload in enumerate(parts, start=1):
        await put(client, f"ev.tenant.k{number}", payload)
    readable = [seq for seq in (1, 2, 3) if seq != unreadable]

    with pytest.raises(UnreadableMessageError, match=f"message {unreadable} "):
        await follow_to_the_end(store, [])
    for seq in readable:
        assert await store.examine(seq) is None, "what can be read is not taken back"
    await declare_void(store, unreadable)

    handed = await collect(store, 0, 4)
    assert [commit.seq for commit in flat(handed)] == [1, 2, 3, 4]
    whole = [commits for commits in handed if readable[0] in [commit.seq for commit in commits]]
    assert {commit.seq for commit in whole[0]} >= set(readable)


async def test_subjects_of_no_aggregate_can_be_passed_by_too(client: Client, store: JetStreamEventStore) -> None:
    for subject in ("ev.x", "ev.no.such", "ev.tenant.a.b", "ev.tenant.a$b"):
        seq = await put(client, subject, record(VIEWER, parent=0))
        await declare_void(store, seq)
    assert [commit.seq for commit in flat(await collect(store, 0, 8))] == list(range(1, 9))


async def test_a_void_record_that_cannot_be_read_itself_declares_nothing_and_can_be_declared_void(
    client: Client, store: JetStreamEventStore
) -> None:
    await put(client, "ev.tenant.a", b"x")
    await put(client, "ev.void.1", b"y")
    await put(
        client, "ev.void.7", record(("MessageVoided", 1, b'{"seq":1,"subject":"s","cause":"","reason":""}'), parent=0)
    )
    with pytest.raises(UnreadableMessageError, match="message 1 "):
        await collect(store, 0, 1)
    assert not await store.voids.honours(1)
    await declare_void(store, 2)
    found = await store.examine(1)
    assert found is not None
    event = MessageVoided(seq=1, subject=found.subject, cause="", reason="")
    chain = await store.load(VOID, "1")
    await store.append(draft(VOID, "1", chain, (event,), command_id="c", actor=ACTOR, now=NOW))
    assert [commit.seq for commit in flat(await collect(store, 0, 5))] == [1, 2, 3, 4, 5]


async def test_a_chain_with_a_snapshot_passes_a_void_message_by(client: Client, fresh_log: NatsServer) -> None:
    saver = await connect(fresh_log.settings("commands"), "commands")
    store = JetStreamEventStore(saver)
    version = 0
    for start in range(0, 1_200, 400):  # a chain that is worth a snapshot
        for number in range(400):
            event = TenantRoleGranted(actor=f"s{start + number}", role="viewer")
            chain = Chain(state=TENANT.initial, version=version)
            outcome = await store.append(
                draft(TENANT, "long", chain, (event,), command_id=f"{start + number}", actor=ACTOR, now=NOW)
            )
            assert isinstance(outcome, Committed)
            version = outcome.commits[0].seq
    assert len((await store.load(TENANT, "long")).state.roles) == 1_200
    seq = await put(client, "ev.tenant.long", b"x")
    await declare_void(store, seq)
    for reader in (store, JetStreamEventStore(saver), JetStreamEventStore(client)):
        chain = await reader.load(TENANT, "long")
        assert (chain.version, len(chain.state.roles)) == (seq, 1_200)
    await saver.close()


async def test_two_voids_of_one_message_are_one(client: Client, store: JetStreamEventStore) -> None:
    await put(client, "ev.tenant.a", b"x")
    await declare_void(store, 1)
    assert await store.examine(1) is None
    with contextlib.suppress(AssertionError):
        await declare_void(store, 1)
    assert await store.last_seq() == 2


def forged(seq: int, *, parent: int, subject: str = "ev.tenant.default") -> bytes:
    """A record as somebody with the credential of `commands` could write it, past `commands` itself."""
    fields = {"seq": seq, "subject": subject, "cause": "none", "reason": "forged", "parent_seq": parent}
    return record(("MessageVoided", 1, msgspec.json.encode(fields)), parent=0)


@pytest.mark.parametrize("forged_first", [False, True], ids=["afterwards", "beforehand"])
async def test_a_void_of_what_can_be_read_is_doubted_by_every_reader(
    client: Client, store: JetStreamEventStore, *, forged_first: bool
) -> None:
    directory = Directory(store)
    await directory.start()
    target = 3 if forged_first else 2
    if forged_first:
        await put(client, f"ev.void.{target}", forged(target, parent=1))
    first = await store.append(grant("default", 0, subject="ada"))
    assert isinstance(first, Committed)
    await store.append(grant("default", first.commits[0].seq, subject="bob"))
    if not forged_first:
        await put(client, f"ev.void.{target}", forged(target, parent=1))
    third = await store.append(grant("default", target, subject="eve"))
    assert isinstance(third, Committed)
    everybody, end = {"ada", "bob", "eve"}, third.commits[0].seq

    assert await directory.reached(end, timeout_seconds=60)
    for reader in (store, JetStreamEventStore(client), JetStreamEventStore(client, cached_chains=0)):
        assert set((await reader.load(TENANT, "default")).state.roles) == everybody
        assert [len(commit.events) for commit in flat(await collect(reader, 0, end))] == [1] * end
        async with contextlib.aclosing(reader.commits(TENANT, "default", after_seq=0, until_seq=end)) as pages:
            assert [len(commit.events) async for commits in pages for commit in commits] == [1] * 3
        assert await reader.examine(target) is None
        assert reader.voids.told(str) == []
        (told,) = reader.voids.doubted(str)
        assert told.startswith(f"message {target} (ev.tenant.default) was declared void by mallory")
        assert "it can be read, and counts" in told
    assert directory.grants("bob").tenant_roles, "who follows from before, too"
    later = Directory(JetStreamEventStore(client))
    await later.start()
    assert later.grants("bob").tenant_roles
    await later.close()
    await directory.close()


async def test_a_forged_void_of_what_was_passed_long_ago_is_told_at_once(
    client: Client, store: JetStreamEventStore
) -> None:
    await store.append(grant("default", 0, subject="ada"))
    directory = Directory(store)
    await directory.start()
    await put(client, "ev.void.1", forged(1, parent=0))
    async with asyncio.timeout(HEALED_SECONDS):
        while not store.voids.doubted(str):
            await asyncio.sleep(0.01)
    await directory.close()


async def handed_out_while_no_void_is_looked_at(
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    *,
    end: int,
    after: int = 0,
    then: tuple[int, Callable[[], Awaitable[object]]] | None = None,
) -> list[int]:
    """Up to `end`; `then` names a message and what is done once it was handed out."""
    reader = JetStreamEventStore(client)
    looked_at = asyncio.Event()

    async def honours(seq: int) -> bool:
        await looked_at.wait()
        raise AssertionError(f"nobody was to look at {seq}")

    monkeypatch.setattr(reader.voids, "honours", honours)
    handed: list[int] = []
    async with asyncio.timeout(HEALED_SECONDS), contextlib.aclosing(reader.follow(after, idle_seconds=0.2)) as seen:
        async for commits in seen:
            handed.extend(commit.seq for commit in commits)
            if handed and handed[-1] >= end:
                break
            if then is not None and handed and handed[-1] >= then[0]:
                await then[1]()
                then = None
    return handed


async def test_what_stands_before_a_void_is_handed_out_before_anybody_looks_at_it(
    client: Client, store: JetStreamEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.append(grant("default", 0, subject="ada"))
    await put(client, "ev.tenant.default", b"x")
    await declare_void(store, 2)
    assert await handed_out_while_no_void_is_looked_at(client, monkeypatch, end=1) == [1]


async def test_forged_voids_of_what_was_passed_hold_up_nothing_that_follows(
    client: Client, store: JetStreamEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("one", "two"):
        await store.append(grant(key, 0, subject="ada"))
    for target in (1, 2):
        await put(client, f"ev.void.{target}", forged(target, parent=0))
    handed = await handed_out_while_no_void_is_looked_at(
        client, monkeypatch, end=5, after=2, then=(4, lambda: store.append(grant("three", 0, subject="ada")))
    )
    assert handed == [3, 4, 5]


async def test_many_voids_are_read_at_once(client: Client, store: JetStreamEventStore) -> None:
    for target in range(1_000, 1_120):
        await put(client, f"ev.void.{target}", forged(target, parent=0))
    reader = JetStreamEventStore(client)
    before = client.stats["out_msgs"]
    await reader.voids.read()
    assert client.stats["out_msgs"] - before < 10
    assert reader.voids.told(str) == []
    with pytest.raises(LogUnavailableError, match="message 1119, which was declared void, is not in the log"):
        await reader.voids.honours(1_119)


async def test_what_a_void_record_says_of_the_chain_is_not_believed(client: Client, store: JetStreamEventStore) -> None:
    await store.append(grant("default", 0, subject="ada"))
    await put(client, "ev.tenant.default", b"x")
    await put(client, "ev.void.2", forged(2, parent=999, subject="ev.tenant.other"))
    assert isinstance(await store.append(grant("default", 2, subject="bob")), Committed)
    for reader in (store, JetStreamEventStore(client)):
        assert set((await reader.load(TENANT, "default")).state.roles) == {"ada", "bob"}
        nothing = flat(await collect(reader, 0, 4))[1]
        assert (nothing.aggregate, nothing.key, nothing.record.parent_seq) == ("tenant", "default", 1)


async def test_a_record_about_another_message_does_not_keep_a_message_from_being_declared_void(
    client: Client, store: JetStreamEventStore
) -> None:
    await put(client, "ev.tenant.default", b"x")
    await put(client, "ev.void.1", forged(7, parent=0))
    found = await store.examine(1)
    assert found is not None
    command = VoidMessage(seq=1, reason="broken", found=found)
    chain = await store.load(VOID, "1")
    events = decide(command, chain.state, context(chain.version))
    assert isinstance(events, tuple)
    assert [event.seq for event in events] == [1]
    await store.append(draft(VOID, "1", chain, events, command_id="c", actor=ACTOR, now=NOW))
    assert [len(commit.events) for commit in flat(await collect(store, 0, 3))] == [0, 1, 1]


def context(version: int) -> Context:
    return Context(now=NOW, actor=ACTOR, command_id="c", version=version)
