"""The five Trainings endpoints of the contract, and reading one workload from the log."""

import contextlib

from events.aggregate import WORKLOAD, Chain
from events.commands import UserCommand
from events.envelope import Accepted
from events.ids import key_of_id, workload_key
from events.phases import DesiredPhase, Phase
from events.workload.commands import CreateWorkload, DeleteWorkload, ResumeWorkload, SuspendWorkload
from events.workload.decide import final_name
from events.workload.fields.creation import TrainingCreation
from events.workload.spec import with_defaults
from events.workload.state import Workload
from projections.queries import Moment
from services.api.answers import HttpResponse, Training1
from services.api.check import FaultyTraining, check_training
from services.api.code import keep_for
from services.api.context import MAX_WAIT_SECONDS, MIN_SEQ, Call, Look, rfc3339, sequence_headers
from services.api.creation import code_of, misfits
from services.api.errors import ApiError, bad_request, not_found
from services.api.issues import MAX_ISSUES
from services.api.moments import AS_OF, MOMENT_HEADERS, moment_headers, moment_of
from services.api.not_yet import not_yet_in_force
from services.api.operations import Answer, changes, reads
from services.api.paths import TRAINING, TRAININGS
from services.runtime.log.chains import READ_SECONDS
from services.runtime.log.floors import StaleLogError


@changes(
    "POST",
    TRAININGS,
    id="create_training1",
    tag="Trainings",
    summary="Submit a training. The answer is 202 once it is stored",
    body=TrainingCreation,
    example={
        "name": "bert",
        "projectId": "7d1c2b3a-0000-8000-8000-000000000000",
        "clusterId": "5e6f7a8b-0000-8000-8000-000000000000",
        "spec": {
            "image": "python:3.13",
            "command": "python3 -c 'print(42)'",
            "compute": {"gpuDevicesRequest": 1, "cpuCoreRequest": 2, "cpuMemoryRequest": "8Gi"},
        },
    },
    errors=(403,),
)
async def create_training(call: Call) -> Answer[Training1]:
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
        spec=checked.spec,
    )
    if (code := code_of(checked)) is not None and call.may_submit(command.project_id):
        await keep_for(call, code, workload_key(command.project_id, command.name))
    reply = await call.send(command, command_id=command_id, creation=True)
    return _created(call, checked, command, reply)


@reads(
    TRAINING,
    tag="Trainings",
    summary="Get a training in its newest state, or as of a moment",
    query=(AS_OF, MIN_SEQ),
    errors=(403, 404),
    headers=MOMENT_HEADERS,
)
async def get_training(call: Look) -> Answer[Training1]:
    moment = await moment_of(call)
    if moment is None:
        chain, headers = await newest_workload(call)
    else:
        chain, headers = await workload_at(call, moment), moment_headers(moment)
    return Answer(await training_answer(call, chain.state), headers=sequence_headers(chain.version) | headers)


@changes("DELETE", TRAINING, tag="Trainings", summary="Delete a training. Its record stays", errors=(403, 404))
async def delete_training(call: Call) -> Answer[HttpResponse]:
    return await act(call, DeleteWorkload(workload_id=call.id), "is being deleted", "is deleted already")


@changes(
    "POST", f"{TRAINING}/suspend", tag="Trainings", summary="Stop a training's pods and keep it", errors=(403, 404)
)
async def suspend_training(call: Call) -> Answer[HttpResponse]:
    return await act(call, SuspendWorkload(workload_id=call.id), "is being suspended", "is suspended already")


@changes("POST", f"{TRAINING}/resume", tag="Trainings", summary="Run a suspended training again", errors=(403, 404))
async def resume_training(call: Call) -> Answer[HttpResponse]:
    return await act(call, ResumeWorkload(workload_id=call.id), "is being resumed", "is not suspended")


async def act(call: Call, command: UserCommand, done: str, already: str) -> Answer[HttpResponse]:
    """A command on one workload, answered as the contract says."""
    if key_of_id(call.id) is None:
        raise _no_workload(call.id)
    reply = await call.send(command)
    return call.accepted(reply, f"workload {call.id} {done if reply.changed else already}")


async def newest_workload(call: Look) -> tuple[Chain[Workload], dict[str, str]]:
    """The workload's fold with all up to `min_seq`, where it was asked for; headers as `Call.fresh`. Raises 404."""
    wanted = call.min_seq
    if wanted:
        with contextlib.suppress(StaleLogError):
            return await load_workload(call, call.id, min_seq=wanted, seconds=MAX_WAIT_SECONDS), {}
    return await load_workload(call, call.id), {"X-Log-Stale": "true"} if wanted else {}


async def load_workload(
    call: Look, workload_id: str, *, creation: bool = False, min_seq: int = 0, seconds: float = READ_SECONDS
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


async def workload_at(call: Look, moment: Moment) -> Chain[Workload]:
    """The workload's fold as of a moment, also where it was deleted since. Raises 404 where there was none yet."""
    newest = await load_workload(call, call.id)
    if newest.version <= moment.seq:
        return newest
    chain = await call.api.store.load(WORKLOAD, key_of_id(call.id) or "", moment.seq)
    if chain.state.workload_id == call.id:
        return chain
    raise not_found(f"there was no workload {call.id} then: it was submitted at {rfc3339(newest.state.created_at)}")


async def training_answer(call: Look, state: Workload) -> Training1:
    owners = await call.api.actors.subjects_of((state.owner,))
    assert state.created_at is not None, "a workload that was loaded was created"
    return Training1(
        name=state.name,
        requested_name=state.requested_name,
        workload_id=state.workload_id,
        project_id=state.project_id,
        cluster_id=state.cluster_id,
        created_by=owners[state.owner],
        created_at=state.created_at,
        deleted_at=state.deleted_at,
        desired_phase=state.desired,
        actual_phase=state.phase,
        spec=state.spec,
        not_yet_in_force=not_yet_in_force(state.spec),
    )


def _created(call: Call, request: TrainingCreation, command: CreateWorkload, reply: Accepted) -> Answer[Training1]:
    """The new workload as the event has it, without reading it back: the same whenever the request is repeated."""
    assert reply.at is not None, "a creation is answered with its time"
    spec = with_defaults(command.spec)
    body = Training1(
        name=command.name,
        requested_name=request.name,
        workload_id=reply.id,
        project_id=command.project_id,
        cluster_id=command.cluster_id,
        created_by=call.identity.sub,
        created_at=reply.at,
        desired_phase=DesiredPhase.RUNNING,
        actual_phase=Phase.CREATING,
        spec=spec,
        not_yet_in_force=not_yet_in_force(spec),
    )
    return Answer(body, status=202, headers=sequence_headers(reply.seq))


def _no_workload(workload_id: str) -> ApiError:
    return not_found(f"there is no workload {workload_id}")
