"""Who may do what: every operation of the served OpenAPI document, for every role, in the own and in another project.

One table (log.md 6.2, 6.9 API1 and API5). An operation without a row, or a row without an operation, fails.
"""

import base64
import contextlib
import hashlib
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import pytest

from events.department import DEFAULT_DEPARTMENT_ID
from tests.support.api import Served, report_node

ROLES: Final = ("viewer", "researcher", "project-admin", "administrator")
READ: Final = (200, 200, 200, 200), (404, 404, 404, 200)
OPERATE: Final = (403, 202, 202, 202), (404, 404, 404, 202)
EVERYBODY: Final = (200, 200, 200, 200), (200, 200, 200, 200)
ADMINISTRATORS_READ: Final = (403, 403, 403, 200), (403, 403, 403, 200)
ADMINISTRATORS_DO: Final = (403, 403, 403, 202), (403, 403, 403, 202)
GRANT: Final = (403, 403, 202, 202), (404, 404, 404, 202)
FOUND_BY_ADMINISTRATORS: Final = (404, 404, 202, 202), (404, 404, 404, 202)

SIMULATED: Final = {
    "kind": "simulated",
    "simulatedNodes": [{"names": ["fast"], "cpuCores": 1, "memoryBytes": 1}],
}

SOURCES: Final[dict[str, dict[str, Any]]] = {
    "pvc": {"existingPvc": True, "claimName": "c", "path": "/data"},
    "git": {"repository": "https://git.example.com/code", "path": "/data"},
    "nfs": {"server": "nfs", "path": "/", "mountPath": "/data"},
    "s3": {"bucket": "sets", "path": "/data"},
    "host-path": {"path": "/mnt", "mountPath": "/data"},
    "config-map": {"configMap": "c", "mountPath": "/data"},
    "secret": {"secret": "s", "mountPath": "/data"},
}
SOURCE_KINDS: Final = (*(kind.replace("-", "_") for kind in SOURCES), "data_volume")
EXPECTED: Final[dict[str, tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "create_training1": ((403, 202, 202, 202), (403, 403, 403, 202)),
    "evaluate_training": ((403, 200, 200, 200), (403, 403, 403, 200)),
    "code_limits": ((403, 200, 200, 200), (403, 403, 403, 200)),
    "put_code": ((403, 202, 202, 202), (403, 403, 403, 202)),
    "get_training": READ,
    "delete_training": OPERATE,
    "suspend_training": OPERATE,
    "resume_training": OPERATE,
    "create_distributed": ((403, 202, 202, 202), (403, 403, 403, 202)),
    "evaluate_distributed": ((403, 200, 200, 200), (403, 403, 403, 200)),
    "get_distributed": READ,
    "delete_distributed": OPERATE,
    "suspend_distributed": OPERATE,
    "resume_distributed": OPERATE,
    "create_workspace": ((403, 202, 202, 202), (403, 403, 403, 202)),
    "evaluate_workspace": ((403, 200, 200, 200), (403, 403, 403, 200)),
    "get_workspace": READ,
    "delete_workspace": OPERATE,
    "suspend_workspace": OPERATE,
    "resume_workspace": OPERATE,
    "create_inference": ((403, 202, 202, 202), (403, 403, 403, 202)),
    "evaluate_inference": ((403, 200, 200, 200), (403, 403, 403, 200)),
    "get_inference": READ,
    "delete_inference": OPERATE,
    "suspend_inference": OPERATE,
    "resume_inference": OPERATE,
    "list_environments": EVERYBODY,
    "create_environment": ((403, 403, 202, 202), (403, 403, 403, 202)),
    "get_environment": READ,
    "set_environment": GRANT,
    "delete_environment": GRANT,
    "list_credentials": EVERYBODY,
    # One of somebody else's: who may delete it sees it, and nobody else changes it.
    "create_credential": ((403, 202, 202, 202), (403, 403, 403, 202)),
    "get_credential": ((404, 404, 200, 200), (404, 404, 404, 200)),
    "set_credential": ((404, 404, 403, 403), (404, 404, 404, 403)),
    "delete_credential": FOUND_BY_ADMINISTRATORS,
    "list_compute_resources": EVERYBODY,
    "create_compute_resource": ((403, 403, 202, 202), (403, 403, 403, 202)),
    "get_compute_resource": READ,
    "set_compute_resource": GRANT,
    "delete_compute_resource": GRANT,
    **{f"list_{kind}_data_sources": EVERYBODY for kind in SOURCE_KINDS},
    **{f"create_{kind}_data_source": ((403, 403, 202, 202), (403, 403, 403, 202)) for kind in SOURCE_KINDS},
    **{f"get_{kind}_data_source": READ for kind in SOURCE_KINDS},
    **{f"{act}_{kind}_data_source": GRANT for act in ("set", "delete") for kind in SOURCE_KINDS},
    "list_templates": EVERYBODY,
    "create_template": ((403, 403, 202, 202), (403, 403, 403, 202)),
    "get_template": READ,
    "set_template": GRANT,
    "delete_template": GRANT,
    "get_training_policy": READ,
    "set_training_policy": GRANT,
    "delete_training_policy": GRANT,
    "rehearse_training_policy": ((403, 403, 200, 200), (403, 403, 403, 200)),
    "get_distributed_policy": READ,
    "set_distributed_policy": GRANT,
    "delete_distributed_policy": GRANT,
    "rehearse_distributed_policy": ((403, 403, 200, 200), (403, 403, 403, 200)),
    "get_workspace_policy": READ,
    "set_workspace_policy": GRANT,
    "delete_workspace_policy": GRANT,
    "rehearse_workspace_policy": ((403, 403, 200, 200), (403, 403, 403, 200)),
    "get_inference_policy": READ,
    "set_inference_policy": GRANT,
    "delete_inference_policy": GRANT,
    "rehearse_inference_policy": ((403, 403, 200, 200), (403, 403, 403, 200)),
    "create_workloads": ((403, 202, 202, 202), (403, 403, 403, 202)),  # all or nothing: what one item is refused with
    "act_on_workloads": ((202,) * 4, (202,) * 4),  # each id has its own status (tests/api/test_acts.py)
    "list_workload_types": EVERYBODY,
    "list_workloads": EVERYBODY,
    "count_workloads": EVERYBODY,
    "export_workloads": EVERYBODY,
    "get_workload": READ,
    "change_workload": OPERATE,
    "transfer_workload": OPERATE,  # to who has it; to others: tests/ownership/test_decide.py
    "undo_act": OPERATE,
    "workload_connections": READ,
    "workload_history": READ,
    "workload_pods": READ,
    "explain_workload": READ,
    "workload_logs": READ,
    "workload_metrics": READ,
    "list_clusters": EVERYBODY,
    "add_cluster": ADMINISTRATORS_DO,
    "get_cluster": EVERYBODY,
    "change_cluster": ADMINISTRATORS_DO,
    "remove_cluster": ADMINISTRATORS_DO,
    "disconnect_cluster": ADMINISTRATORS_DO,
    "reconnect_cluster": ADMINISTRATORS_DO,
    "list_node_pools": EVERYBODY,
    "get_node_pool": EVERYBODY,
    "create_node_pool": ADMINISTRATORS_DO,
    "set_node_pool": ADMINISTRATORS_DO,
    "remove_node_pool": ADMINISTRATORS_DO,
    "get_start_windows": READ,
    "set_start_windows": ADMINISTRATORS_DO,
    "list_reservations": EVERYBODY,
    "list_start_windows": EVERYBODY,
    "get_reservation": EVERYBODY,
    "reserve_capacity": ADMINISTRATORS_DO,
    "change_reservation": ADMINISTRATORS_DO,
    "cancel_reservation": ADMINISTRATORS_DO,
    "list_maintenance": EVERYBODY,
    "get_maintenance": EVERYBODY,
    "plan_maintenance": ADMINISTRATORS_DO,
    "change_maintenance": ADMINISTRATORS_DO,
    "cancel_maintenance": ADMINISTRATORS_DO,
    "list_nodes": EVERYBODY,
    "add_nodes": ADMINISTRATORS_DO,
    "change_node": ADMINISTRATORS_DO,
    "remove_node": ADMINISTRATORS_DO,
    "cordon_node": ADMINISTRATORS_DO,
    "drain_node": ADMINISTRATORS_DO,
    "list_node_pods": EVERYBODY,
    "uncordon_node": ((403, 403, 403, 202), (403, 403, 403, 202)),
    "list_departments": EVERYBODY,
    "create_department": ADMINISTRATORS_DO,
    "get_department": EVERYBODY,
    "set_department": ADMINISTRATORS_DO,
    "delete_department": ADMINISTRATORS_DO,
    "list_projects": EVERYBODY,
    "list_usage": EVERYBODY,
    "list_use_hours": EVERYBODY,
    "list_prices": EVERYBODY,
    "set_price": ADMINISTRATORS_DO,
    "remove_price": ADMINISTRATORS_DO,
    "list_budgets": EVERYBODY,
    "get_budget": READ,
    "get_time_limits": READ,
    "set_time_limits": ADMINISTRATORS_DO,
    "set_budget": ((403, 403, 403, 202), (404, 404, 404, 202)),
    "remove_budget": ((403, 403, 403, 202), (404, 404, 404, 202)),
    "get_diff": EVERYBODY,
    "create_project": ADMINISTRATORS_DO,
    "get_project": READ,
    "set_project": ((403, 403, 403, 202), (404, 404, 404, 202)),
    "delete_project": ADMINISTRATORS_DO,
    "list_access_rules": ((403, 403, 200, 200), (403, 403, 200, 200)),
    "grant_role": GRANT,
    "revoke_role": GRANT,
    "list_service_accounts": ((403, 403, 200, 200), (403, 403, 200, 200)),
    "get_service_account": ((404, 404, 200, 200), (404, 404, 404, 200)),
    "create_service_account": ((403, 403, 202, 202), (403, 403, 403, 202)),
    "rotate_service_account": GRANT,
    "delete_service_account": GRANT,
    "list_subscriptions": ((403, 403, 200, 200), (403, 403, 200, 200)),
    "get_subscription": ((404, 404, 200, 200), (404, 404, 404, 200)),
    "create_subscription": ((403, 403, 202, 202), (403, 403, 403, 202)),
    "stream_events": READ,
    "list_public_events": EVERYBODY,
    "get_public_event": ((404,) * 4, (404,) * 4),  # nothing writes any here
    "export_public_events": EVERYBODY,
    "create_ticket": ((202, 202, 202, 202), (404, 404, 404, 202)),
    "delete_subscription": FOUND_BY_ADMINISTRATORS,
    "list_webhooks": ((403, 403, 200, 200), (403, 403, 200, 200)),
    "get_webhook": ((404, 404, 200, 200), (404, 404, 404, 200)),
    "create_webhook": ((403, 403, 202, 202), (403, 403, 403, 202)),
    "change_webhook": FOUND_BY_ADMINISTRATORS,
    "rotate_webhook_key": FOUND_BY_ADMINISTRATORS,
    "delete_webhook": FOUND_BY_ADMINISTRATORS,
    "list_webhook_deliveries": ((404, 404, 200, 200), (404, 404, 404, 200)),
    "redeliver_webhook": FOUND_BY_ADMINISTRATORS,
    "test_webhook": FOUND_BY_ADMINISTRATORS,
    "who_am_i": EVERYBODY,
    "list_events": ADMINISTRATORS_READ,
    "void_message": ((403, 403, 403, 409), (403, 403, 403, 409)),  # it can be read
    "list_audit": ADMINISTRATORS_READ,
    "projection_status": EVERYBODY,
    "stream_status": ADMINISTRATORS_READ,
}
"""By operation, the status for each of ROLES in the own project, and in another. In the other project the three first
are as somebody with no role; what belongs to no project is the same in both."""

OF_SOURCES: Final = {f"{kind.replace('-', '_')}_data_source": spec for kind, spec in SOURCES.items()}
CREDENTIAL: Final = {"kind": "generic-secret", "data": {"token": "x"}}
OF_ASSETS: Final[dict[str, dict[str, Any]]] = OF_SOURCES | {"credential": CREDENTIAL}
ASSETS: Final = ("environment", "compute_resource", "template", "data_volume_data_source", *OF_ASSETS)
POLICIES: Final = ("training", "distributed", "workspace", "inference")
BUDGET: Final = {"gpuHours": 1_000_000}
"""That nothing here exhausts."""
NOBODY: Final = "0b7a5c9e-5c3f-4c57-a4f5-2f9c9b6b1a10"
PUBLIC: Final = frozenset({"alive", "ready", "openapi", "docs"})


@dataclass(frozen=True, kw_only=True)
class Target:
    """One operation, aimed at things of one project."""

    method: str
    path: str
    options: dict[str, Any]


@pytest.fixture(scope="module")
def operations(served: Served) -> dict[str, tuple[str, str]]:
    """Method and path by operation id, as the API itself tells them."""
    paths = served.page("/openapi.json").json()["paths"]
    return {
        operation["operationId"]: (method.upper(), path)
        for path, of in paths.items()
        for method, operation in of.items()
    }


@pytest.fixture(scope="module")
def admin(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        for role in ROLES[:3]:
            rule = {"subjectId": role, "roleName": role, "scopeType": "project", "scopeId": served.project}
            assert client.post("/api/v1/authorization/access-rules", json=rule).status_code == 202
        rule = {"subjectId": "administrator", "roleName": "administrator", "scopeType": "tenant"}
        assert client.post("/api/v1/authorization/access-rules", json=rule).status_code == 202
        yield client


@pytest.fixture(scope="module")
def clients(served: Served) -> Iterator[dict[str, httpx.Client]]:
    """One for each role."""
    with contextlib.ExitStack() as stack:
        yield {role: stack.enter_context(served.client(role)) for role in ROLES}


def subscription(admin: httpx.Client, project: str, fresh: str) -> str:
    """Its id. A creation waits for the service that makes consumers, and here is none: so one for all."""
    there = admin.get("/api/v1/subscriptions").json()["subscriptions"]
    ids = [one["id"] for one in there if one["projectId"] == project]
    if not ids:
        made = admin.post("/api/v1/subscriptions", json={"projectId": project, "name": f"a-{fresh}"})
        ids.append(made.json()["id"])
    return ids[0]


def price_of(admin: httpx.Client, model: str, *, there: bool) -> dict[str, str]:
    """A price to set, or one that is set already."""
    price = {"gpuModel": model, "amount": "1", "currency": "EUR"}
    if there:
        assert admin.post("/api/v1/prices", json=price).status_code == 202
    return price


def asset(project: str, path: str, fresh: str, shared: dict[str, Any]) -> dict[str, Any]:
    """The body of an environment, a compute resource or a template, by the path of its list. `shared`: the spec of a
    data volume.
    """
    meta = {"name": f"a-{fresh}", "scope": "project", "projectId": project}
    of_template = {"workloadType": "Training"} if "template" in path else {}
    kind = path.partition("/datasource/")[2].partition("/")[0]
    spec = CREDENTIAL if "/asset/credentials" in path else (SOURCES | {"data-volume": shared}).get(kind, {})
    return {"meta": meta | of_template, "spec": spec}


def claim_of(admin: httpx.Client, project: str, path: str) -> dict[str, Any]:
    """The spec of a data volume: one cluster at least has claims that can be shared."""
    if "/data-volume" not in path:
        return {}
    clusters = admin.get("/api/v1/clusters").json()["clusters"]
    found = [one["id"] for one in clusters if one["kind"] == "kubernetes"]
    if not found:
        made = admin.post("/api/v1/clusters", json={"name": "claims", "kind": "kubernetes"})
        found = [made.json()["id"]]
    return {"projectId": project, "clusterId": found[0], "claimName": "c", "mountPath": "/data"}


OWN_FIELDS: dict[str, Any] = {
    "distributed": {"distributedFramework": "JAX"},
    "inferences": {"servingPort": {"container": 8000}},
}
"""What a kind insists on, by its path."""


def workload(served: Served, admin: httpx.Client, path: str, project: str) -> str:
    """Id of a fresh workload, of the kind that the path is of."""
    kind = next((word for word in ("distributed", "workspaces", "inferences") if f"/{word}/" in path), "trainings")
    body = served.training(projectId=project, spec=OWN_FIELDS.get(kind, {}))
    identifier: str = admin.post(f"/api/v1/workloads/{kind}", json=body).json()["workloadId"]
    return identifier


def code_part(fresh: str) -> dict[str, Any]:
    """The only part of an archive."""
    data = fresh.encode()
    digest, text = hashlib.sha256(data).hexdigest(), base64.b64encode(data).decode()
    return {"digest": digest, "part": 0, "parts": 1, "data": text}


def some_project(admin: httpx.Client) -> str:
    """Id of one that there is."""
    identifier: str = admin.get("/api/v1/org-unit/projects").json()["projects"][0]["id"]
    return identifier


def maintenance() -> dict[str, Any]:
    """Of nodes that need not be there, in an hour."""
    starts = datetime.now(UTC) + timedelta(hours=1)
    ends = starts + timedelta(hours=1)
    labels = [{"name": "rack", "value": "4"}]
    return {"startsAt": starts.isoformat(), "endsAt": ends.isoformat(), "labels": labels}


def on_cluster(served: Served, admin: httpx.Client, path: str, fresh: str) -> str:
    """The path of a fresh cluster, or of a pool or node of it."""
    made = admin.post("/api/v1/clusters", json={"name": f"c-{fresh}", **SIMULATED}).json()["id"]
    pool = {"clusterId": made, "name": "fast", "labelKey": "gpu", "labelValue": "h100"}
    assert admin.post("/api/v1/node-pools", json=pool).status_code == 202
    if "/calendar/" in path:
        planned = maintenance() | {"clusterId": made, "name": "fast"}
        kept = planned | {"projectId": some_project(admin)}
        assert admin.post("/api/v1/calendar/reservations", json=kept).status_code == 202
        assert admin.post("/api/v1/calendar/maintenance", json=planned).status_code == 202
    if "/nodes/" in path:
        report_node(served, made, "fast")
        while "/pods" in path and not admin.get("/api/v1/nodes", params={"clusterId": made}).json()["nodes"]:
            time.sleep(0.05)  # one that is read must be in the tables
    return path.replace("{clusterId}", made).replace("{name}", "fast")


def changed_at(admin: httpx.Client, path: str) -> int:
    """Sequence of a change of the workload that can be undone."""
    answer = admin.patch(path.removesuffix("/undo"), json={"priorityClass": "high"})
    return int(answer.headers["X-Log-Sequence"])


def nodes_for(admin: httpx.Client, fresh: str) -> dict[str, Any]:
    """More nodes for a fresh simulated cluster."""
    made = admin.post("/api/v1/clusters", json={"name": f"c-{fresh}", **SIMULATED}).json()["id"]
    return {"clusterId": made, "nodes": [{"names": ["more"], "cpuCores": 1, "memoryBytes": 1}]}


def of_places(served: Served, fresh: str) -> dict[str, Any]:
    """Bodies of what makes or sets departments and node pools."""
    label = {"labelKey": "gpu", "labelValue": "h100"}
    return {
        "create_node_pool": {"clusterId": served.cluster, "name": "fast", **label},
        "set_node_pool": label,
        "plan_maintenance": maintenance() | {"clusterId": served.cluster, "name": f"m-{fresh}"},
        "change_maintenance": maintenance(),
        "reserve_capacity": maintenance()
        | {"clusterId": served.cluster, "name": f"r-{fresh}", "projectId": served.project},
        "change_reservation": maintenance() | {"projectId": served.project},
        "create_department": {"name": f"d-{fresh}"},
        "set_department": {},
        "drain_node": {},
        "change_node": {"cpuCores": 2},
        "set_time_limits": {},
        "set_start_windows": {"windows": ["20:00-06:00"]},
    }


def in_department(admin: httpx.Client, path: str, name: str, fresh: str) -> str:
    """The path of the default department; of a fresh one, where it is to be deleted: in the other projects stand."""
    department = DEFAULT_DEPARTMENT_ID
    if name == "delete_department":
        department = admin.post("/api/v1/org-unit/departments", json={"name": f"d-{fresh}"}).json()["id"]
    return path.replace("{departmentId}", department)


def policy(admin: httpx.Client, path: str, project: str) -> dict[str, str]:
    """The query of the project's policy, which is there."""
    which = {"scope": "project", "projectId": project}
    assert admin.put(path.removesuffix(":rehearse"), params=which, json={}).status_code == 202
    return which


def of_submissions(served: Served, project: str) -> dict[str, Any]:
    """Bodies of what makes workloads, or says what would be made."""
    training = served.training(projectId=project)
    distributed, inference = (
        served.training(projectId=project, spec=OWN_FIELDS[kind]) for kind in ("distributed", "inferences")
    )
    return {
        "create_training1": training,
        "evaluate_training": training,
        "create_distributed": distributed,
        "evaluate_distributed": distributed,
        "create_workspace": training,
        "evaluate_workspace": training,
        "create_inference": inference,
        "evaluate_inference": inference,
        "create_workloads": {
            "items": [{"kind": "Training", **served.training(projectId=project)} for _ in range(2)],
            "allOrNothing": True,
        },
    }


def of_assets(project: str, path: str, fresh: str, shared: dict[str, Any]) -> dict[str, Any]:
    """Bodies for assets and policies, by operation. `shared`: as of `asset`."""
    made = {f"create_{kind}": asset(project, path, fresh, shared) for kind in ASSETS}
    specs = OF_ASSETS | {"data_volume_data_source": shared}
    kept = {f"set_{kind}": {"spec": specs.get(kind, {})} for kind in ASSETS}
    return made | kept | {f"{act}_{kind}_policy": {} for act in ("set", "rehearse") for kind in POLICIES}


def aimed(
    served: Served, admin: httpx.Client, operations: dict[str, tuple[str, str]], name: str, project: str
) -> Target:
    """The operation on fresh things of the project, so that no answer depends on the one before."""
    (method, path), fresh = operations[name], secrets.token_hex(6)
    options: dict[str, Any] = {}
    if "{workloadId}" in path:
        path = path.replace("{workloadId}", workload(served, admin, path, project))
    if name == "delete_project":  # the others need theirs
        project = admin.post("/api/v1/org-unit/projects", json={"name": f"gone-{fresh}"}).json()["id"]
    path, shared = in_department(admin, path, name, fresh), claim_of(admin, project, path)
    account = {"name": f"a-{fresh}", "projectId": project, "roleName": "viewer"}
    if "service-accounts/" in path:
        assert admin.post("/api/v1/service-accounts", json=account).status_code == 202
        path = path.replace("{name}", account["name"])
    if "{subscriptionId}" in path:
        path = path.replace("{subscriptionId}", subscription(admin, project, fresh))
    webhook = {"projectId": project, "url": "https://example.com/", "name": f"w-{fresh}"}
    if "{webhookId}" in path:
        path = path.replace("{webhookId}", admin.post("/api/v1/webhooks", json=webhook).json()["id"])
    if "{assetId}" in path:
        made = admin.post(path.removesuffix("/{assetId}"), json=asset(project, path, fresh, shared))
        path = path.replace("{assetId}", made.json()["meta"]["id"])
    price = price_of(admin, f"m-{fresh}", there=name == "remove_price")
    if "/budgets/" in path:
        assert admin.put(f"/api/v1/budgets/{project}", json=BUDGET).status_code == 202
    path = path.replace("{projectId}", project).replace("{sequence}", "4711.0")
    if "{clusterId}" in path:
        path = on_cluster(served, admin, path, fresh)
    assert "{" not in path, f"{name}: say here what {path} is aimed at"
    rule = {"subjectId": f"s-{fresh}", "roleName": "viewer", "scopeType": "project", "scopeId": project}
    if name == "revoke_role":
        assert admin.post("/api/v1/authorization/access-rules", json=rule).status_code == 202
    bodies: dict[str, Any] = of_submissions(served, project) | {
        "act_on_workloads": {"action": "delete", "ids": [project]},  # there is none of this id
        "put_code": {"projectId": project, "clusterId": served.cluster} | code_part(fresh),
        "change_workload": {"priorityClass": "high"},
        "transfer_workload": {"owner": "admin"},
        "undo_act": {"sequence": changed_at(admin, path) if name == "undo_act" else 1},
        "add_cluster": {"name": f"d-{fresh}", "kind": "kubernetes"},
        "change_cluster": {"ownershipProtection": True},
        **of_places(served, fresh),
        "add_nodes": nodes_for(admin, fresh) if name == "add_nodes" else {},
        "create_project": {"name": f"p-{fresh}"},
        "set_project": {"gpuQuota": None},
        "set_price": price,
        "set_budget": BUDGET,
        "grant_role": rule,
        "revoke_role": rule,
        "create_service_account": account | {"name": f"b-{fresh}"},
        "create_subscription": {"projectId": project, "name": f"b-{fresh}"},
        "create_ticket": {"projectId": project},
        "create_webhook": webhook | {"name": f"v-{fresh}"},
        "change_webhook": {"types": ["WorkloadFailed"]},
        "redeliver_webhook": {},
        "void_message": {"sequence": 1, "reason": "a test"},
    }
    bodies |= of_assets(project, path, fresh, shared)
    if name in bodies:
        options["json"] = bodies[name]
    parameters: dict[str, Any] = {
        "code_limits": {"projectId": project, "clusterId": served.cluster},
        "get_diff": {"from": "0"},
        "remove_price": {"gpuModel": price["gpuModel"]},
        "stream_events": {"projectId": project},
    } | ({name: policy(admin, path, project)} if "/policies/" in path else {})
    if name in parameters:
        options["params"] = parameters[name]
    return Target(method=method, path=path, options=options)


def answered(client: httpx.Client, target: Target) -> httpx.Response:
    """Read to its end, but where it has none."""
    with client.stream(target.method, target.path, **target.options) as answer:
        if answer.headers["Content-Type"].partition(";")[0] != "text/event-stream":
            answer.read()
        return answer


def test_every_operation_has_a_row_and_every_row_an_operation(operations: dict[str, tuple[str, str]]) -> None:
    assert operations.keys() - PUBLIC == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_role_does_what_it_may_and_nothing_more(
    served: Served,
    admin: httpx.Client,
    clients: dict[str, httpx.Client],
    operations: dict[str, tuple[str, str]],
    name: str,
) -> None:
    projects = (served.project, served.made["other"])
    for project, statuses in zip(projects, EXPECTED[name], strict=True):
        target: Target | None = None
        for role, expected in zip(ROLES, statuses, strict=True):
            if target is None:
                target = aimed(served, admin, operations, name, project)
            answer = answered(clients[role], target)
            if target.method != "GET" and answer.is_success:  # what was read or refused is as it was for the next
                target = None
            where = "own project" if project == served.project else "another project"
            assert answer.status_code == expected, f"{role}, {where}: {answer.text}"
            if expected >= 400:
                assert answer.json()["code"] == expected
                assert answer.json()["message"]


def test_without_a_living_token_nothing_is_answered(
    served: Served, operations: dict[str, tuple[str, str]], subtests: pytest.Subtests
) -> None:
    """Not even whether there is what is named, nor what is wrong with a request."""
    expired = served.token("administrator", ttl_seconds=60, now=1_700_000_000.0)
    with served.client(None) as client:
        for name in EXPECTED:
            method, path = operations[name]
            for header in ({}, {"Authorization": f"Bearer {expired}"}):
                with subtests.test(name, token=bool(header)):
                    answer = client.request(method, re.sub(r"\{\w+\}", NOBODY, path), headers=header, json={})
                    assert answer.status_code == 401, answer.text
                    assert answer.headers["WWW-Authenticate"] == "Bearer"
                    assert answer.json()["code"] == 401


def test_lists_show_nothing_of_another_project(served: Served, admin: httpx.Client) -> None:
    name = f"hidden-{secrets.token_hex(4)}"
    made = admin.post("/api/v1/workloads/trainings", json=served.training(name=name, projectId=served.made["other"]))
    seen = {"min_seq": made.headers["x-log-sequence"], "search": name}
    for role, expected in zip(ROLES, (0, 0, 0, 1), strict=True):
        with served.client(role) as client:
            listed = client.get("/api/v1/workloads", params=seen).json()["workloads"]
            counted = client.get("/api/v1/workloads/count", params=seen).json()["count"]
            exported = client.get("/api/v1/workloads/export", params={"columns": "name", **seen}).text.splitlines()[1:]
            projects = {project["name"] for project in client.get("/api/v1/org-unit/projects").json()["projects"]}
        assert (len(listed), counted, len(exported)) == (expected, expected, expected), role
        assert ("other" in projects) == bool(expected), role


ACTS: Final = ("delete_training", "suspend_training", "resume_training", "change_workload")


@pytest.mark.parametrize("name", ACTS)
def test_under_ownership_protection_only_the_creator_and_an_administrator_act(
    served: Served, admin: httpx.Client, operations: dict[str, tuple[str, str]], name: str
) -> None:
    """C14; the switch is the cluster's, and a refusal stands in the audit."""
    cluster = admin.post(
        "/api/v1/clusters", json={"name": f"safe-{secrets.token_hex(4)}", "kind": "kubernetes"}
    ).json()["id"]
    assert admin.patch(f"/api/v1/clusters/{cluster}", json={"ownershipProtection": True}).status_code == 202
    method, path = operations[name]
    body: dict[str, Any] = {"json": {"priorityClass": "high"}} if name == "change_workload" else {}
    for subject, expected in (("bob", 403), ("project-admin", 403), ("alice", 202), ("administrator", 202)):
        with served.client("alice") as alice:
            made = alice.post("/api/v1/workloads/trainings", json=served.training(clusterId=cluster)).json()
        with served.client(subject) as client:
            answer = client.request(method, path.replace("{workloadId}", made["workloadId"]), **body)
        assert answer.status_code == expected, f"{subject}: {answer.text}"
        if expected == 403:
            assert answer.json()["details"] == "not_owner"
            (newest,) = admin.get("/api/v1/audit", params={"limit": 1}).json()["records"]
            assert (newest["actor"]["sub"], newest["code"], newest["target"]) == (
                subject,
                "not_owner",
                made["workloadId"],
            )
