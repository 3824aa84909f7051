"""Where the log and the read models are, for the verbs that work on them directly.

From the environment (MUSTER_NATS_URL, MUSTER_POSTGRES_URL and their passwords) where it says so, as in compose and on
a cluster; else from the data folder of a `muster up` on this machine.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from muster.cli.exits import ExitCode, Problem

if TYPE_CHECKING:
    from services.runtime.process.settings import Settings


def named_in_environment(*, tables: bool = True) -> bool:
    """Whether the environment says where the log is, and the tables, where they are needed."""
    return bool(os.environ.get("MUSTER_NATS_URL") and (os.environ.get("MUSTER_POSTGRES_URL") or not tables))


def operator_settings(data_dir: Path | None, *, tables: bool = True) -> "Settings":
    """Settings with the addresses and the credentials of the operator; without `tables`, Postgres need not be named.
    Raises Problem, also where nobody serves the folder.
    """
    from services.runtime.process.settings import Settings

    if named_in_environment(tables=tables):
        return Settings()
    if data_dir is None:
        raise Problem(
            "where the log is kept is not known",
            why=("neither --data-dir, MUSTER_DATA_DIR nor the context names a data folder",),
            todo="give --data-dir, or set MUSTER_NATS_URL, MUSTER_NATS_PASSWORD_FILE and MUSTER_POSTGRES_URL",
            code=ExitCode.USAGE,
        )
    from muster.embedded.datadir import DataDir
    from muster.embedded.providers import postgres

    data = DataDir(root=data_dir)
    ports = _ports(data_dir)
    if not data.is_in_use():
        # Whoever answers at its ports by now may be another one, such as a copy, that has the same passwords.
        raise Problem(
            f"no `muster up` runs on {data_dir}",
            why=("its servers are stopped; others may answer at the ports that it had",),
            todo=f"start it with `muster up --data-dir {data_dir}`, or give --data-dir of the one that runs",
            code=ExitCode.UNREACHABLE,
        )
    return Settings(
        nats_url=f"nats://127.0.0.1:{ports['nats']}",
        nats_password_dir=data.nats_secrets,
        postgres_url=postgres.url(data, ports["postgres"]),
        postgres_reader_url=postgres.reader_url(data, ports["postgres"]),
        jwks_file=data.jwks_file,
        data_dir=data_dir,
    )


def _ports(data_dir: Path) -> dict[str, int]:
    """The ports of the `muster up` that serves the folder; read, never chosen anew."""
    path = data_dir / "ports.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Problem(
            f"{data_dir} is not a data folder of `muster up`: {error}",
            todo="check --data-dir; `muster context show` tells which one is meant",
            code=ExitCode.NOT_FOUND,
        ) from error
