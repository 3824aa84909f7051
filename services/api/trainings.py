"""The five Trainings endpoints of the contract."""

from events.workload.commands import DeleteWorkload, ResumeWorkload, SuspendWorkload
from events.workload.fields.creation import TrainingCreation
from events.workload.kinds.training import TRAINING as KIND
from services.api.answers import Evaluation, HttpResponse, Training1
from services.api.context import MIN_SEQ, Call, Look
from services.api.evaluation import PLACEMENT, evaluate
from services.api.kinds import EXPLAIN, act, read, submit
from services.api.moments import AS_OF, MOMENT_HEADERS
from services.api.operations import Answer, changes, examines, reads
from services.api.paths import TRAINING, TRAININGS

_EXAMPLE = {
    "name": "bert",
    "projectId": "7d1c2b3a-0000-8000-8000-000000000000",
    "clusterId": "5e6f7a8b-0000-8000-8000-000000000000",
    "spec": {
        "image": "python:3.13",
        "command": "python3 -c 'print(42)'",
        "compute": {"gpuDevicesRequest": 1, "cpuCoreRequest": 2, "cpuMemoryRequest": "8Gi"},
    },
}


@changes(
    "POST",
    TRAININGS,
    id="create_training1",
    tag="Trainings",
    summary="Submit a training. The answer is 202 once it is stored",
    body=TrainingCreation,
    example=_EXAMPLE,
    errors=(403,),
)
async def create_training(call: Call) -> Answer[Training1]:
    made, headers = await submit(call, KIND)
    return Answer(Training1(**made.fields), status=202, headers=headers)


@examines(
    f"{TRAININGS}:evaluate",
    tag="Trainings",
    summary="Say what a submission of a training would be, and all that is wrong with it. Nothing is stored",
    query=(PLACEMENT,),
    body=TrainingCreation,
    example=_EXAMPLE,
    errors=(403,),
)
async def evaluate_training(call: Call) -> Answer[Evaluation]:
    return await evaluate(call, KIND)


@reads(
    TRAINING,
    tag="Trainings",
    summary="Get a training in its newest state, or as of a moment",
    query=(EXPLAIN, AS_OF, MIN_SEQ),
    errors=(403, 404),
    headers=MOMENT_HEADERS,
)
async def get_training(call: Look) -> Answer[Training1]:
    found, headers = await read(call, KIND)
    return Answer(Training1(**found.fields), headers=headers)


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
