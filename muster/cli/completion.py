"""Names for the shell's completion, asked of the API within a moment, and the scripts that install it.

A completion never fails and never waits: with no answer in time there is nothing to offer. The standard library's
HTTP client does here, in one short attempt.
"""

import json
import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.command import Session, command
from muster.cli.contexts import ContextsError, config_file, read_contexts, resolve
from muster.cli.exits import usage
from muster.cli.nouns import COMPLETE_VARIABLE
from muster.cli.values import Json, Row, rows_of, text_of, texts_of

if TYPE_CHECKING:
    from http.client import HTTPConnection

ANSWER_SECONDS: Final = 1.0
"""A person who pressed Tab is waiting."""
_OFFERED: Final = 100
"""More than a screen of names helps nobody."""
SHELLS: Final = ("bash", "zsh", "fish")


def workload_names(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Living workloads' names, each with its phase."""
    from urllib.parse import quote

    parameters = [f"limit={_OFFERED}", "sortBy=createdAt", "sortOrder=desc"]
    if incomplete:
        parameters.append("filterBy=" + quote(f"name=^{incomplete}"))
    project = ctx.params.get("project") or _default_project()
    if project:
        parameters.append("filterBy=" + quote(f"projectName=={project}"))
    rows = _ask(f"/workloads?{'&'.join(parameters)}", "workloads")
    return [(text_of(row, "name"), text_of(row, "phase")) for row in rows]


def project_names(incomplete: str) -> list[str]:
    return _names("/org-unit/projects", "projects", incomplete)


def cluster_names(incomplete: str) -> list[str]:
    return _names("/clusters", "clusters", incomplete)


def phases(incomplete: str) -> list[str]:
    from events.phases import Phase

    return [phase for phase in Phase if phase.lower().startswith(incomplete.lower())]


def labels(incomplete: str) -> list[str]:
    """Labels of recent workloads, as `key=value`; after a comma the next one."""
    before, comma, begun = incomplete.rpartition(",")
    rows = _ask(f"/workloads?limit={_OFFERED}&sortBy=createdAt&sortOrder=desc", "workloads")
    found = {label for row in rows for label in texts_of(row, "labels") if label.startswith(begun)}
    return [f"{before}{comma}{label}" for label in sorted(found)]


def context_names(incomplete: str) -> list[str]:
    try:
        return [name for name in read_contexts(config_file(os.environ)).contexts if name.startswith(incomplete)]
    except ContextsError:
        return []


def shells(incomplete: str) -> list[str]:
    return [shell for shell in SHELLS if shell.startswith(incomplete)]


def add_completion(app: typer.Typer) -> None:
    """Declares `muster completion`."""

    @command(
        app,
        "completion",
        output=False,
        examples="""
        source <(muster completion bash)                      # this shell
        muster completion bash > ~/.local/share/bash-completion/completions/muster
        muster completion zsh > ~/.zfunc/_muster
        muster completion fish > ~/.config/fish/completions/muster.fish
        """,
    )
    def completion(
        session: Session,
        shell: Annotated[str, typer.Argument(help="bash, zsh or fish.", autocompletion=shells)],
    ) -> None:
        """Print the script that completes commands, flags and live names in a shell."""
        # The only maker of these scripts; the library's own option for it would stand in every help.
        from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage]

        if shell not in SHELLS:
            raise usage(f"no completion for the shell {shell!r}", todo="shells: " + ", ".join(SHELLS))
        script = get_completion_script(prog_name="muster", complete_var=COMPLETE_VARIABLE, shell=shell)
        session.out.write(script + "\n")


def _names(path: str, key: str, incomplete: str) -> list[str]:
    return [name for row in _ask(path, key) if (name := text_of(row, "name")).startswith(incomplete)]


def _default_project() -> str:
    try:
        return resolve(read_contexts(config_file(os.environ)), os.environ).project
    except ContextsError:
        return ""


def _ask(path: str, key: str) -> list[Row]:
    """The rows of a list, or none where anything at all is in the way."""
    from http.client import HTTPException

    try:
        target = resolve(read_contexts(config_file(os.environ)), os.environ)
        if not target.url:
            return []
        connection, base = _connection(target.url)
        try:
            headers = {"Authorization": f"Bearer {target.token}", "Accept": "application/json"}
            connection.request("GET", f"{base}/api/v1{path}", headers=headers)
            answer: Json = json.loads(connection.getresponse().read())
        finally:
            connection.close()
    except (OSError, ValueError, HTTPException):
        # ContextsError and broken JSON are ValueErrors.
        return []
    return rows_of(answer, key) if isinstance(answer, dict) else []


def _connection(url: str) -> "tuple[HTTPConnection, str]":
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS), parts.path.rstrip("/")
