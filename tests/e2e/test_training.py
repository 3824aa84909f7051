"""Trainings end to end on one machine: a real `muster up`, real processes, the HTTP API (issue section 6, 2 to 5)."""

import fcntl
import re
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from development.stack import Api, Stack, moment, running, training, until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("up"), "--gpus", "2") as stack:
        yield stack


@pytest.fixture(scope="module")
def api(stack: Stack) -> Api:
    return stack.api()


def phases(api: Api, workload_id: str) -> list[str]:
    """The phases that the history passed through."""
    seen = [record["phase"] for record in api.history(workload_id)]
    return [seen[0], *(after for before, after in pairwise(seen) if after != before)]


def test_a_script_computes_and_its_output_and_its_history_can_be_read(api: Api) -> None:
    """S004, S086, S087: Creating, Pending, Initializing, Running, Completed."""
    script = 'import time; print("begin"); n = sum(i * i for i in range(10**6)); time.sleep(1); print("sum", n)'
    made = api.submit("computes", python=script, compute={"gpuDevicesRequest": 1, "cpuCoreRequest": 0.1})
    assert (made["desiredPhase"], made["name"], made["requestedName"]) == ("Running", "computes", "computes")
    api.wait(made["workloadId"], "Completed")
    until(lambda: phases(api, made["workloadId"])[-1] == "Completed" or None, 60)
    assert phases(api, made["workloadId"]) == ["Creating", "Pending", "Initializing", "Running", "Completed"]
    output = api.logs(made["workloadId"])
    assert "begin" in output
    assert "sum 333332833333500000" in output
    for record in api.history(made["workloadId"]):
        assert re.match(r"^[A-Za-z].{10,}", record["message"]), record
        assert record["actor"]["sub"]


def test_a_failing_command_is_retried_up_to_its_backoff_limit_and_ends_failed_with_the_exit_code(
    stack: Stack, api: Api
) -> None:
    """S071. What each try wrote can be read."""
    script = 'import os; print("this is run", os.environ["MUSTER_RUN"]); raise SystemExit(7)'
    made = api.submit("fails", python=script, backoffLimit=2)
    ended = api.wait(made["workloadId"], "Failed")
    assert ended["actualPhase"] == "Failed"
    row = until(lambda: _row(api, made["workloadId"], "Failed"), 60)
    assert row["exitCode"] == 7
    assert row["phaseReason"] == "backoff_limit_exceeded"
    types = [record["type"] for record in api.history(made["workloadId"])]
    assert types.count("PodFailed") == 3

    def logs(**query: Any) -> tuple[int, str]:
        answer = api.http.get(f"/workloads/{made['workloadId']}/logs", params=query)
        return answer.status_code, answer.text

    assert logs() == (200, "this is run 3\n")
    assert logs(previous=True) == logs(attempt=1, run=2) == (200, "this is run 2\n")
    assert logs(attempt=1) == (200, "this is run 3\n")
    status, text = logs(attempt=4)
    assert (status, "no_such_run" in text, "attempt 1 run 1, attempt 1 run 2" in text) == (404, True, True)
    assert logs(previous=True, follow=True)[0] == logs(previous=True, attempt=1)[0] == 400
    told = stack.muster("training", "logs", "fails", "--attempt", "1", "--run", "1")
    assert (told.returncode, told.stdout) == (0, "this is run 1\n"), told.stderr
    told = stack.muster("training", "logs", "fails", "--previous")
    assert (told.returncode, told.stdout) == (0, "this is run 2\n"), told.stderr
    assert types[-1] == "WorkloadFailed"


def _row(api: Api, workload_id: str, phase: str) -> dict[str, object] | None:
    rows = api.get("/workloads", limit=500)["workloads"]
    return next((row for row in rows if row["id"] == workload_id and row["phase"] == phase), None)


def test_five_completions_with_parallelism_two_never_run_three_at_once(api: Api, tmp_path: Path) -> None:
    """S061, S062: seen from the processes themselves."""
    marks = tmp_path / "marks"
    marks.mkdir()
    script = (
        "import os, time, pathlib; "
        f'd = pathlib.Path("{marks}"); i = os.environ["JOB_COMPLETION_INDEX"]; '
        "(d / i).touch(); print(len(list(d.iterdir()))); time.sleep(0.5); (d / i).unlink()"
    )
    made = api.submit("five", python=script, completions=5, parallelism=2)
    most = 0
    while api.training(made["workloadId"])["actualPhase"] != "Completed":
        most = max(most, len(list(marks.iterdir())))
        time.sleep(0.02)
    assert 1 <= most <= 2
    pods = until(lambda: _all_pods(api, made["workloadId"], 5), 60)
    assert {pod["index"] for pod in pods} == set(range(5))
    events = sorted(
        [(moment(pod["startedAt"]), 1) for pod in pods] + [(moment(pod["finishedAt"]), -1) for pod in pods],
        key=lambda event: (event[0], event[1]),
    )
    level = peak = 0
    for _, step in events:
        level += step
        peak = max(peak, level)
    assert peak <= 2


def _all_pods(api: Api, workload_id: str, count: int) -> list[dict[str, Any]] | None:
    pods = api.get(f"/workloads/{workload_id}/pods")["pods"]
    done = [pod for pod in pods if pod["finishedAt"]]
    return pods if len(done) == count else None


def test_suspend_stops_the_processes_resume_runs_a_new_attempt_and_delete_keeps_the_record(
    api: Api, tmp_path: Path
) -> None:
    """S088 to S090, S096, C17. A process holds a lock as long as it lives; its number is its own namespace's."""
    alive = tmp_path / "alive"
    hold = f'import fcntl, os, time; held = open("{alive}", "a"); fcntl.flock(held, fcntl.LOCK_EX)'
    script = f'{hold}; print(os.environ["MUSTER_ATTEMPT"], file=held, flush=True); time.sleep(600)'
    made = api.submit("long", python=script, compute={"gpuDevicesRequest": 2}, terminationGracePeriodSeconds=2)
    key = made["workloadId"]
    api.wait(key, "Running")
    until(lambda: alive.exists() and alive.read_text().split() == ["1"], 60)
    assert _is_locked(alive)
    assert api.act("suspend", key).status_code == 202
    api.wait(key, "Stopped")
    assert not _is_locked(alive)
    until(lambda: _free_gpus(api) == 2 or None, 60)
    assert api.act("suspend", key).status_code == 202, "a no-op (C21)"
    assert api.act("resume", key).status_code == 202
    api.wait(key, "Running")
    until(lambda: alive.read_text().split() == ["1", "2"], 60)
    assert _is_locked(alive)
    assert [pod["attempt"] for pod in api.get(f"/workloads/{key}/pods")["pods"] if pod["phase"] == "Running"] == [2]
    assert api.act("delete", key).status_code == 202
    gone = until(lambda: _deleted(api, key), 60)
    assert not _is_locked(alive)
    assert gone["desiredPhase"] == "Deleted"
    again = api.submit("long", python="pass")
    assert again["workloadId"] != key
    api.wait(again["workloadId"], "Completed")
    assert api.training(key)["deletedAt"] == gone["deletedAt"], "the older incarnation stays readable"


def _free_gpus(api: Api) -> float:
    (node,) = api.get("/nodes", clusterId=api.cluster("local"))["nodes"]
    return sum(1000 - device["reservedMilli"] for device in node["devices"]) / 1000


def _is_locked(path: Path) -> bool:
    """Whether a process that holds it lives."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _deleted(api: Api, workload_id: str) -> dict[str, str] | None:
    seen = api.training(workload_id)
    return seen if seen.get("deletedAt") else None


def test_a_workload_is_deleted_soon_after_its_auto_deletion_is_due(api: Api) -> None:
    """S072: not before 2 s after completion."""
    made = api.submit("short", python="pass", autoDeletionTimeAfterCompletionSeconds=2)
    gone = until(lambda: _deleted(api, made["workloadId"]), 60)
    completed = until(lambda: _completed_at(api, made["workloadId"]), 60)
    assert timedelta(seconds=2) <= moment(gone["deletedAt"]) - completed


def _completed_at(api: Api, workload_id: str):
    records = api.history(workload_id)
    return next((moment(r["at"]) for r in records if r["type"] == "WorkloadCompleted"), None)


def test_zero_deletes_at_once_and_a_changed_time_cancels(api: Api) -> None:
    """C3."""
    at_once = api.submit("at-once", python="pass", autoDeletionTimeAfterCompletionSeconds=0)
    until(lambda: _deleted(api, at_once["workloadId"]), 60)
    kept = api.submit("kept", python="pass", autoDeletionTimeAfterCompletionSeconds=10)
    api.wait(kept["workloadId"], "Completed")
    changed = api.http.patch(f"/workloads/{kept['workloadId']}", json={"autoDeletionTimeAfterCompletionSeconds": 3600})
    assert changed.status_code == 202, changed.text
    time.sleep(11)
    assert api.training(kept["workloadId"]).get("deletedAt") is None


def test_ownership_protection_lets_only_the_creator_and_administrators_act(stack: Stack, api: Api) -> None:
    """S084, C14."""
    alice, bob = stack.api(stack.token("alice")), stack.api(stack.token("bob"))
    viewer = stack.api(stack.token("vic", role="viewer"))
    assert stack.muster("cluster", "set", "local", "--ownership-protection", "on").returncode == 0
    made = alice.submit("hers", python="import time; time.sleep(600)", terminationGracePeriodSeconds=0)
    key = made["workloadId"]
    alice.wait(key, "Running")
    for verb in ("suspend", "resume", "delete"):
        refused = bob.act(verb, key)
        assert (refused.status_code, "not_owner" in refused.text) == (403, True), refused.text
    assert bob.http.patch(f"/workloads/{key}", json={"priorityClass": "high"}).status_code == 403
    assert alice.act("suspend", key).status_code == 202
    assert api.act("resume", key).status_code == 202, "an administrator may override"
    assert viewer.act("delete", key).status_code == 403
    assert stack.muster("cluster", "set", "local", "--ownership-protection", "off").returncode == 0
    assert bob.act("delete", key).status_code == 202, "with protection off, project roles decide"
    refusals = api.get("/audit", limit=100)
    assert "not_owner" in str(refusals)


def test_another_projects_workload_is_not_found(stack: Stack, api: Api) -> None:
    """log.md section 6.2."""
    assert stack.muster("project", "create", "other").returncode == 0
    stranger = stack.api(stack.token("stranger", project="other"))
    made = api.submit("private", python="pass")
    for path in ("", "/history", "/pods", "/logs", "/metrics"):
        answer = stranger.http.get(f"/workloads/{made['workloadId']}{path}")
        assert answer.status_code == 404, (path, answer.text)
    assert stranger.act("delete", made["workloadId"]).status_code == 404
    assert [w["name"] for w in stranger.get("/workloads")["workloads"]] == []


SLEEPS = "import time; time.sleep(600)"


def test_an_exhausted_budget_refuses_what_is_new_and_what_runs_goes_on(stack: Stack, api: Api) -> None:
    """Measured by the service that measures, from hours of a real run."""
    assert stack.muster("project", "create", "thrifty").returncode == 0
    project = api.project("thrifty")

    def submit(name: str) -> Any:
        compute = {"gpuDevicesRequest": 1, "cpuCoreRequest": 0.1}
        asked = training(name, project, api.cluster("local"), python=SLEEPS, compute=compute)
        return api.http.post("/workloads/trainings", json=asked)

    def budget() -> Any:
        return api.get(f"/budgets/{project}")

    runs = submit("goes-on").json()["workloadId"]
    api.wait(runs, "Running")
    assert stack.muster("price", "set", "*", "3600", "--currency", "EUR").returncode == 0
    # One GPU costs one euro a second.
    told = stack.muster("budget", "set", "thrifty", "--amount", "3", "--warn-at", "10%")
    assert told.returncode == 0, told.stderr
    until(lambda: budget()["state"] == "exhausted" or None, 60)
    assert float(budget()["used"]) >= 3
    refused = submit("too-late")
    assert (refused.status_code, refused.json()["details"]) == (409, "budget_exhausted")
    assert api.training(runs)["actualPhase"] == "Running"
    assert api.act("suspend", runs).status_code == 202
    api.wait(runs, "Stopped")
    assert api.act("resume", runs).json()["details"] == "budget_exhausted"

    assert stack.muster("budget", "set", "thrifty", "--amount", "100000").returncode == 0
    assert api.act("resume", runs).status_code == 202
    api.wait(runs, "Running")

    def told_types() -> list[str] | None:
        found = stack.muster("events", "list", "-p", "thrifty", "-o", "json").stdout
        types = re.findall(r"Budget[A-Z][a-z]+(?=\"|\.v1)", found)
        return sorted(set(types)) if "BudgetReopened" in found else None

    assert until(told_types, 60) == ["BudgetExhausted", "BudgetReopened", "BudgetWarned"]
    used = stack.muster("usage", "-p", "thrifty")
    assert "EUR" in used.stderr, used.stderr
    assert api.act("delete", runs).status_code == 202


def test_the_tables_are_the_fold_of_the_log_and_a_rebuild_gives_them_again(stack: Stack) -> None:
    verified = stack.muster("log", "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    rebuilt = stack.muster("projections", "rebuild")
    assert rebuilt.returncode == 0, rebuilt.stdout + rebuilt.stderr
    again = stack.muster("log", "verify")
    assert again.returncode == 0, again.stdout + again.stderr


def test_each_run_of_a_sweep_has_its_values_and_the_description_tells_the_results_by_run(stack: Stack) -> None:
    """Issue 13 section 3: sweeps."""
    script = "import os; print(os.environ['lr'], os.environ['seed'])"
    submit = ("training", "submit", "swept", "-i", "python:3.13", "--sweep", "lr=0.1,0.01", "--sweep", "seed=1..2")
    ran = stack.muster(*submit, "--parallelism", "4", "--wait", "--command", "--", sys.executable, "-c", script)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = sorted(line.partition(": ")[2] for line in stack.muster("training", "logs", "swept").stdout.splitlines())
    assert lines == ["0.01 1", "0.01 2", "0.1 1", "0.1 2"]
    told = stack.muster("training", "describe", "swept").stdout
    assert "Results by run" in told
    for values in ("lr=0.1,seed=1", "lr=0.1,seed=2", "lr=0.01,seed=1", "lr=0.01,seed=2"):
        assert re.search(rf"^{values} +Succeeded +0 +\S+ s +main-\d", told, re.MULTILINE), told
