"""The other verbs: what they ask of the API, and how a name becomes an id."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from events.webhooks import DisabledBecause
from muster.cli.exits import ExitCode
from muster.cli.log_stream import without_cuts
from tests.support.shapes import ACCEPTED, WORKLOAD_ID, Reply, Request, ShapeServer, workload_row


@pytest.mark.parametrize("noun", ["training", "workload"])
@pytest.mark.parametrize(
    ("verb", "method", "path"),
    [
        ("suspend", "POST", f"/workloads/trainings/{WORKLOAD_ID}/suspend"),
        ("resume", "POST", f"/workloads/trainings/{WORKLOAD_ID}/resume"),
        ("delete", "DELETE", f"/workloads/trainings/{WORKLOAD_ID}"),
    ],
)
def test_suspend_resume_and_delete_act_on_the_id_behind_the_name(
    api: ShapeServer, muster: Any, *, noun: str, verb: str, method: str, path: str
) -> None:
    api.on(method, path, ACCEPTED)
    assert muster(noun, verb, "hello", "-p", "default").code == 0
    assert api.asked("GET", "/workloads")[0].query["filterBy"] == ["projectName==default", "name==hello"]
    assert "idempotency-key" in api.asked(method, path)[0].headers


def test_several_workloads_each_get_a_result_and_the_first_failure_is_the_exit_code(
    api: ShapeServer, muster: Any
) -> None:
    def listed(request: Request) -> Reply:
        known = "name==hello" in request.query["filterBy"]
        return Reply(body={"workloads": [workload_row()] if known else [], "next": None})

    api.on("GET", "/workloads", listed)
    api.on("DELETE", f"/workloads/trainings/{WORKLOAD_ID}", ACCEPTED)
    ran = muster("workload", "delete", "gone", "hello", "-y")
    assert ran.code == 3
    assert "no workload 'gone'" in ran.err
    assert "delete of hello accepted" in ran.err


@pytest.mark.parametrize("verb", ["suspend", "resume", "delete", "set"])
def test_who_says_latest_is_told_which_one_it_was(api: ShapeServer, muster: Any, verb: str) -> None:
    for method, path in (("DELETE", ""), ("POST", "/suspend"), ("POST", "/resume")):
        api.on(method, f"/workloads/trainings/{WORKLOAD_ID}{path}", ACCEPTED)
    api.on("PATCH", f"/workloads/{WORKLOAD_ID}", ACCEPTED)
    ran = muster("workload", verb, "@latest", *(("--priority", "high") if verb == "set" else ()))
    assert ran.code == 0
    assert f"of hello ({WORKLOAD_ID}) accepted" in ran.err


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("answer", ["y", "n"])
def test_who_is_asked_is_asked_about_the_workload_that_is_then_deleted(api: ShapeServer, answer: str) -> None:
    """While a person thinks, somebody else may submit, and then `@latest` is another one."""
    api.on("DELETE", f"/workloads/trainings/{WORKLOAD_ID}", ACCEPTED)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "muster.cli.main", "workload", "delete", "@latest"]
    with subprocess.Popen(command, stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL) as asked:
        os.close(theirs)
        said = b""
        while b"[y/N]" not in said:
            said += os.read(ours, 1_000)
        api.on("GET", "/workloads", Reply(body={"workloads": [], "next": None}))
        os.write(ours, f"{answer}\n".encode())
        code = asked.wait(timeout=60)
    os.close(ours)
    assert f"delete hello ({WORKLOAD_ID})?" in said.decode()
    assert code == (0 if answer == "y" else 1)
    assert len(api.asked("DELETE", f"/workloads/trainings/{WORKLOAD_ID}")) == (answer == "y")


@pytest.mark.parametrize(
    ("given", "filters"),
    [
        (WORKLOAD_ID, None),
        (WORKLOAD_ID.upper(), None),
        ("hello", ["name==hello"]),
        ("@latest", None),
    ],
)
def test_a_workload_is_named_by_id_name_or_latest(
    api: ShapeServer, muster: Any, given: str, filters: list[str] | None
) -> None:
    api.on("GET", f"/workloads/{WORKLOAD_ID}/pods", Reply(body={"pods": []}))
    assert muster("workload", "pods", given).code == 0
    asked = api.asked("GET", "/workloads")
    if given == "@latest":
        assert (asked[0].query["sortBy"], asked[0].query["sortOrder"], asked[0].query["limit"]) == (
            ["createdAt"], ["desc"], ["1"],
        )  # fmt: skip
    elif filters is None:
        assert asked == []
    else:
        assert asked[0].query["filterBy"] == filters


def test_the_beginning_of_an_id_is_enough_where_it_is_unique(api: ShapeServer, muster: Any) -> None:
    other = workload_row(id="0a1b2c3d-ffff-8a6b-9c7d-0123456789ab", name="other")

    def listed(request: Request) -> Reply:
        [condition] = request.query["filterBy"]
        rows = [row for row in (workload_row(), other) if row["id"].startswith(condition.removeprefix("id=^"))]
        return Reply(body={"workloads": rows, "next": None})

    api.on("GET", "/workloads", listed)
    api.on("GET", f"/workloads/{WORKLOAD_ID}/pods", Reply(body={"pods": []}))
    assert muster("workload", "pods", "0a1b2c3d-4e").code == 0
    ran = muster("workload", "pods", "0a1b2c3d")
    assert ran.code == 2
    assert WORKLOAD_ID in ran.err


def test_a_deleted_workload_can_still_be_looked_into_but_not_acted_on(api: ShapeServer, muster: Any) -> None:
    def listed(request: Request) -> Reply:
        rows = [workload_row()] if request.query.get("deleted") == ["true"] else []
        return Reply(body={"workloads": rows, "next": None})

    api.on("GET", "/workloads", listed)
    api.on("GET", f"/workloads/{WORKLOAD_ID}/history", Reply(body={"records": [], "next": None}))
    assert muster("workload", "history", "hello").code == 0
    assert muster("workload", "suspend", "hello").code == 3


def test_a_description_has_its_sections_and_json_is_the_api_s_own(api: ShapeServer, muster: Any) -> None:
    row = workload_row(
        spec={"image": "a", "compute": {"gpuDevicesRequest": 1}, "labels": [{"name": "a", "value": "b"}]}
    )
    records = [
        {"sequence": n, "index": 0, "at": "2026-01-02T03:04:05Z", "message": f"step {n}", "actor": {"sub": "ann"}}
        for n in range(12)
    ]
    pods = [{"name": "main-0", "phase": "Running", "node": "n-1", "devices": [{"device": 0, "milli": 500}]}]
    api.on("GET", f"/workloads/{WORKLOAD_ID}", Reply(body=row))
    api.on("GET", f"/workloads/{WORKLOAD_ID}/pods", Reply(body={"pods": pods}))
    api.on("GET", f"/workloads/{WORKLOAD_ID}/history", Reply(body={"records": records, "next": None}))
    text = muster("workload", "describe", "hello").out
    for part in ("Phase:", "compute.gpuDevicesRequest", "a=b", "main-0", "0:0.5", "the last 10 of 12", "step 11"):
        assert part in text
    assert "step 1\n" not in text
    assert muster("workload", "describe", "hello", "-o", "json").json() == row


def test_logs_are_passed_on_as_they_are(api: ShapeServer, muster: Any) -> None:
    api.on("GET", f"/workloads/{WORKLOAD_ID}/logs", Reply(text="one\ntwo ✓\n"))
    ran = muster("training", "logs", "hello", "-f", "--tail", "5", "--since", "10m", "--timestamps", "--pod", "main-0")
    assert ran.out == "one\ntwo ✓\n"
    query = api.requests[-1].query
    assert {key: value[0] for key, value in query.items()} == {
        "follow": "true", "tail": "5", "since": "600s", "timestamps": "true", "pod": "main-0",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("not_in_project", 4), ("not_authenticated", 4), ("stalled", 1), ("logs_unavailable", 9), ("unheard_of", 1)],
)
def test_logs_that_the_server_cut_are_no_success(api: ShapeServer, muster: Any, code: str, exit_code: int) -> None:
    mark = "muster 1f2e: this ends here"
    text = f"one\nmuster 0000: this ends here, says a pod\nmuster 1f\n{mark} ({code}): it had to (be): so\n"
    api.on("GET", f"/workloads/{WORKLOAD_ID}/logs", Reply(text=text, headers={"X-Cut-Mark": mark}))
    for follow in ((), ("-f",)):
        if follow and code == "stalled":
            continue  # it goes on: tests/cli/test_outage.py
        ran = muster("training", "logs", "hello", *follow)
        assert ran.code == exit_code
        assert ran.out == "one\nmuster 0000: this ends here, says a pod\nmuster 1f\n", "what pods wrote, and only that"
        assert "not whole" in ran.err
        assert "it had to (be): so" in ran.err


@pytest.mark.parametrize("size", [1, 2, 7, 400])
def test_a_cut_is_seen_however_the_text_comes(size: int) -> None:
    text = "one\nmuster x\n\nmuster 1: no\r\nmuster 1 (a): b\nmuster 1 is not ended"
    cuts: list[str] = []
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    told = "".join(without_cuts(pieces, "muster 1 (", cuts))
    assert (told, cuts) == ("one\nmuster x\n\nmuster 1: no\r\nmuster 1 is not ended", ["a): b"])


def test_a_log_with_nothing_in_it_says_why(api: ShapeServer, muster: Any) -> None:
    row = workload_row(phase="Pending", phaseMessage="needs 8 GPUs on one node (largest has 2)")
    api.on("GET", f"/workloads/{WORKLOAD_ID}", Reply(body=row))
    api.on("GET", f"/workloads/{WORKLOAD_ID}/logs", Reply(text=""))
    for follow in ((), ("-f",)):
        ran = muster("training", "logs", "hello", *follow)
        assert (ran.code, ran.out) == (0, "")
        assert "hello is Pending: needs 8 GPUs on one node (largest has 2)" in ran.err


def test_a_follower_of_what_does_not_run_yet_is_told_so_before_it_waits(api: ShapeServer, muster: Any) -> None:
    row = workload_row(phase="Pending", phaseMessage="needs 8 GPUs on one node (largest has 2)")
    api.on("GET", f"/workloads/{WORKLOAD_ID}", Reply(body=row))
    api.on("GET", f"/workloads/{WORKLOAD_ID}/logs", Reply(text="one\n"))
    ran = muster("training", "logs", "hello", "-f")
    assert ran.out == "one\n"
    assert "hello is Pending: needs 8 GPUs" in ran.err
    assert [request.path.rpartition("/")[2] for request in api.requests[-2:]] == [WORKLOAD_ID, "logs"]


def test_logs_of_a_removed_cluster_are_not_found_and_not_asked_for_again(api: ShapeServer, muster: Any) -> None:
    gone = {"code": 410, "message": "cluster 'demo' was removed on Monday", "details": "cluster_removed"}
    api.on("GET", f"/workloads/{WORKLOAD_ID}/logs", Reply(410, gone))
    ran = muster("training", "logs", "hello")
    assert ran.code == 3
    assert "was removed on Monday" in ran.err
    assert len(api.asked("GET", f"/workloads/{WORKLOAD_ID}/logs")) == 1


def test_logs_that_break_off_are_no_success(api: ShapeServer, muster: Any) -> None:
    api.on("GET", f"/workloads/{WORKLOAD_ID}/logs", Reply(text="one\n", broken_off=True))
    ran = muster("training", "logs", "hello")
    assert (ran.code, ran.out) == (9, "one\n")
    assert f"Muster at {api.url} closed the connection before the answer was complete" in ran.err


@pytest.mark.parametrize("nouns", ["workload", "training"])
def test_a_project_that_is_not_there_is_no_empty_list(api: ShapeServer, muster: Any, nouns: str) -> None:
    api.on("GET", "/workloads", Reply(body={"workloads": [], "next": None}))
    ran = muster(nouns, "list", "-p", "defualt")
    assert (ran.code, ran.out) == (3, "")
    assert "there is no project 'defualt'" in ran.err
    assert "did you mean 'default'?" in ran.err
    assert muster(nouns, "list", "-p", "default").code == 0


@pytest.mark.parametrize("verb", [("list",), ("describe", "hello")])
def test_a_project_that_was_not_there_yet_is_told_as_of_the_moment(
    api: ShapeServer, muster: Any, verb: tuple[str, ...]
) -> None:
    """A young installation and `--as-of 1h`: the project is there, and was not."""
    api.on("GET", "/workloads", Reply(body={"workloads": [], "next": None}))
    api.on("GET", "/org-unit/projects", Reply(body={"projects": []}))
    ran = muster("workload", *verb, "-p", "default", "--as-of", "3")
    assert ran.code == 3
    assert "at that moment (--as-of 3) there was no project 'default'" in ran.err
    assert "there was no project that you may see" in ran.err


VERBS_OF_ONE = ("describe", "logs", "suspend", "resume", "delete", "history", "pods", "metrics", "set")


@pytest.mark.parametrize("verb", VERBS_OF_ONE)
@pytest.mark.parametrize("workload", ["hello", WORKLOAD_ID])
def test_a_verb_in_a_project_that_is_not_there_says_so_and_which_there_are(
    api: ShapeServer, muster: Any, verb: str, workload: str
) -> None:
    def listed(request: Request) -> Reply:
        known = "projectName==defualt" not in request.query.get("filterBy", [])
        return Reply(body={"workloads": [workload_row()] if known else [], "next": None})

    api.on("GET", "/workloads", listed)
    more = ("--priority", "high") if verb == "set" else ()
    ran = muster("workload", verb, workload, "-p", "defualt", *more)
    assert (ran.code, ran.out) == (3, "")
    assert "there is no project 'defualt'" in ran.err
    assert "projects that you may see: default" in ran.err
    assert "did you mean 'default'?" in ran.err
    assert all(request.method == "GET" for request in api.requests), "nothing was done"


def test_submitting_to_a_project_that_is_not_there_sends_nothing(api: ShapeServer, muster: Any) -> None:
    ran = muster("training", "submit", "x", "-i", "a", "-p", "vision", "--", "x")
    assert (ran.code, ran.out) == (3, "")
    assert "projects that you may see: default" in ran.err
    assert api.asked("POST", "/workloads/trainings") == []


def test_a_list_is_kept_to_labels(api: ShapeServer, muster: Any) -> None:
    for noun in ("workload", "training"):
        assert muster(noun, "list", "-l", "team=vision,stage in (dev, test)").code == 0
        assert api.requests[-1].query["labelSelector"] == ["team=vision,stage in (dev, test)"]


def test_a_list_is_kept_to_a_project_by_its_id_too(api: ShapeServer, muster: Any) -> None:
    identifier = "0a1b2c3d-4e5f-8a6b-9c7d-0123456789ff"
    assert muster("workload", "list", "-p", identifier).code == 0
    assert api.asked("GET", "/workloads")[0].query["filterBy"] == [f"projectId=={identifier}"]


def test_a_run_whose_log_is_not_there_leads_to_the_runs_that_are(api: ShapeServer, muster: Any) -> None:
    row = {"name": "main-0", "attempt": 3, "run": 7, "phase": "Failed"}
    api.on("GET", f"/workloads/{WORKLOAD_ID}/pods", Reply(body={"pods": [row]}))
    none = {"code": 404, "message": "no log of attempt 9 of pod main-0 is kept", "details": "no_such_run"}
    api.on("GET", f"/workloads/{WORKLOAD_ID}/logs", Reply(404, none))
    ran = muster("training", "logs", "hello", "--attempt", "9")
    assert ran.code == 3
    assert "muster workload pods" in ran.err
    header, line = muster("workload", "pods", "hello").out.splitlines()
    assert header.split()[4:6] == ["ATTEMPT", "RUN"]
    assert line.split()[2:4] == ["3", "7"]


@pytest.mark.parametrize("act", ["grant", "revoke"])
def test_a_role_of_the_tenant_alone_takes_no_project_and_says_why(muster: Any, api: ShapeServer, act: str) -> None:
    ran = muster("role", act, "ann", "administrator", "-p", "default")
    assert ran.code == 2
    assert "administrator always applies to all projects" in ran.err
    assert "leave -p out" in ran.err


def test_the_audit_names_the_project_in_which_something_was_done(api: ShapeServer, muster: Any) -> None:
    [project] = muster("project", "list", "-o", "json").json()
    record = {"sequence": 1, "command": "RevokeProjectRole", "target": "ann: viewer", "outcome": "admitted"}
    rows = [record | {"projectId": project["id"]}, record | {"projectId": "gone"}, record]
    api.on("GET", "/audit", Reply(body={"records": rows, "searchedBackTo": None}))
    lines = muster("audit", "list", "--columns", "target,projectName", "--no-headers").out.splitlines()
    assert [line.split()[2:] for line in lines] == [[project["name"]], ["gone"], []]
    assert "PROJECT" in muster("audit", "list").out.splitlines()[0].split()


def test_what_is_missing_and_no_workload_leads_to_no_list_of_workloads(api: ShapeServer, muster: Any) -> None:
    missing = {"code": 404, "message": "the log has no message 7", "details": "not_found"}
    api.on("POST", "/events/voids", Reply(404, missing))
    ran = muster("log", "void", "7", "--reason", "forged")
    assert ran.code == 3
    assert "training list" not in ran.err


def test_a_message_that_was_declared_void_is_told_so(api: ShapeServer, muster: Any) -> None:
    row = {"sequence": 7, "aggregate": "tenant", "id": None, "events": [], "actor": {"sub": "admin"}}
    api.on("GET", "/events", Reply(body={"events": [row], "next": None}))
    assert "(void)" in muster("log", "list").out


def test_metrics_are_summed_up_for_people_and_whole_for_programs(api: ShapeServer, muster: Any) -> None:
    values = [{"timestamp": f"2026-01-02T03:04:0{n}Z", "value": n} for n in (1, 2, 6)]
    series = [{"type": "CPU_USAGE_CORES", "pod": "main-0", "values": values}]
    api.on("GET", f"/workloads/{WORKLOAD_ID}/metrics", Reply(body={"measurements": series}))
    assert muster("workload", "metrics", "hello", "--no-headers").out.split() == [
        "CPU_USAGE_CORES", "main-0", "6", "1", "3", "6", "3",
    ]  # fmt: skip
    assert muster("workload", "metrics", "hello", "-o", "json").json() == series
    assert muster("workload", "metrics", "hello", "-o", "csv").out.splitlines()[1] == (
        "CPU_USAGE_CORES,main-0,2026-01-02T03:04:01Z,1"
    )


def test_set_changes_what_was_given_under_the_version_that_was_read(api: ShapeServer, muster: Any) -> None:
    api.on("PATCH", f"/workloads/{WORKLOAD_ID}", ACCEPTED)
    assert muster("workload", "set", "hello", "--priority", "high", "--if-match", "7").code == 0
    request = api.requests[-1]
    assert (request.body, request.headers["if-match"]) == ({"priorityClass": "high"}, "7")
    flag = "--auto-deletion-time-after-completion"
    assert muster("workload", "set", "hello", flag, "2h").code == 0
    assert api.requests[-1].body == {"autoDeletionTimeAfterCompletionSeconds": 7200}


def test_events_are_listed_by_page_and_followed_across_a_lost_connection(api: ShapeServer, muster: Any) -> None:
    def commit(sequence: int) -> dict[str, Any]:
        return {"sequence": sequence, "aggregate": "workload", "id": "k", "events": [{"type": "WorkloadCreated"}]}

    def events(request: Request) -> Reply:
        if "order" in request.query:
            assert request.query["order"] == ["desc"]
            before = int(request.query.get("before", ["6"])[0])
            newest = [commit(n) for n in range(before - 1, max(before - 3, 0), -1)]
            return Reply(body={"events": newest, "next": before - 2 if before > 3 else None})
        after = int(request.query.get("after", ["0"])[0])
        if request.query.get("follow") == ["true"]:
            if after >= 4:
                return Reply(403, {"code": 403, "message": "no longer"})
            return Reply(text="".join(json.dumps(commit(n)) + "\n" for n in range(after + 1, after + 3)))
        limit = int(request.query["limit"][0])
        rows = [commit(n) for n in range(after + 1, min(after + limit, 5) + 1)]
        return Reply(body={"events": rows, "next": rows[-1]["sequence"] if after + limit < 5 else None})

    api.on("GET", "/events", events)
    ran = muster("log", "list", "--limit", "0", "-o", "jsonl")
    assert [json.loads(line)["sequence"] for line in ran.out.splitlines()] == [5, 4, 3, 2, 1]
    ran = muster("log", "list", "--limit", "4")
    assert "--before 2" in ran.err
    ran = muster("log", "list", "--type", "PodFailed", "--actor", "ann", "--since", "2h", "--before", "9")
    asked = api.asked("GET", "/events")[-1].query
    assert {name: asked[name] for name in ("type", "actor", "since")} == {
        "type": ["PodFailed"],
        "actor": ["ann"],
        "since": ["7200s"],
    }
    assert muster("log", "list", "--after", "1", "--actor", "ann").code == 2
    ran = muster("log", "list", "--after", "0", "--limit", "3", "-o", "jsonl")
    assert [json.loads(line)["sequence"] for line in ran.out.splitlines()] == [1, 2, 3]
    assert "--after 3" in ran.err
    ran = muster("log", "tail", "--after", "0", "-o", "jsonl")
    assert [json.loads(line)["sequence"] for line in ran.out.splitlines()] == [1, 2, 3, 4]
    assert ran.code == 4


def test_doctor_says_what_to_do_for_each_problem(api: ShapeServer, muster: Any, tmp_path: Path) -> None:
    document = Reply(body={"info": {"version": "1"}}, headers={"Date": "Thu, 01 Jan 2026 00:00:00 GMT"})
    api.routes["GET", "/openapi.json"] = document
    api.on("GET", "/me", Reply(body={"subject": "ann", "tenantRoles": [], "projectRoles": {"p-1": ["researcher"]}}))
    api.on("GET", "/clusters", Reply(body={"clusters": [{"name": "local", "status": "Disconnected"}]}))
    api.on("GET", "/projections", Reply(body={"sequence": 5, "logSequence": 9000, "lag": 8995, "halted": None}))
    observed = {"name": "OBSERVED", "bytes": 9, "maxBytes": 10, "fullness": 0.9, "nearlyFull": True}
    api.on("GET", "/streams", Reply(body={"streams": [observed, observed | {"name": "EVENTS", "nearlyFull": False}]}))
    ran = muster("doctor", "-o", "json")
    assert ran.code == 1
    findings = {finding["check"]: finding for finding in ran.json()["findings"]}
    assert findings["token"]["found"] == "ann: researcher in default"
    assert findings["streams"]["found"] == "nearly full: OBSERVED 90%"
    for check in ("clock", "clusters", "projections", "streams"):
        assert findings[check]["verdict"] == "problem"
        assert findings[check]["todo"]
    assert "→" in muster("doctor").out


def test_projection_status_is_told(api: ShapeServer, muster: Any) -> None:
    status: dict[str, Any] = {
        "schema": "muster_v3", "shape": 9, "sequence": 5, "logSequence": 7, "lag": 2, "lagSeconds": 312.4,
        "bytes": 3_500_000, "since": "2026-01-02T03:04:05Z", "lastRebuild": {"seconds": 75.0, "events": 1200},
        "halted": None, "rebuilding": {"schema": "muster_v4", "sequence": 3, "targetSequence": 7},
        "others": [
            {"schema": "muster_v2", "state": "replaced", "sequence": None, "since": None, "bytes": 10},
            {
                "schema": "muster_until_4", "state": "shadow", "sequence": 4, "since": "2026-01-02T03:04:05Z",
                "bytes": 2048,
            },
        ],
    }  # fmt: skip
    api.on("GET", "/projections", Reply(body=status))
    assert (
        muster("projections", "status", "--utc").out
        == """\
Schema:     muster_v3
Shape:      9
Sequence:   5 of 7 in the log
Behind:     2 commits, for 5m12s
Size:       3.3 MiB
In use:     since 2026-01-02T03:04:05Z; rebuilt in 1m15s from 1,200 events
Rebuilding: muster_v4, 3 of 7

Beside it
SCHEMA          STATE     SEQUENCE  SIZE     SINCE
muster_v2       replaced            10 B
muster_until_4  shadow    4         2.0 KiB  2026-01-02T03:04:05Z
"""
    )
    assert muster("projections", "status", "-o", "json").json() == status


@pytest.mark.parametrize(("phase", "message"), [("Completed", None), ("Failed", "pod main-0 ended with exit code 3")])
def test_a_deletion_that_is_waited_for_tells_that_it_is_gone_and_not_how_it_had_ended(
    api: ShapeServer, muster: Any, phase: str, message: str | None
) -> None:
    def deleted(_request: Request) -> Reply:
        gone = bool(api.asked("DELETE", f"/workloads/trainings/{WORKLOAD_ID}"))
        at = "2026-01-02T03:05:00Z" if gone else None
        return Reply(body=workload_row(phase=phase, phaseMessage=message, deletedAt=at))

    api.on("DELETE", f"/workloads/trainings/{WORKLOAD_ID}", ACCEPTED)
    api.on("GET", f"/workloads/{WORKLOAD_ID}", deleted)
    ran = muster("training", "delete", "hello", "-y", "--wait")
    assert (ran.code, ran.err) == (0, "delete of hello accepted\nhello: Deleted\n")


@pytest.mark.parametrize("verb", ["suspend", "resume"])
def test_what_has_ended_is_done_again_by_resubmit(api: ShapeServer, muster: Any, verb: str) -> None:
    ended = Reply(409, {"code": 409, "message": "'hello' is Completed", "details": "workload_finished"})
    api.on("POST", f"/workloads/trainings/{WORKLOAD_ID}/{verb}", ended)
    ran = muster("training", verb, "hello")
    assert ran.code == 5
    assert "→ `muster training resubmit NAME` makes a new one of the same request" in ran.err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((), "no workloads; `muster training submit` makes one, -A shows all"),
        (("--status", "running"), "no such workloads"),
        (("-l", "team=vision"), "no such workloads"),
        (("--filter", "gpuAllocated>=1"), "no such workloads"),
        (("--search", "x"), "no such workloads"),
        (("--deleted",), "no such workloads"),
    ],
)
def test_an_empty_list_says_that_there_are_none_only_where_all_were_asked_for(
    api: ShapeServer, muster: Any, given: tuple[str, ...], told: str
) -> None:
    api.on("GET", "/workloads", Reply(body={"workloads": [], "next": None}))
    assert muster("workload", "list", *given).err == f"{told}\n"


@pytest.mark.parametrize(
    ("given", "told"), [((), "nothing was written"), (("--tail", "3"), "nothing such was written")]
)
def test_an_empty_log_is_of_lines_that_were_asked_for_only_where_some_were(
    api: ShapeServer, muster: Any, given: tuple[str, ...], told: str
) -> None:
    api.on("GET", f"/workloads/{WORKLOAD_ID}/logs", Reply(text=""))
    assert muster("training", "logs", "hello", *given).err == f"{told}; hello is Running\n"


def test_why_a_run_ended_is_words_and_not_what_the_column_beside_says(api: ShapeServer, muster: Any) -> None:
    pods = [
        {"name": "main-0", "phase": "Failed", "exitCode": 3, "reason": "exit_code"},
        {"name": "main-1", "phase": "Interrupted", "reason": "node_unreachable"},
        {"name": "main-2", "phase": "Failed", "reason": "start", "message": "no such program"},
    ]
    api.on("GET", f"/workloads/{WORKLOAD_ID}/pods", Reply(body={"pods": pods}))
    shown = muster("workload", "pods", "hello", "--columns", "name,exitCode,message", "--no-headers").out
    assert [line.split(maxsplit=2)[1:] for line in shown.splitlines()] == [
        ["3"], ["node", "unreachable"], ["no", "such program"],
    ]  # fmt: skip


def test_a_subscription_begins_a_time_ago_and_what_is_wrong_is_told_by_flag(api: ShapeServer, muster: Any) -> None:
    issues = [{"field": "name", "details": "is taken"}, {"field": "types[0]", "details": "is no type"}]
    refusal = {"code": 400, "message": "two fields are wrong", "complianceIssues": issues}
    api.on("POST", "/subscriptions", Reply(400, refusal))
    ran = muster("subscription", "create", "-p", "default", "--from-time", "2h", "--name", "chat")
    assert "name (--name): is taken" in ran.err
    assert "types[0] (--type): is no type" in ran.err
    assert api.asked("POST", "/subscriptions")[-1].body["fromTime"].endswith("Z")
    api.requests.clear()
    ran = muster("subscription", "create", "-p", "default", "--from-time", "4711")
    assert (ran.code, api.requests) == (ExitCode.USAGE, [])
    assert "--from-time: '4711' is no time" in ran.err


@pytest.mark.parametrize("why", [*get_args(DisabledBecause), "later"])
def test_a_webhook_that_is_disabled_says_why_in_words(api: ShapeServer, muster: Any, why: str) -> None:
    hook = {"id": "w-1", "name": "hook", "url": "https://example.com/", "types": [], "enabled": False}
    api.on("GET", "/webhooks", Reply(body={"webhooks": [{**hook, "disabledBecause": why}]}))
    ran = muster("webhook", "describe", "hook", "-p", "default")
    (because,) = [line.removeprefix("Because:").strip() for line in ran.out.splitlines() if line.startswith("Because:")]
    assert (because == why) == (why == "later"), "a code that a later server has is shown as it is"


def test_a_description_says_who_set_each_field(api: ShapeServer, muster: Any) -> None:
    spec = {
        "image": "a",
        "priorityClass": "low",
        "labels": [{"name": "team", "value": "x"}, {"name": "run", "value": "y"}],
    }
    set_by = {
        "spec.image": "request",
        "spec.priorityClass": "default",
        "spec.labels[0]": "tenant policy",
        "spec.labels[1]": "template nightly",
    }
    api.on("GET", f"/workloads/{WORKLOAD_ID}", Reply(body=workload_row(spec=spec, setBy=set_by)))
    api.on("GET", f"/workloads/{WORKLOAD_ID}/history", Reply(body={"records": [], "next": None}))
    api.on("GET", f"/workloads/{WORKLOAD_ID}/pods", Reply(body={"pods": []}))
    ran = muster("workload", "describe", "hello", "--explain")
    assert ran.code == 0, ran.err
    assert api.asked("GET", f"/workloads/{WORKLOAD_ID}")[-1].query == {"explain": ["true"]}
    lines = {line.split(":")[0].strip(): line.rpartition(":")[2].strip() for line in ran.out.splitlines()}
    assert lines["image"] == "a  (request)"
    assert lines["priorityClass"] == "low"
    assert lines["labels"] == "team=x, run=y  (tenant policy, template nightly)"
