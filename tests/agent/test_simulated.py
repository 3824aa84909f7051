"""What is the simulated backend's own: nodes that exist by a declaration."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from events.agent_bounds import refused
from events.cluster import NodePool, pool_of
from events.cluster_protocol import ObservedNode, RunPod, WantedCluster
from events.simulated import SimulatedNodes, packed
from events.workload.needs import ExtendedAmount
from events.workload.pod import DeviceShare, PodRef
from events.workload.pod_sets import StopBy
from events.workload.volumes import ClaimedFolder, NewClaim, Volume
from services.agent.backends.simulated import CHECKPOINT_ANNOTATION, RUNTIME_ANNOTATION, SimulatedBackend
from services.agent.clock import RealClock
from tests.agent.given import KEY, NOW, VirtualClock, log_text, run_pod

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("model", "gpus", "label"),
    [
        ("H100", 8, "H100"),
        ("NVIDIA A100-SXM4-40GB", 1, "NVIDIA-A100-SXM4-40GB"),
        ("(half of) an A30/2", 1, "half-of--an-A30-2"),
        ("x" * 63, 1, "x" * 63),
        ("", 8, None),
        ("模", 8, None),
        ("H100", 0, None),
    ],
)
async def test_simulated_nodes_say_their_model_in_the_label_of_nvidia_s_feature_discovery(
    model: str, gpus: int, label: str | None
) -> None:
    """So that a node pool can be made of them, as of real ones."""
    declared = SimulatedNodes(names=("n-0",), cpu_milli=1000, memory_bytes=1, gpu_count=gpus, gpu_model=model)
    (node,) = (await SimulatedBackend([declared], RealClock()).list_all()).nodes
    assert node.facts.labels.get("nvidia.com/gpu.product") == label
    assert node.facts.labels["kubernetes.io/hostname"] == "n-0"
    pools = {"big": NodePool(name="big", label_key="nvidia.com/gpu.product", label_value=label or "-")}
    assert pool_of(node.facts.labels, pools) == ("default" if label is None else "big")


@pytest.mark.parametrize("name", ["n" * 63, "n" * 64, "n" * 253])
async def test_a_node_appears_however_long_its_name_and_has_it_as_a_label_where_one_can_hold_it(name: str) -> None:
    declared = SimulatedNodes(names=(name,), cpu_milli=1000, memory_bytes=1)
    (node,) = (await SimulatedBackend([declared], RealClock()).list_all()).nodes
    assert refused(node) is None
    assert node.facts.labels == ({"kubernetes.io/hostname": name} if len(name) <= 63 else {})


async def test_an_endless_pod_runs_until_it_is_told_to_end() -> None:
    """A replica of an inference; all others run for some seconds."""
    declared = SimulatedNodes(names=("n-0",), cpu_milli=1000, memory_bytes=1, gpu_count=0)
    backend = SimulatedBackend([declared], RealClock())
    for key, endless, annotations in (("a", True, {}), ("b", False, {RUNTIME_ANNOTATION: "0"})):
        run = RunPod(
            pod_key=key,
            token=1,
            workload_id="w",
            workload_name="w",
            project_id="p",
            pod=PodRef(pod_set="replica", index=0, attempt=1, try_=0),
            node_name="n-0",
            image="i",
            endless=endless,
            annotations=annotations,
        )
        await backend.apply(run)
    async with asyncio.timeout(60):
        while (seen := {one.pod_key: one.kind for one in (await backend.list_all()).pods})["b"] != "succeeded":
            await asyncio.sleep(0.02)
    assert seen["a"] == "running"
    await backend.delete("a", 1, 30)
    seen = {one.pod_key: one.kind for one in (await backend.list_all()).pods}
    assert seen["a"] == "stopped"


SAVES = ClaimedFolder(mount_path="/muster/checkpoint", new=NewClaim(size_bytes=1), checkpoint=True)


async def run_for(seconds: float, *, volumes: Sequence[Volume] = (SAVES,), **more: Any) -> SimulatedBackend:
    """A pod that saves its work each 100 seconds, or as `annotations` say, after so many."""
    clock = VirtualClock()
    backend = SimulatedBackend([SimulatedNodes(names=("n1",), cpu_milli=1000, memory_bytes=1, gpu_count=0)], clock)
    reading = asyncio.create_task(_read(backend))
    fields: dict[str, Any] = {"annotations": {RUNTIME_ANNOTATION: "100000", CHECKPOINT_ANNOTATION: "100"}} | more
    await backend.apply(run_pod(1, volumes=tuple(volumes), **fields))
    for _ in range(round(seconds)):
        await asyncio.sleep(0.001)
        await clock.advance(1)
    reading.cancel()
    return backend


async def _read(backend: SimulatedBackend) -> None:
    async for _ in backend.watch():
        pass


async def newest(backend: SimulatedBackend) -> float | None:
    """Seconds from the start of its pod to the newest file."""
    (pod,) = (await backend.list_all()).pods
    assert pod.started_at is not None
    assert (pod.started_at - NOW).total_seconds() <= 1
    return None if pod.checkpoint_at is None else (pod.checkpoint_at - pod.started_at).total_seconds()


@pytest.mark.parametrize("given", ["1e-308", "5e-324", "0.999", "0", "1e10", "1e308", "inf", "nan", "-1", "often"])
async def test_a_pod_that_saves_its_work_at_no_sound_pace_fails_and_harms_nobody_else(given: str) -> None:
    backend = SimulatedBackend([SimulatedNodes(names=("n1",), cpu_milli=1000, memory_bytes=1)], VirtualClock())
    await backend.apply(run_pod(1, annotations={CHECKPOINT_ANNOTATION: given}, volumes=(SAVES,)))
    (pod,) = (await backend.list_all()).pods
    assert (pod.kind, pod.reason) == ("failed", "bad_annotation")
    assert CHECKPOINT_ANNOTATION in pod.message


@pytest.mark.parametrize(("every", "newest_after"), [("1", 450), ("1.5", 450), ("300", 300), ("1e9", 0)])
async def test_the_newest_file_is_one_of_the_pace_and_never_later_than_now(every: str, newest_after: float) -> None:
    annotations = {RUNTIME_ANNOTATION: "450", CHECKPOINT_ANNOTATION: every}
    assert await newest(await run_for(500, annotations=annotations)) == newest_after


async def test_a_simulated_pod_saves_its_work_as_its_annotation_says() -> None:
    backend = await run_for(450)
    assert await newest(backend) == 400
    await backend.delete(KEY, 1, 30)
    assert await newest(backend) == 400
    backend = await run_for(450, volumes=())
    assert await newest(backend) is None


@pytest.mark.parametrize(
    ("by", "told"),
    [(StopBy(signal="SIGUSR1"), "SIGUSR1 is sent"), (StopBy(arguments=("save",)), "its preStop command runs")],
)
async def test_what_runs_before_the_end_of_a_simulated_pod_saves_its_work(by: StopBy, told: str) -> None:
    backend = await run_for(450, stop_by=by)
    await backend.delete(KEY, 1, 0)
    assert await newest(backend) == 400, "without a grace period nothing runs"
    backend = await run_for(450, stop_by=by)
    await backend.delete(KEY, 1, 30)
    saved = await newest(backend)
    assert saved is not None
    assert 440 < saved <= 450
    assert f"simulated: {told}, and its work is saved" in await log_text(backend)
    backend = await run_for(450, stop_by=by, volumes=())
    await backend.delete(KEY, 1, 30)
    assert f"simulated: {told}" in await log_text(backend)


def a_run(key: str, node: str, *, cpu: int = 0, devices: int = 0, hcas: int = 0) -> RunPod:
    return RunPod(
        pod_key=key,
        token=1,
        workload_id="w",
        workload_name="w",
        project_id="p",
        pod=PodRef(pod_set="main", index=0, attempt=1, try_=0),
        node_name=node,
        cpu_milli=cpu,
        devices=tuple(DeviceShare(device=device, milli=1000) for device in range(devices)),
        extended=(ExtendedAmount(resource="rdma/hca", amount=hcas),) if hcas else (),
        endless=True,
    )


def told(*nodes: SimulatedNodes) -> WantedCluster:
    return WantedCluster(cluster_id="c", name="c", kind="simulated", packed_nodes=packed(nodes))


async def test_nodes_come_change_and_go_while_pods_run() -> None:
    """S073: the agent says each that is new or changed, and that one is gone; its pods end with the reason."""
    small = SimulatedNodes(names=("n-0", "n-1"), cpu_milli=1000, memory_bytes=1, gpu_count=1)
    backend = SimulatedBackend([small], RealClock())
    for key, node in (("a", "n-0"), ("b", "n-1")):
        await backend.apply(a_run(key, node, cpu=1000))
    await backend.list_all()
    big = SimulatedNodes(names=("n-1",), cpu_milli=4000, memory_bytes=1, gpu_count=2, extended={"rdma/hca": 2})
    new = SimulatedNodes(names=("n-2",), cpu_milli=1000, memory_bytes=1)
    assert backend.follow(told(big, new))
    news = await anext(aiter(backend.watch()))
    nodes = {one.name: (one.gone, one.facts.cpu_milli) for one in news if isinstance(one, ObservedNode)}
    assert nodes == {"n-0": (True, 1000), "n-1": (False, 4000), "n-2": (False, 1000)}
    seen = {one.pod_key: one for one in (await backend.list_all()).pods}
    assert (seen["a"].kind, seen["a"].reason) == ("interrupted", "node_lost")
    assert seen["b"].kind in {"starting", "running"}, "what runs on a node that stays goes on"
    for key, run in (
        ("c", a_run("c", "n-1", cpu=3000, devices=2, hcas=2)),
        ("d", a_run("d", "n-1", hcas=1)),
        ("e", a_run("e", "n-0")),
    ):
        await backend.apply(run)
        seen[key] = next(one for one in (await backend.list_all()).pods if one.pod_key == key)
    assert seen["c"].kind == "starting", "it has what is new"
    assert (seen["d"].kind, seen["d"].message) == ("refused", "node 'n-1' has 0 of rdma/hca left")
    assert (seen["e"].kind, seen["e"].message) == ("refused", "the simulated cluster has no node 'n-0'")


async def test_a_node_that_shrinks_keeps_what_runs_and_takes_no_more() -> None:
    backend = SimulatedBackend([SimulatedNodes(names=("n",), cpu_milli=2, memory_bytes=1, gpu_count=2)], RealClock())
    await backend.apply(a_run("a", "n", devices=2))
    assert backend.follow(told(SimulatedNodes(names=("n",), cpu_milli=2, memory_bytes=1, gpu_count=1)))
    await backend.apply(a_run("b", "n", devices=2))
    seen = {one.pod_key: one.kind for one in (await backend.list_all()).pods}
    assert (seen["a"], seen["b"]) == ("starting", "refused")


async def test_words_of_nodes_that_cannot_be_read_change_nothing() -> None:
    backend = SimulatedBackend([SimulatedNodes(names=("n",), cpu_milli=1, memory_bytes=1)], RealClock())
    assert not backend.follow(WantedCluster(cluster_id="c", name="c", kind="simulated", packed_nodes=b"no"))
    assert [node.name for node in (await backend.list_all()).nodes] == ["n"]
