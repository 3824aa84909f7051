"""Commands and NATS are killed under a load of commands: every accepted one is stored once."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from development.commands import CommandPath, command_path, furnish, training
from development.servers import EVERYTHING, NatsServer
from development.streams import recreate_streams
from events.envelope import Accepted, OutcomeUnknown
from services.runtime.nats.bus import GateAwayError

pytestmark = [pytest.mark.faults, pytest.mark.anyio, pytest.mark.one_in(2)]


@pytest.fixture
async def path(fresh_log: NatsServer, tmp_path: Path) -> AsyncIterator[CommandPath]:
    async with command_path(fresh_log, tmp_path, services=()) as made:
        yield made


@pytest.fixture
async def place(path: CommandPath) -> tuple[str, str]:
    return await furnish(path)


async def test_every_accepted_command_is_stored_once_though_commands_is_killed_again_and_again(
    path: CommandPath, place: tuple[str, str]
) -> None:
    """Repeated with the same key until there is an answer, as the api's 503 asks for: each time after a longer wait,
    since all of it shares one core here.
    """

    async def submit(number: int) -> Accepted:
        command = training(f"k{number}", *place)
        for patience in itertools.chain((0.5, 1.0, 2.0), itertools.repeat(5.0)):
            request = path.request("ada", command, f"key {number}")
            reply = await path.client.send(request, timeout_seconds=patience)
            if isinstance(reply, Accepted):
                return reply
            assert isinstance(reply, OutcomeUnknown), reply
            await asyncio.sleep(patience)
        raise AssertionError("it is asked for ever")

    before = await path.store.last_seq()
    submitting = [asyncio.create_task(submit(number)) for number in range(200)]
    for _ in range(5):
        await asyncio.sleep(0.02)
        await path.services[-1].kill()
        await path.start("commands")
    replies = await asyncio.gather(*submitting)

    assert len({reply.id for reply in replies}) == 200
    assert sorted(reply.seq for reply in replies) == list(range(before + 1, before + 201))
    assert await path.store.last_seq() == before + 200


async def test_every_accepted_command_is_stored_once_though_the_server_is_killed_again_and_again(
    tmp_path: Path,
) -> None:
    """kill -9 of NATS under load: gate and commands go on by themselves, and no answer was a lie."""
    server = NatsServer(tmp_path / "nats")
    server.start()
    await recreate_streams(server.settings(EVERYTHING))
    try:
        async with command_path(server, tmp_path, services=()) as path:
            place = await furnish(path)
            before = await path.store.last_seq()

            async def submit(number: int) -> Accepted:
                command = training(f"n{number}", *place)
                while True:
                    try:
                        reply = await path.client.send(path.request("ada", command, f"key {number}"), timeout_seconds=2)
                    except GateAwayError:
                        await asyncio.sleep(0.1)
                        continue
                    if isinstance(reply, Accepted):
                        return reply
                    assert isinstance(reply, OutcomeUnknown), reply

            async def submit_some(first: int) -> list[Accepted]:
                return [await submit(first * 100 + number) for number in range(40)]

            submitting = [asyncio.create_task(submit_some(first)) for first in range(8)]
            for _ in range(3):
                await asyncio.sleep(0.1)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            replies = [reply for some in await asyncio.gather(*submitting) for reply in some]

            assert len({reply.id for reply in replies}) == 320
            assert sorted(reply.seq for reply in replies) == list(range(before + 1, before + 321))
    finally:
        server.stop()
