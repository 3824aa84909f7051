"""Batches of creations on the whole path, from a client as the api has it to the log; also with `commands` killed."""

import asyncio
from collections.abc import Sequence

import pytest

from development.commands import CommandPath, code, training
from development.servers import NatsServer
from events.aggregate import WORKLOAD
from events.envelope import Accepted, BatchAnswered, BatchItem, BatchReply, BatchRequest, CommandReply, Refused, packed
from events.ids import derived_command_id, key_of_id, workload_key
from events.workload.commands import CreateWorkload
from services.runtime.nats.bus import GateAwayError
from tests.commands.test_path import audited

pytestmark = pytest.mark.anyio


def request(path: CommandPath, subject: str, creations: Sequence[CreateWorkload], key: str) -> BatchRequest:
    items = [BatchItem(index=index, command=one) for index, one in enumerate(creations)]
    return BatchRequest(
        batch_id=derived_command_id("test", subject, key),
        token=path.token(subject),
        packed=packed(items),
        body_hash="hash of the body",
    )


def replies(answer: BatchReply) -> list[CommandReply]:
    assert isinstance(answer, BatchAnswered), answer
    return [one.reply for one in answer.items]


async def test_a_batch_goes_through_the_gate_and_stands_in_the_log_with_its_author(
    path: CommandPath, place: tuple[str, str], fresh_log: NatsServer
) -> None:
    creations = [training(f"t{number}", *place) for number in range(20)]
    creations[3] = training("elsewhere", "7fe80602-0725-8123-9986-d4c018cc2ec6", place[1])

    found = replies(await path.client.send_batch(request(path, "ada", creations, "k")))

    assert [code(reply) for reply in found] == ["admitted"] * 3 + ["not_in_project"] + ["admitted"] * 16
    first = found[0]
    assert isinstance(first, Accepted)
    chain = await path.store.load(WORKLOAD, key_of_id(first.id) or "")
    assert (chain.version, chain.state.owner) == (first.seq, await path.actor("ada"))
    assert found == replies(await path.client.send_batch(request(path, "ada", creations, "k")))
    refused = [record for record in await audited(fresh_log) if record.outcome == "refused"]
    assert [(record.command, record.code) for record in refused] == [("CreateWorkload", "not_in_project")] * 2


async def test_who_may_not_submit_creates_nothing_and_a_token_that_is_none_is_refused_once(
    path: CommandPath, place: tuple[str, str]
) -> None:
    creations = [training(f"t{number}", *place) for number in range(3)]
    before = await path.store.last_seq()

    found = replies(await path.client.send_batch(request(path, "eve", creations, "k")))
    assert [code(reply) for reply in found] == ["not_permitted"] * 3
    stranger = request(path, "ada", creations, "k")
    answer = await path.client.send_batch(
        BatchRequest(batch_id=stranger.batch_id, token="none", packed=stranger.packed)
    )

    assert isinstance(answer, Refused)
    assert answer.refusal.code == "not_authenticated"
    assert await path.store.last_seq() == before


async def test_commands_may_be_killed_anywhere_and_each_batch_is_carried_out_once(
    path: CommandPath, place: tuple[str, str]
) -> None:
    """Two clients repeat their batches until they have an answer; half of the names are in both."""
    size, overlap = 60, 30
    batches = {
        "one": [training(f"t{number}", *place) for number in range(size)],
        "two": [training(f"t{number}", *place) for number in range(size - overlap, 2 * size - overlap)],
    }

    async def submit(key: str) -> list[CommandReply]:
        while True:
            try:
                answer = await path.client.send_batch(request(path, "ada", batches[key], key), timeout_seconds=2)
            except GateAwayError:
                continue
            if isinstance(answer, BatchAnswered) and all(code(one.reply) != "unknown" for one in answer.items):
                return replies(answer)
            await asyncio.sleep(0.01)

    submitting = [asyncio.create_task(submit(key)) for key in batches]
    for wait in (0.01, 0.02, 0.03):
        await asyncio.sleep(wait)
        await path.services[-1].kill()
        await path.start("commands")
    found = dict(zip(batches, await asyncio.gather(*submitting), strict=True))

    made = {reply.id for each in found.values() for reply in each if isinstance(reply, Accepted)}
    assert len(made) == 2 * size - overlap
    for key, creations in batches.items():
        for creation, reply in zip(creations, found[key], strict=True):
            chain = await path.store.load(WORKLOAD, workload_key(creation.project_id, creation.name))
            assert code(reply) in {"admitted", "name_taken"}
            assert (chain.state.workload_id == getattr(reply, "id", "")) == (code(reply) == "admitted")
        assert await submit(key) == found[key]
