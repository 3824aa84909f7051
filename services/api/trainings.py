"""The five Trainings endpoints of the contract, and reading one workload from the log."""

from datetime import datetime
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from events.aggregate import WORKLOAD, Chain
from events.envelope import Accepted, WorkloadIdCommand
from events.ids import key_of_id
from events.phases import DesiredPhase, Phase
from events.workload.commands import CreateTraining, DeleteWorkload, ResumeWorkload, SuspendWorkload
from events.workload.decide import final_name
from events.workload.spec import TrainingSpec, with_defaults
from events.workload.state import Workload
from services.api.context import Call, json_response, rfc3339, sequence_headers
from services.api.errors import ApiError, bad_request, not_found
from services.api.fields.training import TrainingCreationRequest, TrainingSpecFields
from services.api.issues import Issue, shown
from services.api.places import find_cluster, find_project
from services.api.rules import check_kind
from services.api.validate import check_training, to_spec


async def create_training(call: Call) -> Response:
    data = call.json_object()
    places = await _unknown_places(call, data)
    checked = check_training(data)
    if isinstance(checked, list):
        raise bad_request([*checked, *places])
    if places:
        raise bad_request(places)
    cluster = await find_cluster(call, checked.cluster_id)
    if cluster is not None and (unfit := [*check_kind(checked.spec or TrainingSpecFields(), cluster.kind)]):
        raise bad_request(unfit)
    command_id = call.command_id()
    command = CreateTraining(
        name=final_name(checked.name, as_prefix=checked.use_given_name_as_prefix, command_id=command_id),
        requested_name=checked.name,
        project_id=checked.project_id,
        cluster_id=checked.cluster_id,
        spec=to_spec(checked.spec),
    )
    reply = await call.send(command, command_id=command_id, creation=True)
    if reply.at is None:
        chain = await load_workload(call, reply.id, creation=True)
        return json_response(training_json(chain.state), status=202, headers=sequence_headers(reply.seq))
    return _created(call, checked, command, reply, reply.at)


async def get_training(call: Call) -> Response:
    chain = await load_workload(call, call.id)
    return json_response(training_json(chain.state), headers=sequence_headers(chain.version))


async def delete_training(call: Call) -> Response:
    return await act(call, DeleteWorkload(workload_id=call.id), "is being deleted", "is deleted already")


async def suspend_training(call: Call) -> Response:
    return await act(call, SuspendWorkload(workload_id=call.id), "is being suspended", "is suspended already")


async def resume_training(call: Call) -> Response:
    return await act(call, ResumeWorkload(workload_id=call.id), "is being resumed", "is not suspended")


async def act(call: Call, command: WorkloadIdCommand, done: str, already: str) -> Response:
    """A command on one workload, answered as the contract says."""
    if key_of_id(call.id) is None:
        raise _no_workload(call.id)
    try:
        reply = await call.send(command)
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return await _on_older_incarnation(call, command)
    return call.accepted(reply, f"workload {call.id} {done if reply.changed else already}")


async def _on_older_incarnation(call: Call, command: WorkloadIdCommand) -> Response:
    """The name lives on in a newer workload, so the deciders no longer know this one; it is deleted."""
    chain = await load_workload(call, call.id)
    if not isinstance(command, DeleteWorkload):
        raise ApiError(409, f"{shown(chain.state.name)} is deleted", details="workload_deleted")
    return call.accepted(Accepted(seq=chain.version, changed=False), f"workload {call.id} is deleted already")


async def load_workload(call: Call, workload_id: str, *, creation: bool = False) -> Chain[Workload]:
    """The workload's fold, from the log. Raises 404 also where the caller may not see it.

    Args:
        creation: the caller has just made it, so it may be read whatever the folds of roles say by now.
    """
    key = key_of_id(workload_id)
    if key is None:
        raise _no_workload(workload_id)
    chain: Chain[Workload] | None = await call.api.store.load(WORKLOAD, key)
    if chain.state.workload_id != workload_id:
        chain = await call.api.store.load_at(WORKLOAD, key, workload_id) if chain.version else None
    if chain is None or not (creation or call.may_read(chain.state.project_id)):
        raise _no_workload(workload_id)
    return chain


def training_json(state: Workload) -> dict[str, Any]:
    """Training1 of the contract."""
    return _training(
        name=state.name,
        requested_name=state.requested_name,
        workload_id=state.workload_id,
        project_id=state.project_id,
        cluster_id=state.cluster_id,
        owner=state.owner,
        created_at=state.created_at,
        deleted_at=state.deleted_at,
        desired=state.desired,
        phase=state.phase,
        spec=state.spec,
    )


def _created(
    call: Call, request: TrainingCreationRequest, command: CreateTraining, reply: Accepted, at: datetime
) -> Response:
    """The new workload as the event has it, without reading it back."""
    body = _training(
        name=command.name,
        requested_name=request.name,
        workload_id=reply.id,
        project_id=command.project_id,
        cluster_id=command.cluster_id,
        owner=call.identity.sub,
        created_at=at,
        deleted_at=None,
        desired=DesiredPhase.RUNNING,
        phase=Phase.CREATING,
        spec=with_defaults(command.spec),
    )
    return json_response(body, status=202, headers=sequence_headers(reply.seq))


def _training(
    *,
    name: str,
    requested_name: str,
    workload_id: str,
    project_id: str,
    cluster_id: str,
    owner: str,
    created_at: datetime | None,
    deleted_at: datetime | None,
    desired: DesiredPhase,
    phase: Phase,
    spec: TrainingSpec,
) -> dict[str, Any]:
    return {
        "name": name,
        "requestedName": requested_name,
        "workloadId": workload_id,
        "projectId": project_id,
        "clusterId": cluster_id,
        "createdBy": owner,
        "createdAt": rfc3339(created_at),
        "deletedAt": rfc3339(deleted_at),
        "desiredPhase": desired,
        "actualPhase": phase,
        "spec": spec,
    }


async def _unknown_places(call: Call, data: dict[str, Any]) -> list[Issue]:
    """Issues of a project or cluster that is not there (C21)."""
    issues: list[Issue] = []
    project_id, cluster_id = data.get("projectId"), data.get("clusterId")
    if isinstance(project_id, str) and await find_project(call, project_id) is None:
        issues.append(Issue(field="projectId", details=f"there is no project {shown(project_id)}"))
    if isinstance(cluster_id, str) and await find_cluster(call, cluster_id) is None:
        issues.append(Issue(field="clusterId", details=f"there is no cluster {shown(cluster_id)}"))
    return issues


def _no_workload(workload_id: str) -> ApiError:
    return not_found(f"there is no workload {workload_id}")
