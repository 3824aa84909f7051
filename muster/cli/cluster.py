"""`muster cluster`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.cluster_kubernetes import add_agent, add_elsewhere, connect_cluster, disconnect_cluster
from muster.cli.command import Session, command, group
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.names import find_cluster
from muster.cli.options import (
    ClusterArgument,
    IdempotencyOption,
    WatchOption,
    WatchTimeoutOption,
    YesOption,
    confirm,
    switch_option,
)
from muster.cli.output import Column
from muster.cli.simulated_nodes import (
    DEFAULT_CORES,
    DEFAULT_GPU_MEMORY,
    DEFAULT_GPU_MODEL,
    DEFAULT_MEMORY,
    NodesDryRunOption,
    NodesFileOption,
    count_of,
    read_node_file,
    send_nodes,
    size_of,
    tell_dry_run,
)
from muster.cli.values import (
    Json,
    Row,
    counted,
    format_number,
    number_of,
    row_of,
    rows_of,
    text_of,
    texts_of,
)
from muster.cli.watch import watch_rows

if TYPE_CHECKING:
    pass

CLUSTER_COLUMNS: Final = (
    Column("NAME", "name"),
    Column("KIND", "kind"),
    Column("STATUS", "status"),
    Column("NODES", "nodes"),
    Column("GPUS", "gpus"),
    Column("PROBLEM", "problem"),
    Column("OWNERSHIP-PROTECTION", "ownershipProtection"),
    Column("CREATED", "createdAt", time=True),
    Column("SET-BY", "ownershipProtectionSource", wide=True),
    Column("AGENT", "agentVersion", wide=True),
    Column("SINCE", "statusChangedAt", time=True, wide=True),
    Column("ID", "id", wide=True),
)


def add_cluster(root: typer.Typer) -> None:
    app = group("cluster")
    _add_reads(app)
    _add_add(app)
    add_agent(app)
    _add_changes(app)
    _add_faults(app)
    root.add_typer(app, name="cluster")


def _add_reads(app: typer.Typer) -> None:
    @command(
        app, "list", examples="muster cluster list\nmuster cluster list -o wide", columns=CLUSTER_COLUMNS, past=True
    )
    def list_(session: Session, *, watch: WatchOption = False, timeout: WatchTimeoutOption = None) -> None:
        """List clusters, and whether their agents are connected."""
        patience = session.patience(timeout, waits=watch)

        def fetch() -> list[Row]:
            clusters = rows_of(session.api.get("/clusters"), "clusters")
            nodes = rows_of(session.api.get("/nodes"), "nodes")
            return [_counted(row, nodes) for row in clusters]

        if watch:
            watch_rows(patience, session.out, fetch, CLUSTER_COLUMNS)
        session.out.rows(fetch(), CLUSTER_COLUMNS, empty="no clusters; `muster cluster add demo --simulated 4x8`")

    @command(
        app, "describe", examples="muster cluster describe local\nmuster cluster describe local -o yaml", past=True
    )
    def describe(session: Session, cluster: ClusterArgument) -> None:
        """Show a cluster: its agent, its settings, and the sum of its nodes."""
        row = find_cluster(session.api, cluster)
        session.out.one(row, lambda: _describe(session, row), columns=CLUSTER_COLUMNS)


def _counted(cluster: Row, nodes: list[Row]) -> Row:
    """With its nodes and GPUs; a simulated one has those that it declares also before its agent has spoken."""
    own = [node for node in nodes if text_of(node, "clusterId") == text_of(cluster, "id")]
    gpus = sum(number_of(row_of(node, "capacity"), "gpus") for node in own)
    return cluster | {"nodes": len(own) or cluster.get("nodes"), "gpus": gpus if own else None}


def refused_reports(cluster: Row) -> list[str]:
    """What of its agent's words is not taken, one sentence for each rule that is broken."""
    return [
        f"{' '.join(filter(None, (text_of(report, key) for key in ('about', 'name', 'field'))))}: "
        f"{text_of(report, 'value')}; must be {text_of(report, 'rule')}"
        for report in rows_of(cluster, "refusedReports")
    ]


def storage_classes(cluster: Row) -> list[str]:
    """Each with what is to be known of it in words."""
    return [
        "; ".join(
            filter(
                None,
                (
                    text_of(one, "name"),
                    "the default" if one.get("default") else "",
                    f"allows {allowed}" if (allowed := ", ".join(texts_of(one, "attributes"))) else "",
                ),
            )
        )
        for one in rows_of(cluster, "storageClasses")
    ]


def _describe(session: Session, row: Row) -> None:
    out = session.out
    nodes = rows_of(session.api.get("/nodes", [("clusterId", text_of(row, "id"))]), "nodes")
    protection = "on" if row.get("ownershipProtection") else "off"
    ready = sum(bool(node.get("ready")) for node in nodes)
    models = sorted({model for node in nodes if (model := text_of(row_of(node, "capacity"), "gpuModel"))})

    def reserved(key: str) -> str:
        used, there = (sum(number_of(row_of(node, kind), key) for node in nodes) for kind in ("reserved", "capacity"))
        return f"{format_number(used)} of {format_number(there)} reserved"

    out.pairs(
        [
            ("Name", text_of(row, "name")),
            ("Id", text_of(row, "id")),
            ("Kind", text_of(row, "kind")),
            ("Status", f"{text_of(row, 'status')} {out.time(row.get('statusChangedAt'))}".strip()),
            ("Cut off", f"since {out.time(row.get('cutOffAt'))}" if row.get("cutOffAt") else ""),
            ("Problem", text_of(row, "problem")),
            *(("Not taken", told) for told in refused_reports(row)),
            ("Agent", text_of(row, "agentVersion")),
            ("Ownership protection", f"{protection} (set by: {text_of(row, 'ownershipProtectionSource')})"),
            *(("Storage class", told) for told in storage_classes(row)),
            ("Created", out.time(row.get("createdAt"))),
            ("Nodes", f"{len(nodes)}, {ready} of them ready"),
            ("GPUs", reserved("gpus")),
            ("GPU models", ", ".join(models)),
            ("CPU cores", reserved("cpuCores")),
        ]
    )


_SimulatedOption = Annotated[
    str | None,
    typer.Option(
        "--simulated",
        metavar="NODESxGPUS",
        help="Add identical simulated nodes: number of nodes x GPUs of each, such as 32x8.",
    ),
]
_CoresOption = Annotated[
    float | None,
    typer.Option(
        "--cpu-cores", metavar="X", help=f"With --simulated: CPU cores of each node. Default: {DEFAULT_CORES:g}."
    ),
]
_MemoryOption = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help=f"With --simulated: memory of each node. Default: {DEFAULT_MEMORY}."),
]
_GpuModelOption = Annotated[
    str | None,
    typer.Option(
        "--gpu-model", metavar="TEXT", help=f"With --simulated: model of each GPU. Default: {DEFAULT_GPU_MODEL}."
    ),
]
_GpuMemoryOption = Annotated[
    str | None,
    typer.Option(
        "--gpu-memory",
        metavar="SIZE",
        help=f"With --simulated or --nodes: memory of each GPU that is not told otherwise. "
        f"Default: {DEFAULT_GPU_MEMORY}.",
    ),
]
_KubeconfigOption = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="Add a Kubernetes cluster that `muster up` on this machine can reach. The file stays here.",
    ),
]
_KubeContextOption = Annotated[
    str | None,
    typer.Option("--context", help="Context in the kubeconfig. Default: its current context."),
]
_KubernetesOption = Annotated[
    bool, typer.Option("--kubernetes", help="Add a Kubernetes cluster; its agent runs inside it.")
]


def _add_add(app: typer.Typer) -> None:
    @command(
        app,
        "add",
        output=False,
        examples="""
        muster cluster add demo --simulated 32x8
        muster cluster add big --simulated 4x8 --gpu-model H100 --gpu-memory 80Gi --cpu-cores 96 --memory 1Ti
        muster cluster add trace --nodes nodes.yaml --dry-run
        muster cluster add trace --nodes nodes.csv
        muster cluster add lab --kubeconfig ~/.kube/config --context lab
        muster cluster add prod --kubernetes
        """,
    )
    def add(
        session: Session,
        name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new cluster.")],
        *,
        simulated: _SimulatedOption = None,
        nodes: NodesFileOption = None,
        cpu_cores: _CoresOption = None,
        memory: _MemoryOption = None,
        gpu_model: _GpuModelOption = None,
        gpu_memory: _GpuMemoryOption = None,
        kubeconfig: _KubeconfigOption = None,
        context: _KubeContextOption = None,
        kubernetes: _KubernetesOption = False,
        dry_run: NodesDryRunOption = False,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Add a cluster: a simulated one, whose nodes and pods exist only in memory, or a Kubernetes cluster."""
        if sum((simulated is not None, nodes is not None, kubeconfig is not None, kubernetes)) != 1:
            todo = "for example --simulated 32x8"
            raise usage("give exactly one of --simulated, --nodes, --kubeconfig and --kubernetes", todo=todo)
        if context is not None and kubeconfig is None:
            todo = "to choose a context of Muster, write it first: `muster --context NAME cluster add …`"
            raise usage("--context is a context of the kubeconfig here, so it needs --kubeconfig", todo=todo)
        asked = {"--cpu-cores": cpu_cores, "--memory": memory, "--gpu-model": gpu_model, "--gpu-memory": gpu_memory}
        _refuse_idle([flag for flag, value in asked.items() if value is not None], simulated, nodes)
        if dry_run and (kubeconfig is not None or kubernetes):
            raise usage("--dry-run goes with --simulated and --nodes", todo="leave --dry-run out")
        if kubeconfig is not None:
            connect_cluster(session, name, kubeconfig.expanduser(), context or "", idempotency_key)
            return
        if kubernetes:
            add_elsewhere(session, name, idempotency_key)
            return
        if simulated is not None:
            groups = [_alike(name, simulated, cores=cpu_cores, memory=memory, model=gpu_model, gpu_memory=gpu_memory)]
        else:
            assert nodes is not None
            gpu_bytes = size_of("--gpu-memory", DEFAULT_GPU_MEMORY if gpu_memory is None else gpu_memory)
            groups = read_node_file(nodes, gpu_bytes)
        _add_simulated(session, name, groups, idempotency_key, dry_run=dry_run)


def _add_simulated(session: Session, name: str, groups: list[Row], key: str | None, *, dry_run: bool) -> None:
    """Raises Problem."""
    if dry_run:
        clusters = rows_of(session.api.get("/clusters"), "clusters")
        if any(text_of(row, "name") == name for row in clusters):
            raise Problem(f"a cluster named {name!r} already exists", todo="give another name", code=ExitCode.CONFLICT)
        tell_dry_run(session, f"a new cluster {name}", groups)
        return

    def made(part: list[Row], key: str) -> str:
        nodes: list[Json] = [*part]
        body: Row = {"name": name, "kind": "simulated", "simulatedNodes": nodes}
        return text_of(session.api.mutate("POST", "/clusters", body, idempotency_key=key).body, "id")

    send_nodes(session, groups, key, made, "")
    session.out.talk(f"cluster {name} added with {counted(count_of(groups), 'node')}")


def _alike(
    name: str, simulated: str, *, cores: float | None, memory: str | None, model: str | None, gpu_memory: str | None
) -> Row:
    """Simulated nodes that are alike, as one group of the request."""
    count, gpus = parse_simulated(simulated)
    device_bytes = size_of("--gpu-memory", DEFAULT_GPU_MEMORY if gpu_memory is None else gpu_memory)
    # A node's name is one that Kubernetes takes; a cluster's may hold spaces and more.
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("._-") or "node"
    names: list[Json] = [f"{stem}-{number}" for number in range(count)]
    return {
        "names": names,
        "cpuCores": DEFAULT_CORES if cores is None else cores,
        "memoryBytes": size_of("--memory", DEFAULT_MEMORY if memory is None else memory),
        "gpus": gpus,
        "gpuModel": (DEFAULT_GPU_MODEL if model is None else model) if gpus else "",
        "gpuMemoryBytes": device_bytes if gpus else 0,
    }


def _refuse_idle(given: list[str], simulated: str | None, nodes: Path | None) -> None:
    """Raises Problem (usage) for a flag about nodes or GPUs that are not made here."""
    about_gpus = ("--gpu-model", "--gpu-memory")
    for flag in given:
        if simulated is None and not (nodes is not None and flag == "--gpu-memory"):
            why = "the file gives it for each node" if nodes is not None else "other nodes report what they have"
            raise usage(f"{flag} goes with --simulated: {why}", todo=f"leave {flag} out")
        if simulated is not None and flag in about_gpus and parse_simulated(simulated)[1] == 0:
            raise usage(f"{flag} needs nodes with GPUs, and --simulated {simulated} has none", todo=f"leave {flag} out")


def _add_changes(app: typer.Typer) -> None:
    @command(
        app,
        "set",
        output=False,
        examples="""
        muster cluster set local --ownership-protection on
        muster cluster set demo                               # from now on the default of this context
        """,
    )
    def set_(
        session: Session,
        cluster: ClusterArgument,
        *,
        ownership_protection: Annotated[
            str | None,
            typer.Option(
                "--ownership-protection",
                metavar="on|off",
                help="on: only owners, and who may override them, act on workloads.",
            ),
        ] = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Change a cluster's settings. With no option, make it this context's default."""
        if ownership_protection is None:
            from muster.cli.context_commands import set_default

            name = text_of(find_cluster(session.api, cluster), "name")
            set_default(session, cluster=name)
            return
        enabled = switch_option("--ownership-protection", ownership_protection)
        path = f"/clusters/{text_of(find_cluster(session.api, cluster), 'id')}"
        session.api.mutate("PATCH", path, {"ownershipProtection": enabled}, idempotency_key=idempotency_key)
        session.out.talk(f"ownership protection of {cluster} is {'on' if enabled else 'off'}")

    @command(app, "remove", output=False, examples="muster cluster remove demo\nmuster cluster remove demo --force -y")
    def remove(
        session: Session,
        cluster: ClusterArgument,
        *,
        force: Annotated[
            bool, typer.Option("--force", help="Also where workloads live there. They are deleted.")
        ] = False,
        yes: YesOption = False,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Remove a cluster on which no workload lives. No pod is placed on it any more."""
        confirm(f"remove cluster {cluster}{' and delete what lives there' if force else ''}?", yes=yes)
        # With a key it may come again after the cluster is gone.
        identifier = text_of(find_cluster(session.api, cluster, removed=idempotency_key is not None), "id")
        parameters = [("force", "true")] if force else []
        session.api.mutate("DELETE", f"/clusters/{identifier}", parameters=parameters, idempotency_key=idempotency_key)
        disconnect_cluster(session, identifier)
        session.out.talk(f"cluster {cluster} removed")


def _add_faults(app: typer.Typer) -> None:
    @command(
        app,
        "disconnect",
        output=False,
        examples="muster cluster disconnect demo\nmuster cluster disconnect demo -y",
    )
    def disconnect(
        session: Session, cluster: ClusterArgument, *, yes: YesOption = False, idempotency_key: IdempotencyOption = None
    ) -> None:
        """Cut a simulated cluster off from Muster, to try what happens when a cluster is lost. Its pods go on.

        Its agent hears and says nothing from now on. Some 30 seconds later the cluster is Disconnected, and workloads
        leave it as their projects say. `muster cluster reconnect` ends it.
        """
        confirm(f"cut cluster {cluster} off?", yes=yes)
        _relink(session, cluster, "disconnect", idempotency_key)
        session.out.talk(f"cluster {cluster} is cut off; it is Disconnected once its agent is missed, after some 30 s")

    @command(app, "reconnect", output=False, examples="muster cluster reconnect demo")
    def reconnect(session: Session, cluster: ClusterArgument, *, idempotency_key: IdempotencyOption = None) -> None:
        """Connect a simulated cluster again that was cut off. What became of its pods is told then."""
        _relink(session, cluster, "reconnect", idempotency_key)
        session.out.talk(f"cluster {cluster} is no longer cut off")


def _relink(session: Session, cluster: str, verb: str, key: str | None) -> None:
    identifier = text_of(find_cluster(session.api, cluster), "id")
    session.api.mutate("POST", f"/clusters/{identifier}/{verb}", idempotency_key=key)


def parse_simulated(text: str) -> tuple[int, int]:
    """Nodes and GPUs of each, of `32x8`. Raises Problem (usage)."""
    nodes, separator, gpus = text.lower().partition("x")
    if not separator or not nodes.isdecimal() or not gpus.isdecimal() or int(nodes) == 0:
        raise usage(f"--simulated: {text!r} is not NODESxGPUS", todo="write 32x8 for 32 nodes with 8 GPUs each")
    return int(nodes), int(gpus)
