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

PROGRAM = Path(__file__).parents[2] / "examples" / "webhook" / "receiver.py"


@asynccontextmanager
async def running(port: int, secret: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(PROGRAM),
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
