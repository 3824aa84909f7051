"""`muster plan` and `muster explain`: what is asked, shown and refused."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.cli.explain import ONE_OF
from services.scheduler.policy.registry import POLICY
from tests.support.shapes import Ran, Reply, ShapeServer, workload_row

type Muster = Callable[..., Ran]
ID = "00000000-0000-4000-8000-00000000000a"


def placement(outcome: str, **more: Any) -> dict[str, Any]:
    usual = {"placed": [], "moreNodes": 0, "waitingPods": 0, "reason": None, "message": None}
    return {"outcome": outcome, **usual, "evicted": [], "evictedPodsElsewhere": 0, **more}


def evaluated(outlook: dict[str, Any] | None, *issues: dict[str, Any]) -> Reply:
    told = {"accepted": not issues, "fields": [], "issues": [*issues], "notYetInForce": []}
    return Reply(body=told | ({"placement": outlook} if outlook else {}))


FILES = """
kind: Training
name: a
spec: {image: i}
---
kind: Workspace
name: b
spec: {image: i}
---
kind: Distributed
name: c
spec: {image: i, distributedFramework: JAX}
---
kind: Inference
name: d
spec: {image: i, servingPort: {container: 8000}}
"""


def test_a_plan_says_of_each_workload_of_any_kind_where_it_would_run_why_it_would_wait_and_whom_it_evicts(
    api: ShapeServer, muster: Muster, tmp_path: Path
) -> None:
    run = {"podSet": "main", "node": "n1", "nodePool": "default", "pods": 2, "gpus": 4.0}
    low = {"workloadId": ID, "name": "low", "pods": 1, "rule": "preempted"}
    kept = {"workloadId": ID, "name": "mid", "workloads": 1, "until": "2026-01-02T03:14:05.5Z", "message": "it may run"}
    answers = {
        "trainings": evaluated(placement("runs", placed=[run])),
        "workspaces": evaluated(
            placement("waits", waitingPods=1, evicted=[low], evictedPodsElsewhere=2, message="m", kept=[kept])
        ),
        "distributed": evaluated(placement("never", waitingPods=3, reason="no_matching_node", message="too large")),
        "inferences": evaluated(None, {"field": "spec.image", "details": "is not allowed"}),
    }
    for kind, reply in answers.items():
        api.on("POST", f"/workloads/{kind}:evaluate", reply)
    file = tmp_path / "many.yaml"
    file.write_text(FILES)
    ran = muster("plan", "-f", str(file), "-o", "wide")
    assert ran.code == 6, ran.err
    lines = {line.split()[0]: line for line in ran.out.splitlines()}
    assert "runs" in lines["a"]
    assert "n1 (2 pods, 4 GPU)" in lines["a"]
    assert "low (preempted), 2 pods of other projects" in lines["b"]
    assert "m; it may not take the place of mid, until 2026-01-02T03:14:05Z: it may run" in lines["b"]
    assert "no_matching_node" in lines["c"]
    assert "refused" in lines["d"]
    assert "nothing was stored" in ran.err
    (asked,) = api.asked("POST", "/workloads/trainings:evaluate")
    assert asked.query == {"placement": ["true"]}
    assert asked.body["name"] == "a"
    assert asked.body["projectId"]
    assert not [one for one in api.requests if one.method != "GET" and not one.path.endswith(":evaluate")]
    file.write_text("name: a\nspec: {image: i}\n")
    alone = muster("plan", "--kind", "Training", "-f", str(file), "-o", "json")
    assert (alone.code, alone.json()[0]["placed"]) == (0, [run])
    wrong = muster("plan", "--kind", "Trainning", "-f", str(file))
    assert (wrong.code, "--kind: there is no kind 'Trainning'\n  → did you mean 'Training'" in wrong.err) == (2, True)


@pytest.mark.parametrize(
    ("text", "kind", "collection"),
    [
        ("masterSpec: {image: j}\nspec: {image: i}", "Distributed", "distributed"),
        ("spec: {image: i, numWorkers: 2}", "Distributed", "distributed"),
        ("spec: {image: i, servingPort: {container: 8000}}", "Inference", "inferences"),
        ("spec: {image: i, completions: 2}", "Training", "trainings"),
    ],
)
def test_fields_that_one_kind_has_say_the_kind(  # noqa: PLR0917 - fixtures and cases
    api: ShapeServer, muster: Muster, tmp_path: Path, text: str, kind: str, collection: str
) -> None:
    api.on("POST", f"/workloads/{collection}:evaluate", evaluated(placement("runs")))
    file = tmp_path / "one.yaml"
    file.write_text(f"name: a\n{text}\n")
    ran = muster("plan", "-f", str(file), "-o", "json")
    assert (ran.code, ran.json()[0]["kind"]) == (0, kind), ran.err


def test_a_file_that_may_be_of_several_kinds_is_taken_for_none(
    api: ShapeServer, muster: Muster, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text("name: a\nspec: {image: i}\n")
    (tmp_path / "b.yaml").write_text("name: b\nspec: {image: i, backoffLimit: 2}\n")
    (tmp_path / "c.yaml").write_text("kind: Workspace\nname: c\nspec: {image: i}\n")
    for verb, more in (("plan", ", or give --kind"), ("apply", "")):
        ran = muster(verb, "-f", str(tmp_path / "a.yaml"))
        kinds = "`kind: Training` or `kind: Distributed` or `kind: Workspace` or `kind: Inference`"
        assert ran.code == 2
        assert f"a.yaml has no kind, and its fields do not say which it is\n  → write {kinds} into it{more}" in ran.err
        ran = muster(verb, "-f", str(tmp_path))
        assert (ran.code, "2 workloads have no kind" in ran.err) == (2, True), ran.err
        assert f"a.yaml: {kinds}\n" in ran.err
        assert "b.yaml: `kind: Training` or `kind: Distributed` or `kind: Workspace`\n" in ran.err
        assert f"→ write its kind into each{more}" in ran.err
    assert not [one for one in api.requests if one.method != "GET"]


def test_a_file_that_holds_no_workload_is_refused(muster: Muster, tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text("")
    assert muster("plan", "-f", str(file)).code == 2
    file.write_text("kind: Trainning\nname: a\n")
    ran = muster("plan", "-f", str(file))
    assert (ran.code, "Training" in ran.err) == (2, True)


def explanation(**more: Any) -> dict[str, Any]:
    others = {"workloads": 0, "pods": 0, "gpus": 0.0}
    usual: dict[str, Any] = {"phaseReason": None, "phaseMessage": None, "reason": None, "message": None}
    usual |= {"waitingPods": 0, "ahead": 0, "nodes": [], "holders": [], "otherHolders": others, "changes": []}
    return {"id": ID, "name": "hello", **usual, "places": [], "eviction": None, **more}


WAITS = explanation(
    phase="Pending", outcome="waits", reason="insufficient_gpu", message="2 short of GPU", waitingPods=3, ahead=1,
    nodes=[{"pods": "4 GPUs", "ground": "gpu", "nodes": 2, "message": "short of GPU (need 4, largest free 1)"}],
    holders=[{
        "workloadId": ID, "name": "holder", "projectId": ID, "pods": 1, "gpus": 7.0, "cpuCores": 2.5,
        "memoryBytes": 3 * 1024**3,
    }],
    otherHolders={"workloads": 2, "pods": 9, "gpus": 5.0},
    changes=[{"message": "wait until these end, or end them: holder", "steps": []}],
    eviction={
        "at": "2026-01-02T03:04:05Z", "by": "scheduler", "rule": "reclaimed", "message": "needs its place", "pods": 3,
        "forWorkloadId": None, "forWorkload": None,
    },
)  # fmt: skip
BY_CLUSTER = explanation(
    phase="Pending", outcome="waits", reason="no_nodes", message="cordoned", waitingPods=1,
    nodes=[
        {"pods": "1 GPU", "ground": "cordoned", "nodes": 2, "message": "n0 cordoned by ann", "cluster": "lab"},
        {"pods": "1 GPU", "ground": "gpu", "nodes": 1, "message": "short of GPU", "cluster": "attic"},
    ],
    changes=[{
        "message": "uncordon node n0 of cluster lab",
        "steps": [{"act": "uncordon_node", "of": "n0", "cluster": "lab"}],
    }],
)  # fmt: skip
BY_PODS = explanation(
    phase="Pending", outcome="waits", reason="insufficient_gpu", message="short of GPU", waitingPods=6,
    nodes=[
        {"pods": "master: room for a pod", "ground": "room", "nodes": 4, "message": "with room for such a pod now"},
        {"pods": "worker: 4 GPUs", "ground": "room", "nodes": 4, "message": "with room for such a pod now"},
    ],
)  # fmt: skip
SCORES = [{"name": "gpu_price", "value": 1500}, {"name": "free_cpu", "value": 62500}]
CHOSEN = {"node": "n1", "nodePool": "default", "scores": SCORES}
RUNS = explanation(
    phase="Running", outcome="runs",
    places=[{
        "podSet": "main", "node": "n1", "nodePool": "default", "pods": 1, "rank": 1, "chosen": CHOSEN,
        "others": [{**CHOSEN, "node": "n2"}],
        "refused": [{"pods": "1 GPU", "ground": "size", "nodes": 3, "message": "too small even when empty"}],
    }],
)  # fmt: skip
SUSPENDED = explanation(phase="Stopped", outcome="ended")
DELETING = explanation(phase="Deleting", outcome="ended", message="1 pod that it left on cluster a may still run")
ENDED = explanation(
    phase="Failed", outcome="ended", phaseReason="backoff_limit_exceeded", message="it asks for no place",
    phaseMessage="pod main-0 ended with exit code 1",
)  # fmt: skip
NEVER = explanation(
    phase="Pending", outcome="never", reason="no_matching_node", message="no", waitingPods=1, noEstimate="x"
)
KEPT = {"workloadId": ID, "name": "low", "workloads": 1, "until": "2026-01-02T03:14:05.5Z", "message": "it may"}
HIDDEN = {**KEPT, "workloadId": None, "name": None, "workloads": 2, "until": None}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            WAITS,
            (
                "it waits (3 pods)", "insufficient_gpu", "2 short of GPU", "1 workload", "largest free 1", "holder",
                "7 GPU, 2.5 cores, 3 GiB", "and 2 more workloads, with 5 GPU", "wait until these end",
                "rule reclaimed: 3 pods", "needs its place",
            ),
        ),
        (
            RUNS,
            (
                "it runs", "Why n1", "GPU PRICE", "n2", "no other node would be better", "3 nodes: too small",
                "1.5        62.5",
            ),
        ),
        (BY_CLUSTER, ("CLUSTER", "lab", "attic", "muster node uncordon n0 --cluster lab")),
        (BY_PODS, ("PODS", "master: room for a pod", "worker: 4 GPUs")),
        (RUNS | {"keepsItsPlace": KEPT}, ("Keeps its place: until 2026-01-02T03:14:05Z: it may",)),
        (
            WAITS | {"kept": [KEPT, HIDDEN]},
            (
                "Whose place it may not take", "low, until 2026-01-02T03:14:05Z: it may",
                "2 workloads that you may not see, for good: it may",
            ),
        ),
        (
            WAITS | {"changes": [
                {"message": "set", "steps": [{"act": "set_quota", "of": "project small", "value": 2.0}]},
                {"message": "as", "steps": [
                    {"act": "change_workload", "field": "spec.preemptibility", "value": "preemptible"}
                ]},
                {"message": "less", "steps": [
                    {"act": "change_workload", "field": "spec.compute.gpuDevicesRequest", "value": 1}
                ]},
                {"message": "un", "steps": [{"act": "uncordon_node", "of": "a"}]},
            ]},
            (
                "muster project set small --gpu-quota 2", "--preemptibility preemptible", "--allow-over-quota",
                "--gpu-devices-request 1", "muster node uncordon a",
            ),
        ),
        (SUSPENDED, ("it is suspended, and asks for no place until it is resumed",)),
        (DELETING, ("it is being deleted", "1 pod that it left on cluster a may still run")),
        (NEVER, ("it cannot ever fit as written", "no small change")),
        (ENDED, ("it has ended", "backoff_limit_exceeded", "pod main-0 ended with exit code 1")),
    ],
    ids=[
        "waits", "runs", "by cluster", "by pods", "keeps", "may not take", "changes", "suspended", "deleting", "never",
        "ended",
    ],
)  # fmt: skip
def test_an_explanation_says_all_that_a_person_needs(
    api: ShapeServer, muster: Muster, answer: dict[str, Any], told: tuple[str, ...]
) -> None:
    api.on("GET", f"/workloads/{ID}/explain", Reply(body=answer))
    ran = muster("explain", ID)
    assert ran.code == 0, ran.err
    for words in told:
        assert words in ran.out
    assert muster("explain", ID, "-o", "json").json() == answer


@pytest.mark.parametrize("asked", [True, False])
def test_a_description_of_what_is_being_deleted_says_for_what_that_waits(
    api: ShapeServer, muster: Muster, asked: bool
) -> None:
    api.on("GET", f"/workloads/{ID}", Reply(body=workload_row(id=ID, phase="Deleting", phaseMessage="before")))
    unknown = DELETING | {"outcome": "unknown", "message": "ask again"}
    api.on("GET", f"/workloads/{ID}/explain", Reply(body=DELETING if asked else unknown))
    api.on("GET", f"/workloads/{ID}/history", Reply(body={"records": []}))
    ran = muster("workload", "describe", ID, "--section", "general")
    assert ran.code == 0, ran.err
    (line,) = [line for line in ran.out.splitlines() if line.startswith("Why")]
    assert line.endswith(DELETING["message"] if asked else "before")


@pytest.mark.parametrize(
    ("field", "value", "flags"),
    [
        (
            "spec.tolerations",
            [{"operator": "Exists", "key": "team", "effect": "Any"}],
            "--toleration operator=Exists,key=team,effect=Any",
        ),
        (
            "spec.tolerations",
            [
                {"operator": "Equal", "key": "mine", "value": "x", "effect": "NoExecute", "seconds": 60},
                {"name": "the team", "operator": "Exists", "key": "team", "effect": "Any"},
            ],
            (
                "--toleration operator=Equal,key=mine,value=x,effect=NoExecute,seconds=60"
                " --toleration 'name=the team,operator=Exists,key=team,effect=Any'"
            ),
        ),
        ("spec.nodePools", ["h100"], "--node-pools h100"),
    ],
    ids=["one", "several", "texts"],
)
def test_below_a_change_of_a_list_stand_the_flags_that_give_it_and_both_commands_take_them(
    api: ShapeServer, muster: Muster, field: str, value: Any, flags: str
) -> None:
    step = {"act": "change_workload", "field": field, "value": value}
    api.on("GET", f"/workloads/{ID}/explain", Reply(body=WAITS | {"changes": [{"message": "x", "steps": [step]}]}))
    (line,) = [line.strip() for line in muster("explain", ID).out.splitlines() if flags in line]
    submit, _, again = line.partition("; of resubmit ")
    assert submit == flags
    api.on("GET", f"/workloads/{ID}", Reply(body=workload_row(id=ID, spec={"image": "i"})))
    for words in (["submit", "a", "-i", "i", *shlex.split(submit)], ["resubmit", ID, *shlex.split(again)]):
        ran = muster("training", *words)
        assert ran.code == 0, ran.err
        sent = api.asked("POST", "/workloads/trainings")[-1].body
        assert sent["spec"][field.removeprefix("spec.")] == value
    # What is otherwise is told as it was typed.
    assert "{" not in ran.err


def test_each_score_of_the_scheduler_is_shown_in_gpus_cores_or_taints() -> None:
    assert {score.name for score in POLICY.scores} == set(ONE_OF)


ESTIMATED = WAITS | {
    "estimate": {
        "earliest": "2999-01-01T00:00:00Z", "latest": "2999-01-02T00:00:00Z", "measured": 40,
        "typicalErrorPercent": 12.5, "latestKnown": False,
    }
}  # fmt: skip


def test_an_estimate_is_one_span_and_says_how_good_such_ones_were(api: ShapeServer, muster: Muster) -> None:
    api.on("GET", f"/workloads/{ID}/explain", Reply(body=ESTIMATED))
    (line,) = [line for line in muster("explain", ID).out.splitlines() if line.startswith("Expected to start")]
    assert re.fullmatch(r".* in \S+ to \S+ \(4 of 5 past estimates held; of 40, half were less than 12.5 % off\)", line)
    shown = muster("explain", ID, "--utc").out
    assert "2999-01-01T00:00:00Z to 2999-01-02T00:00:00Z (4 of 5" in shown
    known = {"latestKnown": True, "measured": 0, "typicalErrorPercent": 0}
    api.on("GET", f"/workloads/{ID}/explain", Reply(body=ESTIMATED | {"estimate": ESTIMATED["estimate"] | known}))
    shown = muster("explain", ID, "--utc").out
    assert "2999-01-02T00:00:00Z (no later: what it waits for has ended by then" in shown
    assert "past estimates" not in shown
    api.on("GET", f"/workloads/{ID}/explain", Reply(body=NEVER))
    assert "Expected to start" not in muster("explain", ID).out


def test_a_word_of_a_request_leads_to_the_command_that_explains_fields(api: ShapeServer, muster: Muster) -> None:
    api.on("GET", "/workloads", Reply(body={"workloads": []}))
    ran = muster("explain", "compute.gpuPortionRequest")
    assert (ran.code, "muster explain-field compute.gpuPortionRequest" in ran.err) == (3, True)
    assert "explain-field" not in muster("explain", "hello").err
    api.on("GET", "/workloads", Reply(body={"workloads": [workload_row(id=ID, name="hello")]}))
    api.on("GET", f"/workloads/{ID}/explain", Reply(body=RUNS))
    assert muster("explain", "hello").code == 0
