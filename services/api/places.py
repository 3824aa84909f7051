"""Departments, projects and clusters as the api knows them: its own fold of the log, and the log itself where the fold
lags.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from msgspec import UNSET, UnsetType

from events.aggregate import CLUSTER, DEPARTMENT, PROJECT, Aggregate, Chain
from events.authorize import Permission
from events.cluster import Cluster, ClusterAdded, ClusterRemoved
from events.commands import UserCommand
from events.department import DEFAULT_DEPARTMENT_ID, NEVER_CHANGED, Department, shown_as
from events.envelope import Accepted
from events.ids import key_of_id
from events.project import Project
from events.refusal import Refusal
from projections.found import Moment
from services.api.context import MAX_WAIT_SECONDS, Call, Look
from services.api.errors import ApiError, not_found, refused
from services.api.rules import free_name
from services.runtime.identity.directory import KINDS

CHAINS_AT_ONCE: Final = 32
"""Read from the log side by side, for a list of the past."""
OWN_WRITE_SECONDS: Final = 1.0
"""How long the answer to a change of roles, projects or clusters waits until this api's own reads show it."""


async def find_project(call: Look, project_id: str) -> Project | None:
    known = call.api.directory.project(project_id)
    if known is not None:
        return known
    chain = await project_chain(call, project_id)
    return None if chain is None else chain.state


async def find_department(call: Look, department_id: str) -> Department | None:
    known = call.api.directory.departments.get(department_id)
    key = key_of_id(department_id)
    if known is not None or key is None:
        return known
    return shown_as((await call.api.store.load(DEPARTMENT, key)).state, department_id)


def may_read_department(call: Look, department_id: str) -> bool:
    """Whoever may read one of its projects may."""
    readable = call.grants.readable_projects
    return readable is None or not readable.isdisjoint(call.api.directory.projects_in(department_id))


async def department_of(call: Look, project_id: str, *, at: int | None = None) -> str | UnsetType:
    """Id of the department in which a project stands, or stood at a sequence; unset where there was no such project."""
    key = key_of_id(project_id)
    known = call.api.directory.project(project_id) if at is None else None
    if known is None and key is not None:
        known = (await call.api.store.load(PROJECT, key, at)).state
    return UNSET if known is None or not known.project_id else known.department_id


def readable_departments(call: Look) -> frozenset[str]:
    """Ids of those in which the caller may read a project, of a caller who may not read everything."""
    known = (call.api.directory.project(id_) for id_ in call.grants.readable_projects or ())
    return frozenset(project.department_id for project in known if project is not None)


async def project_chain(call: Look, project_id: str) -> Chain[Project] | None:
    """With its version, as of the same commit."""
    key = key_of_id(project_id)
    if key is None:
        return None
    chain = call.api.directory.chain(PROJECT, key)
    if not _lives(chain, project_id):
        chain = await call.api.store.load(PROJECT, key)
    return chain if _lives(chain, project_id) else None


def _lives(chain: Chain[Project], project_id: str) -> bool:
    return chain.state.exists and chain.state.project_id == project_id


async def find_cluster(call: Look, cluster_id: str) -> Cluster | None:
    known = call.api.directory.cluster(cluster_id)
    if known is not None:
        return known
    chain = await cluster_chain(call, cluster_id)
    return None if chain is None else chain.state


async def cluster_chain(call: Look, cluster_id: str) -> Chain[Cluster] | None:
    """With its version, as of the same commit."""
    key = key_of_id(cluster_id)
    if key is None:
        return None
    chain = call.api.directory.chain(CLUSTER, key)
    if not _is_living(chain, cluster_id):
        chain = await call.api.store.load(CLUSTER, key)
    return chain if _is_living(chain, cluster_id) else None


def _is_living(chain: Chain[Cluster], cluster_id: str) -> bool:
    return chain.state.exists and chain.state.cluster_id == cluster_id


async def clusters_at(call: Look, moment: Moment, *, removed: bool) -> list[Cluster]:
    """Those that there were at a moment, by name; `removed`: for each name that was free, the last one."""
    ids = await call.queries.as_of(moment).cluster_ids(removed=removed)
    states = [chain.state for chain in await _chains_at(call, CLUSTER, ids, moment)]
    found = [state for state in states if (state.removed if removed else state.exists)]
    return sorted(found, key=lambda cluster: cluster.name)


async def projects_at(call: Look, moment: Moment) -> list[Project]:
    """Those that there were at a moment and that the caller may read now, by name."""
    ids = await call.queries.as_of(moment).project_ids()
    found = [chain.state for chain in await _chains_at(call, PROJECT, ids, moment)]
    return sorted((state for state in found if state.exists), key=lambda project: project.name)


async def departments_at(call: Look, moment: Moment) -> list[Department]:
    """Those that there were at a moment, by name."""
    ids = {DEFAULT_DEPARTMENT_ID, *await call.queries.as_of(moment).department_ids()}
    states = [chain.state for chain in await _chains_at(call, DEPARTMENT, ids, moment)]
    there = [*(state for state in states if state.exists)]
    if all(state.department_id != DEFAULT_DEPARTMENT_ID for state in there):
        there.append(NEVER_CHANGED)
    return sorted(there, key=lambda department: department.name)


async def department_at(call: Look, moment: Moment) -> Chain[Department] | None:
    """The department that the path names as it stood; None where there was none."""
    chain = next(iter(await _chains_at(call, DEPARTMENT, [call.id], moment)), Chain(state=DEPARTMENT.initial))
    found = shown_as(chain.state, call.id)
    return None if found is None else Chain(state=found, version=chain.version)


async def cluster_at(call: Look, moment: Moment, cluster_id: str) -> Chain[Cluster] | None:
    """One cluster as it stood; None where there was none."""
    chains = await _chains_at(call, CLUSTER, [cluster_id], moment)
    return next((chain for chain in chains if _is_living(chain, cluster_id)), None)


async def project_at(call: Look, moment: Moment) -> Chain[Project] | None:
    """The project that the path names as it stood; None where there was none."""
    chains = await _chains_at(call, PROJECT, [call.id], moment)
    return next((chain for chain in chains if _lives(chain, call.id)), None)


async def _chains_at[S](call: Look, aggregate: Aggregate[S], ids: Iterable[str], moment: Moment) -> list[Chain[S]]:
    """From the log: one for each name that the ids had."""
    turns = asyncio.Semaphore(CHAINS_AT_ONCE)

    async def load(key: str) -> Chain[S]:
        async with turns:
            return await call.api.store.load(aggregate, key, moment.seq)

    keys = {key for id_ in ids if (key := key_of_id(id_)) is not None}
    return list(await asyncio.gather(*map(load, sorted(keys)))) if moment.seq else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """That a cluster was taken out."""

    name: str
    at: datetime
    by: str
    """Subject of who did it."""


async def removal_of(call: Look, cluster_id: str) -> Removal | None:
    """Of a cluster that was removed, also where another one has its name now; None of any other."""
    key = key_of_id(cluster_id)
    if key is None or call.api.directory.cluster(cluster_id) is not None:
        return None
    version = (await call.api.store.load(CLUSTER, key)).version
    name: str | None = None
    async with aclosing(call.api.store.commits(CLUSTER, key, after_seq=0, until_seq=version)) as pages:
        async for commits in pages:
            for commit in commits:
                for event in commit.events:
                    if isinstance(event, ClusterAdded):
                        name = event.name if event.cluster_id == cluster_id else None
                    elif isinstance(event, ClusterRemoved) and name is not None:
                        actor = commit.record.actor.id
                        by = (await call.api.actors.subjects_of((actor,)))[actor]
                        return Removal(name=name, at=commit.record.occurred_at, by=by)
    return None


async def sent_with_name(
    call: Call, command: UserCommand, name: str, is_taken: Callable[[str], bool], refusal: Callable[[str, str], Refusal]
) -> Accepted:
    """Have something of this name made. Raises ApiError; where the name is taken, it proposes one that is free.

    Args:
        refusal: of a name that is taken, and the proposed one.
    """
    try:
        return await call.send(command, creation=True)
    except ApiError as error:
        if error.details != "name_taken":
            raise
        raise refused(refusal(name, free_name(name, is_taken)), creation=True) from None


async def directory_caught_up(call: Look, reply: Accepted) -> None:
    """So that who changed something sees it in the next list."""
    if reply.changed:
        await call.api.directory.reached(reply.seq, timeout_seconds=OWN_WRITE_SECONDS)


async def directory_fresh(call: Look) -> dict[str, str]:
    """Wait for `min_seq` in a list that comes from the fold; headers as `Call.fresh`."""
    wanted = call.min_seq
    directory = call.api.directory
    if directory.seq >= wanted:
        return {}
    if not await directory.reached(await _last_that_counts(call, wanted), timeout_seconds=MAX_WAIT_SECONDS):
        return {"X-Log-Stale": "true"}
    return {"X-Log-Sequence": str(max(wanted, directory.seq))}


async def _last_that_counts(call: Look, wanted: int) -> int:
    """The sequence at which the fold knows all that it can know of `wanted`: it follows only some kinds of aggregates,
    and most of the log is about others.
    """
    if await call.api.store.last_seq() < wanted:
        return wanted
    return min(wanted, await call.api.store.last_seq(aggregates=KINDS))


async def readable_project(call: Look) -> Chain[Project]:
    """The one of the path. Raises 404 where it is not there, or the caller may not read it."""
    chain = await project_chain(call, call.id)
    if chain is None or not call.may_read(chain.state.project_id):
        raise not_found("there is no such project")
    return chain


async def administered(call: Call, wanted: str | None, permission: Permission) -> list[Project]:
    """The projects in which the caller may do this, or that one of them. Raises 403 and 404."""
    if wanted is not None:
        project = await find_project(call, wanted)
        if project is None or not call.may_read(wanted):
            raise not_found("there is no such project")
        call.require(permission, wanted)
        return [project]
    projects = [p for p in call.api.directory.projects.values() if call.grants.allows(permission, p.project_id)]
    if not projects:
        call.require(permission, None)
    return projects
