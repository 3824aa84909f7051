"""What is asked for and cannot be is refused by name: a sequence beyond the log, a key that is none, a role that nobody
has, a pool that is nowhere.
"""

import json
import secrets
from typing import Any

import httpx
import pytest

from tests.support.api import Served

V1 = "/api/v1"
TRAININGS = f"{V1}/workloads/trainings"
PROJECTS = f"{V1}/org-unit/projects"
RULES = f"{V1}/authorization/access-rules"
BEYOND = 5_000_000


def end_of_log(admin: httpx.Client) -> int:
    return int(admin.get(f"{V1}/events", params={"limit": 1}).headers["X-Log-Sequence"])


def the_issue(answer: httpx.Response) -> tuple[str, str]:
    assert answer.status_code == 400, answer.text
    (issue,) = answer.json()["complianceIssues"]
    return issue["field"], issue["details"]


def test_a_command_with_a_sequence_beyond_the_log_is_refused_and_nothing_is_decided(served: Served) -> None:
    with served.client() as admin:
        made = admin.post(TRAININGS, json=served.training()).json()["workloadId"]
        before = end_of_log(admin)
        ahead = {"X-Log-Sequence": str(BEYOND)}
        asked: list[tuple[str, str, dict[str, Any]]] = [
            ("POST", TRAININGS, {"json": served.training()}),
            ("POST", f"{TRAININGS}/{made}/suspend", {}),
            ("PATCH", f"{V1}/workloads/{made}", {"json": {"priorityClass": "high"}}),
            ("PUT", f"{PROJECTS}/{served.project}", {"json": {"gpuQuota": 7}}),
            ("DELETE", f"{TRAININGS}/{made}", {}),
        ]
        for method, path, options in asked:
            field, details = the_issue(admin.request(method, path, headers=ahead, **options))
            assert field == "X-Log-Sequence"
            assert f"the log ends at {before}, got {BEYOND}" in details
            assert "leave it out" in details
        assert end_of_log(admin) == before, "nothing was decided"


@pytest.mark.parametrize("path", [f"{V1}/workloads", TRAININGS + "/{}", PROJECTS, f"{V1}/clusters", f"{V1}/nodes"])
def test_a_read_of_what_the_log_has_not_come_to_says_where_it_ends(served: Served, path: str) -> None:
    with served.client() as admin:
        made = admin.post(TRAININGS, json=served.training()).json()["workloadId"]
        end = end_of_log(admin)
        field, details = the_issue(admin.get(path.format(made), params={"min_seq": BEYOND}))
        assert field == "min_seq"
        assert f"the log ends at {end}, got {BEYOND}" in details
        assert admin.get(path.format(made), params={"min_seq": end}).status_code == 200


@pytest.mark.parametrize("key", ["", "x" * 256, "two words", "caf\xe9"])
def test_an_idempotency_key_that_is_none_is_refused_by_name(served: Served, key: str) -> None:
    with served.client("alice") as alice:
        before = alice.get(f"{V1}/workloads/count").json()
        sent = alice.post(
            TRAININGS,
            json=served.training(),
            headers={"Idempotency-Key": key.encode("latin-1")},  # pyright: ignore[reportArgumentType]
        )
        field, details = the_issue(sent)
        assert field == "Idempotency-Key"
        assert "1 to 255 printable ASCII characters without spaces" in details
        assert alice.get(f"{V1}/workloads/count").json() == before


@pytest.mark.parametrize("scope", ["tenant", "project"])
def test_a_role_that_nobody_has_cannot_be_revoked_and_those_that_they_have_are_told(served: Served, scope: str) -> None:
    where = {"scopeType": scope} | ({"scopeId": served.project} if scope == "project" else {})
    ann = {"subjectId": f"ann-{secrets.token_hex(4)}", **where}
    with served.client() as admin:
        never = admin.delete(RULES, params={**ann, "roleName": "viewer"})
        assert (never.status_code, never.json()["details"]) == (404, "role_not_held")
        assert "has no role" in never.json()["message"]
        for role in ("viewer", "researcher"):
            assert admin.post(RULES, json={**ann, "roleName": role}).status_code == 202
        assert admin.delete(RULES, params={**ann, "roleName": "viewer"}).status_code == 202
        before = end_of_log(admin)
        again = admin.delete(RULES, params={**ann, "roleName": "viewer"})
        assert (again.status_code, again.json()["details"]) == (404, "role_not_held")
        assert "has only: researcher" in again.json()["message"]
        assert admin.post(RULES, json={**ann, "roleName": "researcher"}).status_code == 202, "it is so already"
        assert end_of_log(admin) == before, "neither is an event"


def test_a_project_s_node_pools_are_those_that_some_cluster_has(served: Served) -> None:
    name = f"p-{secrets.token_hex(4)}"
    pool = f"fast-{secrets.token_hex(4)}"
    with served.client() as admin:
        settings = {"gpuQuota": None, "nodePools": ["default", "nope"]}
        for answer in (
            admin.post(PROJECTS, json={"name": name, **settings}),
            admin.put(f"{PROJECTS}/{served.project}", json=settings),
        ):
            field, details = the_issue(answer)
            assert field == "nodePools[1]"
            assert "no cluster has a node pool 'nope'" in details
            assert "default" in details
        made = {"clusterId": served.cluster, "name": pool, "labelKey": "gpu", "labelValue": pool}
        assert admin.post(f"{V1}/node-pools", json=made).status_code == 202
        made = admin.post(PROJECTS, json={"name": name, "nodePools": [pool, "default"]})
        assert made.status_code == 202, made.text
        used = admin.delete(f"{V1}/node-pools/{served.cluster}/{pool}")
        assert (used.status_code, used.json()["details"]) == (409, "node_pool_in_use")
        assert f"project {name}" in used.json()["message"]
        gone = admin.put(f"{PROJECTS}/{made.json()['id']}", json={"gpuQuota": 3, "nodePools": ["default"]})
        assert gone.status_code == 202
        assert admin.delete(f"{V1}/node-pools/{served.cluster}/{pool}").status_code == 202


@pytest.mark.parametrize("name", ["nosuch", "default"])
def test_a_node_pool_that_is_not_there_to_be_removed_is_not_said_to_be_removed(served: Served, name: str) -> None:
    with served.client() as admin:
        answer = admin.delete(f"{V1}/node-pools/{served.cluster}/{name}")
        assert answer.status_code == 404, answer.text
        assert repr(name) in answer.json()["message"]


def test_one_project_and_one_cluster_are_read_with_the_version_that_a_change_depends_on(served: Served) -> None:
    with served.client() as admin:
        for path, method, body in (
            (f"{V1}/org-unit/projects/{served.project}", "PUT", {"gpuQuota": 7}),
            (f"{V1}/clusters/{served.cluster}", "PATCH", {"ownershipProtection": False}),
        ):
            version = admin.get(path).headers["x-version"]
            first = admin.request(method, path, json=body, headers={"If-Match": version})
            assert first.status_code == 202, first.text
            assert admin.get(path).headers["x-version"] == first.headers["x-version"]
            stale = admin.request(method, path, json=body, headers={"If-Match": str(int(version) - 1)})
            assert stale.status_code == 412, stale.text


@pytest.mark.parametrize("name", ["second", "local"])
def test_this_machine_is_one_cluster_whose_devices_are_given_out_once(served: Served, name: str) -> None:
    with served.client() as admin:
        answer = admin.post(f"{V1}/clusters", json={"name": name, "kind": "local"})
        assert answer.status_code == 400, answer.text
        told = {issue["field"]: issue["details"] for issue in answer.json()["complianceIssues"]}
        if name == "local":
            assert set(told) == {"name"}
        else:
            assert set(told) == {"name", "kind"}
            assert "'local'" in told["kind"]
        listed = admin.get(f"{V1}/clusters").json()["clusters"]
        assert [one["name"] for one in listed if one["kind"] == "local"] == ["local"]


LOGS = f"{V1}/workloads/{{}}/logs"
METRICS = f"{V1}/workloads/{{}}/metrics"


@pytest.mark.parametrize(
    ("path", "query", "fields"),
    [
        (f"{V1}/audit", "since=x&type=Z", ["since", "type"]),
        (LOGS, "since=foo&run=0", ["since", "run"]),
        (LOGS, "since=foo&run=2&pod=main-0", ["since", "run"]),
        (METRICS, "start=x&end=y&metricType=Z", ["start", "end", "metricType"]),
        (METRICS, "start=2026-01-02T00:00:00Z&end=2026-01-01T00:00:00Z", ["start"]),
        (METRICS, "start=2300-01-02T00:00:00Z", ["start"]),
        (METRICS, "start=2026-01-02T00:00:00Z&end=2026-01-01T00:00:00Z&metricType=Z", ["metricType", "start"]),
        (f"{V1}/workloads", "filterBy=x&filterBy=phase==Nope&filterBy=nope==1&sortBy=z&limit=0",
         ["limit", "filterBy", "filterBy", "filterBy", "sortBy"]),
        (f"{V1}/workloads/count", "filterBy=x&filterBy=phase==Nope", ["filterBy", "filterBy"]),
        (f"{V1}/workloads/export", "filterBy=x&columns=nope", ["filterBy", "columns"]),
        (f"{V1}/events", "follow=true&limit=2", ["limit"]),
        (f"{V1}/events", "follow=true&limit=2&after=x", ["after", "limit"]),
    ],
)  # fmt: skip
def test_everything_that_is_wrong_with_a_query_is_told_at_once(
    served: Served, path: str, query: str, fields: list[str]
) -> None:
    with served.client() as admin:
        if "{}" in path:
            made = admin.post(TRAININGS, json=served.training())
            path = path.format(made.json()["workloadId"])
        with admin.stream("GET", f"{path}?{query}") as answer:
            assert answer.status_code == 400, "an open stream has no more to say here"
            issues = json.loads(answer.read())["complianceIssues"]
    assert sorted(issue["field"] for issue in issues) == sorted(fields), issues


BAD_HEADERS = {"Idempotency-Key": "a b", "If-Match": "soon", "X-Log-Sequence": "late"}


@pytest.mark.parametrize(
    ("method", "path", "body", "fields"),
    [
        ("POST", TRAININGS, {"name": 1, "spec": {"image": "i"}}, {"name", "projectId", "clusterId"}),
        (
            "POST",
            f"{V1}/node-pools",
            {"name": "default", "labelKey": "a b"},
            {"name", "labelKey", "clusterId", "labelValue"},
        ),
        ("POST", f"{V1}/clusters", {"name": "x", "kind": "simulated"}, {"simulatedNodes"}),
        ("POST", f"{V1}/clusters?bogus=1", {"name": "y", "kind": "kubernetes"}, {"bogus"}),
        ("PUT", f"{PROJECTS}/{{project}}", {"gpuQuota": -1}, {"gpuQuota"}),
        ("PATCH", f"{V1}/workloads/{{workload}}", {"priorityClass": "nope"}, {"priorityClass"}),
        ("POST", f"{TRAININGS}/{{workload}}/suspend?now=1", None, {"now"}),
        ("DELETE", f"{RULES}?subjectId=x", None, {"roleName", "scopeType"}),
    ],
)  # fmt: skip
def test_headers_that_are_wrong_are_told_beside_the_query_and_the_body(
    served: Served, method: str, path: str, body: dict[str, Any] | None, fields: set[str]
) -> None:
    with served.client() as admin:
        made = admin.post(TRAININGS, json=served.training()).json()["workloadId"]
        path = path.replace("{project}", served.project).replace("{workload}", made)
        answer = admin.request(method, path, json=body, headers=BAD_HEADERS)
        assert answer.status_code == 400, answer.text
        assert {issue["field"] for issue in answer.json()["complianceIssues"]} == fields | set(BAD_HEADERS)
        for name, value in BAD_HEADERS.items():
            alone = admin.delete(f"{TRAININGS}/{made}", headers={name: value})
            assert the_issue(alone)[0] == name, "nothing is done where only a header is wrong"
        assert admin.get(f"{TRAININGS}/{made}").json()["desiredPhase"] == "Running"


def test_a_node_pool_is_told_of_every_field_also_where_mandatory_ones_are_wrong(served: Served) -> None:
    with served.client() as admin:
        pool = {"clusterId": "nowhere", "name": "a b", "labelKey": "k", "labelValue": "\u202e"}
        answer = admin.post(f"{V1}/node-pools", json=pool)
        assert {issue["field"] for issue in answer.json()["complianceIssues"]} == {"clusterId", "name", "labelValue"}


def test_a_role_is_taken_away_by_the_query_or_the_body_and_not_by_both(served: Served) -> None:
    with served.client() as admin:
        rule = {"subjectId": "gus", "roleName": "viewer", "scopeType": "tenant"}
        assert admin.post(RULES, json=rule).status_code == 202
        answer = admin.request("DELETE", RULES, params=rule | {"subjectId": "hal"}, json=rule)
        assert the_issue(answer)[0] == "body"
        assert rule | {"scopeId": None} in admin.get(RULES).json()["accessRules"], "he keeps it"
        assert admin.request("DELETE", RULES, json=rule).status_code == 202


@pytest.mark.parametrize(
    "name", ["MUSTER_RUN", "JOB_COMPLETION_INDEX", "MUSTER_RUN_ID", "NVIDIA_VISIBLE_DEVICES", "GPU_PORTION"]
)
def test_a_variable_that_muster_sets_itself_is_refused_by_name(served: Served, name: str) -> None:
    spec = {"environmentVariables": [{"name": name, "value": "7"}], "compute": {"gpuDevicesRequest": 1}}
    with served.client("alice") as alice:
        field, details = the_issue(alice.post(TRAININGS, json=served.training(spec=spec)))
        assert field == "spec.environmentVariables[0].name"
        assert name in details


@pytest.mark.parametrize(
    "name",
    [
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
    ],
)
def test_who_shares_devices_cannot_set_what_mps_reads_and_who_has_whole_ones_can(served: Served, name: str) -> None:
    """S036, ADR 0132. By another folder of a server a program finds none, or one of its own."""
    variables = [{"name": name, "value": "0=1G"}]
    shared = {"gpuDevicesRequest": 1, "gpuRequestType": "portion", "gpuPortionRequest": 0.5}
    with served.client("alice") as alice:
        spec = {"environmentVariables": variables, "compute": shared}
        field, details = the_issue(alice.post(TRAININGS, json=served.training(spec=spec)))
        assert field == "spec.environmentVariables[0].name"
        assert name in details
        spec["compute"] = {"gpuDevicesRequest": 1}
        assert alice.post(TRAININGS, json=served.training(spec=spec)).status_code == 202


@pytest.mark.parametrize(
    ("query", "fine"),
    [
        ("priorityClassName==nope", False),
        ("priorityClassName==high", True),
        ("priority>=high", True),
        ("priority>=nope", False),
        ("priority>=3", True),
    ],
)
def test_a_priority_is_asked_for_by_the_names_of_its_classes(served: Served, query: str, fine: bool) -> None:
    with served.client("alice") as alice:
        answer = alice.get(f"{V1}/workloads", params={"filterBy": query})
    assert answer.status_code == (200 if fine else 400), answer.text
    if not fine:
        assert "very-high" in answer.text


@pytest.mark.parametrize(
    ("name", "words"),
    [("", "must not be empty"), ("a b", "letters, digits"), ("x" * 64, "at most 63 characters, got 64")],
)
def test_the_rule_of_a_name_is_told_in_words(served: Served, name: str, words: str) -> None:
    pool = {"clusterId": served.cluster, "name": name, "labelKey": "k", "labelValue": "v"}
    with served.client() as admin:
        field, details = the_issue(admin.post(f"{V1}/node-pools", json=pool))
    assert (field, words in details, "pattern" in details) == ("name", True, False), details


def test_who_may_not_is_told_which_roles_may(served: Served) -> None:
    with served.client("vic") as vic:
        answer = vic.post(TRAININGS, json=served.training())
    assert answer.status_code == 403
    assert "administrator, project-admin or researcher" in answer.json()["message"]
