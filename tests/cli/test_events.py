"""`muster events`: what the API tells of public events, as tables and lines, and across a server that restarts."""

import json
from typing import Any

import pytest

from muster.cli.event_messages import messages
from tests.support.shapes import WORKLOAD_ID, Reply, Request, ShapeServer

AWAY = Reply(hang_up=True)


def event(seq: int, kind: str = "WorkloadSubmitted", **data: Any) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": f"c{seq}.0.{kind}",
        "source": "/projects/p-1",
        "type": f"muster.{kind}.v1",
        "subject": WORKLOAD_ID,
        "time": "2026-01-02T03:04:05Z",
        "sequence": f"{seq:016d}.000000",
        "data": {"name": "hello", "actor": {"id": "a-1", "kind": "user"}, **data},
    }


def row(seq: int, **data: Any) -> dict[str, Any]:
    return {"event": event(seq, **data), "projectName": "default", "actor": "ann"}


def block(seq: int) -> str:
    return f"id: {seq:016d}.000000-aaaaaaaa\ndata: {json.dumps(event(seq))}\n\n"


def named(name: str, code: str, message: str) -> str:
    return f"event: {name}\ndata: {json.dumps({'code': code, 'message': message})}\n\n"


BEGIN = "retry: 2000\nid: 0000000000000009.999999-bbbbbbbb\n\n"


def test_a_list_has_filters_names_and_pages(api: ShapeServer, muster: Any) -> None:
    def page(request: Request) -> Reply:
        before = request.query.get("before", ["9"])[0]
        newest = int(before.partition(".")[0]) - 1
        rows = [row(seq, phase="Failed", reason="exit_code") for seq in range(newest, max(newest - 2, 2), -1)]
        following = rows[-1]["event"]["sequence"] if newest - 2 > 2 else None
        return Reply(body={"events": rows, "next": following, "gone": following is None})

    api.on("GET", "/events/public", page)
    ran = muster("events", "list", "--limit", "2")
    assert "WorkloadSubmitted" in ran.out
    assert "Failed: exit_code" in ran.out
    assert [line.split()[0] for line in ran.out.splitlines()] == ["SEQUENCE", "8.0", "7.0"]
    assert "--before 7.0" in ran.err
    ran = muster("events", "list", "--limit", "0", "-o", "jsonl")
    assert [int(json.loads(line)["event"]["sequence"][:16]) for line in ran.out.splitlines()] == [8, 7, 6, 5, 4, 3]
    assert "older events are no longer kept" in muster("events", "list", "--limit", "0").err
    muster(
        *("events", "list", "-p", "default", "--workload", "hello", "--type", "PodStarted", "--type", "PodEnded"),
        *("--actor", "ann", "--from", "4711", "--to", "2026-01-02T03:04:05Z", "--before", "4.1"),
    )
    asked = api.asked("GET", "/events/public")[-1].query
    assert {name: asked[name] for name in asked if name != "limit"} == {
        "projectId": ["p-1"],
        "workloadId": [WORKLOAD_ID],
        "type": ["PodStarted", "PodEnded"],
        "actor": ["ann"],
        "from": ["4711"],
        "to": ["2026-01-02T03:04:05Z"],
        "before": ["4.1"],
    }
    assert muster("events", "list", "--limit", "2", "-o", "name").out.split() == [
        f"{seq:016d}.000000" for seq in (8, 7)
    ]
    muster("events", "list", "--since", "2h")
    assert api.asked("GET", "/events/public")[-1].query["since"][0].endswith("Z")


def test_one_is_shown_by_its_sequence(api: ShapeServer, muster: Any) -> None:
    api.on("GET", "/events/public/4711.0", Reply(body=row(4711)))
    ran = muster("events", "get", "4711.0")
    assert "WorkloadSubmitted" in ran.out
    assert "4711.0" in ran.out
    assert muster("events", "get", "4711.0", "-o", "json").json()["event"]["id"] == "c4711.0.WorkloadSubmitted"
    for wrong in ("../me", "x", "4711.0/..", ""):
        assert muster("events", "get", wrong).code == 2


def test_an_export_is_passed_on_as_it_comes_and_one_that_breaks_off_is_no_success(
    api: ShapeServer, muster: Any
) -> None:
    lines = "".join(json.dumps(event(seq)) + "\n" for seq in range(3))
    api.on("GET", "/events/public/export", Reply(text=lines, headers={"X-Events-Gone": "true"}))
    ran = muster("events", "export", "--from", "1", "--to", "1d")
    assert (ran.code, ran.out) == (0, lines)
    assert "older events are no longer kept" in ran.err
    assert set(api.asked("GET", "/events/public/export")[-1].query) == {"from", "to"}
    api.on("GET", "/events/public/export", Reply(text=lines[:200], broken_off=True))
    assert muster("events", "export").code == 9


def test_a_tail_goes_on_behind_the_last_id_that_it_was_told(api: ShapeServer, muster: Any) -> None:
    """Also behind one without an event, and across a server that stops, one that is away, and a line that breaks."""
    streams = iter(
        [
            Reply(text=BEGIN, broken_off=True),
            Reply(text=block(10) + named("end", "stopping", "this server is stopping")),
            Reply(text=block(11) + block(12)[:40], broken_off=True),
            Reply(
                text=named("gap", "gap", "some events are no longer kept")
                + block(12)
                + ": heartbeat\nid: 0000000000000014.000000-cccccccc\n\n"
                + named("unheard", "of", "what later versions say")
            ),
            Reply(text=named("end", "not_in_project", "you have no role in this project")),
        ]
    )
    me = iter([Reply(body={}), AWAY, Reply(body={}), Reply(body={}), Reply(body={})])
    api.on("GET", "/events/stream", lambda _: next(streams))
    api.on("GET", "/me", lambda _: next(me))
    ran = muster("events", "tail", "-p", "default", "--from", "7", "-o", "jsonl")
    assert ran.code == 4
    assert [int(json.loads(line)["event"]["sequence"][:16]) for line in ran.out.splitlines()] == [10, 11, 12]
    asked = [request.query for request in api.asked("GET", "/events/stream")]
    assert asked[0] == {"projectId": ["p-1"], "from": ["7"]}
    assert [int(query["lastEventId"][0][:16]) for query in asked[1:]] == [9, 10, 11, 14]
    assert all(set(query) == {"projectId", "lastEventId"} for query in asked[1:])
    assert "answers again" in ran.err
    assert "some events are no longer kept" in ran.err
    assert "you have no role in this project" in ran.err


def test_a_tail_has_one_heading_and_names_services_as_a_list_does(api: ShapeServer, muster: Any) -> None:
    by_service = event(11, actor={"id": "muster.scheduler", "kind": "service"})
    text = block(10) + f"data: {json.dumps(by_service)}\n\n" + named("end", "not_permitted", "no more")
    api.on("GET", "/events/stream", Reply(text=text))
    for style in ("csv", "wide"):
        ran = muster("events", "tail", "--columns", "SEQUENCE,WHO", "-o", style)
        heading, *rows = ran.out.splitlines()
        assert len(rows) == 2, style
        assert all(heading not in one for one in rows), style
        assert rows[1].replace(",", " ").split()[1] == "scheduler"


@pytest.mark.parametrize("text", [BEGIN + block(10), (BEGIN + block(10)).replace("\n", "\r\n")])
def test_blocks_are_read_as_the_standard_has_it(text: str) -> None:
    first, second = messages(text.splitlines())
    assert (first.data, first.id) == (None, "0000000000000009.999999-bbbbbbbb")
    assert (second.name, second.data, second.id) == ("", event(10), "0000000000000010.000000-aaaaaaaa")
