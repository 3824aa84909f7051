"""One workload of each kind is listed and read: now, at a moment of the past, and once it is deleted."""

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
        (row,) = admin.get(f"{V1}?search={name}").json()["workloads"]
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
