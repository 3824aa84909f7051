"""`muster context`: which Muster the commands talk to."""

import os
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Final

import typer

from events.nearest import did_you_mean
from muster.cli.command import Session, command, group
from muster.cli.complete import context_names
from muster.cli.contexts import CONTEXT_NAME, IN_KEYRING, Context, Contexts, config_file, save_contexts, with_context
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.login import forgotten, keep
from muster.cli.output import Column
from muster.cli.values import Row

CONTEXT_COLUMNS: Final = (
    Column("CURRENT", "current"),
    Column("NAME", "name"),
    Column("URL", "url"),
    Column("PROJECT", "project"),
    Column("CLUSTER", "cluster"),
    Column("TOKEN", "token"),
    Column("CA-FILE", "caFile", wide=True),
    Column("DATA-DIR", "dataDir", wide=True),
)


def add_context(root: typer.Typer) -> None:
    app = group("context")
    _add_reads(app)
    _add_use(app)
    _add_changes(app)
    root.add_typer(app, name="context")


def set_default(session: Session, **defaults: str) -> None:
    """Keeps a default (project, cluster) in the context in use. Raises Problem where there is none."""
    name = session.target.name
    if not name:
        raise usage(
            "there is no context that could store a default", todo="make one: muster context add NAME --url URL"
        )
    _save(with_context(session.contexts, name, replace(session.context, **defaults), use=False))
    what = ", ".join(f"{key} {value}" for key, value in defaults.items())
    session.out.talk(f"context {name}: default {what}")


def _add_reads(app: typer.Typer) -> None:
    @command(app, "list", examples="muster context list")
    def list_(session: Session) -> None:
        """List contexts. Tokens are never shown."""
        rows = [_row(session, name, context) for name, context in session.contexts.contexts.items()]
        session.out.rows(
            rows, CONTEXT_COLUMNS, empty="no contexts; `muster up` makes one, or muster context add NAME --url URL"
        )

    @command(app, "show", examples="muster context show\nmuster context show -o json")
    def show(session: Session) -> None:
        """Show the settings in effect, from flags, environment and file."""
        target = session.target
        row: Row = {
            "name": target.name or None,
            "url": target.url or None,
            "token": IN_KEYRING if target.in_keyring else "set" if target.token else None,
            "project": target.project or None,
            "cluster": target.cluster or None,
            "caFile": target.ca_file or None,
            "dataDir": target.data_dir or None,
            "file": str(config_file(os.environ)),
        }
        session.out.one(row, lambda: session.out.pairs([(key, str(value or "-")) for key, value in row.items()]))


def _add_use(app: typer.Typer) -> None:
    @command(app, "use", output=False, examples="muster context use staging")
    def use(
        session: Session,
        name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.", autocompletion=context_names)],
    ) -> None:
        """Make a context the current one."""
        _known(session.contexts, name)
        _save(replace(session.contexts, current=name))
        session.out.talk(f"context {name} is in use")


def _add_changes(app: typer.Typer) -> None:
    @command(
        app,
        "add",
        output=False,
        examples="""
        muster context add staging --url https://muster.example.org --token-stdin --use < token
        muster context add lab --url https://muster.lab:8443 --ca-file ca.crt
        muster context add local --url http://127.0.0.1:8080 --data-dir ~/.local/share/muster --default-project vision
        """,
    )
    def add(
        session: Session,
        name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")],
        *,
        token_stdin: Annotated[bool, typer.Option("--token-stdin", help="Read the token from standard input.")] = False,
        data_dir: Annotated[
            Path | None,
            typer.Option("--data-dir", metavar="DIR", help="Data folder of `muster up`, if it runs on this machine."),
        ] = None,
        default_project: Annotated[
            str | None, typer.Option("--default-project", metavar="PROJECT", help="Project to use when none is given.")
        ] = None,
        default_cluster: Annotated[
            str | None, typer.Option("--default-cluster", metavar="CLUSTER", help="Cluster to use when none is given.")
        ] = None,
        use_it: Annotated[bool, typer.Option("--use", help="Make it the current context.")] = False,
    ) -> None:
        """Add a context with --url, --token and --ca-file, or change one. What you do not give stays as it is."""
        known = session.contexts.contexts.get(name, Context())
        given_token = _token_of_stdin() if token_stdin else session.connection.token
        context = Context(
            url=session.connection.url or known.url,
            token="" if given_token else known.token,
            token_in="" if given_token else known.token_in,
            ca_file=_absolute(session.connection.ca_file) if session.connection.ca_file else known.ca_file,
            data_dir=_absolute(data_dir) if data_dir else known.data_dir,
            project=default_project or known.project,
            cluster=default_cluster or known.cluster,
        )
        if not context.url:
            raise usage("a context needs a URL", todo=f"muster context add {quote(name)} --url http://127.0.0.1:8080")
        if not context.url.startswith(("http://", "https://")):
            raise usage(f"--url: {context.url!r} is not a URL", todo="write it as http://HOST:PORT or https://HOST")
        if session.connection.ca_file:
            _check_ca_file(context)
        if CONTEXT_NAME.match(name) is None:
            raise usage(
                f"{name!r} is not a valid name for a context", todo="use letters, digits, '-', '_' and '.', at most 63"
            )
        _keep(session, name, context, given_token, use=use_it)
        session.out.talk(f"context {name} kept in {config_file(os.environ)}")

    @command(app, "remove", output=False, examples="muster context remove staging")
    def remove(
        session: Session,
        name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.", autocompletion=context_names)],
    ) -> None:
        """Remove a context and its token."""
        _known(session.contexts, name)
        forgotten(name, session.contexts.contexts[name])
        kept = {key: context for key, context in session.contexts.contexts.items() if key != name}
        current = session.contexts.current if session.contexts.current != name else next(iter(kept), "")
        _save(Contexts(current=current, contexts=kept))
        session.out.talk(f"context {name} removed")


def _keep(session: Session, name: str, context: Context, token: str | None, *, use: bool) -> None:
    """Writes the context, with this token where one is given. Raises Problem."""
    known = session.contexts.contexts.get(name, Context())
    if known.token_in and known.url != context.url:
        # In the keyring it is under the URL that it is for.
        forgotten(name, known)
        context = replace(context, token_in="")
        if not token:
            session.out.talk(f"the token was for {known.url}, and is forgotten; `muster login` keeps another")
    if token:
        keep(session, name, context, token, use=use)
    else:
        _save(with_context(session.contexts, name, context, use=use))


def _row(session: Session, name: str, context: Context) -> Row:
    return {
        "current": "*" if name == session.target.name else "",
        "name": name,
        "url": context.url,
        "project": context.project,
        "cluster": context.cluster,
        "token": context.token_in or ("set" if context.token else ""),
        "caFile": context.ca_file,
        "dataDir": context.data_dir,
    }


def _absolute(path: str | Path) -> str:
    """Also where a command is typed in another folder."""
    return str(Path(path).expanduser().absolute())


def _check_ca_file(context: Context) -> None:
    """Raises Problem (usage) where it would protect nothing."""
    from muster.cli.http import TlsError, trusted

    if context.url.startswith("http://"):
        raise usage(
            f"--ca-file is for https, and the URL of the context is {context.url}",
            todo=f"--url https://{context.url.removeprefix('http://')}, or leave --ca-file out",
        )
    try:
        trusted(context.ca_file)
    except TlsError as error:
        raise usage(str(error), todo=error.todo) from error


def _known(contexts: Contexts, name: str) -> None:
    if name not in contexts.contexts:
        names = list(contexts.contexts)
        todo = did_you_mean(name, names) or f"contexts: {', '.join(names) or 'none'}"
        raise Problem(f"there is no context {name!r}", todo=todo, code=ExitCode.NOT_FOUND)


def _token_of_stdin() -> str:
    import sys

    return sys.stdin.readline().strip()


def _save(contexts: Contexts) -> None:
    path = config_file(os.environ)
    try:
        save_contexts(path, contexts)
    except OSError as error:
        raise Problem(f"{path} cannot be written: {error}", code=ExitCode.FAILURE) from error
