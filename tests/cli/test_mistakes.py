"""A command line that is none of ours: what was typed, and the line that it leads to."""

import shlex
from typing import Any

import pytest

from events.phases import Phase
from muster.cli.exits import ExitCode
from tests.support.shapes import ShapeServer


def meant(error: str) -> str:
    """The line of the hint."""
    [line] = [line for line in error.splitlines() if "→" in line]
    return line.removeprefix("  → did you mean: ")


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("logs x", "muster training logs x"),
        ("lgos x", "muster training logs x"),
        ("submit hello -i a -- b", "muster training submit hello -i a -- b"),
        ("trainin submit x", "muster training submit x"),
        ("trainings sumbit x", "muster training submit x"),
        ("Training list", "muster training list"),
        ("jobs", "muster training list"),
        ("workload lst", "muster workload list"),
        ("workload delte x", "muster workload delete x"),
        ("training standard lgs x", "muster training logs x"),
        ("ps", "muster workload list"),
        ("ls", "muster workload list"),
        ("rm hello", "muster workload delete hello"),
        ("get workloads", "muster workload list"),
        ("get workload hello", "muster workload describe hello"),
        ("get projects -o wide", "muster project list -o wide"),
        ("delete workload x", "muster workload delete x"),
        ("workload rm 'has space'", "muster workload delete 'has space'"),
        ("workload get x", "muster workload describe x"),
        ("workload get", "muster workload list"),
        ("cluster rm x", "muster cluster remove x"),
        ("project new x", "muster project create x"),
        ("sreport -p vision", "muster usage -p vision"),
        ("stats", "muster top"),
        ("get pods", "muster workload list"),
        ("get pods hello", "muster workload pods hello"),
        ("wait hello --for running", "muster workload wait hello --for running"),
        ("workload list --max-items 5", "muster workload list --limit 5"),
        ("workload top hello", "muster workload metrics hello"),
        ("node rm vm", "muster node remove vm"),
        ("training rm x --token secret", "muster training delete x --token TOKEN"),
    ],
)
def test_a_command_that_is_not_there_leads_to_the_nearest(muster: Any, typed: str, line: str) -> None:
    ran = muster(*shlex.split(typed))
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert meant(ran.err) == line


@pytest.mark.parametrize("typed", ["node evict vm", "user delete ann", "events rm 7"])
def test_no_hint_changes_something_of_another_kind(muster: Any, typed: str) -> None:
    ran = muster(*typed.split())
    assert ran.code == ExitCode.USAGE
    assert "did you mean" not in ran.err
    assert "  → commands: list" in ran.err


def test_of_a_verb_that_several_kinds_have_none_is_guessed_where_it_changes_something(muster: Any) -> None:
    ran = muster("remove", "x")
    assert "say of what: `muster cluster remove`, `muster node remove`, `muster nodepool remove`" in ran.err
    assert "did you mean" not in ran.err


def test_a_reading_verb_is_never_taken_for_one_that_changes(muster: Any) -> None:
    for word in ("lst", "get", "sed"):
        assert "did you mean: muster workload set" not in muster("workload", word, "x").err


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("training submit hello -i a --gpu 1 -- x", "muster training submit hello -i a --gpu-devices-request 1 -- x"),
        ("training submit hello --memory=3G -i a", "muster training submit hello --cpu-memory-request=3G -i a"),
        ("training submit hello --imge a -- x --imge b", "muster training submit hello --image a -- x --imge b"),
        ("training list --statuss Pending", "muster training list --status Pending"),
        ("training list -n vision", "muster training list --project vision"),
        ("training logs x -n5", "muster training logs x --tail 5"),
        ("training delete x --force", "muster training delete x --yes"),
        ("training submit x -i a --array 1-4 -- y", "muster training submit x -i a --sweep 1-4 -- y"),
        ("workload list --chunk-size 5", "muster workload list --page-size 5"),
    ],
)
def test_a_flag_that_is_not_there_leads_to_the_line_with_the_nearest(muster: Any, typed: str, line: str) -> None:
    ran = muster(*typed.split())
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert meant(ran.err) == line


def test_a_flag_that_begins_several_names_them(muster: Any) -> None:
    ran = muster("training", "submit", "x", "-i", "a", "--gpu-mem", "3")
    assert "did you mean --gpu-memory-request or --gpu-memory-limit?" in ran.err
    assert (
        "--dry-run needs a value\n  → --dry-run=client or --dry-run=server"
        in muster("training", "submit", "x", "--dry-run").err
    )
    assert "--dry-run takes no value" in muster("apply", "-f", "x", "--dry-run=server").err
    assert "usage: muster training submit [OPTIONS] [NAME]" in muster("training", "submit", "--name", "x").err


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("hello -i a python train.py", "hello -i a -- python train.py"),
        ("hello -i a python train.py --epochs 3 -x", "hello -i a -- python train.py --epochs 3 -x"),
        ("hello -i a -g1 python -c 'print(1)'", "hello -i a -g1 -- python -c 'print(1)'"),
        ("hello python train.py -i a --priority=high", "hello -i a --priority=high -- python train.py"),
        ("--name-prefix nightly -i a python train.py", "--name-prefix nightly -i a -- python train.py"),
    ],
)
def test_forgotten_dashes_are_put_into_the_whole_line(muster: Any, api: ShapeServer, typed: str, line: str) -> None:
    ran = muster("--quiet", "training", "submit", *shlex.split(typed))
    assert (ran.code, ran.out, api.requests) == (ExitCode.USAGE, "", [])
    assert meant(ran.err) == f"muster --quiet training submit {line}"
    assert muster(*shlex.split(meant(ran.err))[1:], "--dry-run=client").code != ExitCode.USAGE


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("training logs", "WORKLOAD is missing"),
        ("training logs x y", "there is no place for (y)"),
        ("training logs x --tail", "--tail needs a value"),
        ("training logs x --tail no", "--tail: 'no' is not a whole number"),
        ("training submit x -i a --cpu-memory-request 4", "--cpu-memory-request: 4 is 4 bytes"),
        ("training submit x -i a --pvc path=/d,claimInfo.size=50", "spec.storage.pvc.claimInfo.size: 50 is 50 bytes"),
        ("training list --statuss Pending", "there is no flag --statuss"),
        ("workload list --cluster x", "there is no flag --cluster"),
        ("no-such-command", "there is no command 'no-such-command'"),
    ],
)
def test_an_error_is_told_once_and_in_one_way(muster: Any, typed: str, told: str) -> None:
    ran = muster(*typed.split())
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    first, *hints = ran.err.splitlines()
    assert first == f"muster: {told}"
    assert all(line.startswith("  → ") for line in hints)
    assert len(hints) <= 1


@pytest.mark.parametrize(("given", "phase"), [("pending", "Pending"), ("RUNNING", "Running")])
def test_a_status_is_understood_whatever_its_capitals(api: ShapeServer, muster: Any, given: str, phase: str) -> None:
    assert muster("workload", "list", "--status", given, "-o", "JSON").code == 0
    assert api.asked("GET", "/workloads")[0].query["filterBy"] == [f"phase=={phase}"]


def test_several_phases_are_those_that_are_none_of_the_others(api: ShapeServer, muster: Any) -> None:
    assert muster("workload", "list", "--status", "pending, Running", "-o", "json").code == 0
    others = {f"phase!={phase}" for phase in Phase if phase not in {Phase.PENDING, Phase.RUNNING}}
    assert set(api.asked("GET", "/workloads")[0].query["filterBy"]) == others
    assert "no phase 'x'" in muster("workload", "list", "--status", "Pending,x").err


def test_a_status_that_is_none_leads_to_the_nearest(api: ShapeServer, muster: Any) -> None:
    ran = muster("workload", "list", "--status", "pendng")
    assert (ran.code, api.requests) == (ExitCode.USAGE, [])
    assert "--status: there is no phase 'pendng'\n  → did you mean 'Pending'?" in ran.err
    assert "`--deleted` lists what was deleted" in muster("workload", "list", "--status", "deleted").err
    assert "phases: Creating, " in muster("workload", "list", "--status", "xyz").err


def test_a_flag_that_a_list_does_not_have_leads_to_the_filter_that_does_the_same(muster: Any) -> None:
    assert "→ --filter 'clusterName==NAME' lists those of one" in muster("workload", "list", "--cluster", "x").err
    assert "→ --filter 'submittedBy==NAME' lists those of one" in muster("training", "list", "--owner=me").err


def test_half_a_gpu_leads_to_the_flags_of_shares(api: ShapeServer, muster: Any) -> None:
    ran = muster("training", "submit", "x", "-i", "a", "-g", "0.5")
    assert ran.code == ExitCode.USAGE
    assert "→ a part of a GPU: --gpu-request-type portion --gpu-portion-request 0.5" in ran.err
    alone = muster("training", "submit", "x", "-i", "a", "--gpu-portion-request", "0.5", "--dry-run=client")
    assert "is possible only where gpuRequestType is portion: --gpu-request-type portion" in alone.err


def test_the_port_of_a_server_is_not_taken_for_its_priority(muster: Any) -> None:
    ran = muster("inference", "submit", "chat", "-i", "my/server", "--port", "8000")
    assert ran.code == ExitCode.USAGE
    assert meant(ran.err) == "muster inference submit chat -i my/server --serving-port 8000"
