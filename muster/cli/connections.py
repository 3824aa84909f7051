"""`connections` and `open`: how what a workload serves is reached, and to open it in a browser."""

import json
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from muster.cli.command import Session, command
from muster.cli.exits import ExitCode, Problem, exit_code_of
from muster.cli.http import BadUrlError, Http, TransportError
from muster.cli.names import workload_id
from muster.cli.options import ProjectOption, WorkloadArgument
from muster.cli.output import Column
from muster.cli.values import Json, Row, rows_of, text_of

SIGN_IN: Final = "/.muster/sign-in"
"""Where the proxy makes the link that signs a browser in."""


def _access(row: Row) -> str:
    named = row.get("authorizedUsers") or row.get("authorizedGroups")
    if isinstance(named, list):
        return ", ".join(str(one) for one in named)
    return "everybody who is signed in" if row.get("authorizationType") else ""


CONNECTION_COLUMNS: Final = (
    Column("NAME", "name"),
    Column("TYPE", "connectionType"),
    Column("TOOL", "toolType"),
    Column("PORT", "container"),
    Column("READY", "ready"),
    Column("ADDRESS", "address", rest=True),
    Column("ACCESS", "authorizationType", show=_access, wide=True),
    Column("WHY", "message", wide=True),
)


def add_connections(app: typer.Typer, noun: str) -> None:
    """Declares both verbs."""
    _add_list(app, noun)
    _add_open(app, noun)


def _add_list(app: typer.Typer, noun: str) -> None:
    @command(
        app,
        "connections",
        examples=f"""
        muster {noun} connections notebook
        muster {noun} connections notebook -o wide
        """,
        columns=CONNECTION_COLUMNS,
    )
    def connections(session: Session, workload: WorkloadArgument, *, project: ProjectOption = None) -> None:
        """List how what a workload serves is reached: its exposed URLs and its ports."""
        session.out.rows(_connections(session, workload, project), CONNECTION_COLUMNS, empty="no URLs and no ports")


def _add_open(app: typer.Typer, noun: str) -> None:
    @command(
        app,
        "open",
        output=False,
        examples=f"""
        muster {noun} open notebook
        muster {noun} open notebook --name tensorboard
        muster {noun} open notebook --no-browser        # prints the link, which is good once, for 30 s
        """,
    )
    def open_(
        session: Session,
        workload: WorkloadArgument,
        *,
        project: ProjectOption = None,
        name: Annotated[
            str | None, typer.Option("--name", metavar="NAME", help="Of the connection. Default: the first URL.")
        ] = None,
        browser: Annotated[
            bool, typer.Option("--browser/--no-browser", help="Whether a browser is opened, or the link printed.")
        ] = True,
    ) -> None:
        """Open an exposed URL of a workload in a browser, signed in."""
        row = _chosen(_connections(session, workload, project), workload, name)
        link = sign_in_link(text_of(row, "address"), session.token)
        if browser:
            import webbrowser

            if webbrowser.open(link):
                session.out.talk(f"opened {text_of(row, 'address')}")
                return
        session.out.write(f"{link}\n")


def _connections(session: Session, workload: str, project: str | None) -> list[Row]:
    identifier = workload_id(session, workload, project)
    return rows_of(session.api.get(f"/workloads/{identifier}/connections"), "connections")


def _chosen(rows: list[Row], workload: str, name: str | None) -> Row:
    """Raises Problem where there is none that a browser can open now."""
    urls = [row for row in rows if row.get("connectionType") == "ExternalUrl"]
    found = next((row for row in urls if name in (None, text_of(row, "name"))), None)
    if found is None:
        known = ", ".join(text_of(row, "name") for row in urls)
        raise Problem(
            f"{workload} exposes no URL{f' of the name {name!r}' if name else ''}",
            code=ExitCode.NOT_FOUND,
            todo=f"it has {known}" if known else "submit it with --external-url container=PORT",
        )
    if found.get("ready") is not True:
        why = text_of(found, "message")
        raise Problem(f"{text_of(found, 'name')} does not answer now: {why}", code=ExitCode.UNREACHABLE)
    return found


def sign_in_link(url: str, token: str) -> str:
    """The link that signs a browser in at this address, once. Raises Problem."""
    parts = urlsplit(url)
    headers = {"Authorization": f"Bearer {token}", "Host": parts.netloc}
    # Browsers know that every name below localhost is this machine; the system's resolver may not.
    here = (parts.hostname or "").endswith(".localhost")
    base = f"{parts.scheme}://127.0.0.1:{parts.port}" if here and parts.port else url
    try:
        http = Http(base, headers)
        answer = http.request("POST", SIGN_IN, headers={}, body=b"")
    except (BadUrlError, TransportError) as error:
        raise Problem(f"the proxy at {url} does not answer: {error}", code=ExitCode.UNREACHABLE) from error
    try:
        said: Json = json.loads(answer.text)
    except ValueError:
        said = None
    row = said if isinstance(said, dict) else {}
    link = text_of(row, "url")
    if answer.is_error or not link:
        told = text_of(row, "message") or answer.reason
        raise Problem(f"the proxy at {url} refused: {told}", code=exit_code_of(answer.status))
    return link
