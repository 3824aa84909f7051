"""Tables that another version of Muster made: at a start of `muster up` they are made again from the log.

Elsewhere an operator runs `muster projections rebuild` after an upgrade. Here nobody could: the services that read the
tables do not start before, and where they do not, `muster up` ends. `control` looks, since it has the libraries anyway,
and leaves a mark; `python -m muster.embedded.tables` does the work and takes the mark away, so that a start that is
killed in between is followed by one that does it.
"""

import sys
from pathlib import Path
from typing import Final

import services.runtime.process.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from muster.embedded.datadir import DataDir

LOOK_SECONDS: Final = 30.0
OPERATOR: Final = "operator"
"""The NATS user that reads the log and writes nothing."""


async def look(postgres_url: str, data: DataDir) -> None:
    """Leave the mark where the tables in use have another shape than this version writes. After `services.setup`."""
    from projections.postgres import connect
    from projections.tables import SHAPE

    connection = await connect(postgres_url, timeout_seconds=LOOK_SECONDS, command_timeout_seconds=LOOK_SECONDS)
    try:
        shape = await connection.fetchval("SELECT shape FROM muster.current_projection")
    finally:
        await connection.close()
    if shape == SHAPE:
        data.other_tables.unlink(missing_ok=True)
    else:
        data.other_tables.touch()


async def make_again(data: DataDir) -> None:
    """Rebuild every table from the log. Raises what `rebuild` raises."""
    from services.projector.rebuild import rebuild
    from services.runtime.log.jetstream import JetStreamEventStore
    from services.runtime.nats.connection import connect
    from services.runtime.process.settings import Settings

    settings = Settings()
    connection = await connect(settings, OPERATOR)
    try:
        done = await rebuild(JetStreamEventStore(connection), settings.database_url, lambda _reached, _aimed: None)
    finally:
        await connection.close()
    data.other_tables.unlink(missing_ok=True)
    sys.stderr.write(f"{done.events} events in {done.seconds:.1f} s; {done.schema} is in use\n")


if __name__ == "__main__":
    from services.runtime.process.host import run_loop

    run_loop(make_again(DataDir(root=Path(sys.argv[1]))))
