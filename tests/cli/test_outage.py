"""Commands that wait outlive a server that is away for a while, and go on from where they were (issue 11, item 4)."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.cli import outage
from muster.cli.client import Api
from muster.cli.exits import ExitCode, Problem
from muster.cli.http import TransportError
from muster.cli.log_position import LogPosition
from muster.cli.outage import Patience
from muster.cli.output import Output, Style
from tests.support.shapes import WORKLOAD_ID, Reply, Request, Route, ShapeServer, workload_row

AWAY = Reply(hang_up=True)
RESTARTING = Reply(503, {"code": 503, "message": "the log is away"})
RUNNING = Reply(body=workload_row())
DONE = Reply(body=workload_row(phase="Completed"))
LOGS = f"/workloads/{WORKLOAD_ID}/logs"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits in a test for longer than they must."""
    monkeypatch.setattr(outage, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(outage, "LONGEST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr("muster.cli.watch.REFRESH_SECONDS", 0.01)
    monkeypatch.setattr("muster.cli.watch.POLL_SECONDS", 0.01)


def told_of_it(err: str) -> list[str]:
    return [line for line in err.splitlines() if "asking again" in line or "answers again" in line]


@pytest.mark.parametrize("outage_", [[AWAY] * 9, [RESTARTING] * 9, [AWAY, RESTARTING, RESTARTING, AWAY]])
def test_waiting_for_a_workload_outlives_a_restart_and_says_so_once(
    api: ShapeServer, muster: Any, outage_: list[Reply]
) -> None:
    api.on("GET", f"/workloads/{WORKLOAD_ID}", [RUNNING, *outage_, RUNNING, DONE])
    ran = muster("training", "submit", "hello", "-i", "a", "-p", "default", "--wait")
    assert ran.code == 0, ran.err
    lost, back = told_of_it(ran.err)
    assert lost.endswith("; asking again for up to 2m")
    assert back.startswith(f"Muster at {api.url} answers again after ")


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [(RUNNING, 7, "hello is still Running after 1s"), (AWAY, 9, "cannot reach Muster"), (RESTARTING, 9, "log is away")],
)
def test_a_wait_ends_at_its_timeout_with_7_where_the_server_is_there_and_9_where_it_is_not(
    api: ShapeServer, muster: Any, end: Reply, code: int, said: str
) -> None:
    api.on("GET", f"/workloads/{WORKLOAD_ID}", [RUNNING, end])
    ran = muster("training", "submit", "hello", "-i", "a", "-p", "default", "--wait", "--timeout", "1s")
    assert (ran.code, said in ran.err) == (code, True), ran.err


def test_without_a_timeout_an_outage_that_does_not_end_does(
    api: ShapeServer, muster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage.Patience.__init__, "__kwdefaults__", {"timeout_seconds": None, "patience_seconds": 0.2})
    api.on("GET", f"/workloads/{WORKLOAD_ID}", [RUNNING, AWAY])
    ran = muster("training", "submit", "hello", "-i", "a", "-p", "default", "--wait")
    assert ran.code == 9
    assert "it was away for" in ran.err


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_is_no_outage(api: ShapeServer, muster: Any, status: int) -> None:
    refused = Reply(status, {"code": status, "message": "no"})
    api.on("GET", f"/workloads/{WORKLOAD_ID}", [RUNNING, refused])
    ran = muster("training", "submit", "hello", "-i", "a", "-p", "default", "--wait")
    assert (ran.code, told_of_it(ran.err)) == ({401: 4, 403: 4, 404: 3}[status], [])


def test_each_outage_is_told_once_and_pauses_grow_with_chance_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("muster.cli.outage.time.sleep", slept.append)
    api = Api("http://127.0.0.1:1", "")
    patience = Patience(api, Output(Style(quiet=True)))
    for _ in range(6):
        patience.lost(Problem("away", code=ExitCode.UNREACHABLE))
    patience.back()
    patience.lost(Problem("away", code=ExitCode.UNREACHABLE))
    bounds = [0.01, 0.02, 0.04, 0.05, 0.05, 0.05, 0.01]
    assert all(bound / 2 <= pause <= bound for pause, bound in zip(slept, bounds, strict=True)), slept


def listed(*rows: dict[str, Any]) -> Reply:
    return Reply(body={"workloads": list(rows), "next": None})


def watched(api: ShapeServer, muster: Any, answers: list[Route], *more: str) -> Any:
    """`list -w` of these answers, one after the other; then it is refused, which ends it."""
    api.on("GET", "/workloads", [*answers, Reply(403, {"code": 403, "message": "enough"})])  # type: ignore[list-item]
    ran = muster("workload", "list", "-A", "-w", *more)
    assert ran.code == 4, ran.err
    return ran


def test_a_watched_list_in_a_pipe_prints_a_row_when_something_but_a_clock_changed(
    api: ShapeServer, muster: Any
) -> None:
    row = workload_row(totalRunningTimeSeconds=1.0, totalPendingTimeSeconds=0.5, version=1)
    later = {**row, "totalRunningTimeSeconds": 3.0}
    ended = {**later, "phase": "Completed", "version": 2}
    answers: list[Route] = [listed(row), listed(later), AWAY, listed(later), listed(ended), listed(ended)]
    for style in ((), ("-o", "wide"), ("-o", "jsonl"), ("-o", "csv", "--columns", "name,phase")):
        ran = watched(api, muster, list(answers), *style)
        lines = [line for line in ran.out.splitlines() if "hello" in line]
        assert ["Completed" in line for line in lines] == [False, True], (style, ran.out)
        assert len(told_of_it(ran.err)) == 2


def test_what_is_deleted_is_printed_once_and_what_only_left_the_list_is_not(api: ShapeServer, muster: Any) -> None:
    row, other = workload_row(), workload_row(id="other", name="other")
    gone = {**row, "deletedAt": "2026-01-03T00:00:00Z", "phase": "Deleting"}
    api.on("GET", f"/workloads/{WORKLOAD_ID}", Reply(body={**gone, "spec": {}}))
    api.on("GET", "/workloads/other", Reply(body=other))
    answers: list[Route] = [listed(row, other), listed(other), listed(), listed(), listed(other)]
    lines = watched(api, muster, answers, "--no-headers").out.splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["hello", "Training", "default", "Running"],
        ["other", "Training", "default", "Running"],
        ["hello", "Training", "default", "Deleted"],
        ["other", "Training", "default", "Running"],
    ]


def test_a_watched_list_of_pods_tells_the_runs_of_one_pod_apart(api: ShapeServer, muster: Any) -> None:
    pods = [
        {"name": "main-0", "attempt": 1, "run": run, "phase": phase} for run, phase in ((1, "Failed"), (2, "Bound"))
    ]
    after = [pods[0], {**pods[1], "phase": "Running"}]
    enough = Reply(403, {"code": 403, "message": "enough"})
    api.on(
        "GET", f"/workloads/{WORKLOAD_ID}/pods", [*(Reply(body={"pods": each}) for each in (pods, pods, after)), enough]
    )
    lines = muster("workload", "pods", "hello", "-w", "--no-headers").out.splitlines()
    assert [line.split()[:2] for line in lines] == [["main-0", "Failed"], ["main-0", "Bound"], ["main-0", "Running"]]


@pytest.mark.parametrize(
    "command", [("workload", "list"), ("workload", "history", "hello"), ("workload", "pods", "hello")]
)
def test_a_watch_ends_at_its_timeout_with_7_and_without_watch_there_is_none(
    api: ShapeServer, muster: Any, command: tuple[str, ...]
) -> None:
    api.on("GET", f"/workloads/{WORKLOAD_ID}/history", Reply(body={"records": [], "next": None}))
    api.on("GET", f"/workloads/{WORKLOAD_ID}/pods", Reply(body={"pods": []}))
    ran = muster(*command, "-w", "--timeout", "1s")
    assert (ran.code, "watched for 1s" in ran.err) == (7, True)
    assert muster(*command, "--timeout", "1s").code == 2


def test_a_tail_of_the_log_goes_on_from_the_sequence_it_had(api: ShapeServer, muster: Any) -> None:
    def events(request: Request) -> Reply:
        if "follow" not in request.query:
            return next(reads)
        after = int(request.query["after"][0])
        return next(streams)(after)

    def told(upto: int, *, broken_off: bool) -> Callable[[int], Reply]:
        def reply(after: int) -> Reply:
            text = "".join(f'{{"sequence": {n}, "events": []}}\n' for n in range(after + 1, upto + 1))
            return Reply(text=text, broken_off=broken_off)

        return reply

    reads = iter([RESTARTING, RESTARTING, Reply(body={"events": []}), AWAY, Reply(body={"events": []})])
    denied: Callable[[int], Reply] = lambda _after: Reply(403, {"code": 403, "message": "enough"})  # noqa: E731
    streams = iter([told(3, broken_off=True), told(5, broken_off=False), denied])
    api.on("GET", "/events", events)
    ran = muster("log", "tail", "--after", "0", "-o", "jsonl")
    assert ran.code == 4
    assert [line.split(",")[0] for line in ran.out.splitlines()] == [f'{{"sequence": {n}' for n in range(1, 6)]
    assert len(told_of_it(ran.err)) == 4, ran.err


LINES = [
    f"2026-01-02T03:04:{second:02}.{part}Z line {n}\n" for n, (second, part) in enumerate([(5, 1), (5, 1), (6, 25)])
]


def test_followed_logs_go_on_after_their_last_line_where_the_connection_broke(api: ShapeServer, muster: Any) -> None:
    half = "".join(LINES[:2]) + LINES[2][:30]
    # Of the time of the last line all comes again.
    rest = "".join(LINES)
    cut = "muster x: this ends here (stalled): what was sent was not read for too long\n"
    marked = {"X-Cut-Mark": "muster x: this ends here"}
    replies = {
        None: iter([Reply(text=half, broken_off=True), Reply(text=rest + cut, headers=marked), Reply(text=rest)]),
        "0": iter([RESTARTING, Reply(text=""), Reply(text="")]),
    }
    api.on("GET", LOGS, lambda request: next(replies[request.query.get("tail", [None])[0]]))
    ran = muster("training", "logs", "hello", "-f")
    assert (ran.code, ran.out) == (0, "line 0\nline 1\nline 2\n"), ran.err
    assert len(told_of_it(ran.err)) == 2
    asked = [one.query for one in api.asked("GET", LOGS) if "tail" not in one.query]
    assert [one.get("since") for one in asked] == [None, ["2026-01-02T03:04:05.1Z"], ["2026-01-02T03:04:06.25Z"]]


written = st.lists(st.tuples(st.sampled_from(["", "main-0", "main-1"]), st.integers(0, 3)), max_size=30)
"""Which pod wrote, and how much later than the line before."""


@given(written, st.lists(st.integers(0, 400), max_size=6), st.booleans())
def test_wherever_followed_logs_break_every_line_is_printed_once_and_in_its_pods_order(
    steps: list[tuple[str, int]], breaks: list[int], several: bool
) -> None:
    moment, lines = datetime(2026, 1, 1, tzinfo=UTC), list[tuple[str, datetime, str]]()
    for number, (pod, later) in enumerate(steps):
        moment += timedelta(milliseconds=250 * later)
        lines.append((pod or "main-2" if several else "", moment, f"line {number}"))

    def told(since: str | None) -> str:
        start = datetime.fromisoformat(since) if since else datetime.min.replace(tzinfo=UTC)
        return "".join(
            f"{pod + ': ' if pod else ''}{at.isoformat().replace('+00:00', 'Z')} {text}\n"
            for pod, at, text in lines
            if at >= start
        )

    def pieces(text: str, upto: int | None) -> Iterator[str]:
        yield from (text[at : at + 7] for at in range(0, len(text[:upto]), 7))
        if upto is not None:
            raise TransportError(ConnectionError("cut"), sent=True)

    position, printed = LogPosition([("follow", "true")]), ""
    for upto in (*breaks, None):
        since = dict(position.parameters()).get("since")
        try:
            for text in position.news(pieces(told(str(since) if since else None), upto)):
                printed += text
        except TransportError:
            continue
    expected = "".join(f"{pod + ': ' if pod else ''}{text}\n" for pod, _, text in lines)
    assert sorted(printed.splitlines()) == sorted(expected.splitlines())
    for pod in {pod for pod, _, _ in lines}:
        own = [
            int(line.rsplit(" ", 1)[1]) for line in printed.splitlines() if line.startswith(f"{pod}: " if pod else "")
        ]
        assert all(before < after for before, after in pairwise(own))


def test_how_long_ago_stays_the_same_moment_and_a_tail_is_of_the_first_connection_only() -> None:
    position = LogPosition([("follow", "true"), ("since", "90s"), ("tail", 5)])
    assert ("since", "90s") in position.parameters()
    list(islice(position.news([*(f"main-0: {line}" for line in LINES)]), 4))
    names = dict(position.parameters())
    assert "tail" not in names
    since = datetime.fromisoformat(str(names["since"]))
    assert timedelta(seconds=85) < datetime.now(UTC) - since < timedelta(seconds=120)


def test_acts_on_many_that_are_cut_short_say_what_was_done(
    api: ShapeServer, muster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.cli.client.RETRY_WAITS_SECONDS", ())
    rows = [workload_row(id=f"{number:08x}{WORKLOAD_ID[8:]}", name=f"w{number}") for number in range(250)]
    api.on("GET", "/workloads", Reply(body={"workloads": rows, "next": None}))
    done = Reply(202, {"items": [{"id": row["id"], "code": 202, "changed": True} for row in rows[:100]]})
    api.on("POST", "/workloads/batch", [done, Reply(503, {"code": 503, "message": "the log is away"})])
    ran = muster("workload", "delete", "--all", "-p", "default", "-y", "-o", "json")
    assert ran.code == 9, ran.err
    found = [row["result"] for row in ran.json()]
    assert found == ["deleting"] * 100 + ["unknown"] * 100 + ["not asked"] * 50
    assert "the same command again does what is left" in ran.err
