"""The plan as a table: nodes and workloads in, places and reasons out (S036, S039, S045, S046; issue section 3)."""

from datetime import timedelta
from typing import Any

import pytest

from events.cluster import ReportCluster
from events.ids import cluster_key
from events.node import Taint, UncordonNode
from events.workload.commands import (
    ChangeWorkload,
    DeleteWorkload,
    ResumeWorkload,
    SuspendWorkload,
)
from events.workload.fields.compute import ExtendedResource
from events.workload.fields.scheduling import PodAffinity, Toleration
from tests.scheduler.cases import GPU_NODE, TABLES, Case, affinity, read
from tests.scheduler.world import GIB, World


@pytest.fixture
def world() -> World:
    world = World()
    world.cluster()
    world.project()
    return world


ONE_GPU: dict[str, Any] = {**GPU_NODE, "gpu_count": 1}


@pytest.mark.parametrize(
    ("table", "case"),
    [(t, c) for t, cases in TABLES.items() for c in cases],
    ids=lambda each: getattr(each, "name", each),
)
def test_the_plan_is_as_its_golden_says(table: str, case: Case):
    world, plan = case.run()
    assert plan == read(table)[case.name]
    assert not world.check().violations


def test_every_golden_plan_is_of_a_case():
    for table, cases in TABLES.items():
        assert list(read(table)) == [case.name for case in cases]


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, -(2**63), -(2**70)])
def test_an_absurd_node_in_the_log_keeps_nobody_from_being_scheduled(world: World, number: int) -> None:
    for size in ("cpu_milli", "memory_bytes", "gpu_memory_bytes", "max_pods", "foreign_cpu_milli", "foreign_pods"):
        facts: dict[str, Any] = {"pool": "other", "gpu_count": 1, size: number}
        world.node(f"absurd-{size}", **facts)
    world.node("good", **GPU_NODE)
    key = world.submit("w", gpu_devices_request=8)
    world.settle()
    assert world.places(key)[0] == ("good", [(device, 1000) for device in range(8)])


CLOSED: list[tuple[str, dict[str, Any]]] = [
    ("not ready", {"ready": False}),
    ("cordoned", {"unschedulable": True}),
    ("tainted NoSchedule", {"taints": (Taint(key="gpu", effect="NoSchedule"),)}),
    ("tainted NoExecute", {"taints": (Taint(key="gpu", effect="NoExecute"),)}),
]


@pytest.mark.parametrize("facts", [facts for _, facts in CLOSED], ids=[name for name, _ in CLOSED])
def test_a_closed_node_takes_no_pods_until_it_opens(world: World, facts: dict[str, Any]):
    world.node("a", **facts)
    key = world.submit("w")
    world.settle()
    assert world.workload(key).reason == "no_nodes"
    assert "takes no new pods" in world.workload(key).message
    world.node("a")
    world.settle()
    assert world.places(key) == {0: ("a", [])}


def test_a_cordoned_node_keeps_its_pods_takes_no_new_ones_and_the_reason_says_who_did_it_and_when(world: World):
    world.node("a", gpu_count=2)
    first = world.submit("first", gpu_devices_request=1)
    world.settle()
    world.cordon("a")
    second = world.submit("second", gpu_devices_request=1)
    world.settle()
    assert world.places(first) == {0: ("a", [(0, 1000)])}
    assert world.workload(second).reason == "no_nodes"
    assert "takes no new pods (a cordoned by ann at 2026-03-01 00:00 UTC)" in world.workload(second).message
    world.cordon("a", UncordonNode)
    world.settle()
    assert world.places(second) == {0: ("a", [(1, 1000)])}
    assert not world.check().violations


def test_among_nodes_without_room_the_cordoned_ones_are_counted_and_named(world: World):
    world.node("full", max_pods=1)
    world.settle()
    world.submit("w")
    world.settle()
    for name in ("a", "b", "c", "d"):
        world.node(name)
        world.cordon(name)
    key = world.submit("waits")
    world.settle()
    told = world.workload(key).message
    assert "4 taking no new pods (a cordoned by ann at" in told
    assert told.endswith("and 1 more cordoned)")


def test_a_node_that_is_full_of_columns_keeps_its_mark_when_the_table_grows(world: World):
    for n in range(70):
        world.node(f"n{n}")
        world.cordon(f"n{n}")
    key = world.submit("w")
    world.settle()
    assert world.workload(key).reason == "no_nodes"
    world.cordon("n69", UncordonNode)
    world.settle()
    assert world.places(key) == {0: ("n69", [])}


def test_a_node_tainted_prefer_no_schedule_still_takes_pods(world: World):
    world.node("a", taints=(Taint(key="gpu", effect="PreferNoSchedule"),))
    key = world.submit("w")
    world.settle()
    assert world.places(key) == {0: ("a", [])}


def soft(*keys: str) -> dict[str, Any]:
    return {"taints": tuple(Taint(key=key, effect="PreferNoSchedule") for key in keys)}


@pytest.mark.parametrize(
    "request_",
    [
        {"cpu_core_request": 1.0},
        {"gpu_devices_request": 1},
        {"gpu_devices_request": 1, "gpu_request_type": "portion", "gpu_portion_request": 0.5},
    ],
    ids=["no GPU", "whole GPUs", "portions"],
)
def test_a_node_tainted_prefer_no_schedule_takes_pods_only_once_no_other_has_room(
    world: World, request_: dict[str, Any]
):
    """Given nodes that are the fuller, and so the better, the more of such taints they have. PreferNoSchedule scores
    (S044, issue section 2).
    """
    world.node("two", gpu_count=1, cpu_milli=1_000, **soft("a", "b"))
    world.node("one", gpu_count=2, cpu_milli=2_000, **soft("a"))
    world.node("none", gpu_count=4, cpu_milli=4_000)
    share = 2 if "gpu_portion_request" in request_ else 1
    key = world.submit("w", completions=7 * share, parallelism=7 * share, **request_)
    world.settle()
    placed = world.places(key)
    assert [placed[index][0] for index in range(7 * share)] == (
        ["none"] * 4 * share + ["one"] * 2 * share + ["two"] * share
    )


def test_pods_that_come_one_after_the_other_stay_away_from_soft_taints_too(world: World):
    world.node("soft", cpu_milli=2_000, **soft("a"))
    world.node("hard", cpu_milli=8_000)
    keys: list[str] = []
    for n in range(4):
        keys.append(world.submit(f"w{n}", cpu_core_request=1.0))
        world.settle()
    assert {world.places(key)[0][0] for key in keys} == {"hard"}


@pytest.mark.parametrize(
    ("toleration", "chosen"),
    [
        (Toleration(key="a", operator="Exists", effect="PreferNoSchedule"), "soft"),
        (Toleration(key="a", operator="Exists", effect="Any"), "soft"),
        (Toleration(key="a", operator="Exists", effect="NoSchedule"), "open"),
    ],
    ids=["of this effect", "of any", "of another"],
)
def test_a_soft_taint_that_is_tolerated_makes_no_difference(world: World, toleration: Toleration, chosen: str):
    world.node("soft", cpu_milli=1_000, **soft("a"))
    world.node("open", cpu_milli=4_000)
    key = world.submit("w", cpu_core_request=1.0, tolerations=(toleration,))
    world.settle()
    assert world.places(key)[0][0] == chosen


def test_a_pool_that_comes_first_goes_before_one_without_soft_taints(world: World):
    world.node("soft", pool="first", **soft("a"))
    world.node("open", pool="second")
    key = world.submit("w", node_pools=("first", "second"))
    world.settle()
    assert world.places(key)[0][0] == "soft"


def test_a_pod_that_must_stay_with_others_waits_for_room_where_they_are(world: World):
    together: dict[str, Any] = {"pod_affinity": PodAffinity(type="Required", key="zone")}
    for name, zone in (("x1", "x"), ("x2", "x"), ("y1", "y")):
        world.node(name, labels={"zone": zone}, max_pods=1)
    other = world.submit("other", node_affinity_required=affinity((("zone", "In", ("y",)),)))
    world.settle()
    key = world.submit("w", completions=3, parallelism=3, **together)
    world.settle()
    world.node("y2", labels={"zone": "y"}, max_pods=9)
    assert {node for node, _ in world.places(key).values()} == {"x1", "x2"}
    (waiting,) = world.plan().blocked.values()
    assert waiting.message == (
        "4 nodes of pool default of cluster local: 2 where zone is not x, as where the other pods are, 2 full of pods"
    )
    world.fact(key, "interrupted", index=0)
    world.settle()
    world.node("x3", labels={"zone": "x"}, max_pods=1)
    world.settle()
    assert {node for node, _ in world.places(key).values()} == {"x1", "x2", "x3"}
    assert world.places(other) == {0: ("y1", [])}
    assert not world.check().violations


def test_pods_that_stay_together_may_go_anywhere_once_none_of_them_is_left(world: World):
    world.node("x1", labels={"zone": "x"})
    key = world.submit("w", completions=2, pod_affinity=PodAffinity(type="Required", key="zone"))
    world.settle()
    world.node("x1", labels={"zone": "x"}, unschedulable=True)
    world.node("y1", labels={"zone": "y"})
    world.fact(key, "succeeded")
    world.settle()
    assert world.places(key) == {1: ("y1", [])}


def test_two_workloads_that_stay_together_each_for_itself_do_not_wait_for_each_other(world: World):
    for zone in ("x", "y"):
        for number in (1, 2):
            world.node(f"{zone}{number}", labels={"zone": zone}, max_pods=1)
    stays = PodAffinity(type="Required", key="zone")
    together: dict[str, Any] = {"pod_affinity": stays, "completions": 2, "parallelism": 2}
    keys = [world.submit(name, **together) for name in ("a", "b")]
    world.settle()
    placed = [{node[0] for node, _ in world.places(key).values()} for key in keys]
    assert sorted(placed, key=str) == [{"x"}, {"y"}]


def test_a_new_label_or_a_taint_that_goes_lets_a_workload_in(world: World):
    world.node("a", taints=(Taint(key="old"),))
    typed = world.submit(
        "typed", node_type="h100", tolerations=(Toleration(key="old", operator="Exists", effect="Any"),)
    )
    plain = world.submit("plain")
    world.settle()
    assert (world.workload(typed).reason, world.workload(plain).reason) == ("no_matching_node", "no_nodes")
    world.node("a", labels={"run.ai/type": "h100"})
    world.settle()
    assert world.places(typed) == world.places(plain) == {0: ("a", [])}


def test_an_extended_resource_is_free_again_when_its_pod_ends(world: World):
    world.node("a", extended={"rdma/hca": 1})
    asks: dict[str, Any] = {"extended_resources": (ExtendedResource(resource="rdma/hca", quantity="1"),)}
    first = world.submit("first", **asks)
    second = world.submit("second", **asks)
    world.settle()
    assert world.workload(second).message == (
        "1 node of pool default of cluster local: 1 short of extended resources (need 1 of rdma/hca, most free 0)"
    )
    world.fact(first, "succeeded")
    world.settle()
    assert world.places(second) == {0: ("a", [])}
    assert not world.check().violations


GPU_TAINT = Taint(key="nvidia.com/gpu", value="present")
GPU_REQUESTS: list[dict[str, Any]] = [
    {"gpu_devices_request": 1},
    {"gpu_request_type": "portion", "gpu_portion_request": 0.5},
    {"gpu_request_type": "memory", "gpu_memory_request": "10Gi"},
]


@pytest.mark.parametrize("request_", GPU_REQUESTS, ids=["whole", "portion", "memory"])
def test_a_node_kept_for_gpu_pods_takes_them_and_no_others(world: World, request_: dict[str, Any]):
    """As Kubernetes' ExtendedResourceToleration."""
    world.node("a", **GPU_NODE, taints=(GPU_TAINT,))
    plain, gpu = world.submit("plain"), world.submit("gpu", **request_)
    world.settle()
    assert world.places(gpu)[0][0] == "a"
    assert world.workload(plain).reason == "no_nodes"
    assert (
        "1 with a taint that the workload does not tolerate: nvidia.com/gpu=present:NoSchedule)"
        in world.workload(plain).message
    )


@pytest.mark.parametrize(
    "other",
    [
        {"taints": (GPU_TAINT, Taint(key="node.kubernetes.io/unreachable", effect="NoExecute"))},
        {"taints": (GPU_TAINT, Taint(key="node.kubernetes.io/unschedulable"))},
        {"taints": (GPU_TAINT,), "unschedulable": True},
        {"taints": (GPU_TAINT,), "ready": False},
    ],
    ids=["unreachable", "unschedulable", "cordoned", "not ready"],
)
def test_a_node_kept_for_gpu_pods_that_is_closed_besides_takes_none(world: World, other: dict[str, Any]):
    world.node("a", **GPU_NODE, **other)
    key = world.submit("w", gpu_devices_request=1)
    world.settle()
    assert world.workload(key).reason == "no_nodes"


def test_pods_without_gpus_wait_for_room_on_the_nodes_that_take_them_only(world: World):
    world.node("gpus", **GPU_NODE, taints=(GPU_TAINT,))
    world.node("plain", cpu_milli=2_000)
    first, second = (world.submit(name, cpu_core_request=2.0) for name in ("one", "two"))
    world.settle()
    assert world.places(first)[0][0] == "plain"
    assert world.workload(second).reason == "insufficient_cpu"
    assert "1 taking no new pods" in world.workload(second).message


class TestPools:
    def test_the_first_pool_of_the_workload_with_room_wins(self, world: World):
        world.node("slow", pool="slow")
        world.node("fast", pool="fast", max_pods=1)
        keys = [world.submit(f"w{n}", node_pools=("fast", "slow")) for n in range(2)]
        world.settle()
        assert [world.places(key)[0][0] for key in keys] == ["fast", "slow"]
        assert world.workload(keys[1]).pods["main", 0].pool == "slow"

    def test_without_pools_of_its_own_the_projects_order_counts(self, world: World):
        project_id = world.project("ordered", pools=("b", "a"))
        world.node("a", pool="a")
        world.node("b", pool="b")
        world.node("d")
        key = world.submit("w", project_id=project_id)
        world.settle()
        assert world.places(key)[0][0] == "b"

    def test_without_any_order_default_comes_first_then_all_by_name(self, world: World):
        world.node("z", pool="z", max_pods=1)
        world.node("a", pool="a", max_pods=1)
        world.node("d", max_pods=1)
        keys = [world.submit(f"w{n}") for n in range(3)]
        world.settle()
        assert [world.places(key)[0][0] for key in keys] == ["d", "a", "z"]

    def test_pools_that_the_cluster_lacks_are_passed_over(self, world: World):
        world.node("a", pool="a")
        key = world.submit("w", node_pools=("gone", "a"))
        world.settle()
        assert world.places(key)[0][0] == "a"

    def test_a_pool_without_nodes_is_told_apart_from_none(self):
        world = World()
        world.cluster(pools=("empty",))
        world.project()
        key = world.submit("w", node_pools=("empty",))
        world.settle()
        assert world.workload(key).reason == "no_nodes"


class TestOrder:
    def test_priority_goes_first_then_first_come(self, world: World):
        world.node("a", max_pods=1)
        late = [world.submit(f"w{n}", priority_class=p) for n, p in enumerate(["low", "high", "medium", "high"])]
        started: list[str] = []
        for _ in late:
            world.settle()
            running = next(key for key in late if world.places(key))
            started.append(running)
            world.fact(running, "succeeded")
        assert started == [late[1], late[3], late[2], late[0]]

    def test_a_changed_priority_counts_at_once(self, world: World):
        world.node("a", max_pods=1)
        first = world.submit("first")
        world.settle()
        second, third = world.submit("second"), world.submit("third")
        world.settle()
        world.command(third, ChangeWorkload, priority_class="very-high")
        world.fact(first, "succeeded")
        world.settle()
        assert world.places(third)
        assert not world.places(second)

    def test_what_does_not_fit_lets_others_pass(self, world: World):
        world.node("a", **GPU_NODE)
        large = world.submit("large", gpu_devices_request=8, priority_class="high")
        world.settle()
        waits = world.submit("waits", gpu_devices_request=8, priority_class="high")
        small = world.submit("small", cpu_core_request=1.0)
        world.settle()
        assert world.places(large)
        assert world.places(small)
        assert world.workload(waits).reason == "insufficient_gpu"


class TestClusters:
    def test_only_nodes_of_the_workloads_own_cluster_count(self, world: World):
        other = world.cluster("other")
        world.node("a")
        key = world.submit("w", cluster_id=other)
        world.settle()
        assert world.workload(key).reason == "no_nodes"
        world.node("b", cluster_id=other)
        world.settle()
        assert world.places(key)[0][0] == "b"

    def test_a_disconnected_cluster_takes_nothing_until_it_is_heard_again(self, world: World):
        world.node("a")
        world.connect(world.cluster_id, connected=False)
        key = world.submit("w")
        world.settle()
        assert world.workload(key).reason == "cluster_disconnected"
        world.connect(world.cluster_id)
        world.settle()
        assert world.places(key)

    def test_what_its_agent_says_is_wrong_is_what_waiting_workloads_are_told(self, world: World):
        world.node("a")
        broken = ReportCluster(cluster_id=world.cluster_id, connected=False, problem="the API server is away")
        world.do("cluster", cluster_key("local"), broken)
        key = world.submit("w")
        world.settle()
        assert world.workload(key).reason == "cluster_disconnected"
        assert world.workload(key).message == "the agent of cluster local reports a problem: the API server is away"

    def test_an_unknown_cluster_is_named_as_removed(self, world: World):
        key = world.submit("w", cluster_id="2f9b1d7e-6a5c-8f3e-9b2d-000000000000")
        world.settle()
        assert "was removed" in world.workload(key).message


class TestQuota:
    """Until the full scheduler: a GPU quota bounds what is non-preemptible (architecture.md section 5)."""

    def test_non_preemptible_stays_within_and_preemptible_may_use_what_is_free(self, world: World):
        world.node("a", **GPU_NODE)
        project_id = world.project("small", quota=2_000)
        fixed = {"project_id": project_id, "preemptibility": "non-preemptible"}
        keys = [world.submit(f"n{n}", gpu_devices_request=1, **fixed) for n in range(3)]
        free = world.submit("free", project_id=project_id, gpu_devices_request=5)
        world.settle()
        assert [bool(world.places(key)) for key in [*keys, free]] == [True, True, False, True]
        assert world.workload(keys[2]).reason == "quota_used"
        assert "hold 2 GPUs of its quota of 2 GPUs" in world.workload(keys[2]).message
        world.fact(keys[0], "succeeded")
        world.settle()
        assert world.places(keys[2])

    def test_portions_and_memory_count_by_their_share(self, world: World):
        world.node("a", **GPU_NODE)
        project_id = world.project("small", quota=1_000)
        fixed = {"project_id": project_id, "preemptibility": "non-preemptible"}
        half = world.submit("half", gpu_request_type="portion", gpu_portion_request=0.5, **fixed)
        memory = world.submit("memory", gpu_request_type="memory", gpu_memory_request="40Gi", **fixed)
        more = world.submit("more", gpu_request_type="memory", gpu_memory_request="8Gi", **fixed)
        world.settle()
        assert [bool(world.places(key)) for key in (half, memory, more)] == [True, True, False]
        assert world.workload(more).reason == "quota_used"

    def test_a_pool_or_node_whose_devices_are_dearer_than_what_the_quota_leaves_does_not_hide_the_next(self):
        """GPU memory is a share of the device it lands on, so the same request counts for less on a larger one."""
        world = World()
        world.cluster(pools=("small", "mixed"))
        project_id = world.project("tight", quota=500)
        world.node("a", pool="small", gpu_count=1, gpu_memory_bytes=40 * GIB)
        world.node("b", pool="mixed", gpu_count=1, gpu_memory_bytes=40 * GIB)
        world.node("c", pool="mixed", gpu_count=8, gpu_memory_bytes=80 * GIB)
        wish = {"gpu_request_type": "memory", "gpu_memory_request": "30Gi", "preemptibility": "non-preemptible"}
        first, second = (world.submit(f"w{n}", project_id=project_id, **wish) for n in range(2))
        world.settle()
        assert world.places(first)[0] == ("c", [(0, 375)])
        assert not world.places(second)
        assert world.workload(second).reason == "quota_used"
        assert world.workload(second).message == (
            "a pod needs at least 0.375 GPU where there is room in pools default, mixed, small of cluster local, and "
            "non-preemptible workloads of project tight hold 0.375 GPU of its quota of 0.5 GPU"
        )

    def test_work_without_gpus_is_not_bounded(self, world: World):
        world.node("a")
        project_id = world.project("none", quota=0)
        key = world.submit("w", project_id=project_id, cpu_core_request=1.0, preemptibility="non-preemptible")
        world.settle()
        assert world.places(key)


class TestPods:
    def test_completions_and_parallelism_bound_what_lives(self, world: World):
        world.node("a")
        key = world.submit("w", completions=5, parallelism=2)
        for done in range(5):
            world.settle()
            live = sorted(world.places(key))
            assert len(live) == min(2, 5 - done)
            world.fact(key, "succeeded", index=live[0])
        assert world.workload(key).phase == "Completed"
        world.settle()
        assert not world.check().violations

    def test_what_fits_of_a_workload_starts_and_the_rest_waits_silently(self, world: World):
        world.node("a", gpu_count=2)
        key = world.submit("w", completions=4, parallelism=4, gpu_devices_request=1)
        world.settle()
        assert sorted(world.places(key)) == [0, 1]
        assert world.workload(key).reason == ""
        assert world.plan().empty

    def test_a_failed_pod_waits_for_its_time_and_says_so(self, world: World):
        world.node("a")
        key = world.submit("w")
        world.settle()
        world.fact(key, "failed", exit_code=1)
        world.settle()
        assert world.workload(key).reason == "backoff"
        assert world.workload(key).message == (
            f"pod main-0 ended with exit code 1; the next run begins at {world.now + timedelta(seconds=1):%H:%M:%S} UTC"
            " (failed runs 1, backoff limit 6)"
        )
        assert world.plan().empty
        due = world.fold.next_due()
        assert due is not None
        assert due == world.now + timedelta(seconds=1)
        world.now = due
        world.settle()
        assert world.workload(key).pods["main", 0].try_ == 1
        assert world.places(key)

    @pytest.mark.parametrize(
        ("kind", "fact", "told"),
        [
            (
                "failed",
                {"exit_code": 127, "reason": "command_not_found", "message": "command not found: 'x'"},
                "pod main-0 ended with exit code 127 (command not found: 'x'); ",
            ),
            (
                "failed",
                {"reason": "working_dir", "message": "cannot enter '/x'"},
                "pod main-0 failed: cannot enter '/x'; ",
            ),
            (
                "refused",
                {"reason": "no_such_device", "message": "there is no device 3"},
                "pod main-0 was interrupted (there is no device 3); ",
            ),
            ("failed", {"reason": "x", "message": "long " * 100}, f"pod main-0 failed: {'long ' * 58}l…; the next run"),
        ],
    )
    def test_a_start_that_fails_again_and_again_says_why(
        self, world: World, kind: Any, fact: dict[str, Any], told: str
    ):
        """An interruption runs again at once the first time, and then waits, too."""
        world.node("a")
        key = world.submit("w")
        for _ in range(2):
            world.settle()
            world.fact(key, kind, **fact)
            world.now = world.fold.next_due() or world.now
        world.now -= timedelta(milliseconds=1)
        world.settle()
        workload = world.workload(key)
        assert workload.reason == "backoff"
        assert workload.message.startswith(told)

    def test_a_retry_waits_no_longer_than_the_longest_wait_where_the_clock_was_set_back(self, world: World):
        """One second, by a clock that was two hours ahead."""
        world.node("a")
        key = world.submit("w")
        world.now += timedelta(hours=2)
        world.settle()
        world.fact(key, "failed", exit_code=1)
        world.settle()
        assert world.workload(key).reason == "backoff"
        world.now -= timedelta(hours=2)
        world.settle()
        assert world.workload(key).phase == "Initializing"
        assert world.check().violations == []

    @pytest.mark.parametrize("back", [timedelta(seconds=1), timedelta(minutes=4)])
    def test_a_retry_keeps_its_time_where_the_clock_was_set_back_a_little(self, world: World, back: timedelta):
        world.node("a")
        key = world.submit("w")
        world.settle()
        world.fact(key, "failed", exit_code=1)
        world.settle()
        due = world.fold.next_due()
        assert due is not None
        world.now -= back
        world.settle()
        assert world.workload(key).phase == "Pending"
        world.now = due
        world.settle()
        assert world.workload(key).phase == "Initializing"

    def test_after_its_time_a_retry_without_room_tells_the_other_reason(self, world: World):
        world.node("a", max_pods=1)
        key = world.submit("w")
        world.settle()
        world.fact(key, "failed", exit_code=1)
        world.settle()
        world.submit("other", priority_class="high")
        world.settle()
        world.now += timedelta(seconds=5)
        world.settle()
        assert world.workload(key).reason == "insufficient_pods"


class TestDevices:
    def test_devices_of_others_are_a_count_and_ours_may_be_any_of_the_rest(self, world: World):
        """8 devices, ours is number 7, and others have 4: three more are left, not four."""
        node = world.node("a", gpu_count=8)
        first = world.submit("first", gpu_devices_request=7)
        last = world.submit("last", gpu_devices_request=1)
        world.settle()
        assert world.places(last) == {0: ("a", [(7, 1000)])}
        world.fact(first, "succeeded")
        world.settle()
        world.node("a", gpu_count=8, foreign_gpus=4)
        keys = [world.submit(f"more-{n}", gpu_devices_request=1) for n in range(4)]
        world.settle()
        assert [bool(world.places(key)) for key in keys] == [True, True, True, False]
        state = world.chain("node", node).state
        assert (len(state.reservations), state.free_devices) == (4, 0)
        assert "need 1, largest free 0" in world.workload(keys[3]).message

    def test_where_devices_died_a_share_of_a_held_one_waits_as_any_other(self, world: World):
        world.node("a", gpu_count=2)
        keys = [
            world.submit(f"half-{n}", gpu_request_type="portion", gpu_portion_request=portion)
            for n, portion in enumerate([0.75, 0.5])
        ]
        world.settle()
        assert {device for key in keys for _, ((device, _),) in world.places(key).values()} == {0, 1}
        world.node("a", gpu_count=1)
        another = world.submit("another", gpu_request_type="portion", gpu_portion_request=0.25)
        world.settle()
        assert not world.places(another)
        assert "need 0.25 GPU, largest free share 0 GPU" in world.workload(another).message


class TestReleases:
    def test_room_of_a_run_that_is_over_is_given_again_in_the_same_plan(self, world: World):
        node = world.node("a", gpu_count=1)
        first, second = world.submit("first", gpu_devices_request=1), world.submit("second", gpu_devices_request=1)
        world.settle()
        world.fact(first, "succeeded")
        planned = world.cycle()
        assert len(planned.releases) == len(planned.bindings) == 1
        assert [r.workload_key for r in world.chain("node", node).state.reservations.values()] == [second]
        events = [type(event).__name__ for event in world.commits[-1].events]
        assert events == ["ReservationsReleased", "PodsReserved"]

    def test_a_pod_that_is_told_to_go_keeps_its_node_until_it_is_gone(self, world: World):
        node = world.node("a", gpu_count=1)
        first, second = world.submit("first", gpu_devices_request=1), world.submit("second", gpu_devices_request=1)
        world.settle()
        world.command(first, SuspendWorkload)
        world.settle()
        assert not world.places(second)
        world.fact(first, "stopped")
        world.settle()
        assert world.places(second)
        assert len(world.chain("node", node).state.reservations) == 1

    def test_releases_happen_on_nodes_that_take_nothing_new_and_on_removed_ones(self, world: World):
        from events.node import ReportNodeGone

        node = world.node("a")
        key = world.submit("w")
        world.settle()
        world.do("node", node, ReportNodeGone())
        world.fact(key, "interrupted", reason="node_lost")
        world.settle()
        assert not world.chain("node", node).state.reservations
        assert world.workload(key).reason == "no_nodes"

    def test_a_pod_that_its_node_refuses_goes_to_another_once_the_node_says_what_it_lacks(self, world: World):
        """kubernetes.md section 1: a placement that the kubelet refuses is no failed attempt."""
        world.node("a", cpu_milli=4_000)
        world.node("b", cpu_milli=8_000)
        key = world.submit("w", cpu_core_request=4.0)
        world.settle()
        assert world.places(key)[0][0] == "a"
        world.node("a", cpu_milli=4_000, foreign_cpu_milli=1_000, foreign_pods=1)
        world.fact(key, "refused", reason="OutOfcpu")
        world.settle()
        assert world.places(key)[0][0] == "b"
        assert world.workload(key).failures == 0
        assert not world.check().violations

    def test_a_pod_out_of_sight_keeps_what_it_holds_until_its_end_is_known(self, world: World):
        node = world.node("a", **ONE_GPU)
        first = world.submit("one", gpu_devices_request=1)
        world.settle()
        world.node("b", **ONE_GPU)
        held = world.chain("node", node).state.reservations
        assert len(held) == 1
        world.fact(first, "running")
        world.node("a", **ONE_GPU, ready=False)
        world.fact(first, "unreachable")
        world.settle()
        assert world.workload(first).phase == "Unknown"
        assert world.chain("node", node).state.reservations == held
        assert len(world.places(first)) == 1
        world.fact(first, "interrupted", reason="node_lost")
        world.settle()
        assert world.chain("node", node).state.reservations == {}
        assert world.places(first)[0][0] == "b"
        assert not world.check().violations

    def test_resume_runs_again_with_a_new_attempt(self, world: World):
        world.node("a", max_pods=1)
        key = world.submit("w")
        world.settle()
        world.command(key, SuspendWorkload)
        world.fact(key, "stopped")
        world.command(key, ResumeWorkload)
        world.settle()
        assert world.workload(key).pods["main", 0].attempt == 2
        assert world.places(key)

    def test_resumed_while_its_pod_still_goes_it_is_queued_and_runs_after(self, world: World):
        world.node("a")
        key = world.submit("w")
        world.settle()
        world.command(key, SuspendWorkload)
        world.command(key, ResumeWorkload)
        world.settle()
        assert world.workload(key).phase == "Pending"
        world.fact(key, "stopped")
        world.settle()
        assert world.workload(key).pods["main", 0].attempt == 2


class TestReporting:
    def test_a_reason_is_reported_once_and_not_for_every_change_of_its_numbers(self, world: World):
        world.node("a", gpu_count=4)
        world.submit("first", gpu_devices_request=4)
        world.settle()
        world.submit("w", gpu_devices_request=3)
        world.settle()
        commits = len(world.commits)
        for n in range(3):
            world.node(f"b{n}", gpu_count=2)
            world.now += timedelta(minutes=1)
            world.settle()
        assert len(world.commits) == commits + 3

    def test_another_reason_is_reported_after_a_while(self, world: World):
        key = world.submit("w", gpu_devices_request=3)
        world.settle()
        assert world.workload(key).reason == "no_nodes"
        world.node("a", gpu_count=2)
        world.settle()
        assert world.workload(key).reason == "no_nodes"
        due = world.fold.next_due()
        assert due is not None
        world.now = due
        world.settle()
        assert world.workload(key).reason == "no_matching_node"

    def test_a_newcomer_to_a_blocked_queue_is_reported_without_looking_again(self, world: World):
        world.node("a", gpu_count=1)
        for n in range(3):
            world.submit(f"w{n}", gpu_devices_request=1)
        world.settle()
        key = world.submit("late", gpu_devices_request=1)
        queue = world.fold.snapshot(world.now).queues[0]
        assert queue.blocked is not None
        assert [entry.key for entry in queue.unreported] == [key]
        world.settle()
        assert world.workload(key).reason == "insufficient_gpu"


class TestMemory:
    def test_ended_workloads_are_forgotten_once_their_nodes_are_free(self, world: World):
        world.node("a")
        for n in range(20):
            key = world.submit(f"w{n}")
            world.settle()
            world.fact(key, "succeeded")
            if n % 2:
                world.command(key, DeleteWorkload)
        world.settle()
        assert not world.fold.workloads
        assert not world.fold.snapshot(world.now).queues

    def test_a_name_used_again_is_a_new_workload(self, world: World):
        world.node("a")
        key = world.submit("w")
        world.settle()
        world.fact(key, "succeeded")
        world.settle()
        world.command(key, DeleteWorkload)
        world.submit("w")
        world.settle()
        assert world.places(key)
        assert not world.check().violations

    def test_a_restored_fold_plans_the_same(self, world: World):
        from services.scheduler.fold import SchedulingState

        world.node("a", gpu_count=4)
        keys = [world.submit(f"w{n}", gpu_devices_request=1) for n in range(6)]
        world.settle()
        world.fact(keys[0], "succeeded")
        fold = SchedulingState()
        chains = {name: dict(kept) for name, kept in world.fold.chains.items()}
        fold.restore(world.fold.seq, chains)
        world.fold = fold
        world.settle()
        assert sum(bool(world.places(key)) for key in keys[1:]) == 4
        assert not world.check().violations
