"""A connection to an installation's NATS as a user of the operator's, whether `muster up` runs or is stopped."""

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING

from muster.cli.operator_settings import named_in_environment, operator_settings

if TYPE_CHECKING:
    from nats.aio.client import Client

    from muster.embedded.datadir import DataDir
    from services.runtime.process.settings import Settings


@contextlib.asynccontextmanager
async def operator_connection(folder: Path | None, user: str) -> "AsyncGenerator[Client]":
    """To the server that runs, or to one that is started for this on the folder of a `muster up` that is stopped."""
    from muster.embedded.datadir import DataDir, open_data_dir
    from muster.embedded.log_server import log_server
    from services.runtime.process.settings import Settings

    stopped = folder is not None and not named_in_environment(tables=False) and _is_stopped(DataDir(root=folder))
    if not stopped:
        async with _connected(operator_settings(folder, tables=False), user) as connection:
            yield connection
        return
    assert folder is not None
    with open_data_dir(folder) as data:
        async with log_server(data) as port:
            settings = Settings(nats_url=f"nats://127.0.0.1:{port}", nats_password_dir=data.nats_secrets)
            async with _connected(settings, user) as connection:
                yield connection


def _is_stopped(data: "DataDir") -> bool:
    return (data.root / "version").exists() and not data.is_in_use()


@contextlib.asynccontextmanager
async def _connected(settings: "Settings", user: str) -> "AsyncGenerator[Client]":
    from services.runtime.nats.connection import connect

    connection = await connect(settings, user)
    try:
        yield connection
    finally:
        await connection.close()
