"""What a shell completes: commands and flags from a table, live names from the API, within a moment.

A completion never fails and never waits: with no answer in time there is nothing to offer. Nothing is imported here
that takes time. The table, `completion_data`, is written by `muster.cli.reference`, from the commands as declared.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from muster.cli.completion_data import ARGUMENTS, COMMANDS, FLAGS, SHARED_FLAGS
from muster.cli.contexts import ContextsError, Target, config_file, read_contexts, resolve
from muster.cli.values import Json, Row, row_of, rows_of, text_of, texts_of

if TYPE_CHECKING:
    from http.client import HTTPConnection

ANSWER_SECONDS: Final = 1.0
"""A person who pressed Tab is waiting."""
_OFFERED: Final = 100
"""More than a screen of names helps nobody."""
SHELLS: Final = ("bash", "zsh", "fish")
NO_VALUE: Final = "-"
"""In the table: of a flag that takes no value."""
_HELP: Final = {"--help": ("help", NO_VALUE, "Show this message and exit")}

type Offer = tuple[str, str]
"""A word and what is said about it."""


def answer(environ: Mapping[str, str], shell: str) -> str:
    """What the shell's script reads (they are typer's)."""
    words, incomplete = _asked(environ, shell)
    try:
        offers = list(offered(words, incomplete))
    except (OSError, ValueError):
        offers = []
    match shell:
        case "zsh":
            shown = "\n".join(":".join(f'"{_for_zsh(part)}"' for part in offer if part) for offer in offers)
            return f"_arguments '*: :(({shown}))'" if offers else "_files"
        case "fish":
            if environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
                # By its exit code the shell knows whether there is anything.
                raise SystemExit(0 if offers else 1)
            return "\n".join("\t".join(" ".join(part.split()) for part in offer if part) for offer in offers)
        case _:
            return "\n".join(word for word, _ in offers)


def offered(words: list[str], incomplete: str) -> Iterator[Offer]:
    """The words that may stand after these, beginning as the last one does. `words`: after `muster`."""
    path, flag, at, given = _walked(words)
    flags = _flags_of(path)
    if "--" in words:
        return
    if flag:
        yield from _from(flags[flag][1], given, incomplete)
    elif incomplete.startswith("-"):
        name, is_joined, begun = incomplete.partition("=")
        if is_joined and name in flags:
            yield from ((f"{name}={word}", told) for word, told in _from(flags[name][1], given, begun))
        else:
            yield from ((name, told) for name, (_, _, told) in flags.items() if name.startswith(incomplete))
    elif path in ARGUMENTS:
        arguments = ARGUMENTS[path]
        if arguments and (at < len(arguments) or arguments[-1][2]):
            yield from _from(arguments[min(at, len(arguments) - 1)][1], given, incomplete)
    else:
        before = f"{path} " if path else ""
        for name, told in COMMANDS.items():
            rest = name.removeprefix(before)
            if name.startswith(before) and rest and " " not in rest and rest.startswith(incomplete):
                yield rest, told


def _flags_of(path: str) -> dict[str, tuple[str, str, str]]:
    """A noun by itself has none but --help."""
    return {**FLAGS.get(path, {}), **(SHARED_FLAGS if path in FLAGS else {}), **_HELP}


def _walked(words: list[str]) -> tuple[str, str, int, dict[str, str]]:
    """The command that the words lead to, the flag whose value comes next, how many arguments were given, and what."""
    path, flag, at = "", "", 0
    given: dict[str, str] = {}
    for word in words:
        flags = _flags_of(path)
        if flag:
            given[flags[flag][0]] = word
            flag = ""
        elif word.startswith("-"):
            name, is_joined, value = word.partition("=")
            if name in flags and flags[name][1] != NO_VALUE:
                given[flags[name][0]] = value
                flag = "" if is_joined else name
        elif path in ARGUMENTS:
            arguments = ARGUMENTS[path]
            if at < len(arguments):
                given[arguments[at][0]] = word
            at += 1
        elif (longer := f"{path} {word}".strip()) in COMMANDS:
            path = longer
        elif (path, word) != ("training", "standard"):
            return "?", "", 0, given
    return path, flag, at, given


def _from(source: str, given: dict[str, str], incomplete: str) -> Iterable[Offer]:
    """The values of a flag or an argument: a function here, or a list in the table (with a comma: of several)."""
    if source.startswith("@"):
        context = SimpleNamespace(params=given)
        return [one if isinstance(one, tuple) else (one, "") for one in SOURCES[source[1:]](context, incomplete)]
    kind, _, listed = source.partition(":")
    return [(word, "") for word in _beginning(listed.split("|") if listed else [], incomplete, many=kind == "several")]


def _beginning(words: Iterable[str], incomplete: str, *, many: bool = False) -> list[str]:
    """Those that begin so, whatever their capitals; `many`: the last of several with commas between them."""
    before, comma, begun = incomplete.rpartition(",") if many else ("", "", incomplete)
    return [f"{before}{comma}{word}" for word in words if word.lower().startswith(begun.lower())]


def workload_names(ctx: Any, incomplete: str) -> list[Offer]:
    """Living workloads' names, each with its phase."""
    rows = _workloads(ctx.params.get("project") or "", incomplete)
    return [(text_of(row, "name"), text_of(row, "phase")) for row in rows]


def pod_names(ctx: Any, incomplete: str) -> list[Offer]:
    """Pods of the workload that was named before."""
    named = ctx.params.get("workload") or ""
    rows = [row for row in _workloads(ctx.params.get("project") or "", named) if text_of(row, "name") == named]
    identifier = text_of(rows[0], "id") if rows else named
    pods = {text_of(row, "name"): text_of(row, "phase") for row in _ask(f"/workloads/{identifier}/pods", "pods")}
    return [(name, phase) for name, phase in pods.items() if name.startswith(incomplete)]


def project_names(ctx: Any, incomplete: str) -> list[str]:  # noqa: ARG001 - as all sources are called
    return _named_pages("/org-unit/projects", "projects", incomplete)


def department_names(ctx: Any, incomplete: str) -> list[str]:  # noqa: ARG001 - as all sources are called
    return _named_pages("/org-unit/departments", "departments", incomplete)


def _named_pages(path: str, key: str, incomplete: str) -> list[str]:
    """Of a list with pages: what has the text in its name."""
    from urllib.parse import quote

    return _names(f"{path}?limit={_OFFERED}" + (f"&search={quote(incomplete)}" if incomplete else ""), key, incomplete)


def cluster_names(ctx: Any, incomplete: str) -> list[str]:  # noqa: ARG001 - as all sources are called
    return _names("/clusters", "clusters", incomplete)


def environment_names(ctx: Any, incomplete: str) -> list[str]:  # noqa: ARG001 - as all sources are called
    return _asset_names("/asset/environment", "environments", incomplete)


def compute_names(ctx: Any, incomplete: str) -> list[str]:  # noqa: ARG001 - as all sources are called
    return _asset_names("/asset/compute", "computeResources", incomplete)


def credential_names(ctx: Any, incomplete: str) -> list[str]:  # noqa: ARG001 - as all sources are called
    return _asset_names("/asset/credentials", "credentials", incomplete)


def data_source_names(ctx: Any, incomplete: str) -> list[str]:  # noqa: ARG001 - as all sources are called
    """Of every kind."""
    kinds = ("pvc", "git", "nfs", "s3", "host-path", "config-map", "secret", "data-volume")
    found = [_asset_names(f"/asset/datasource/{kind}", "dataSources", incomplete) for kind in kinds]
    return sorted({name for names in found for name in names})


def template_names(ctx: Any, incomplete: str) -> list[str]:  # noqa: ARG001 - as all sources are called
    return _asset_names("/workload-templates", "templates", incomplete)


def _asset_names(path: str, key: str, incomplete: str) -> list[str]:
    from urllib.parse import quote

    rows = _ask(f"{path}?limit={_OFFERED}" + (f"&search={quote(incomplete)}" if incomplete else ""), key)
    return _beginning(sorted({text_of(row_of(row, "meta"), "name") for row in rows}), incomplete)


def node_pools(ctx: Any, incomplete: str) -> list[str]:  # noqa: ARG001 - as all sources are called
    """Of all clusters; after a comma the next one."""
    return _beginning(sorted({*_names("/node-pools", "nodePools", "")}), incomplete, many=True)


def labels(ctx: Any, incomplete: str) -> list[str]:  # noqa: ARG001 - as all sources are called
    """Labels of recent workloads, as `key=value`; after a comma the next one."""
    rows = _ask(f"/workloads?limit={_OFFERED}&sortBy=createdAt&sortOrder=desc", "workloads")
    return _beginning(sorted({label for row in rows for label in texts_of(row, "labels")}), incomplete, many=True)


def context_names(ctx: Any, incomplete: str) -> list[str]:  # noqa: ARG001 - as all sources are called
    try:
        return _beginning(read_contexts(config_file(os.environ)).contexts, incomplete)
    except ContextsError:
        return []


def shells(ctx: Any, incomplete: str) -> list[str]:  # noqa: ARG001 - as all sources are called
    return _beginning(SHELLS, incomplete)


def policy_kinds(ctx: Any, incomplete: str) -> list[str]:  # noqa: ARG001 - as all sources are called
    return _beginning(("trainings", "distributed", "workspaces", "inferences"), incomplete)


def phases(ctx: Any, incomplete: str) -> list[str]:  # noqa: ARG001 - as all sources are called
    from events.phases import Phase

    return _beginning(Phase, incomplete)


def columns(ctx: Any, incomplete: str) -> list[str]:  # noqa: ARG001 - as all sources are called
    """Stands for the command's own columns, which the table lists."""
    return []


def several_columns(ctx: Any, incomplete: str) -> list[str]:  # noqa: ARG001 - as all sources are called
    """As `columns`, with commas between them."""
    return []


SOURCES: Final = {
    source.__name__: source
    for source in (
        workload_names, pod_names, project_names, cluster_names, node_pools, labels, context_names, shells, phases,
        environment_names, compute_names, data_source_names, credential_names, template_names, policy_kinds,
        department_names,
    )
}  # fmt: skip
"""Of live values, by the name that the table knows."""


def _workloads(project: str, begun: str) -> list[Row]:
    from urllib.parse import quote

    target = _target()
    parameters = [f"limit={_OFFERED}", "sortBy=createdAt", "sortOrder=desc"]
    if begun:
        parameters.append("filterBy=" + quote(f"name=^{begun}"))
    if project := project or (target.project if target else ""):
        parameters.append("filterBy=" + quote(f"projectName=={project}"))
    return _ask(f"/workloads?{'&'.join(parameters)}", "workloads")


def _names(path: str, key: str, incomplete: str) -> list[str]:
    return _beginning([text_of(row, "name") for row in _ask(path, key)], incomplete)


def _target() -> Target | None:
    try:
        return resolve(read_contexts(config_file(os.environ)), os.environ)
    except ContextsError:
        return None


def _token(target: Target) -> str:
    """Raises OSError where the keyring does not give it."""
    if not target.in_keyring:
        return target.token
    from muster.cli.keyrings import KeyringError, kept

    try:
        return kept(target.name, target.url, seconds=ANSWER_SECONDS)
    except KeyringError as error:
        raise OSError(str(error)) from error


def _ask(path: str, key: str) -> list[Row]:
    """The rows of a list, or none where anything at all is in the way."""
    from http.client import HTTPException

    target = _target()
    if target is None or not target.url:
        return []
    try:
        connection, base = _connection(target.url, target.ca_file)
        try:
            headers = {"Authorization": f"Bearer {_token(target)}", "Accept": "application/json"}
            connection.request("GET", f"{base}/api/v1{path}", headers=headers)
            body: Json = json.loads(connection.getresponse().read())
        finally:
            connection.close()
    except (OSError, ValueError, HTTPException):
        return []
    return rows_of(body, key) if isinstance(body, dict) else []


def _connection(url: str, ca_file: str) -> "tuple[HTTPConnection, str]":
    from http.client import HTTPConnection
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    host, port, base = parts.hostname or "", parts.port, parts.path.rstrip("/")
    if parts.scheme != "https":
        return HTTPConnection(host, port, timeout=ANSWER_SECONDS), base
    from http.client import HTTPSConnection

    from muster.cli.http import TlsError, trusted

    try:
        return HTTPSConnection(host, port, timeout=ANSWER_SECONDS, context=trusted(ca_file)), base
    except TlsError as error:
        raise OSError(str(error)) from error


def _asked(environ: Mapping[str, str], shell: str) -> tuple[list[str], str]:
    """The words before the one that is completed, after `muster`, and that one."""
    if shell == "bash":
        words, at = _split(environ.get("COMP_WORDS", "")), int(environ.get("COMP_CWORD") or 0)
        before, incomplete = words[1:at], words[at] if at < len(words) else ""
        if incomplete == "=":
            # Bash takes `=` for a word of its own.
            return before, ""
        return [word for word in before if word != "="], incomplete
    text = environ.get("_TYPER_COMPLETE_ARGS", "")
    words = _split(text)[1:]
    return (words, "") if not words or text.endswith(" ") else (words[:-1], words[-1])


def _split(text: str) -> list[str]:
    """As a shell does; a quote that is still open ends with the text."""
    import shlex

    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    try:
        words += lexer
    except ValueError:
        words.append(lexer.token)
    return words


def _for_zsh(text: str) -> str:
    for sign, escaped in (('"', '""'), ("'", "''"), ("$", "\\$"), ("`", "\\`"), (":", r"\\:")):
        text = text.replace(sign, escaped)
    return text
