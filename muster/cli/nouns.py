"""The first words of the command line, what each is for, and the help of `muster` itself.

Nothing is imported here that takes time: help comes at once, and a command loads its own module only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from muster.cli.exits import EXIT_CODE_MEANING

COMPLETE_VARIABLE: Final = "_MUSTER_COMPLETE"
"""By it the shell asks for completions."""
SUMMARY: Final = "Muster: an event-sourced control plane for GPU workloads."
EXAMPLES: Final = """
muster up                                             # everything on this machine; Ctrl-C stops it
muster training submit hello -i python:3.13 -- python -c 'print(6 * 7)'
muster training logs hello -f
muster workload history hello
muster workload list -w
"""
WIDEST: Final = 100
"""Columns of a help: longer lines are hard to read."""
_NARROWEST: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Noun:
    """A first word, and the function `add` in a module of muster.cli that declares what stands behind it."""

    module: str
    add: str
    summary: str


NOUNS: Final[dict[str, Noun]] = {
    "up": Noun(module="up", add="add_up", summary="Run everything on this machine, for development, until Ctrl-C."),
    "training": Noun(
        module="training",
        add="add_training",
        summary="Trainings: submit, submit again, list, look into, suspend, resume, delete.",
    ),
    "workload": Noun(
        module="workload",
        add="add_workload",
        summary="Workloads of every kind: list, look into, suspend, resume, change, delete.",
    ),
    "project": Noun(module="project", add="add_project", summary="Projects: who works on what, with how much."),
    "cluster": Noun(module="cluster", add="add_cluster", summary="Clusters: what runs the pods."),
    "node": Noun(
        module="nodes",
        add="add_nodes",
        summary="Nodes: what they have and what of it is reserved; keep new pods away from one.",
    ),
    "nodepool": Noun(module="nodes", add="add_pools", summary="Node pools: nodes of a cluster that carry one label."),
    "role": Noun(module="roles", add="add_role", summary="Roles: who may do what, everywhere or in a project."),
    "user": Noun(module="roles", add="add_user", summary="Users: everybody who has a role."),
    "service-account": Noun(
        module="service_accounts",
        add="add_service_accounts",
        summary="Service accounts: programs that act in a project, with tokens that live until you end them.",
    ),
    "token": Noun(
        module="tokens",
        add="add_token",
        summary="Tokens: who somebody is, signed by the local key. For one machine and for compose.",
    ),
    "context": Noun(
        module="context_commands",
        add="add_context",
        summary="Contexts: which Muster is asked, and who you are there.",
    ),
    "events": Noun(
        module="events", add="add_events", summary="Events: the log itself, commit by commit. For administrators."
    ),
    "audit": Noun(
        module="audit", add="add_audit", summary="Audit: administrative acts, and what was refused. For administrators."
    ),
    "projections": Noun(
        module="operate",
        add="add_projections",
        summary="Projections: the read models, how far they are, and making them anew.",
    ),
    "log": Noun(
        module="operate",
        add="add_log",
        summary="The log: whether everything that is shown follows from it, and its repair.",
    ),
    "doctor": Noun(
        module="doctor",
        add="add_doctor",
        summary="Check this installation, the server, your token, clusters, projections and the disk.",
    ),
    "version": Noun(
        module="doctor",
        add="add_version",
        summary="Print the versions of this program and of the API, where a server answers.",
    ),
    "completion": Noun(
        module="completion",
        add="add_completion",
        summary="Print the script that completes commands, flags and live names in a shell.",
    ),
}
"""By the word, in the order of the help."""
EPILOG: Final = "\b\nExit codes:\n" + "\n".join(
    f"  {int(code):<4} {meaning}" for code, meaning in EXIT_CODE_MEANING.items()
)


def root_help(columns: int) -> str:
    """What `muster --help` prints on a terminal of so many columns: as wide as every other help."""
    width = max(min(columns, WIDEST) - 2, _NARROWEST)
    first = max(map(len, NOUNS)) + 2
    listed = "".join(
        f"  {word:<{first}}" + f"\n{'':{first + 2}}".join(_wrapped(noun.summary, width - first - 2)) + "\n"
        for word, noun in NOUNS.items()
    )
    examples = "".join(f"  {line}\n" for line in EXAMPLES.strip().splitlines())
    codes = "".join(f"  {line}\n" for line in EPILOG.splitlines()[1:])
    return (
        f"  {SUMMARY}\n\nExamples:\n{examples}\nUsage: muster [OPTIONS] COMMAND [ARGS]...\n\n"
        f"Commands:\n{listed}\n{codes}"
    )


def _wrapped(text: str, width: int) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line
