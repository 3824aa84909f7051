"""What was probably meant by a command line that is none of ours. Pure; loaded only where something is wrong.

A hint is a whole line to type. It never changes something that the person did not speak of: a verb that changes is
offered for a plain typing error, or for a usual word, of the kind that was named.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from muster.cli.exits import ExitCode, Problem

if TYPE_CHECKING:
    from typer._click.core import Context, Parameter
    from typer._click.exceptions import ClickException

type Tree = Mapping[str, Sequence[str]]
"""First words with the verbs behind them; none where the first word is a command."""

READS: Final = frozenset(
    {"list", "describe", "logs", "history", "pods", "metrics", "show", "tail", "status", "verify", "agent", "top"}
    | {"doctor", "version", "completion", "training", "workload", "workspace", "project", "cluster", "node"}
    | {"nodepool", "role", "user", "token", "context", "events", "audit", "projections", "log", "usage", "budget"}
    | {"price", "explain", "plan", "explain-field"}
)
"""Words that change nothing by themselves."""

_NEAR: Final = 0.6
_PLAINLY: Final = 0.75
"""Likeness from which on a word is a typing error, and not another word: `get` is no `set`."""
_MOST_NEAR: Final = 3

_WORKS_ON: Final = ("workload", "training", "workspace", "inference")
_USUAL_NOUNS: Final[Mapping[str, str]] = {
    "job": "training",
    "notebook": "workspace",
    "namespace": "project",
    "ns": "project",
    "queue": "project",
    "pool": "nodepool",
    "config": "context",
    "event": "events",
    "projection": "projections",
}
"""As other tools call what is here; plurals are understood of all."""
_PODS: Final = frozenset({"pods", "pod", "po"})
_USUAL_LINES: Final[Mapping[str, tuple[str, ...]]] = {
    "ps": ("workload", "list"),
    "ls": ("workload", "list"),
    "squeue": ("workload", "list"),
    "sinfo": ("node", "list"),
    "run": ("training", "submit"),
    "create": ("training", "submit"),
    "apply": ("training", "submit"),
    "wait": ("workload", "wait"),
    "sbatch": ("training", "submit"),
    "srun": ("training", "submit"),
    "rm": ("workload", "delete"),
    "kill": ("workload", "delete"),
    "cancel": ("workload", "delete"),
    "scancel": ("workload", "delete"),
    "stop": ("workload", "suspend"),
    "pause": ("workload", "suspend"),
    "start": ("workload", "resume"),
    "get": ("workload", "describe"),
    "inspect": ("workload", "describe"),
    "stats": ("top",),
    "chargeback": ("usage",),
    "sreport": ("usage",),
    "sshare": ("top",),
    "whoami": ("doctor",),
    "serve": ("up",),
}
"""First words of other tools, where no kind was named."""
_USUAL_VERBS: Final[Mapping[str, tuple[str, ...]]] = {
    "ls": ("list",),
    "ps": ("list",),
    "get": ("describe", "show", "list"),
    "show": ("describe", "show", "list"),
    "inspect": ("describe", "show"),
    "info": ("describe", "show", "status"),
    "status": ("describe",),
    "log": ("logs",),
    "rm": ("delete", "remove", "revoke"),
    "del": ("delete", "remove", "revoke"),
    "remove": ("delete", "revoke"),
    "delete": ("remove", "revoke"),
    "kill": ("delete",),
    "cancel": ("delete",),
    "stop": ("suspend",),
    "pause": ("suspend",),
    "start": ("resume", "submit"),
    "continue": ("resume",),
    "rerun": ("resubmit",),
    "retry": ("resubmit",),
    "restart": ("resubmit",),
    "run": ("submit",),
    "new": ("create", "add", "submit"),
    "create": ("add", "submit", "grant"),
    "add": ("create", "submit", "grant"),
    "apply": ("submit", "set"),
    "edit": ("set",),
    "update": ("set",),
    "top": ("metrics",),
    "stats": ("metrics",),
    "usage": ("metrics",),
    "events": ("history",),
    "watch": ("tail", "list"),
    "switch": ("use",),
}
"""Verbs of other tools, with ours; the first that the kind has is meant."""
_USUAL_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "--gpu": ("--gpu-devices-request",),
    "--gpus": ("--gpu-devices-request",),
    "--num-gpus": ("--gpu-devices-request",),
    "--memory": ("--cpu-memory-request",),
    "--mem": ("--cpu-memory-request",),
    "-m": ("--cpu-memory-request",),
    "--cpu": ("--cpu-core-request",),
    "--cpus": ("--cpu-core-request",),
    "--cores": ("--cpu-core-request",),
    "--port": ("--serving-port",),
    "--namespace": ("--project",),
    "-n": ("--tail", "--project"),
    "--queue": ("--project",),
    "--partition": ("--node-pools",),
    "--all-namespaces": ("--all",),
    "--all-projects": ("--all",),
    "--workdir": ("--working-dir",),
    "--cwd": ("--working-dir",),
    "--labels": ("--label", "--selector"),
    "--retries": ("--backoff-limit",),
    "--max-retries": ("--backoff-limit",),
    "--replicas": ("--runs",),
    "--count": ("--runs",),
    "--force": ("--yes",),
    "--lines": ("--tail",),
    "--format": ("--output",),
    "--sort-by": ("--sort",),
    "--order-by": ("--sort",),
    "--max-items": ("--limit",),
    "--no-pagination": ("--limit",),
    "--state": ("--status",),
    "--phase": ("--status",),
    "--array": ("--sweep", "--runs"),
    "--pod-running-timeout": ("--timeout",),
    "--wait-for-submit": ("--timeout",),
    "--mig-profile": ("--gpu-portion-request",),
    "--reverse": ("--desc",),
    "--max-scale": ("--max-replicas",),
    "--min-scale": ("--min-replicas",),
    "--chunk-size": ("--page-size",),
}
"""Flags of other tools, with ours; the first that the command has is meant."""


_BY_FILTER: Final[Mapping[str, str]] = {"--cluster": "clusterName", "--owner": "submittedBy", "--user": "submittedBy"}
"""Flags that lists do not have, with the field that a filter names."""


def unknown_command(before: Sequence[str], given: Sequence[str], tree: Tree) -> Problem:
    """The Problem of a word that is no command.

    Args:
        before: the words that were understood, from `muster` on.
        given: the word that was not, and all after it.
    """
    word = given[0]
    noun = before[1] if len(before) > 1 else ""
    known = [name for name in tree[noun] if name != noun] if noun else list(tree)
    meant = _verb_meant(noun, given, tree) if noun else _line_meant(given, tree)
    where = f"`{' '.join(before)}` has no command" if noun else "there is no command"
    if meant is not None:
        todo = f"did you mean: {line_of([*before[:1], *meant])}"
    else:
        todo = _which(word, tree) if not noun else None
        todo = todo or "commands: " + ", ".join(known)
    return Problem(f"{where} {word!r}", todo=todo, code=ExitCode.USAGE)


def _line_meant(given: Sequence[str], tree: Tree) -> list[str] | None:
    """The words after `muster` that were meant, from the first on."""
    word, *rest = given
    holders = _holders(word, tree)
    noun = None if holders else _noun_of(word, tree)
    if noun is not None:
        return _behind(noun, rest, tree)
    second = _noun_of(rest[0], tree) if rest else None
    if second is not None and tree[second]:
        # The verb first, as kubectl has it.
        meant = _verb_meant(second, [word, *rest[1:]], tree, here=True)
        if meant is not None or word not in _USUAL_LINES:
            return meant
    if word in {"get", "describe"} and rest[:1] and rest[0] in _PODS:
        # Here pods are those of a workload, which kubectl's users do not name.
        return ["workload", "pods", *rest[1:]] if rest[1:] and not rest[1].startswith("-") else ["workload", "list"]
    if word in _USUAL_LINES and _is_there(_USUAL_LINES[word], tree):
        line = _USUAL_LINES[word]
        return [*(("workload", "list") if line[-1] == "describe" and not rest else line), *rest]
    if holders:
        return [holders[0], word, *rest] if word in READS or len(_kinds(holders)) == 1 else None
    near = _near(word, [*tree, *dict.fromkeys(verb for verbs in tree.values() for verb in verbs)])
    if near is None:
        return None
    return _behind(near, rest, tree) if near in tree else _line_meant([near, *rest], tree)


def _behind(noun: str, rest: list[str], tree: Tree) -> list[str]:
    """A noun with its verb, where that has to be corrected, too."""
    if not tree[noun] or (rest and (rest[0] in tree[noun] or rest[0].startswith("-"))):
        return [noun, *rest]
    if not rest:
        return [noun, "list"] if "list" in tree[noun] else [noun]
    return _verb_meant(noun, rest, tree) or [noun, *rest]


def _verb_meant(noun: str, given: Sequence[str], tree: Tree, *, here: bool = False) -> list[str] | None:
    """Noun, verb and the rest. Only what this kind has; `here`: the word itself may be one of them."""
    word, *rest = given
    verbs = tree[noun]
    if here and word in verbs:
        return [noun, word, *rest]
    usual = [verb for verb in _USUAL_VERBS.get(word.lower(), ()) if verb in verbs]
    if usual:
        is_named = bool(rest) and not rest[0].startswith("-")
        if "list" in usual and (not is_named or usual[0] == "list"):
            # A list takes no name.
            return [noun, "list", *rest[is_named:]]
        return [noun, usual[0], *rest]
    near = _near(word, verbs)
    return None if near is None else [noun, near, *rest]


def _noun_of(word: str, tree: Tree) -> str | None:
    lower = word.lower()
    for one in (lower, lower.removesuffix("s")):
        noun = _USUAL_NOUNS.get(one, one)
        if noun in tree and not (one == lower == word and word in tree and not tree[word]):
            return noun
    return None


def _holders(verb: str, tree: Tree) -> list[str]:
    """The nouns that have a verb; where trainings and workloads both do, the README's comes first."""
    holders = [noun for noun, verbs in tree.items() if verb in verbs]
    first = "training" if verb == "logs" else "workload"
    return sorted(holders, key=lambda noun: noun != first)


def _kinds(holders: Iterable[str]) -> set[str]:
    return {_WORKS_ON[0] if noun in _WORKS_ON else noun for noun in holders}


def _which(word: str, tree: Tree) -> str | None:
    """Of a verb that changes things of several kinds, none is guessed."""
    holders = _holders(word, tree)
    if not holders:
        return None
    return "say of what: " + ", ".join(f"`muster {noun} {word}`" for noun in holders)


def _is_there(line: tuple[str, ...], tree: Tree) -> bool:
    return line[0] in tree and (len(line) == 1 or line[1] in tree[line[0]])


def _near(word: str, known: Sequence[str]) -> str | None:
    """The nearest word; one that changes something only where it was plainly meant."""
    for near in get_close_matches(word.lower(), known, n=_MOST_NEAR, cutoff=_NEAR):
        if near in READS or get_close_matches(word.lower(), [near], cutoff=_PLAINLY):
            return near
    return None


def problem_of(error: "ClickException", arguments: Sequence[str]) -> Problem:
    """The Problem of a command line that the parser refused. `arguments`: the whole line's, after `muster`."""
    from typer._click import exceptions as click

    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None and (meant := _with_dashes(context, arguments)) is not None:
        return Problem(
            "what the pods run comes after `--`", todo=f"did you mean: {line_of(meant)}", code=ExitCode.USAGE
        )
    match error:
        case click.NoSuchOption():
            return _unknown_flag(error.option_name, context, arguments)
        case click.MissingParameter():
            return Problem(f"{_told(error.param)} is missing", todo=_usage(context), code=ExitCode.USAGE)
        case click.BadParameter() if error.param is not None:
            return Problem(f"{_told(error.param)}: {error.message}", code=ExitCode.USAGE)
        case click.BadOptionUsage() if "does not take a value" in error.message:
            return Problem(f"{error.option_name} takes no value", todo=_usage(context), code=ExitCode.USAGE)
        case click.BadOptionUsage():
            todo = "--dry-run=client or --dry-run=server" if error.option_name == "--dry-run" else _usage(context)
            return Problem(f"{error.option_name} needs a value", todo=todo, code=ExitCode.USAGE)
        case click.UsageError():
            return Problem(_sentence(error.format_message()), todo=_usage(context), code=ExitCode.USAGE)
        case _:
            return Problem(_sentence(error.format_message()), code=ExitCode.FAILURE)


def _unknown_flag(flag: str, context: "Context | None", arguments: Sequence[str]) -> Problem:
    what = f"there is no flag {flag}"
    if context is None:
        return Problem(what, code=ExitCode.USAGE)
    known = _flags(context)
    if flag == "--name" and any(one.param_type_name == "argument" for one in context.command.params):
        return Problem(what, todo=f"the name is a word of its own: {_usage(context)}", code=ExitCode.USAGE)
    usual = [ours for ours in _USUAL_FLAGS.get(flag, ()) if ours in known]
    begun = [name for name in known if flag.startswith("--") and name.startswith(flag)]
    near = usual[:1] or begun or get_close_matches(flag, known, n=_MOST_NEAR, cutoff=_PLAINLY)
    if len(near) == 1 or (near and not begun):
        todo = f"did you mean: {line_of(['muster', *_with_flag(arguments, flag, near[0])])}"
    elif near:
        todo = "did you mean " + " or ".join(near) + "?"
    elif flag in _BY_FILTER and "--filter" in known:
        todo = f"--filter '{_BY_FILTER[flag]}==NAME' lists those of one"
    else:
        todo = f"`{context.command_path} --help` lists the flags"
    return Problem(what, todo=todo, code=ExitCode.USAGE)


def _with_flag(arguments: Sequence[str], flag: str, ours: str) -> list[str]:
    """The line with a flag put in place of another."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    for at, given in enumerate(arguments[:end]):
        if given == flag or given.startswith(f"{flag}="):
            return [*arguments[:at], ours + given.removeprefix(flag), *arguments[at + 1 :]]
        if not flag.startswith("--") and given.startswith(flag):
            return [*arguments[:at], ours, given.removeprefix(flag), *arguments[at + 1 :]]
    return list(arguments)


def _with_dashes(context: "Context", arguments: Sequence[str]) -> list[str] | None:
    """The whole line with `--` before the words that pods run, where it was forgotten there."""
    if not getattr(context.command.callback, "takes_words", False) or "--" in arguments:
        return None
    known = {name: one for one in context.command.get_params(context) for name in (*one.opts, *one.secondary_opts)}
    first = len(context.command_path.split()) - 1
    start = next((at for at in range(len(arguments)) if list(arguments[at : at + first]) == _path(context)), None)
    if start is None:
        return None
    before, given = list(arguments[: start + first]), list(arguments[start + first :])
    named = 0 if any(one.startswith("--name-prefix") for one in given) else 1
    at = _words_at(given, known, named)
    if at is None:
        return None
    end = len(given)
    if not _has_image(given[:at], known):
        # Flags of ours behind the words: without them the line would be refused again.
        behind = (j for j in range(at + 1, end) if _is_all_ours(given[j:], known) and _has_image(given[j:], known))
        end = next(behind, end)
    return ["muster", *before, *given[:at], *given[end:], "--", *given[at:end]]


def _path(context: "Context") -> list[str]:
    return context.command_path.split()[1:]


def _words_at(given: Sequence[str], known: Mapping[str, "Parameter"], skipped: int) -> int | None:
    """Where the word stands that comes after so many others; None where there is none, or a flag before is unknown."""
    at = 0
    while at < len(given):
        length = _flag_length(given, at, known)
        if length is None:
            return None
        if length == 0:
            if skipped == 0:
                return at
            skipped -= 1
        at += length or 1
    return None


def _flag_length(given: Sequence[str], at: int, known: Mapping[str, "Parameter"]) -> int | None:
    """How many words a flag takes with its value; 0 for what is no flag, None for one that is unknown."""
    one = given[at]
    if not one.startswith("-") or one == "-":
        return 0
    name, is_joined, _ = one.partition("=")
    if not one.startswith("--"):
        name, is_joined = one[:2], one[2:]
    found = known.get(name)
    if found is None:
        return None
    return 1 if is_joined or getattr(found, "is_flag", False) else 2


def _is_all_ours(given: Sequence[str], known: Mapping[str, "Parameter"]) -> bool:
    at = 0
    while at < len(given):
        length = _flag_length(given, at, known)
        if not length:
            return False
        at += length
    return at == len(given)


def _has_image(given: Sequence[str], known: Mapping[str, "Parameter"]) -> bool:
    said = {known[name].name for one in given if (name := one.partition("=")[0]) in known}
    return bool(said & {"image", "file"})


def _flags(context: "Context") -> list[str]:
    return [name for one in context.command.get_params(context) for name in (*one.opts, *one.secondary_opts)
            if name.startswith("-")]  # fmt: skip


def _told(parameter: "Parameter | None") -> str:
    """A flag by its name, an argument by what the usage calls it."""
    if parameter is None:
        return "a value"
    if parameter.param_type_name == "argument":
        return str(getattr(parameter, "metavar", None) or (parameter.name or "").upper()).removesuffix("...")
    return max(parameter.opts, key=len)


def _usage(context: "Context | None") -> str | None:
    if context is None:
        return None
    return " ".join(context.get_usage().replace("{", "").replace("}", "").split()).replace("Usage", "usage", 1)


def _sentence(text: str) -> str:
    text = text.removesuffix(".").replace("Got unexpected extra argument(s)", "there is no place for")
    return text[:1].lower() + text[1:]


def line_of(words: Iterable[str]) -> str:
    """Words as a line to type; no token is repeated there."""
    shown: list[str] = []
    for word in words:
        if shown and shown[-1] == "--token":
            shown.append("TOKEN")
        else:
            shown.append("--token=TOKEN" if word.startswith("--token=") else word)
    return shlex.join(shown)


def tree_of(paths: Iterable[str]) -> Tree:
    """First words and their verbs, of the paths of all commands, such as `training submit`."""
    tree: dict[str, list[str]] = {}
    for path in filter(None, paths):
        word, *verb = path.split()
        tree.setdefault(word, [])
        if len(verb) == 1:
            tree[word] += verb
    return tree
