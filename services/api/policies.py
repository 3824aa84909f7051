"""Policies: what administrators set and forbid, for each kind of workload; three operations on each, alike."""

from events.policy_specs import (
    DistributedPolicySetting,
    InferencePolicySetting,
    TrainingPolicySetting,
    WorkspacePolicySetting,
)
from services.api import answers
from services.api.context import Call, Look
from services.api.moments import MOMENT_HEADERS
from services.api.operations import Answer, changes, examines, reads
from services.api.paths import DISTRIBUTED_POLICY, INFERENCE_POLICY, TRAINING_POLICY, WORKSPACE_POLICY
from services.api.policy_core import READ, WHICH, delete, read, set_policy
from services.api.rehearsal import LIMIT, rehearse

_EXAMPLE = {
    "defaults": {"priorityClass": "low", "labels": [{"name": "team", "value": "vision"}]},
    "rules": {"compute": {"gpuDevicesRequest": {"max": 2}}, "labels": {"lockedItems": ["team"]}},
}


@reads(
    TRAINING_POLICY,
    tag="Policies",
    summary="Get the policy for trainings, for one scope, or as of a moment",
    query=READ,
    headers=MOMENT_HEADERS,
    errors=(403, 404),
)
async def get_training_policy(call: Look) -> Answer[answers.TrainingPolicy]:
    found, headers = await read(call, "Training")
    return Answer(answers.TrainingPolicy(**found.fields), headers=headers)


@changes(
    "PUT",
    TRAINING_POLICY,
    tag="Policies",
    summary="Set the policy for trainings, for one scope. Workloads stay as they are",
    query=WHICH,
    body=TrainingPolicySetting,
    example=_EXAMPLE,
    errors=(403, 404),
)
async def set_training_policy(call: Call) -> Answer[answers.TrainingPolicy]:
    found, headers = await set_policy(call, "Training")
    return Answer(answers.TrainingPolicy(**found.fields), status=202, headers=headers)


@changes(
    "DELETE",
    TRAINING_POLICY,
    tag="Policies",
    summary="Delete the policy for trainings, for one scope. Workloads stay as they are",
    query=WHICH,
    errors=(403, 404),
)
async def delete_training_policy(call: Call) -> Answer[answers.HttpResponse]:
    return await delete(call, "Training")


@reads(
    DISTRIBUTED_POLICY,
    tag="Policies",
    summary="Get the policy for distributed trainings, for one scope, or as of a moment",
    query=READ,
    headers=MOMENT_HEADERS,
    errors=(403, 404),
)
async def get_distributed_policy(call: Look) -> Answer[answers.DistributedPolicy]:
    found, headers = await read(call, "Distributed")
    return Answer(answers.DistributedPolicy(**found.fields), headers=headers)


@changes(
    "PUT",
    DISTRIBUTED_POLICY,
    tag="Policies",
    summary="Set the policy for distributed trainings, for one scope. Workloads stay as they are",
    query=WHICH,
    body=DistributedPolicySetting,
    example=_EXAMPLE,
    errors=(403, 404),
)
async def set_distributed_policy(call: Call) -> Answer[answers.DistributedPolicy]:
    found, headers = await set_policy(call, "Distributed")
    return Answer(answers.DistributedPolicy(**found.fields), status=202, headers=headers)


@changes(
    "DELETE",
    DISTRIBUTED_POLICY,
    tag="Policies",
    summary="Delete the policy for distributed trainings, for one scope. Workloads stay as they are",
    query=WHICH,
    errors=(403, 404),
)
async def delete_distributed_policy(call: Call) -> Answer[answers.HttpResponse]:
    return await delete(call, "Distributed")


@reads(
    WORKSPACE_POLICY,
    tag="Policies",
    summary="Get the policy for workspaces, for one scope, or as of a moment",
    query=READ,
    headers=MOMENT_HEADERS,
    errors=(403, 404),
)
async def get_workspace_policy(call: Look) -> Answer[answers.WorkspacePolicy]:
    found, headers = await read(call, "Workspace")
    return Answer(answers.WorkspacePolicy(**found.fields), headers=headers)


@changes(
    "PUT",
    WORKSPACE_POLICY,
    tag="Policies",
    summary="Set the policy for workspaces, for one scope. Workloads stay as they are",
    query=WHICH,
    body=WorkspacePolicySetting,
    example=_EXAMPLE,
    errors=(403, 404),
)
async def set_workspace_policy(call: Call) -> Answer[answers.WorkspacePolicy]:
    found, headers = await set_policy(call, "Workspace")
    return Answer(answers.WorkspacePolicy(**found.fields), status=202, headers=headers)


@changes(
    "DELETE",
    WORKSPACE_POLICY,
    tag="Policies",
    summary="Delete the policy for workspaces, for one scope. Workloads stay as they are",
    query=WHICH,
    errors=(403, 404),
)
async def delete_workspace_policy(call: Call) -> Answer[answers.HttpResponse]:
    return await delete(call, "Workspace")


@reads(
    INFERENCE_POLICY,
    tag="Policies",
    summary="Get the policy for inferences, everywhere or in one project, or as of a moment",
    query=READ,
    headers=MOMENT_HEADERS,
    errors=(403, 404),
)
async def get_inference_policy(call: Look) -> Answer[answers.InferencePolicy]:
    found, headers = await read(call, "Inference")
    return Answer(answers.InferencePolicy(**found.fields), headers=headers)


@changes(
    "PUT",
    INFERENCE_POLICY,
    tag="Policies",
    summary="Set the policy for inferences, everywhere or in one project. Workloads stay as they are",
    query=WHICH,
    body=InferencePolicySetting,
    example=_EXAMPLE,
    errors=(403, 404),
)
async def set_inference_policy(call: Call) -> Answer[answers.InferencePolicy]:
    found, headers = await set_policy(call, "Inference")
    return Answer(answers.InferencePolicy(**found.fields), status=202, headers=headers)


@changes(
    "DELETE",
    INFERENCE_POLICY,
    tag="Policies",
    summary="Delete the policy for inferences, everywhere or in one project. Workloads stay as they are",
    query=WHICH,
    errors=(403, 404),
)
async def delete_inference_policy(call: Call) -> Answer[answers.HttpResponse]:
    return await delete(call, "Inference")


@examines(
    f"{TRAINING_POLICY}:rehearse",
    tag="Policies",
    summary="Say what a policy for trainings would have made of past submissions. Nothing is stored",
    query=(*WHICH, LIMIT),
    body=TrainingPolicySetting,
    example=_EXAMPLE,
    errors=(403, 404),
)
async def rehearse_training_policy(call: Call) -> Answer[answers.Rehearsal]:
    return await rehearse(call, "Training")


@examines(
    f"{DISTRIBUTED_POLICY}:rehearse",
    tag="Policies",
    summary="Say what a policy for distributed trainings would have made of past submissions. Nothing is stored",
    query=(*WHICH, LIMIT),
    body=DistributedPolicySetting,
    example=_EXAMPLE,
    errors=(403, 404),
)
async def rehearse_distributed_policy(call: Call) -> Answer[answers.Rehearsal]:
    return await rehearse(call, "Distributed")


@examines(
    f"{WORKSPACE_POLICY}:rehearse",
    tag="Policies",
    summary="Say what a policy for workspaces would have made of past submissions. Nothing is stored",
    query=(*WHICH, LIMIT),
    body=WorkspacePolicySetting,
    example=_EXAMPLE,
    errors=(403, 404),
)
async def rehearse_workspace_policy(call: Call) -> Answer[answers.Rehearsal]:
    return await rehearse(call, "Workspace")


@examines(
    f"{INFERENCE_POLICY}:rehearse",
    tag="Policies",
    summary="Say what a policy for inferences would have made of past submissions. Nothing is stored",
    query=(*WHICH, LIMIT),
    body=InferencePolicySetting,
    example=_EXAMPLE,
    errors=(403, 404),
)
async def rehearse_inference_policy(call: Call) -> Answer[answers.Rehearsal]:
    return await rehearse(call, "Inference")
