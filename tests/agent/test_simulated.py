"""What is the simulated backend's own: nodes that exist by a declaration."""

import asyncio

import pytest

from events.cluster import NodePool, SimulatedNodes, pool_of
from events.cluster_protocol import RunPod
from events.workload.pod import PodRef
from services.agent.backends.simulated import RUNTIME_ANNOTATION, SimulatedBackend
from services.agent.clock import RealClock

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
    async with asyncio.timeout(20):
        while (seen := {one.pod_key: one.kind for one in (await backend.list_all()).pods})["b"] != "succeeded":
            await asyncio.sleep(0.02)
    assert seen["a"] == "running"
    await backend.delete("a", 1, 30)
    seen = {one.pod_key: one.kind for one in (await backend.list_all()).pods}
    assert seen["a"] == "stopped"
