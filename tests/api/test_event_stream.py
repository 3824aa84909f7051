"""Public events as server-sent events, by the API on a real FEED."""

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from development.servers import EVERYTHING, NatsServer, PostgresServer
from events.public.registry import PUBLIC_EVENTS
from services.api import event_stream, public_events
from services.runtime.identity.erase import erase
from services.runtime.nats.connection import connect
from tests.support.api import Served, serving
from tests.support.sse import Message, Parser

STREAM = "/api/v1/events/stream"
PUBLIC = "/api/v1/events/public"
TICKETS = "/api/v1/events/tickets"
TRAININGS = "/api/v1/workloads/trainings"
RULES = "/api/v1/authorization/access-rules"
STREAMS_EACH = 4
STREAMS = 6
PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def served(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    limits = {
        "event_streams_per_user": STREAMS_EACH,
        "event_streams": STREAMS,
        "event_stream_heartbeat_seconds": 1,
        "http_max_stalled_seconds": 2,
    }
    with serving(nats_server, postgres_server, tmp_path_factory.mktemp("api"), "feed", **limits) as running:
        yield running


class Stream:
    """One that is open."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.parser = Parser()
        self._lines = response.iter_lines()
        self._messages = self.parser.messages(self._lines)

    def read(self, count: int) -> list[Message]:
        return list(itertools.islice(self._messages, count))

    def one(self) -> Message:
        return next(self._messages)

    def position(self) -> str:
        """That it begins with, before any event."""
        self.lines(lambda parser: bool(parser.last_id))
        return self.parser.last_id

    def lines(self, until: Callable[[Parser], bool]) -> None:
        """Lines in which nothing is dispatched, until that holds."""
        for line in self._lines:
            assert self.parser.feed(line) is None
            if not line and until(self.parser):
                return
        raise AssertionError("it ended")

    def end(self) -> Message:
        """Once the stream has ended, which an open one never does by itself."""
        return list(self._messages)[-1]


@contextlib.contextmanager
def listening(served: Served, subject: str | None = "alice", *, headers: Any = None, **query: Any) -> Generator[Stream]:
    with (
        served.client(subject) as client,
        client.stream("GET", STREAM, params=query, headers=headers, timeout=PATIENCE_SECONDS) as response,
    ):
        yield Stream(response)


def submit(served: Served, subject: str = "alice", **more: Any) -> str:
    with served.client(subject) as client:
        answer = client.post(TRAININGS, json=served.training(**more))
        assert answer.status_code == 202, answer.text
        return answer.json()["workloadId"]


def refusal(served: Served, subject: str | None = "alice", **query: Any) -> tuple[int, dict[str, Any]]:
    headers = query.pop("headers", None)
    with listening(served, subject, headers=headers, **query) as stream:
        return stream.response.status_code, json.loads(stream.response.read())


def fault(served: Served, **query: Any) -> tuple[str, str]:
    status, body = refusal(served, **query)
    assert status == 400, body
    (issue,) = body["complianceIssues"]
    return issue["field"], issue["details"]


def test_what_happens_is_told_as_cloudevents_from_now_on(served: Served) -> None:
    submit(served)
    with listening(served, projectId=served.project) as stream:
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        assert stream.position()
        workload = submit(served)
        told = stream.one()
    assert told.name == "message", "public events have no name of their own: onmessage gets them all"
    assert told.data["type"] == "muster.WorkloadSubmitted.v1"
    assert told.data["specversion"] == "1.0"
    assert told.data["subject"] == workload
    assert told.data["data"]["workloadId"] == workload
    assert told.id.startswith(told.data["sequence"])
    assert stream.parser.retry > 0


def test_last_event_id_goes_on_exactly_behind_an_event(served: Served) -> None:
    """By header and by query; where both are given, the header counts, as a browser that connects again sends both."""
    with listening(served, projectId=served.project, type="WorkloadSub*") as stream:
        begin = stream.position()
        made = [submit(served) for _ in range(4)]
        told = stream.read(4)
    assert [message.data["subject"] for message in told] == made
    for at, message in enumerate(told[:-1]):
        query = {"projectId": served.project, "type": "WorkloadSubmitted"}
        with listening(served, headers={"Last-Event-ID": message.id}, lastEventId=begin, **query) as again:
            assert again.read(3 - at) == told[at + 1 :]
        with listening(served, lastEventId=message.id, **query) as again:
            assert again.read(3 - at) == told[at + 1 :]


def test_a_stream_may_begin_at_a_sequence_or_a_time_of_the_log(served: Served) -> None:
    before = datetime.now(UTC)
    with served.client("alice") as alice:
        sequence = int(alice.post(TRAININGS, json=served.training()).headers["X-Log-Sequence"])
    for begin in (str(sequence), before.isoformat()):
        with listening(served, projectId=served.project, **{"from": begin}) as stream:
            assert stream.one().data["sequence"] == f"{sequence:016d}.000000", begin
    with listening(served, projectId=served.project, **{"from": "1"}) as stream:
        assert int(stream.one().data["sequence"][:16]) < sequence


@pytest.mark.parametrize(
    ("begin", "why"),
    [
        (str(10**9), "the log ends at"),
        ("9000-01-01T00:00:00Z", "is in the future"),
        ("yesterday", "is not a time"),
    ],
)
def test_a_stream_cannot_begin_where_the_log_has_not_come(served: Served, begin: str, why: str) -> None:
    field, details = fault(served, **{"from": begin})
    assert field == "from"
    assert why in details


@pytest.mark.parametrize("given", ["nonsense", "4711", "1.0-ABCDEF01", "0" * 17 + ".0-00000000", "1.0-a1b2c3d4é"])
def test_an_id_that_is_none_is_refused(served: Served, given: str) -> None:
    field, details = fault(served, lastEventId=given)
    assert field == "lastEventId"
    assert "is no id of an event of this stream" in details


def test_an_id_of_another_installation_is_refused(served: Served) -> None:
    """Given one whose place this log has, with another commit there, and one that is beyond its end."""
    for foreign in ("0000000000000003.000000-deadbeef", "0000009999999999.000000-deadbeef"):
        field, details = fault(served, headers={"Last-Event-ID": foreign})
        assert field == "Last-Event-ID"
        assert "of another installation" in details


def test_an_unknown_type_is_refused_with_what_was_probably_meant(served: Served) -> None:
    field, details = fault(served, type="WorkloadSubmited")
    assert field == "type"
    assert "WorkloadSubmitted" in details.rpartition(";")[2]
    assert all(name in details for name in PUBLIC_EVENTS)
    assert fault(served, type="Job*")[0] == "type"


def test_filters_are_by_project_workload_and_type(served: Served) -> None:
    with served.client() as admin:
        assert admin.post(TRAININGS, json=served.training(projectId=served.made["other"])).status_code == 202
    with listening(served, "admin") as everything:
        everything.position()
        mine, other = submit(served), submit(served, "admin", projectId=served.made["other"])
        with served.client() as admin:
            assert admin.post(f"{TRAININGS}/{mine}/suspend").status_code == 202
        told = everything.read(3)
    assert [m.data["subject"] for m in told] == [mine, other, mine]
    begin = {"from": str(int(told[0].data["sequence"][:16]))}
    with listening(served, "admin", projectId=served.made["other"], **begin) as stream:
        assert stream.one().data["subject"] == other
    with listening(served, "admin", workloadId=mine, **begin) as stream:
        assert [m.event_id for m in stream.read(2)] == [told[0].event_id, told[2].event_id]
    kind = told[2].data["type"].split(".")[1]
    with listening(served, "admin", type=[kind, "WorkloadDeleted"], **begin) as stream:
        assert stream.one().event_id == told[2].event_id


def test_only_events_of_projects_that_one_may_read_are_told(served: Served) -> None:
    with listening(served, "stranger") as stream:
        begin = stream.position()
        submit(served)
        theirs = submit(served, "stranger", projectId=served.made["other"])
        assert stream.one().data["subject"] == theirs
    with listening(served, "stranger", lastEventId=begin) as stream:
        assert stream.one().data["subject"] == theirs, "nor where they are read from FEED"
    for project in (served.project, "00000000-0000-8000-8000-000000000000"):
        status, body = refusal(served, "stranger", projectId=project)
        assert (status, body["details"]) == (404, "not_found")
    assert refusal(served, None)[0] == 401


def test_a_quiet_stream_says_that_it_lives_and_how_far_it_is(served: Served) -> None:
    """So that a reader of rare events goes on near the end, and not in a long past."""
    with listening(served, "stranger", projectId=served.made["other"]) as stream:
        first = stream.position()
        submit(served)
        stream.lines(lambda parser: parser.last_id != first and parser.comments > 0)
    assert stream.parser.last_id > first


def test_revoking_the_role_ends_the_stream_and_says_why(served: Served) -> None:
    rule = {"subjectId": "mallory", "roleName": "viewer", "scopeType": "project", "scopeId": served.project}
    with served.client() as admin:
        for query, code in (({"projectId": served.project}, "not_in_project"), ({}, "roles_changed")):
            assert admin.post(RULES, json=rule).status_code == 202
            with listening(served, "mallory", **query) as stream:
                stream.position()
                assert admin.delete(RULES, params=rule).status_code == 202
                end = stream.end()
            assert (end.name, end.data["code"]) == ("end", code)


def test_forgetting_a_person_ends_their_stream(served: Served) -> None:
    rule = {"subjectId": "trudy", "roleName": "viewer", "scopeType": "project", "scopeId": served.project}
    with served.client() as admin:
        assert admin.post(RULES, json=rule).status_code == 202
    with listening(served, "trudy", projectId=served.project) as stream:
        stream.position()
        asyncio.run(forget(served, "trudy"))
        end = stream.end()
    assert (end.name, end.data["code"]) == ("end", "not_permitted")


async def forget(served: Served, subject: str) -> None:
    nc = await connect(served.settings, EVERYTHING)
    try:
        await erase(nc, subject, None, lambda _done, _total: None)
    finally:
        await nc.close()


def test_a_token_that_expires_ends_the_stream(served: Served) -> None:
    token = served.token("alice", ttl_seconds=2)
    with listening(served, None, headers={"Authorization": f"Bearer {token}"}) as stream:
        end = stream.end()
    assert (end.name, end.data["code"]) == ("end", "not_authenticated")
    assert "the token has expired" in end.data["message"]


def test_a_server_that_stops_ends_its_streams_at_once_and_they_go_on_at_the_next(served: Served) -> None:
    with listening(served, projectId=served.project, type="WorkloadSubmitted") as stream:
        stream.position()
        first = submit(served)
        assert stream.one().data["subject"] == first
        stopping = threading.Thread(target=served.restart, args=(0,))
        stopping.start()
        end = stream.end()
        stopping.join()
    assert (end.name, end.data["code"]) == ("end", "stopping")
    second = submit(served)
    again = {"projectId": served.project, "type": "WorkloadSubmitted", "lastEventId": end.id}
    with listening(served, **again) as stream:
        assert stream.one().data["subject"] == second


def test_so_many_streams_are_open_of_one_user_and_in_all(served: Served) -> None:
    with contextlib.ExitStack() as opened:
        for _ in range(STREAMS_EACH):
            opened.enter_context(listening(served, "bob"))
        status, body = refusal(served, "bob")
        assert (status, body["details"]) == (429, "too_many_streams")
        assert f"you may have {STREAMS_EACH}" in body["message"]
        for _ in range(STREAMS - STREAMS_EACH):
            opened.enter_context(listening(served, "vic"))
        status, body = refusal(served, "alice")
        assert (status, body["details"]) == (503, "too_many_streams")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with listening(served, "bob") as stream:
            if stream.response.status_code == 200:
                return
        assert time.monotonic() < deadline, "places are given back"


def ticket(served: Served, subject: str = "alice", **filters: Any) -> str:
    with served.client(subject) as client:
        answer = client.post(TICKETS, json=filters)
        assert answer.status_code == 202, answer.text
        return answer.json()["ticket"]


def test_a_ticket_opens_one_stream_with_the_filters_that_it_was_made_with(served: Served) -> None:
    given = ticket(served, projectId=served.project, types=["WorkloadSubmitted"])
    with listening(served, None, ticket=given) as stream:
        begin = stream.position()
        workload = submit(served)
        assert stream.one().data["subject"] == workload
    status, body = refusal(served, None, ticket=given)
    assert (status, body["details"]) == (401, "not_authenticated")
    assert "was used already" in body["message"]
    again = ticket(served, projectId=served.project, types=["WorkloadSubmitted"])
    with listening(served, None, ticket=again, lastEventId=begin) as stream:
        assert stream.one().data["subject"] == workload


def test_a_ticket_is_asked_for_with_headers_that_can_be(served: Served) -> None:
    """As every change: here nothing is sent that would tell."""
    with served.client() as admin:
        answer = admin.post(TICKETS, json={}, headers={"Idempotency-Key": "a b"})
    assert (answer.status_code, answer.json()["complianceIssues"][0]["field"]) == (400, "Idempotency-Key")


def test_a_ticket_that_is_none_or_is_not_for_this_is_refused(served: Served) -> None:
    given = ticket(served, projectId=served.project)
    for forged in ("x", given[:-1], given[:-1] + ("A" if given[-1] != "A" else "B"), given[4:]):
        status, body = refusal(served, None, ticket=forged)
        assert (status, body["details"]) == (401, "not_authenticated"), forged
    status, body = refusal(served, None, ticket=given, type="WorkloadDeleted")
    assert status == 400
    assert body["complianceIssues"][0]["field"] == "type"
    with served.client(None) as nobody:
        assert nobody.get("/api/v1/workloads", params={"ticket": given}).status_code == 401
    with served.client("stranger") as stranger:
        assert stranger.post(TICKETS, json={"projectId": served.project}).status_code == 404
        for field, body in (
            ("types[1]", {"types": ["WorkloadDeleted", "WorkloadSubmited"]}),
            ("projectId", {"projectId": ""}),
            ("workloadId", {"workloadId": "train"}),
        ):
            answer = stranger.post(TICKETS, json=body)
            assert answer.status_code == 400
            assert [issue["field"] for issue in answer.json()["complianceIssues"]] == [field]


def test_a_ticket_lasts_no_longer_than_its_token(served: Served) -> None:
    token = served.token("alice", ttl_seconds=2)
    with served.client(
        None,
    ) as client:
        answer = client.post(TICKETS, json={}, headers={"Authorization": f"Bearer {token}"})
    with listening(served, None, ticket=answer.json()["ticket"]) as stream:
        assert stream.end().data["code"] == "not_authenticated"


# -- what has happened -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(served: Served) -> list[Message]:
    """Some events of both projects, in order."""
    with listening(served, "admin") as stream:
        stream.position()
        for number in range(3):
            mine = submit(served)
            submit(served, "admin", projectId=served.made["other"])
            with served.client() as admin:
                assert admin.post(f"{TRAININGS}/{mine}/suspend").status_code == 202, number
        return stream.read(9)


def listed(served: Served, subject: str, **query: Any) -> list[str]:
    """Ids, page by page; each page is as full as it says."""
    ids: list[str] = []
    with served.client(subject) as client:
        while True:
            page = client.get(PUBLIC, params=query)
            assert page.status_code == 200, page.text
            body = page.json()
            ids += [row["event"]["id"] for row in body["events"]]
            if body["next"] is None:
                return ids
            query["before"] = body["next"]


def ids(told: list[Message]) -> list[str]:
    return [message.event_id for message in told]


def sequence(message: Message) -> int:
    return int(message.data["sequence"][:16])


def test_a_list_has_the_newest_first_with_names(served: Served, told: list[Message]) -> None:
    begin, end = sequence(told[0]), sequence(told[-1])
    query = {"from": begin, "to": end}
    assert listed(served, "admin", **query) == ids(told)[::-1]
    assert listed(served, "admin", limit=2, **query) == ids(told)[::-1]
    with served.client("admin") as admin:
        (row,) = admin.get(PUBLIC, params={"from": end, "to": end}).json()["events"]
    assert row["event"] == told[-1].data
    assert (row["projectName"], row["actor"]) == ("default", "admin")


def test_a_list_is_by_project_workload_type_and_actor_and_holds_what_one_may_read(
    served: Served, told: list[Message]
) -> None:
    query = {"from": sequence(told[0]), "to": sequence(told[-1])}
    mine = [message for message in told if served.project in message.data["source"]]
    assert listed(served, "alice", **query) == ids(mine)[::-1]
    assert listed(served, "admin", projectId=served.project, **query) == ids(mine)[::-1]
    assert listed(served, "admin", workloadId=mine[0].data["subject"], **query) == ids(mine[:2])[::-1]
    assert listed(served, "admin", type="WorkloadSubmitted", actor="alice", **query) == ids(mine[::2])[::-1]
    submitted = [message for message in told if message.data["type"] == "muster.WorkloadSubmitted.v1"]
    assert listed(served, "admin", type="Workload?ubm*", **query) == ids(submitted)[::-1]
    assert listed(served, "admin", type=["Node*", "WorkloadSub*"], **query) == ids(submitted)[::-1]
    assert listed(served, "admin", type="*", **query) == ids(told)[::-1]
    assert listed(served, "admin", actor="nobody", **query) == []
    with served.client("stranger") as stranger:
        assert stranger.get(PUBLIC, params={"projectId": served.project}).status_code == 404


def test_one_event_is_found_by_its_sequence(served: Served, told: list[Message]) -> None:
    path = f"{PUBLIC}/{sequence(told[0])}.0"
    with served.client("alice") as alice, served.client("stranger") as stranger:
        assert alice.get(path).json()["event"] == told[0].data
        assert alice.get(f"{PUBLIC}/{told[0].data['sequence']}").json()["event"] == told[0].data
        assert stranger.get(path).status_code == 404
        assert alice.get(f"{PUBLIC}/{sequence(told[0])}.77").status_code == 404
        for wrong in ("x", "4711", "1.x", "9" * 17 + ".0"):
            answer = alice.get(f"{PUBLIC}/{wrong}")
            assert (answer.status_code, answer.json()["complianceIssues"][0]["field"]) == (400, "sequence")


def test_an_export_is_a_cloudevent_a_line_oldest_first(served: Served, told: list[Message]) -> None:
    query = {"from": sequence(told[0]), "to": sequence(told[-2])}
    with served.client("admin") as admin, served.client("alice") as alice:
        answer = admin.get(f"{PUBLIC}/export", params=query)
        assert answer.headers["content-type"].startswith("application/jsonl")
        assert answer.headers["X-Events-Gone"] == "false"
        assert [json.loads(line) for line in answer.text.splitlines()] == [message.data for message in told[:-1]]
        everything = admin.get(f"{PUBLIC}/export").text.splitlines()
        assert len(everything) > len(told)
        mine = alice.get(f"{PUBLIC}/export", params=query).text.splitlines()
        assert [json.loads(line)["source"] for line in mine] == [f"/projects/{served.project}"] * 5
        wrong = admin.get(f"{PUBLIC}/export", params={"from": query["to"], "to": query["from"]})
        assert wrong.json()["complianceIssues"][0]["field"] == "to"


def test_who_is_far_behind_takes_what_is_shared_step_by_step(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "STEP_EVENTS", 2)
    with listening(served, projectId=served.project) as stream:
        begun = stream.position()
        workloads = [submit(served) for _ in range(5)]
        with listening(served, projectId=served.project, type="WorkloadSubmitted", lastEventId=begun) as again:
            assert [message.data["subject"] for message in again.read(5)] == workloads


def test_who_may_read_nothing_is_at_the_end_at_once(served: Served) -> None:
    with listening(served) as other, listening(served, "nobody", **{"from": "1"}) as stream:
        assert other.position() > stream.position()
        submit(served)
        other.one()
        submit(served)  # of this one it is certain that both hear it
        end = other.one().id
        stream.lines(lambda parser: parser.last_id >= end)
    with served.client("nobody") as client:
        assert client.get(PUBLIC).json() == {"events": [], "next": None, "gone": False}
        assert client.get(f"{PUBLIC}/export", params={"from": "1"}).text == ""


def test_a_list_that_finds_too_little_in_its_time_says_where_it_goes_on(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(served)
    with served.client("alice") as client:
        whole = client.get(PUBLIC, params={"type": "WorkloadSubmitted"}).json()["events"]
        monkeypatch.setattr(public_events, "SEARCH_SECONDS", 0)
        monkeypatch.setattr(public_events, "WINDOW", 2)
        found, page = list[Any](), client.get(PUBLIC, params={"type": "WorkloadSubmitted"}).json()
        pages = 1
        while page["next"] is not None:
            found += page["events"]
            page = client.get(PUBLIC, params={"type": "WorkloadSubmitted", "before": page["next"]}).json()
            pages += 1
    assert found + page["events"] == whole
    assert pages > 1
