"""The five operations on distributed trainings, shaped as those on trainings."""

from events.workload.commands import DeleteWorkload, ResumeWorkload, SuspendWorkload
from events.workload.fields.creation import DistributedCreation
from events.workload.kinds.distributed import DISTRIBUTED as KIND
from services.api.answers import DistributedTraining, Evaluation, HttpResponse
from services.api.context import MIN_SEQ, Call, Look
from services.api.evaluation import PLACEMENT, evaluate
from services.api.kinds import EXPLAIN, act, read, submit
from services.api.moments import AS_OF, MOMENT_HEADERS
from services.api.operations import Answer, changes, examines, reads
from services.api.paths import DISTRIBUTED, DISTRIBUTED_TRAINING

_EXAMPLE = {
    "name": "bert",
    "projectId": "7d1c2b3a-0000-8000-8000-000000000000",
    "clusterId": "5e6f7a8b-0000-8000-8000-000000000000",
    "masterSpecSameAsWorker": True,
    "spec": {
        "image": "pytorch/pytorch",
        "command": "torchrun train.py",
        "distributedFramework": "PyTorch",
        "numWorkers": 3,
        "compute": {"gpuDevicesRequest": 8},
    },
}


@changes(
    "POST",
    DISTRIBUTED,
    tag="Distributed",
    summary="Submit a distributed training. The answer is 202 once it is stored",
    body=DistributedCreation,
    example=_EXAMPLE,
    errors=(403,),
)
async def create_distributed(call: Call) -> Answer[DistributedTraining]:
    made, headers = await submit(call, KIND)
    return Answer(DistributedTraining(**made.fields, **made.of_master), status=202, headers=headers)


@examines(
    f"{DISTRIBUTED}:evaluate",
    tag="Distributed",
    summary="Say what a submission of a distributed training would be, and all that is wrong with it. Nothing is "
    "stored",
    query=(PLACEMENT,),
    body=DistributedCreation,
    example=_EXAMPLE,
    errors=(403,),
)
async def evaluate_distributed(call: Call) -> Answer[Evaluation]:
    return await evaluate(call, KIND)


@reads(
    DISTRIBUTED_TRAINING,
    tag="Distributed",
    summary="Get a distributed training in its newest state, or as of a moment",
    query=(EXPLAIN, AS_OF, MIN_SEQ),
    errors=(403, 404),
    headers=MOMENT_HEADERS,
)
async def get_distributed(call: Look) -> Answer[DistributedTraining]:
    found, headers = await read(call, KIND)
    return Answer(DistributedTraining(**found.fields, **found.of_master), headers=headers)


@changes(
    "DELETE",
    DISTRIBUTED_TRAINING,
    tag="Distributed",
    summary="Delete a distributed training. Its record stays",
    errors=(403, 404),
)
async def delete_distributed(call: Call) -> Answer[HttpResponse]:
    return await act(call, DeleteWorkload(workload_id=call.id), "is being deleted", "is deleted already")


@changes(
    "POST",
    f"{DISTRIBUTED_TRAINING}/suspend",
    tag="Distributed",
    summary="Stop a distributed training's pods and keep it",
    errors=(403, 404),
)
async def suspend_distributed(call: Call) -> Answer[HttpResponse]:
    return await act(call, SuspendWorkload(workload_id=call.id), "is being suspended", "is suspended already")


@changes(
    "POST",
    f"{DISTRIBUTED_TRAINING}/resume",
    tag="Distributed",
    summary="Run a suspended training again",
    errors=(403, 404),
)
async def resume_distributed(call: Call) -> Answer[HttpResponse]:
    return await act(call, ResumeWorkload(workload_id=call.id), "is being resumed", "is not suspended")
