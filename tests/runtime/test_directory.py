"""The directory: roles, projects and clusters, as the log has them now."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from development.commands import carry_out
from events.cluster import AddCluster, RemoveCluster, SetOwnershipProtection
from events.project import CreateProject, GrantProjectRole, RevokeProjectRole
from events.tenant import GrantTenantRole
from services.runtime.identity.directory import Directory
from services.runtime.log.memory import MemoryEventStore
from services.runtime.log.store import LogGapError

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store() -> MemoryEventStore:
    return MemoryEventStore()


@pytest.fixture
async def directory(store: MemoryEventStore) -> AsyncIterator[Directory]:
    made = Directory(store)
    await made.start()
    yield made
    await made.close()


async def test_it_has_caught_up_once_it_is_started(store: MemoryEventStore) -> None:
    for number in range(2_500):
        await carry_out(store, f"c-{number}", CreateProject(name=f"p-{number}"))
    directory = Directory(store)
    await directory.start()
    assert (directory.seq, len(directory.projects)) == (2_500, 2_500)
    await directory.close()


async def test_things_are_found_by_id_and_by_name(store: MemoryEventStore, directory: Directory) -> None:
    await carry_out(store, "1", CreateProject(name="vision"))
    seq = await carry_out(store, "2", AddCluster(name="lab", kind="kubernetes"))
    assert await directory.reached(seq, timeout_seconds=60)

    project, cluster = directory.project_named("vision"), directory.cluster_named("lab")
    assert project is not None
    assert cluster is not None
    assert directory.project(project.project_id) == project
    assert directory.cluster(cluster.cluster_id) == cluster
    assert directory.project("nobody") is None
    assert directory.cluster_named("nobody") is None


async def test_roles_count_as_soon_as_their_commit_is_in(store: MemoryEventStore, directory: Directory) -> None:
    await directory.reached(await carry_out(store, "1", CreateProject(name="vision")), timeout_seconds=60)
    (project_id,) = directory.projects
    assert directory.grants("ada").roles_in(project_id) == ()

    grant = GrantProjectRole(project_id=project_id, subject="ada", role="researcher")
    await directory.reached(await carry_out(store, "2", grant), timeout_seconds=60)
    assert directory.grants("ada").roles_in(project_id) == ("researcher",)

    everywhere = GrantTenantRole(subject="ada", role="viewer")
    await directory.reached(await carry_out(store, "3", everywhere), timeout_seconds=60)
    assert directory.grants("ada").roles_in(project_id) == ("viewer", "researcher")

    revoke = RevokeProjectRole(project_id=project_id, subject="ada", role="researcher")
    await directory.reached(await carry_out(store, "4", revoke), timeout_seconds=60)
    assert directory.grants("ada").roles_in(project_id) == ("viewer",)


async def test_a_removed_cluster_leaves_and_its_name_can_come_back(
    store: MemoryEventStore, directory: Directory
) -> None:
    await directory.reached(await carry_out(store, "1", AddCluster(name="lab", kind="kubernetes")), timeout_seconds=60)
    (first,) = directory.clusters
    protect = SetOwnershipProtection(cluster_id=first, enabled=True)
    await directory.reached(await carry_out(store, "2", protect), timeout_seconds=60)
    assert directory.clusters[first].ownership_protection

    await directory.reached(await carry_out(store, "3", RemoveCluster(cluster_id=first)), timeout_seconds=60)
    assert directory.clusters == {}
    assert directory.cluster_named("lab") is None

    await directory.reached(await carry_out(store, "4", AddCluster(name="lab", kind="kubernetes")), timeout_seconds=60)
    (second,) = directory.clusters
    assert second != first
    assert not directory.clusters[second].ownership_protection


async def test_waiting_for_what_never_comes_ends(directory: Directory) -> None:
    assert not await directory.reached(10**9, timeout_seconds=0.05)


async def test_until_returns_when_told_to_stop(directory: Directory) -> None:
    stop = asyncio.Event()
    stop.set()
    await directory.until(stop)


async def test_until_raises_what_ended_the_fold(store: MemoryEventStore) -> None:
    class Torn(MemoryEventStore):
        async def follow(self, *_: Any, **__: Any) -> AsyncGenerator[Any]:
            yield []
            await asyncio.sleep(0.05)
            raise LogGapError("a sequence is missing")

    directory = Directory(Torn())
    await directory.start()
    with pytest.raises(LogGapError, match="missing"):
        await directory.until(asyncio.Event())
    await directory.close()
