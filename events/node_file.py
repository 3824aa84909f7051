"""Nodes in a file, as YAML or CSV: what simulated clusters are made of. Pure: whoever has the text calls this.

Every problem of a file is found, each with its line, its field, the rule, what was given and what would do. Values are
read as text, so that a label `on` in YAML stays the word that stands there.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec
from msgspec.structs import replace

from events.agent_bounds import MAX_BYTES, MAX_CPU_MILLI, MAX_EXTENDED, MAX_GPUS, MAX_PIECES, shown
from events.labels import LABEL_KEY, LABEL_VALUE
from events.nearest import did_you_mean
from events.node import Taint
from events.quantities import QuantityError, parse_bytes, parse_quantity
from events.simulated import MOST_NODES, SimulatedNodes
from events.workload.needs import GPU, is_extended

if TYPE_CHECKING:
    import yaml

Form = Literal["csv", "yaml"]

MOST_LABELS: Final = 100
"""Of a simulated node; likewise taints."""
MOST_TAINTS: Final = 20
NAME_PATTERN: Final = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"
"""Of a node, and of a pool."""
NAME_WORDS: Final = "must be letters, digits, `.`, `_` and `-`, with a letter or digit at both ends"
LONGEST_NAME: Final = 253
LONGEST_POOL: Final = 63
LONGEST_MODEL: Final = 63
EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_NAME: Final = re.compile(NAME_PATTERN.removesuffix("$") + r"\Z")
_TAINT: Final = re.compile(r"([^=:]+)(?:=([^:]*))?:(.+)\Z")
_MEBIBYTE: Final = 1024**2
_MERGE: Final = "tag:yaml.org,2002:merge"
_NULL: Final = "tag:yaml.org,2002:null"
MOST_DEPTH: Final = 10
"""Of lists and mappings within each other."""
FEW_CELLS: Final = 100_000
CELLS_OF_CHARACTER: Final = 20
MOST_CELLS: Final = 300 * MOST_NODES
"""How many values a file may stand for, with those of its aliases: so many, so many more for each character of it, and
so many in all. Ten thousand nodes that merge all that a node can have stay below each.
"""

OLD_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model", "extended_resources")
"""Of the CSV files of before, with what they are called now."""
_NOW: Final[dict[str, str]] = dict(
    zip(OLD_COLUMNS, ("name", "cpu", "memory", "gpus", "gpuModel", "extendedResources"), strict=True)
)


class FileNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a file."""

    name: str
    line: int
    """Where it begins."""
    cpu_milli: int
    memory_bytes: int
    gpu_count: int = 0
    gpu_model: str = ""
    gpu_memory_bytes: int = 0
    """Of one device."""
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    extended: dict[str, int] = {}
    pool: str = ""
    """Empty: what its labels say."""


class NodeProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with one value of a file."""

    line: int
    field: str
    """As the file calls it; empty where it is about the file."""
    rule: str
    """What would do, as `must be …`."""
    given: str | None = None
    """Cut; None where nothing was given."""

    def __str__(self) -> str:
        field = f", {self.field}" if self.field else ""
        return f"line {self.line}{field}: {self.rule}" + ("" if self.given is None else f"; given {self.given!r}")


class NodesRead(msgspec.Struct, frozen=True):
    """Nodes of a file in its order; those with problems are left out."""

    nodes: tuple[FileNode, ...]
    problems: tuple[NodeProblem, ...]


class _Cell(msgspec.Struct, frozen=True):
    """A value where it stands."""

    line: int
    value: "str | dict[str, _Cell] | list[_Cell]"


class _Entry(msgspec.Struct, frozen=True):
    """What a file says of one node, by field as the file calls it."""

    line: int
    cells: dict[str, _Cell]
    lacks: frozenset[str] = frozenset()
    """Fields of which it was said already that they are not there."""
    cut: bool = False
    """Whether something of it was wrong before its fields were looked at."""


class _Wrong(Exception):
    """One value breaks a rule."""

    def __init__(self, line: int, field: str, rule: str, given: str | None = None) -> None:
        super().__init__(rule)
        self.problem = NodeProblem(line=line, field=field, rule=rule, given=None if given is None else shown(given))


def form_of(name: str) -> Form:
    """By the end of a file's name: everything but .csv is read as YAML, of which JSON is a part."""
    return "csv" if name.lower().endswith(".csv") else "yaml"


def read_nodes(text: str, form: Form, *, gpu_memory_bytes: int = 0) -> NodesRead:
    """All nodes of a file, and all that is wrong with it.

    Args:
        gpu_memory_bytes: memory of a device of nodes that have GPUs and do not say how large they are.
    """
    problems: list[NodeProblem] = []
    nodes: list[FileNode] = []
    lines: dict[str, int] = {}
    entries: list[_Entry] = []
    try:
        entries.extend(_csv_entries(text, problems) if form == "csv" else _yaml_entries(text, problems))
    except _Wrong as wrong:  # what came before it is looked at all the same
        problems.append(wrong.problem)
    for entry in entries:
        node = _node(entry, gpu_memory_bytes, problems)
        called = _called(entry, "name")
        name = entry.cells[called].value if called in entry.cells else ""
        if not isinstance(name, str) or not name:
            continue
        if (before := lines.get(name)) is not None:
            rule = f"must be unique; line {before} has a node of this name"
            line = entry.cells[called].line
            problems.append(NodeProblem(line=line, field=called, rule=rule, given=shown(name)))
            continue
        lines[name] = entry.line
        if node is not None:
            nodes.append(node)
    if not entries and not problems:
        problems.append(NodeProblem(line=1, field="", rule="must hold at least one node; it holds none"))
    if len(entries) > MOST_NODES:
        rule = f"must hold at most {MOST_NODES:,} nodes; it holds {len(entries):,}"
        problems.append(NodeProblem(line=entries[MOST_NODES].line, field="", rule=rule))
    return NodesRead(tuple(nodes), tuple(sorted(problems, key=lambda one: one.line)))


def alike(nodes: Iterable[FileNode]) -> list[tuple[SimulatedNodes, str]]:
    """Nodes that are alike together, each with the pool that they are to be in (empty: what their labels say)."""
    found: dict[bytes, tuple[FileNode, list[str]]] = {}
    for node in nodes:
        kind = msgspec.msgpack.encode(replace(node, name="", line=0), order="deterministic")
        found.setdefault(kind, (node, []))[1].append(node.name)
    return [
        (
            SimulatedNodes(
                names=tuple(names),
                cpu_milli=node.cpu_milli,
                memory_bytes=node.memory_bytes,
                gpu_count=node.gpu_count,
                gpu_model=node.gpu_model,
                gpu_memory_bytes=node.gpu_memory_bytes,
                labels=node.labels,
                taints=node.taints,
                extended=node.extended,
            ),
            node.pool,
        )
        for node, names in found.values()
    ]


# -- one node --------------------------------------------------------------------------------------------------------


def _called(entry: _Entry, field: str) -> str:
    """A field as this file calls it."""
    return next((old for old, now in _NOW.items() if now == field and old in entry.cells), field)


def _node(entry: _Entry, gpu_memory_bytes: int, problems: list[NodeProblem]) -> FileNode | None:
    """None where something is wrong with it."""
    before = len(problems)
    for known in entry.cells.keys() - _FIELDS.keys():
        todo = did_you_mean(known, _FIELDS) or f"the fields are {', '.join(NODE_FIELDS)}"
        rule = f"must be left out: nodes have no such field; {todo}"
        problems.append(NodeProblem(line=entry.cells[known].line, field=known, rule=rule))
    for old, now in _NOW.items():
        if old in entry.cells and now in entry.cells:
            rule = f"must be left out where {now} is given: it is its name of before"
            problems.append(NodeProblem(line=entry.cells[old].line, field=old, rule=rule))
    values: dict[str, object] = {}
    for name, (into, read) in _FIELDS.items():
        cell = entry.cells.get(name)
        if cell is None or cell.value == "":
            continue
        try:
            values[into] = read(cell, name)
        except _Wrong as wrong:
            problems.append(wrong.problem)
            values[into] = None
    for name, example in _REQUIRED.items():
        called = _called(entry, name)
        if _FIELDS[name][0] not in values and name not in entry.lacks:
            line = entry.cells[called].line if called in entry.cells else entry.line
            problems.append(NodeProblem(line=line, field=called, rule=f"is required: {example}"))
    if (gpu := entry.cells.get("gpu")) is not None and gpu.value == "":
        problems.append(NodeProblem(line=gpu.line, field="gpu", rule="is required: a whole number, such as 8 or 0"))
    _check_devices(entry, values, problems)
    if len(problems) > before or entry.lacks or entry.cut:
        return None
    if values.get("gpu_count"):
        values.setdefault("gpu_memory_bytes", gpu_memory_bytes)
    fields = cast("dict[str, Any]", values)
    return FileNode(line=entry.line, **fields)


def _check_devices(entry: _Entry, values: dict[str, object], problems: list[NodeProblem]) -> None:
    """What devices are like counts only where there are some. In the columns of before it may stand there."""
    if values.get("gpu_count", 0) != 0:
        return
    for name, into in (("model", "gpu_model"), ("gpuModel", "gpu_model"), ("gpuMemory", "gpu_memory_bytes")):
        if into in values and name in entry.cells:
            del values[into]
            if name != "model":
                rule = "must be left out of a node without GPUs, or gpus must be at least 1"
                problems.append(NodeProblem(line=entry.cells[name].line, field=name, rule=rule))


# -- values ----------------------------------------------------------------------------------------------------------


def _text(cell: _Cell, field: str) -> str:
    if not isinstance(cell.value, str):
        raise _Wrong(cell.line, field, "must be one value, and not a list or a mapping")
    return cell.value.strip()


def _name(cell: _Cell, field: str) -> str:
    return _word(cell, field, LONGEST_NAME)


def _pool(cell: _Cell, field: str) -> str:
    return _word(cell, field, LONGEST_POOL)


def _word(cell: _Cell, field: str, most: int) -> str:
    text = _text(cell, field)
    if len(text) > most or not _NAME.match(text):
        raise _Wrong(cell.line, field, f"{NAME_WORDS}, {most} characters at most", text)
    return text


def _model(cell: _Cell, field: str) -> str:
    text = _text(cell, field)
    if len(text) > LONGEST_MODEL or not text.isprintable():
        raise _Wrong(cell.line, field, f"must be a word of at most {LONGEST_MODEL} characters, such as H100", text)
    return text


def _number(least: int, most: int, example: str) -> Callable[[_Cell, str], int]:
    def read(cell: _Cell, field: str) -> int:
        text = _text(cell, field)
        rule = f"must be a whole number of {least:,} to {most:,}, such as {example}"
        if not re.fullmatch(r"[0-9]{1,18}", text) or not least <= int(text) <= most:
            raise _Wrong(cell.line, field, rule, text)
        return int(text)

    return read


def _cores(cell: _Cell, field: str) -> int:
    text = _text(cell, field)
    try:
        milli = -(-parse_quantity(text) * 1000 // 1)
    except QuantityError:
        milli = -1
    if not 1 <= milli <= MAX_CPU_MILLI:
        rule = f"must be CPU cores, 0.001 to {MAX_CPU_MILLI // 1000:,}, such as 64 or 500m"
        raise _Wrong(cell.line, field, rule, text)
    return int(milli)


def _bytes(cell: _Cell, field: str) -> int:
    text = _text(cell, field)
    try:
        size = parse_bytes(text)
    except QuantityError:
        size = -1
    if not 0 <= size <= MAX_BYTES:
        raise _Wrong(cell.line, field, "must be a size of at most 1Ei, such as 512Gi", text)
    if 0 < size < _MEBIBYTE:
        meant = f": {text}Gi or {text}Mi?" if text.isdecimal() else ""
        raise _Wrong(
            cell.line, field, f"must be a size of at least 1Mi, such as 512Gi; this is {size} bytes{meant}", text
        )
    return size


def _mebibytes(cell: _Cell, field: str) -> int:
    return _number(0, MAX_BYTES // _MEBIBYTE, "262144")(cell, field) * _MEBIBYTE


def _pairs(cell: _Cell, field: str, form: str) -> Iterator[tuple[_Cell, str, str]]:
    """Names and values of a mapping, of a list of `NAME=VALUE`, or of such a list in one text, separated by `;`."""
    if isinstance(cell.value, dict):
        for name, inner in cell.value.items():
            yield inner, name, _text(inner, f"{field}.{name}")
        return
    for entry, text in _entries(cell, field):
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise _Wrong(entry.line, field, f"must be {form}", text)
        yield entry, name.strip(), value.strip()


def _entries(cell: _Cell, field: str) -> Iterator[tuple[_Cell, str]]:
    if isinstance(cell.value, list):
        for entry in cell.value:
            yield entry, _text(entry, field)
        return
    for part in _text(cell, field).split(";"):
        if text := part.strip():
            yield cell, text


def _labels(cell: _Cell, field: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry, key, value in _pairs(cell, field, "KEY=VALUE, such as zone=a, separated by `;`"):
        if not LABEL_KEY.match(key) or len(key) > LONGEST_NAME:
            rule = "must have Kubernetes keys: letters, digits, `-`, `_` and `.`, perhaps after a domain and a slash"
            raise _Wrong(entry.line, field, rule, key)
        if not LABEL_VALUE.match(value):
            rule = "must have Kubernetes label values: at most 63 letters, digits, `-`, `_` and `.`"
            raise _Wrong(entry.line, field, rule, value)
        if key in found:
            raise _Wrong(entry.line, field, "must name each key once", key)
        found[key] = value
    if len(found) > MOST_LABELS:
        raise _Wrong(cell.line, field, f"must be at most {MOST_LABELS} labels", str(len(found)))
    return found


def _extended(cell: _Cell, field: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry, name, amount in _pairs(cell, field, "NAME=NUMBER, such as rdma/hca=2, separated by `;`"):
        if name == GPU:
            raise _Wrong(entry.line, field, f"must not name {GPU}: GPUs have fields of their own", name)
        if not LABEL_KEY.match(name) or not is_extended(name) or len(name) > LONGEST_NAME:
            raise _Wrong(entry.line, field, "must name resources by a domain and a word, such as rdma/hca", name)
        if name in found:
            raise _Wrong(entry.line, field, "must name each resource once", name)
        found[name] = _number(1, MAX_PIECES, "2")(_Cell(entry.line, amount), field)
    if len(found) > MAX_EXTENDED:
        raise _Wrong(cell.line, field, f"must be at most {MAX_EXTENDED} resources", str(len(found)))
    return found


def _taints(cell: _Cell, field: str) -> tuple[Taint, ...]:
    given = (
        cell.value if isinstance(cell.value, list) else [_Cell(cell.line, text) for _, text in _entries(cell, field)]
    )
    found = tuple(_taint(one, field) for one in given)
    if len({(taint.key, taint.effect) for taint in found}) < len(found):
        raise _Wrong(cell.line, field, "must name each key once with each effect")
    if len(found) > MOST_TAINTS:
        raise _Wrong(cell.line, field, f"must be at most {MOST_TAINTS} taints", str(len(found)))
    return found


def _taint(cell: _Cell, field: str) -> Taint:
    if isinstance(cell.value, dict):
        if unknown := cell.value.keys() - {"key", "value", "effect"}:
            raise _Wrong(cell.line, field, "must have key, value and effect, and nothing else", min(unknown))
        parts = {name: _text(inner, f"{field}.{name}") for name, inner in cell.value.items()}
        key, value, effect = parts.get("key", ""), parts.get("value", ""), parts.get("effect", "")
    else:
        text = _text(cell, field)
        if (match := _TAINT.match(text)) is None:
            rule = "must be KEY=VALUE:EFFECT or KEY:EFFECT, such as team=a:NoSchedule"
            raise _Wrong(cell.line, field, rule, text)
        key, value, effect = match[1].strip(), (match[2] or "").strip(), match[3].strip()
    if not LABEL_KEY.match(key) or len(key) > LONGEST_NAME:
        raise _Wrong(cell.line, field, "must have a Kubernetes key, such as team", key)
    if not LABEL_VALUE.match(value):
        raise _Wrong(cell.line, field, "must have a Kubernetes label value: at most 63 letters and digits", value)
    if effect not in EFFECTS:
        raise _Wrong(cell.line, field, f"must have one of the effects {', '.join(EFFECTS)}", effect)
    return Taint(key=key, value=value, effect=effect)


_READERS: Final[dict[str, tuple[str, Callable[[_Cell, str], object]]]] = {
    "name": ("name", _name),
    "cpu": ("cpu_milli", _cores),
    "memory": ("memory_bytes", _bytes),
    "gpus": ("gpu_count", _number(0, MAX_GPUS, "8")),
    "gpuModel": ("gpu_model", _model),
    "gpuMemory": ("gpu_memory_bytes", _bytes),
    "labels": ("labels", _labels),
    "taints": ("taints", _taints),
    "extendedResources": ("extended", _extended),
    "pool": ("pool", _pool),
}
NODE_FIELDS: Final = tuple(_READERS)
_FIELDS: Final = _READERS | {
    "sn": ("name", _name),
    "cpu_milli": ("cpu_milli", _number(1, MAX_CPU_MILLI, "64000")),
    "memory_mib": ("memory_bytes", _mebibytes),
    "gpu": ("gpu_count", _number(0, MAX_GPUS, "8")),
    "model": ("gpu_model", _model),
    "extended_resources": ("extended", _extended),
}
_REQUIRED: Final = {
    "name": "a word, such as gpu-1",
    "cpu": "CPU cores, such as 64 or 500m",
    "memory": "a size, such as 512Gi",
}


# -- CSV -------------------------------------------------------------------------------------------------------------


def _csv_entries(text: str, problems: list[NodeProblem]) -> Iterator[_Entry]:
    """None where the columns are not those of nodes. Raises _Wrong where it is no table."""
    import csv

    reader = csv.reader(text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}").splitlines(keepends=True), strict=True)
    try:
        header = [column.strip() for column in next(reader, list[str]())]
        problems += _header_problems(header)
        wrong = bool(problems)
        lacks = frozenset(name for name in _REQUIRED if not {name, _before(name)} & {*header})
        while (row := next(reader, None)) is not None:
            line, cut = reader.line_num, bool(row) and len(row) != len(header)
            if cut:
                rule = f"must have {len(header)} values, one for each column of the first line, perhaps empty ones"
                problems.append(NodeProblem(line=line, field="", rule=rule, given=f"{len(row)} values"))
            # Of a column that stands there twice, or is none of nodes, that is said once, and of none of its values.
            cells = {
                column: _Cell(line, cell)
                for at, (column, cell) in enumerate(zip(header, row, strict=False))
                if column in _FIELDS and column not in header[:at] and _NOW.get(column) not in header
            }
            if row:
                yield _Entry(
                    line, cells, lacks=lacks | {*(_REQUIRED if len(row) < len(header) else ())}, cut=cut or wrong
                )
    except csv.Error as error:
        raise _Wrong(max(reader.line_num, 1), "", f"must be CSV: {error}") from error


def _header_problems(header: list[str]) -> Iterator[NodeProblem]:
    for at, column in enumerate(header):
        if column in header[:at]:
            yield NodeProblem(line=1, field=column, rule="must be one column only")
        elif column not in _FIELDS:
            todo = did_you_mean(column, _FIELDS) or f"the columns are {', '.join(NODE_FIELDS)}"
            yield NodeProblem(line=1, field=column, rule=f"must be left out: nodes have no such column; {todo}")
        elif _NOW.get(column) in header:
            rule = f"must be left out where {_NOW[column]} is there: it is its name of before"
            yield NodeProblem(line=1, field=column, rule=rule)
    for name, example in _REQUIRED.items():
        old = _before(name)
        if name not in header and old not in header:
            called = old if "sn" in header else name
            yield NodeProblem(line=1, field=called, rule=f"is required as a column: {example}")


def _before(name: str) -> str:
    """What a required field was called before."""
    return next(old for old, now in _NOW.items() if now == name)


# -- YAML ------------------------------------------------------------------------------------------------------------


def _yaml_entries(text: str, problems: list[NodeProblem]) -> Iterator[_Entry]:
    """Of a list of nodes, or of a mapping with the one field `nodes`. Raises _Wrong where it is neither."""
    root = _compose(text, problems)
    if root is not None and isinstance(root.value, dict):
        if root.value.keys() != {"nodes"}:
            rule = "must be a list of nodes, perhaps below the one field `nodes`"
            raise _Wrong(root.line, "", rule, ", ".join(root.value) or None)
        root = root.value["nodes"]
    if root is None or root.value == "":
        return
    if not isinstance(root.value, list):
        raise _Wrong(root.line, "", "must be a list of nodes, each with name, cpu and memory", str(root.value))
    for cell in root.value:
        if isinstance(cell.value, dict):
            yield _Entry(cell.line, cell.value)
        else:
            given = cell.value if isinstance(cell.value, str) else "a list"
            rule = "must be a node with the fields name, cpu and memory"
            problems.append(NodeProblem(line=cell.line, field="", rule=rule, given=shown(given)))


def _compose(text: str, problems: list[NodeProblem]) -> _Cell | None:
    """The document as cells. The parser in C reads ten thousand nodes in about a second, that in Python in some ten."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        documents = [node for node in yaml.compose_all(text, Loader=loader) if not _is_null(node)]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or "it cannot be read"
        raise _Wrong(mark.line + 1 if mark else 1, "", f"must be YAML: {what}") from error
    if len(documents) > 1:
        raise _Wrong(documents[1].start_mark.line + 1, "", "must be one document: write all nodes in one list")
    most = min(FEW_CELLS + CELLS_OF_CHARACTER * len(text), MOST_CELLS)
    return _Cells(most, problems).cell(documents[0]) if documents else None


def _is_null(node: "yaml.Node | None") -> bool:
    return node is None or node.tag == _NULL


def _kind(node: "yaml.Node") -> str:
    return str(getattr(node, "id", ""))


class _Cells:
    """Makes cells of a document, and only so many: an alias is made again wherever it stands, and a few lines of
    aliases of aliases stand for billions of values.
    """

    def __init__(self, most: int, problems: list[NodeProblem]) -> None:
        self._most = most
        self._problems = problems
        """What is wrong with single fields is added to them; the rest is looked at all the same."""
        self._made = 0

    def cell(self, node: "yaml.Node", depth: int = MOST_DEPTH) -> _Cell:
        """Raises _Wrong."""
        line = node.start_mark.line + 1
        if depth == 0:
            raise _Wrong(line, "", "must not have lists and mappings so deep in each other")
        self._made += 1
        if self._made > self._most:
            raise _Wrong(line, "", f"must stand for at most {self._most:,} values; aliases (`*NAME`) make more of them")
        if _kind(node) == "sequence":
            inner = cast("Iterable[yaml.Node]", node.value)
            return _Cell(line, [self.cell(each, depth - 1) for each in inner])
        if _kind(node) == "mapping":
            return _Cell(line, self._mapping(node, depth))
        return _Cell(line, "" if _is_null(node) else str(node.value))

    def _mapping(self, node: "yaml.Node", depth: int) -> "dict[str, _Cell]":
        found: dict[str, _Cell] = {}
        merged: dict[str, _Cell] = {}
        for key, value in cast("Iterable[tuple[yaml.Node, yaml.Node]]", node.value):
            line = key.start_mark.line + 1
            if key.tag == _MERGE:
                for each in value.value if _kind(value) == "sequence" else [value]:
                    cell = self.cell(each, depth - 1)
                    if not isinstance(cell.value, dict):
                        self._problems.append(NodeProblem(line=line, field="<<", rule="must merge mappings"))
                        continue
                    for name, inner in cell.value.items():
                        merged.setdefault(name, inner)
                continue
            if _kind(key) != "scalar":
                self._problems.append(NodeProblem(line=line, field="", rule="must have words as keys"))
                continue
            name = str(key.value)
            if name in found:
                rule = "must stand there once"
                self._problems.append(NodeProblem(line=line, field=shown(name), rule=rule, given=shown(name)))
                continue
            found[name] = self.cell(value, depth - 1)
        return merged | found
