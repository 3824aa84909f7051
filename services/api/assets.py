"""Environments, compute resources and templates, from which workloads are made: five operations on each, alike."""

from events.asset_specs import ComputeResourceSpec, EnvironmentSpec, TemplateSpec
from events.fields.declare import Body
from services.api import answers
from services.api.asset_core import (
    LIST,
    AssetPlace,
    TemplatePlace,
    change,
    create,
    delete,
    listed,
    read,
)
from services.api.context import MIN_SEQ, Call, Look, read_answer
from services.api.moments import AS_OF, MOMENT_HEADERS
from services.api.operations import Answer, changes, reads
from services.api.paths import (
    COMPUTE_RESOURCE,
    COMPUTE_RESOURCES,
    ENVIRONMENT,
    ENVIRONMENTS,
    TEMPLATE,
    TEMPLATES,
)


class EnvironmentCreation(Body, frozen=True, kw_only=True):
    """An environment to be made."""

    meta: AssetPlace
    """Which it is to be, and who can use it."""
    spec: EnvironmentSpec
    """The fields that it sets. A null clears what stands below it."""


class EnvironmentChange(Body, frozen=True, kw_only=True):
    """The fields that an environment is to set."""

    meta: AssetPlace | None = None
    """Which it is. It cannot be changed, and can be left out."""
    spec: EnvironmentSpec
    """All fields that it sets from now on."""


class ComputeResourceCreation(Body, frozen=True, kw_only=True):
    """A compute resource to be made."""

    meta: AssetPlace
    """Which it is to be, and who can use it."""
    spec: ComputeResourceSpec
    """The fields that it sets. A null clears what stands below it."""


class ComputeResourceChange(Body, frozen=True, kw_only=True):
    """The fields that a compute resource is to set."""

    meta: AssetPlace | None = None
    """Which it is. It cannot be changed, and can be left out."""
    spec: ComputeResourceSpec
    """All fields that it sets from now on."""


class TemplateCreation(Body, frozen=True, kw_only=True):
    """A template to be made."""

    meta: TemplatePlace
    """Which it is to be, and who can use it."""
    spec: TemplateSpec
    """The fields that it sets. A null clears what stands below it."""


class TemplateChange(Body, frozen=True, kw_only=True):
    """The fields that a template is to set."""

    meta: TemplatePlace | None = None
    """Which it is. It cannot be changed, and can be left out."""
    spec: TemplateSpec
    """All fields that it sets from now on."""


@reads(
    ENVIRONMENTS,
    tag="Assets",
    summary="List the environments that you can use",
    query=LIST,
    headers=MOMENT_HEADERS,
    errors=(403,),
)
async def list_environments(call: Look) -> Answer[answers.Environments]:
    page, following, seq, headers = await listed(call, "environment")
    rows = [answers.Environment(**one.fields) for one in page]
    return read_answer(answers.Environments(environments=rows, next=following), seq, headers)


@changes(
    "POST",
    ENVIRONMENTS,
    tag="Assets",
    summary="Create an environment",
    body=EnvironmentCreation,
    example={
        "meta": {"name": "pytorch", "scope": "tenant"},
        "spec": {"image": "pytorch/pytorch", "environmentVariables": [{"name": "NCCL_DEBUG", "value": "WARN"}]},
    },
    errors=(403,),
)
async def create_environment(call: Call) -> Answer[answers.Environment]:
    made, headers = await create(call, "environment", EnvironmentCreation)
    return Answer(answers.Environment(**made.fields), status=202, headers=headers)


@reads(
    ENVIRONMENT,
    tag="Assets",
    summary="Get an environment in its newest state, or as of a moment",
    query=(AS_OF, MIN_SEQ),
    errors=(403, 404),
    headers=MOMENT_HEADERS,
)
async def get_environment(call: Look) -> Answer[answers.Environment]:
    found, headers = await read(call, "environment")
    return Answer(answers.Environment(**found.fields), headers=headers)


@changes(
    "PUT",
    ENVIRONMENT,
    tag="Assets",
    summary="Set what an environment sets. Workloads that were made from it stay as they are",
    body=EnvironmentChange,
    example={"spec": {"image": "pytorch/pytorch", "environmentVariables": [{"name": "NCCL_DEBUG", "value": "WARN"}]}},
    errors=(403, 404),
)
async def set_environment(call: Call) -> Answer[answers.Environment]:
    changed, headers = await change(call, "environment", EnvironmentChange)
    return Answer(answers.Environment(**changed.fields), status=202, headers=headers)


@changes(
    "DELETE",
    ENVIRONMENT,
    tag="Assets",
    summary="Delete an environment. Workloads that were made from it stay as they are",
    errors=(403, 404),
)
async def delete_environment(call: Call) -> Answer[answers.HttpResponse]:
    return await delete(call, "environment")


@reads(
    COMPUTE_RESOURCES,
    tag="Assets",
    summary="List the compute resources that you can use",
    query=LIST,
    headers=MOMENT_HEADERS,
    errors=(403,),
)
async def list_compute_resources(call: Look) -> Answer[answers.ComputeResources]:
    page, following, seq, headers = await listed(call, "compute")
    rows = [answers.ComputeResource(**one.fields) for one in page]
    return read_answer(answers.ComputeResources(compute_resources=rows, next=following), seq, headers)


@changes(
    "POST",
    COMPUTE_RESOURCES,
    tag="Assets",
    summary="Create a compute resource",
    body=ComputeResourceCreation,
    example={
        "meta": {"name": "half-gpu", "scope": "tenant"},
        "spec": {"compute": {"gpuRequestType": "portion", "gpuPortionRequest": 0.5, "cpuMemoryRequest": "8Gi"}},
    },
    errors=(403,),
)
async def create_compute_resource(call: Call) -> Answer[answers.ComputeResource]:
    made, headers = await create(call, "compute", ComputeResourceCreation)
    return Answer(answers.ComputeResource(**made.fields), status=202, headers=headers)


@reads(
    COMPUTE_RESOURCE,
    tag="Assets",
    summary="Get a compute resource in its newest state, or as of a moment",
    query=(AS_OF, MIN_SEQ),
    errors=(403, 404),
    headers=MOMENT_HEADERS,
)
async def get_compute_resource(call: Look) -> Answer[answers.ComputeResource]:
    found, headers = await read(call, "compute")
    return Answer(answers.ComputeResource(**found.fields), headers=headers)


@changes(
    "PUT",
    COMPUTE_RESOURCE,
    tag="Assets",
    summary="Set what a compute resource sets. Workloads that were made from it stay as they are",
    body=ComputeResourceChange,
    example={"spec": {"compute": {"gpuRequestType": "portion", "gpuPortionRequest": 0.5, "cpuMemoryRequest": "8Gi"}}},
    errors=(403, 404),
)
async def set_compute_resource(call: Call) -> Answer[answers.ComputeResource]:
    changed, headers = await change(call, "compute", ComputeResourceChange)
    return Answer(answers.ComputeResource(**changed.fields), status=202, headers=headers)


@changes(
    "DELETE",
    COMPUTE_RESOURCE,
    tag="Assets",
    summary="Delete a compute resource. Workloads that were made from it stay as they are",
    errors=(403, 404),
)
async def delete_compute_resource(call: Call) -> Answer[answers.HttpResponse]:
    return await delete(call, "compute")


@reads(
    TEMPLATES,
    tag="Assets",
    summary="List the templates that you can use",
    query=LIST,
    headers=MOMENT_HEADERS,
    errors=(403,),
)
async def list_templates(call: Look) -> Answer[answers.Templates]:
    page, following, seq, headers = await listed(call, "template")
    rows = [answers.Template(**one.fields) for one in page]
    return read_answer(answers.Templates(templates=rows, next=following), seq, headers)


@changes(
    "POST",
    TEMPLATES,
    tag="Assets",
    summary="Create a template",
    body=TemplateCreation,
    example={
        "meta": {"name": "nightly", "scope": "tenant", "workloadType": "Training"},
        "spec": {"priorityClass": "low", "labels": [{"name": "run", "value": "nightly"}]},
    },
    errors=(403,),
)
async def create_template(call: Call) -> Answer[answers.Template]:
    made, headers = await create(call, "template", TemplateCreation)
    return Answer(answers.Template(**made.fields), status=202, headers=headers)


@reads(
    TEMPLATE,
    tag="Assets",
    summary="Get a template in its newest state, or as of a moment",
    query=(AS_OF, MIN_SEQ),
    errors=(403, 404),
    headers=MOMENT_HEADERS,
)
async def get_template(call: Look) -> Answer[answers.Template]:
    found, headers = await read(call, "template")
    return Answer(answers.Template(**found.fields), headers=headers)


@changes(
    "PUT",
    TEMPLATE,
    tag="Assets",
    summary="Set what a template sets. Workloads that were made from it stay as they are",
    body=TemplateChange,
    example={"spec": {"priorityClass": "low", "labels": [{"name": "run", "value": "nightly"}]}},
    errors=(403, 404),
)
async def set_template(call: Call) -> Answer[answers.Template]:
    changed, headers = await change(call, "template", TemplateChange)
    return Answer(answers.Template(**changed.fields), status=202, headers=headers)


@changes(
    "DELETE",
    TEMPLATE,
    tag="Assets",
    summary="Delete a template. Workloads that were made from it stay as they are",
    errors=(403, 404),
)
async def delete_template(call: Call) -> Answer[answers.HttpResponse]:
    return await delete(call, "template")
