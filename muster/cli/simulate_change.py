"""What `muster simulate` is told to have otherwise: --set, --change and --nodes."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from msgspec.structs import replace

from events.nearest import did_you_mean
from events.node import NodeFacts
from events.node_file import form_of, read_nodes
from events.quantities import cores_to_milli
from muster.cli.exits import Problem, usage
from muster.cli.unreadable import unreadable
from muster.cli.values import Json, ValueProblem, parse_duration, parse_number, parse_switch
from services.scheduler.policy.registry import POLICY
from services.scheduler.simulation.change import Bounds, Change, NewNode, PolicyChange, PoolBounds
from services.scheduler.simulation.trace import facts_of

NONE: Final = "none"
NEVER: Final = "never"
MOST_GPUS: Final = 10_000_000
MOST_WEIGHT: Final = 1_000
MOST_TOLD: Final = 5
"""Problems of one file."""
_GPU_MEMORY: Final = 80 * 1024**3
"""Of a device of nodes that do not say it, as of simulated clusters."""


@dataclass(frozen=True, slots=True)
class _Setting:
    field: str
    """Of Bounds or PoolBounds, or of PolicyChange."""
    read: Callable[[str], Any]
    """Raises ValueProblem, which says what would do."""


def _gpus(text: str) -> int | None:
    if text == NONE:
        return None
    number = _number(text, MOST_GPUS, "GPUs, such as 16 or 0.5, or none for no bound")
    return cores_to_milli(number)


def _weight(text: str) -> float | None:
    return None if text == NONE else _number(text, MOST_WEIGHT, "a weight, such as 2, or none for the usual one")


def _number(text: str, most: int, what: str) -> float:
    try:
        number = parse_number(text)
    except ValueProblem:
        number = -1.0
    if not 0 <= number <= most:
        raise ValueProblem(f"must be {what}, from 0 to {most:,}")
    return number


def _seconds_or(word: str) -> Callable[[str], int | None]:
    def read(text: str) -> int | None:
        return None if text in {NONE, word} else _duration(text, f", or {word}")

    return read


def _duration(text: str, or_: str = "") -> int:
    try:
        return 0 if text == "0" else parse_duration(text)
    except ValueProblem:
        raise ValueProblem(f"must be a time, such as 30s, 10m or 2h{or_}") from None


def _switch(text: str) -> bool:
    try:
        return parse_switch(text)
    except ValueProblem:
        raise ValueProblem("must be on or off") from None


def _names(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    names = tuple(known)

    def read(text: str) -> tuple[str, ...]:
        given = tuple(filter(None, (each.strip() for each in text.split(","))))
        for each in given:
            if each not in names:
                raise ValueProblem(f"must be some of {', '.join(names)}, the first before the others; {each!r} is none")
        if not given or len(set(given)) < len(given):
            raise ValueProblem(f"must be some of {', '.join(names)}, each once")
        return given

    return read


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (each.strip() for each in text.split(","))))


OF_POOL: Final = {
    "quota": _Setting("gpu_quota_milli", _gpus),
    "limit": _Setting("gpu_limit_milli", _gpus),
    "weight": _Setting("over_quota_weight", _weight),
}
OF_PROJECT: Final = OF_POOL | {
    "minimumRuntime": _Setting("minimum_runtime_seconds", _seconds_or(NONE)),
    "nodePools": _Setting("node_pools", _words),
}
OF_POLICY: Final = {
    "reserveAfter": _Setting("reserve_after_seconds", _seconds_or(NEVER)),
    "keptAfterEviction": _Setting("kept_after_eviction_seconds", _duration),
    "headStart": _Setting("head_start_seconds", _seconds_or(NEVER)),
    "takeBack": _Setting("take_back", _switch),
    "scores": _Setting("scores", _names(each.name for each in POLICY.scores)),
    "orders": _Setting("orders", _names(each.name for each in POLICY.orders)),
}
_SET: Final = re.compile(r"(?P<what>[A-Za-z]+)\.(?P<of>[^=/]+)(?:/(?P<pool>[^=]+))?=(?P<value>.*)", re.DOTALL)


@dataclass(slots=True)
class Asked:
    """Mutable: what is asked for, before it is known which projects and clusters there are."""

    projects: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    departments: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    policy: dict[str, Any] = field(default_factory=dict[str, Any])
    nodes: tuple[NewNode, ...] | None = None
    where: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """What named a project or department, for a message."""

    @property
    def empty(self) -> bool:
        return not (self.projects or self.departments or self.policy or self.nodes is not None)

    def change(
        self, projects: Iterable[str], departments: Iterable[str], cluster: Callable[[], str], pools: Iterable[str]
    ) -> Change:
        """With names that must be among these; node pools also among those of new nodes. Raises Problem.

        Args:
            cluster: id of the one whose nodes are replaced; only asked where they are.
        """
        self._check("project", self.projects, projects)
        self._check("department", self.departments, {*departments, "default"})
        self._check_pools({*pools, *(node.facts.pool for node in self.nodes or ())})
        return Change(
            projects={name: _bounds(of) for name, of in sorted(self.projects.items())},
            departments={name: _bounds(of) for name, of in sorted(self.departments.items())},
            nodes={} if self.nodes is None else {cluster(): self.nodes},
            policy=PolicyChange(**self.policy),
        )

    def _check_pools(self, known: Iterable[str]) -> None:
        names = sorted(known)
        for what, holders in (("project", self.projects), ("department", self.departments)):
            for holder, of in holders.items():
                for pool in (*of.get("pools", {}), *of.get("node_pools", ())):
                    if pool not in names:
                        todo = did_you_mean(pool, names) or f"there are: {', '.join(names)}"
                        raise usage(f"{self.where[what, holder]}: there is no node pool {pool!r}", todo=todo)

    def _check(self, what: str, given: Iterable[str], known: Iterable[str]) -> None:
        names = sorted(known)
        for name in given:
            if name not in names:
                todo = did_you_mean(name, names) or f"there are: {', '.join(names) or 'none'}"
                raise usage(f"{self.where[what, name]}: there is no {what} {name!r}", todo=todo)


def _bounds(of: Mapping[str, Any]) -> Bounds:
    pools = {name: PoolBounds(**given) for name, given in of.get("pools", {}).items()}
    return replace(Bounds(**{name: value for name, value in of.items() if name != "pools"}), pools=pools)


def asked(sets: Iterable[str], file: Path | None, nodes: Path | None) -> Asked:
    """Raises Problem (usage)."""
    found = Asked()
    if file is not None:
        _read_file(found, file)
    for given in sets:
        _read_set(found, given)
    if nodes is not None:
        found.nodes = nodes_of("--nodes", nodes)
    return found


def _read_set(found: Asked, given: str) -> None:
    parts = _SET.fullmatch(given)
    if parts is None:
        raise usage(
            f"--set: {given!r} is not WHAT.NAME=VALUE",
            todo="such as quota.vision=16, limit.vision/h100=none, weight.vision=2 or policy.reserveAfter=30m",
        )
    what, of, pool, value = parts["what"], parts["of"], parts["pool"], parts["value"]
    where = f"--set {given}"
    if what == "policy":
        setting = _setting(where, of, OF_POLICY)
        found.policy[setting.field] = _value(where, of, setting, value)
        return
    setting = _setting(where, what, OF_PROJECT)
    project = found.projects.setdefault(of, {})
    found.where["project", of] = where
    if pool is None:
        project[setting.field] = _value(where, what, setting, value)
        return
    setting = _setting(where, what, OF_POOL, " of a node pool")
    project.setdefault("pools", {}).setdefault(pool, {})[setting.field] = _value(where, what, setting, value)


def _setting(where: str, name: str, known: Mapping[str, _Setting], of: str = "") -> _Setting:
    if name not in known:
        todo = did_you_mean(name, known) or f"there are: {', '.join(known)}"
        raise usage(f"{where}: there is no setting {name!r}{of}", todo=todo)
    return known[name]


def _value(where: str, name: str, setting: _Setting, given: Json) -> Any:
    """Raises Problem (usage)."""
    text = _text(given)
    if text is None:
        raise usage(f"{where}: {name}: must be one value; given {given!r}")
    try:
        return setting.read(text.strip())
    except ValueProblem as error:
        raise usage(f"{where}: {name}: {error}; given {text!r}") from error


def _text(given: Json) -> str | None:
    match given:
        case bool():
            return "on" if given else "off"
        case None:
            return NONE
        case int() | float() | str():
            return str(given)
        case list():
            parts = [_text(each) for each in given]
            return None if None in parts else ",".join(map(str, parts))
        case _:
            return None


def _read_file(found: Asked, file: Path) -> None:
    """Raises Problem (usage)."""
    from muster.cli.request_file import read_document

    document = read_document(str(file), ("projects", "departments", "nodes", "policy"), what="changes", flag="--change")
    for what in ("project", "department"):
        into = found.projects if what == "project" else found.departments
        for name, of in _mapping(file, f"{what}s", document.get(f"{what}s")).items():
            where = f"--change {file}: {what}s.{name}"
            found.where[what, name] = where
            into[name] = _of_file(where, _mapping(file, f"{what}s.{name}", of))
    for name, value in _mapping(file, "policy", document.get("policy")).items():
        where = f"--change {file}: policy"
        setting = _setting(where, name, OF_POLICY)
        found.policy[setting.field] = _value(where, name, setting, value)
    if (nodes := document.get("nodes")) is not None:
        if not isinstance(nodes, str):
            raise usage(f"--change {file}: nodes must be the path of a file of nodes, from that file; given {nodes!r}")
        found.nodes = nodes_of(f"--change {file}: nodes", file.parent / nodes)


def _mapping(file: Path, name: str, given: Json) -> dict[str, Json]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise usage(f"--change {file}: {name} must be a mapping of names to settings; given {given!r}")
    return given


def _of_file(where: str, given: Mapping[str, Json]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if name == "pools":
            if not isinstance(value, dict):
                raise usage(f"{where}: pools must be a mapping of node pools to settings; given {value!r}")
            settings["pools"] = {
                pool: {
                    (setting := _setting(f"{where}.pools.{pool}", key, OF_POOL)).field: _value(
                        f"{where}.pools.{pool}", key, setting, one
                    )
                    for key, one in (cast("dict[str, Json]", of) if isinstance(of, dict) else {}).items()
                }
                for pool, of in value.items()
            }
            continue
        setting = _setting(where, name, OF_PROJECT)
        settings[setting.field] = _value(where, name, setting, value)
    return settings


def nodes_of(flag: str, file: Path) -> tuple[NewNode, ...]:
    """The nodes of a file. Raises Problem (usage), which tells all that is wrong with it."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(f"{flag}: {file}", error, todo="give a file of nodes, as YAML or CSV") from error
    read = read_nodes(text, form_of(file.name), gpu_memory_bytes=_GPU_MEMORY)
    if read.problems:
        raise problems_of(f"{flag}: {file}", [str(each) for each in read.problems])
    return tuple(NewNode(name=each.name, facts=_facts(each)) for each in read.nodes)


def problems_of(what: str, problems: list[str]) -> Problem:
    """All of them in one."""
    told = tuple(problems[:MOST_TOLD])
    more = len(problems) - len(told)
    problem = usage(f"{what} cannot be used: {len(problems)} problem{'s' if len(problems) != 1 else ''}")
    problem.why = (*told, *((f"and {more} more",) if more else ()))
    return problem


def _facts(node: Any) -> NodeFacts:
    facts = facts_of(
        node.name,
        cpu_milli=node.cpu_milli,
        memory_bytes=node.memory_bytes,
        gpu_count=node.gpu_count,
        gpu_model=node.gpu_model,
        gpu_memory_bytes=node.gpu_memory_bytes,
        labels=node.labels,
        pool=node.pool,
    )
    return replace(facts, taints=node.taints, extended=node.extended)
