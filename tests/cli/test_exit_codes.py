"""Every exit code of experience.md 1.4, from what the server says; and how an error is told."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from muster.cli.exits import EXIT_CODE_MEANING
from tests.support.shapes import WORKLOAD_ID, Reply, ShapeServer, workload_row

SUBMIT = ("training", "submit", "hello", "-i", "python:3.13", "--", "python", "x.py")
LATER = {"Retry-After": "60"}
"""More than the client waits for, so that it answers at once."""


def error(status: int, details: str = "", *issues: tuple[str, str]) -> Reply:
    found = [{"field": field, "details": told} for field, told in issues]
    return Reply(status, {"code": status, "message": f"said {status}", "details": details, "complianceIssues": found})


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (error(400, "", ("spec.image", "is required")), 6),
        (error(400, "name_taken", ("name", "is taken")), 5),
        (error(401, "not_authenticated"), 4),
        (error(403, "not_owner"), 4),
        (error(404, "not_found"), 3),
        (error(409, "idempotency_key_reused"), 5),
        (error(412, "version_moved"), 5),
        (error(413), 6),
        (Reply(429, {"code": 429, "message": "slow down"}, LATER), 9),
        (Reply(503, {"code": 503, "message": "away", "details": "outcome_unknown"}, LATER), 9),
        (error(500), 1),
        (Reply(502, text="<html>bad gateway</html>", headers=LATER), 9),
        (Reply(418, text="no json"), 1),
    ],
)
def test_the_server_s_answer_becomes_the_documented_exit_code(
    api: ShapeServer, muster: Any, reply: Reply, code: int
) -> None:
    api.on("POST", "/workloads/trainings", reply)
    ran = muster(*SUBMIT)
    assert ran.code == code
    assert ran.out == ""
    assert ran.err.startswith("muster: ")


def test_0_when_all_is_well(api: ShapeServer, muster: Any) -> None:
    ran = muster(*SUBMIT)
    assert ran.code == 0
    assert WORKLOAD_ID in ran.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-command",),
        ("workload", "lst"),
        ("workload", "list", "--no-such-flag"),
        ("workload", "list", "-o", "xml"),
        ("workload", "list", "--limit", "-1"),
        ("workload", "list", "--json", "--yaml"),
        ("workload", "list", "-A", "-p", "default"),
        ("training", "logs", "hello", "--attempt", "1", "--run", "0"),
        ("training", "submit"),
        ("training", "submit", "hello", "--name-prefix", "other"),
        ("training", "submit", "hello", "extra"),
        ("training", "submit", "hello", "-g", "one"),
        ("training", "submit", "hello", "-e", "NAME", "-e", "OTHER"),
        ("training", "submit", "hello", "--termination-grace-period", "soon"),
        ("training", "submit", "hello", "--timeout", "soon", "-i", "x", "--", "x"),
        ("training", "submit", "hello", "-f", "no-such-file.yaml"),
        ("training", "submit", "hello", "--dry-run=soon"),
        ("workload", "delete", "hello", "-y", "--idempotency-key", ""),
        ("training", "submit", "hello", "-i", "x", "--idempotency-key", "two words", "--", "x"),
        ("project", "create", "vision", "--idempotency-key", "x" * 256),
        ("training", "logs", "hello", "--since", "1m", "--since-time", "2026-01-01T00:00:00Z"),
        ("workload", "set", "hello"),
        ("cluster", "add", "demo"),
        ("cluster", "add", "demo", "--simulated", "8"),
        ("cluster", "set", "local", "--ownership-protection", "maybe"),
        ("token", "create", "--user", "ann", "--role", "king"),
        ("role", "grant", "ann", "king"),
        ("role", "grant", "ann", "administrator", "-p", "default"),
        ("role", "revoke", "ann", "viewer", "--everywhere", "-p", "default"),
        ("audit", "list", "--limit", "501"),
        ("audit", "list", "--since", "soon"),
        ("token", "create", "--user", "ann", "--role", "administrator", "--project", "p"),
        ("token", "create", "--user", "ann"),
        ("projections", "rebuild"),
        ("projections", "rebuild", "--until", "soon"),
        ("projections", "diff"),
        ("projections", "diff", "--limit", "0"),
        ("projections", "drop", "muster_until_4"),
        ("log", "verify"),
    ],
)
def test_2_where_the_command_line_is_wrong_and_nothing_is_sent(
    api: ShapeServer, muster: Any, arguments: tuple[str, ...]
) -> None:
    ran = muster(*arguments)
    assert ran.code == 2, ran.err
    assert ran.out == ""
    assert all(request.method == "GET" for request in api.requests)


def test_3_where_a_name_is_unknown(api: ShapeServer, muster: Any) -> None:
    api.on("GET", "/workloads", Reply(body={"workloads": [], "next": None}))
    assert muster("workload", "describe", "gone").code == 3
    for of_contexts in (("workload", "list", "--context", "nowhere"), ("context", "use", "nowhere")):
        ran = muster(*of_contexts)
        assert (ran.code, "there is no context 'nowhere'" in ran.err) == (3, True)
    assert muster("cluster", "describe", "locl").code == 3
    assert "did you mean 'local'?" in muster("cluster", "describe", "locl").err


def test_7_when_the_wait_runs_out(api: ShapeServer, muster: Any) -> None:
    ran = muster(*SUBMIT, "--wait")  # words after -- are the training's
    assert ran.code == 0
    ran = muster("training", "submit", "hello", "-i", "x", "--wait", "--timeout", "0s", "--", "x")
    assert ran.code == 7
    assert "still Running" in ran.err
    assert WORKLOAD_ID in ran.out


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (workload_row(phase="Completed"), 0),
        (workload_row(phase="Failed", phaseMessage="exit code 3"), 8),
        (workload_row(phase="Stopped"), 8),
        (workload_row(phase="Deleting"), 8),
    ],
)
def test_8_where_the_workload_that_was_waited_for_did_not_complete(
    api: ShapeServer, muster: Any, last: dict[str, Any], code: int
) -> None:
    api.on("GET", f"/workloads/{WORKLOAD_ID}", [Reply(body=workload_row()), Reply(body=last)])
    api.on("GET", f"/workloads/{WORKLOAD_ID}/history", Reply(body={"records": [], "next": None}))
    ran = muster("training", "submit", "hello", "-i", "x", "-w", "--", "x")
    assert ran.code == code
    assert last["phase"] in ran.err


def test_a_training_that_deleted_itself_after_it_completed_counts_as_completed(api: ShapeServer, muster: Any) -> None:
    api.on("GET", f"/workloads/{WORKLOAD_ID}", Reply(body=workload_row(phase="Deleting", version=9)))
    records = [{"type": "WorkloadCreated"}, {"type": "WorkloadCompleted"}, {"type": "WorkloadDeleted"}]
    api.on("GET", f"/workloads/{WORKLOAD_ID}/history", Reply(body={"records": records, "next": None}))
    assert muster("training", "submit", "hello", "-i", "x", "--wait", "--", "x").code == 0
    assert api.asked("GET", f"/workloads/{WORKLOAD_ID}/history")[0].query["min_seq"] == ["9"]


def test_9_where_nobody_listens_or_nobody_is_named(home: Any, muster: Any) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    ran = muster("workload", "list", "--url", url)
    assert ran.code == 9
    assert "muster up" in ran.err
    assert muster("workload", "list").code == 9


def test_130_when_interrupted(api: ShapeServer) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "muster.cli.main", "workload", "list", "-w", "-o", "jsonl"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ,
        text=True,
        # A shell starts what it puts into the background with SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (takes no lock)
    )
    assert process.stdout is not None
    assert "hello" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in told


def test_a_reader_that_has_had_enough_gets_no_complaint(api: ShapeServer) -> None:
    rows = [workload_row(id=str(number)) for number in range(500)]
    api.on("GET", "/workloads", Reply(body={"workloads": rows, "next": None}))
    process = subprocess.Popen(
        [sys.executable, "-m", "muster.cli.main", "workload", "list", "-o", "jsonl", "--limit", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 1


def test_every_code_is_documented_in_the_help(muster: Any) -> None:
    text = muster("--help").out
    for code, meaning in EXIT_CODE_MEANING.items():
        assert f"{int(code)}" in text
        assert meaning in text


def test_an_error_says_what_why_and_what_to_do_and_names_the_flag(api: ShapeServer, muster: Any) -> None:
    api.on(
        "POST",
        "/workloads/trainings",
        Reply(
            400,
            {"code": 400, "message": "2 things are wrong with the request"}
            | {
                "complianceIssues": [
                    {"field": "spec.parallelism", "details": "must be at most 2"},
                    {"field": "spec.labels[0].name", "details": "is required"},
                ]
            },
            {"X-Request-Id": "r-17"},
        ),
    )
    ran = muster(*SUBMIT)
    assert ran.err.splitlines() == [
        "muster: 2 things are wrong with the request",
        "  spec.parallelism (--parallelism): must be at most 2",
        "  spec.labels[0].name (--label): is required",
    ]
    assert "r-17" in muster("training", "submit", "hello", "-i", "x", "--debug", "--", "x").err


@pytest.mark.parametrize("message", ["spec.image: is required", "is required"])
def test_one_error_is_said_once(api: ShapeServer, muster: Any, message: str) -> None:
    issues = [{"field": "spec.image", "details": "is required"}]
    api.on("POST", "/workloads/trainings", Reply(400, {"code": 400, "message": message, "complianceIssues": issues}))
    assert muster(*SUBMIT).err.splitlines() == ["muster: spec.image (--image): is required"]


def test_a_server_that_answers_that_it_cannot_now_is_not_said_to_be_silent(api: ShapeServer, muster: Any) -> None:
    behind = Reply(503, {"code": 503, "message": "the tables are away"}, {"Retry-After": "0"})
    api.on("GET", "/clusters", [behind, Reply(body={"clusters": []})])
    said = muster("cluster", "list").err
    assert "the tables are away; trying again" in said
    assert "does not answer" not in said


def test_a_lost_answer_is_asked_for_again_with_the_same_key(api: ShapeServer, muster: Any) -> None:
    made = Reply(202, {"name": "hello", "workloadId": WORKLOAD_ID, "actualPhase": "Creating"})
    unknown = Reply(503, {"code": 503, "message": "unknown", "details": "outcome_unknown"}, {"Retry-After": "0"})
    api.on("POST", "/workloads/trainings", [Reply(hang_up=True), unknown, made])
    assert muster(*SUBMIT).code == 0
    keys = [request.headers["idempotency-key"] for request in api.asked("POST", "/workloads/trainings")]
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_an_outcome_that_stays_unknown_names_the_key_to_repeat_with(api: ShapeServer, muster: Any) -> None:
    api.on("POST", "/workloads/trainings", Reply(503, {"code": 503, "message": "unknown"}, LATER))
    ran = muster("training", "submit", "hello", "-i", "x", "--idempotency-key", "k-1", "--", "x")
    assert ran.code == 9
    assert "--idempotency-key k-1" in ran.err


@pytest.mark.parametrize(
    ("details", "todo"),
    [("too_many_workloads", "muster workload list -p"), ("too_many_requests", "wait a little and repeat")],
)
def test_a_refusal_at_a_limit_is_known_and_names_no_key_to_repeat_with(
    api: ShapeServer, muster: Any, details: str, todo: str
) -> None:
    body = {"code": 429, "message": "the project has 3 living workloads and may have 3", "details": details}
    api.on("POST", "/workloads/trainings", Reply(429, body, LATER))
    ran = muster(*SUBMIT)
    assert ran.code == 9
    assert todo in ran.err
    assert "--idempotency-key" not in ran.err


@pytest.mark.parametrize(
    ("field", "flag"),
    [
        ("filterBy", "--filter"),
        ("sortBy", "--sort"),
        ("metricType", "--type"),
        ("since", "--since"),
        ("tail", "--tail"),
        ("pod", "--pod"),
        ("run", "--run"),
        ("attempt", "--attempt"),
        ("labelKey", "--label"),
        ("labelValue", "--label"),
    ],
)
def test_a_parameter_that_is_refused_is_named_by_its_flag(api: ShapeServer, muster: Any, field: str, flag: str) -> None:
    issues = [{"field": field, "details": "will not do"}]
    wrong = {"code": 400, "message": f"{field}: will not do", "complianceIssues": issues}
    api.on("GET", "/workloads", Reply(400, wrong))
    assert muster("workload", "list").err.splitlines() == [f"muster: {field} ({flag}): will not do"]


def test_the_token_is_sent_and_never_shown(api: ShapeServer, muster: Any) -> None:
    ran = muster("workload", "list", "--debug")
    assert api.requests[-1].headers["authorization"] == "Bearer secret-token"
    assert "secret-token" not in ran.out + ran.err


def test_no_time_is_spent_on_a_server_that_asks_for_too_long(
    api: ShapeServer, muster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.on("GET", "/clusters", Reply(503, {"code": 503, "message": "away"}, LATER))
    slept = list[float]()
    monkeypatch.setattr(time, "sleep", slept.append)
    assert muster("cluster", "list").code == 9
    assert len(api.asked("GET", "/clusters")) == 1
    assert sum(slept) < 60


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: hello\nspec:\n  image: [a\n", "line 4, column 1: "),
        ("name: a: b\n", "line 1, column 8: mapping values are not allowed here"),
        ("name: \x07\n", "special characters are not allowed"),
    ],
)
def test_a_file_that_is_no_yaml_is_told_by_line_and_column(
    api: ShapeServer, muster: Any, tmp_path: Path, text: str, told: str
) -> None:
    file = tmp_path / "training.yaml"
    file.write_text(text)
    ran = muster("training", "submit", "-f", str(file))
    assert ran.code == 2
    assert told in ran.err
    assert "\\n" not in ran.err
    assert len(ran.err.splitlines()) == 1


SUBMIT_ELSEWHERE = ("training", "submit", "hello", "-i", "x", "-p", "default", "--cluster", "local", "--", "x")


@pytest.mark.parametrize("arguments", [SUBMIT_ELSEWHERE, ("workload", "list"), ("project", "create", "vision")])
@pytest.mark.parametrize(
    "reply",
    [
        Reply(503, {"code": 503, "message": "commands are not taken now", "details": "gate_away"}, LATER),
        Reply(502, text="<html>bad gateway</html>", headers=LATER),
        Reply(hang_up=True),
    ],
    ids=["gate away", "behind a proxy", "cut off"],
)
def test_a_server_that_is_away_or_starting_again_is_named_with_what_to_do(
    api: ShapeServer, muster: Any, arguments: tuple[str, ...], reply: Reply
) -> None:
    for method, path in (("POST", "/workloads/trainings"), ("GET", "/workloads"), ("POST", "/org-unit/projects")):
        api.on(method, path, reply)
    ran = muster(*arguments)
    assert (ran.code, ran.out) == (9, "")
    assert api.url in ran.err
    assert "\n  → " in ran.err
    assert ("--idempotency-key" in ran.err) == (arguments[1] != "list"), "a change is repeated safely"


def test_something_else_that_answers_at_the_url_is_no_muster(api: ShapeServer, muster: Any) -> None:
    for reply in (Reply(text="<html>hello</html>"), Reply(302, text="", headers={"Location": "/login"})):
        api.on("GET", "/workloads", reply)
        ran = muster("workload", "list")
        assert (ran.code, ran.out) == (9, "")
        assert f"what answers at {api.url} is no Muster" in ran.err
        assert "muster context list" in ran.err
