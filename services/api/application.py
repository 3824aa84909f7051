"""The table of operations, and the application made from it. Nothing is built at import time."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from services.api import clusters, export, logs, operation_log, organisation, system, trainings, workloads
from services.api.context import Api, Call, Operation
from services.api.edge import Edge
from services.api.endpoint import endpoint
from services.api.errors import ApiError
from services.api.fields.training import TrainingCreationRequest
from services.api.log_lines import CUT_MARK
from services.api.openapi import document

V1: Final = "/api/v1"
TRAININGS: Final = f"{V1}/workloads/trainings"
TRAINING: Final = f"{TRAININGS}/{{workloadId:uuid}}"
WORKLOADS: Final = f"{V1}/workloads"
WORKLOAD: Final = f"{WORKLOADS}/{{workloadId:uuid}}"
CLUSTER: Final = f"{V1}/clusters/{{clusterId:uuid}}"
PROJECTS: Final = f"{V1}/org-unit/projects"
PROJECT: Final = f"{PROJECTS}/{{projectId:uuid}}"
RULES: Final = f"{V1}/authorization/access-rules"


def _get(  # noqa: PLR0917 - a table reads best in columns
    path: str, name: str, handler: Any, tag: str, summary: str, answers: str, **more: Any
) -> Operation:
    return Operation(
        method="GET", path=path, id=name, handler=handler, tag=tag, summary=summary, answers=answers, **more
    )


def _change(  # noqa: PLR0917 - as above
    method: str, path: str, name: str, handler: Any, tag: str, summary: str, **more: Any
) -> Operation:
    more = {"answers": "HttpResponse", "ok": 202, **more}
    return Operation(method=method, path=path, id=name, handler=handler, tag=tag, summary=summary, mutates=True, **more)


_TRAININGS: Final = (
    _change(
        "POST",
        TRAININGS,
        "create_training1",
        trainings.create_training,
        "Trainings",
        "Submit a training; 202 once it is stored",
        answers="Training1",
        body=TrainingCreationRequest,
        errors=(403,),
    ),
    _get(
        TRAINING,
        "get_training",
        trainings.get_training,
        "Trainings",
        "One training, as the log has it now",
        "Training1",
        query=(workloads.MIN_SEQ,),
        errors=(403, 404),
    ),
    _change(
        "DELETE",
        TRAINING,
        "delete_training",
        trainings.delete_training,
        "Trainings",
        "Delete a training; its record stays",
        errors=(403, 404),
    ),
    _change(
        "POST",
        f"{TRAINING}/suspend",
        "suspend_training",
        trainings.suspend_training,
        "Trainings",
        "Stop a training's pods and keep it",
        errors=(403, 404),
    ),
    _change(
        "POST",
        f"{TRAINING}/resume",
        "resume_training",
        trainings.resume_training,
        "Trainings",
        "Run a suspended training again",
        errors=(403, 404),
    ),
)

_WORKLOADS: Final = (
    _get(
        WORKLOADS,
        "list_workloads",
        workloads.list_workloads,
        "Workloads",
        "Workloads of all kinds",
        "WorkloadList",
        rules=workloads.selection_rules,
        query=(*workloads.PAGE, *workloads.ORDER, *workloads.SELECTION, workloads.MIN_SEQ),
    ),
    _get(
        f"{WORKLOADS}/count",
        "count_workloads",
        workloads.count_workloads,
        "Workloads",
        "How many there are",
        "Count",
        rules=workloads.selection_rules,
        query=(*workloads.SELECTION, workloads.MIN_SEQ),
    ),
    _get(
        f"{WORKLOADS}/export",
        "export_workloads",
        export.export_workloads,
        "Workloads",
        "All of them as a file",
        "",
        media=("text/csv", "application/jsonl"),
        rules=workloads.selection_rules,
        query=(*export.EXPORT, *workloads.ORDER, *workloads.SELECTION, workloads.MIN_SEQ),
    ),
    _get(
        WORKLOAD,
        "get_workload",
        workloads.get_workload,
        "Workloads",
        "One workload",
        "Workload",
        query=(workloads.MIN_SEQ,),
        errors=(404,),
    ),
    _change(
        "PATCH",
        WORKLOAD,
        "change_workload",
        workloads.change_workload,
        "Workloads",
        "Change priority class or auto-deletion",
        body=workloads.WorkloadChange,
        errors=(403, 404),
    ),
    _get(
        f"{WORKLOAD}/history",
        "workload_history",
        workloads.workload_history,
        "Workloads",
        "What happened to it, in sentences",
        "History",
        query=(*workloads.PAGE, workloads.MIN_SEQ),
        errors=(404,),
    ),
    _get(
        f"{WORKLOAD}/pods",
        "workload_pods",
        workloads.workload_pods,
        "Workloads",
        "Every run of every pod",
        "Pods",
        query=(workloads.MIN_SEQ,),
        errors=(404,),
    ),
    _get(
        f"{WORKLOAD}/logs",
        "workload_logs",
        logs.workload_logs,
        "Workloads",
        "What its pods wrote",
        "",
        media=("text/plain",),
        rules=logs.run_rules,
        query=logs.LOGS,
        headers=((CUT_MARK, "How a line begins that says why not all is told; another one each time."),),
        errors=(404, 410),
    ),
    _get(
        f"{WORKLOAD}/metrics",
        "workload_metrics",
        workloads.workload_metrics,
        "Workloads",
        "What its pods used over time",
        "Metrics",
        rules=workloads.metrics_rules,
        query=workloads.METRICS,
        errors=(404,),
    ),
)

_PLACES: Final = (
    _get(
        f"{V1}/clusters",
        "list_clusters",
        clusters.list_clusters,
        "Clusters",
        "Clusters",
        "Clusters",
        query=(clusters.REMOVED, workloads.MIN_SEQ),
        errors=(403,),
    ),
    _change(
        "POST",
        f"{V1}/clusters",
        "add_cluster",
        clusters.add_cluster,
        "Clusters",
        "Add a cluster",
        answers="Created",
        body=clusters.ClusterCreation,
        errors=(403,),
    ),
    _get(
        CLUSTER,
        "get_cluster",
        clusters.get_cluster,
        "Clusters",
        "One cluster",
        "Cluster",
        query=(workloads.MIN_SEQ,),
        errors=(403, 404),
    ),
    _change(
        "PATCH",
        CLUSTER,
        "change_cluster",
        clusters.change_cluster,
        "Clusters",
        "Switch ownership protection",
        body=clusters.ClusterChange,
        errors=(403, 404),
    ),
    _change(
        "DELETE", CLUSTER, "remove_cluster", clusters.remove_cluster, "Clusters", "Forget a cluster", errors=(403, 404)
    ),
    _get(
        f"{V1}/node-pools",
        "list_node_pools",
        clusters.list_node_pools,
        "Clusters",
        "Node pools",
        "NodePools",
        query=(clusters.CLUSTER_FILTER,),
        errors=(403, 404),
    ),
    _change(
        "POST",
        f"{V1}/node-pools",
        "set_node_pool",
        clusters.set_node_pool,
        "Clusters",
        "Make or change a node pool",
        body=clusters.NodePoolCreation,
        errors=(403, 404),
    ),
    _change(
        "DELETE",
        f"{V1}/node-pools/{{clusterId:uuid}}/{{name}}",
        "remove_node_pool",
        clusters.remove_node_pool,
        "Clusters",
        "Remove a node pool",
        errors=(403, 404),
    ),
    _get(
        f"{V1}/nodes",
        "list_nodes",
        clusters.list_nodes,
        "Clusters",
        "Nodes, what they have and what is reserved",
        "Nodes",
        query=(clusters.CLUSTER_FILTER, workloads.MIN_SEQ),
        errors=(403,),
    ),
)

_ORGANISATION: Final = (
    _get(
        PROJECTS,
        "list_projects",
        organisation.list_projects,
        "Organisation",
        "Projects that you may read, and their use",
        "Projects",
        query=(workloads.MIN_SEQ,),
    ),
    _change(
        "POST",
        PROJECTS,
        "create_project",
        organisation.create_project,
        "Organisation",
        "Make a project",
        answers="Created",
        body=organisation.ProjectCreation,
        errors=(403,),
    ),
    _get(
        PROJECT,
        "get_project",
        organisation.get_project,
        "Organisation",
        "One project",
        "Project",
        query=(workloads.MIN_SEQ,),
        errors=(404,),
    ),
    _change(
        "PUT",
        PROJECT,
        "set_project",
        organisation.set_project,
        "Organisation",
        "Set a project's quota and node pools",
        body=organisation.ProjectSettings,
        errors=(403, 404),
    ),
    _get(
        RULES,
        "list_access_rules",
        organisation.list_access_rules,
        "Organisation",
        "Who has which role where",
        "AccessRules",
        query=(workloads.MIN_SEQ,),
        errors=(403,),
    ),
    _change(
        "POST",
        RULES,
        "grant_role",
        organisation.grant_role,
        "Organisation",
        "Give somebody a role",
        body=organisation.AccessRule,
        errors=(403, 404),
    ),
    _change(
        "DELETE",
        RULES,
        "revoke_role",
        organisation.revoke_role,
        "Organisation",
        "Take a role away; given by query or body",
        query=organisation.RULE,
        body=organisation.AccessRule,
        errors=(403, 404),
    ),
    _get(f"{V1}/me", "who_am_i", organisation.who_am_i, "Organisation", "Who the token speaks for", "Me"),
)

_LOG: Final = (
    _get(
        f"{V1}/events",
        "list_events",
        operation_log.list_events,
        "Log",
        "The log itself",
        "Events",
        media=("application/json", "application/x-ndjson"),
        rules=operation_log.follow_rules,
        query=operation_log.EVENTS,
        errors=(403,),
    ),
    _change(
        "POST",
        f"{V1}/events/voids",
        "void_message",
        operation_log.void_message,
        "Log",
        "Declare a message of the log void that cannot be read",
        body=operation_log.VoidDeclaration,
        errors=(403, 404),
    ),
    _get(
        f"{V1}/audit",
        "list_audit",
        operation_log.list_audit,
        "Log",
        "Refusals and administrative acts, newest first",
        "Audit",
        query=operation_log.AUDIT,
        errors=(403,),
    ),
    _get(
        f"{V1}/projections",
        "projection_status",
        operation_log.projection_status,
        "Log",
        "How far the lists have come",
        "ProjectionStatus",
    ),
    _get(
        f"{V1}/streams",
        "stream_status",
        operation_log.stream_status,
        "Log",
        "How full the streams are that take nothing more once they are full",
        "Streams",
        errors=(403,),
    ),
)

_SYSTEM: Final = (
    _get("/healthz", "alive", system.alive, "System", "Whether the process lives", "Health", public=True),
    _get("/readyz", "ready", system.ready, "System", "Whether it serves", "Health", public=True, errors=(503,)),
)

OPERATIONS: Final = (*_TRAININGS, *_WORKLOADS, *_PLACES, *_ORGANISATION, *_LOG, *_SYSTEM)
"""Every endpoint; the order is that of matching, and of the pages made from it."""


def build_application(api: Api) -> FastAPI:
    """The ASGI application over these connections and folds."""
    described = document(OPERATIONS)
    encoded, page = msgspec.json.encode(described), system.docs_page(OPERATIONS)

    async def openapi(_: Call) -> Response:
        return Response(encoded, media_type="application/json")

    async def docs(_: Call) -> Response:
        return HTMLResponse(page)

    app = FastAPI(title="Muster", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.openapi = lambda: described
    pages = (
        _get("/openapi.json", "openapi", openapi, "System", "This description", "", public=True),
        _get("/docs", "docs", docs, "System", "Every endpoint on one page", "", media=("text/html",), public=True),
    )
    for operation in (*OPERATIONS, *pages):
        app.router.routes.append(
            Route(operation.path, endpoint(api, operation), methods=[operation.method], name=operation.id)
        )
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_middleware(Edge)
    return app


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """What routing itself refuses: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = sorted(_methods_of(request, path))
        return ApiError(
            405,
            f"{request.method} is not possible here; possible: {', '.join(allowed)}",
            headers={"Allow": ", ".join(allowed)},
        ).response()
    if error.status_code == HTTPStatus.NOT_FOUND:
        return ApiError(404, "there is nothing at this path; /docs lists what there is (ids are UUIDs)").response()
    return ApiError(error.status_code, str(error.detail), headers=_text_headers(error.headers)).response()


def _methods_of(request: Request, path: str) -> set[str]:
    methods: set[str] = set()
    for route in request.app.router.routes:
        if isinstance(route, Route) and route.path_regex.match(path):
            methods |= (route.methods or set()) - {"HEAD"}
    return methods


def _text_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    return dict(headers or {})
