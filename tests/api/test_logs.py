"""Logs of what cannot be told any more, and how a stream that is cut can be told from one that has ended."""

import json
import secrets
from datetime import UTC, datetime

import pytest

from tests.api.test_follows import following, logs_of
from tests.support.api import Served

V1 = "/api/v1"


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("name_lives_on", [False, True])
def test_logs_of_a_removed_cluster_are_gone_for_good_and_the_answer_says_when_and_where(
    served: Served, *, follow: bool, name_lives_on: bool
) -> None:
    name = f"c-{secrets.token_hex(4)}"
    with served.client() as admin:
        cluster = admin.post(f"{V1}/clusters", json={"name": name, "kind": "kubernetes"}).json()["id"]
        body = served.training(clusterId=cluster, spec={"parallelism": 2, "completions": 2})
        made = admin.post(f"{V1}/workloads/trainings", json=body).json()["workloadId"]
        assert admin.delete(f"{V1}/clusters/{cluster}", params={"force": True}).status_code == 202
        if name_lives_on:
            admin.post(f"{V1}/clusters", json={"name": name, "kind": "kubernetes"})
        answer = admin.get(f"{V1}/workloads/{made}/logs", params={"follow": follow})
        told = answer.json()
        assert (answer.status_code, told["code"], told["details"]) == (410, 410, "cluster_removed")
        assert "Retry-After" not in answer.headers
        assert f"cluster {name!r} was removed on {datetime.now(UTC):%Y-%m-%d}" in told["message"]
        assert "by admin" in told["message"]
        assert "MUSTER_DATA_DIR" in told["message"]
        assert "kubectl logs" in told["message"]


def test_a_cut_is_marked_with_a_word_that_no_pod_can_know(served: Served) -> None:
    rule = {"subjectId": "eve", "roleName": "viewer", "scopeType": "project", "scopeId": served.project}
    rules = f"{V1}/authorization/access-rules"
    marks: list[str] = []
    with served.client() as admin:
        for _ in range(2):
            assert admin.post(rules, json=rule).status_code == 202
            with following(served, logs_of(served), "eve") as response:
                marks.append(response.headers["X-Cut-Mark"])
                assert admin.delete(rules, params=rule).status_code == 202
                line = list(response.iter_lines())[-1]
            assert line.startswith(f"{marks[-1]} (not_in_project): you have no role in this project")
    assert marks[0] != marks[1]
    described = json.dumps(served.page("/openapi.json").json()["paths"][f"{V1}/workloads/{{workloadId}}/logs"])
    assert "X-Cut-Mark" in described
