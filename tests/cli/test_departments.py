"""`muster department`, and what of it projects, policies and node pools say, against an API that only answers.

Requirement rows: S008, S013, S039.
"""

from typing import Any

import pytest

from tests.support.shapes import Reply, ShapeServer

ACCEPTED = Reply(202, {"code": 202, "message": "done"})
DEPARTMENT: dict[str, Any] = {
    "id": "d-1",
    "name": "research",
    "createdAt": "2026-01-02T03:04:05Z",
    "isDefault": False,
    "nodePools": ["a"],
    "nodeTypes": [],
    "gpuQuota": None,
    "gpuLimit": 8.0,
    "minimumRuntimeSeconds": 5400,
    "clusterLostSeconds": 900,
    "nodePoolQuotas": [{"nodePool": "a", "gpuQuota": 2.0, "gpuLimit": None}],
    "projects": 3,
    "use": {"workloads": {"Running": 2}, "pods": 2, "gpuAllocated": 1.5, "gpuAllocatedNonPreemptible": 1.0},
}
PATH = "/org-unit/departments"


@pytest.fixture(autouse=True)
def departments(api: ShapeServer) -> None:
    api.on("GET", PATH, Reply(body={"departments": [DEPARTMENT], "next": None}))
    api.on("GET", f"{PATH}/d-1", Reply(body=DEPARTMENT, headers={"X-Version": "7"}))
    for method, path in (("POST", PATH), ("PUT", f"{PATH}/d-1"), ("DELETE", f"{PATH}/d-1")):
        api.on(method, path, ACCEPTED)


def test_a_department_is_listed_shown_made_set_and_deleted(api: ShapeServer, muster: Any) -> None:
    ran = muster("department", "list", "--search", "res")
    assert "research" in ran.out
    assert api.requests[-1].query["search"] == ["res"]
    told = muster("department", "describe", "research").out
    assert "1h30m" in told
    assert "after 15m" in told
    assert "a=2/none" in told
    assert "2 Running" in told
    assert muster("department", "create", "sales", "--node-pools", "a, b", "--gpu-limit", "16").code == 0
    assert api.requests[-1].body == {"name": "sales", "nodePools": ["a", "b"], "gpuLimit": 16}
    quotas = ("--pool-quota", "a=4/8", "--pool-quota", "b=none/2.5", "--pool-quota", "c=none/none/2")
    quotas = (*quotas, "--over-quota-weight", "3", "--minimum-runtime", "10m", "--cluster-lost-after", "0")
    assert muster("department", "set", "research", "--node-types", "dgx", "--gpu-limit", "none", *quotas).code == 0
    asked = api.requests[-1]
    assert asked.headers["if-match"] == "7"
    assert asked.body == {
        "nodePools": ["a"],
        "nodeTypes": ["dgx"],
        "gpuQuota": None,
        "gpuLimit": None,
        "nodePoolQuotas": [
            {"nodePool": "a", "gpuQuota": 4, "gpuLimit": 8},
            {"nodePool": "b", "gpuQuota": None, "gpuLimit": 2.5},
            {"nodePool": "c", "gpuQuota": None, "gpuLimit": None, "overQuotaWeight": 2},
        ],
        "overQuotaWeight": 3,
        "minimumRuntimeSeconds": 600,
        "clusterLostSeconds": 0,
    }
    assert muster("department", "delete", "research", "-y").code == 0
    assert api.asked("DELETE", f"{PATH}/d-1")


@pytest.mark.parametrize("given", ["a", "a=", "=4", "a=4/", "a=many", "a=4//2", "a=1/2/3/4"])
def test_a_quota_of_a_pool_that_is_none_is_refused_with_what_would_do(muster: Any, given: str) -> None:
    ran = muster("department", "set", "research", "--pool-quota", given)
    assert ran.code == 2
    assert "--pool-quota" in ran.err


def test_nothing_to_set_is_told(muster: Any) -> None:
    ran = muster("department", "set", "research")
    assert ran.code == 2
    assert "there is nothing to change" in ran.err


def test_projects_are_listed_made_and_moved_by_their_department(api: ShapeServer, muster: Any) -> None:
    assert muster("project", "list", "--department", "research").code == 0
    assert api.requests[-1].query["departmentId"] == ["d-1"]
    api.on("POST", "/org-unit/projects", Reply(202, {"id": "p-2", "name": "vision"}))
    assert muster("project", "create", "vision", "--department", "research", "--node-types", "dgx").code == 0
    assert api.requests[-1].body == {"name": "vision", "nodeTypes": ["dgx"], "departmentId": "d-1"}
    api.on("PUT", "/org-unit/projects/p-1", ACCEPTED)
    assert muster("project", "set", "default", "--department", "research").code == 0
    assert api.requests[-1].body["departmentId"] == "d-1"


def test_policies_of_a_department_are_named_by_it(api: ShapeServer, muster: Any) -> None:
    api.on("DELETE", "/policies/trainings", ACCEPTED)
    ran = muster("policy", "delete", "trainings", "--department", "research", "-y")
    assert ran.code == 0, ran.err
    assert api.requests[-1].query == {"scope": ["department"], "departmentId": ["d-1"]}
    both = muster("policy", "delete", "trainings", "--department", "research", "-p", "default", "-y")
    assert both.code == 2


def test_the_label_of_a_node_pool_is_changed(api: ShapeServer, muster: Any) -> None:
    api.on("GET", "/node-pools", Reply(body={"nodePools": [{"name": "fast", "clusterId": "c-1"}]}))
    api.on("PUT", "/node-pools/c-1/fast", ACCEPTED)
    api.on("GET", "/nodes", Reply(body={"nodes": []}))
    assert muster("nodepool", "set", "fast", "--label", "gpu=h100").code == 0
    assert api.asked("PUT", "/node-pools/c-1/fast")[0].body == {"labelKey": "gpu", "labelValue": "h100"}


@pytest.mark.parametrize("noun", ["department", "project"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("8d", "must be at most 7d, got 8d"),
        ("never", "'never' is not a duration"),
        ("-5s", "'-5s' is not a duration"),
    ],
)
def test_a_time_for_lost_clusters_that_is_none_says_what_would_do(
    api: ShapeServer, muster: Any, noun: str, given: str, told: str
) -> None:
    ran = muster(noun, "create", "sales", f"--cluster-lost-after={given}")
    assert ran.code == 2
    assert told in ran.err
    assert "at most 7d, such as 30m; 0: never; none: as the department says" in ran.err
    assert [asked for asked in api.requests if asked.method == "POST"] == []
