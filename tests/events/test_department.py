"""Departments: given/when/then.

Requirement rows: S008, S040 (what stands behind a submission).
"""

from typing import Any

import msgspec
import pytest

from events.aggregate import DEPARTMENT, PROJECT
from events.codec import decode_event
from events.commands import target
from events.commit import EventRecord
from events.department import (
    DEFAULT_DEPARTMENT_ID,
    NEVER_CHANGED,
    ChangeDepartment,
    CreateDepartment,
    DeleteDepartment,
    Department,
    department_key,
    shown_as,
)
from events.ids import key_of_id
from events.project import ChangeProject, CreateProject, MoveLostProject, Project
from events.refusal import Refusal
from tests.events.given import context, names


def after(state: Any, *commands: Any, aggregate: Any = DEPARTMENT) -> Any:
    """The state after these commands; each given twice changes nothing the second time."""
    for number, command in enumerate(commands):
        decision = aggregate.decide(command, state, context(command_id=f"c{number}"))
        assert not isinstance(decision, Refusal), decision
        state = aggregate.after(state, decision)
        again = aggregate.decide(command, state, context(command_id=f"c{number}"))
        assert isinstance(again, Refusal) or again == ()
    return state


def refused(command: Any, state: Department) -> Refusal:
    decision = DEPARTMENT.decide(command, state, context())
    assert isinstance(decision, Refusal), decision
    return decision


RESEARCH: Department = after(DEPARTMENT.initial, CreateDepartment(name="research", node_pools=("a",)))


def test_a_department_is_made_changed_and_deleted_and_its_name_is_free_again() -> None:
    assert RESEARCH.exists
    assert key_of_id(RESEARCH.department_id) == department_key("research")
    id_ = RESEARCH.department_id
    changed = after(RESEARCH, ChangeDepartment(department_id=id_, node_types=("dgx",)))
    assert (changed.node_pools, changed.node_types) == ((), ("dgx",))
    gone = after(changed, DeleteDepartment(department_id=id_))
    assert not gone.exists
    assert shown_as(gone, id_) is None
    assert after(gone, CreateDepartment(name="research")).exists


def test_a_name_that_is_taken_is_refused_with_another_one() -> None:
    assert refused(CreateDepartment(name="research"), RESEARCH).code == "name_taken"
    assert "'research-2'" in refused(CreateDepartment(name="research"), RESEARCH).message
    assert refused(CreateDepartment(name="default"), DEPARTMENT.initial).code == "name_taken"


def test_the_default_department_is_there_before_anything_was_written_and_always() -> None:
    assert shown_as(DEPARTMENT.initial, DEFAULT_DEPARTMENT_ID) == NEVER_CHANGED
    assert target(ChangeDepartment(department_id=DEFAULT_DEPARTMENT_ID)) == ("department", department_key("default"))
    assert refused(DeleteDepartment(department_id=DEFAULT_DEPARTMENT_ID), DEPARTMENT.initial).code == (
        "default_department"
    )
    changed = after(DEPARTMENT.initial, ChangeDepartment(department_id=DEFAULT_DEPARTMENT_ID, node_pools=("a",)))
    assert (changed.department_id, changed.node_pools) == (DEFAULT_DEPARTMENT_ID, ("a",))
    back = after(changed, ChangeDepartment(department_id=DEFAULT_DEPARTMENT_ID))
    assert (back.node_pools, back.created_at) == ((), changed.created_at)
    assert refused(DeleteDepartment(department_id=DEFAULT_DEPARTMENT_ID), back).code == "default_department"


def test_nothing_is_decided_on_a_department_that_is_not_there() -> None:
    assert refused(DeleteDepartment(department_id=RESEARCH.department_id), DEPARTMENT.initial).code == "not_found"


@pytest.mark.parametrize("version", [1, 2])
def test_a_project_from_before_there_were_departments_stands_in_the_default_one(version: int) -> None:
    data = msgspec.Raw(b'{"project_id":"p","name":"n","at":"2026-01-02T03:04:05Z"}')
    stored = EventRecord(type="ProjectCreated", version=version, data=data)
    state: Project = PROJECT.evolve(PROJECT.initial, decode_event(stored))
    assert (state.department_id, state.department_name) == (DEFAULT_DEPARTMENT_ID, "default")
    assert state.node_types == ()


def test_a_project_moves_only_where_it_is_said_and_stays_there_when_its_settings_change() -> None:
    where: dict[str, Any] = {"department_id": RESEARCH.department_id, "department_name": "research"}
    made: Project = after(PROJECT.initial, CreateProject(name="vision"), aggregate=PROJECT)
    moved = after(made, ChangeProject(project_id=made.project_id, **where), aggregate=PROJECT)
    assert moved.department_name == "research"
    both = ChangeProject(
        project_id=made.project_id, gpu_quota_milli=1000, department_id=DEFAULT_DEPARTMENT_ID, department_name="default"
    )
    assert names(PROJECT.decide(both, moved, context())) == ["ProjectChanged", "ProjectMoved"]  # type: ignore[arg-type]
    kept = after(moved, ChangeProject(project_id=made.project_id, node_types=("dgx",)), aggregate=PROJECT)
    assert (kept.department_name, kept.node_types) == ("research", ("dgx",))


def test_a_project_whose_department_was_deleted_moves_into_the_default_one_but_none_that_moved_on() -> None:
    where: dict[str, Any] = {"department_id": RESEARCH.department_id, "department_name": "research"}
    made: Project = after(PROJECT.initial, CreateProject(name="vision", **where), aggregate=PROJECT)
    lost = MoveLostProject(project_id=made.project_id, department_id=RESEARCH.department_id)
    assert after(made, lost, aggregate=PROJECT).department_name == "default"
    elsewhere = MoveLostProject(project_id=made.project_id, department_id="another")
    assert PROJECT.decide(elsewhere, made, context()) == ()


def test_the_name_of_a_department_must_be_that_of_its_id() -> None:
    with pytest.raises(ValueError, match="cannot have the name 'sales'"):
        CreateProject(name="vision", department_id=RESEARCH.department_id, department_name="sales")
    with pytest.raises(ValueError, match="cannot have the name 'sales'"):
        ChangeProject(project_id="p", department_id=RESEARCH.department_id, department_name="sales")
