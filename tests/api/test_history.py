"""The history of a workload, by type, text and time (S080)."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.api import Served

V1 = "/api/v1"


@pytest.fixture(scope="module")
def alice(served: Served) -> Iterator[httpx.Client]:
    with served.client("alice") as client:
        yield client


@pytest.fixture(scope="module")
def history(served: Served, alice: httpx.Client) -> str:
    """The path of one that was submitted, suspended and resumed."""
    made = alice.post(f"{V1}/workloads/trainings", json=served.training())
    assert made.status_code == 202, made.text
    workload = made.json()["workloadId"]
    for act in ("suspend", "resume"):
        assert alice.post(f"{V1}/workloads/trainings/{workload}/{act}").status_code == 202
    return f"{V1}/workloads/{workload}/history"


def records(alice: httpx.Client, history: str, **asked: Any) -> list[dict[str, Any]]:
    answer = alice.get(history, params=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()["records"]


def test_records_are_found_by_type_text_and_time(alice: httpx.Client, history: str) -> None:
    everything = records(alice, history)
    types = [record["type"] for record in everything]
    assert {"WorkloadCreated", "WorkloadSuspended", "WorkloadResumed"} <= set(types)

    def found(**asked: Any) -> list[str]:
        return [record["type"] for record in records(alice, history, **asked)]

    assert found(type="WorkloadSuspended") == ["WorkloadSuspended"]
    assert found(type=["WorkloadSuspended", "*Created"]) == ["WorkloadCreated", "WorkloadSuspended"]
    assert found(text="SUSPENDED by") == ["WorkloadSuspended"]
    # Sentences are kept with ids, and found as they are shown.
    assert found(text="ended by Alice") == ["WorkloadSuspended"]
    assert found(text="alice") == [r["type"] for r in everything if "alice" in r["message"]] != []
    assert found(text="a_") == []
    assert found(text="100%") == []
    second = everything[1]
    assert found(**{"from": second["sequence"]}) == types[1:]
    assert found(to=second["sequence"] - 1) == types[:1]
    assert found(**{"from": everything[0]["at"], "to": everything[-1]["at"]}) == types
    assert found(**{"from": "2100-01-01T00:00:00Z"}) == []
    assert found(text="suspended", type="WorkloadCreated") == []
    assert found(text="suspended", as_of=everything[0]["sequence"]) == []


def test_pages_go_on_within_what_was_asked_for(alice: httpx.Client, history: str) -> None:
    first = alice.get(history, params={"type": "Workload*", "limit": 1}).json()
    then = alice.get(history, params={"type": "Workload*", "limit": 500, "offset": first["next"]}).json()
    assert [*first["records"], *then["records"]] == records(alice, history, type="Workload*")


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"type": "WorkloadSuspendet"}, "type"),
        ({"from": "yesterday"}, "from"),
        ({"to": "9" * 30}, "to"),
        ({"text": "x" * 10_000}, "text"),
        ({"text": "\x00"}, "text"),
    ],
)
def test_what_no_record_can_be_is_refused_by_name(
    alice: httpx.Client, history: str, asked: dict[str, str], field: str
) -> None:
    answer = alice.get(history, params=asked)
    assert answer.status_code == 400, answer.text
    assert [issue["field"] for issue in answer.json()["complianceIssues"]] == [field]
