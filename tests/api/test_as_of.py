"""What was answered at some moment is answered again, as of that moment."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.support.api import Served, report_node

V1 = "/api/v1"
CLOCK = ("totalPendingTimeSeconds", "totalRunningTimeSeconds", "workAtRisk")
"""What goes on with the clock alone."""


def without_clock(value: Any) -> Any:
    match value:
        case dict():
            return {name: without_clock(each) for name, each in value.items() if name not in CLOCK}
        case list():
            return [without_clock(each) for each in value]
        case _:
            return value


LOOKS = 30
"""A machine that is busy may leave out what the tables add to an answer from the log; then we ask again."""


def lacks_what_tables_add(told: Any) -> bool:
    if not isinstance(told, dict):
        return False
    projects, pools = [told, *told.get("projects", ())], told.get("nodePools", ())
    return any(row.get("use", 0) is None for row in projects) or any(
        isinstance(row, dict) and row["nodes"] is None for row in pools
    )


class Past:
    """Answers as they were given, and the sequences at which they were."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self.told: list[tuple[int, str, Any]] = []
        self.items: list[str] = []
        """Paths of a project, a cluster and workloads."""

    def change(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        answer = self._client.request(method, V1 + path, **options)
        assert answer.status_code == 202, answer.text
        return int(answer.headers["X-Log-Sequence"]), answer.json()

    def look(self, seq: int, *paths: str) -> None:
        for path in paths:
            for _ in range(LOOKS):
                answer = self._client.get(V1 + path, headers={"X-Log-Sequence": str(seq)})
                told = without_clock(answer.json()) if answer.status_code == 200 else answer.status_code
                if "X-Log-Stale" not in answer.headers and not lacks_what_tables_add(told):
                    break
            else:
                pytest.fail(f"{path} is not whole")
            self.told.append((seq, path, told))


@pytest.fixture(scope="module")
def past(served: Served) -> Past:
    """A project and a cluster come and go, workloads are submitted, changed, suspended, resumed and deleted."""
    with served.client() as admin:
        past = Past(admin)
        lists = (
            "/workloads?search=was-",
            "/workloads?search=was-&deleted=true&sortBy=name",
            "/workloads?search=was-&filterBy=phase==Pending&sortBy=priority",
            "/workloads/count",
            "/org-unit/projects",
            "/clusters",
            "/clusters?removed=true",
            "/node-pools",
            "/nodes",
        )
        seq, project = past.change("POST", "/org-unit/projects", json={"name": "was-vision", "gpuQuota": 4})
        past.look(seq, *lists)
        seq, cluster = past.change(
            "POST",
            "/clusters",
            json={
                "name": "was-lab",
                "kind": "simulated",
                "simulatedNodes": [{"count": 1, "cpuCores": 1, "memoryBytes": 1}],
            },
        )
        report_node(served, cluster["id"], "was-node", gpus=2)
        items = [f"/org-unit/projects/{project['id']}", f"/clusters/{cluster['id']}"]
        for number in range(3):
            body = served.training(name=f"was-{number}", projectId=project["id"], clusterId=cluster["id"])
            seq, _ = past.change("POST", "/workloads/trainings", json=body)
            found = admin.get(f"{V1}/workloads?search=was-{number}", headers={"X-Log-Sequence": str(seq)}).json()
            path = f"/workloads/{found['workloads'][0]['id']}"
            of_contract = path.replace("/workloads/", "/workloads/trainings/")
            items += [path, of_contract, f"{path}/history", f"{path}/pods"]
            past.look(seq, *lists, *items)
        one = items[2]
        training = one.replace("/workloads/", "/workloads/trainings/")
        for method, path, body in (
            ("PATCH", one, {"priorityClass": "high"}),
            ("POST", f"{training}/suspend", None),
            ("POST", f"{training}/resume", None),
            ("PUT", items[0], {"gpuQuota": 8, "nodePools": ["default"]}),
            ("POST", "/node-pools", {"clusterId": cluster["id"], "name": "p", "labelKey": "a", "labelValue": "b"}),
            ("DELETE", training, None),
        ):
            seq, _ = past.change(method, path, json=body) if body else past.change(method, path)
            past.look(seq, *lists, *items)
        for item in items[6::4]:
            past.change("DELETE", item.replace("/workloads/", "/workloads/trainings/"))
        past.items = items
        past.change("DELETE", items[1])
        seq, _ = past.change("DELETE", items[0])
        past.look(seq, *lists)
        return past


def as_of(path: str, moment: object) -> str:
    return f"{V1}{path}{'&' if '?' in path else '?'}as_of={moment}"


def test_every_answer_is_given_again_as_of_its_sequence(served: Served, past: Past) -> None:
    with served.client() as admin:
        for seq, path, told in past.told:
            answer = admin.get(as_of(path, seq))
            if told == 404:
                assert answer.status_code == told
                continue
            assert answer.status_code == 200, (seq, path, answer.text)
            again = without_clock(answer.json())
            assert again == told, (seq, path, again, told)
            assert answer.headers["X-Log-Sequence"] == str(seq)


def test_a_time_is_the_last_commit_up_to_it(served: Served, past: Past) -> None:
    with served.client() as admin:
        seq, path, told = past.told[-9]
        answer = admin.get(as_of(path, seq))
        at = answer.headers["X-As-Of"]
        again = admin.get(as_of(path, at))
        assert (again.headers["X-As-Of"], again.headers["X-Log-Sequence"]) == (at, str(seq))
        assert without_clock(again.json()) == told
        before = datetime.fromisoformat(at) - timedelta(microseconds=1)
        earlier = admin.get(as_of(path, before.isoformat().replace("+00:00", "Z")))
        assert int(earlier.headers["X-Log-Sequence"]) < seq


def test_waiting_is_counted_up_to_the_moment(served: Served) -> None:
    with served.client() as admin:
        body = served.training()
        seq = int(admin.post(f"{V1}/workloads/trainings", json=body).headers["X-Log-Sequence"])
        path = f"/workloads?search={body['name']}"
        (row,) = admin.get(as_of(path, seq)).json()["workloads"]
        assert row["totalPendingTimeSeconds"] == 0
        at = datetime.fromisoformat(row["createdAt"]) + timedelta(milliseconds=7)
        while datetime.now(UTC) <= at:
            pass
        (row,) = admin.get(as_of(path, at.isoformat().replace("+00:00", "Z"))).json()["workloads"]
        assert row["totalPendingTimeSeconds"] == pytest.approx(0.007)


def test_pages_of_a_moment_stay_while_the_log_grows(served: Served, past: Past) -> None:
    seq = past.told[-30][0]
    with served.client() as admin:
        whole = admin.get(as_of("/workloads?limit=500&sortBy=name&sortOrder=asc", seq)).json()["workloads"]
        rows: list[Any] = []
        offset: int | None = 0
        while offset is not None:
            assert admin.post(f"{V1}/workloads/trainings", json=served.training(name=f"a-{offset}")).status_code == 202
            page = admin.get(as_of(f"/workloads?limit=1&offset={offset}&sortBy=name&sortOrder=asc", seq)).json()
            rows += page["workloads"]
            offset = page["next"]
        assert rows == whole
        assert admin.get(as_of("/workloads/count", seq)).json()["count"] == len(whole)
        exported = admin.get(as_of("/workloads/export?format=csv&columns=name&sortBy=name&sortOrder=asc", seq))
        assert exported.text.split() == ["name", *(row["name"] for row in whole)]


def test_before_the_beginning_there_is_nothing(served: Served, past: Past) -> None:
    workload = next(path for _, path, told in past.told if path.startswith("/workloads/") and isinstance(told, dict))
    with served.client() as admin:
        for moment in ("0", "2001-01-01T00:00:00Z"):
            assert admin.get(as_of("/workloads", moment)).json()["workloads"] == []
            assert admin.get(as_of("/clusters", moment)).json()["clusters"] == []
            assert admin.get(as_of("/org-unit/projects", moment)).json()["projects"] == []
        answer = admin.get(as_of(past.items[2], "1"))
        assert answer.status_code == 404
        assert "there was no workload" in answer.json()["message"]
        assert workload


@pytest.mark.parametrize(
    ("query", "field", "said"),
    [
        ("as_of=2999-01-01T00:00:00Z", "as_of", "must be a moment of the past"),
        ("as_of=999999999", "as_of", "must be a moment of the past: the log ends at"),
        ("as_of=99999999999999999999999", "as_of", "is beyond every sequence"),
        ("as_of=yesterday", "as_of", "or as a sequence of the log such as 4711"),
        ("as_of=-1", "as_of", "is not a time"),
        ("as_of=", "as_of", "is not a time"),
        ("as_of=1&as_of=2", "as_of", "is given twice"),
        ("as_of=1&min_seq=1", "min_seq", "is for answers of now"),
    ],
)
def test_the_future_and_nonsense_are_refused_by_name(served: Served, query: str, field: str, said: str) -> None:
    with served.client() as admin:
        for path in ("/workloads", "/workloads/count", "/nodes", "/clusters", "/org-unit/projects"):
            answer = admin.get(f"{V1}{path}?{query}")
            assert answer.status_code == 400, answer.text
            assert [(i["field"], said in i["details"]) for i in answer.json()["complianceIssues"]] == [(field, True)]


def test_who_may_not_read_a_project_now_sees_nothing_of_its_past(served: Served, past: Past) -> None:
    seq = past.told[-30][0]
    with served.client("stranger") as stranger:
        assert stranger.get(as_of("/workloads?search=was-", seq)).json()["workloads"] == []
        assert [p["name"] for p in stranger.get(as_of("/org-unit/projects", seq)).json()["projects"]] == ["other"]
        for path in (past.items[0], *past.items[2:]):
            assert stranger.get(as_of(path, seq)).status_code == 404
    with served.client("nobody") as nobody:
        assert nobody.get(as_of("/workloads", seq)).json()["workloads"] == []
        assert nobody.get(as_of("/nodes", seq)).status_code == 403
