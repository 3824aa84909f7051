"""Nodes of simulated clusters: files of them, and `muster node add`, `set` and `remove`."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote
from uuid import uuid4

import typer

from muster.cli.command import Session, command
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.names import cluster_id
from muster.cli.options import ClusterOption, IdempotencyOption, YesOption, confirm
from muster.cli.units import LEAST_MEANT
from muster.cli.unreadable import unreadable
from muster.cli.values import Json, Row, counted, number_of, rows_of, text_of

if TYPE_CHECKING:
    from events.simulated import SimulatedNodes

DEFAULT_CORES: Final = 64.0
"""Of a simulated node, where nothing is said; likewise the others. About what a server with eight GPUs has."""
DEFAULT_MEMORY: Final = "512Gi"
DEFAULT_GPU_MEMORY: Final = "80Gi"
DEFAULT_GPU_MODEL: Final = "simulated"
MOST_PROBLEMS: Final = 50
"""Of a file, in one message."""
_PART_BYTES: Final = 384 * 1024
"""Of one request, as JSON: the API takes 512 KiB."""
_PART_ENTRIES: Final = 1_000
_MOST_DIGITS: Final = 18
_PART_NAMES: Final = 1_000
"""Of one entry. A name has at most 253 characters."""

NodesFileOption = Annotated[
    Path | None,
    typer.Option(
        "--nodes",
        metavar="FILE",
        help="Nodes from a file of YAML or CSV (`-`: standard input) with name, cpu, memory, gpus, gpuModel, "
        "gpuMemory, labels, taints, extendedResources, pool. Only the first three are required.",
    ),
]
NodesDryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Check the nodes and show what would be added, and add nothing.")
]
_CoresOption = Annotated[str | None, typer.Option("--cpu-cores", metavar="X", help="CPU cores, such as 64 or 0.5.")]
_MemoryOption = Annotated[str | None, typer.Option("--memory", metavar="SIZE", help="Memory, such as 512Gi.")]
_GpusOption = Annotated[str | None, typer.Option("--gpus", metavar="N", help="Number of GPUs.")]
_GpuModelOption = Annotated[str | None, typer.Option("--gpu-model", metavar="TEXT", help="Model of each GPU.")]
_GpuMemoryOption = Annotated[
    str | None, typer.Option("--gpu-memory", metavar="SIZE", help="Memory of each GPU, such as 80Gi.")
]
_LabelOption = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="A label; with `set`, KEY- takes it off. Repeatable."),
]
_TaintOption = Annotated[
    list[str] | None,
    typer.Option(
        "--taint",
        metavar="KEY=VALUE:EFFECT",
        help="A taint; with `set`, KEY:EFFECT- takes it off. Repeatable.",
    ),
]
_ResourceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--extended-resource",
        metavar="NAME=N",
        help="An extended resource, such as rdma/hca=2; with `set`, NAME- takes it away. Repeatable.",
    ),
]
_PoolOption = Annotated[
    str | None, typer.Option("--pool", metavar="NAME", help="Node pool to be in. It is made where there is none.")
]
NamesArgument = Annotated[list[str] | None, typer.Argument(metavar="NODE...", help="Names of the nodes.")]
NameArgument = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node in its cluster.")]


# -- files -----------------------------------------------------------------------------------------------------------


def read_node_file(file: Path, gpu_memory_bytes: int) -> list[Row]:
    """Nodes of a file as entries of a request, those that are alike together. Raises Problem with all that is wrong.

    Args:
        gpu_memory_bytes: memory of each GPU of nodes that do not say it.
    """
    from events.node_file import alike, form_of, read_nodes

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(f"--nodes: {file}", error, todo="give a file of YAML or CSV in UTF-8") from error
    form = "csv" if str(file) == "-" and _looks_like_csv(text) else form_of(str(file))
    read = read_nodes(text, form, gpu_memory_bytes=gpu_memory_bytes)
    if read.problems:
        told = [str(problem) for problem in read.problems[:MOST_PROBLEMS]]
        if (more := len(read.problems) - len(told)) > 0:
            told.append(f"and {more:,} more")
        count = len(read.problems)
        what = f"--nodes: {file}: {count:,} value{'' if count == 1 else 's'} will not do"
        raise Problem(what, why=tuple(told), todo="nothing was added; mend these values", code=ExitCode.USAGE)
    return [_entry(nodes, pool) for nodes, pool in alike(read.nodes)]


def _looks_like_csv(text: str) -> bool:
    first = text.partition("\n")[0]
    return "," in first and ":" not in first


def _entry(nodes: "SimulatedNodes", pool: str) -> Row:
    names: list[Json] = [*nodes.names]
    entry: Row = {
        "names": names,
        "cpuCores": nodes.cpu_milli / 1000,
        "memoryBytes": nodes.memory_bytes,
        "gpus": nodes.gpu_count,
        "gpuModel": nodes.gpu_model,
        "gpuMemoryBytes": nodes.gpu_memory_bytes,
        "labels": [{"name": name, "value": value} for name, value in nodes.labels.items()],
        "taints": [{"key": one.key, "value": one.value, "effect": one.effect} for one in nodes.taints],
        "extendedResources": [{"resource": name, "amount": amount} for name, amount in nodes.extended.items()],
    }
    return entry | ({"nodePool": pool} if pool else {})


def names_of(entry: Row) -> list[Json]:
    names = entry.get("names")
    return names if isinstance(names, list) else []


def count_of(entries: list[Row]) -> int:
    return sum(len(names_of(entry)) for entry in entries)


def _parts(entries: list[Row]) -> Iterator[list[Row]]:
    """As many requests as they need; nearly always one."""
    part: list[Row] = []
    size = 0
    for entry in _cut(entries):
        more = len(json.dumps(entry)) + 1
        if part and (size + more > _PART_BYTES or len(part) == _PART_ENTRIES):
            yield part
            part, size = [], 0
        part.append(entry)
        size += more
    if part:
        yield part


def _cut(entries: list[Row]) -> Iterator[Row]:
    for entry in entries:
        names = names_of(entry)
        for start in range(0, len(names), _PART_NAMES):
            yield {**entry, "names": names[start : start + _PART_NAMES]}


def send_nodes(
    session: Session, entries: list[Row], key: str | None, first: Callable[[list[Row], str], str] | None, cluster: str
) -> None:
    """Adds nodes to a cluster, in as many requests as they need. Raises Problem.

    Args:
        first: sends the first part, and answers the cluster's id: where the cluster is made with it.
        cluster: its id; empty with `first`.
    """
    key = key or str(uuid4())
    done = 0
    for number, part in enumerate(_parts(entries)):
        try:
            if number == 0 and first is not None:
                cluster = first(part, key)
            else:
                nodes: list[Json] = [*part]
                body: Row = {"clusterId": cluster, "nodes": nodes}
                session.api.mutate("POST", "/nodes", body, idempotency_key=f"{key}-{number}" if number else key)
        except Problem as problem:
            if not done:
                raise
            of = counted(count_of(entries), "node")
            raise Problem(
                f"{done:,} of {of} were added, and the next ones were not: {problem.what}",
                why=problem.why,
                todo=f"mend that, and the same command with `--idempotency-key {key}` adds those that are missing",
                code=problem.code,
            ) from problem
        done += count_of(part)


def tell_dry_run(session: Session, where: str, entries: list[Row]) -> None:
    count = count_of(entries)
    gpus = sum(int(number_of(entry, "gpus")) * len(names_of(entry)) for entry in entries)
    pools = sorted({pool for entry in entries if (pool := text_of(entry, "nodePool"))})
    told = f"{where} would get {counted(count, 'node')} of {counted(len(entries), 'kind')} with {counted(gpus, 'GPU')}"
    session.out.talk(told + (f", in the pools {', '.join(pools)}" if pools else "") + "; nothing was added")


# -- commands --------------------------------------------------------------------------------------------------------


def add_node_changes(node: typer.Typer) -> None:
    _add_add(node)
    _add_set(node)
    _add_remove(node)


def _add_add(node: typer.Typer) -> None:
    @command(
        node,
        "add",
        output=False,
        examples="""
        muster node add gpu-7 gpu-8 --cluster demo --gpus 8 --gpu-model H100
        muster node add cpu-1 --cluster demo --cpu-cores 32 --memory 128Gi --label zone=b --pool cpu
        muster node add --cluster demo --nodes more.yaml --dry-run
        """,
    )
    def add(
        session: Session,
        names: NamesArgument = None,
        *,
        cluster: ClusterOption = None,
        nodes: NodesFileOption = None,
        cpu_cores: _CoresOption = None,
        memory: _MemoryOption = None,
        gpus: _GpusOption = None,
        gpu_model: _GpuModelOption = None,
        gpu_memory: _GpuMemoryOption = None,
        label: _LabelOption = None,
        taint: _TaintOption = None,
        extended_resource: _ResourceOption = None,
        pool: _PoolOption = None,
        dry_run: NodesDryRunOption = False,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Add nodes to a simulated cluster while it runs. Waiting workloads may start there at once."""
        said: dict[str, object] = {
            "--cpu-cores": cpu_cores,
            "--memory": memory,
            "--gpus": gpus,
            "--gpu-model": gpu_model,
            "--label": label,
            "--taint": taint,
            "--extended-resource": extended_resource,
            "--pool": pool,
        }
        if bool(names) == (nodes is not None):
            raise usage("give names of nodes, or a file with --nodes", todo="as in `muster node add gpu-7 --gpus 8`")
        if nodes is not None:
            if given := next((flag for flag, value in said.items() if value is not None), None):
                raise usage(f"{given} goes with names: the file gives it for each node", todo=f"leave {given} out")
            entries = read_node_file(nodes, size_of("--gpu-memory", gpu_memory or DEFAULT_GPU_MEMORY))
        else:
            lists = {"--label": label, "--taint": taint, "--extended-resource": extended_resource}
            entries = [_new(names or [], said, gpu_memory, lists)]
        place, where = _simulated(session, cluster)
        if dry_run:
            _refuse_known(session, place, where, entries)
            tell_dry_run(session, f"cluster {where}", entries)
            return
        send_nodes(session, entries, idempotency_key, None, place)
        session.out.talk(f"{counted(count_of(entries), 'node')} added to cluster {where}")


def _new(names: list[str], said: dict[str, object], gpu_memory: str | None, lists: dict[str, list[str] | None]) -> Row:
    """One entry of the request. Raises Problem (usage)."""
    has_gpus = int(_whole("--gpus", str(said["--gpus"] or 0)))
    for flag, value in (("--gpu-model", said["--gpu-model"]), ("--gpu-memory", gpu_memory)):
        if value is not None and not has_gpus:
            raise usage(f"{flag} needs nodes with GPUs", todo=f"give --gpus N, or leave {flag} out")
    listed: list[Json] = [*dict.fromkeys(names)]
    entry: Row = {
        "names": listed,
        "cpuCores": _cores(str(said["--cpu-cores"])) if said["--cpu-cores"] else DEFAULT_CORES,
        "memoryBytes": size_of("--memory", str(said["--memory"] or DEFAULT_MEMORY)),
        "gpus": has_gpus,
        "gpuModel": str(said["--gpu-model"] or DEFAULT_GPU_MODEL) if has_gpus else "",
        "gpuMemoryBytes": size_of("--gpu-memory", gpu_memory or DEFAULT_GPU_MEMORY) if has_gpus else 0,
    }
    for flag, given in lists.items():
        field, read = _LISTS[flag]
        items: list[Json] = [read(flag, text, False) for text in given or ()]
        entry[field] = items
    return entry | ({"nodePool": str(said["--pool"])} if said["--pool"] else {})


def _add_set(node: typer.Typer) -> None:
    @command(
        node,
        "set",
        output=False,
        examples="""
        muster node set gpu-7 --gpus 4
        muster node set gpu-7 --label zone=c --taint team=a:NoSchedule --extended-resource rdma/hca=2
        muster node set gpu-7 --label zone- --taint team:NoSchedule-
        """,
    )
    def set_(
        session: Session,
        name: NameArgument,
        *,
        cluster: ClusterOption = None,
        cpu_cores: _CoresOption = None,
        memory: _MemoryOption = None,
        gpus: _GpusOption = None,
        gpu_model: _GpuModelOption = None,
        gpu_memory: _GpuMemoryOption = None,
        label: _LabelOption = None,
        taint: _TaintOption = None,
        extended_resource: _ResourceOption = None,
        pool: _PoolOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Change what a node of a simulated cluster has. Pods that run there stay, also where it has less now."""
        body: Row = {
            "cpuCores": None if cpu_cores is None else _cores(cpu_cores),
            "memoryBytes": None if memory is None else size_of("--memory", memory),
            "gpus": None if gpus is None else _whole("--gpus", gpus),
            "gpuModel": gpu_model,
            "gpuMemoryBytes": None if gpu_memory is None else size_of("--gpu-memory", gpu_memory),
            "nodePool": pool,
        }
        body = {key: value for key, value in body.items() if value is not None}
        for flag, given in (("--label", label), ("--taint", taint), ("--extended-resource", extended_resource)):
            field, read = _LISTS[flag]
            if given:
                items: list[Json] = [read(flag, text, True) for text in given]
                body[field] = items
        if not body:
            raise usage("give something to change", todo="as in `muster node set gpu-7 --gpus 4`")
        row = _find(session, name, cluster)
        told = session.api.mutate("PATCH", _path(row), body, idempotency_key=idempotency_key)
        so_already = "was so already" in text_of(told.body, "message")
        done = "is so already: nothing was changed" if so_already else "changed"
        session.out.talk(f"node {name} of cluster {text_of(row, 'clusterName')} {done}")


def _add_remove(node: typer.Typer) -> None:
    @command(
        node,
        "remove",
        output=False,
        examples="muster node remove gpu-7\nmuster node remove gpu-7 --cluster demo --dry-run",
    )
    def remove(
        session: Session,
        name: NameArgument,
        *,
        cluster: ClusterOption = None,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Only say how many pods would end with the node.")
        ] = False,
        yes: YesOption = False,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Remove a node from a simulated cluster. Its pods end as those of a lost node do, with the reason node_lost.

        `muster node drain` empties a node before that.
        """
        if idempotency_key is not None:  # it may come again after the node is gone
            place, where = _simulated(session, cluster)
            path = f"/nodes/{place}/{quote(name, safe='')}"
        else:
            row = _find(session, name, cluster)
            path, where = _path(row), text_of(row, "clusterName")
            count = int(number_of(session.api.get(f"{path}/pods"), "reserved"))
            pods = f"{count} pod{'' if count == 1 else 's'}"
            if dry_run:
                session.out.talk(f"{pods} would end with node {name} of cluster {where}; nothing was removed")
                return
            confirm(f"remove node {name} of cluster {where}, on which {pods} run?", yes=yes)
        session.api.mutate("DELETE", path, idempotency_key=idempotency_key)
        session.out.talk(f"node {name} of cluster {where} removed")


def _simulated(session: Session, given: str | None) -> tuple[str, str]:
    """Id and name of the cluster: the flag's, else the only simulated one. Raises Problem."""
    clusters = rows_of(session.api.get("/clusters"), "clusters")
    simulated = [row for row in clusters if text_of(row, "kind") == "simulated"]
    if not given and not session.target.cluster and len(simulated) == 1:
        return text_of(simulated[0], "id"), text_of(simulated[0], "name")
    identifier = cluster_id(session, given)
    found = [row for row in clusters if text_of(row, "id") == identifier]
    if found and text_of(found[0], "kind") != "simulated":
        raise usage(
            f"cluster {text_of(found[0], 'name')} is of kind {text_of(found[0], 'kind')}: its agent reports its nodes, "
            "and they are added and removed there",
            todo="name a simulated cluster with --cluster; `muster node cordon` and `drain` work on real nodes, too",
        )
    return identifier, text_of(found[0], "name") if found else (given or "")


def _refuse_known(session: Session, place: str, where: str, entries: list[Row]) -> None:
    there = {text_of(row, "name") for row in rows_of(session.api.get("/nodes", [("clusterId", place)]), "nodes")}
    if taken := sorted(str(name) for entry in entries for name in names_of(entry) if name in there):
        from events.simulated import shown_names

        told = f"cluster {where} already has nodes of these names: {shown_names(taken)}"
        raise Problem(told, todo="leave them out, or change them with `muster node set`", code=ExitCode.CONFLICT)


def _find(session: Session, name: str, cluster: str | None) -> Row:
    from muster.cli.nodes import find_node

    return find_node(session, name, cluster)


def _path(row: Row) -> str:
    return f"/nodes/{text_of(row, 'clusterId')}/{quote(text_of(row, 'name'), safe='')}"


# -- values ----------------------------------------------------------------------------------------------------------


def size_of(flag: str, text: str) -> int:
    """Bytes. Raises Problem (usage)."""
    from events.quantities import QuantityError, parse_bytes

    try:
        size = parse_bytes(text)
    except QuantityError as error:
        raise usage(f"{flag}: {error}") from error
    if 0 < size < LEAST_MEANT:
        todo = f"write {text}Gi or {text}Mi" if text.isdecimal() else "write 512Gi"
        raise usage(f"{flag}: {text} is {size} bytes, and must be at least 1Mi", todo=todo)
    return size


def _cores(text: str) -> float:
    from events.quantities import QuantityError, parse_quantity

    try:
        return float(parse_quantity(text))
    except QuantityError as error:
        raise usage(f"--cpu-cores: {error}", todo="write 64, 0.5 or 500m") from error


def _whole(flag: str, text: str) -> int:
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise usage(f"{flag}: {text!r} is not a whole number", todo="write 8")
    return int(text)


def _label(flag: str, text: str, drops: bool) -> Row:  # noqa: FBT001 (as the others of `_LISTS`)
    if drops and text.endswith("-") and "=" not in text:
        return {"name": text.removesuffix("-"), "exclude": True}
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise usage(f"{flag}: {text!r} is not KEY=VALUE{' or KEY-' if drops else ''}", todo="as in --label zone=b")
    return {"name": name, "value": value}


def _taint(flag: str, text: str, drops: bool) -> Row:  # noqa: FBT001
    off = drops and text.endswith("-")
    pair, separator, effect = text.removesuffix("-" if off else "").rpartition(":")
    key, _, value = pair.partition("=")
    if not key or not separator or not effect:
        form = f"KEY=VALUE:EFFECT or KEY:EFFECT{', or KEY:EFFECT-' if drops else ''}"
        raise usage(f"{flag}: {text!r} is not {form}", todo="as in --taint team=a:NoSchedule")
    taint: Row = {"key": key, "value": value, "effect": effect}
    return {**taint, "exclude": True} if off else taint


def _resource(flag: str, text: str, drops: bool) -> Row:  # noqa: FBT001
    if drops and text.endswith("-") and "=" not in text:
        return {"resource": text.removesuffix("-"), "exclude": True}
    name, separator, amount = text.partition("=")
    if not name or not separator:
        form = f"NAME=N{' or NAME-' if drops else ''}"
        raise usage(f"{flag}: {text!r} is not {form}", todo="as in --extended-resource rdma/hca=2")
    return {"resource": name, "amount": _whole(flag, amount)}


_LISTS: Final[dict[str, tuple[str, Callable[[str, str, bool], Row]]]] = {
    "--label": ("labels", _label),
    "--taint": ("taints", _taint),
    "--extended-resource": ("extendedResources", _resource),
}
