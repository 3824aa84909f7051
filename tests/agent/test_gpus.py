"""Which devices pods get on a machine with real GPUs, whose numbers NVML gives anew at every start.

No GPU is needed: what NVML says before and after stands in tables.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pynvml
import pytest

from events.cluster_protocol import ObservedPod
from events.workload.pod import DeviceShare
from services.agent.backends.local.backend import LocalBackend
from services.agent.backends.local.gpus import Gpu, Gpus, GpuUse, NoSuchDeviceError, NvmlGpus, choose, open_gpus
from tests.agent.given import KEY, NoCode, Watched, machine

A, B, C, D = "GPU-aaaa", "GPU-bbbb", "GPU-cccc", "GPU-dddd"


@pytest.mark.parametrize(
    ("numbers", "held", "working", "chosen"),
    [
        pytest.param([0, 2], {}, [A, B, C], (A, C), id="nobody holds anything: in NVML's order"),
        pytest.param([1], {1: B}, [A, B, C], (B,), id="a share beside a live run: the device that it holds"),
        pytest.param([1], {1: B}, [B, A, C], (B,), id="reordered: still the one that the live run holds"),
        pytest.param([0], {1: B}, [B, A, C], (A,), id="reordered: never the one that another number's run holds"),
        pytest.param([0, 1], {3: D}, [D, A, C], (A, C), id="one is gone: those that work, each once"),
        pytest.param([1, 0], {3: D}, [A, C, D], (C, A), id="names come in the order of the pod's numbers"),
        pytest.param([3], {3: D}, [A, C, D], (D,), id="a number beyond those that work, but held"),
    ],
)
def test_a_number_stands_for_a_device_that_works_and_no_other_number_holds(
    numbers: list[int], held: dict[int, str], working: list[str], chosen: tuple[str, ...]
) -> None:
    assert choose(numbers, held, working) == chosen


@pytest.mark.parametrize(
    ("numbers", "held", "working", "message"),
    [
        ([3], {}, [A, B, C], "this machine has 3 devices, and no device 3"),
        ([0], {}, [], "this machine has 0 devices, and no device 0"),
        ([1], {1: B}, [A, C], "device 1 is GPU-bbbb, which does not work any more"),
        ([0], {1: A, 2: C}, [A, C], "every working device of this machine is in use, and none is device 0"),
    ],
)
def test_what_cannot_be_given_is_refused_and_says_why(
    numbers: list[int], held: dict[int, str], working: list[str], message: str
) -> None:
    with pytest.raises(NoSuchDeviceError, match=message):
        choose(numbers, held, working)


class Listed:
    """The GPUs of a table."""

    stand_in = False

    def __init__(self, names: Sequence[str]) -> None:
        self.devices = tuple(Gpu(name=name, model="H100", memory_bytes=80 * 1024**3) for name in names)

    def look(self) -> None:
        return

    def use(self, names: Iterable[str], pids: set[int]) -> GpuUse | None:
        return None

    def close(self) -> None:
        return


async def opened(folder: Path, names: Sequence[str]) -> Watched:
    def gpus(_stand_ins: int) -> Gpus:
        return Listed(names)

    backend = await LocalBackend(machine(folder), NoCode(), gpus).open()
    return Watched(backend, "local", (await backend.list_all()).nodes[0].name)


async def mask(cluster: Watched, folder: Path, pod_key: str, *devices: int) -> str:
    """Start a pod on these devices; what it sees."""
    shares = tuple(DeviceShare(device=device, milli=1000) for device in devices)
    seen = folder / pod_key
    script = f"echo $CUDA_VISIBLE_DEVICES > {seen}.new; mv {seen}.new {seen}; exec sleep 60"
    await cluster.backend.apply(cluster.pod(pod_key=pod_key, devices=shares, arguments=("/bin/sh", "-c", script)))
    if (await cluster.until("running", "refused", key=pod_key)).kind == "refused":
        return cluster.history[pod_key, 1][-1].message
    async with asyncio.timeout(60):
        while not seen.exists():
            await asyncio.sleep(0.02)
    return seen.read_text().strip()


@pytest.mark.anyio
async def test_a_restart_with_other_numbers_gives_no_device_twice_and_calls_no_dead_one_free(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    out.mkdir()
    first = await opened(data, [A, B, C, D])
    assert await mask(first, out, "one-main-0", 1) == B
    assert await mask(first, out, "two-main-0", 3) == D
    await first.look_away()
    await first.backend.close()

    second = await opened(data, [D, C, B])
    try:
        facts = (await second.backend.list_all()).nodes[0].facts
        assert facts.gpu_count == 3
        assert await mask(second, out, "three-main-0", 0) == C, "D is number 0 for NVML now, and held by another"
        assert "every working device of this machine is in use" in await mask(second, out, "four-main-0", 2)
    finally:
        await second.close()


@pytest.mark.anyio
async def test_a_live_run_whose_device_is_gone_says_so_once(tmp_path: Path) -> None:
    first = await opened(tmp_path / "data", [A, B])
    assert await mask(first, tmp_path, KEY, 1) == B
    await first.look_away()
    await first.backend.close()
    second = await opened(tmp_path / "data", [A])
    try:
        for _ in range(2):
            (pod,) = (await second.backend.list_all()).pods
            assert warnings(pod) == {"device_lost": f"device 1 is {B}, and does not work any more"}
            assert len(pod.warnings) == 1
    finally:
        await second.close()


def warnings(pod: ObservedPod) -> Mapping[str, str]:
    return {warning.reason: warning.message for warning in pod.warnings}


def test_a_device_that_cannot_be_read_is_passed_by_and_the_others_work_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML still counts a device that has fallen off its bus."""
    table: list[str | None] = [A, B, C]

    def name_of(number: int) -> str:
        name = table[number]
        if name is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return name

    class Memory:
        total = 80 * 1024**3

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(table))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda number: number)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", name_of)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda _handle: "H100")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda _handle: Memory)
    gpus = open_gpus(0)
    assert isinstance(gpus, NvmlGpus)
    assert [gpu.name for gpu in gpus.devices] == [A, B, C]
    table[1] = None
    gpus.look()
    assert [gpu.name for gpu in gpus.devices] == [A, C]
    assert gpus.use([B], {1}) is None
