"""`:evaluate`: what a submission would be, by the code that submits. Requirement rows: S014, S021, S083."""

import asyncio
import random
import threading
from collections.abc import Generator, Iterator
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx
import pytest

from events.aggregate import WORKLOAD, draft
from events.decision import Context
from events.ids import workload_key
from events.refusal import Refusal
from events.workload.commands import EvictPods, PlacePods
from events.workload.pod import Placement, PodRef
from services.runtime.log.folding import follow_into
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.connection import connect
from services.runtime.process.settings import Settings
from services.scheduler import answering
from services.scheduler.answering import Answering
from services.scheduler.batches import ACTOR
from services.scheduler.fold import SchedulingState
from tests.support.any_request import agree_on_any
from tests.support.api import Served
from tests.support.requests import POLICY_DEFAULTS, agree, evaluated

V1 = "/api/v1"
TRAININGS = f"{V1}/workloads/trainings"
TENANT = {"scope": "tenant"}
SEED = 13
type Json = dict[str, Any]


@pytest.fixture(scope="module")
def admin(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


@pytest.fixture
def policy(admin: httpx.Client) -> Iterator[None]:
    rules = {
        "category": {"canEdit": False, "options": ["x"]},
        "completions": {"min": 1, "max": 3, "step": 2},
        "compute": {"cpuMemoryRequest": {"max": "1Gi", "required": True}},
        "labels": {"lockedItems": ["a"], "canAdd": False},
        "tolerations": {"blocked": True},
    }
    body = {"defaults": POLICY_DEFAULTS, "rules": rules}
    assert admin.put(f"{V1}/policies/trainings", params=TENANT, json=body).status_code == 202
    yield
    admin.delete(f"{V1}/policies/trainings", params=TENANT)


def by_field(evaluation: Json) -> dict[str, Json]:
    return {one["field"]: one for one in evaluation["fields"]}


@contextmanager
def a_scheduler_that_answers(settings: Settings) -> Generator[None]:
    """With the log as it is now; it places nothing."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def answer() -> None:
        nc = await connect(settings, "scheduler")
        store, answering = JetStreamEventStore(nc), Answering(nc)
        fold, last = SchedulingState(), await store.last_seq()
        async with aclosing(follow_into(store, fold, on_standing=lambda _: None, idle_seconds=0.1)) as follower:
            async for _ in follower:
                if fold.seq >= last:
                    break
        answering.fold = fold
        await answering.start()
        await nc.flush()
        ready.set()
        await stop.wait()
        await answering.stop()
        await nc.close()

    def run() -> None:
        # Ends what still rests after an answer, too, and closes the loop.
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(answer())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)


def test_the_scheduler_explains_a_workload_to_whoever_may_read_it(admin: httpx.Client, served: Served) -> None:
    # While nothing else waits.
    asked = served.training(projectId=served.made["other"]) | {"spec": {"image": "i", "priorityClass": "very-high"}}
    made = admin.post(TRAININGS, json=asked)
    assert made.status_code == 202, made.text
    path = f"{V1}/workloads/{made.json()['workloadId']}/explain"
    away = admin.get(path)
    assert (away.status_code, away.json()["outcome"], away.json()["changes"]) == (200, "unknown", [])
    assert "did not answer" in away.json()["message"]
    with a_scheduler_that_answers(served.settings), served.client("alice") as alice:
        found = admin.get(path).json()
        assert alice.get(path).status_code == 404
        later = admin.post(TRAININGS, json=served.training()).json()["workloadId"]
        behind = admin.get(f"{V1}/workloads/{later}/explain").json()
        assert (behind["outcome"], "has not read so far" in behind["message"]) == ("unknown", True)
    # No agent of the cluster reports.
    assert (found["outcome"], found["reason"], found["waitingPods"]) == ("waits", "cluster_disconnected", 1)
    assert (found["name"], found["phase"], found["eviction"]) == (made.json()["name"], "Creating", None)
    # It has no nodes, either.
    (change,) = found["changes"]
    assert [step["act"] for step in change["steps"]] == ["connect_cluster", "add_node"]
    assert change["message"] == (
        "have the agent of cluster local report again; and add 1 node with room for a pod to pool default"
    )


def test_the_scheduler_rests_after_each_answer_whatever_is_asked_next(
    admin: httpx.Client, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a rest that has no end: else two kinds of questions would leave a third of the time to placing."""
    monkeypatch.setattr(answering, "REST", 1e9)
    made = admin.post(TRAININGS, json=served.training())
    assert made.status_code == 202, made.text
    with a_scheduler_that_answers(served.settings):
        explained = admin.get(f"{V1}/workloads/{made.json()['workloadId']}/explain").json()
        answer = admin.post(f"{TRAININGS}:evaluate", params={"placement": "true"}, json=served.training())
        placement = answer.json()["placement"]
    assert (explained["outcome"], placement["outcome"]) == ("waits", "unknown")
    assert "did not answer within 2 s" in placement["message"]


@pytest.mark.usefixtures("policy")
def test_each_field_says_what_it_would_be_and_what_it_may_be(admin: httpx.Client, served: Served) -> None:
    variable = {"name": "LR", "value": "0.1", "description": "learning rate"}
    spec = {"image": "i", "completions": 4, "environmentVariables": [variable], "backoffLimit": 6}
    found = evaluated(admin, served.training() | {"spec": spec})
    assert not found["accepted"]
    fields = by_field(found)
    completions = fields["spec.completions"]
    assert (completions["value"], completions["default"], completions["setBy"]) == (4, 1, "request")
    assert [completions[name] for name in ("min", "max", "step")] == [1, 3, 2]
    assert {issue["rule"] for issue in completions["issues"]} == {"max", "step"}
    category = fields["spec.category"]
    assert (category["value"], category["setBy"], category["locked"], category["options"]) == (
        "x",
        "tenant policy",
        True,
        ["x"],
    )
    assert fields["spec.labels[0]"]["locked"]
    assert [fields[f"spec.{name}"]["blocked"] for name in ("tolerations", "category")] == [True, False]
    assert fields["spec.environmentVariables[0]"]["instructions"] == "learning rate"
    assert fields["spec.compute.cpuMemoryRequest"]["required"]
    portion = fields["spec.compute.gpuPortionRequest"]
    assert (portion.get("min"), portion["max"]) == (None, 1), "0 is no portion"
    assert fields["spec.backoffLimit"]["setBy"] == "request"
    assert fields["spec.tty"]["setBy"] == "default"
    assert fields["spec.priorityClass"]["options"][0] == "very-low"


@pytest.mark.usefixtures("policy")
def test_issues_stand_at_the_items_that_would_be(admin: httpx.Client, served: Served) -> None:
    labels = [{"name": "z", "exclude": True}, {"name": "b", "value": "1"}, {"name": "a", "value": "2"}]
    found = evaluated(admin, served.training() | {"spec": {"image": "i", "labels": labels}})
    told = {field: [one["rule"] for one in of["issues"]] for field, of in by_field(found).items() if of["issues"]}
    assert told == {"spec.labels[0]": ["locked"], "spec.labels[1]": ["canAdd"]}
    assert {issue["field"] for issue in found["issues"]} == {"spec.labels[1]", "spec.labels[2]"}


@pytest.mark.parametrize("spec", [{}, {"image": 5, "labels": [1, {"name": "a"}], "compute": "x"}, None])
def test_what_is_not_whole_is_evaluated(admin: httpx.Client, served: Served, spec: Json | None) -> None:
    body = served.training() | {"spec": spec}
    del body["name"]
    found = evaluated(admin, body)
    assert {"name", "spec.image"} <= {issue["field"] for issue in found["issues"]}
    assert by_field(found)["spec.image"]["issues"]
    assert found["fields"]


def test_fields_of_a_master_are_told_with_who_set_them(admin: httpx.Client, served: Served) -> None:
    path = f"{V1}/workloads/distributed"
    body = served.training() | {
        "spec": {"image": "w", "distributedFramework": "PyTorch", "numWorkers": 2},
        "masterSpec": {
            "args": "x",
            "compute": {"gpuDevicesRequest": 1},
            "environmentVariables": [{"name": "A", "exclude": True}, {"name": "B", "value": "2"}],
        },
    }
    alone = by_field(evaluated(admin, body | {"masterSpec": body["masterSpec"] | {"image": "m"}}, path))
    assert (alone["masterSpec.image"]["value"], alone["masterSpec.image"]["setBy"]) == ("m", "request")
    assert alone["spec.image"]["value"] == "w"
    limits = {"compute": {"gpuDevicesRequest": {"max": 2}}, "args": {"canEdit": False}}
    variables = [{"name": "A", "value": "1"}, {"name": "C", "value": "3"}]
    policy = {"defaults": {"image": "all", "environmentVariables": variables}, "rules": limits}
    assert admin.put(f"{V1}/policies/distributed", params=TENANT, json=policy).status_code == 202
    try:
        found = evaluated(admin, body, path)
        same = evaluated(admin, {key: value for key, value in body.items() if key != "masterSpec"}, path)
    finally:
        admin.delete(f"{V1}/policies/distributed", params=TENANT)
    told = {field: (of["value"], of["setBy"]) for field, of in by_field(found).items()}
    assert told["masterSpec.image"] == ("all", "tenant policy")
    assert told["masterSpec.compute.gpuDevicesRequest"] == (1, "request")
    assert (
        told["masterSpec.environmentVariables[0]"][0]["name"],
        told["masterSpec.environmentVariables[1]"][0]["name"],
    ) == ("C", "B")
    assert [told[f"masterSpec.environmentVariables[{index}]"][1] for index in (0, 1)] == ["tenant policy", "request"]
    assert told["masterSpec.command"] == (None, "default")
    fields = by_field(found)
    assert (fields["masterSpec.compute.gpuDevicesRequest"]["max"], fields["masterSpec.image"]["default"]) == (2, "all")
    assert (fields["masterSpec.args"]["locked"], fields["masterSpec.args"]["issues"][0]["rule"]) == (True, "canEdit")
    assert not fields["spec.args"]["issues"], "what is wrong with the master is told of the master"
    assert not [field for field in told if field.startswith(("masterSpec.storage", "masterSpec.probes"))], (
        "as of workers"
    )
    assert not [one for one in same["fields"] if one["field"].startswith("masterSpec")]


@pytest.mark.parametrize("kind", ["trainings", "distributed", "workspaces", "inferences"])
def test_nothing_is_stored(admin: httpx.Client, served: Served, kind: str) -> None:
    path, body = f"{V1}/workloads/{kind}", served.training()
    if kind == "distributed":
        body["spec"] |= {"distributedFramework": "JAX"}
    if kind == "inferences":
        body["spec"] |= {"servingPort": {"container": 8000}}
    assert evaluated(admin, body, path)["accepted"]
    assert evaluated(admin, body, path)["accepted"]
    made = admin.post(path, json=body)
    assert made.status_code == 202, made.text
    again = evaluated(admin, body, path)
    assert [issue["field"] for issue in again["issues"]] == ["name"], "by now its name is taken"
    fields = by_field(again)
    assert fields["spec.image"]["value"] == made.json()["spec"]["image"]


def test_whoever_may_not_submit_there_evaluates_nothing(admin: httpx.Client, served: Served) -> None:
    body = served.training(projectId=served.made["other"])
    assert evaluated(admin, body)["accepted"]
    with served.client("alice") as alice:
        assert alice.post(f"{TRAININGS}:evaluate", json=body).status_code == 403


def test_what_evaluates_well_is_accepted_and_nothing_else(admin: httpx.Client, served: Served) -> None:
    """Sixty requests under three policies; tests/faults/test_evaluate.py takes ten thousand."""
    agree(admin, served, random.Random(SEED), policies=3, requests=20)


def test_any_field_of_any_kind_evaluates_as_it_is_accepted_and_is_read_back_as_it_was_asked(
    admin: httpx.Client, served: Served
) -> None:
    """Sixty requests; tests/faults/test_evaluate.py takes five thousand."""
    agree_on_any(admin, served, random.Random(SEED), requests=60)


def test_the_scheduler_is_asked_where_it_would_run_and_nobody_waits_for_one_that_is_away(
    admin: httpx.Client, served: Served
) -> None:
    asked = served.training(name="outlook") | {"spec": {"image": "i"}}

    def outlook(**query: str) -> Json:
        answer = admin.post(f"{TRAININGS}:evaluate", json=asked, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert "placement" not in outlook()
    away = outlook(placement="true")["placement"]
    assert (away["outcome"], away["placed"], away["reason"]) == ("unknown", [], None)
    assert "did not answer" in away["message"]
    with a_scheduler_that_answers(served.settings):
        found = outlook(placement="true")["placement"]
        # No agent of the cluster reports.
        assert (found["outcome"], found["waitingPods"], found["reason"]) == ("waits", 1, "cluster_disconnected")
        assert found["message"]
        asked["spec"] = {"image": "i", "completions": 0}
        assert "placement" not in outlook(placement="true"), "what is refused runs nowhere"


async def _evict(settings: Settings, key: str, beneficiary: str) -> None:
    """One pod is bound to a node, and told to end for another workload: as the scheduler does it."""
    nc = await connect(settings, "scheduler")
    store, now = JetStreamEventStore(nc), datetime.now(UTC)
    placement = Placement(
        pod=(pod := PodRef(pod_set="main", index=0, attempt=1, try_=0)), node_key="n", node_name="n1", pool="default",
        devices=(), gpu_model="", gpu_memory_bytes=0,
    )  # fmt: skip
    workload_id = (await store.load(WORKLOAD, key)).state.workload_id
    for command in (
        PlacePods(workload_id=workload_id, placements=(placement,)),
        EvictPods(
            workload_id=workload_id, pods=(pod,), reason="reclaimed", message="its place is needed",
            beneficiary=beneficiary,
        ),
    ):  # fmt: skip
        chain = await store.load(WORKLOAD, key)
        context = Context(now=now, actor=ACTOR, command_id=str(uuid4()), version=chain.version)
        events = WORKLOAD.decide(command, chain.state, context)
        assert not isinstance(events, Refusal), events
        await store.append(draft(WORKLOAD, key, chain, events, command_id=str(uuid4()), actor=ACTOR, now=now))
    await nc.close()


def test_who_was_evicted_learns_by_which_rule_and_for_whom_as_far_as_they_may_see_it(
    admin: httpx.Client, served: Served
) -> None:
    made = [
        admin.post(TRAININGS, json=served.training(**where)).json()
        for where in ({}, {"projectId": served.made["other"]})
    ]
    victim, other = made
    asyncio.run(_evict(served.settings, workload_key(served.project, victim["name"]), other["workloadId"]))
    path = f"{V1}/workloads/{victim['workloadId']}/explain"
    found = admin.get(path).json()
    eviction = found["eviction"]
    assert (eviction["rule"], eviction["message"], eviction["pods"]) == ("reclaimed", "its place is needed", 1)
    assert (eviction["by"], eviction["forWorkload"], eviction["forWorkloadId"]) == (
        "scheduler",
        other["name"],
        other["workloadId"],
    )
    assert found["phaseReason"] == "reclaimed"
    with served.client("alice") as alice:
        own = alice.get(path).json()["eviction"]
    assert (own["rule"], own["forWorkload"], own["forWorkloadId"]) == ("reclaimed", None, None)
