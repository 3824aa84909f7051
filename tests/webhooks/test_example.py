"""examples/webhook/receiver.py takes what the service posts, prints each event once, and refuses what nobody signed."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from development.ports import free_port
from services.runtime.webhooks.protocol import AskKey
from tests.support.webhooks import Scene

pytestmark = pytest.mark.anyio

EXAMPLES = Path(__file__).parents[2] / "examples"


@asynccontextmanager
async def running(port: int, secret: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / "webhook" / "receiver.py"),
        str(port),
        env=os.environ | {"WEBHOOK_SECRET": secret},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize(
    ("program", "variable"), [("webhook/receiver.py", "WEBHOOK_SECRET"), ("notify/notify.py", "CHAT_URL")]
)
async def test_an_example_says_which_variable_is_not_set(program: str, variable: str) -> None:
    clients = Path(__file__).parents[2] / "clients" / "python"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / program),
        "x",
        env={name: value for name, value in os.environ.items() if name != variable} | {"PYTHONPATH": str(clients)},
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        _, said = await process.communicate()
    assert (process.returncode, said.decode().split(":")[0]) == (1, f"{variable} is not set")


async def test_the_receiver_prints_what_was_signed_once_and_refuses_the_rest(scene: Scene) -> None:
    await scene.start()
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    webhook = await scene.webhook(url)
    key = await scene.ask(AskKey(webhook_id=webhook.id, number=1))
    # What nobody took at first is posted again.
    await scene.tell(1)
    async with running(port, key.text) as process:
        assert process.stdout is not None
        await scene.tell(1, type_="WorkloadFailed")
        async with asyncio.timeout(60):
            lines = [(await process.stdout.readline()).decode().split() for _ in range(2)]
        assert sorted(lines) == [["muster.WorkloadFailed.v1", "train"], ["muster.WorkloadSubmitted.v1", "train"]]
        async with httpx.AsyncClient(trust_env=False) as client:
            forged = await client.post(url, content=b'{"id": "x"}', headers={"webhook-id": "x"})
        assert forged.status_code == 401
