"""The other verbs: what they ask of the API, and how a name becomes an id."""

import json
import os
import pty
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest

from events.webhooks import DisabledBecause
from muster.cli.exits import ExitCode
from muster.cli.log_stream import without_cuts
from tests.support import openb
from tests.support.shapes import WORKLOAD_ID, Reply, Request, ShapeServer, use_row, workload_row

ACCEPTED = Reply(202, {"code": 202, "message": "accepted"})


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


def test_logs_that_break_off_are_no_success(api: ShapeServer, muster: Any) -> None:
    api.on("GET", f"/workloads/{WORKLOAD_ID}/logs", Reply(text="one\n", broken_off=True))
    ran = muster("training", "logs", "hello")
    assert (ran.code, ran.out) == (9, "one\n")
    assert f"Muster at {api.url} closed the connection before the answer was complete" in ran.err


def test_logs_of_a_removed_cluster_are_not_found_and_not_asked_for_again(api: ShapeServer, muster: Any) -> None:
    gone = {"code": 410, "message": "cluster 'demo' was removed on Monday", "details": "cluster_removed"}
    api.on("GET", f"/workloads/{WORKLOAD_ID}/logs", Reply(410, gone))
    ran = muster("training", "logs", "hello")
    assert ran.code == 3
    assert "was removed on Monday" in ran.err
    assert len(api.asked("GET", f"/workloads/{WORKLOAD_ID}/logs")) == 1


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


def test_a_node_pool_that_is_not_there_is_not_removed(api: ShapeServer, muster: Any) -> None:
    pools = [{"clusterId": "c-1", "name": "a100", "labelKey": "gpu", "labelValue": "a100"}]
    pools.append({"clusterId": "c-1", "name": "default", "labelKey": "", "labelValue": ""})
    api.on("GET", "/node-pools", Reply(body={"nodePools": pools}))
    api.on("DELETE", "/node-pools/c-1/a100", ACCEPTED)
    ran = muster("nodepool", "remove", "a10", "--cluster", "local")
    assert ran.code == 3
    assert "did you mean 'a100'?" in ran.err
    ran = muster("nodepool", "remove", "default", "--cluster", "local")
    assert ran.code == 2
    assert "nodes that are in no other pool" in ran.err
    assert muster("nodepool", "remove", "a100", "--cluster", "local").code == 0
    assert len(api.asked("DELETE", "/node-pools/c-1/a100")) == 1


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


def test_a_simulated_cluster_is_counted_or_read_from_a_csv(api: ShapeServer, muster: Any, tmp_path: Path) -> None:
    api.on("POST", "/clusters", Reply(202, {"id": "c-2", "name": "demo"}))
    assert muster("cluster", "add", "demo", "--simulated", "2x8", "--gpu-memory", "40Gi").code == 0
    [group] = api.requests[-1].body["simulatedNodes"]
    assert (group["names"], group["gpus"], group["gpuMemoryBytes"]) == (["demo-0", "demo-1"], 8, 40 * 1024**3)
    file = tmp_path / "nodes.csv"
    file.write_text(
        "sn,cpu_milli,memory_mib,gpu,model\nn-0,64000,262144,2,P100\nn-1,64000,262144,2,P100\nn-2,500,1,0,\n"
    )
    assert muster("cluster", "add", "trace", "--nodes-csv", str(file)).code == 0
    first, second = api.requests[-1].body["simulatedNodes"]
    assert first["names"] == ["n-0", "n-1"]
    assert (first["cpuCores"], first["memoryBytes"], first["gpuModel"]) == (64.0, 262144 * 1024**2, "P100")
    assert (second["cpuCores"], second["gpus"], second["gpuMemoryBytes"]) == (0.5, 0, 0)


def test_nodes_of_a_csv_have_labels_taints_and_extended_resources(
    api: ShapeServer, muster: Any, tmp_path: Path
) -> None:
    api.on("POST", "/clusters", Reply(202, {"id": "c-2", "name": "demo"}))
    file = tmp_path / "nodes.csv"
    file.write_text(
        "sn,cpu_milli,memory_mib,gpu,model,labels,taints,extended_resources\n"
        "n-0,1000,1,0,,zone=a;run.ai/type=big,team=x:NoSchedule; old:NoExecute,rdma/hca=2\n"
        "n-1,1000,1,0,,,,\n"
    )
    assert muster("cluster", "add", "trace", "--nodes-csv", str(file)).code == 0
    first, second = api.requests[-1].body["simulatedNodes"]
    assert first["labels"] == [{"name": "zone", "value": "a"}, {"name": "run.ai/type", "value": "big"}]
    assert first["taints"] == [
        {"key": "team", "value": "x", "effect": "NoSchedule"},
        {"key": "old", "value": "", "effect": "NoExecute"},
    ]
    assert first["extendedResources"] == [{"resource": "rdma/hca", "amount": 2}]
    assert second["labels"] == second["taints"] == second["extendedResources"] == []


PLACED = "sn,cpu_milli,memory_mib,gpu,model,labels,taints,extended_resources\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{PLACED}n,1,1,0,,zone,,\n", "line 2, column labels: 'zone' is not KEY=VALUE"),
        (f"{PLACED}n,1,1,0,,,team=x,\n", "line 2, column taints: 'team=x' is not KEY=VALUE:EFFECT or KEY:EFFECT"),
        (f"{PLACED}n,1,1,0,,,,a/b=many\n", "line 2, column extended_resources: 'many' is not a whole number"),
        ("sn,gpu\nn,1\n", "has no column 'cpu_milli'"),
        ("sn,cpu_milli,memory_mib,gpu,model\nn,many,1,1,x\n", "line 2, column cpu_milli: 'many' is not a whole number"),
        ("sn,cpu_milli,memory_mib,gpu,model\nn,1,1,1,x\nm,1,1,,x\n", "line 3, column gpu: '' is not a whole number"),
        ("sn,cpu_milli,memory_mib,gpu,model\nn,1\n", "line 2, column gpu: is missing"),
        ("sn,cpu_milli,memory_mib,gpu,model\n,1,1,1,x\n", "line 2, column sn: is empty"),
        ("sn,cpu_milli,memory_mib,gpu,model\nn,1,1,1,x\nm,1,1,1,x\nn,2,1,1,x\n", "line 4, column sn: 'n' is in line 2"),
        ("sn,cpu_milli,memory_mib,gpu,model\nn,1,1,1,x\n\nm,x,1,1,x\n", "line 4, column cpu_milli: 'x'"),
    ],
)
def test_a_cell_of_a_csv_that_will_not_do_is_told_by_line_and_column(
    api: ShapeServer, muster: Any, tmp_path: Path, text: str, told: str
) -> None:
    file = tmp_path / "nodes.csv"
    file.write_text(text)
    ran = muster("cluster", "add", "trace", "--nodes-csv", str(file))
    assert ran.code == 2
    assert told in ran.err
    assert api.requests == []


def test_the_trace_s_own_node_list_is_read_whole(api: ShapeServer, muster: Any) -> None:
    listed = openb.rows(openb.NODES)
    api.on("POST", "/clusters", Reply(202, {"id": "c-2", "name": "openb"}))
    assert muster("cluster", "add", "openb", "--nodes-csv", str(openb.FOLDER / f"{openb.NODES}.csv")).code == 0
    names = [name for group in api.requests[-1].body["simulatedNodes"] for name in group["names"]]
    assert len(names) == len(set(names)) == len(listed)


def test_settings_of_clusters_projects_and_pools(api: ShapeServer, muster: Any) -> None:
    api.on("PATCH", "/clusters/c-1", ACCEPTED)
    assert muster("cluster", "set", "local", "--ownership-protection", "on").code == 0
    assert api.requests[-1].body == {"ownershipProtection": True}
    api.on("PUT", "/org-unit/projects/p-1", ACCEPTED)
    security = {"podSecurity": "restricted", "privileged": False}
    assert muster("project", "set", "default", "--gpu-quota", "none").code == 0
    assert api.requests[-1].body == {"gpuQuota": None, "nodePools": ["a"], **security}
    assert muster("project", "set", "default", "--node-pools", "b, c").code == 0
    assert api.requests[-1].body == {"gpuQuota": 4.0, "nodePools": ["b", "c"], **security}
    assert muster("project", "set", "default", "--pod-security", "none").code == 0
    loose = security | {"podSecurity": None}
    assert api.requests[-1].body == {"gpuQuota": 4.0, "nodePools": ["a"], **loose}
    assert muster("project", "set", "default", "--privileged", "on").code == 0
    assert api.requests[-1].body == {"gpuQuota": 4.0, "nodePools": ["a"], **security, "privileged": True}
    assert "--privileged: 'maybe' is" in muster("project", "set", "default", "--privileged", "maybe").err
    api.on("POST", "/org-unit/projects", Reply(202, {"id": "p-2", "name": "vision"}))
    assert muster("project", "create", "vision", "--gpu-quota", "1.5").code == 0
    assert api.requests[-1].body == {"name": "vision", "gpuQuota": 1.5}
    api.on("POST", "/node-pools", ACCEPTED)
    nodes = [{"labels": {"gpu": "a100"}}, {"labels": {"gpu": "a100", "b": ""}}, {"labels": {"gpu": "t4"}}, {}]
    api.on("GET", "/nodes", Reply(body={"nodes": nodes}))
    ran = muster("nodepool", "add", "fast", "--label", "gpu=a100")
    assert (ran.code, ran.err) == (0, "node pool fast of cluster local set; 2 of 4 nodes carry gpu=a100 now\n")
    asked = api.asked("POST", "/node-pools")[0].body
    assert asked == {"clusterId": "c-1", "name": "fast", "labelKey": "gpu", "labelValue": "a100"}
    assert api.asked("GET", "/nodes")[0].query["clusterId"] == ["c-1"]
    ran = muster("nodepool", "add", "fast", "--label", "gpu=a1000")
    assert "0 of 4 nodes carry gpu=a1000 now; they have gpu=a100, gpu=t4" in ran.err
    ran = muster("nodepool", "add", "fast", "--label", "model=t4")
    assert "0 of 4 nodes carry model=t4 now; `muster node list -o json` shows their labels" in ran.err
    api.on("GET", "/nodes", Reply(body={"nodes": []}))
    assert "it has no nodes yet" in muster("nodepool", "add", "fast", "--label", "model=t4").err


def test_a_setting_that_somebody_else_changed_meanwhile_is_not_put_back(api: ShapeServer, muster: Any) -> None:
    settings = {"gpuQuota": 4.0, "nodePools": ["a"], "podSecurity": None, "privileged": False}
    version = 7

    def read(_: Request) -> Reply:
        return Reply(body={"id": "p-1", "name": "default", **settings}, headers={"X-Version": str(version)})

    def change(request: Request) -> Reply:
        nonlocal version
        if version == 7:  # somebody else is faster
            settings["gpuQuota"], version = 5.0, 8
        if request.headers.get("if-match") != str(version):
            return Reply(412, {"code": 412, "message": "read it again", "details": "version_moved"})
        settings.update(request.body)
        return ACCEPTED

    api.on("GET", "/org-unit/projects/p-1", read)
    api.on("PUT", "/org-unit/projects/p-1", change)
    assert muster("project", "set", "default", "--pod-security", "restricted").code == 0
    assert settings == {"gpuQuota": 5.0, "nodePools": ["a"], "podSecurity": "restricted", "privileged": False}


def test_set_without_a_setting_makes_the_default_of_the_context(
    api: ShapeServer, muster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert muster("context", "add", "here", "--url", api.url, "--token", "t").code == 0
    monkeypatch.delenv("MUSTER_URL")
    assert muster("project", "set", "default").code == 0
    assert muster("cluster", "set", "local").code == 0
    shown = muster("context", "show", "-o", "json").json()
    assert (shown["project"], shown["cluster"]) == ("default", "local")


def test_of_several_clusters_the_one_of_this_machine_is_meant_unless_said(api: ShapeServer, muster: Any) -> None:
    clusters = [{"id": "c-1", "name": "local", "kind": "local"}, {"id": "c-2", "name": "demo", "kind": "simulated"}]
    api.on("GET", "/clusters", Reply(body={"clusters": clusters}))
    assert muster("training", "submit", "hello", "-i", "a").code == 0
    assert api.requests[-1].body["clusterId"] == "c-1"
    api.on("GET", "/clusters", Reply(body={"clusters": [dict(one, kind="simulated") for one in clusters]}))
    ran = muster("training", "submit", "hello", "-i", "a")
    assert ran.code == 2
    assert "local, demo" in ran.err


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


def test_a_pool_that_is_set_or_removed_is_told_with_its_cluster(api: ShapeServer, muster: Any) -> None:
    """Where there are several clusters and none is named, that of this machine is meant."""
    clusters = [{"id": "c-1", "name": "local", "kind": "local"}, {"id": "c-2", "name": "demo", "kind": "simulated"}]
    api.on("GET", "/clusters", Reply(body={"clusters": clusters}))
    api.on("POST", "/node-pools", ACCEPTED)
    api.on("DELETE", "/node-pools/c-1/fast", ACCEPTED)
    api.on("GET", "/node-pools", Reply(body={"nodePools": [{"name": "fast", "clusterId": "c-1"}]}))
    assert "node pool fast of cluster local set" in muster("nodepool", "add", "fast", "--label", "a=b").err
    assert "node pool fast of cluster local removed" in muster("nodepool", "remove", "fast").err


def test_simulated_nodes_of_a_cluster_have_names_that_nodes_may_have(api: ShapeServer, muster: Any) -> None:
    api.on("POST", "/clusters", ACCEPTED)
    assert muster("cluster", "add", "Über uns!", "--simulated", "2x8").code == 0
    body = api.requests[-1].body
    assert (body["name"], body["simulatedNodes"][0]["names"]) == ("Über uns!", ["ber-uns-0", "ber-uns-1"])


def used(*rows: dict[str, Any], more: int | None = None) -> Reply:
    total = use_row("all", running=3, pending=4, gpus=2.5, capacity=16, free=8.0)
    return Reply(body={"rows": list(rows), "total": total, "next": more})


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("top", {"by": ["project"], "sortBy": ["allocated.gpus"], "sortOrder": ["desc"], "limit": ["100"]}),
        ("top users --sort-by gpu-util", {"by": ["user"], "sortBy": ["used.gpuUtilizationPercent"]}),
        ("top pools --sort-by name", {"by": ["nodePool"], "sortBy": ["name"], "sortOrder": ["asc"]}),
        ("top nodes --cluster local", {"by": ["node"], "clusterId": ["c-1"]}),
        ("top workloads -p default", {"by": ["workload"], "projectId": ["p-1"]}),
    ],
)
def test_top_asks_for_sums_of_what_was_named(api: ShapeServer, muster: Any, typed: str, asked: dict[str, Any]) -> None:
    api.on("GET", "/org-unit/projects", Reply(body={"projects": [{"id": "p-1", "name": "default"}]}))
    api.on("GET", "/clusters", Reply(body={"clusters": [{"id": "c-1", "name": "local"}]}))
    api.on("GET", "/usage", used(use_row("a", gpus=2.5)))
    ran = muster(*typed.split())
    assert ran.code == 0, ran.err
    (request,) = api.asked("GET", "/usage")
    assert asked.items() <= request.query.items()
    assert ran.out.splitlines()[0].startswith("NAME")
    assert ran.err == (
        "in all: 2.5 of 16 GPUs allocated, 8 free, 5.5 held by others or on nodes that take no new pods; "
        "3 workloads running, 4 pending\n"
    )


def test_the_sum_under_top_says_nothing_of_others_where_there_are_none(api: ShapeServer, muster: Any) -> None:
    total = use_row("all", running=1, gpus=1.896, capacity=2, free=0.104)
    api.on("GET", "/usage", Reply(body={"rows": [use_row("a", gpus=1.896)], "total": total, "next": None}))
    assert muster("top").err == "in all: 1.896 of 2 GPUs allocated, 0.104 free; 1 workload running, 0 pending\n"


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (use_row("idle"), "idle,0,0,0,,,"),
        (use_row("used", used=True), "used,0,0,0,12.345,77Gi,0"),
        (use_row("odd", gpus=2) | {"allocated": {"gpus": 2, "gpuMemoryBytes": 0, "memoryBytes": 0}}, "odd,,,0,,,"),
    ],
)
def test_an_empty_cell_of_top_means_not_known_and_nothing_is_a_zero(
    api: ShapeServer, muster: Any, row: dict[str, Any], shown: str
) -> None:
    api.on("GET", "/usage", used(row))
    ran = muster("top", "--columns", "name,GPU-MEM,CPU,MEM,CPU-USED,MEM-USED,GPU-MEM-USED")
    heading, cells = ran.out.splitlines()
    starts = [word.start() for word in re.finditer(r"\S+", heading)]
    ends = [*starts[1:], None]
    assert [cells[start:end].strip() for start, end in zip(starts, ends, strict=True)] == shown.split(",")


def test_a_mistyped_heading_of_top_is_answered_with_the_nearest_one(api: ShapeServer, muster: Any) -> None:
    assert "→ did you mean 'GPU-UTIL'" in muster("top", "--sort-by", "gpu-utl").err


def test_the_default_project_does_not_limit_top(api: ShapeServer, muster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_PROJECT", "default")
    api.on("GET", "/usage", used())
    ran = muster("top", "users")
    assert "projectId" not in api.asked("GET", "/usage")[0].query
    assert "nobody has anything that runs or waits" in ran.err


def test_top_reads_further_pages_up_to_its_limit_and_says_that_there_are_more(api: ShapeServer, muster: Any) -> None:
    def page(request: Request) -> Reply:
        offset, limit = (int(request.query[name][0]) for name in ("offset", "limit"))
        return used(*(use_row(f"n{number}") for number in range(offset, min(offset + limit, 900))), more=offset + limit)

    api.on("GET", "/usage", page)
    ran = muster("top", "nodes", "--limit", "600", "-o", "name")
    assert ran.out.split() == [f"n{number}" for number in range(600)]
    assert [request.query["limit"] for request in api.asked("GET", "/usage")] == [["500"], ["100"]]
    assert ran.err == "there are more than 600; --limit 0 shows all\n"


def test_programs_get_the_rows_of_top_as_the_api_gives_them(api: ShapeServer, muster: Any) -> None:
    row = use_row("a", gpus=2.5, used=True)
    api.on("GET", "/usage", used(row))
    ran = muster("top", "-o", "json")
    assert (ran.json(), ran.err) == ([row], "")
    heading, values = muster("top", "-o", "csv", "--columns", "name,GPU,used.cpuCores").out.splitlines()
    assert (heading, values) == ("name,allocated.gpus,used.cpuCores", "a,2.5,12.345")


# -- usage -----------------------------------------------------------------------------------------------------------


def hours_row(name: str, reserved: float, *periods: tuple[str, float], **more: Any) -> dict[str, Any]:
    sums = {"waitingHours": 1.5, "runs": 2}
    shown = [{"begins": begins, "ends": begins, "reservedGpuHours": part, **sums} for begins, part in periods]
    return {
        "name": name,
        "id": None,
        "clusterName": None,
        "periods": shown,
        "reservedGpuHours": reserved,
        **sums,
        **more,
    }


def hours(*rows: dict[str, Any], following: int | None = None) -> Reply:
    total = {"reservedGpuHours": 12.3456, "waitingHours": 3, "runs": 1234}
    span = {"begins": "2026-10-01T00:00:00Z", "ends": "2026-11-01T00:00:00Z"}
    return Reply(body={**span, "rows": list(rows), "total": total, "next": following})


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("usage", {"by": ["project"], "from": ["2026-03-01T00:00:00Z"], "limit": ["100"]}),
        ("usage --by pool --from 7d", {"by": ["nodePool"], "from": ["2026-03-08T10:30:00Z"]}),
        ("usage --by model --from 2026-01-05", {"by": ["gpuModel"], "from": ["2026-01-05T00:00:00Z"]}),
        ("usage --from last-month", {"from": ["2026-02-01T00:00:00Z"], "to": ["2026-03-01T00:00:00Z"]}),
        ("usage --from last-month --to 1h", {"from": ["2026-02-01T00:00:00Z"], "to": ["2026-03-15T09:30:00Z"]}),
        ("usage --by user --owner ann -p default", {"by": ["user"], "owner": ["ann"], "projectId": ["p-1"]}),
        ("usage --per day --cluster local", {"per": ["day"], "clusterId": ["c-1"]}),
    ],
)
def test_usage_asks_for_the_span_and_sums_that_were_named(
    api: ShapeServer, muster: Any, monkeypatch: pytest.MonkeyPatch, typed: str, asked: dict[str, Any]
) -> None:
    monkeypatch.setattr("muster.cli.usage.now", lambda: datetime(2026, 3, 15, 10, 30, tzinfo=UTC))
    api.on("GET", "/org-unit/projects", Reply(body={"projects": [{"id": "p-1", "name": "default"}]}))
    api.on("GET", "/clusters", Reply(body={"clusters": [{"id": "c-1", "name": "local"}]}))
    api.on("GET", "/usage/hours", hours(hours_row("vision", 12.3456, ("2026-10-01T00:00:00Z", 12.3456))))
    ran = muster(*typed.split())
    assert ran.code == 0, ran.err
    (request,) = api.asked("GET", "/usage/hours")
    assert asked.items() <= request.query.items()
    assert ("to" in request.query) == ("to" in asked)
    assert ran.err == (
        "from 2026-10-01T00:00:00Z to 2026-11-01T00:00:00Z: 12.346 GPU hours reserved, 3 hours waited, 1,234 runs\n"
    )


def test_usage_per_day_is_a_row_for_each_day_and_name_in_order_of_time(api: ShapeServer, muster: Any) -> None:
    first, second = "2026-10-01T00:00:00Z", "2026-10-02T00:00:00Z"
    api.on("GET", "/usage/hours", hours(hours_row("a", 3, (first, 1), (second, 2)), hours_row("b", 4, (first, 4))))
    ran = muster("usage", "--per", "day", "--columns", "PERIOD,name,GPU-HOURS")
    assert [line.split() for line in ran.out.splitlines()] == [
        ["PERIOD", "NAME", "GPU-HOURS"], ["2026-10-01", "a", "1"], ["2026-10-01", "b", "4"], ["2026-10-02", "a", "2"]
    ]  # fmt: skip
    heading, *values = muster("usage", "--per", "day", "-o", "csv").out.splitlines()
    assert (
        heading
        == "begins,ends,name,reservedGpuHours,usedGpuHours,measuredGpuHours,waitingHours,runs,cost,unpricedGpuHours,id"
    )
    assert values[0] == f"{first},{first},a,1,,,1.5,2,,,"


def test_usage_tells_how_busy_gpus_were_and_of_how_much_that_is_known(api: ShapeServer, muster: Any) -> None:
    """Of what nobody measured it says nothing, and not zero."""
    measured = hours_row("a", 20, usedGpuHours=5, measuredGpuHours=12.5)
    unknown = hours_row("b", 8, usedGpuHours=None, measuredGpuHours=0)
    found = hours(measured, unknown)
    found.body["total"] |= {"usedGpuHours": 5, "measuredGpuHours": 12.5}
    api.on("GET", "/usage/hours", found)
    ran = muster("usage", "--columns", "NAME,GPU-HOURS,USED-HOURS,MEASURED-HOURS")
    assert [line.split() for line in ran.out.splitlines()[1:]] == [["a", "20", "5", "12.5"], ["b", "8", "-", "0"]]
    assert "12.346 GPU hours reserved (5 used of 12.5 measured), 3 hours waited" in ran.err


def test_usage_reads_further_pages(api: ShapeServer, muster: Any) -> None:
    def page(request: Request) -> Reply:
        offset, limit = (int(request.query[name][0]) for name in ("offset", "limit"))
        rows = [hours_row(f"n{number}", 1) for number in range(offset, offset + limit)]
        return hours(*rows, following=offset + limit)

    api.on("GET", "/usage/hours", page)
    ran = muster("usage", "--limit", "600", "-o", "name")
    assert ran.out.split() == [f"n{number}" for number in range(600)]
    assert ran.err == "there are more than 600 names; --limit 0 shows all\n"


def test_a_time_that_is_none_is_told_with_the_forms_that_there_are(api: ShapeServer, muster: Any) -> None:
    ran = muster("usage", "--from", "yesterday")
    assert (ran.code, api.requests) == (ExitCode.USAGE, [])
    assert "--from: 'yesterday' is no time" in ran.err
    assert "a time ago as 7d, this-month or last-month" in ran.err


def test_usage_takes_no_bare_number_which_is_a_sequence_elsewhere(api: ShapeServer, muster: Any) -> None:
    ran = muster("usage", "--from", "4711")
    assert (ran.code, api.requests) == (ExitCode.USAGE, [])
    assert "--from: '4711' is no time" in ran.err


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


PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The pictures that were drawn: stdout of a test takes no bytes."""
    pictures: list[bytes] = []
    monkeypatch.setattr("muster.cli.output.Output.picture", lambda _, data: pictures.append(data))
    return pictures


@pytest.mark.parametrize("typed", ["usage -o png", "usage --per day -o png"])
def test_usage_draws_a_picture(api: ShapeServer, muster: Any, drawn: list[bytes], typed: str) -> None:
    days = [(f"2026-10-{day:02}T00:00:00Z", 1.5) for day in range(1, 20)]
    rows = [hours_row(f"_project $x^{number}", 30 - number, *days) for number in range(25)]
    api.on("GET", "/usage/hours", hours(*rows))
    ran = muster(*typed.split())
    assert (ran.code, ran.err) == (0, "")
    (picture,) = drawn
    assert picture.startswith(PNG)
    assert len(picture) > 5_000


def test_a_picture_of_nothing_is_a_picture(api: ShapeServer, muster: Any, drawn: list[bytes]) -> None:
    api.on("GET", "/usage/hours", hours())
    assert [muster(*typed.split()).code for typed in ("usage -o png", "usage --per month -o png")] == [0, 0]
    assert [picture.startswith(PNG) for picture in drawn] == [True, True]


def test_what_has_no_picture_says_so(api: ShapeServer, muster: Any) -> None:
    ran = muster("top", "-o", "png")
    assert (ran.code, ran.out, api.requests) == (ExitCode.USAGE, "", [])
    assert "`muster top` draws no picture" in ran.err


def test_a_picture_without_the_library_names_what_to_install(
    api: ShapeServer, muster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    api.on("GET", "/usage/hours", hours(hours_row("a", 1)))
    ran = muster("usage", "-o", "png")
    assert (ran.code, ran.out) == (ExitCode.FAILURE, "")
    assert "pip install 'muster[charts]'" in ran.err


@pytest.mark.parametrize("why", [*get_args(DisabledBecause), "later"])
def test_a_webhook_that_is_disabled_says_why_in_words(api: ShapeServer, muster: Any, why: str) -> None:
    hook = {"id": "w-1", "name": "hook", "url": "https://example.com/", "types": [], "enabled": False}
    api.on("GET", "/webhooks", Reply(body={"webhooks": [{**hook, "disabledBecause": why}]}))
    ran = muster("webhook", "describe", "hook", "-p", "default")
    (because,) = [line.removeprefix("Because:").strip() for line in ran.out.splitlines() if line.startswith("Because:")]
    assert (because == why) == (why == "later"), "a code that a later server has is shown as it is"
