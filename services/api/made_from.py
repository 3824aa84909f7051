"""From a request that names a template or assets to the one that it stands for: fields from whoever sets them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

from events.aggregate import WORKLOAD, Chain
from events.asset import DATA_SOURCES, Asset
from events.asset_specs import layer_of, mount_path, spec_node
from events.fields.node import tree
from events.ids import incarnation_id, workload_key
from events.workload.decide import final_name
from events.workload.fields.creation import MOST_DATA_SOURCES, Creation
from events.workload.kinds.kind import Kind
from events.workload.made_from import AssetUsed, MadeFrom, Source
from events.workload.spec import Beside, TrainingSpec
from events.workload.state import Workload
from services.api.check import untouched
from services.api.context import Call
from services.api.creation import credentials_of
from services.api.explain import set_by
from services.api.imposed import marked
from services.api.issues import Issue, fault, shown
from services.api.lent import lent
from services.api.merge import Json, Layer, Merged, alone, merged
from services.api.policies_in_force import InForce, broken_rules, master_layers, master_node, policies_in_force
from services.api.suitable import find_asset, unsuitable

CHOSEN: Final[dict[Literal["environment", "compute"], str]] = {"environment": "environmentId", "compute": "computeId"}
"""Assets that a request or a template chooses, and the fields of `assets` that name them."""
Chosen = Literal["environment", "compute", "template"]
"""Of these a request takes at most one."""
DATA_SOURCE_IDS: Final = "datasourceIds"
"""The field of `assets` that names data sources."""
_ORDER: Final[tuple[Chosen, ...]] = ("template", "environment", "compute")
_SOURCE: Final = "uidGidSource"
_OF_USERS: Final = ("runAsUid", "runAsGid", "supplementalGroups")


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A request and what it is made from."""

    data: Json
    """The request, with the fields of all assets in its spec."""
    issues: Sequence[Issue]
    """What is wrong with the assets that it names."""
    used: Mapping[Chosen, Chain[Asset]]
    """The template, the environment and the compute resource."""
    sources: Sequence[Chain[Asset]] = ()
    """The data sources."""
    merged: Merged | None
    """None where the spec is none."""
    master: Merged | None = None
    """The spec of a master, where policies hold and it has one of its own."""
    in_force: InForce
    """The policies that hold for it."""

    @property
    def not_on(self) -> frozenset[str]:
        """Where no cluster is named: ids of those that its data sources rule out."""
        return self.in_force.not_on.union(*(chain.state.issues for chain in self.sources))

    def told(self, issues: Sequence[Issue]) -> list[Issue]:
        """What is wrong with the whole, by the request's own paths; of what others set, who that is."""
        if not (self.used or self.sources or self.in_force.chains):
            return [*self.issues, *issues]
        return [*self.issues, *map(self._told, issues)]

    def _told(self, issue: Issue) -> Issue:
        whole, _, path = issue.field.partition(".")
        merged = {"spec": self.merged, "masterSpec": self.master}.get(whole)
        if merged is None or not path:
            return issue
        found = merged.place(path)
        if found is None:
            layers = merged.within(path)
            alone = layers[0] if len(layers) == 1 and layers[0].source != "request" else None
            return issue if alone is None else replace(issue, details=f"{issue.details} ({alone.called} sets it)")
        place, own = found
        if place.layer.source == "request":
            return replace(issue, field=f"{whole}.{own}")
        return replace(issue, field=f"{whole}.{own}", details=f"{issue.details} ({place.layer.called} sets it)")

    def broken_rules(self, kind: Kind, asked: Creation, faults: Sequence[Issue] = ()) -> list[Issue]:
        """What policies forbid, where it has no fault of its own; `told` makes it the request's."""
        found = broken_rules(kind, self.in_force, asked, self.merged, self.master)
        if self.in_force.chains:
            named = sorted(one.field for one in credentials_of(asked))
            found += lent(named, {"spec": self.merged, "masterSpec": self.master})
        return untouched(found, self.data, faults) if faults else found

    def made_from(self, kind: Kind, spec: TrainingSpec, beside: Beside) -> MadeFrom | None:
        """What is stored of it; None where the values of the spec say everything. `spec` has its defaults."""
        fields = {} if self.merged is None else set_by(kind, self.merged, spec, beside)
        if not (fields or self.used or self.sources or self.in_force.chains):
            return None
        of = {kind: _used(chain) for kind, chain in self.used.items()}
        return MadeFrom(
            template=of.get("template"),
            environment=of.get("environment"),
            compute=of.get("compute"),
            data_sources=(*map(_used, self.sources), *self._imposed()),
            tenant_policy=self.in_force.version("tenant"),
            project_policy=self.in_force.version("project"),
            department_policy=(of_department := self.in_force.version("department")),
            department_id=self.in_force.department_id if of_department else "",
            set_by=fields,
        )

    def _imposed(self) -> Iterator[AssetUsed]:
        """What policies impose beside what the request names."""
        named = {chain.state.asset_id for chain in self.sources}
        return (used for used in self.in_force.imposed if used.id not in named)


def _used(chain: Chain[Asset]) -> AssetUsed:
    return AssetUsed(id=chain.state.asset_id, name=chain.state.name, version=chain.version)


async def made(call: Call, kind: Kind, data: Json, command_id: str) -> Made:
    """The request with all that it is made from. A repeated one is made from what the first was made from."""
    template_id, choice = data.get("templateId"), data.get("assets")
    spec: Any = data.get("spec")
    given: Json | None = cast("Json", spec) if isinstance(spec, dict) else {} if spec is None else None
    cluster_id = data.get("clusterId")
    in_force = await policies_in_force(call, kind.name, data.get("projectId"), cluster_id=cluster_id)
    names_assets = template_id is not None or isinstance(choice, dict)
    if not (names_assets or in_force.ever):
        own = None if given is None else alone(spec_node(kind.name), _request(given))
        return Made(data=data, issues=[], used={}, merged=own, in_force=in_force)
    earlier = await _earlier(call, data, command_id)
    if earlier is not None:
        then = earlier.made_from or MadeFrom()
        in_force = await policies_in_force(call, kind.name, data.get("projectId"), cluster_id=cluster_id, then=then)
    gathering = _Gathering(
        call, kind, data | {"departmentId": in_force.department_id}, None if earlier is None else earlier.made_from
    )
    if names_assets:
        await gathering.gather(template_id, cast("Json", choice) if isinstance(choice, dict) else {})
    used = gathering.used
    layers = [
        *in_force.layers,
        *(_layer(source, used[source]) for source in _ORDER if source in used),
        *(_layer("data source", chain) for chain in gathering.sources),
    ]
    if given is not None and "environment" in used:
        gathering.issues += check_users(given, used["environment"].state)
    whole = None if given is None else merged(spec_node(kind.name), [*layers, _request(given)])
    master = _master(kind, in_force, data)
    if whole is not None and layers:
        data = data | {"spec": whole.spec}
    if master is not None:
        data = data | {"masterSpec": master.spec}
    return Made(
        data=data,
        issues=[*in_force.issues, *gathering.issues],
        used=used,
        sources=gathering.sources,
        merged=whole,
        master=master,
        in_force=in_force,
    )


def _master(kind: Kind, in_force: InForce, data: Json) -> Merged | None:
    """A master's own spec takes the defaults of policies, and nothing from assets."""
    given = data.get("masterSpec")
    if not in_force.chains or not isinstance(given, dict) or "masterSpec" not in tree(kind.creation).by_name:
        return None
    node = master_node(kind)
    own = cast("Json", given)
    return merged(node, [*master_layers(in_force.layers, node, own), _request(own)])


def _request(spec: Json) -> Layer:
    return Layer(source="request", name="", spec=spec)


def _layer(source: Source, chain: Chain[Asset]) -> Layer:
    return Layer(source=source, name=chain.state.name, spec=layer_of(chain.state))


class _Gathering:
    """Finds the assets of one request."""

    def __init__(self, call: Call, kind: Kind, data: Json, earlier: MadeFrom | None) -> None:
        self._call, self._kind, self._data, self._earlier = call, kind, data, earlier
        self.used: dict[Chosen, Chain[Asset]] = {}
        self.sources: list[Chain[Asset]] = []
        self.issues: list[Issue] = []

    async def gather(self, template_id: Any, choice: Json) -> None:
        of_template: Json = {}
        if isinstance(template_id, str):
            await self._take("template", template_id, "templateId")
            if (template := self.used.get("template")) is not None:
                of_template = template.state.spec.get("assets") or {}
        for kind, name in CHOSEN.items():
            if name in choice:
                # Null takes away what the template names.
                if isinstance(choice[name], str):
                    await self._take(kind, choice[name], f"assets.{name}")
            elif isinstance(of_template.get(name), str):
                await self._take(kind, of_template[name], "templateId")
        if DATA_SOURCE_IDS in choice:
            await self._take_sources(choice[DATA_SOURCE_IDS], f"assets.{DATA_SOURCE_IDS}")
        else:
            await self._take_sources(of_template.get(DATA_SOURCE_IDS), "")

    async def _take_sources(self, given: Any, field: str) -> None:
        """Args: field, of the list; empty where the template names them."""
        named = cast("list[Any]", given) if isinstance(given, list) else []
        ids = [one for one in named if isinstance(one, str)]
        before = () if self._earlier is None else self._earlier.data_sources
        then = {used.id: used.version for used in before}
        paths: dict[str, str] = {}
        for index, asset_id in enumerate(ids[:MOST_DATA_SOURCES]):
            chain = await find_asset(self._call, DATA_SOURCES, asset_id, at=then.get(asset_id.lower()))
            problem = unsuitable(
                "data source",
                asset_id,
                None if chain is None else chain.state,
                self._kind.name,
                self._data,
                call=self._call,
            )
            if not problem and chain is not None:
                problem = _hidden(chain.state, paths)
                if wrong := marked(chain.state, self._data.get("clusterId")):
                    problem = f"{wrong}; choose another, or leave it out"
                # What is wrong with a data volume is told once: the whole is held to what it names (data_volumes.py).
                if not (problem and chain.state.offered):
                    self.sources.append(chain)
            if problem:
                self.issues.append(Issue(field=f"{field}[{index}]" if field else "templateId", details=problem))

    async def _take(self, kind: Chosen, asset_id: str, field: str) -> None:
        before = None if self._earlier is None else self._earlier.used(kind)
        at = before.version if before is not None and before.id == asset_id else None
        chain = await find_asset(self._call, kind, asset_id, at=at)
        asset = None if chain is None else chain.state
        if problem := unsuitable(kind, asset_id, asset, self._kind.name, self._data, call=self._call):
            self.issues.append(Issue(field=field, details=problem))
        elif chain is not None:
            self.used[kind] = chain


def _hidden(source: Asset, paths: dict[str, str]) -> str:
    """Why it cannot stand beside those before it, whose names are in `paths` by path; empty where it can."""
    path = mount_path(source.kind, source.spec)
    other = paths.setdefault(path, source.name)
    if other is source.name:
        return ""
    return f"data source {shown(source.name)} is found at {shown(path)}, as {shown(other)} is; choose one of them"


def check_users(given: Json, environment: Asset) -> list[Issue]:
    """R22: what a request says of user and groups beside an environment. Null, too, would change who it is."""
    own: Json = environment.spec.get("security") or {}
    source: str = own.get("uidGidSource") or "fromTheImage"
    if environment.spec.get("overrideUidGidInWorkspace") and source != "fromTheImage":
        return []
    security: Any = given.get("security", {})
    if security is None:
        changed = ["security"] if any(own.get(name) is not None for name in (_SOURCE, *_OF_USERS)) else []
    elif isinstance(security, dict):
        said = cast("Json", security)
        changed = [f"security.{name}" for name in (_SOURCE, *_OF_USERS) if _changes(name, said, own)]
    else:
        return []  # it is faulty itself
    name = shown(environment.name)
    why = (
        f"environment {name} takes user and groups from the image"
        if source == "fromTheImage"
        else f"environment {name} lets no request change its user and groups (overrideUidGidInWorkspace)"
    )
    return [
        fault(f"spec.{field}", f"is not possible: {why}; leave it out", "canEdit", "assets.environmentId")
        for field in changed
    ]


def _changes(name: str, said: Json, own: Json) -> bool:
    """Whether a request's field of its security gives other users than the environment's."""
    if name not in said:
        return False
    if name == _SOURCE:
        # One that says nothing of it leaves the token's user possible; of all others ids are needed.
        return own.get(name) is not None and said[name] != own[name]
    return said[name] is not None or own.get(name) is not None


async def _earlier(call: Call, data: Json, command_id: str) -> Workload | None:
    """The workload that this very request made before."""
    name, project_id = data.get("name"), data.get("projectId")
    if not call.keyed or not isinstance(name, str) or not isinstance(project_id, str) or not call.may_read(project_id):
        return None
    as_prefix = data.get("useGivenNameAsPrefix") is True
    key = workload_key(project_id, final_name(name, as_prefix=as_prefix, command_id=command_id))
    chain = await call.api.store.load_at(WORKLOAD, key, incarnation_id(key, command_id))
    return None if chain is None else chain.state
