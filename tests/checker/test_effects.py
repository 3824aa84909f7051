"""Pods' own words and WANTED against the log."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from development.checker.effects import PROGRAM, Line, check_effects, read_lines
from development.checker.records import RawMessage
from development.checker.story import ID, KEY, NODE, Story
from development.checker.wanted import check_wanted

RUN = f"{ID}/main-0/1.0"
TOKEN = 2
GOOD = (Line(ID, RUN, TOKEN, "begin"), Line(ID, RUN, TOKEN, "end"))


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        pytest.param(GOOD, False, id="as it should be"),
        pytest.param((GOOD[0], *GOOD), True, id="begun twice"),
        pytest.param(GOOD[:1], True, id="succeeded without its end"),
        pytest.param((), True, id="succeeded without a line"),
        pytest.param((*GOOD, Line(ID, RUN, TOKEN, "beside another")), True, id="two at once"),
        pytest.param((*GOOD, Line(ID, f"{ID}/main-0/1.1", 9, "begin")), True, id="a run that was never bound"),
        pytest.param((*GOOD, Line("other", "other/main-0/1.0", 9, "begin")), True, id="a workload that is not there"),
        pytest.param((Line(ID, RUN, 9, "begin"), Line(ID, RUN, 9, "end")), True, id="another token"),
    ],
)
def test_what_pods_did_is_held_against_the_log(lines: tuple[Line, ...], wrong: bool) -> None:
    log = Story().done().check()
    assert bool(check_effects(list(lines), log, {ID})) is wrong


@pytest.mark.parametrize(
    ("type_", "more", "wrong"),
    [
        pytest.param("PodInterrupted", {"reason": "node_lost"}, False, id="killed with its machine"),
        pytest.param("PodFailed", {"exit_code": 137, "reason": "exit_code"}, False, id="killed by a signal"),
        pytest.param("PodFailed", {"exit_code": 127, "reason": "not_found"}, False, id="a command that is not there"),
        pytest.param("PodFailed", {"exit_code": 3, "reason": "exit_code"}, True, id="ended of itself"),
    ],
)
def test_a_run_that_wrote_nothing_was_killed_before_it_could(type_: str, more: dict[str, Any], wrong: bool) -> None:
    story = Story().node().created().bound().ran()
    retry_at: dict[str, Any] = {"retry_at": story.text(10)} if type_ == "PodFailed" else {}
    log = story.fact(type_, **more, **retry_at).check()
    assert bool(check_effects([], log, {ID})) is wrong


def test_pods_that_write_nothing_are_not_looked_at() -> None:
    assert check_effects([], Story().done().check(), set()) == []


def run(folder: Path, *, code: int = 0, seconds: float = 0, try_: int = 0) -> "subprocess.Popen[bytes]":
    environment = {
        "MUSTER_WORKLOAD_ID": ID,
        "MUSTER_POD_SET": "main",
        "MUSTER_POD_INDEX": "0",
        "MUSTER_ATTEMPT": "1",
        "MUSTER_RUN": str(try_ + 1),
        "MUSTER_RUN_ID": f"c1/{KEY}-main-0/{TOKEN}",
    }
    program = [sys.executable, "-c", PROGRAM, str(folder), str(seconds), str(code)]
    return subprocess.Popen(program, env=environment)


def test_a_pod_says_when_it_begins_when_it_ends_well_and_that_another_runs(tmp_path: Path) -> None:
    assert run(tmp_path).wait(60) == 0
    assert read_lines(tmp_path / "effects") == list(GOOD)
    assert run(tmp_path, code=3, try_=1).wait(60) == 3
    assert [line.what for line in read_lines(tmp_path / "effects")] == ["begin", "end", "begin"]
    first = run(tmp_path, seconds=60)
    try:
        while len(read_lines(tmp_path / "effects")) < 4:
            assert first.poll() is None
        assert run(tmp_path).wait(60) == 0
    finally:
        first.kill()
        first.wait(60)
    assert "beside another" in [line.what for line in read_lines(tmp_path / "effects")]
    assert run(tmp_path).wait(60) == 0
    assert [line.what for line in read_lines(tmp_path / "effects")][-2:] == ["begin", "end"]


def word(type_: str = "StartPod", token: int = TOKEN, **more: Any) -> RawMessage:
    told = {"type": type_, "token": token, "workload_id": ID, "node_name": NODE, **more}
    told.setdefault("devices", [{"device": 0, "milli": 1000}])
    return RawMessage(1, f"want.c1.pod.{KEY}-main-0", json.dumps(told).encode())


LIVE = Story().node().created().bound()
STOPPING = Story().node().created().bound().says(("WorkloadSuspended", {}), by="user")
OVER = Story().done()
CLUSTER = RawMessage(9, "want.c1.cluster", b"{}")


@pytest.mark.parametrize(
    ("story", "words", "wrong"),
    [
        pytest.param(LIVE, [word(), CLUSTER], False, id="what lives is told to run"),
        pytest.param(LIVE, [], True, id="what lives is not told"),
        pytest.param(LIVE, [word(token=1)], True, id="an older run is told"),
        pytest.param(LIVE, [word("StopPod")], True, id="what lives is told to stop"),
        pytest.param(LIVE, [word("SettledPod")], True, id="what lives is settled"),
        pytest.param(LIVE, [word(node_name="elsewhere")], True, id="on another node"),
        pytest.param(LIVE, [word(devices=[])], True, id="with other devices"),
        pytest.param(STOPPING, [word("StopPod")], False, id="what should go is told to stop"),
        pytest.param(STOPPING, [word()], True, id="what should go is told to run"),
        pytest.param(OVER, [], False, id="what is over is not told of"),
        pytest.param(OVER, [word("SettledPod")], False, id="what is over is settled"),
        pytest.param(OVER, [word()], True, id="what is over is told to run"),
    ],
)
def test_wanted_says_what_the_log_wants(story: Story, words: list[RawMessage], wrong: bool) -> None:
    assert bool(check_wanted(words, story.check())) is wrong
