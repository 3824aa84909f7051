"""The five operations on workspaces, shaped as those on trainings."""

from events.workload.commands import DeleteWorkload, ResumeWorkload, SuspendWorkload
from events.workload.fields.creation import WorkspaceCreation
from events.workload.kinds.workspace import WORKSPACE as KIND
from services.api.answers import Evaluation, HttpResponse, Workspace
from services.api.context import MIN_SEQ, Call, Look
from services.api.evaluation import PLACEMENT, evaluate
from services.api.kinds import EXPLAIN, act, read, submit
from services.api.moments import AS_OF, MOMENT_HEADERS
from services.api.operations import Answer, changes, examines, reads
from services.api.paths import WORKSPACE, WORKSPACES

_EXAMPLE = {
    "name": "notebook",
    "projectId": "7d1c2b3a-0000-8000-8000-000000000000",
    "clusterId": "5e6f7a8b-0000-8000-8000-000000000000",
    "spec": {
        "image": "jupyter/scipy-notebook",
        "compute": {"gpuRequestType": "portion", "gpuPortionRequest": 0.5, "cpuMemoryRequest": "4Gi"},
    },
}


@changes(
    "POST",
    WORKSPACES,
    tag="Workspaces",
    summary="Submit a workspace. The answer is 202 once it is stored",
    body=WorkspaceCreation,
    example=_EXAMPLE,
    errors=(403,),
)
async def create_workspace(call: Call) -> Answer[Workspace]:
    made, headers = await submit(call, KIND)
    return Answer(Workspace(**made.fields), status=202, headers=headers)


@examines(
    f"{WORKSPACES}:evaluate",
    tag="Workspaces",
    summary="Say what a submission of a workspace would be, and all that is wrong with it. Nothing is stored",
    query=(PLACEMENT,),
    body=WorkspaceCreation,
    example=_EXAMPLE,
    errors=(403,),
)
async def evaluate_workspace(call: Call) -> Answer[Evaluation]:
    return await evaluate(call, KIND)


@reads(
    WORKSPACE,
    tag="Workspaces",
    summary="Get a workspace in its newest state, or as of a moment",
    query=(EXPLAIN, AS_OF, MIN_SEQ),
    errors=(403, 404),
    headers=MOMENT_HEADERS,
)
async def get_workspace(call: Look) -> Answer[Workspace]:
    found, headers = await read(call, KIND)
    return Answer(Workspace(**found.fields), headers=headers)


@changes("DELETE", WORKSPACE, tag="Workspaces", summary="Delete a workspace. Its record stays", errors=(403, 404))
async def delete_workspace(call: Call) -> Answer[HttpResponse]:
    return await act(call, DeleteWorkload(workload_id=call.id), "is being deleted", "is deleted already")


@changes(
    "POST", f"{WORKSPACE}/suspend", tag="Workspaces", summary="Stop a workspace's pods and keep it", errors=(403, 404)
)
async def suspend_workspace(call: Call) -> Answer[HttpResponse]:
    return await act(call, SuspendWorkload(workload_id=call.id), "is being suspended", "is suspended already")


@changes("POST", f"{WORKSPACE}/resume", tag="Workspaces", summary="Run a suspended workspace again", errors=(403, 404))
async def resume_workspace(call: Call) -> Answer[HttpResponse]:
    return await act(call, ResumeWorkload(workload_id=call.id), "is being resumed", "is not suspended")
