"""One workload of each kind is listed and read: now, at a moment of the past, and once it is deleted."""

import secrets

import httpx
import pytest

from events.workload.kinds import KINDS
from tests.support.api import Served

V1 = "/api/v1/workloads"
SPEC = {
    "Distributed": {"distributedFramework": "PyTorch", "numWorkers": 1},
    "Inference": {"servingPort": {"container": 8000}},
}


def rows(client: httpx.Client, query: str, seq: int) -> list[str]:
    answer = client.get(f"{V1}?{query}", headers={"X-Log-Sequence": str(seq)})
    assert answer.status_code == 200, answer.text
    return [row["name"] for row in answer.json()["workloads"]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_workload_of_each_kind_is_listed_and_read(served: Served, kind: str) -> None:
    name, collection = f"each-{kind.lower()}", f"{V1}/{KINDS[kind].collection}"
    with served.client() as admin:
        created = admin.post(collection, json=served.training(name=name, spec=SPEC.get(kind, {})))
        assert created.status_code == 202, created.text
        seq = int(created.headers["X-Log-Sequence"])
        assert rows(admin, f"search={name}", seq) == [name]
        assert rows(admin, f"search={name}&as_of={seq}", seq) == [name]
        known_as = KINDS[kind].kubernetes_name
        assert rows(admin, f"search={name}&filterBy=type=={known_as}", seq) == [name], "S003"
        (row,) = admin.get(f"{V1}?search={name}").json()["workloads"]
        assert row["type"] == kind
        assert admin.get(f"{V1}/{row['id']}").json()["kubernetesType"] == known_as
        assert row["workAtRisk"] == (None if kind == "Inference" else 0)
        for path in (f"{V1}/{row['id']}", f"{collection}/{row['id']}"):
            for of in ("", f"?as_of={seq}"):
                read = admin.get(path + of, headers={"X-Log-Sequence": str(seq)})
                assert read.status_code == 200, read.text
        deleted = admin.delete(f"{collection}/{row['id']}")
        assert deleted.status_code == 202, deleted.text
        gone = int(deleted.headers["X-Log-Sequence"])
        assert rows(admin, f"search={name}", gone) == []
        assert rows(admin, f"search={name}&deleted=true", gone) == [name]
        assert rows(admin, f"search={name}&deleted=true&as_of={gone}", gone) == [name]
        assert admin.get(f"{V1}/export?search={name}&deleted=true").status_code == 200


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_is_taken_by_whatever_kind_has_it_and_a_prefix_makes_another(served: Served, kind: str) -> None:
    """S010, S011, R38."""
    name, collection = f"name-{secrets.token_hex(4)}", f"{V1}/{KINDS[kind].collection}"
    asked = served.training(name=name, spec=SPEC.get(kind, {}))
    with served.client() as admin:
        first = admin.post(f"{V1}/trainings", json=served.training(name=name))
        assert first.status_code == 202, first.text
        refused = admin.post(collection, json=asked)
        assert refused.status_code == 400, refused.text
        assert [issue["field"] for issue in refused.json()["complianceIssues"]] == ["name"]
        made = admin.post(collection, json=asked | {"useGivenNameAsPrefix": True})
        assert made.status_code == 202, made.text
        read = admin.get(f"{collection}/{made.json()['workloadId']}").json()
        assert read["requestedName"] == name
        assert read["name"].startswith(f"{name}-")
        assert (first.json()["name"], first.json()["requestedName"]) == (name, name)
