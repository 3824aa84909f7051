"""`muster restore`: puts a backup back into an installation that is empty, of this machine or elsewhere."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.backup import PlaceArgument, run_or_explain
from muster.cli.command import Session, command
from muster.cli.directly import log_to_stderr
from muster.cli.exits import usage
from muster.cli.operator_settings import named_in_environment
from muster.cli.passphrase import KeyFileOption, passphrase
from muster.cli.progress import progress_bar
from muster.embedded.datadir import write_private

if TYPE_CHECKING:
    from services.runtime.backup.restore import Restored
    from services.runtime.process.settings import Settings


def add_restore(root: typer.Typer) -> None:
    @command(
        root,
        "restore",
        examples="""
        muster restore /srv/backup --key-file ~/backup.key --data-dir ~/restored
        muster up --data-dir ~/restored
        """,
    )
    def restore(
        session: Session,
        place: PlaceArgument,
        *,
        key_file: KeyFileOption = None,
        data_dir: Annotated[
            Path | None,
            typer.Option("--data-dir", metavar="DIR", help="New data folder, for `muster up`. [env MUSTER_DATA_DIR]"),
        ] = None,
    ) -> None:
        """Restore a backup into an installation that is empty.

        The log has the same sequences and the same hash as before. Tables are made again from it. An installation that
        is there already is refused, and stays as it is. A restore that was cut off goes on when it is run again.
        Nothing starts before it is done.
        """
        log_to_stderr(session)
        folder = data_dir or (Path(named) if (named := os.environ.get("MUSTER_DATA_DIR")) else None)
        servers = named_in_environment(tables=False) and data_dir is None
        if folder is None and not servers:
            raise usage("--data-dir is missing", todo="name a new folder, such as --data-dir ~/restored")
        _restore(session, place, key_file, None if servers else folder)


def _restore(session: Session, url: str, key_file: Path | None, folder: Path | None) -> None:
    from services.runtime.process.settings import Settings

    async def run() -> "Restored":
        if folder is None:
            return await _restore_into(session, url, key_file, Settings(), _put_keys)
        from muster.embedded.datadir import open_data_dir
        from muster.embedded.log_server import log_server

        with open_data_dir(folder) as data:

            def put(files: Mapping[str, bytes]) -> None:
                for name, content in files.items():
                    path = data.root / name
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    write_private(path, content.decode())

            async with log_server(data) as port:
                settings = Settings(nats_url=f"nats://127.0.0.1:{port}", nats_password_dir=data.nats_secrets)
                return await _restore_into(session, url, key_file, settings, put)

    restored = run_or_explain(run())
    session.out.one(
        {"sequence": restored.seq, "messages": restored.messages, "incarnation": restored.incarnation},
        lambda: session.out.pairs(
            [
                ("Restored", f"{restored.messages:,} messages of the log, up to {restored.seq:,}"),
                ("Incarnation", f"{restored.incarnation} (how often the log was restored)"),
            ]
        ),
    )
    start = f"muster up --data-dir {folder}" if folder is not None else "all services"
    session.out.talk(f"start it with {start}; then run `muster log verify`")


async def _restore_into(
    session: Session, url: str, key_file: Path | None, settings: "Settings", put: Callable[[Mapping[str, bytes]], None]
) -> "Restored":
    from datetime import UTC, datetime

    from services.runtime.backup.check import read_manifest
    from services.runtime.backup.place import Place
    from services.runtime.backup.restore import USER, restore
    from services.runtime.backup.seal import sealer_of
    from services.runtime.nats.connection import connect

    place = Place(url)
    manifest = read_manifest(place)
    sealer = sealer_of(manifest.sealing, passphrase(key_file, again=False))
    connection = await connect(settings, USER)
    try:
        with progress_bar(session.out, "restore") as report:
            return await restore(
                connection,
                place,
                manifest,
                sealer,
                replicas=settings.replicas,
                log_max_bytes=settings.log_max_bytes,
                put_files=put,
                now=datetime.now(UTC),
                progress=lambda _, done, total: report(done, total),
            )
    finally:
        await connection.close()


def _put_keys(files: Mapping[str, bytes]) -> None:
    """Where the environment names their places. What else there is belongs to a `muster up` alone."""
    from services.runtime.backup.files import KEYS

    for key, variable in KEYS.items():
        named = os.environ.get(variable)
        if named and key in files:
            write_private(Path(named), files[key].decode())
