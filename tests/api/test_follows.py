"""Streams that stay open: for whom, how many, how long, and what they say when they are ended."""

import contextlib
import json
import time
from collections.abc import Generator, Iterator

import httpx
import pytest
from prometheus_client import REGISTRY

from development.servers import NatsServer, PostgresServer
from tests.api.test_limits import asking, everything
from tests.support.api import Served, serving

V1 = "/api/v1"
TRAININGS = f"{V1}/workloads/trainings"
RULES = f"{V1}/authorization/access-rules"
FOLLOWS = 3
PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def served(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    limits = {"follows_per_user": FOLLOWS, "http_max_stalled_seconds": 2}
    with serving(nats_server, postgres_server, tmp_path_factory.mktemp("api"), **limits) as running:
        yield running


@contextlib.contextmanager
def following(served: Served, path: str, subject: str, token: str | None = None) -> Generator[httpx.Response]:
    headers = {"Authorization": f"Bearer {token or served.token(subject)}"}
    with (
        served.client(None, timeout=PATIENCE_SECONDS) as client,
        client.stream("GET", f"{V1}{path}", params={"follow": "true"}, headers=headers) as response,
    ):
        yield response


def logs_of(served: Served) -> str:
    """Of a workload that waits: its logs have no line, and no end."""
    with served.client("alice") as alice:
        made = alice.post(TRAININGS, json=served.training())
    return f"/workloads/{made.json()['workloadId']}/logs"


def last_line(response: httpx.Response) -> str:
    """Once the stream has ended, which an open one never does by itself."""
    try:
        return list(response.iter_lines())[-1]
    except httpx.ReadTimeout:
        raise AssertionError(f"it is still open {PATIENCE_SECONDS} s later") from None


def test_revoking_the_role_ends_logs_that_are_open_and_says_why(served: Served) -> None:
    rule = {"subjectId": "mallory", "roleName": "viewer", "scopeType": "project", "scopeId": served.project}
    with served.client() as admin:
        assert admin.post(RULES, json=rule).status_code == 202
        with following(served, logs_of(served), "mallory") as response:
            assert response.status_code == 200
            assert admin.delete(RULES, params=rule).status_code == 202
            end = last_line(response)
    assert end.endswith(
        ": this ends here (not_in_project): you have no role in this project; ask one of its administrators"
    )


def test_revoking_the_role_ends_the_log_of_events_that_is_open(served: Served) -> None:
    rule = {"subjectId": "auditor", "roleName": "administrator", "scopeType": "tenant"}
    with served.client() as admin:
        assert admin.post(RULES, json=rule).status_code == 202
        with following(served, "/events", "auditor") as response:
            assert response.status_code == 200
            assert admin.delete(RULES, params=rule).status_code == 202
            end = json.loads(last_line(response))
    assert end["end"] == "not_permitted"
    assert "you have no role here that lets you read the log and the audit" in end["message"]


def test_a_token_that_expires_ends_what_was_opened_with_it(served: Served) -> None:
    token = served.token("alice", ttl_seconds=2)
    with following(served, logs_of(served), "alice", token) as response:
        assert response.status_code == 200
        assert last_line(response).endswith("(not_authenticated): the token has expired; get a new one")


def test_one_user_may_have_so_many_open_and_another_is_not_touched(served: Served) -> None:
    path = logs_of(served)
    with contextlib.ExitStack() as opened:
        first = opened.enter_context(contextlib.ExitStack())
        statuses = [first.enter_context(following(served, path, "bob")).status_code]
        statuses += [opened.enter_context(following(served, path, "bob")).status_code for _ in range(FOLLOWS - 1)]
        refused = opened.enter_context(following(served, path, "bob"))
        body = json.loads(refused.read())
        other = opened.enter_context(following(served, path, "vic")).status_code
        first.close()
        assert _until_accepted(served, path) == 200, "a place that was given back is free"
    assert (statuses, refused.status_code, other) == ([200] * FOLLOWS, 429, 200)
    assert body["details"] == "too_many_streams"
    assert f"{FOLLOWS} follows of yours are open, and you may have {FOLLOWS}" in body["message"]


def _until_accepted(served: Served, path: str) -> int:
    for _ in range(100):
        with following(served, path, "bob") as response:
            if response.status_code != 429:
                return response.status_code
        time.sleep(0.05)
    return 429


def test_a_reader_that_stands_still_is_cut_with_the_reason_as_its_last_line(served: Served) -> None:
    variables = [{"name": f"V{number}", "value": "x" * 9_000} for number in range(50)]
    with served.client("alice") as alice:
        for _ in range(45):  # 20 MB: far more than the kernel keeps for it
            assert alice.post(TRAININGS, json=served.training(spec={"environmentVariables": variables})).is_success
    before = _cut()
    with asking(served, f"{V1}/events?follow=true", "admin") as unread:
        for _ in range(300):
            if _cut() > before:
                break
            time.sleep(0.1)
        text = everything(unread)
    assert text.endswith(b"\r\n0\r\n\r\n"), "the stream is whole up to its end"
    last = text.removesuffix(b"\r\n0\r\n\r\n").splitlines()[-1]
    reason = "what was sent was not read for too long; ask again, from where you are"
    assert json.loads(last) == {"end": "stalled", "message": reason}
    assert len(text) < 19_000_000


def _cut() -> float:
    return REGISTRY.get_sample_value("muster_api_connections_cut_total", {"why": "stalled_reader"}) or 0.0
