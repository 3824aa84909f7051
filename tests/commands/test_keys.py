"""An Idempotency-Key stands for one request for a day, whatever happens to the name, to commands, or to Postgres, which
is not even there in these tests. On a real server, through the gate.

Requirement rows: C21; docs/adr/0028.
"""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from development.commands import CommandPath, carry_out, code, training
from events.aggregate import WORKLOAD
from events.cluster import SetOwnershipProtection
from events.commands import UserCommand
from events.envelope import Accepted, CommandReply, CommandRequest, OutcomeUnknown, Refused
from events.ids import key_of_id
from events.workload.commands import ChangeWorkload, DeleteWorkload, ResumeWorkload, SuspendWorkload

pytestmark = pytest.mark.anyio

FORGOTTEN = 70
"""Commits after which a chain itself no longer remembers a command."""
KEYS = 24
"""In flight while commands is killed five times. Each is sent again and again, which costs most."""


async def much_happens_to(path: CommandPath, workload_id: str) -> None:
    """More commits than a chain remembers commands."""
    for number in range(FORGOTTEN):
        classes = ("low", "high")
        change = ChangeWorkload(workload_id=workload_id, priority_class=classes[number % 2])
        await carry_out(path.store, f"change {number} of {workload_id}", change)


async def commands_restart(path: CommandPath) -> None:
    await path.services[-1].kill()
    await path.start("commands")


async def test_a_key_that_made_one_name_makes_no_other_though_commands_was_killed(
    path: CommandPath, place: tuple[str, str]
) -> None:
    first = await path.accepted("ada", training("one", *place), "k1")
    await commands_restart(path)

    assert code(await path.send("ada", training("two", *place), "k1", body_hash="other")) == "idempotency_key_reused"
    assert await path.send("ada", training("one", *place), "k1") == first


async def test_a_key_goes_before_any_other_reason_to_refuse(path: CommandPath, place: tuple[str, str]) -> None:
    await path.accepted("ada", training("one", *place), "k1")
    await path.accepted("ada", training("taken", *place), "k2")
    await commands_restart(path)

    assert code(await path.send("ada", training("taken", *place), "k1", body_hash="other")) == "idempotency_key_reused"


async def test_after_more_commits_than_a_chain_remembers_a_key_still_stands_for_its_request(
    path: CommandPath, place: tuple[str, str]
) -> None:
    first = await path.accepted("ada", training("busy", *place), "k1")
    suspended = await path.accepted("ada", SuspendWorkload(workload_id=first.id), "k2")
    await carry_out(path.store, "on", ResumeWorkload(workload_id=first.id))
    await much_happens_to(path, first.id)
    await commands_restart(path)
    before = await path.store.last_seq()

    assert await path.send("ada", training("busy", *place), "k1") == first
    assert await path.send("ada", SuspendWorkload(workload_id=first.id), "k2") == suspended
    for command in (training("busy", *place), training("other", *place)):
        assert code(await path.send("ada", command, "k1", body_hash="other")) == "idempotency_key_reused"
    assert code(await path.send("ada", ResumeWorkload(workload_id=first.id), "k2", body_hash="other")) == (
        "idempotency_key_reused"
    )
    assert await path.store.last_seq() == before


async def test_a_name_that_was_made_again_leaves_the_answers_to_its_first_life_as_they_were(
    path: CommandPath, place: tuple[str, str]
) -> None:
    made = await path.accepted("ada", training("name", *place), "make")
    deleted = await path.accepted("ada", DeleteWorkload(workload_id=made.id), "delete")
    again = await path.accepted("bob", training("name", *place), "bob's")
    assert made.id != again.id
    before = await path.store.last_seq()

    for _ in range(2):
        assert await path.send("ada", training("name", *place), "make") == made
        assert await path.send("ada", DeleteWorkload(workload_id=made.id), "delete") == deleted
        assert await path.store.last_seq() == before
        await commands_restart(path)
        await much_happens_to(path, again.id)
        before = await path.store.last_seq()


async def test_what_changed_nothing_the_first_time_changes_nothing_when_it_comes_again(
    path: CommandPath, place: tuple[str, str]
) -> None:
    made = await path.accepted("ada", training("idle", *place), "make")
    resume = ResumeWorkload(workload_id=made.id)
    first = await path.accepted("ada", resume, "resume")
    assert first == Accepted(seq=made.seq, changed=False)
    await path.accepted("ada", SuspendWorkload(workload_id=made.id), "suspend")
    before = await path.store.last_seq()

    assert await path.send("ada", resume, "resume") == first
    assert code(await path.send("ada", SuspendWorkload(workload_id=made.id), "resume", body_hash="other")) == (
        "idempotency_key_reused"
    )
    assert await path.store.last_seq() == before


async def test_a_refusal_leaves_its_key_free(path: CommandPath, place: tuple[str, str]) -> None:
    made = await path.accepted("ada", training("taken", *place), "k1")
    assert code(await path.send("ada", training("taken", *place), "k2")) == "name_taken"
    stale = SuspendWorkload(workload_id=made.id)
    assert code(await path.send("ada", stale, "k3", expected_version=made.seq + 7)) == "version_moved"
    await commands_restart(path)

    assert code(await path.send("ada", training("free", *place), "k2", body_hash="other")) == "admitted"
    assert code(await path.send("ada", ChangeWorkload(workload_id=made.id, priority_class="high"), "k3")) == "admitted"


async def test_a_name_that_was_lost_in_a_race_leaves_the_key_free_for_another(
    path: CommandPath, place: tuple[str, str]
) -> None:
    """A creation is tried on an empty chain first: the key is promised before the guard says that the name is taken."""
    await path.start("commands")
    replies = await asyncio.gather(*(path.send("ada", training("hot", *place), f"k{n}") for n in range(16)))
    assert sorted(map(code, replies)) == ["admitted", *["name_taken"] * 15]

    others = [
        path.send("ada", training(f"other-{n}", *place), f"k{n}", body_hash=f"other {n}")
        for n, reply in enumerate(replies)
        if isinstance(reply, Refused)
    ]
    assert {code(reply) for reply in await asyncio.gather(*others)} == {"admitted"}


async def test_one_key_for_many_names_at_once_makes_one_thing(path: CommandPath, place: tuple[str, str]) -> None:
    """Three replicas of commands that do not know of each other."""
    await path.start("commands")
    await path.start("commands")
    before = await path.store.last_seq()
    for key in range(5):
        requests = [
            path.send("ada", training(f"k{key}-{n}", *place), f"k{key}", body_hash=f"hash {n}") for n in range(12)
        ]
        replies = await asyncio.gather(*requests)
        assert sorted(map(code, replies)) == ["admitted", *["idempotency_key_reused"] * 11]
    assert await path.store.last_seq() == before + 5


async def test_one_request_many_times_at_once_is_carried_out_once_and_always_answered_the_same(
    path: CommandPath, place: tuple[str, str]
) -> None:
    await path.start("commands")
    await path.start("commands")
    command = training("once", *place)
    before = await path.store.last_seq()

    replies = await asyncio.gather(*(path.send("ada", command, "k1") for _ in range(24)))

    assert len(set(replies)) == 1
    assert isinstance(replies[0], Accepted)
    assert await path.store.last_seq() == before + 1


async def test_without_a_key_nothing_is_remembered(path: CommandPath, place: tuple[str, str]) -> None:
    """Every request is its own then, and costs no entry."""
    before = await path.remembered_keys()
    for number in range(3):
        reply = await path.send("ada", training(f"t{number}", *place), f"never again {number}", body_hash="")
        assert code(reply) == "admitted"
    assert await path.remembered_keys() == before


async def test_commands_may_be_killed_anywhere_and_no_key_has_two_effects_or_is_lost(
    path: CommandPath, place: tuple[str, str]
) -> None:
    """A client repeats each request until it has an answer; another client uses the same keys for other names."""

    async def submit(command: UserCommand, key: str, body_hash: str) -> CommandReply:
        while True:
            request: CommandRequest = path.request("ada", command, key, body_hash=body_hash)
            reply = await path.client.send(request, timeout_seconds=2)
            if not isinstance(reply, OutcomeUnknown):
                return reply

    async def both(number: int) -> tuple[CommandReply, CommandReply]:
        one, other = (training(f"{word}-{number}", *place) for word in ("one", "other"))
        first = asyncio.create_task(submit(one, f"k{number}", "one"))
        second = asyncio.create_task(submit(other, f"k{number}", "other"))
        return await first, await second

    before = await path.store.last_seq()
    submitting = [asyncio.create_task(both(number)) for number in range(KEYS)]
    for _ in range(5):
        await asyncio.sleep(0.02)
        await commands_restart(path)
    pairs = await asyncio.gather(*submitting)

    assert [sorted(map(code, pair)) for pair in pairs] == [["admitted", "idempotency_key_reused"]] * KEYS
    assert await path.store.last_seq() == before + KEYS


async def test_an_older_life_of_a_name_is_acted_on_as_any_other_workload(
    path: CommandPath, place: tuple[str, str]
) -> None:
    """Only that nothing is left to be done: roles, owner and version count as for the newest."""
    await path.accepted("root", SetOwnershipProtection(cluster_id=place[1], enabled=True), "protect")
    old = await path.accepted("ada", training("name", *place), "make")
    gone = await path.accepted("ada", DeleteWorkload(workload_id=old.id), "delete")
    new = await path.accepted("bob", training("name", *place), "again")
    delete, suspend = DeleteWorkload(workload_id=old.id), SuspendWorkload(workload_id=old.id)
    before = await path.store.last_seq()

    for number, (who, command, version, answer) in enumerate(
        [
            ("eve", delete, None, "not_permitted"),
            ("eve", suspend, None, "not_permitted"),
            ("bob", delete, None, "not_owner"),
            ("mallory", delete, None, "not_found"),
            ("ada", delete, gone.seq, "admitted"),
            ("ada", delete, new.seq, "version_moved"),
            ("ada", suspend, None, "workload_deleted"),
            ("root", delete, None, "admitted"),
        ]
    ):
        envelope: dict[str, Any] = {} if version is None else {"expected_version": version}
        reply = await path.send(who, cast("UserCommand", command), f"act {number}", **envelope)
        assert code(reply) == answer, (who, command, reply)
        if isinstance(reply, Accepted):
            assert reply == Accepted(seq=gone.seq, changed=False)
    never = msgspec.structs.replace(delete, workload_id=old.id[:-12] + "000000000000")
    assert code(await path.send("root", never, "never")) == "not_found"
    assert await path.store.last_seq() == before
    assert (await path.store.load(WORKLOAD, key_of_id(new.id) or "")).state.deleted_at is None
