"""The end of a project: refused while workloads live in it, and what comes in at the same moment."""

import asyncio
from contextlib import aclosing

import pytest

from development.commands import CommandPath, carry_out, code, training
from events.aggregate import PROJECT, WORKLOAD
from events.envelope import Accepted
from events.ids import key_of_id
from events.project import CreateProject, DeleteProject, GrantProjectRole
from events.workload.commands import DeleteWorkload
from services.auto_deletion.due import Due, command
from services.runtime.nats.bus import CommandClient
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests

pytestmark = pytest.mark.anyio


async def test_a_project_is_deleted_once_nothing_lives_in_it_and_takes_nothing_more(
    path: CommandPath, place: tuple[str, str]
) -> None:
    project, cluster = place
    made = await path.accepted("ada", training("lives", project, cluster), "k1")
    assert code(await path.send("root", DeleteProject(project_id=project), "d1")) == "project_not_empty"
    assert code(await path.send("pia", DeleteProject(project_id=project), "d2")) == "not_permitted"
    await path.accepted("ada", DeleteWorkload(workload_id=made.id), "k2")
    await path.accepted("root", DeleteProject(project_id=project), "d3")
    assert code(await path.send("ada", training("late", project, cluster), "k3")) in {
        "not_in_project",
        "unknown_project",
    }
    grant = GrantProjectRole(project_id=project, subject="eve", role="viewer")
    assert code(await path.send("root", grant, "g")) == "not_found"
    assert code(await path.send("root", training("late", project, cluster), "k4")) == "unknown_project"


async def test_its_name_makes_another_project_without_the_roles_of_the_first(
    path: CommandPath, place: tuple[str, str]
) -> None:
    project, cluster = place
    await path.accepted("root", DeleteProject(project_id=project), "d")
    again = await path.accepted("root", CreateProject(name="vision"), "again")
    assert again.id != project
    assert (await path.store.load(PROJECT, key_of_id(again.id) or "")).state.roles == {}
    assert code(await path.send("ada", training("w", again.id, cluster), "k")) == "not_in_project"


async def test_a_creation_that_races_with_the_deletion_is_refused_or_ends_with_the_reason(
    path: CommandPath, place: tuple[str, str]
) -> None:
    """Two replicas of commands do not see what the other one has under way."""
    await path.start("commands")
    project, cluster = place
    creations = [path.send("ada", training(f"w{n}", project, cluster), f"k{n}") for n in range(30)]
    *answers, deleted = await asyncio.gather(*creations, path.send("root", DeleteProject(project_id=project), "d"))
    made = [answer for answer in answers if isinstance(answer, Accepted)]
    assert {code(answer) for answer in answers} <= {"admitted", "not_in_project", "unknown_project"}
    connection = await connect(path.server.settings("auto_deletion"), "auto_deletion")
    client = CommandClient(Requests(connection))
    for one in made:
        left_over = await client.send_system("auto_deletion", command(Due(one.id, None)))
        if isinstance(deleted, Accepted):
            assert code(left_over) == "admitted"
            assert await reasons(path, one.id) == ["project_deleted"]
        else:
            assert code(left_over) == "not_permitted", "its project is there"
    await connection.close()


async def reasons(path: CommandPath, workload_id: str) -> list[str]:
    """Why deletions of the workload were asked for."""
    found: list[str] = []
    key = key_of_id(workload_id) or ""
    version = (await path.store.load(WORKLOAD, key)).version
    async with aclosing(path.store.commits(WORKLOAD, key, after_seq=0, until_seq=version)) as pages:
        async for commits in pages:
            found += [e.reason for c in commits for e in c.events if type(e).__name__ == "WorkloadDeletionRequested"]
    return found


async def test_a_creation_that_came_through_beside_the_deletion_is_deleted_with_the_reason(
    path: CommandPath, place: tuple[str, str]
) -> None:
    """As it stands in the log where the creation was decided before the deletion and stored after it."""
    project, cluster = place
    made = await path.accepted("ada", training("through", project, cluster), "k1")
    await carry_out(path.store, "d", DeleteProject(project_id=project))
    connection = await connect(path.server.settings("auto_deletion"), "auto_deletion")
    left_over = await CommandClient(Requests(connection)).send_system("auto_deletion", command(Due(made.id, None)))
    await connection.close()
    assert code(left_over) == "admitted"
    assert await reasons(path, made.id) == ["project_deleted"]
