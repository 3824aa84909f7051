"""What exporters say of GPUs becomes what pods use, and what they say otherwise becomes nothing. S081."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import pytest

from services.agent.backends.kubernetes.client import ApiError
from services.agent.backends.kubernetes.read import gpu_usage
from services.agent.backends.kubernetes.read.gpu_usage import MIB, Exporter, GpuMetrics, GpuUse, uses

pytestmark = pytest.mark.anyio

POD = ("muster-vision", "train-abc-main-0")
OTHER = ("muster-vision", "train-abc-main-1")


def line(
    name: str = "DCGM_FI_DEV_GPU_UTIL",
    value: str = "42",
    *,
    pod: tuple[str, str] = POD,
    device: int = 0,
    container: str = "main",
    more: str = "",
) -> str:
    labels = f'gpu="{device}",UUID="GPU-{device}",modelName="NVIDIA H100 80GB HBM3",Hostname="n1",'
    return f'{name}{{{labels}container="{container}",namespace="{pod[0]}",pod="{pod[1]}"{more}}} {value}'


MEMORY = "DCGM_FI_DEV_FB_USED"
TABLES: list[tuple[str, list[str], dict[tuple[str, str], GpuUse]]] = [
    ("nothing", [], {}),
    ("one device", [line(), line(MEMORY, "100")], {POD: GpuUse(utilization_percent=42, memory_bytes=100 * MIB)}),
    (
        "the mean of the time, the sum of the memory",
        [line(), line(value="58.0", device=1), line(MEMORY, "1"), line(MEMORY, "2", device=1)],
        {POD: GpuUse(utilization_percent=50, memory_bytes=3 * MIB)},
    ),
    (
        "several pods",
        [line(), line(value="0", pod=OTHER)],
        {POD: GpuUse(utilization_percent=42), OTHER: GpuUse(utilization_percent=0)},
    ),
    ("a device twice", [line(value="1"), line(value="3")], {POD: GpuUse(utilization_percent=3)}),
    (
        "parts of a device",
        [line(MEMORY, "1", more=',GPU_I_ID="1"'), line(MEMORY, "2", more=',GPU_I_ID="2"')],
        {POD: GpuUse(memory_bytes=3 * MIB)},
    ),
    ("with a moment", [line(value="42 1767225600000")], {POD: GpuUse(utilization_percent=42)}),
    ("with the ends of lines of others", [line() + "\r"], {POD: GpuUse(utilization_percent=42)}),
    ("no number", [line(value="busy"), line(value="")], {}),
    ("NaN", [line(value="NaN"), line(MEMORY, "NaN")], {}),
    ("endless", [line(value="+Inf"), line(MEMORY, "-Inf"), line(MEMORY, "1e309")], {}),
    ("below nothing", [line(value="-1"), line(MEMORY, "-1")], {}),
    ("more than all", [line(value="101"), line(MEMORY, "1e18")], {}),
    ("no pod", ['DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-0"} 7', line(pod=("", "")), line(pod=("a", ""))], {}),
    ("a container beside it", [line(container="proxy")], {}),
    ("no labels", ["DCGM_FI_DEV_GPU_UTIL 7", "DCGM_FI_DEV_GPU_UTIL{} 7"], {}),
    ("broken off", [line()[:-10], line()[:40], 'DCGM_FI_DEV_GPU_UTIL{pod="a'], {}),
    ("labels that never end", ['DCGM_FI_DEV_GPU_UTIL{pod="' + '\\"' * 1000 + "} 7"], {}),
    ("many ends", ["DCGM_FI_DEV_GPU_UTIL{" + "} 7 " * 1000], {}),
    ("another metric of a like name", [line("DCGM_FI_DEV_GPU_UTIL_SAMPLES")], {}),
]


@pytest.mark.parametrize(("lines", "wanted"), [row[1:] for row in TABLES], ids=[row[0] for row in TABLES])
async def test_what_is_said_of_a_pod_is_taken_and_nothing_else(
    lines: list[str], wanted: dict[tuple[str, str], GpuUse]
) -> None:
    assert uses([one.encode() for one in lines]) == wanted


async def test_what_is_no_text_is_passed_over() -> None:
    assert uses([line().encode().replace(b"H100", b"\xff"), line(pod=OTHER).encode()]).keys() == {OTHER}


# -- servers ---------------------------------------------------------------------------------------------------------

type Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(serve: Serve) -> AsyncGenerator[str]:
    """Its address."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def says(*lines: str, status: str = "200 OK", headers: str = "") -> Serve:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = "\n".join(lines).encode() + b"\n"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body)
        await writer.drain()

    return serve


async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"# HELP " + b"x" * 100_000)
        await writer.drain()


async def slow(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + line().encode() + b"\n")
    await writer.drain()
    await asyncio.sleep(3600)


async def read(*exporters: Exporter, pods: dict[tuple[str, str], str]) -> dict[tuple[str, str], GpuUse]:
    async def find() -> Sequence[Exporter]:
        return exporters

    metrics = GpuMetrics(find)
    try:
        return await metrics.read(pods)
    finally:
        await metrics.close()


async def test_an_exporter_among_thousands_of_series_is_read_and_believed_for_its_own_node_alone() -> None:
    noise = [f'DCGM_FI_DEV_SM_CLOCK{{gpu="{number}"}} 1980' for number in range(5_000)]
    text = ["# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).", *noise, line(), line(pod=OTHER), "garbage {"]
    async with serving(says(*text)) as address:
        found = await read(Exporter("n1", address), pods={POD: "n1", OTHER: "n2"})
    assert found == {POD: GpuUse(utilization_percent=42)}


LIES: dict[str, Serve] = {
    "a server that never ends": endless,
    "a server that never goes on": slow,
    "a redirect": says(status="302 Found", headers="Location: http://127.0.0.1:1/metrics\r\n"),
    "an error": says(line(), status="500 Internal Server Error"),
    "packed": says(line(), headers="Content-Encoding: gzip\r\n", status="404 Not Found"),
    "too many series": says(*[line(device=number) for number in range(11)]),
}


@pytest.mark.parametrize("name", LIES)
async def test_who_says_nonsense_says_nothing_and_holds_up_no_other(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_usage, "ONE_SECONDS", 0.3)
    monkeypatch.setattr(gpu_usage, "MOST_SERIES", 10)
    async with serving(LIES[name]) as bad, serving(says(line(pod=OTHER))) as good:
        found = await read(Exporter("n1", bad), Exporter("n2", good), pods={POD: "n1", OTHER: "n2"})
    assert found == {OTHER: GpuUse(utilization_percent=42)}


async def test_where_there_is_no_exporter_nothing_is_known() -> None:
    assert await read(pods={POD: "n1"}) == {}
    assert await read(Exporter("n1", "127.0.0.1:1"), pods={POD: "n1"}) == {}


async def test_exporters_that_cannot_be_listed_are_those_of_before() -> None:
    asked: list[None] = []
    async with serving(says(line())) as address:

        async def find() -> Sequence[Exporter]:
            asked.append(None)
            if len(asked) > 1:
                raise ApiError(503, "Unavailable", "not now")
            return [Exporter("n1", address)]

        metrics = GpuMetrics(find)
        for _ in range(3):
            assert (await metrics.read({POD: "n1"})).keys() == {POD}
            metrics._find_at = 0.0  # a minute later
        assert await metrics.read({}) == {}, "nobody is asked where no pod has a device"
        await metrics.close()
    assert len(asked) == 3
