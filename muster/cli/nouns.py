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
        summary="Trainings: submit, resubmit, list, inspect, suspend, resume, delete.",
    ),
    "workspace": Noun(
        module="workspace",
        add="add_workspace",
        summary="Workspaces, in which somebody works: submit, list, inspect, suspend, resume, delete.",
    ),
    "inference": Noun(
        module="inference",
        add="add_inference",
        summary="Inferences, whose replicas answer requests: submit, list, inspect, suspend, resume, delete.",
    ),
    "workload": Noun(
        module="workload",
        add="add_workload",
        summary="Workloads of every kind: list, inspect, suspend, resume, change, delete.",
    ),
    "exec": Noun(module="ways", add="add_exec", summary="Run a command in a pod of a workload."),
    "bash": Noun(module="ways", add="add_bash", summary="Open a shell in a pod of a workload."),
    "attach": Noun(module="ways", add="add_attach", summary="Show what the process of a pod writes from now on."),
    "port-forward": Noun(
        module="ways",
        add="add_port_forward",
        summary="Listen on ports of this machine, and pass on what connects there to ports of a pod.",
    ),
    "environment": Noun(
        module="assets", add="add_environment", summary="Environments: what workloads run, and as whom, to be chosen."
    ),
    "compute": Noun(
        module="assets", add="add_compute", summary="Compute resources: what a pod asks for, to be chosen."
    ),
    "credentials": Noun(
        module="assets", add="add_credentials", summary="Credentials of yours, whose values only your workloads find."
    ),
    "datasource": Noun(
        module="assets", add="add_data_sources", summary="Data sources: volumes of workloads, to be chosen."
    ),
    "template": Noun(
        module="assets", add="add_template", summary="Templates: any fields of a workload, to begin with."
    ),
    "policy": Noun(
        module="policies",
        add="add_policies",
        summary="Policies: what administrators set and forbid, everywhere, in a department or a project.",
    ),
    "apply": Noun(
        module="apply",
        add="add_apply",
        summary="Create the workloads of files or folders, of any kinds, or change them where they may be changed.",
    ),
    "plan": Noun(
        module="plan",
        add="add_plan",
        summary="Show what would happen if the workloads of files were submitted now. Nothing is stored.",
    ),
    "simulate": Noun(
        module="simulate",
        add="add_simulate",
        summary="Play a stretch of the log, or a trace, under other quotas, weights, nodes or policies, and compare.",
    ),
    "explain": Noun(
        module="explain",
        add="add_explain",
        summary="Show why a workload waits and what would let it start, why it runs where it does, or was evicted.",
    ),
    "explain-field": Noun(
        module="explain_field",
        add="add_explain_field",
        summary="Show what a field of a submission is: type, bounds, default, flag, example, and which kinds have it.",
    ),
    "undo": Noun(module="undo", add="add_undo", summary="Undo a suspension, resumption or change of workloads."),
    "top": Noun(
        module="top",
        add="add_top",
        summary="Show who uses what now: GPUs, CPU and memory by project, user, pool, node or workload.",
    ),
    "usage": Noun(
        module="usage",
        add="add_usage",
        summary="Show who used what in a span of time: GPU hours, cost, waiting time and runs.",
    ),
    "budget": Noun(
        module="budgets",
        add="add_budgets",
        summary="Budgets: what a project may use in a month, in GPU hours or money.",
    ),
    "limit": Noun(
        module="time_limits",
        add="add_limits",
        summary="Limits: how long workloads of a project may run, wait, or keep GPUs that do nothing.",
    ),
    "price": Noun(module="prices", add="add_prices", summary="Prices: what an hour of a GPU costs, by its model."),
    "diff": Noun(
        module="diff",
        add="add_diff",
        summary="Compare two moments: workloads, quotas and nodes, and what happened between them.",
    ),
    "department": Noun(
        module="department",
        add="add_department",
        summary="Departments: groups of projects, and settings that hold for all of them.",
    ),
    "project": Noun(
        module="project", add="add_project", summary="Projects: workloads that belong together, and their GPU quota."
    ),
    "cluster": Noun(module="cluster", add="add_cluster", summary="Clusters: where pods run."),
    "node": Noun(
        module="nodes",
        add="add_nodes",
        summary="Nodes: their capacity and what is reserved; cordon, uncordon and drain.",
    ),
    "calendar": Noun(
        module="calendar",
        add="add_calendar",
        summary="Calendar: maintenance of nodes, and the times at which workloads of a project may start.",
    ),
    "nodepool": Noun(module="nodes", add="add_pools", summary="Node pools: nodes of a cluster with the same label."),
    "role": Noun(module="roles", add="add_role", summary="Roles: who may do what, everywhere or in a project."),
    "user": Noun(module="roles", add="add_user", summary="Users: everybody who has a role."),
    "service-account": Noun(
        module="service_accounts",
        add="add_service_accounts",
        summary="Service accounts: let programs act in a project. Their tokens do not expire.",
    ),
    "subscription": Noun(
        module="subscriptions",
        add="add_subscriptions",
        summary="Subscriptions: let programs read the public events of a project over NATS.",
    ),
    "webhook": Noun(
        module="webhooks",
        add="add_webhooks",
        summary="Webhooks: post the public events of a project to an address, signed.",
    ),
    "token": Noun(
        module="tokens",
        add="add_token",
        summary="Tokens: prove who you are. Signed by the local key, for one machine and for compose.",
    ),
    "login": Noun(module="login", add="add_login", summary="Keep a token with the context in use."),
    "logout": Noun(module="login", add="add_logout", summary="Forget the token of the context in use."),
    "context": Noun(
        module="context_commands",
        add="add_context",
        summary="Contexts: which Muster the commands talk to, and as whom.",
    ),
    "events": Noun(
        module="events",
        add="add_events",
        summary="Events: what happened to workloads and projects.",
    ),
    "audit": Noun(
        module="audit", add="add_audit", summary="Audit: administrative acts and refused requests. For administrators."
    ),
    "projections": Noun(
        module="projections",
        add="add_projections",
        summary="Projections: the tables made from the log. Show their progress, compare, rebuild them.",
    ),
    "replay": Noun(
        module="replay",
        add="add_replay",
        summary="Replay: play the log into a sandbox, and look at the past there. Nothing can be changed in it.",
    ),
    "log": Noun(
        module="operate",
        add="add_log",
        summary="Log: commit by commit, for administrators. Verify every table against it; skip a message.",
    ),
    "backup": Noun(
        module="backup",
        add="add_backup",
        summary="Back up the log and all that cannot be made again from it, or check a backup.",
    ),
    "restore": Noun(
        module="restore", add="add_restore", summary="Restore a backup into an installation that is empty."
    ),
    "doctor": Noun(
        module="doctor",
        add="add_doctor",
        summary="Check this installation, the server, your token, clusters, projections and the disk.",
    ),
    "version": Noun(
        module="doctor",
        add="add_version",
        summary="Print the version of this program, and of the API if a server answers.",
    ),
    "completion": Noun(
        module="completion",
        add="add_completion",
        summary="Print a shell script that completes commands, flags and names.",
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
