"""Why a workload waits, and that what is named as the smallest change lets it start (issue 14 sections 3 and 4.4).

Every reason has a case here: one that is added without fails `test_every_reason_has_a_case`.
"""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from events.capacity import ReserveCapacity
from events.cluster import RemoveCluster
from events.ids import cluster_key, node_key, project_key, workload_key
from events.maintenance import PlanMaintenance
from events.node import CordonNode, Taint, UncordonNode
from events.phases import WaitingReason
from events.project import ChangeProject, DeleteProject
from events.why import MOST_CHANGES, Change, KeptBy, Step, Why
from events.windows import SetStartWindows, StartWindows, read_window
from events.workload.commands import CreateWorkload, DeleteWorkload, SuspendWorkload
from events.workload.fields.compute import ExtendedResource
from events.workload.fields.distribution import Distribution
from events.workload.fields.scheduling import Toleration
from events.workload.spec import ComputeSpec, Distributed, TrainingSpec
from services.scheduler.changes import MOST_WEIGHED, REMEDIES
from services.scheduler.planning import RESERVE_AFTER
from services.scheduler.scene import Scene
from services.scheduler.what_if import NEVER
from services.scheduler.why import why
from tests.scheduler.cases import GPU_NODE, affinity
from tests.scheduler.test_take_back import HIGH, LOW, ends, gang, running
from tests.scheduler.world import GIB, World

FIRM: Final[dict[str, Any]] = {"preemptibility": "non-preemptible"}


def cluster(**nodes: dict[str, Any]) -> World:
    world = World()
    world.cluster()
    world.project()
    for name, facts in nodes.items():
        world.node(name, **facts)
    return world


def asked(world: World, key: str, readable: frozenset[str] | None = None) -> Why:
    found = why(world.fold, world.workload(key).workload_id, world.now, readable)
    return msgspec.json.decode(msgspec.json.encode(found), type=Why)


def test_where_an_answer_takes_too_long_the_reason_is_told_and_no_more_changes_are_tried() -> None:
    world, key = submitted(cluster(a={"gpu_count": 1}), gpu_devices_request=1)
    later = world.submit("later", gpu_devices_request=1)
    world.settle()
    assert world.places(key)
    whole, tried = asked(world, later), list[int]()

    def enough() -> bool:
        tried.append(1)
        return True

    found = why(world.fold, world.workload(later).workload_id, world.now, None, enough)
    assert whole.changes
    assert (found.outcome, found.reason, found.holders, found.changes) == ("waits", whole.reason, whole.holders, ())
    assert tried


def test_who_holds_nothing_of_a_node_is_not_among_those_that_hold_it() -> None:
    """Given two workloads on the only node: one has its GPU, the other asks for nothing, and its end helps nobody."""
    world, key = submitted(cluster(a={"gpu_count": 1}), gpu_devices_request=1)
    beside, later = world.submit("nothing"), world.submit("later", gpu_devices_request=1)
    world.settle()
    assert world.places(beside)
    assert [each.name for each in asked(world, later).holders] == [world.workload(key).name]


# -- a case for each reason --------------------------------------------------------------------------------------------

type Case = Callable[[], tuple[World, str]]
"""The world at rest, and the key of the workload that waits."""


def submitted(world: World, **spec: Any) -> tuple[World, str]:
    world.settle()
    key = world.submit("w", **spec)
    world.settle()
    return world, key


def filled(world: World, *specs: dict[str, Any]) -> World:
    for number, spec in enumerate(specs):
        world.submit(f"holder{number}", **spec)
    world.settle()
    return world


def in_a_pool_that_is_not_there() -> tuple[World, str]:
    return submitted(cluster(a={}), node_pools=("h100",))


def larger_than_every_node() -> tuple[World, str]:
    return submitted(cluster(a=GPU_NODE, b=GPU_NODE | {"gpu_count": 4}), gpu_devices_request=9)


def more_cpu_and_memory_than_any_node() -> tuple[World, str]:
    # The one that has the memory has not the cores.
    world = cluster(a={"cpu_milli": 64_000, "memory_bytes": 8 * GIB}, b={"cpu_milli": 8_000})
    return submitted(world, cpu_core_request=48.0, cpu_memory_request=str(64 * GIB))


def more_memory_of_a_gpu_than_any_has() -> tuple[World, str]:
    return submitted(cluster(a=GPU_NODE), gpu_request_type="memory", gpu_memory_request=str(96 * GIB))


def of_a_type_that_no_node_has() -> tuple[World, str]:
    return submitted(cluster(a={}), node_type="h100")


def with_labels_that_no_node_has() -> tuple[World, str]:
    terms = affinity((("disk", "In", ("ssd",)), ("rank", "Gt", ("5",)), ("old", "DoesNotExist", ())))
    return submitted(cluster(a={}), node_affinity_required=terms)


def a_gang_larger_than_the_cluster() -> tuple[World, str]:
    world = cluster(a=GPU_NODE)
    world.settle()
    key = gang(world, "w", workers=3, gpus=4)
    world.settle()
    return world, key


def larger_than_the_quota() -> tuple[World, str]:
    world = cluster(a=GPU_NODE)
    return submitted(world, project_id=world.project("small", quota=1_000), gpu_devices_request=2, **FIRM)


def larger_than_the_limit() -> tuple[World, str]:
    world = cluster(a=GPU_NODE)
    return submitted(world, project_id=world.project("small", limit=1_000), gpu_devices_request=2)


def in_a_project_that_was_deleted() -> tuple[World, str]:
    world = cluster(a={})
    id_ = world.project("gone")
    world.settle()
    world.do("project", project_key("gone"), DeleteProject(project_id=id_))
    return submitted(world, project_id=id_)


def without_an_agent() -> tuple[World, str]:
    world = cluster(a={})
    world.settle()
    world.connect(world.cluster_id, connected=False)
    return submitted(world)


def without_an_agent_and_nodes() -> tuple[World, str]:
    world = cluster()
    world.connect(world.cluster_id, connected=False)
    return submitted(world, gpu_devices_request=1)


def in_a_cluster_that_was_removed() -> tuple[World, str]:
    world = cluster(a={})
    other = world.cluster("other")
    world.node("b", cluster_id=other)
    world.settle()
    key = world.submit("w", gpu_devices_request=1)
    world.do("cluster", cluster_key("local"), RemoveCluster(cluster_id=world.cluster_id))
    world.node("b", cluster_id=other, **GPU_NODE)
    world.settle()
    return world, key


def without_nodes() -> tuple[World, str]:
    resource = ExtendedResource(resource="rdma/hca", quantity="2")
    return submitted(cluster(), gpu_devices_request=2, cpu_core_request=4.0, extended_resources=(resource,))


def where_the_only_node_is_cordoned() -> tuple[World, str]:
    world = cluster(a={})
    world.cordon("a")
    return submitted(world)


def where_the_only_node_is_not_ready() -> tuple[World, str]:
    return submitted(cluster(a={"ready": False}))


def where_the_only_node_has_a_taint() -> tuple[World, str]:
    return submitted(cluster(a={"taints": (Taint(key="dedicated", value="ml"), Taint(key="old", effect="NoExecute"))}))


def beyond_the_quota_on_full_nodes() -> tuple[World, str]:
    world = cluster(a={"gpu_count": 2})
    id_ = world.project("small", quota=1_000)
    specs = ({"gpu_devices_request": 1, "project_id": id_, **more} for more in (FIRM, {}))
    return submitted(filled(world, *specs), project_id=id_, gpu_devices_request=1, **FIRM)


def beyond_what_is_left_of_the_quota() -> tuple[World, str]:
    world = cluster(a=GPU_NODE)
    id_ = world.project("small", quota=3_000)
    specs = ({"gpu_devices_request": count, "project_id": id_, **FIRM} for count in (1, 2))
    return submitted(filled(world, *specs), project_id=id_, gpu_devices_request=2, **FIRM)


def beyond_what_is_left_of_the_limit() -> tuple[World, str]:
    world = cluster(a=GPU_NODE)
    id_ = world.project("small", limit=3_000)
    holder = {"gpu_devices_request": 3, "project_id": id_}
    return submitted(filled(world, holder), project_id=id_, gpu_devices_request=2)


def where_others_were_told_to_end() -> tuple[World, str]:
    world = cluster(a={"gpu_count": 1})
    running(world, "low", **LOW)
    return submitted(world, gpu_devices_request=1, **HIGH)


def where_no_gpu_is_free() -> tuple[World, str]:
    world = cluster(a=GPU_NODE, b=GPU_NODE)
    specs = ({"gpu_devices_request": 2}, {"gpu_devices_request": 6}, *({"gpu_devices_request": 3},) * 2)
    return submitted(filled(world, *specs), gpu_devices_request=4)


def where_no_share_is_free() -> tuple[World, str]:
    share: dict[str, Any] = {"gpu_request_type": "portion"}
    world = filled(cluster(a={"gpu_count": 1}), share | {"gpu_portion_request": 0.7})
    return submitted(world, gpu_portion_request=0.5, **share)


def a_gang_for_which_too_little_is_free() -> tuple[World, str]:
    world = filled(cluster(a=GPU_NODE, b=GPU_NODE), *({"gpu_devices_request": 3},) * 4)
    key = gang(world, "w", workers=5, gpus=2)
    world.settle()
    return world, key


def where_a_wide_one_has_waited_for_longer() -> tuple[World, str]:
    firm: dict[str, Any] = {"preemptibility": "non-preemptible"}
    world = filled(cluster(a=GPU_NODE), {"gpu_devices_request": 2, **firm})
    world.submit("wide", gpu_devices_request=8)
    world.settle()
    world.now += RESERVE_AFTER
    return submitted(world, gpu_devices_request=1, **firm)


def where_no_cpu_is_free() -> tuple[World, str]:
    return submitted(filled(cluster(a={"cpu_milli": 4_000}), {"cpu_core_request": 3.0}), cpu_core_request=2.0)


def where_no_memory_is_free() -> tuple[World, str]:
    world = filled(cluster(a={"memory_bytes": 4 * GIB}), {"cpu_memory_request": str(3 * GIB)})
    return submitted(world, cpu_memory_request=str(2 * GIB))


def where_every_node_has_its_pods() -> tuple[World, str]:
    return submitted(filled(cluster(a={"max_pods": 1}), {}))


def where_each_node_lacks_something_else() -> tuple[World, str]:
    world = cluster()
    cpu: dict[str, Any] = {
        "cpu_core_request": 3.0,
        "node_affinity_required": affinity((("kubernetes.io/hostname", "In", ("a",)),)),
    }
    for name, facts in (("a", {"cpu_milli": 4_000}), ("b", {"memory_bytes": 4 * GIB})):
        told: dict[str, Any] = {"labels": {"kubernetes.io/hostname": name}, **facts}
        world.node(name, **told)
    memory = cpu | {"node_affinity_required": affinity((("kubernetes.io/hostname", "In", ("b",)),))}
    memory |= {"cpu_core_request": 0.0, "cpu_memory_request": str(3 * GIB)}
    return submitted(filled(world, cpu, memory), cpu_core_request=2.0, cpu_memory_request=str(2 * GIB))


def where_the_holder_has_its_minimum_runtime() -> tuple[World, str]:
    world = World()
    world.cluster()
    world.project(minimum_runtime_seconds=600)
    world.node("a", gpu_count=1)
    running(world, "low", **LOW)
    return submitted(world, gpu_devices_request=1, **HIGH)


def where_the_holder_gave_up_a_place_before() -> tuple[World, str]:
    world = cluster(a={"gpu_count": 1})
    low = running(world, "low", **LOW)
    first = world.submit("first", gpu_devices_request=1, **HIGH)
    world.settle()
    world.command(first, DeleteWorkload)
    ends(world, low)
    return submitted(world, gpu_devices_request=1, **HIGH)


def after_a_pod_failed() -> tuple[World, str]:
    world, key = submitted(cluster(a={}))
    world.fact(key, "failed", exit_code=1)
    world.settle()
    return world, key


def planned(world: World, *, after: timedelta) -> None:
    starts = world.now + after
    command = PlanMaintenance(
        cluster_id=world.cluster_id,
        name="firmware",
        starts_at=starts,
        ends_at=starts + timedelta(hours=1),
        nodes=("a",),
        new=True,
    )
    world.do("cluster", cluster_key("local"), command)


def which_could_run_into_maintenance() -> tuple[World, str]:
    world = cluster(a={})
    planned(world, after=timedelta(hours=2))
    return submitted(world, **FIRM)


def whose_grace_would_reach_into_maintenance() -> tuple[World, str]:
    world = cluster(a={})
    planned(world, after=timedelta(minutes=30))
    return submitted(world, termination_grace_period_seconds=3600)


def while_maintenance_goes_on() -> tuple[World, str]:
    world = cluster(a={})
    planned(world, after=timedelta(minutes=1))
    world.now += timedelta(minutes=2)
    return submitted(world)


def outside_the_window_of_its_project() -> tuple[World, str]:
    world = cluster(a={})
    windows = StartWindows(zone="UTC", windows=(read_window("Mon 08:00-10:00"),))
    world.do("project", project_key("default"), SetStartWindows(project_id=world.project_id, windows=windows))
    world.project("other")
    return submitted(world)


def reserved(world: World, *, after: timedelta) -> None:
    starts = world.now + after
    command = ReserveCapacity(
        cluster_id=world.cluster_id,
        name="bench",
        project_id=world.project("owner"),
        project_name="owner",
        starts_at=starts,
        ends_at=starts + timedelta(hours=1),
        nodes=("a",),
        new=True,
    )
    world.do("cluster", cluster_key("local"), command)


def which_could_run_into_a_reservation() -> tuple[World, str]:
    world = cluster(a={})
    reserved(world, after=timedelta(hours=2))
    return submitted(world, **FIRM)


def while_its_node_is_reserved_for_another_project() -> tuple[World, str]:
    world = cluster(a={})
    reserved(world, after=timedelta(minutes=1))
    world.now += timedelta(minutes=2)
    return submitted(world)


CASES: Final[dict[WaitingReason, tuple[Case, ...]]] = {
    WaitingReason.NO_SUCH_NODE_POOL: (in_a_pool_that_is_not_there,),
    WaitingReason.NO_MATCHING_NODE: (
        larger_than_every_node,
        more_cpu_and_memory_than_any_node,
        more_memory_of_a_gpu_than_any_has,
        of_a_type_that_no_node_has,
        with_labels_that_no_node_has,
        a_gang_larger_than_the_cluster,
    ),
    WaitingReason.QUOTA_TOO_SMALL: (larger_than_the_quota,),
    WaitingReason.PROJECT_DELETED: (in_a_project_that_was_deleted,),
    WaitingReason.CLUSTER_DISCONNECTED: (
        without_an_agent,
        without_an_agent_and_nodes,
        in_a_cluster_that_was_removed,
    ),
    WaitingReason.NO_NODES: (
        without_nodes,
        where_the_only_node_is_cordoned,
        where_the_only_node_is_not_ready,
        where_the_only_node_has_a_taint,
    ),
    WaitingReason.MAINTENANCE: (
        which_could_run_into_maintenance,
        whose_grace_would_reach_into_maintenance,
        while_maintenance_goes_on,
    ),
    WaitingReason.CAPACITY_RESERVED: (
        which_could_run_into_a_reservation,
        while_its_node_is_reserved_for_another_project,
    ),
    WaitingReason.QUOTA_USED: (beyond_what_is_left_of_the_quota, beyond_the_quota_on_full_nodes),
    WaitingReason.LIMIT_TOO_SMALL: (larger_than_the_limit,),
    WaitingReason.LIMIT_USED: (beyond_what_is_left_of_the_limit,),
    WaitingReason.OUTSIDE_WINDOW: (outside_the_window_of_its_project,),
    WaitingReason.SHARE_RESERVED: (where_a_wide_one_has_waited_for_longer,),
    WaitingReason.WAITING_FOR_PODS_TO_END: (where_others_were_told_to_end,),
    WaitingReason.INSUFFICIENT_GPU: (
        where_no_gpu_is_free,
        where_no_share_is_free,
        a_gang_for_which_too_little_is_free,
        where_the_holder_has_its_minimum_runtime,
        where_the_holder_gave_up_a_place_before,
    ),
    WaitingReason.INSUFFICIENT_CPU: (where_no_cpu_is_free,),
    WaitingReason.INSUFFICIENT_MEMORY: (where_no_memory_is_free,),
    WaitingReason.INSUFFICIENT_PODS: (where_every_node_has_its_pods,),
    WaitingReason.INSUFFICIENT_RESOURCES: (where_each_node_lacks_something_else,),
    WaitingReason.BACKOFF: (after_a_pod_failed,),
}
ALL: Final = [(reason, case) for reason, cases in CASES.items() for case in cases]


def test_every_reason_has_a_case_and_says_what_may_help() -> None:
    assert set(CASES) == set(REMEDIES) == set(WaitingReason)


# -- what is named is done ---------------------------------------------------------------------------------------------


def carry_out(world: World, key: str, change: Change) -> str:
    """Do what it says on the log, through the commands that people have; the key of what is to start by it."""
    again: list[Step] = []
    for step in change.steps:
        if step.act == "change_workload":
            again.append(step)
        else:
            _do(world, key, step)
    return _submit_again(world, key, again) if again else key


def _submit_again(world: World, key: str, steps: list[Step]) -> str:
    state = world.workload(key)
    told: dict[str, Any] = {
        "spec": msgspec.to_builtins(state.spec),
        "distribution": msgspec.to_builtins(state.distributed.distribution) if state.distributed else {},
        "projectId": state.project_id,
        "clusterId": state.cluster_id,
    }
    for step in steps:
        *above, name = step.field.split(".")
        here = told
        for part in above:
            here = here[part]
        here = told["distribution"] if name in told["distribution"] else here
        assert name in here, step
        here[name] = step.value
    world.now += timedelta(seconds=1)
    distributed = state.distributed
    if distributed is not None:
        of = msgspec.convert(told["distribution"], type(distributed.distribution))
        distributed = msgspec.structs.replace(distributed, distribution=of)
    new = workload_key(told["projectId"], "again")
    command = CreateWorkload(
        kind=state.kind,
        name="again",
        requested_name="again",
        project_id=told["projectId"],
        cluster_id=told["clusterId"],
        spec=msgspec.convert(told["spec"], type(state.spec)),
        distributed=distributed,
    )
    world.do("workload", new, command)
    return new


def _do(world: World, key: str, step: Step) -> None:
    value = step.value
    match step.act:
        case "set_quota" | "set_limit":
            noun, _, name = step.of.partition(" ")
            assert (noun, step.pool) == ("project", "")
            id_ = world.chain("project", project_key(name)).state.project_id
            bound = "gpu_quota_milli" if step.act == "set_quota" else "gpu_limit_milli"
            settings: dict[str, Any] = {bound: int(1000 * value)}
            world.do("project", project_key(name), ChangeProject(project_id=id_, **settings))
        case "end_workloads":
            for of in [of for of in world.fold.workloads if world.workload(of).name in step.workloads]:
                for index in world.places(of):
                    world.fact(of, "succeeded", index=index)
        case "uncordon_node":
            world.cordon(step.of, UncordonNode)
        case "open_node":
            world.node(step.of)
        case "add_node":
            extended = {name: count for name, count in value.items() if "/" in name}
            # A node has room for many pods; where that is all that is asked for, it need have no more than for one.
            asks = bool(value["gpus"] or value["cpuCores"] or value["memory"] or extended)
            for number in range(value["nodes"]):
                world.node(
                    f"new-{value['gpus']}-{number}",
                    gpu_count=value["gpus"],
                    gpu_memory_bytes=_bytes(value["gpuMemory"]),
                    cpu_milli=round(1000 * value["cpuCores"]),
                    memory_bytes=_bytes(value["memory"]),
                    max_pods=110 if asks else 1,
                    labels=value["labels"],
                    extended=extended,
                    pool=step.pool,
                )
        case "connect_cluster":
            world.connect(world.cluster_id, step.of)
        case "wait":
            if told := re.match("wait until (.*) UTC", step.of):
                # Seconds are told whole: it is a moment later than that.
                world.now = datetime.fromisoformat(f"{told[1]}+00:00") + timedelta(seconds=1)
                world.settle()
            due = world.fold.next_due()
            if world.workload(key).reason in {"backoff", "outside_window"}:
                assert due is not None
                world.now = due
            if world.workload(key).reason == "capacity_reserved":
                world.now = max(each.ends_at for each in world.chain("cluster", cluster_key("local")).state.reserved)
            if world.workload(key).reason == "maintenance":
                world.now = max(each.ends_at for each in world.chain("cluster", cluster_key("local")).state.maintenance)
            for of in list(world.fold.workloads):
                ends(world, of)
        case "change_workload":
            raise AssertionError


def _bytes(text: str | int) -> int:
    return 0 if not text else int(float(str(text).removesuffix("Gi")) * GIB)


@pytest.mark.parametrize(("reason", "case"), ALL, ids=lambda each: getattr(each, "__name__", str(each)))
def test_the_reason_is_the_one_of_the_log_and_each_change_that_is_named_lets_it_start(
    reason: WaitingReason, case: Case
) -> None:
    world, key = case()
    commits, found = len(world.commits), asked(world, key)
    assert world.workload(key).reason == reason == found.reason
    assert found.outcome == ("never" if reason in NEVER else "waits")
    assert found.message
    assert 0 < len(found.changes) <= MOST_CHANGES, "something would help"
    assert len(world.commits) == commits, "nothing is written"
    assert asked(world, key) == found, "and nothing of what the scheduler knows changes"
    for number in range(len(found.changes)):
        if number:
            world, key = case()
            found = asked(world, key)  # ids are others in each world
        change = found.changes[number]
        started = carry_out(world, key, change)
        world.settle()
        assert world.places(started) or world.workload(started).pods.live, change
        assert not world.check().violations


EXPECTED: Final[list[tuple[Case, list[str]]]] = [
    (
        larger_than_every_node,
        [
            "submit it again with spec.compute.gpuDevicesRequest as 8",
            "add 1 node with [0-9]+ free GPUs.* to pool default",
        ],
    ),
    (of_a_type_that_no_node_has, ["submit it without spec.nodeType"]),
    (larger_than_the_quota, ["set the GPU quota of project small to 2"]),
    (where_the_only_node_is_cordoned, ["uncordon node a"]),
    (beyond_what_is_left_of_the_quota, ["set the GPU quota of project small to 5"]),
    # Of the two small ones on the node with two free GPUs either one: no more ends than must.
    (where_no_gpu_is_free, ["wait until these end, or end them: holder[23]"]),
    (a_gang_for_which_too_little_is_free, ["submit it again with spec.numWorkers as 2"]),
    (in_a_cluster_that_was_removed, ["submit it again in cluster other"]),
    (in_a_project_that_was_deleted, ["submit it again in project [a-z0-9-]+"]),
    (without_an_agent, ["have the agent of cluster local report again"]),
]


@pytest.mark.parametrize(("case", "messages"), EXPECTED, ids=lambda each: getattr(each, "__name__", ""))
def test_the_smallest_change_is_no_larger_than_it_must_be(case: Case, messages: list[str]) -> None:
    world, key = case()
    told = [change.message for change in asked(world, key).changes]
    for message in messages:
        assert any(re.fullmatch(message, each) for each in told), told


# -- nodes for pods that start together ----------------------------------------------------------------------------


def distributed(world: World, *, workers: int, gpus: int, master: int | None, **compute: Any) -> tuple[World, str]:
    """A gang with so many GPUs for each worker, and for the master; None: it is as they are."""
    world.settle()
    spec = TrainingSpec(image="i", compute=ComputeSpec(gpu_devices_request=gpus, **compute))
    of_master = spec if master is None else TrainingSpec(image="m", compute=ComputeSpec(gpu_devices_request=master))
    distribution = Distribution(distributed_framework="PyTorch", num_workers=workers)
    command = CreateWorkload(
        kind="Distributed",
        name="w",
        requested_name="w",
        project_id=world.project_id,
        cluster_id=world.cluster_id,
        spec=spec,
        distributed=Distributed(distribution=distribution, master=of_master),
    )
    key = workload_key(world.project_id, "w")
    world.do("workload", key, command)
    world.settle()
    return world, key


def of_nodes(*counts: int) -> World:
    return cluster(**{f"n{number}": {"gpu_count": count} for number, count in enumerate(counts)})


def one_pod_more_than_there_is_room_for() -> tuple[World, str]:
    return distributed(of_nodes(4, 4, 4), workers=3, gpus=4, master=None)


def with_two_of_three_nodes_full() -> tuple[World, str]:
    world = filled(of_nodes(4, 4, 4), *({"gpu_devices_request": 4, **FIRM},) * 2)
    return distributed(world, workers=3, gpus=4, master=None)


def with_a_master_that_asks_for_no_gpu() -> tuple[World, str]:
    return distributed(of_nodes(4, 4, 4, 4), workers=5, gpus=4, master=0)


def with_a_master_that_finds_room_beside_a_worker_on_a_new_node() -> tuple[World, str]:
    return distributed(cluster(), workers=3, gpus=4, master=0)


def with_a_master_that_takes_the_room_of_a_worker() -> tuple[World, str]:
    return distributed(of_nodes(4), workers=2, gpus=4, master=1)


def of_parts_of_gpus_on_new_nodes() -> tuple[World, str]:
    half: dict[str, Any] = {"gpu_request_type": "portion", "gpu_portion_request": 0.5}
    return distributed(of_nodes(1), workers=5, gpus=1, master=None, **half)


FEWEST: Final[list[tuple[Case, list[tuple[int, int]]]]] = [
    (one_pod_more_than_there_is_room_for, [(1, 4)]),
    (with_two_of_three_nodes_full, [(3, 4)]),
    (with_a_master_that_asks_for_no_gpu, [(1, 4)]),
    (with_a_master_that_finds_room_beside_a_worker_on_a_new_node, [(3, 4)]),
    (with_a_master_that_takes_the_room_of_a_worker, [(1, 4), (1, 1)]),
    (of_parts_of_gpus_on_new_nodes, [(2, 1)]),
]
"""With the nodes that are to be added: how many, each with so many free GPUs."""


@pytest.mark.parametrize(("case", "steps"), FEWEST, ids=lambda each: getattr(each, "__name__", ""))
def test_no_more_nodes_are_to_be_added_than_let_it_start(case: Case, steps: list[tuple[int, int]]) -> None:
    world, key = case()
    (change,) = (each for each in asked(world, key).changes if each.steps[0].act == "add_node")
    assert [(step.value["nodes"], step.value["gpus"]) for step in change.steps] == steps
    # With one node less it does not start, with all of them it does.
    *others, last = change.steps
    less = [*others, msgspec.structs.replace(last, value=last.value | {"nodes": last.value["nodes"] - 1})]
    for tried, starts in ((less, False), (change.steps, True)):
        world, key = case()
        carry_out(world, key, Change(steps=tuple(tried), message=""))
        world.settle()
        assert bool(world.places(key)) == starts


def test_where_nodes_are_missing_after_a_cluster_is_back_those_that_it_has_are_used_too() -> None:
    world = of_nodes(4, 4, 4)
    world.settle()
    world.connect(world.cluster_id, connected=False)
    world, key = distributed(world, workers=3, gpus=4, master=None)
    told = [each.message for each in asked(world, key).changes]
    assert told == ["have the agent of cluster local report again; and add 1 node with 4 free GPUs to pool default"]


def test_nodes_are_counted_once_for_pods_that_ask_for_the_same_and_else_told_with_the_pods_that_are_meant() -> None:
    world, key = one_pod_more_than_there_is_room_for()
    found = asked(world, key)
    assert [(each.pods, each.ground, each.nodes) for each in found.nodes] == [("4 GPUs", "room", 3)]
    assert "has room for 3 of 4 pods with 4 GPUs" in found.message
    world, key = with_a_master_that_asks_for_no_gpu()
    told = [(each.pods, each.ground, each.nodes) for each in asked(world, key).nodes]
    assert sorted(told) == [("master: room for a pod", "room", 4), ("worker: 4 GPUs", "room", 4)]


# -- who holds it, and what nobody may learn ---------------------------------------------------------------------------


def test_who_holds_the_capacity_is_named_where_the_asker_may_see_it_and_counted_elsewhere() -> None:
    world = cluster(a=GPU_NODE)
    other = world.project("other")
    filled(world, {"gpu_devices_request": 3}, {"gpu_devices_request": 5, "project_id": other})
    world, key = submitted(world, gpu_devices_request=4)
    found = asked(world, key)
    assert [(each.name, each.gpu_milli, each.pods) for each in found.holders] == [
        ("holder1", 5000, 1),
        ("holder0", 3000, 1),
    ]
    assert (found.others.workloads, found.ahead, found.waiting_pods) == (0, 0, 1)
    assert [(each.ground, each.nodes) for each in found.nodes] == [("gpu", 1)]
    own = asked(world, key, frozenset({world.project_id}))
    assert [each.name for each in own.holders] == ["holder0"]
    assert (own.others.workloads, own.others.pods, own.others.gpu_milli) == (1, 1, 5000)
    assert "1 workload of other projects" in own.changes[0].message
    assert b"holder1" not in msgspec.json.encode(own)


def test_under_a_bound_those_are_named_that_count_there() -> None:
    world, key = beyond_what_is_left_of_the_limit()
    world.submit("elsewhere", gpu_devices_request=1)
    world.settle()
    assert [each.name for each in asked(world, key).holders] == ["holder0"]


def test_what_waits_behind_others_says_how_many_and_no_change_that_they_would_take() -> None:
    world = filled(cluster(a=GPU_NODE), {"gpu_devices_request": 8})
    first = world.submit("first", gpu_devices_request=8)
    world, key = submitted(world, gpu_devices_request=8)
    assert (asked(world, first).ahead, asked(world, key).ahead) == (0, 1)
    told = [change.message for change in asked(world, key).changes]
    assert not any("holder0" in message and "first" not in message for message in told)


def test_what_can_never_start_is_ahead_of_nobody() -> None:
    world = filled(cluster(a=GPU_NODE), {"gpu_devices_request": 8})
    world.submit("never", gpu_devices_request=9)
    world, key = submitted(world, gpu_devices_request=8)
    assert asked(world, key).ahead == 0


@pytest.mark.parametrize("bound", ["quota", "limit"])
def test_where_everything_is_full_a_bound_that_is_too_small_is_told_all_the_same(bound: str) -> None:
    world = cluster(a=GPU_NODE)
    small = world.project("small", quota=1_000) if bound == "quota" else world.project("small", limit=1_000)
    world = filled(world, {"gpu_devices_request": 8, **FIRM})
    world, key = submitted(world, project_id=small, gpu_devices_request=2, **(FIRM if bound == "quota" else {}))
    changes = asked(world, key).changes
    told = {change.message: change.waits for change in changes}
    assert told[f"set the GPU {bound} of project small to 2, and then it waits for room as others do"]
    if bound == "quota":
        preemptible = "submit it again with spec.preemptibility as preemptible, and then it waits for room as others do"
        assert told[preemptible]
    carry_out(world, key, changes[0])
    world.now += timedelta(minutes=1)
    world.settle()
    assert world.workload(key).reason == "insufficient_gpu"


def test_a_node_counts_at_each_thing_that_it_lacks_and_those_with_room_are_told() -> None:
    world = cluster(a=GPU_NODE | {"cpu_milli": 1_000}, b=GPU_NODE, small={}, c=GPU_NODE)
    world.cordon("c")
    world = filled(world, *({"gpu_devices_request": 8},))
    world, key = submitted(world, gpu_devices_request=1, cpu_core_request=1.0, completions=20, parallelism=20)
    grounds = {each.ground: each.nodes for each in asked(world, key).nodes}
    assert grounds["cordoned"] == grounds["size"] == 1
    assert grounds["gpu"] >= 1


# -- whose places are kept ---------------------------------------------------------------------------------------------

KEPT: Final[list[tuple[Case, KeptBy]]] = [
    (where_the_holder_has_its_minimum_runtime, "minimum_runtime"),
    (where_the_holder_gave_up_a_place_before, "gave_up_a_place"),
]


@pytest.mark.parametrize(("case", "rule"), KEPT, ids=lambda each: getattr(each, "__name__", ""))
def test_it_is_said_whose_place_may_not_be_taken_yet_and_until_when(case: Case, rule: KeptBy) -> None:
    """Of the one that waits, and of the one that keeps its place."""
    world, key = case()
    (kept,) = asked(world, key).kept
    assert (kept.name, kept.rule) == ("low", rule)
    due = kept.until
    assert due is not None
    assert timedelta(minutes=9) < due - world.now <= timedelta(minutes=10)
    own = asked(world, workload_key(world.project_id, "low")).own
    assert own == kept
    (hidden,) = asked(world, key, frozenset()).kept
    assert (hidden.workload_id, hidden.name, hidden.workloads, hidden.until) == ("", "", 1, due)
    world.now = due - timedelta(seconds=1)
    world.settle()
    assert world.workload(key).reason == "insufficient_gpu"
    world.now = due
    world.settle()
    assert world.workload(key).reason == "waiting_for_pods_to_end"
    assert asked(world, key).kept == ()


def test_that_a_workload_takes_no_place_from_the_one_that_got_its_own_is_said() -> None:
    world = cluster(a={"gpu_count": 1})
    low = running(world, "low", **LOW)
    high = world.submit("high", gpu_devices_request=1, **HIGH)
    world.settle()
    ends(world, low)
    world.settle()
    assert world.places(high)
    (kept,) = asked(world, low).kept
    assert (kept.name, kept.rule, kept.until) == ("high", "got_its_place", None)


def test_what_may_lose_its_place_at_any_time_or_never_says_nothing_of_that() -> None:
    world = cluster(a={"gpu_count": 2})
    may, never = running(world, "may"), running(world, "never", **FIRM)
    assert (asked(world, may).own, asked(world, never).own) == (None, None)


# -- what runs ---------------------------------------------------------------------------------------------------------


def test_what_runs_says_how_its_node_compares_with_the_others() -> None:
    world = cluster(eight=GPU_NODE, two=GPU_NODE | {"gpu_count": 2}, none={})
    world, key = submitted(world, gpu_devices_request=2)
    found = asked(world, key)
    assert (found.outcome, found.reason, found.changes) == ("runs", "", ())
    (place,) = found.places
    assert (place.node, place.node_pool, place.rank, place.pods) == ("two", "default", 1, 1)
    assert [each.node for each in place.others] == ["eight"]
    assert place.chosen is not None
    names = [score.name for score in place.chosen.scores]
    assert names == [score.name for score in place.others[0].scores] == [score.name for score in world.policy.scores]
    assert [each.value for each in place.chosen.scores] <= [each.value for each in place.others[0].scores]
    assert [(each.ground, each.nodes) for each in place.refused] == [("size", 1)]


def test_a_node_that_takes_no_pods_any_more_has_no_rank() -> None:
    world, key = submitted(cluster(a={}, b={}))
    world.cordon(world.places(key)[0][0])
    world.settle()
    (place,) = asked(world, key).places
    assert (place.rank, place.chosen) == (0, None)
    assert [each.ground for each in place.refused] == ["cordoned"]


def test_what_is_partly_placed_says_both() -> None:
    world, key = submitted(cluster(a={"gpu_count": 1}), gpu_devices_request=1, completions=2, parallelism=2)
    found = asked(world, key)
    assert (found.outcome, found.reason, found.waiting_pods, len(found.places)) == ("waits", "insufficient_gpu", 1, 1)


def test_what_was_just_submitted_starts_and_what_asks_for_no_place_says_so() -> None:
    world = cluster(a={})
    world.settle()
    key = world.submit("w")
    assert asked(world, key).outcome == "starts"
    world.settle()
    world.command(key, SuspendWorkload)
    assert asked(world, key).outcome == "ended"
    assert why(world.fold, "6b1b3a80-0000-4000-8000-000000000000", world.now, None).outcome == "ended"


def test_tolerations_of_others_stay_where_taints_of_a_node_are_added() -> None:
    toleration = Toleration(key="mine", operator="Exists", effect="Any")
    world = cluster(a={"taints": (Taint(key="dedicated"),)})
    world, key = submitted(world, tolerations=(toleration,))
    (step,) = asked(world, key).changes[0].steps
    assert [each["key"] for each in step.value] == ["mine", "dedicated"]
    assert asked(world, key).changes[0].message == (
        "submit it again with spec.tolerations as operator=Exists,key=mine,effect=Any"
        " and operator=Exists,key=dedicated,effect=Any"
    )


def test_a_question_looks_at_few_of_those_who_hold_a_node_however_many_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is placed meanwhile: hundreds of small ones on each node would cost seconds a question."""
    world = cluster(**{f"n{number}": {"cpu_milli": 9_000, "max_pods": 500} for number in range(6)})
    for number in range(6 * 90):
        world.submit(f"h{number}", cpu_core_request=0.1)
    world.settle()
    _, key = submitted(world, cpu_core_request=9.0)
    looked, has_room = 0, Scene.has_room

    def counted(*given: Any) -> bool:
        nonlocal looked
        looked += 1
        return has_room(*given)

    monkeypatch.setattr(Scene, "has_room", counted)
    assert asked(world, key).outcome == "waits"
    assert looked < 2 * MOST_WEIGHED


def test_of_nodes_that_lack_something_it_says_what_those_have_and_not_what_others_have() -> None:
    """Its own node has eight free GPUs without it, and lacks none: only the other one does."""
    world = cluster(a={"gpu_count": 8}, b={"gpu_count": 8})
    key = world.submit("w", gpu_devices_request=8)
    world.settle()
    world.submit("other", gpu_devices_request=3)
    world.settle()
    (place,) = asked(world, key).places
    assert [(each.nodes, each.message) for each in place.refused] == [(1, "short of GPU (need 8, largest free 5)")]

    world = cluster(a={"gpu_count": 4, "cpu_milli": 1000}, b={"gpu_count": 4})
    world.submit("holder", gpu_devices_request=3, cpu_core_request=2.0)
    world.settle()
    key = world.submit("w", gpu_devices_request=4, cpu_core_request=2.0)
    world.settle()
    told = {each.message for each in asked(world, key).nodes}
    assert "short of GPU (need 4, largest free 1)" in told
    assert "(need 4, largest free 1)" in world.workload(key).message


# -- the calendar beside other grounds ---------------------------------------------------------------------------------


def test_outside_its_window_and_without_room_both_are_said() -> None:
    world = cluster(a={"gpu_count": 2})
    other = world.project("other")
    world.submit("holder", project_id=other, gpu_devices_request=2, **FIRM)
    world.settle()
    windows = StartWindows(zone="UTC", windows=(read_window("Mon 08:00-10:00"),))
    world.do("project", project_key("default"), SetStartWindows(project_id=world.project_id, windows=windows))
    key = world.submit("w", gpu_devices_request=2)
    world.settle()

    found = asked(world, key)

    assert (found.reason, found.outcome) == ("outside_window", "waits")
    assert any(
        re.fullmatch(
            r"wait until 2026-03-02 08:00 UTC, when a window of project default opens, "
            "and then it waits for room as others do",
            each.message,
        )
        and each.waits
        for each in found.changes
    ), found.changes
    assert found.no_estimate == "not before its project's next window opens at 2026-03-02 08:00 UTC"


def test_outside_its_window_it_is_said_what_it_waits_for_after_that_also_where_that_is_no_room() -> None:
    world = cluster(a={})
    planned(world, after=timedelta(minutes=1))
    world.now += timedelta(minutes=2)
    windows = StartWindows(zone="UTC", windows=(read_window("Mon 08:00-10:00"),))
    world.do("project", project_key("default"), SetStartWindows(project_id=world.project_id, windows=windows))
    world.settle()
    key = world.submit("w")
    world.settle()

    found = asked(world, key)

    assert found.reason == "outside_window"
    (told,) = [each.message for each in found.changes if each.waits]
    assert "a window of project default opens, and then it waits still: the only node" in told
    assert "maintenance firmware until" in told


@pytest.mark.parametrize("case", [which_could_run_into_maintenance, while_maintenance_goes_on])
def test_what_waits_for_the_calendar_is_told_until_when_its_entry_lasts(case: Case) -> None:
    world, key = case()
    told = re.findall(r"maintenance firmware .*?(\d{4}-\d\d-\d\d \d\d:\d\d) UTC", world.workload(key).message)
    estimate = asked(world, key).estimate
    assert estimate is not None
    # Nothing else keeps the node from it.
    assert [f"{each:%Y-%m-%d %H:%M}" for each in (estimate.earliest, estimate.latest)] == [told[0], told[0]]
    assert estimate.latest_known


def test_where_others_are_there_too_it_is_told_only_what_the_calendar_has() -> None:
    world = cluster(a={"gpu_count": 1})
    planned(world, after=timedelta(hours=2))
    world.submit("holder", gpu_devices_request=1)
    world.settle()
    key = world.submit("w", gpu_devices_request=1, **FIRM)
    world.settle()
    told = asked(world, key)
    assert (told.reason, told.estimate) == ("maintenance", None)
    assert told.no_estimate.startswith("nobody can say what comes after the calendar's entries: maintenance firmware")


def test_a_gang_that_can_never_find_a_place_says_so_also_outside_its_window() -> None:
    world = cluster(a={"gpu_count": 4})
    windows = StartWindows(zone="UTC", windows=(read_window("Mon 08:00-10:00"),))
    world.do("project", project_key("default"), SetStartWindows(project_id=world.project_id, windows=windows))
    key = gang(world, "wide", workers=50, gpus=4)
    world.settle()
    found = asked(world, key)
    assert (found.outcome, found.reason, world.workload(key).reason) == ("never", *(2 * ("no_matching_node",)))
    assert "even when empty" in found.message


@pytest.mark.parametrize("plan", [planned, reserved])
def test_where_the_calendar_is_one_ground_of_several_what_helps_against_it_is_told(plan: Callable[..., None]) -> None:
    world = cluster(a={"gpu_count": 2}, b={"gpu_count": 2})
    plan(world, after=timedelta(hours=2))
    world.submit("holder", gpu_devices_request=2, **FIRM)
    world.settle()
    key = world.submit("w", gpu_devices_request=2, **FIRM)
    world.settle()

    found = asked(world, key)

    assert found.reason == "insufficient_gpu"
    told = [each.message for each in found.changes]
    assert any("spec.preemptibility" in each for each in told), told
    assert any("is over" in each for each in told), told


@pytest.mark.parametrize("plan", [planned, reserved])
def test_where_the_calendar_closes_nodes_another_one_that_somebody_closed_is_named(plan: Callable[..., None]) -> None:
    world = cluster(a={"gpu_count": 2}, b={"gpu_count": 2})
    plan(world, after=timedelta(minutes=1))
    world.do("node", node_key(world.cluster_id, "b"), CordonNode(cluster_id=world.cluster_id, name="b"))
    world.now += timedelta(minutes=2)
    world.settle()
    key = world.submit("w", gpu_devices_request=2)
    world.settle()

    found = asked(world, key)

    assert found.reason in {"maintenance", "capacity_reserved"}
    steps = [(each.act, each.of) for change in found.changes for each in change.steps]
    assert ("uncordon_node", "b") in steps, found.changes
    assert ("uncordon_node", "a") not in steps, "that helps against no maintenance that is planned"


def test_where_the_calendar_closes_nodes_that_are_too_small_anyway_it_is_not_waited_for() -> None:
    world = cluster(a={"gpu_count": 1}, b={"gpu_count": 2})
    planned(world, after=timedelta(hours=2))
    world.submit("holder", gpu_devices_request=2, **FIRM)
    world.settle()
    key = world.submit("w", gpu_devices_request=2, **FIRM)
    world.settle()
    assert not any("is over" in each.message for each in asked(world, key).changes)
