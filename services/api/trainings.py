"""The five Trainings endpoints of the contract, and reading one workload from the log."""

import contextlib
from datetime import datetime
from typing import Any

from starlette.responses import Response

from events.aggregate import WORKLOAD, Chain
from events.commands import UserCommand
from events.envelope import Accepted
from events.ids import key_of_id
from events.phases import DesiredPhase, Phase
from events.workload.commands import CreateWorkload, DeleteWorkload, ResumeWorkload, SuspendWorkload
from events.workload.decide import final_name
from events.workload.spec import TrainingSpec, with_defaults
from events.workload.state import Workload
from services.api.context import MAX_WAIT_SECONDS, Call, json_response, rfc3339, sequence_headers
from services.api.creation import misfits
from services.api.errors import ApiError, bad_request, not_found
from services.api.fields.training import TrainingCreationRequest
from services.api.issues import MAX_ISSUES
from services.api.validate import FaultyTraining, check_training, to_spec
from services.runtime.log.chains import READ_SECONDS
from services.runtime.log.floors import StaleLogError


async def create_training(call: Call) -> Response:
    checked = check_training(call.json_object())
    command_id = call.command_id()
    if isinstance(checked, FaultyTraining):
        more = await misfits(call, checked.sound, command_id, faulty=True)
        raise bad_request([*checked.issues, *more][:MAX_ISSUES])
    if issues := await misfits(call, checked, command_id, faulty=False):
        raise bad_request(issues[:MAX_ISSUES])
    command = CreateWorkload(
        kind="Training",
        name=final_name(checked.name, as_prefix=checked.use_given_name_as_prefix, command_id=command_id),
        requested_name=checked.name,
        project_id=checked.project_id,
        cluster_id=checked.cluster_id,
        spec=to_spec(checked.spec),
    )
    reply = await call.send(command, command_id=command_id, creation=True)
    return _created(call, checked, command, reply)


async def get_training(call: Call) -> Response:
    chain, headers = await newest_workload(call)
    return json_response(await training_json(call, chain.state), headers=sequence_headers(chain.version) | headers)


async def delete_training(call: Call) -> Response:
    return await act(call, DeleteWorkload(workload_id=call.id), "is being deleted", "is deleted already")


async def suspend_training(call: Call) -> Response:
    return await act(call, SuspendWorkload(workload_id=call.id), "is being suspended", "is suspended already")


async def resume_training(call: Call) -> Response:
    return await act(call, ResumeWorkload(workload_id=call.id), "is being resumed", "is not suspended")


async def act(call: Call, command: UserCommand, done: str, already: str) -> Response:
    """A command on one workload, answered as the contract says."""
    if key_of_id(call.id) is None:
        raise _no_workload(call.id)
    reply = await call.send(command)
    return call.accepted(reply, f"workload {call.id} {done if reply.changed else already}")


async def newest_workload(call: Call) -> tuple[Chain[Workload], dict[str, str]]:
    """The workload's fold with all up to `min_seq`, where it was asked for; headers as `Call.fresh`. Raises 404."""
    wanted = call.min_seq
    if wanted:
        with contextlib.suppress(StaleLogError):
            return await load_workload(call, call.id, min_seq=wanted, seconds=MAX_WAIT_SECONDS), {}
    return await load_workload(call, call.id), {"X-Log-Stale": "true"} if wanted else {}


async def load_workload(
    call: Call, workload_id: str, *, creation: bool = False, min_seq: int = 0, seconds: float = READ_SECONDS
) -> Chain[Workload]:
    """The workload's fold, from the log. Raises 404 also where the caller may not see it.

    Args:
        creation: the caller was allowed to see it when the request began, and that shall do.
    """
    key = key_of_id(workload_id)
    if key is None:
        raise _no_workload(workload_id)
    chain: Chain[Workload] | None = await call.api.store.load(WORKLOAD, key, min_seq=min_seq, seconds=seconds)
    # All that bore a name stand in one project: whoever may not read there makes us look for none of them.
    if not chain.version or not (creation or call.may_read(chain.state.project_id)):
        raise _no_workload(workload_id)
    if chain.state.workload_id != workload_id:
        chain = await call.api.store.load_at(WORKLOAD, key, workload_id)
    if chain is None:
        raise _no_workload(workload_id)
    return chain


async def training_json(call: Call, state: Workload) -> dict[str, Any]:
    """Training1 of the contract."""
    owners = await call.api.actors.subjects_of((state.owner,))
    return _training(
        name=state.name,
        requested_name=state.requested_name,
        workload_id=state.workload_id,
        project_id=state.project_id,
        cluster_id=state.cluster_id,
        owner=owners[state.owner],
        created_at=state.created_at,
        deleted_at=state.deleted_at,
        desired=state.desired,
        phase=state.phase,
        spec=state.spec,
    )


def _created(call: Call, request: TrainingCreationRequest, command: CreateWorkload, reply: Accepted) -> Response:
    """The new workload as the event has it, without reading it back: the same whenever the request is repeated."""
    body = _training(
        name=command.name,
        requested_name=request.name,
        workload_id=reply.id,
        project_id=command.project_id,
        cluster_id=command.cluster_id,
        owner=call.identity.sub,
        created_at=reply.at,
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


def _no_workload(workload_id: str) -> ApiError:
    return not_found(f"there is no workload {workload_id}")
