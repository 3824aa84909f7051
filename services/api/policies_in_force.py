"""Which policies hold for a workload, and what of it they forbid. They are read from the log's leader for each request,
so that a policy holds from its answer on; their rules are put together once for each version.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec import to_builtins
from msgspec.structs import replace

from events.aggregate import POLICY, Chain
from events.asset_specs import spec_node
from events.fields.node import Node, item_key, tree
from events.policy import POLICY_SCOPES, Policy, PolicyScope, policy_key
from events.workload.changes import changeable
from events.workload.fields.creation import Creation
from events.workload.kinds import KINDS
from events.workload.kinds.kind import Kind
from events.workload.made_from import AssetUsed, MadeFrom
from events.workload.spec import OF_WORKERS, Distributed, MasterSpec, TrainingSpec, beside_with_defaults, shown
from events.workload.state import Workload
from services.api.context import Look
from services.api.imposed import Imposing, imposing
from services.api.issues import Issue, fault
from services.api.merge import Json, Layer, Merged, merged
from services.api.places import find_project
from services.api.policy_rules import FieldRules, Subject, broken, compiled, layer_of

KEPT_COMPILED: Final = 500
"""Of those that hold together: their rules are kept ready, as large as the policies."""
_compiled: OrderedDict[tuple[str, ...], tuple[tuple[Policy, ...], Mapping[str, FieldRules]]] = OrderedDict()


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """The policies for one kind of workload in one project."""

    workload_type: str
    chains: Mapping[PolicyScope, Chain[Policy]]
    """Those that there are, the tenant's first."""
    department_id: str = ""
    """Of the department in which the project stands; empty where nobody knows the project."""
    rules: Mapping[str, FieldRules]
    """By path of the field; none where a request is repeated: what was accepted stays so."""
    imposed: tuple[AssetUsed, ...] = ()
    """Data sources that they impose."""
    issues: tuple[Issue, ...] = ()
    """Why nothing can be made where they hold."""
    not_on: frozenset[str] = frozenset()
    """As of Imposing."""
    ever: bool
    """Whether there ever was one: a repeated request may have been made from it."""

    @property
    def layers(self) -> list[Layer]:
        return [layer_of(chain.state) for chain in self.chains.values()]

    def below(self, node: Node) -> dict[PolicyScope, Merged]:
        """What the layers up to each policy say together, of the fields that this object has."""
        found: dict[PolicyScope, Merged] = {}
        layers: list[Layer] = []
        for scope, layer in zip(self.chains, self.layers, strict=True):
            layers.append(within(layer, node))
            found[scope] = merged(node, layers)
        return found

    def version(self, scope: PolicyScope) -> int:
        chain = self.chains.get(scope)
        return 0 if chain is None else chain.version


def within(layer: Layer, node: Node) -> Layer:
    """Of a layer the fields that this object has: a master's spec has not all."""
    spec = {name: value for name, value in layer.spec.items() if name in node.by_name}
    return Layer(source=layer.source, name=layer.name, spec=spec)


def master_layers(layers: Iterable[Layer], node: Node, given: Json) -> list[Layer]:
    """Of these layers what a master's own spec takes. One that names no volumes, or no probes, has the workers', with
    all that is added to those. Args: given, what was asked for of it.
    """
    of_workers = _of_workers(given)
    return [_without(of_workers, within(layer, node)) for layer in layers]


def _without(names: Collection[str], layer: Layer) -> Layer:
    spec = {name: value for name, value in layer.spec.items() if name not in names}
    return Layer(source=layer.source, name=layer.name, spec=spec)


def _of_workers(given: Mapping[str, Any]) -> frozenset[str]:
    """Fields in which the master has what its workers have."""
    return frozenset(name for name in OF_WORKERS if given.get(name) is None)


async def policies_in_force(
    call: Look, workload_type: str, project_id: Any, *, cluster_id: Any = None, then: MadeFrom | None = None
) -> InForce:
    """The policies of now, or those from which a workload was made.

    Args:
        project_id: as it was given. They hold for everybody: roles that are new here may be known at the gate already.
        cluster_id: likewise; what they impose may be for one cluster.
        then: what the workload was made from; its policies' defaults then, without their rules.
    """
    if not isinstance(project_id, str) or not project_id:
        return InForce(workload_type=workload_type, chains={}, rules={}, ever=False)
    place = (workload_type, project_id, cluster_id if isinstance(cluster_id, str) else "")
    if then is None and (kept := call.policies.get(place)) is not None:
        return kept
    department_id = await _department_of(call, project_id) if then is None else then.department_id
    places: dict[PolicyScope, str] = {"tenant": "", "department": department_id, "project": project_id}
    versions: dict[PolicyScope, int | None] = {"tenant": None, "department": None, "project": None}
    if then is not None:
        versions = {
            "tenant": then.tenant_policy,
            "department": then.department_policy,
            "project": then.project_policy,
        }
    if not department_id:
        versions["department"] = 0

    async def load(scope: PolicyScope) -> Chain[Policy]:
        key, at = policy_key(workload_type, places[scope]), versions[scope]
        return await (call.api.store.load(POLICY, key) if at is None else call.api.store.load(POLICY, key, at))

    wanted: list[PolicyScope] = [scope for scope in POLICY_SCOPES if versions[scope] != 0]
    found = dict(zip(wanted, await asyncio.gather(*map(load, wanted)), strict=True))
    at = None if then is None else {used.id: used.version for used in then.data_sources}
    there: dict[PolicyScope, Chain[Policy]] = {scope: chain for scope, chain in found.items() if chain.state.exists}
    told: dict[PolicyScope, Imposing] = {
        scope: await imposing(call, chain.state, cluster_id=cluster_id, then=at) for scope, chain in there.items()
    }
    chains: dict[PolicyScope, Chain[Policy]] = {
        scope: Chain(state=told[scope].policy, version=chain.version) for scope, chain in there.items()
    }
    in_force = InForce(
        workload_type=workload_type,
        chains=chains,
        department_id=department_id,
        rules=rules_of(workload_type, [chain.state for chain in chains.values()]) if then is None else {},
        imposed=tuple(used for one in told.values() for used in one.used),
        issues=tuple(issue for one in told.values() for issue in one.issues) if then is None else (),
        not_on=frozenset(id_ for one in told.values() for id_ in one.not_on),
        ever=any(chain.version for chain in found.values()),
    )
    if then is None:
        call.policies[place] = in_force
    return in_force


async def _department_of(call: Look, project_id: str) -> str:
    project = await find_project(call, project_id)
    return "" if project is None else project.department_id


def rules_of(workload_type: str, policies: Collection[Policy]) -> Mapping[str, FieldRules]:
    """The rules of these policies, which are kept ready as long as the very same ones are asked for."""
    states = tuple(policies)
    if not any(state.rules for state in states):
        return {}
    key = tuple(state.policy_id for state in states)
    kept = _compiled.get(key)
    if kept is None or len(kept[0]) != len(states) or any(a is not b for a, b in zip(kept[0], states, strict=True)):
        kept = _compiled[key] = states, compiled(spec_node(workload_type), states)
    _compiled.move_to_end(key)
    while len(_compiled) > KEPT_COMPILED:
        _compiled.popitem(last=False)
    return kept[1]


def broken_rules(
    kind: Kind, in_force: InForce, asked: Creation, whole: Merged | None, master: Merged | None
) -> list[Issue]:
    """What of a creation the policies forbid, with paths in the merged spec. Args: master, its own spec, where it has
    one.
    """
    if not in_force.rules:
        return []
    spec, beside = asked.order()
    issues: list[Issue] = []
    if whole is not None:
        node = spec_node(kind.name)
        form = kind.shown(kind.with_defaults(spec), beside_with_defaults(beside))
        subject = Subject(whole=whole, below=in_force.below(node), form=form, prefix="spec")
        issues += broken(in_force.rules, subject, node)
    if master is not None and isinstance(beside, Distributed) and beside.master is not None:
        node = master_node(kind)
        form = shown(MasterSpec, kind.with_defaults(beside.master))
        subject = Subject(whole=master, below=in_force.below(node), form=form, prefix="masterSpec")
        rules = in_force.rules
        if of_workers := _of_workers(master.spec):
            rules = {path: of for path, of in rules.items() if path.partition(".")[0] not in of_workers}
        issues += broken(rules, subject, node)
    return issues


def master_node(kind: Kind) -> Node:
    """The spec of a master, as requests have it."""
    return tree(kind.creation).by_name["masterSpec"]


async def forbidden_changes(call: Look, state: Workload, changes: Mapping[str, Any]) -> list[Issue]:
    """What of a change of a living workload the policies of now forbid. What stays as it is breaks no rule.

    Args:
        changes: new values of what can change, by its name in Python; a list is all of it.
    """
    changed = {
        name: value for name, value in changes.items() if changeable(name, state.spec, state.distributed) != value
    }
    if not changed or not state.living:
        return []
    in_force = await policies_in_force(call, state.kind, state.project_id, cluster_id=state.cluster_id)
    masters_volumes = changed.pop("master_storage", None)
    kind, issues = KINDS[state.kind], list[Issue]()
    if changed:
        after = replace(state.spec, **changed)
        form = kind.shown(after, state.beside)
        issues += _forbidden(
            in_force, spec_node(state.kind), state.spec, after, changed=changed, form=form, prefix="spec"
        )
    master = None if state.distributed is None else state.distributed.master
    if masters_volumes is not None and master is not None:
        after = replace(master, storage=masters_volumes)
        form, asked = shown(MasterSpec, after), {"storage": masters_volumes}
        for issue in _forbidden(
            in_force, master_node(kind), master, after, changed=asked, form=form, prefix="masterSpec"
        ):
            issues.append(fault(f"masterSpec.{issue.field}", issue.details, issue.rule))
    return issues


def _forbidden(
    in_force: InForce,
    node: Node,
    before: TrainingSpec,
    after: TrainingSpec,
    *,
    changed: Mapping[str, Any],
    form: Any,
    prefix: str,
) -> Iterator[Issue]:
    """Of one spec. Args: node, its fields; form, what is shown of it after the change."""
    own = {path: field for path, field in _leaves(node) if path.partition(".")[0] in _wires(node, changed)}
    rules = {path: of for path, of in in_force.rules.items() if path in own and of.value(before) != of.value(after)}
    if not rules:
        return
    said = {path: _Change(own[path], of.value(before), of.value(after)) for path, of in rules.items()}
    spec: dict[str, Any] = {}
    for path, change in said.items():
        *above, name = path.split(".")
        holder = spec
        for step in above:
            holder = holder.setdefault(step, {})
        holder[name] = change.said
    request = Layer(source="request", name="", spec=spec)
    whole = merged(node, [*(within(layer, node) for layer in in_force.layers), request])
    subject = Subject(whole=whole, below=in_force.below(node), form=form, prefix=prefix)
    for issue in broken(rules, subject, node):
        own_field = issue.field.removeprefix(f"{prefix}.")
        found = whole.place(own_field)
        path = found[1] if found is not None else own_field
        name = path.partition("[")[0]
        # Of an object the request says something else than the spec.
        yield fault(name if "." in name else said[name].own_path(path), issue.details, issue.rule)


def _leaves(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Fields of a spec that rules can be about, by path: those of an object for themselves."""
    for field in node.fields:
        if field.kind == "object":
            yield from _leaves(field, f"{path}{field.name}.")
        else:
            yield f"{path}{field.name}", field


def _wires(node: Node, changed: Mapping[str, Any]) -> set[str]:
    return {field.name for field in node.fields if field.attribute in changed}


class _Change:
    """A new value of a field, as a layer above policies says it: of a list of items, those that differ."""

    def __init__(self, field: Node, before: Any, now: Any) -> None:
        self._field = field
        key = item_key(field)
        self.said: Any = to_builtins(now)
        self._sent: list[int] | None = None
        """Of the items that differ, their places in the request."""
        if key is not None:
            known = {item[key]: item for item in to_builtins(before)}
            given = {item[key] for item in self.said}
            self._sent = [index for index, item in enumerate(self.said) if known.get(item[key]) != item]
            gone = [{key: name, "exclude": True} for name in known if name not in given]
            self.said = [*(self.said[index] for index in self._sent), *gone]

    def own_path(self, path: str) -> str:
        """A path in the layer as the request has it. An item that is dropped has none."""
        _, _, index = path.partition("[")
        if self._sent is None or not index:
            return path
        number = int(index.partition("]")[0])
        return f"{self._field.name}[{self._sent[number]}]" if number < len(self._sent) else self._field.name
