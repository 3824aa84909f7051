"""`muster login` and `muster logout`: keep a token with the context in use, or forget it."""

import os
import sys
from contextlib import closing
from dataclasses import replace
from getpass import getpass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.command import Session, command
from muster.cli.contexts import Context, config_file, save_contexts, with_context
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.values import text_of

if TYPE_CHECKING:
    from collections.abc import Callable

_ADD: Final = "make one: muster context add NAME --url URL"


def add_login(root: typer.Typer) -> None:
    @command(
        root,
        "login",
        output=False,
        examples="""
        muster login
        muster login --context staging --token-stdin < token
        """,
    )
    def login(
        session: Session,
        *,
        token_stdin: Annotated[bool, typer.Option("--token-stdin", help="Read the token from standard input.")] = False,
    ) -> None:
        """Keep a token with the context in use. It is asked for, and tried before it is kept.

        It goes into the keyring of the system, or where there is none into the file of contexts.
        """
        name, context = _in_use(session)
        token = session.connection.token or _given(stdin=token_stdin)
        if not token:
            raise usage("the token is empty", todo="paste it, or pipe it in with --token-stdin")
        from muster.cli.client import Api

        with closing(Api(context.url, token, ca_file=context.ca_file, talk=session.out.talk)) as api:
            subject = text_of(api.get("/me"), "subject")
        keep(session, name, context, token)
        session.out.talk(f"logged in to {name} as {subject}")
        if os.environ.get("MUSTER_TOKEN"):
            session.out.talk("MUSTER_TOKEN is set, and goes before the token of the context in use")


def add_logout(root: typer.Typer) -> None:
    @command(root, "logout", output=False, examples="muster logout\nmuster logout --context staging")
    def logout(session: Session) -> None:
        """Forget the token of the context in use. The token itself stays valid until it expires."""
        name, context = _in_use(session)
        if not (context.token or context.token_in):
            session.out.talk(f"context {name} has no token")
            return
        forgotten(name, context)
        _save(session, name, replace(context, token="", token_in=""))
        session.out.talk(f"the token of context {name} is forgotten")


def keep(session: Session, name: str, context: Context, token: str, *, use: bool = False) -> None:
    """Writes the context, with its token in the keyring or in the file, and says where that is. Raises Problem."""
    from muster.cli.keyrings import with_token

    context, why_not = with_token(name, context, token)
    _save(session, name, context, use=use)
    if why_not:
        session.out.talk(f"the token is in {config_file(os.environ)}, which you alone can read: {why_not}")
    else:
        session.out.talk("the token is in the keyring of this system")


def forgotten(name: str, context: Context) -> None:
    """Takes the context's token out of the keyring, where it is there. Raises Problem."""
    from muster.cli.keyrings import KeyringError, forget

    if not context.token_in:
        return
    try:
        forget(name, context.url)
    except KeyringError as error:
        raise Problem(
            f"the token of context {name} is in the keyring, and stays there: {error}",
            todo="unlock the keyring and repeat this",
            code=ExitCode.FAILURE,
        ) from error


def _in_use(session: Session) -> tuple[str, Context]:
    """Name and entry of the context in use. Raises Problem where there is none."""
    if not session.target.name:
        raise usage("there is no context in use that could have a token", todo=_ADD)
    return session.target.name, session.context


def _given(*, stdin: bool) -> str:
    """Raises Problem where nobody is there to be asked."""
    if stdin:
        return sys.stdin.readline().strip()
    if not sys.stdin.isatty():
        raise usage("there is no terminal to ask for the token on", todo="pipe it in with --token-stdin")
    ask: Callable[[str], str] = getpass
    return ask("Token: ").strip()


def _save(session: Session, name: str, context: Context, *, use: bool = False) -> None:
    path = config_file(os.environ)
    try:
        save_contexts(path, with_context(session.contexts, name, context, use=use))
    except OSError as error:
        raise Problem(f"{path} cannot be written: {error}", code=ExitCode.FAILURE) from error
