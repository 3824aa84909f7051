"""The end of a department: refused while projects stand in it, and what comes in at the same moment."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from development.commands import CommandPath, carry_out, code
from events.aggregate import PROJECT
from events.asset import CreateAsset
from events.department import ChangeDepartment, CreateDepartment, DeleteDepartment
from events.envelope import Accepted, CommandReply
from events.ids import key_of_id
from events.policy import SetPolicy
from events.project import ChangeProject, CreateProject, DeleteProject
from services.auto_deletion.due import Lost, command
from services.runtime.nats.bus import CommandClient
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests

pytestmark = pytest.mark.anyio


async def heal(path: CommandPath, project_id: str, department_id: str) -> CommandReply:
    """As auto_deletion asks for it."""
    connection = await connect(path.server.settings("auto_deletion"), "auto_deletion")
    try:
        client = CommandClient(Requests(connection))
        return await client.send_system("auto_deletion", command(Lost(project_id, department_id)))
    finally:
        await connection.close()


async def stands_in(path: CommandPath, project_id: str) -> str:
    return (await path.store.load(PROJECT, key_of_id(project_id) or "")).state.department_name


@pytest.mark.usefixtures("place")
async def test_a_department_is_deleted_once_no_project_stands_in_it_and_takes_nothing_more(path: CommandPath) -> None:
    made = await path.accepted("root", CreateDepartment(name="research"), "k1")
    assert code(await path.send("ada", CreateDepartment(name="hers"), "k2")) == "not_permitted"
    inside = CreateProject(name="inside", department_id=made.id, department_name="research")
    project = (await path.accepted("root", inside, "k3")).id
    assert code(await path.send("root", DeleteDepartment(department_id=made.id), "d1")) == "department_not_empty"
    assert code(await heal(path, project, made.id)) == "not_permitted", "its department is there"
    await path.accepted("root", DeleteProject(project_id=project), "k4")
    await path.accepted("root", DeleteDepartment(department_id=made.id), "d2")
    late = CreateProject(name="late", department_id=made.id, department_name="research")
    asset = CreateAsset(kind="environment", name="e", scope="department", department_id=made.id, spec={})
    policy = SetPolicy(workload_type="Training", department_id=made.id, defaults={}, rules={})
    for number, refused in enumerate((late, asset, policy)):
        assert code(await path.send("root", refused, f"l{number}")) == "unknown_department"
    assert code(await path.send("root", ChangeDepartment(department_id=made.id), "c")) == "not_found"


async def test_a_project_that_races_with_the_deletion_is_refused_or_moved_into_the_default_department(
    path: CommandPath, place: tuple[str, str]
) -> None:
    """Two replicas of commands do not see what the other one has under way."""
    await path.start("commands")
    made = await path.accepted("root", CreateDepartment(name="research"), "k")
    where: dict[str, Any] = {"department_id": made.id, "department_name": "research"}
    arrivals: list[Awaitable[CommandReply]] = [
        path.send("root", CreateProject(name=f"p{n}", **where), f"k{n}") for n in range(20)
    ]
    move = path.send("root", ChangeProject(project_id=place[0], **where), "m")
    *answers, moved, deleted = await asyncio.gather(
        *arrivals, move, path.send("root", DeleteDepartment(department_id=made.id), "d")
    )
    assert {code(answer) for answer in (*answers, moved)} <= {"admitted", "unknown_department"}
    came = [answer.id for answer in answers if isinstance(answer, Accepted)]
    came += [place[0]] if isinstance(moved, Accepted) else []
    for project in came:
        if isinstance(deleted, Accepted):
            assert code(await heal(path, project, made.id)) == "admitted"
            assert await stands_in(path, project) == "default"
        else:
            assert code(await heal(path, project, made.id)) == "not_permitted"


@pytest.mark.usefixtures("place")
async def test_a_project_that_came_through_beside_the_deletion_is_moved_once(path: CommandPath) -> None:
    """As it stands in the log where the creation was decided before the deletion and stored after it."""
    made = await path.accepted("root", CreateDepartment(name="research"), "k1")
    inside = CreateProject(name="inside", department_id=made.id, department_name="research")
    project = (await path.accepted("root", inside, "k2")).id
    await carry_out(path.store, "d", DeleteDepartment(department_id=made.id))
    for _ in range(2):
        assert code(await heal(path, project, made.id)) == "admitted"
        assert await stands_in(path, project) == "default"
