"""Ways into pods over HTTP: what is refused by name before a WebSocket is agreed on; then nothing is logged."""

import asyncio
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from events.channels import SUBPROTOCOL
from events.cluster_protocol import SessionEnd
from services.api.ways import said_end
from tests.support.api import Served

V1 = "/api/v1"


def refused(served: Served, path: str, subject: str | None = "alice", *offered: str) -> tuple[int, dict[str, Any]]:
    """Status and body of what answers an attempt to open a WebSocket there."""

    async def attempt() -> tuple[int, dict[str, Any]]:
        headers = {} if subject is None else {"Authorization": f"Bearer {served.token(subject)}"}
        url = f"{served.url.replace('http', 'ws', 1)}{V1}{path}"
        with pytest.raises(InvalidStatus) as told:
            async with connect(
                url,
                additional_headers=headers,
                subprotocols=list(offered or (SUBPROTOCOL,)),  # pyright: ignore[reportArgumentType]
                proxy=None,
            ):
                pass
        response = told.value.response
        assert "X-Request-Id" in response.headers
        return response.status_code, msgspec.json.decode(response.body or b"{}")

    return asyncio.run(attempt())


@pytest.fixture(scope="module")
def workload(served: Served) -> str:
    """One that waits: no node was ever seen."""
    with served.client("alice") as alice:
        return alice.post(f"{V1}/workloads/trainings", json=served.training()).json()["workloadId"]


def test_without_an_upgrade_the_path_says_that_it_is_a_websocket(served: Served, workload: str) -> None:
    with served.client("alice") as alice:
        answer = alice.get(f"{V1}/workloads/{workload}/exec", params={"command": "ls"})
        assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")
        assert SUBPROTOCOL in answer.json()["message"]
    assert f"{V1}/workloads/{{workloadId}}/exec" not in served.page("/openapi.json").json()["paths"]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("exec", "command"),
        ("exec?command=", "command"),
        ("exec?command=ls&tty=true", "needs stdin"),
        ("exec?command=ls&container=other", "container"),
        ("exec?command=ls&pod=main-7", "its pods are main-0"),
        ("exec?command=ls&columns=0x", "columns"),
        ("exec?" + "&".join(["command=x"] * 65), "at most 64 words"),
        (f"exec?command={'x' * 4097}", "at most 64 words"),
        ("exec?command=AKIAABCDEFGHIJKLMNOP", "AWS access key"),
        ("exec?command=ls&nothing=1", "is no query parameter"),
        ("port-forward", "port"),
        ("port-forward?port=0", "port"),
        ("port-forward?port=70000", "port"),
        ("port-forward?port=1%00", "NUL"),
        ("attach?command=ls", "is no query parameter"),
    ],
)
def test_what_is_wrong_with_the_request_is_said_by_its_field(
    served: Served, workload: str, query: str, says: str
) -> None:
    status, body = refused(served, f"/workloads/{workload}/{query}")
    assert (status, says in msgspec.json.encode(body).decode()) == (400, True), body


def test_nobody_gets_in_without_a_token_a_role_or_a_pod_that_runs(served: Served, workload: str) -> None:
    path = f"/workloads/{workload}/exec?command=ls"
    assert refused(served, path, None)[0] == 401
    assert refused(served, path, "vic")[0] == 403
    assert refused(served, path, "stranger")[0] == 404
    assert refused(served, f"/workloads/{uuid4()}/exec?command=ls")[0] == 404
    assert refused(served, "/workloads")[0] == 404
    status, body = refused(served, path, "alice", "another.protocol")
    assert (status, SUBPROTOCOL in body["message"]) == (400, True)
    status, body = refused(served, path)
    assert (status, body["details"]) == (409, "pod_not_running")
    with served.client("alice") as alice:
        events = alice.get(f"{V1}/workloads/{workload}/history").json()["records"]
    assert all(not one["type"].startswith("Session") for one in events)


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        (SessionEnd(reason="ended", exit_code=3), ("ended", 3)),
        (SessionEnd(reason="", exit_code=0), ("ended", 0)),
        (SessionEnd(reason="x" * 900_000), ("failed", None)),
        (SessionEnd(reason="<b>", exit_code=2**63), ("failed", None)),
        (SessionEnd(reason="ended", exit_code=-1), ("ended", None)),
    ],
)
def test_of_what_an_agent_says_of_an_end_no_more_is_kept_than_an_end_has(
    told: SessionEnd, kept: tuple[str, int | None]
) -> None:
    end = said_end(told)
    assert (end.reason, end.exit_code) == kept
