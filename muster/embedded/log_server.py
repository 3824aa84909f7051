"""The NATS server of a data folder whose `muster up` is stopped, and nothing else: for backups and restores.

Whoever runs it holds the folder (`open_data_dir`), so that no `muster up` begins meanwhile.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

from muster.embedded.datadir import DataDir
from muster.embedded.environment import service_environment
from muster.embedded.processes import PYTHON, Child, Family, Spec, say
from muster.embedded.providers import nats

STOP_SECONDS: Final = 10.0
"""A server that is killed after that loses nothing: it recovers from its own log."""


@contextlib.asynccontextmanager
async def log_server(data: DataDir) -> AsyncGenerator[int]:
    """Its port. Raises StartError where it does not start."""
    ports = data.choose_ports()
    family = Family(data.logs)
    prepare = ("-m", "muster.embedded.prepare", str(data.root), str(ports.nats))
    await family.run_once(Spec(name="prepare", argv=[*PYTHON, *prepare], env=service_environment(data, ports)))
    child = Child(nats.spec(data, ports.nats), family, say)
    child.start()
    try:
        await child.wait_ready(asyncio.Event())
        yield ports.nats
    finally:
        await child.stop(STOP_SECONDS)
