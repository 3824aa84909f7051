"""`muster replay`: plays the log into a sandbox, which every command that reads can look at."""

import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, override

import typer

from muster.cli.command import MusterGroup, Session, command
from muster.cli.contexts import Context, Contexts, config_file, read_contexts, save_contexts, with_context
from muster.cli.directly import DataDirOption, directly, settings_of
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.keyrings import with_token
from muster.cli.nouns import NOUNS
from muster.cli.options import moment_option
from muster.cli.output import Column
from muster.cli.progress import Progress, progress_bar
from muster.cli.values import Row, format_bytes, format_utc, number_of

if TYPE_CHECKING:
    import asyncio

    from typer._click.core import Context as ClickContext

    from services.projector.play import Player, Wanted
    from services.projector.sandboxes import Sandbox
    from services.runtime.identity.actors import Actors
    from services.runtime.log.jetstream import JetStreamEventStore

    type Work = Callable[[JetStreamEventStore, Actors, str], Awaitable[None]]

START: Final = "start"
COLUMNS: Final = (
    Column("NAME", "name"),
    Column("STATE", "state"),
    Column("FROM", "from"),
    Column("TO", "to"),
    Column("SEQUENCE", "sequence"),
    Column("TIME", "time"),
    Column("SPEED", "speed"),
    Column("SIZE", "bytes", show=lambda row: format_bytes(number_of(row, "bytes"))),
    Column("URL", "url"),
)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the sandbox.")]
IntoOption = Annotated[
    str,
    typer.Option(
        "--into",
        metavar="NAME",
        help="Name of the sandbox, and of the context that leads to it. One that is there already is played on.",
    ),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="MOMENT",
        help="Begin as things stood then: a time, a time ago (2h, 7d) or a sequence of the log. "
        "Default: the beginning.",
    ),
]
ToOption = Annotated[
    str | None, typer.Option("--to", metavar="MOMENT", help="Play up to this moment. Default: the log's end now.")
]
SpeedOption = Annotated[
    str | None,
    typer.Option(
        "--speed",
        metavar="SPEED",
        help="original: as fast as things happened. 10x: ten times as fast. max: as fast as possible. Default: max.",
    ),
]
HostOption = Annotated[str, typer.Option("--host", help="Address on which the sandbox's API listens.")]
PortOption = Annotated[
    int, typer.Option("--port", min=0, max=65535, help="Port of the sandbox's API. Default: any that is free.")
]
ExitOption = Annotated[
    bool,
    typer.Option("--exit", help="End as soon as everything is played. The sandbox stays; without --exit it is served."),
]


class ReplayGroup(MusterGroup):
    """`muster replay --into NAME` is `muster replay start --into NAME`."""

    @override
    def parse_args(self, ctx: "ClickContext", args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in {"-h", "--help"}:
            args = [START, *args]
        return super().parse_args(ctx, args)


def add_replay(root: typer.Typer) -> None:
    app = typer.Typer(cls=ReplayGroup, help=NOUNS["replay"].summary, no_args_is_help=True, rich_markup_mode=None)

    @command(
        app,
        START,
        output=False,
        examples="""
        muster replay --from 2h --into monday
        muster replay --from 4711 --to 4811 --speed 10x --into monday
        muster --context monday workload list
        muster replay rm monday
        """,
    )
    def start(
        session: Session,
        *,
        into: IntoOption,
        from_: FromOption = None,
        to: ToOption = None,
        speed: SpeedOption = None,
        host: HostOption = "127.0.0.1",
        port: PortOption = 0,
        exit_: ExitOption = False,
        data_dir: DataDirOption = None,
    ) -> int:
        """Play the log into a sandbox, and serve it until Ctrl-C. The word `start` may be left out."""
        from services.projector.play import Wanted

        wanted = Wanted(
            name=into,
            from_=None if from_ is None else moment_option("--from", from_),
            to=None if to is None else moment_option("--to", to),
            speed=speed,
        )
        _refuse_foreign_context(session.contexts, into)
        return _start(session, data_dir, wanted, (host, port), ends=exit_)

    @command(app, "list", examples="muster replay list", columns=COLUMNS)
    def list_(session: Session, *, data_dir: DataDirOption = None) -> None:
        """List the sandboxes: what each shows, whether it is served, and where."""
        rows = [_row(one) for one in _sandboxes(session, data_dir)]
        session.out.rows(rows, COLUMNS, empty="no sandboxes; `muster replay --into NAME` makes one")

    @command(app, "status", examples="muster replay status monday", columns=COLUMNS)
    def status(session: Session, name: NameArgument, *, data_dir: DataDirOption = None) -> None:
        """Show one sandbox: how far it is played, and where it is served."""
        row = next((_row(one) for one in _sandboxes(session, data_dir) if one.name == name), None)
        if row is None:
            raise _no_sandbox(name)
        pairs = [(column.header.capitalize(), session.out.cell(row, column)) for column in COLUMNS]
        session.out.one(row, lambda: session.out.pairs(pairs), columns=COLUMNS)

    @command(app, "rm", output=False, examples="muster replay rm monday")
    def remove(session: Session, name: NameArgument, *, data_dir: DataDirOption = None) -> None:
        """Remove a sandbox: end what plays and serves it, drop its tables, and remove its context."""
        _remove(session, data_dir, name)

    root.add_typer(app, name="replay")


def _start(session: Session, data_dir: Path | None, wanted: "Wanted", address: tuple[str, int], *, ends: bool) -> int:
    import asyncio

    from services.api.sandbox import listening, serving
    from services.projector.play import player, until_removed

    settings = settings_of(session, data_dir)
    code = ExitCode.OK

    async def work(store: "JetStreamEventStore", actors: "Actors", postgres_url: str) -> None:
        nonlocal code
        stop = _on_signals()
        told = _Progress()
        async with player(store, postgres_url, wanted, told) as playing:
            with told.shown(session, "to the beginning"):
                await playing.prepare(stop)
            await playing.say(url)
            async with serving(settings, store, actors, playing.played, name=wanted.name, schema=playing.schema, at=at):
                _write_context(session, wanted.name, url)
                session.out.talk(f"{wanted.name} is served at {url}: muster --context {wanted.name} workload list")
                removed = asyncio.create_task(until_removed(playing, stop))
                try:
                    with told.shown(session, "replay"):
                        done = await playing.play(stop)
                finally:
                    if removed.done():
                        await removed  # why it played no further
                _say_where(session, playing, done=done, ends=ends)
                if ends:
                    stop.set()
                await removed
        code = ExitCode.OK if done else ExitCode.INTERRUPTED

    host, port = address
    try:
        # First of all: where it cannot be served, nothing is made.
        at = listening(host, port)
    except OSError as error:
        raise usage(f"--host and --port: the sandbox's API cannot listen at {host} port {port}: {error}") from error
    with at:
        url = f"http://{f'[{host}]' if ':' in host else host}:{at.getsockname()[1]}"
        _on_sandbox(session, data_dir, work)
    return code


class _Progress:
    """What a bar is told that is made later."""

    def __init__(self) -> None:
        self._report: Progress = _untold

    def __call__(self, done: int, total: int) -> None:
        self._report(done, total)

    @contextlib.contextmanager
    def shown(self, session: Session, what: str) -> Generator[None]:
        with progress_bar(session.out, what) as report:
            self._report = report
            try:
                yield
            finally:
                self._report = _untold


def _untold(_: int, __: int) -> None:
    """Nobody looks."""


def _on_signals() -> "asyncio.Event":
    """Set by Ctrl-C, and where the process is asked to end."""
    import asyncio

    stop = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    return stop


def _say_where(session: Session, playing: "Player", *, done: bool, ends: bool) -> None:
    at = playing.played.at
    where = f"{playing.played.position:,}" + (f" ({format_utc(at)})" if at else "")
    if not done:
        session.out.talk(f"stopped at {where}; `muster replay --into {playing.name}` goes on from there")
    elif ends:
        session.out.talk(f"played up to {where}; `muster replay --into {playing.name}` serves it")
    else:
        session.out.talk(f"played up to {where}; it is served until Ctrl-C")


def _sandboxes(session: Session, data_dir: Path | None) -> "list[Sandbox]":
    from services.projector.sandboxes import listed

    found: list[Sandbox] = []

    async def work(_: "JetStreamEventStore", __: "Actors", postgres_url: str) -> None:
        found.extend(await listed(postgres_url))

    _on_sandbox(session, data_dir, work)
    return found


def _remove(session: Session, data_dir: Path | None, name: str) -> None:
    from services.projector.sandboxes import remove

    async def work(_: "JetStreamEventStore", __: "Actors", postgres_url: str) -> None:
        await remove(postgres_url, name)

    _on_sandbox(session, data_dir, work)
    contexts = session.contexts
    if contexts.contexts.get(name, Context()).sandbox == name:
        kept = {key: context for key, context in contexts.contexts.items() if key != name}
        current = contexts.current if contexts.current != name else next(iter(kept), "")
        save_contexts(config_file(os.environ), Contexts(current=current, contexts=kept))
    session.out.talk(f"the sandbox {name} is gone, with its tables and its context")


def _row(one: "Sandbox") -> Row:
    replay = one.note.replay
    assert replay is not None, "only sandboxes are listed"
    state = "whole" if one.note.ready_at is not None else "partial"
    return {
        "name": one.name,
        "state": "playing" if one.playing and state == "partial" else "served" if one.playing else state,
        "from": replay.from_given,
        "to": replay.to_given,
        "sequence": one.seq,
        "time": None if one.at is None else format_utc(one.at),
        "speed": replay.speed,
        "bytes": one.bytes,
        "url": replay.url if one.playing else None,
    }


def _refuse_foreign_context(contexts: Contexts, name: str) -> None:
    """Raises Problem where the name is that of a context that leads elsewhere."""
    known = contexts.contexts.get(name)
    if known is not None and known.sandbox != name:
        raise Problem(
            f"there is a context {name!r} already, which leads to {known.url}",
            todo="give the sandbox another name",
            code=ExitCode.CONFLICT,
        )


def _write_context(session: Session, name: str, url: str) -> None:
    """Who looks there is who looks here. It names no data folder: what an operator does is never meant for it."""
    target = session.target
    context = Context(url=url, project=target.project, cluster=target.cluster, sandbox=name)
    if target.in_keyring:
        context, _ = with_token(name, context, session.token)
    else:
        context = replace(context, token=target.token)
    path = config_file(os.environ)
    try:
        save_contexts(path, with_context(read_contexts(path), name, context, use=False))
    except OSError as error:
        # As in a container that only serves it: whoever looks there gives the address.
        session.out.talk(f"no context was written ({error}); give --url {url}")


def _no_sandbox(name: str) -> Problem:
    return Problem(
        f"there is no sandbox {name!r}", todo="`muster replay list` shows what there is", code=ExitCode.NOT_FOUND
    )


def _on_sandbox(session: Session, data_dir: Path | None, work: "Work") -> None:
    """Raises Problem."""
    from services.projector.arrivals import MomentError, StalledError
    from services.projector.play import RemovedError
    from services.projector.sandboxes import BadReplayError, NoSandboxError, SandboxError
    from services.runtime.identity.jwks import JwksError

    try:
        directly(session, data_dir, work)
    except MomentError as error:
        raise usage(f"--from or --to: {error}") from error
    except NoSandboxError as error:
        raise Problem(str(error), todo="`muster replay list` shows what there is", code=ExitCode.NOT_FOUND) from error
    except BadReplayError as error:
        raise usage(str(error)) from error
    except SandboxError as error:
        raise Problem(str(error), code=ExitCode.CONFLICT) from error
    except (RemovedError, StalledError, JwksError) as error:
        raise Problem(str(error), code=ExitCode.FAILURE) from error
