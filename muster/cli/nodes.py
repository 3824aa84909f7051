"""`muster node` and `muster nodepool`."""

from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import typer

from muster.cli.command import Session, command, group
from muster.cli.complete import node_pools
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.names import default_cluster, find_cluster, find_node_pool, refuse_name
from muster.cli.options import ClusterOption, IdempotencyOption, WatchOption, WatchTimeoutOption
from muster.cli.output import Column, plain_text
from muster.cli.simulated_nodes import add_node_changes
from muster.cli.values import Row, format_number, number_of, row_of, rows_of, text_of
from muster.cli.watch import POLL_SECONDS, REFRESH_SECONDS, watch_rows

if TYPE_CHECKING:
    from muster.cli.outage import Patience

_QUICK_FOR_SECONDS: Final = 30.0
_SHOWN_VALUES: Final = 5
"""Of a label, in one sentence."""
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node in its cluster.")]


def _used(row: Row, key: str) -> str:
    """Reserved of there."""
    used, there = (format_number(number_of(row_of(row, kind), key)) for kind in ("reserved", "capacity"))
    return f"{used}/{there}"


def _used_memory(row: Row) -> str:
    from events.quantities import format_bytes

    used, there = (int(number_of(row_of(row, key), "memoryBytes")) for key in ("reserved", "capacity"))
    return f"{format_bytes(used)}/{format_bytes(there)}"


def _cordoned(row: Row) -> str:
    """Who keeps new pods away; empty where nobody does."""
    by, of = text_of(row, "cordonedBy"), text_of(row_of(row, "drain"), "maintenance")
    return (f"{by} ({of})" if of else by) if by else "by its cluster" if row.get("cordonedByCluster") else ""


NODE_COLUMNS: Final = (
    Column("NAME", "name"),
    Column("CLUSTER", "clusterName"),
    Column("POOL", "nodePool"),
    Column("READY", "ready"),
    Column("CORDONED", "cordonedBy", show=_cordoned),
    Column("GPU", "reserved.gpus", show=lambda row: _used(row, "gpus")),
    Column("CPU", "reserved.cpuCores", show=lambda row: _used(row, "cpuCores")),
    Column("MEMORY", "reserved.memoryBytes", show=_used_memory),
    Column("PODS", "reserved.pods"),
    Column("MODEL", "capacity.gpuModel"),
    Column("CORDONED-AT", "cordonedAt", time=True, wide=True),
    Column("SCHEDULABLE", "schedulable", wide=True),
    Column("STAND-IN", "standInGpus", wide=True),
    Column("VERSION", "version", wide=True),
)

POOL_COLUMNS: Final = (
    Column("NAME", "name"),
    Column("CLUSTER", "clusterName"),
    Column("LABEL", "labelKey"),
    Column("VALUE", "labelValue"),
    Column("NODES", "nodes"),
)


def add_nodes(root: typer.Typer) -> None:
    node = group("node")
    _add_node_reads(node)
    _add_marks(node)
    _add_drain(node)
    add_node_changes(node)
    root.add_typer(node, name="node")


def _add_node_reads(node: typer.Typer) -> None:

    @command(
        node,
        "list",
        examples="muster node list\nmuster node list --cluster local -o json",
        columns=NODE_COLUMNS,
        past=True,
    )
    def list_nodes(
        session: Session,
        *,
        cluster: ClusterOption = None,
        watch: WatchOption = False,
        timeout: WatchTimeoutOption = None,
    ) -> None:
        """List nodes, and how much of their capacity is reserved."""
        patience = session.patience(timeout, waits=watch)
        scope = _scope(session, cluster)

        def fetch() -> list[Row]:
            return rows_of(session.api.get("/nodes", scope), "nodes")

        if watch:
            watch_rows(
                patience,
                session.out,
                fetch,
                NODE_COLUMNS,
                key=lambda row: f"{text_of(row, 'clusterId')}/{text_of(row, 'name')}",
            )
        session.out.rows(fetch(), NODE_COLUMNS, empty="no nodes")

    @command(node, "describe", examples="muster node describe demo-3\nmuster node describe demo-3 -o yaml", past=True)
    def describe(session: Session, name: NodeArgument, *, cluster: ClusterOption = None) -> None:
        """Show a node: its capacity, what is reserved, and who cordoned it."""
        row = find_node(session, name, cluster)
        session.out.one(row, lambda: _describe(session, row), columns=NODE_COLUMNS)


def _add_marks(node: typer.Typer) -> None:
    @command(node, "cordon", output=False, examples="muster node cordon demo-3\nmuster node cordon n1 --cluster demo")
    def cordon(
        session: Session,
        name: NodeArgument,
        *,
        cluster: ClusterOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Keep new pods off a node. Running pods stay. Workloads that wait for it show who cordoned it, and when."""
        _mark(session, name, cluster, "cordon", idempotency_key)

    @command(node, "uncordon", output=False, examples="muster node uncordon demo-3")
    def uncordon(
        session: Session,
        name: NodeArgument,
        *,
        cluster: ClusterOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Allow new pods on a node again, unless its cluster itself keeps them off."""
        _mark(session, name, cluster, "uncordon", idempotency_key)


_DRAIN_NOTE: Final = "a drain goes on when nobody waits for it; `muster node uncordon` ends it"
_ForceOption = Annotated[
    bool, typer.Option("--force", help="End pods of non-preemptible workloads, too. Otherwise it waits until they end.")
]
_DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only show which pods would be told to end, and which ones would stay.")
]
_NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Begin it, and do not wait until the node is empty.")]

_DrainTimeoutOption = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help="Exit 7 if the node is not empty after this time, such as 10m. "
        "Default: no limit, but exit 9 if the server is away for 2m.",
    ),
]

DRAIN_COLUMNS: Final = (
    Column("WORKLOAD", "workloadName"),
    Column("PROJECT", "projectName"),
    Column("POD", "pod"),
    Column("PHASE", "phase"),
    Column("STAYS", "stays"),
    Column("PREEMPTIBLE", "preemptible", wide=True),
    Column("ID", "workloadId", wide=True),
)


def _add_drain(node: typer.Typer) -> None:
    @command(
        node,
        "drain",
        examples="""
        muster node drain demo-3
        muster node drain demo-3 --dry-run
        muster node drain demo-3 --force --timeout 10m
        """,
        columns=DRAIN_COLUMNS,
    )
    def drain(
        session: Session,
        name: NodeArgument,
        *,
        cluster: ClusterOption = None,
        force: _ForceOption = False,
        dry_run: _DryRunOption = False,
        no_wait: _NoWaitOption = False,
        timeout: _DrainTimeoutOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Empty a node: keep new pods off it, have its pods end with their grace and run elsewhere, and wait for that.

        It says which pods stay, and why. The drain itself is kept in Muster and ends when the node is empty; the node
        stays cordoned. After --timeout only the waiting ends.
        """
        if dry_run and no_wait:
            raise usage("--dry-run and --no-wait cannot be used together", todo="a dry run waits for nothing")
        patience = session.patience(timeout, waits=not (dry_run or no_wait), flags="a drain that is waited for")
        row = find_node(session, name, cluster)
        path = f"/nodes/{text_of(row, 'clusterId')}/{quote(text_of(row, 'name'), safe='')}"
        if dry_run:
            answer = session.api.get(f"{path}/pods", [("force", "true" if force else "false")])
            session.out.rows(rows_of(answer, "pods"), DRAIN_COLUMNS, empty=_nothing_seen(answer))
            return
        begun = session.api.mutate("POST", f"{path}/drain", {"force": force}, idempotency_key=idempotency_key)
        session.out.talk(f"node {name} of cluster {text_of(row, 'clusterName')} is cordoned and being drained")
        if no_wait:
            return
        try:
            _wait_until_empty(session, patience, name, path, begun.sequence or 0)
        except KeyboardInterrupt:
            session.out.talk(_DRAIN_NOTE)
            raise


def _nothing_seen(answer: Row) -> str:
    hidden = int(number_of(answer, "reserved"))
    return f"{hidden} pods of projects that you may not read" if hidden else "no pods"


def _wait_until_empty(session: Session, patience: "Patience", name: str, path: str, since: int) -> None:
    """Tells what is left, each time that it is something else. Raises Problem: 7 on timeout."""
    told = ""
    while True:
        answer = patience.ask(lambda: session.api.get(f"{path}/pods", [("min_seq", since)]))
        drain = row_of(answer, "drain")
        if drain.get("endedAt"):
            session.out.talk(f"node {name} is drained: it is empty, and stays cordoned")
            return
        if not drain:
            raise Problem(f"node {name} is not drained any more: somebody uncordoned it", code=ExitCode.CONFLICT)
        left = _left_on(answer)
        if left != told:
            session.out.talk(f"node {name}: {left}")
        told = left
        if patience.remaining() == 0:
            raise Problem(f"node {name} is not empty yet", why=(left,), todo=_DRAIN_NOTE, code=ExitCode.TIMED_OUT)
        patience.sleep(POLL_SECONDS if patience.spent_seconds < _QUICK_FOR_SECONDS else REFRESH_SECONDS)


def _left_on(answer: Row) -> str:
    """How many pods are left, and what stands in the way."""
    pods, reserved = rows_of(answer, "pods"), int(number_of(answer, "reserved"))
    parts = [f"{reserved} pod{'' if reserved == 1 else 's'} left"]
    staying = [pod for pod in pods if text_of(pod, "stays")]
    parts += [
        f"{text_of(pod, 'workloadName')}/{text_of(pod, 'pod')} stays: {text_of(pod, 'stays')}"
        for pod in staying[:_SHOWN_VALUES]
    ]
    if len(staying) > _SHOWN_VALUES:
        parts.append(f"and {len(staying) - _SHOWN_VALUES} more stay")
    return "; ".join(parts)


def _mark(session: Session, name: str, cluster: str | None, verb: str, key: str | None) -> None:
    row = find_node(session, name, cluster)
    path = f"/nodes/{text_of(row, 'clusterId')}/{quote(text_of(row, 'name'), safe='')}/{verb}"
    session.api.mutate("POST", path, idempotency_key=key)
    session.out.talk(f"node {text_of(row, 'name')} of cluster {text_of(row, 'clusterName')} {verb}ed")


def find_node(session: Session, name: str, cluster: str | None) -> Row:
    """The node of this name. Raises Problem: where there is none, and where several clusters have one."""
    nodes = rows_of(session.api.get("/nodes", _scope(session, cluster)), "nodes")
    found = [row for row in nodes if text_of(row, "name") == name]
    if len(found) == 1:
        return found[0]
    if found:
        clusters = ", ".join(sorted(text_of(row, "clusterName") for row in found))
        raise usage(f"several clusters have a node {name!r}: {clusters}", todo="choose with --cluster")
    return refuse_name(nodes, name, what="node", as_of=session.as_of)


def _extended(row: Row) -> list[tuple[str, float, float]]:
    """Name, reserved amount and capacity of each extended resource."""
    there, reserved = (row_of(row_of(row, kind), "extendedResources") for kind in ("capacity", "reserved"))
    return [(name, number_of(reserved, name), number_of(there, name)) for name in sorted(there)]


def _describe(session: Session, row: Row) -> None:
    out = session.out
    labels = ", ".join(f"{key}={plain_text(value)}" for key, value in row_of(row, "labels").items())
    taints = ", ".join(
        f"{text_of(t, 'key')}={text_of(t, 'value')}:{text_of(t, 'effect')}" for t in rows_of(row, "taints")
    )
    by, since = text_of(row, "cordonedBy"), out.time(row.get("cordonedAt"))
    marks = [f"by {by} {since}" if by else "", "by its cluster" if row.get("cordonedByCluster") else ""]
    drain = row_of(row, "drain")
    drained = (
        "" if not drain else f"empty since {out.time(drain.get('endedAt'))}" if drain.get("endedAt") else "going on"
    )
    out.pairs(
        [
            ("Name", text_of(row, "name")),
            ("Cluster", text_of(row, "clusterName")),
            ("Pool", text_of(row, "nodePool")),
            ("Ready", plain_text(row.get("ready"))),
            ("Cordoned", ", ".join(filter(None, marks))),
            ("Drain", f"{drained}, by {text_of(drain, 'startedBy')}" if drain else ""),
            ("Maintenance", text_of(drain, "maintenance")),
            ("GPUs", f"{_used(row, 'gpus')} {text_of(row_of(row, 'capacity'), 'gpuModel')}".strip()),
            ("CPU cores", _used(row, "cpuCores")),
            ("Memory", _used_memory(row)),
            ("Pods", _used(row, "pods")),
            *((name, f"{format_number(used)}/{format_number(there)}") for name, used, there in _extended(row)),
            ("Labels", labels),
            ("Taints", taints),
        ]
    )


def add_pools(root: typer.Typer) -> None:
    pool = group("nodepool")

    @command(
        pool,
        "list",
        examples="muster nodepool list\nmuster nodepool list --cluster demo",
        columns=POOL_COLUMNS,
        past=True,
    )
    def list_pools(session: Session, *, cluster: ClusterOption = None) -> None:
        """List node pools. Nodes that are in no other pool are in the pool `default`."""
        rows = rows_of(session.api.get("/node-pools", _scope(session, cluster)), "nodePools")
        session.out.rows(rows, POOL_COLUMNS, empty="no node pools, because there are no clusters")

    _add_pool_changes(pool)
    root.add_typer(pool, name="nodepool")


_LabelOption = Annotated[
    str,
    typer.Option("--label", metavar="KEY=VALUE", help="A node is in the pool if it has this label with this value."),
]


def _labelled(label: str) -> tuple[str, str]:
    """Raises Problem (usage)."""
    key, separator, value = label.partition("=")
    if not key or not separator:
        raise usage(f"--label: {label!r} is not KEY=VALUE")
    return key, value


def _pool_is_set(session: Session, name: str, cluster: Row, key: str, value: str) -> None:
    nodes = rows_of(session.api.get("/nodes", [("clusterId", text_of(cluster, "id"))]), "nodes")
    told = _matching(nodes, key, value)
    session.out.talk(f"node pool {name} of cluster {text_of(cluster, 'name')} set; {told}")


def _add_pool_changes(pool: typer.Typer) -> None:
    @command(
        pool, "add", output=False, examples="muster nodepool add h100 --cluster big --label nvidia.com/gpu.product=H100"
    )
    def add_pool(
        session: Session,
        name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the pool.")],
        *,
        cluster: ClusterOption = None,
        label: _LabelOption,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Create a node pool of the nodes with a label."""
        key, value = _labelled(label)
        place = default_cluster(session, cluster)
        body: Row = {"clusterId": text_of(place, "id"), "name": name, "labelKey": key, "labelValue": value}
        session.api.mutate("POST", "/node-pools", body, idempotency_key=idempotency_key)
        _pool_is_set(session, name, place, key, value)

    @command(
        pool, "set", output=False, examples="muster nodepool set h100 --cluster big --label nvidia.com/gpu.product=H100"
    )
    def set_pool(
        session: Session,
        name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the pool.", autocompletion=node_pools)],
        *,
        cluster: ClusterOption = None,
        label: _LabelOption,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Change which nodes are in a node pool. Pods that run stay where they are."""
        key, value = _labelled(label)
        place = default_cluster(session, cluster)
        if idempotency_key is None:
            find_node_pool(session.api, name, text_of(place, "id"))
        path = f"/node-pools/{text_of(place, 'id')}/{quote(name, safe='')}"
        session.api.mutate("PUT", path, {"labelKey": key, "labelValue": value}, idempotency_key=idempotency_key)
        _pool_is_set(session, name, place, key, value)

    @command(pool, "remove", output=False, examples="muster nodepool remove h100 --cluster big")
    def remove_pool(
        session: Session,
        name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the pool.", autocompletion=node_pools)],
        *,
        cluster: ClusterOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Remove a node pool. Its nodes go back to the pool `default`."""
        from events.cluster import DEFAULT_POOL

        place = default_cluster(session, cluster)
        identifier, where = text_of(place, "id"), text_of(place, "name")
        if name == DEFAULT_POOL:
            raise usage(f"the pool {name!r} cannot be removed: it holds the nodes that are in no other pool")
        if idempotency_key is None:  # with a key it may come again after the pool is gone
            find_node_pool(session.api, name, identifier)
        path = f"/node-pools/{identifier}/{name}"
        session.api.mutate("DELETE", path, idempotency_key=idempotency_key)
        session.out.talk(f"node pool {name} of cluster {where} removed")


def _matching(nodes: list[Row], key: str, value: str) -> str:
    """How many nodes carry the label; where none does, what would do."""
    if not nodes:
        return "it has no nodes yet"
    values = [row_of(node, "labels").get(key) for node in nodes]
    told = f"{values.count(value)} of {len(nodes)} nodes carry {key}={value} now"
    if value in values:
        return told
    others = sorted({f"{key}={other}" for other in values if isinstance(other, str)})
    if not others:
        return f"{told}; `muster node list -o json` shows their labels"
    more = " and others" if len(others) > _SHOWN_VALUES else ""
    return f"{told}; they have {', '.join(others[:_SHOWN_VALUES])}{more}"


def _scope(session: Session, cluster: str | None) -> list[tuple[str, str | int]]:
    return [("clusterId", text_of(find_cluster(session.api, cluster), "id"))] if cluster else []
