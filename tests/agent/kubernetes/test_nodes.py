"""What nodes have, what others take of it, and how long a silent one is waited for."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.agent_bounds import refused
from events.node import DEFAULT_MAX_PODS, NodeFacts, Taint
from events.quantities import MAX_QUANTITY
from services.agent.backends.kubernetes.act.objects import Node, Pod
from services.agent.backends.kubernetes.read.nodes import (
    NO_USE,
    ForeignUse,
    Readiness,
    is_ready,
    observed_node,
    out_of_service,
    takes_room,
    use_of,
)
from tests.agent.kubernetes.cases import GIB

MIB = 1024**2


def node(**more: Any) -> Node:
    fields: dict[str, Any] = {
        "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559", "zone": "a"},
        "allocatable": {
            "cpu": "95500m",
            "memory": "1031827Mi",
            "pods": "110",
            "nvidia.com/gpu": "8",
            "hugepages-2Mi": "0",
        },
        "ready": "True",
        "spec": {},
    } | more
    return msgspec.convert(
        {
            "metadata": {"name": "node-1", "labels": fields["labels"]},
            "spec": fields["spec"],
            "status": {
                "allocatable": fields["allocatable"],
                "conditions": [
                    {"type": "MemoryPressure", "status": "False"},
                    {"type": "Ready", "status": fields["ready"], "reason": "KubeletReady"},
                ],
            },
        },
        Node,
    )


def pod(*containers: Any, init: Any = (), **more: Any) -> Pod:
    """A container is its requests; of an init container, with `always` a sidecar's."""

    def made(number: int, requests: dict[str, str]) -> dict[str, Any]:
        sidecar = {"restartPolicy": "Always"} if "always" in requests else {}
        return {"name": f"c{number}", "resources": {"requests": requests}, **sidecar}

    spec = {"nodeName": "node-1", "containers": list(map(made, range(9), containers))}
    spec |= {"initContainers": list(map(made, range(9), init))} | more.pop("spec", {})
    return msgspec.convert(
        {
            "metadata": {"name": "x", "labels": more.pop("labels", {}), **more.pop("metadata", {})},
            "spec": spec,
            "status": {"phase": "Running"} | more,
        },
        Pod,
    )


# -- facts -----------------------------------------------------------------------------------------------------------


def test_a_nodes_facts_are_what_it_can_give_to_pods() -> None:
    foreign = ForeignUse(cpu_milli=700, memory_bytes=GIB, gpus=1, pods=9)
    spec = {
        "unschedulable": True,
        "taints": [{"key": "gpu", "value": "h100", "effect": "NoSchedule", "timeAdded": None}],
    }
    seen = observed_node(node(spec=spec), foreign, ready=True)
    assert (seen.name, seen.gone) == ("node-1", False)
    assert seen.facts == NodeFacts(
        cpu_milli=95_500,
        memory_bytes=1_031_827 * MIB,
        gpu_count=8,
        gpu_model="NVIDIA-H100-80GB-HBM3",
        gpu_memory_bytes=81_559 * MIB,
        max_pods=DEFAULT_MAX_PODS - 8,
        labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559", "zone": "a"},
        taints=(Taint(key="gpu", value="h100", effect="NoSchedule"),),
        unschedulable=True,
        foreign_cpu_milli=700,
        foreign_memory_bytes=GIB,
        foreign_gpus=1,
        foreign_pods=9,
    )


def test_extended_resources_are_told_with_what_others_take_of_them() -> None:
    """S037. What is Kubernetes' own is none, and neither are GPUs, which are counted apart."""
    has = {"cpu": "4", "pods": "9", "nvidia.com/gpu": "1", "hugepages-2Mi": "4Mi", "rdma/hca": "4", "a.example/b": "0"}
    foreign = use_of(pod({"rdma/hca": "1", "gone/x": "2"}, {"rdma/hca": "1"}, init=[{"rdma/hca": "3", "cpu": "1"}]))
    assert foreign.extended == {"rdma/hca": 3, "gone/x": 2}
    facts = observed_node(node(allocatable=has), foreign, ready=True).facts
    assert (facts.extended, facts.foreign_extended) == ({"rdma/hca": 4}, {"rdma/hca": 3})
    assert (foreign - foreign).extended == {}


def test_devices_that_the_node_gives_no_more_are_not_counted_and_labels_that_are_no_number_say_nothing() -> None:
    bare = observed_node(node(allocatable={"cpu": "4", "memory": "8Gi", "pods": "5"}), NO_USE, ready=False).facts
    assert (bare.gpu_count, bare.gpu_model, bare.gpu_memory_bytes, bare.max_pods, bare.ready) == (0, "", 0, 5, False)
    odd = observed_node(node(labels={"nvidia.com/gpu.memory": "80 GB"}), NO_USE, ready=True).facts
    assert (odd.gpu_count, odd.gpu_memory_bytes) == (8, 0)


def test_a_node_that_has_said_nothing_yet_has_nothing() -> None:
    seen = observed_node(msgspec.convert({"metadata": {"name": "new"}}, Node), NO_USE, ready=False)
    assert seen.facts == NodeFacts(cpu_milli=0, memory_bytes=0, max_pods=0, ready=False)


@pytest.mark.parametrize(
    ("ready", "taint", "off"),
    [("Unknown", True, True), ("False", True, True), ("True", True, False), ("Unknown", False, False)],
)
def test_a_node_is_off_only_where_somebody_says_so_and_it_does_not_answer(ready: str, taint: bool, off: bool) -> None:
    taints = [{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}]
    seen = node(ready=ready, spec={"taints": taints if taint else []})
    assert out_of_service(seen) == off
    assert is_ready(seen) == (ready == "True")


# -- others' pods ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "cpu", "memory", "gpus"),
    [
        (pod(), 0, 0, 0),
        (pod({"cpu": "250m", "memory": "64Mi"}, {"cpu": "1", "memory": "1Ki"}), 1250, 64 * MIB + 1024, 0),
        (pod({"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "1"}), 0, 0, 3),
        # The largest init container counts where it is more than the others together, for each resource by itself.
        (pod({"cpu": "1", "memory": "1Gi"}, init=[{"cpu": "3"}, {"cpu": "2", "memory": "2Gi"}]), 3000, 2 * GIB, 0),
        (pod({"cpu": "4"}, init=[{"cpu": "3"}]), 4000, 0, 0),
        # A sidecar stays: it adds to the containers, and to the init containers that come after it.
        (pod({"cpu": "1"}, init=[{"cpu": "500m", "always": ""}]), 1500, 0, 0),
        (pod({"cpu": "1"}, init=[{"cpu": "500m", "always": ""}, {"cpu": "2"}]), 2500, 0, 0),
        (pod({"cpu": "1"}, init=[{"cpu": "2"}, {"cpu": "500m", "always": ""}]), 2000, 0, 0),
        (pod({"cpu": "1"}, spec={"overhead": {"cpu": "250m", "memory": "120Mi"}}), 1250, 120 * MIB, 0),
        # What the pod asks for as a whole takes the place of its containers' sum.
        (pod({"cpu": "1", "memory": "1Gi"}, spec={"resources": {"requests": {"cpu": "3"}}}), 3000, GIB, 0),
        (pod({"cpu": "1"}, spec={"resources": {"requests": {"cpu": "3"}}, "overhead": {"cpu": "1"}}), 4000, 0, 0),
        # A part of what cannot be divided is a whole one.
        (pod({"cpu": "1u", "memory": "500m"}), 1, 1, 0),
        (pod({"cpu": "1", "memory": "100E"}), 1000, MAX_QUANTITY, 0),
    ],
)
def test_a_pod_takes_its_effective_requests(made: Pod, cpu: int, memory: int, gpus: int) -> None:
    assert use_of(made) == ForeignUse(cpu_milli=cpu, memory_bytes=memory, gpus=gpus, pods=1)


def test_what_foreign_pods_ask_for_beyond_every_node_stays_within_what_an_agent_may_say() -> None:
    absurd = ForeignUse(cpu_milli=2**63, memory_bytes=2**70, gpus=2**40, pods=2**20)
    assert refused(observed_node(node(), absurd, ready=True)) is None


def test_a_pod_takes_of_its_node_until_it_has_ended() -> None:
    assert takes_room(pod({"cpu": "1"}))
    assert takes_room(pod({"cpu": "2"}, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}))
    assert not takes_room(pod({"cpu": "1"}, phase="Succeeded"))
    assert not takes_room(pod({"cpu": "1"}, spec={"nodeName": ""}))


AMOUNTS = st.builds(
    ForeignUse,
    cpu_milli=st.integers(0, 10**6),
    memory_bytes=st.integers(0, 2**50),
    gpus=st.integers(0, 16),
    pods=st.integers(0, 200),
)


@given(AMOUNTS, AMOUNTS)
def test_a_sum_can_be_kept_by_adding_and_taking_away(one: ForeignUse, two: ForeignUse) -> None:
    assert one + two - two == one
    assert one - one == NO_USE


# -- how long it is silent -------------------------------------------------------------------------------------------


def clocks() -> Readiness:
    clocks = Readiness(not_ready_seconds=5, lost_seconds=100)
    clocks.observe("n", ready=True, now=0)
    return clocks


def test_a_node_that_answers_is_ready_and_nothing_is_waited_for() -> None:
    assert (clocks().state("n"), clocks().next_due()) == ("ready", None)


def test_a_short_silence_changes_nothing() -> None:
    readiness = clocks()
    assert readiness.observe("n", ready=False, now=10) == "ready"
    assert readiness.next_due() == 15
    assert readiness.advance(14.9) == ()
    assert readiness.observe("n", ready=True, now=14.9) == "ready"
    assert readiness.advance(1000) == ()
    assert readiness.next_due() is None


def test_a_longer_silence_stops_scheduling_and_a_very_long_one_is_a_loss() -> None:
    readiness = clocks()
    readiness.observe("n", ready=False, now=10)
    assert readiness.advance(15) == ("n",)
    assert readiness.state("n") == "not_ready"
    assert readiness.next_due() == 110
    assert readiness.observe("n", ready=False, now=60) == "not_ready", "a repeated report starts no clock again"
    assert readiness.advance(110) == ("n",)
    assert (readiness.state("n"), readiness.not_ready_for("n", 110)) == ("lost", 100)
    assert readiness.next_due() is None


def test_a_node_that_is_back_is_ready_at_once_and_has_the_whole_time_again() -> None:
    readiness = clocks()
    readiness.observe("n", ready=False, now=10)
    readiness.advance(200)
    assert readiness.observe("n", ready=True, now=201) == "ready"
    assert readiness.observe("n", ready=False, now=202) == "ready"
    assert (readiness.advance(207), readiness.state("n"), readiness.next_due()) == (("n",), "not_ready", 302)


def test_a_node_that_nobody_has_seen_ready_gets_no_pods_meanwhile() -> None:
    readiness = clocks()
    assert readiness.state("new") == "not_ready"
    assert readiness.observe("new", ready=False, now=10) == "not_ready"
    assert readiness.next_due() == 110


def test_time_in_which_the_cluster_could_not_be_seen_does_not_count_towards_a_loss() -> None:
    readiness = clocks()
    readiness.observe("n", ready=False, now=10)
    readiness.advance(109)
    readiness.reset()
    assert readiness.next_due() is None
    assert readiness.advance(5000) == ()
    assert readiness.observe("n", ready=False, now=5000) == "not_ready", "and it was not ready, so it takes no pods"
    assert readiness.next_due() == 5100
    assert readiness.not_ready_for("n", 5001) == 1


def test_a_loss_that_was_found_stands_through_a_break_until_the_node_answers() -> None:
    readiness = clocks()
    readiness.observe("n", ready=False, now=10)
    readiness.advance(110)
    readiness.reset()
    assert readiness.observe("n", ready=False, now=200) == "lost"
    assert readiness.not_ready_for("n", 201) == 100, "at least; when it began was before this view"
    assert readiness.observe("n", ready=True, now=201) == "ready"


def test_a_node_that_was_removed_is_waited_for_no_more() -> None:
    readiness = clocks()
    readiness.observe("n", ready=False, now=10)
    readiness.forget("n")
    assert readiness.advance(1000) == ()
    assert readiness.observe("n", ready=False, now=1001) == "not_ready"


STEPS = st.lists(
    st.tuples(st.sampled_from(["ready", "silent", "break", "wait", "gone"]), st.floats(0, 60, allow_nan=False)),
    max_size=40,
)


@given(STEPS)
def test_a_loss_needs_its_full_time_in_one_unbroken_view_and_none_is_overslept(steps: list[tuple[str, float]]) -> None:
    readiness, now, silent_since, lost = Readiness(not_ready_seconds=5, lost_seconds=100), 0.0, None, False
    for what, seconds in steps:
        now += seconds
        match what:
            case "ready":
                readiness.observe("n", ready=True, now=now)
                silent_since, lost = None, False
            case "silent":
                readiness.observe("n", ready=False, now=now)
                silent_since = now if silent_since is None else silent_since
            case "break":
                lost = readiness.state("n") == "lost"
                readiness.reset()
                silent_since = None
            case "gone":
                readiness.forget("n")
                silent_since, lost = None, False
            case _:
                pass
        readiness.advance(now)
        overdue = silent_since is not None and silent_since + 100 <= now
        assert (readiness.state("n") == "lost") == (overdue or lost)
        due = readiness.next_due()
        assert due is None or due > now
