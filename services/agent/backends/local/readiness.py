"""Asks pods of this machine whether they are ready: HTTP requests over loopback, never through a proxy and never where
an answer leads. Of an answer only its first line is read.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Final

from events.workload.readiness import Readiness
from services.agent.backends.local.environment import LOOPBACK

MOST_LINE_BYTES: Final = 4096
"""Of the line with the status."""
MOST_TIMEOUT_SECONDS: Final = 60.0
OK: Final = range(200, 400)
"""As Kubernetes has it: a redirect is an answer, too."""


async def watch_readiness(probe: Readiness, say: Callable[[bool, str], None]) -> None:
    """For ever. `say` gets (whether it is ready, why not) whenever that has changed; at first it is not."""
    ready, streak = False, 0
    await asyncio.sleep(probe.delay_seconds)
    while True:
        problem = await ask(probe)
        if ready is not bool(problem):
            streak = 0
        else:
            streak += 1
            if streak >= (probe.failures if ready else probe.successes):
                ready, streak = not ready, 0
                say(ready, problem)
        await asyncio.sleep(probe.period_seconds)


async def ask(probe: Readiness) -> str:
    """Why the pod is not ready; empty where it is."""
    try:
        async with asyncio.timeout(min(probe.timeout_seconds, MOST_TIMEOUT_SECONDS)):
            status = await _status(probe)
    except TimeoutError:
        return f"no answer within {probe.timeout_seconds} s on port {probe.port}"
    except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        return f"port {probe.port}: {error or type(error).__name__}"
    return "" if status in OK else f"port {probe.port} answered {status}"


async def _status(probe: Readiness) -> int:
    tls = ssl.create_default_context() if probe.https else None
    if tls is not None:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(LOOPBACK, probe.port, ssl=tls, limit=MOST_LINE_BYTES)
    try:
        request = (
            f"GET {probe.path} HTTP/1.1\r\nHost: {LOOPBACK}:{probe.port}\r\nUser-Agent: muster\r\nConnection: close"
        )
        writer.write(f"{request}\r\nAccept: */*\r\n\r\n".encode())
        await writer.drain()
        version, status, *_ = (await reader.readuntil(b"\n")).decode("latin-1").split(None, 2)
        if not version.startswith("HTTP/"):
            raise ValueError("what answers does not speak HTTP")
        return int(status)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
