"""Answers against the log: each seeded lie is found, and answers as they should be are passed."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from development.checker.calls import Call, check_calls
from development.checker.story import BEGIN, KEY, Story

T0 = BEGIN.timestamp()
ID = "01900000-0000-8000-8000-000000000001"
NAME = f"name-of-{KEY}"
PATH = f"/workloads/trainings/{ID}"
MADE = {"workloadId": ID, "name": NAME, "actualPhase": "Creating", "desiredPhase": "Running", "deletedAt": None}


def log() -> Story:
    """Made at 1, suspended and stopped at 2, resumed at 3; each by a request of that number."""
    story = Story()
    story.created(id_=ID)
    story.later(2).says(("WorkloadSuspended", {}), ("WorkloadStopped", {"at": story.text()}), by="user")
    story.later(2).says(("WorkloadResumed", {"attempt": 2}), by="user")
    return story


def answered(seq: int, at: float, method: str, path: str, status: int = 202, **more: Any) -> Call:
    """Asked at second `at`, answered half a second later."""
    headers = {"x-log-sequence": str(seq), "x-version": str(seq)} if status in {200, 202} else {}
    given: dict[str, Any] = {"user": "alice", "request_id": f"r{seq}", "headers": headers, **more}
    return Call(method=method, path=path, began=T0 + at, ended=T0 + at + 0.5, status=status, **given)


def create(seq: int = 1, at: float = 0, **more: Any) -> Call:
    given: dict[str, Any] = {"body": {"name": NAME}, "answer": MADE, "key": "k1", **more}
    return answered(seq, at, "POST", "/workloads/trainings", **given)


def suspend(seq: int = 2, at: float = 2, **more: Any) -> Call:
    return answered(seq, at, "POST", f"{PATH}/suspend", **more)


def resume(seq: int = 3, at: float = 4, **more: Any) -> Call:
    return answered(seq, at, "POST", f"{PATH}/resume", **more)


def read(seq: int, at: float, phase: str, desired: str, **more: Any) -> Call:
    shown = {"actualPhase": phase, "desiredPhase": desired, "deletedAt": None, **more.pop("shown", {})}
    return answered(seq, at, "GET", PATH, 200, request_id="", answer=shown, **more)


def listed(seq: int, at: float, query: str = "", **shown: Any) -> Call:
    answer = {"workloads": [{"id": ID, **shown}] if shown else []}
    return answered(seq, at, "GET", "/workloads", 200, request_id="", query=query, answer=answer)


GOOD = (
    create(),
    create(at=1, request_id="again"),
    suspend(),
    read(2, 2.6, "Stopped", "Stopped", shown={"attempt": 1, "gpuAllocated": 0, "exitCode": None}),
    resume(),
    # It was asked while the resume was under way: either answer is true.
    read(2, 4.1, "Stopped", "Stopped"),
    read(3, 4.2, "Resuming", "Running", shown={"attempt": 2}),
    listed(2, 4.9, phase="Stopped", version=2),
    listed(3, 5.5, query="min_seq=3&limit=5", phase="Resuming", version=3),
)


def test_answers_as_they_should_be_are_passed() -> None:
    assert check_calls(GOOD, log().check()) == []


def story_of_requests(*commits: str) -> Story:
    """`log()` whose commits come from requests of these ids."""
    story, plain = log(), log()
    story.messages.clear()
    for message, request in zip(plain.messages, commits, strict=True):
        story.messages.append(
            replace(message, payload=message.payload[:-1] + b', "correlation_id": "' + request.encode() + b'"}')
        )
    return story


def lies(*calls: Call, requests: tuple[str, str, str] = ("r1", "r2", "r3"), complete: bool = False) -> set[str]:
    found = check_calls(calls, story_of_requests(*requests).check(), complete=complete)
    return {text.split(": ")[0] for text in found}


def test_answers_and_the_requests_that_the_log_names_go_together() -> None:
    assert lies(*GOOD, complete=True) == set()


def refused(call: Call, status: int, **more: Any) -> Call:
    return replace(call, status=status, headers={}, **{"answer": {"code": status}, **more})


SEEDED: dict[str, tuple[str, Callable[[], set[str]]]] = {
    "acknowledged, and another was made": (
        "acknowledged",
        lambda: lies(create(answer=MADE | {"workloadId": "01900000-0000-8000-8000-000000000002"})),
    ),
    "acknowledged, and stored elsewhere": ("acknowledged", lambda: lies(create(seq=2))),
    "acknowledged under another name": ("acknowledged", lambda: lies(create(body={"name": "another"}))),
    "suspended, says the answer only": ("acknowledged", lambda: lies(suspend(seq=3))),
    "resumed, says the answer only": ("acknowledged", lambda: lies(resume(seq=2))),
    "deleted, says the answer only": ("acknowledged", lambda: lies(answered(3, 6, "DELETE", PATH))),
    "refused, and stored": ("refusal", lambda: lies(refused(suspend(), 403))),
    "refused as finished, and it is not": (
        "refusal",
        lambda: lies(create(), refused(suspend(at=1, request_id=""), 409)),
    ),
    "refused as taken, and it is free": (
        "refusal",
        lambda: lies(
            replace(create(body={"name": "other"}), status=400, answer="already has a workload named 'other'")
        ),
    ),
    "one request, two commits": ("once", lambda: lies(create(), requests=("r1", "r1", "r3"))),
    "one key, two commits": (
        "once",
        lambda: lies(
            create(), create(at=1, request_id="r2", status=0, headers={}, answer=None), requests=("r1", "r2", "r3")
        ),
    ),
    "stored, and nobody asked": ("unasked", lambda: lies(create(), suspend(), complete=True)),
    "the same key, another version": ("repeat", lambda: lies(create(), create(seq=2, at=1, request_id="x"))),
    "the same key, another answer": (
        "repeat",
        lambda: lies(create(), create(at=1, request_id="x", answer=MADE | {"actualPhase": "Running"})),
    ),
    "the same key, another body": ("repeat", lambda: lies(create(), create(at=1, body={"name": "b"}))),
    "a read older than an answer": ("stale", lambda: lies(suspend(), read(1, 3, "Creating", "Running"))),
    "a read older than a read": (
        "stale",
        lambda: lies(read(2, 3, "Stopped", "Stopped"), read(1, 4, "Creating", "Running")),
    ),
    "a list older than a list": ("stale", lambda: lies(listed(3, 5), listed(2, 6))),
    "a list older than was asked for": ("stale", lambda: lies(listed(2, 5, query="limit=5&min_seq=3"))),
    "nothing where something was": ("lost", lambda: lies(create(), refused(read(0, 1, "", ""), 404))),
    "a version that never was": ("read", lambda: lies(read(7, 9, "Resuming", "Running"))),
    "a phase of another version": ("read", lambda: lies(read(2, 3, "Resuming", "Stopped"))),
    "a column of another version": (
        "read",
        lambda: lies(read(3, 5, "Resuming", "Running", shown={"gpuAllocated": 1})),
    ),
    "deleted, and it is not": (
        "read",
        lambda: lies(read(3, 5, "Resuming", "Running", shown={"deletedAt": "2026-03-02T09:00:09Z"})),
    ),
    "a row of another version": ("read", lambda: lies(listed(2, 5, phase="Resuming"))),
    "a row of a workload that is not yet there": (
        "row",
        lambda: lies(replace(listed(1, 5, phase="x"), answer={"workloads": [{"id": "none"}]})),
    ),
    "an answer before what it follows": (
        "order",
        lambda: lies(read(3, 1, "Resuming", "Running"), suspend(seq=2)),
    ),
}


@pytest.mark.parametrize("seeded", SEEDED)
def test_each_lie_is_found(seeded: str) -> None:
    expected, found = SEEDED[seeded]
    assert expected in found()


def test_every_invariant_of_answers_is_seeded() -> None:
    text = (Path(__file__).parents[2] / "development" / "checker" / "calls.py").read_text()
    names = set(re.findall(r'yield f"([a-z]+): ', text))
    assert names <= {expected for expected, _ in SEEDED.values()}


def test_lists_may_be_older_after_the_tables_went_back_and_only_then() -> None:
    told = (listed(3, 5), listed(2, 6))
    log_ = log().check()
    assert check_calls(told, log_, complete=False, setbacks=[T0 + 5.7]) == []
    for elsewhen in (T0 + 4, T0 + 8):
        assert check_calls(told, log_, complete=False, setbacks=[elsewhen])


def test_a_name_is_taken_as_long_as_nobody_can_know_that_it_is_free() -> None:
    asked = create(at=1, body={"name": NAME, "projectId": "p1"}, request_id="")
    assert lies(create(), refused(asked, 400, answer="already has a workload named x")) == set()


@pytest.mark.parametrize("status", [0, 500, 503])
def test_an_answer_that_says_nothing_may_have_been_stored_or_not(status: int) -> None:
    unknown = replace(create(), status=status, headers={}, answer=None)
    assert lies(unknown) == set()
    assert lies(replace(unknown, request_id="not stored")) == set()
