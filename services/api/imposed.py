"""Data sources that a policy imposes: every workload that it is for has them, and no request drops or changes one.

They count as defaults of the policy, each with a rule that locks it. So who set them, what is forbidden, and what an
evaluation tells follow from the rules that there are. They are read when a workload is submitted, as they are then.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from msgspec.structs import replace

from events.aggregate import ASSET, Chain
from events.article import with_article
from events.asset import CALLED, DATA_SOURCES, Asset
from events.asset_specs import layer_of, mount_path, spec_node
from events.ids import key_of_id
from events.policy import Policy
from events.workload.made_from import AssetUsed
from services.api.context import Look
from services.api.issues import Issue, fault, shown
from services.api.lent import named_in
from services.api.merge import Json, Layer, merged

OF_INFERENCES: Final = frozenset(("pvc", "git", "config-map"))
"""Data sources that an inference can take (S054)."""
KEPT: Final = 500
"""Policies with their data sources that are kept ready."""
_expanded: "OrderedDict[tuple[str, ...], tuple[Policy, Policy]]" = OrderedDict()
"""By policy and versions of its data sources: the policy, and the one that says it all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imposing:
    """A policy with the data sources that it imposes."""

    policy: Policy
    """With their volumes among its defaults, each locked."""
    used: tuple[AssetUsed, ...] = ()
    """The data sources, as they are now."""
    issues: tuple[Issue, ...] = ()
    """Why nothing can be made where it holds."""
    not_on: frozenset[str] = frozenset()
    """Where no cluster is named: ids of those on which it could not run, as one of them cannot be used there, or is
    imposed there alone.
    """


async def imposing(
    call: Look, policy: Policy, *, cluster_id: Any = None, then: Mapping[str, int] | None = None
) -> Imposing:
    """The policy and what it imposes on a workload of this cluster.

    Args:
        cluster_id: as it was given; where it is none, data sources of one cluster are left out.
        then: of a request that is repeated, the versions of data sources from which it was made.
    """
    if not policy.imposed_assets:
        return Imposing(policy=policy)
    chains: list[Chain[Asset]] = []
    issues: list[Issue] = []
    not_on: set[str] = set()
    for asset_id in policy.imposed_assets:
        chain = await _load(call, asset_id, (then or {}).get(asset_id))
        asset = chain.state
        if not asset.asset_id or asset.deleted_at is not None:
            details = (
                f"the {policy.scope}'s policy imposes data source {shown(asset.name or asset_id)}, which was deleted; "
                "who sets the policy must take it out"
            )
            issues.append(fault("projectId", details))
        elif not asset.only_on or asset.only_on == cluster_id:
            chains.append(chain)
            not_on |= asset.issues.keys()
            if wrong := marked(asset, cluster_id):
                issues.append(fault("clusterId", f"the {policy.scope}'s policy imposes it: {wrong}"))
        else:
            not_on.add(asset.only_on)
    used = tuple(AssetUsed(id=one.state.asset_id, name=one.state.name, version=one.version) for one in chains)
    return Imposing(policy=_with(policy, chains), used=used, issues=tuple(issues), not_on=frozenset(not_on))


def marked(source: Asset, cluster_id: Any) -> str:
    """Why workloads of this cluster cannot use a data source, as its agent found; empty where they can."""
    found = source.issues.get(cluster_id.lower()) if isinstance(cluster_id, str) else None
    if found is None:
        return ""
    return (
        f"data source {shown(source.name)} cannot be used on this cluster: {found.issue} (its agent found so at "
        f"{found.at:%Y-%m-%dT%H:%M:%SZ}, and looks again every minute or so)"
    )


async def _load(call: Look, asset_id: str, at: int | None) -> Chain[Asset]:
    key = key_of_id(asset_id)
    if key is None:
        return Chain(state=ASSET.initial)
    chain = await (call.api.store.load(ASSET, key) if at is None else call.api.store.load(ASSET, key, at))
    # Another asset may have its name by now.
    return chain if chain.state.asset_id == asset_id else Chain(state=ASSET.initial)


def _with(policy: Policy, chains: Sequence[Chain[Asset]]) -> Policy:
    if not chains:
        return policy
    key = (policy.policy_id, *(f"{chain.state.asset_id}/{chain.version}" for chain in chains))
    kept = _expanded.get(key)
    if kept is None or kept[0] is not policy:
        kept = _expanded[key] = policy, _expand(policy, [chain.state for chain in chains])
    _expanded.move_to_end(key)
    while len(_expanded) > KEPT:
        _expanded.popitem(last=False)
    return kept[1]


def _expand(policy: Policy, sources: Sequence[Asset]) -> Policy:
    layers = [Layer(source="default", name="", spec=policy.defaults)]
    rules: Json = {**policy.rules, "storage": {**(policy.rules.get("storage") or {})}}
    for source in sources:
        spec = layer_of(source)
        layers.append(Layer(source="default", name="", spec=spec))
        for kind in cast("Json", spec.get("storage") or {}):
            own: Json = {**(rules["storage"].get(kind) or {})}
            own["lockedItems"] = [*(own.get("lockedItems") or ()), mount_path(source.kind, source.spec)]
            rules["storage"][kind] = own
    return replace(policy, defaults=merged(spec_node(policy.workload_type), layers).spec, rules=rules)


async def imposed_issues(call: Look, policy: Policy, department_id: str, field: str) -> list[Issue]:
    """What is wrong with the data sources that a policy is to impose.

    Args:
        department_id: of the place of the policy; empty where it holds everywhere.
    """
    issues: list[Issue] = []
    paths: dict[str, str] = {}
    for index, asset_id in enumerate(policy.imposed_assets):
        chain = await _load(call, asset_id, None)
        if wrong := _wrong(chain.state, asset_id, policy, department_id, paths):
            issues.append(fault(f"{field}[{index}]", wrong))
    return issues


def _wrong(asset: Asset, asset_id: str, policy: Policy, department_id: str, paths: dict[str, str]) -> str:
    """Why a policy cannot impose it; empty where it can."""
    if not asset.asset_id or asset.deleted_at is not None:
        return f"there is no data source {shown(asset_id)}"
    name = shown(asset.name)
    if asset.kind not in DATA_SOURCES:
        return f"{name} is of the kind {CALLED[asset.kind]}; a policy imposes data sources alone"
    if asset.project_id and asset.project_id != policy.project_id:
        return f"data source {name} is of one project; the policy holds beyond it"
    if asset.department_id and asset.department_id != department_id:
        return f"data source {name} is of one department; the policy holds beyond it"
    if policy.workload_type == "Inference" and asset.kind not in OF_INFERENCES:
        called = with_article(CALLED[asset.kind])
        return f"data source {name} is {called}; an inference takes those of PVC, Git and ConfigMap"
    if any(named_in(asset.spec)):
        return f"data source {name} is read with a credential of whoever submits, and a policy gives nobody's away"
    path = mount_path(asset.kind, asset.spec)
    other = paths.setdefault(path, asset.name)
    if other is not asset.name:
        return f"data source {name} is found at {shown(path)}, as {shown(other)} is; impose one of them"
    return ""


def ids_of(given: Any) -> tuple[str, ...]:
    """Of a body that is sound so far: the ids, each once."""
    listed = cast("list[Any]", given) if isinstance(given, list) else []
    return tuple(dict.fromkeys(one.lower() for one in listed if isinstance(one, str)))
