"""The five operations on inferences, shaped as those on trainings."""

from events.workload.commands import DeleteWorkload, ResumeWorkload, SuspendWorkload
from events.workload.fields.creation import InferenceCreation
from events.workload.kinds.inference import INFERENCE as KIND
from services.api.answers import Evaluation, HttpResponse, Inference
from services.api.context import MIN_SEQ, Call, Look
from services.api.evaluation import PLACEMENT, evaluate
from services.api.kinds import EXPLAIN, act, read, submit
from services.api.moments import AS_OF, MOMENT_HEADERS
from services.api.operations import Answer, changes, examines, reads
from services.api.paths import INFERENCE, INFERENCES

_EXAMPLE = {
    "name": "chat",
    "projectId": "7d1c2b3a-0000-8000-8000-000000000000",
    "clusterId": "5e6f7a8b-0000-8000-8000-000000000000",
    "spec": {
        "image": "huggingface/text-generation-inference",
        "model": {"catalog": "HuggingFace", "name": "Qwen/Qwen2.5-0.5B-Instruct"},
        "compute": {"gpuDevicesRequest": 1},
        "servingPort": {"container": 8000},
        "autoscaling": {"maxReplicas": 4, "metric": "concurrency", "scaleToZeroRetentionSeconds": 300},
    },
}


@changes(
    "POST",
    INFERENCES,
    tag="Inferences",
    summary="Submit an inference. The answer is 202 once it is stored",
    body=InferenceCreation,
    example=_EXAMPLE,
    errors=(403,),
)
async def create_inference(call: Call) -> Answer[Inference]:
    made, headers = await submit(call, KIND)
    return Answer(Inference(**made.fields), status=202, headers=headers)


@examines(
    f"{INFERENCES}:evaluate",
    tag="Inferences",
    summary="Say what a submission of an inference would be, and all that is wrong with it. Nothing is stored",
    query=(PLACEMENT,),
    body=InferenceCreation,
    example=_EXAMPLE,
    errors=(403,),
)
async def evaluate_inference(call: Call) -> Answer[Evaluation]:
    return await evaluate(call, KIND)


@reads(
    INFERENCE,
    tag="Inferences",
    summary="Get an inference in its newest state, or as of a moment",
    query=(EXPLAIN, AS_OF, MIN_SEQ),
    errors=(403, 404),
    headers=MOMENT_HEADERS,
)
async def get_inference(call: Look) -> Answer[Inference]:
    found, headers = await read(call, KIND)
    return Answer(Inference(**found.fields), headers=headers)


@changes("DELETE", INFERENCE, tag="Inferences", summary="Delete an inference. Its record stays", errors=(403, 404))
async def delete_inference(call: Call) -> Answer[HttpResponse]:
    return await act(call, DeleteWorkload(workload_id=call.id), "is being deleted", "is deleted already")


@changes(
    "POST", f"{INFERENCE}/suspend", tag="Inferences", summary="Stop an inference's pods and keep it", errors=(403, 404)
)
async def suspend_inference(call: Call) -> Answer[HttpResponse]:
    return await act(call, SuspendWorkload(workload_id=call.id), "is being suspended", "is suspended already")


@changes("POST", f"{INFERENCE}/resume", tag="Inferences", summary="Run a suspended inference again", errors=(403, 404))
async def resume_inference(call: Call) -> Answer[HttpResponse]:
    return await act(call, ResumeWorkload(workload_id=call.id), "is being resumed", "is not suspended")
