"""What happened to projects, clusters, nodes and assets between two places in the log, in sentences: bounded, oldest
first.

Of a project, what concerns its quota; who has which role, and its webhooks, are not everybody's who may read it. Of a
node, what it has and whether it takes pods; what is reserved there, its workloads tell.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from events.aggregate import AGGREGATES, ASSET, CLUSTER, DEPARTMENT, NODE, PROJECT
from events.article import with_article
from events.asset import CALLED, AssetChanged, AssetCreated, AssetDeleted, DataSourceMarked
from events.budgets import Budget, BudgetExhausted, BudgetRemoved, BudgetReopened, BudgetSet, BudgetWarned
from events.capacity import CapacityReservationCancelled, CapacityReserved
from events.cluster import (
    ClusterAdded,
    ClusterConnected,
    ClusterDisconnected,
    ClusterRemoved,
    ClusterReportsRefused,
    NodePoolRemoved,
    NodePoolSet,
    OwnershipProtectionSet,
    OwnershipProtectionUnset,
    StorageClassesReported,
)
from events.commit import Commit
from events.department import DepartmentChanged, DepartmentCreated, DepartmentDeleted
from events.ids import key_of_id
from events.maintenance import MaintenanceCancelled, MaintenancePlanned
from events.node import (
    MaintenanceOf,
    NodeChanged,
    NodeCordoned,
    NodeDrained,
    NodeDrainStarted,
    NodeFacts,
    NodeRegistered,
    NodeRemoved,
    NodeUncordoned,
)
from events.project import ProjectChanged, ProjectCreated, ProjectDeleted, ProjectMoved
from events.simulated import (
    SimulatedClusterCutOff,
    SimulatedClusterReconnected,
    SimulatedNodeChanged,
    SimulatedNodesAdded,
    SimulatedNodesRemoved,
    node_count,
    node_names,
    shown_names,
)
from events.time_limits import TimeLimitsSet
from events.windows import StartWindowsSet
from services.api import answers
from services.api.answers.diff import About
from services.api.context import Look, rfc3339

MOST_SEARCHED: Final = 5_000
"""Commits that are looked at: about a second."""
MOST_CLASSES_TOLD: Final = 10
"""Names of storage classes in one sentence."""
_ABOUT: Final[dict[str, About]] = {
    PROJECT.name: "project",
    DEPARTMENT.name: "department",
    CLUSTER.name: "cluster",
    NODE.name: "node",
    ASSET.name: "asset",
}


def sentence(event: object) -> str | None:
    """What happened, to be followed by who did it; None where it is not told here. Pure."""
    match event:
        case ProjectCreated() | ProjectChanged():
            verb = "created" if isinstance(event, ProjectCreated) else "set"
            quota = "no quota" if event.gpu_quota_milli is None else f"a quota of {event.gpu_quota_milli / 1000:g} GPU"
            return f"{verb} with {quota}{_pools(event.node_pools)}"
        case ProjectMoved():
            return f"moved into the department {event.department_name}"
        case DepartmentCreated() | DepartmentChanged():
            verb = "created" if isinstance(event, DepartmentCreated) else "set"
            types = f", node types {', '.join(event.node_types)}" if event.node_types else ""
            return f"{verb}{_pools(event.node_pools)}{types}"
        case ProjectDeleted() | AssetDeleted() | DepartmentDeleted():
            return "deleted"
        case AssetCreated():
            whom = "everybody" if event.scope == "tenant" else f"a {event.scope}"
            return f"created, {with_article(CALLED[event.kind])} for {whom}"
        case AssetChanged():
            return "given another spec"
        case DataSourceMarked():
            return f"cannot be used on a cluster: {event.issue}" if event.issue else "can be used on a cluster again"
        case BudgetSet():
            budget = Budget(
                per=event.per, gpu_milli_hours=event.gpu_milli_hours, micros=event.micros, currency=event.currency
            )
            return f"budget set to {budget.told(budget.limit)} per {event.per}"
        case BudgetRemoved():
            return "budget removed"
        case TimeLimitsSet():
            kinds = ", ".join(limit.kind for limit in event.limits) or "none"
            return f"limits on the time of workloads set: {kinds}"
        case StartWindowsSet():
            told = "at any time" if event.windows is None else f"only {event.windows.told}"
            return f"workloads may start {told}"
        case BudgetWarned() | BudgetExhausted():
            used = f"{100 * event.used // max(event.limit, 1)} % of the budget is used"
            return f"{used}: nothing new is taken" if isinstance(event, BudgetExhausted) else used
        case BudgetReopened():
            return "budget is open again"
        case NodeRegistered() | NodeChanged():
            return f"{'registered' if isinstance(event, NodeRegistered) else 'reports'}: {_facts(event.facts)}"
        case NodeRemoved():
            return "gone from its cluster"
        case NodeCordoned():
            return f"cordoned{_for(event.maintenance)}"
        case NodeUncordoned():
            over = "" if event.maintenance is None else f": maintenance {event.maintenance.name} is over"
            return f"uncordoned{over}"
        case NodeDrainStarted():
            forced = ", with force: non-preemptible workloads, too" if event.force else ""
            return f"drain begins{_for(event.maintenance)}: its pods are told to end{forced}"
        case NodeDrained():
            return "drained: nothing on it is reserved any more, and it stays cordoned"
        case _:
            return _of_cluster(event)


def _of_cluster(event: object) -> str | None:
    match event:
        case ClusterAdded():
            return f"added as a cluster of kind {event.kind}"
        case ClusterConnected():
            return "connected"
        case ClusterDisconnected():
            why = event.reason or f"no report for {event.silent_seconds} s"
            return f"disconnected: {why}"
        case ClusterReportsRefused():
            return f"{len(event.refused)} sorts of reports of its agent are refused"
        case StorageClassesReported():
            names = ", ".join(one.name for one in event.classes[:MOST_CLASSES_TOLD]) or "none"
            more = len(event.classes) - MOST_CLASSES_TOLD
            return f"reports its storage classes: {names}{f' and {more} more' if more > 0 else ''}"
        case OwnershipProtectionSet():
            return f"ownership protection turned {'on' if event.enabled else 'off'}"
        case OwnershipProtectionUnset():
            return "ownership protection is no longer set by the cluster"
        case NodePoolSet():
            return f"node pool {event.pool.name} set: {event.pool.label_key}={event.pool.label_value}"
        case NodePoolRemoved():
            return f"node pool {event.name} removed"
        case SimulatedNodesAdded():
            return f"{node_count(event.nodes)} simulated nodes added: {shown_names(node_names(event.nodes))}"
        case SimulatedNodeChanged():
            return f"simulated node {shown_names(event.node.names)} changed"
        case SimulatedNodesRemoved():
            return f"{len(event.names)} simulated nodes removed: {shown_names(event.names)}"
        case SimulatedClusterCutOff():
            return "cut off: its agent hears and says nothing"
        case SimulatedClusterReconnected():
            return "no longer cut off"
        case MaintenancePlanned():
            span = f"from {rfc3339(event.starts_at)} to {rfc3339(event.ends_at)}"
            return f"maintenance {event.name} planned {span}"
        case CapacityReserved():
            span = f"from {rfc3339(event.starts_at)} to {rfc3339(event.ends_at)}{', weekly' if event.weekly else ''}"
            return f"capacity reserved for {event.holder_told()} {span}: {event.name}"
        case CapacityReservationCancelled():
            return f"reservation {event.name} cancelled"
        case MaintenanceCancelled():
            return f"maintenance {event.name} cancelled"
        case ClusterRemoved():
            return "removed"
        case _:
            return None


def _for(maintenance: MaintenanceOf | None) -> str:
    return "" if maintenance is None else f" for maintenance {maintenance.name}"


def _pools(pools: Sequence[str]) -> str:
    return f", pools {', '.join(pools)}" if pools else ""


def _facts(facts: NodeFacts) -> str:
    state = "ready" if facts.ready else "not ready"
    closed = ", closed by its cluster" if facts.unschedulable else ""
    model = f" {facts.gpu_model}" if facts.gpu_model else ""
    return f"{facts.cpu_milli / 1000:g} cores, {facts.gpu_count}{model} GPU, pool {facts.pool}, {state}{closed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    happenings: list[answers.Happening]
    upto: int
    """Sequence up to which the log was looked at."""


async def happenings(call: Look, after: int, until: int, *, project_id: str | None, most: int) -> Told:
    """Up to `most` of those that the caller may read; of one project alone where it is given. Raises what a follower
    of the log raises.
    """
    found: list[answers.Happening] = []
    searched = 0
    async with aclosing(_commits(call, after, until, project_id)) as commits:
        async for commit in commits:
            found += await _told(call, commit)
            searched += 1
            if len(found) >= most or searched >= MOST_SEARCHED:
                return Told(happenings=found, upto=commit.seq)
    return Told(happenings=found, upto=until)


async def _commits(call: Look, after: int, until: int, project_id: str | None) -> AsyncGenerator[Commit]:
    if project_id is not None:
        key = key_of_id(project_id) or ""
        last = (await call.api.store.load(PROJECT, key, until)).version
        if last <= after:
            return
        async with aclosing(call.api.store.commits(PROJECT, key, after_seq=after, until_seq=last)) as pages:
            async for commits in pages:
                for commit in commits:
                    if commit.record.about.id == project_id:
                        yield commit
        return
    end = min(until, await call.api.store.last_seq(aggregates=tuple(_ABOUT)))
    if end <= after:
        return
    async with aclosing(call.api.store.follow(after, aggregates=tuple(_ABOUT))) as batches:
        async for batch in batches:
            if not batch:
                return  # the last one is a message that was declared void
            for commit in batch:
                if commit.seq > end:
                    return
                yield commit
                if commit.seq == end:
                    return


async def _told(call: Look, commit: Commit) -> list[answers.Happening]:
    about = commit.record.about
    if commit.aggregate == PROJECT.name and not call.may_read(about.id or ""):
        return []
    if commit.aggregate == ASSET.name and about.project_id and not call.may_read(about.project_id):
        return []
    said = [(type(event).__name__, text) for event in commit.events if (text := sentence(event)) is not None]
    if not said:
        return []
    actor = commit.record.actor
    by = "" if actor.kind == "service" else f" by {(await call.api.actors.subjects_of((actor.id,)))[actor.id]}"
    name = await _name(call, commit)
    return [
        answers.Happening(
            sequence=commit.seq,
            at=commit.record.occurred_at,
            about=_ABOUT[commit.aggregate],
            id=None if commit.aggregate == NODE.name else about.id,
            name=name,
            type=type_,
            message=f"{text}{by}",
        )
        for type_, text in said
    ]


async def _name(call: Look, commit: Commit) -> str:
    """One subject has one name, whoever has it now."""
    if commit.aggregate == NODE.name:
        return await call.api.node_names.of(commit)
    state: Any = (await call.api.store.load(AGGREGATES[commit.aggregate], commit.key)).state
    return state.name
