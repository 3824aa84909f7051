"""What pods use of their GPUs, as the exporter of their node says (NVIDIA's DCGM exporter, in the text format of
Prometheus). Where there is none, or it says nothing of a pod, nothing is known.

Exporters are pods of one namespace, which an administrator names: whoever runs pods elsewhere cannot pass for one. Each
is believed for pods of its own node alone, and has bounds of time and size.
"""

import asyncio
import contextlib
import http
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final

import aiohttp
import msgspec
import structlog

from services.agent.backends.kubernetes.act.objects import MAIN, Pod
from services.agent.backends.kubernetes.client import ApiError, KubeClient

UTILIZATION: Final = b"DCGM_FI_DEV_GPU_UTIL"
"""Percent of the time in which the device did something."""
MEMORY: Final = b"DCGM_FI_DEV_FB_USED"
"""In MiB."""
MIB: Final = 1024**2
FIND_SECONDS: Final = 60.0
"""Between looks at which exporters there are."""
READ_SECONDS: Final = 4.0
"""For all exporters together: samples are taken every ten seconds."""
ONE_SECONDS: Final = 2.0
AT_ONCE: Final = 32
MOST_BYTES: Final = 4 * 1024**2
"""Of one exporter; a node of eight devices has some 60 KiB."""
MOST_SERIES: Final = 4_096
"""Of one exporter that count."""
LINE_BYTES: Final = 4_096
MOST_EXPORTERS: Final = 5_000

_LINE: Final = re.compile(
    rb"(DCGM_FI_DEV_GPU_UTIL|DCGM_FI_DEV_FB_USED)\{([^\n]*)\}[ \t]+([^ \t]+)(?:[ \t]+-?[0-9]+)?[ \t]*\Z"
)
_LABEL: Final = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')

log = structlog.get_logger(__name__)

type PodName = tuple[str, str]
"""Namespace and name."""


class Exporter(msgspec.Struct, frozen=True):
    node: str
    address: str
    """Host and port."""


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """Of one pod; None where it is not known."""

    utilization_percent: float | None = None
    """Mean over its devices."""
    memory_bytes: int | None = None
    """Sum over its devices."""


NOTHING: Final = GpuUse()


class GpuMetrics:
    """Of one cluster. `close` it."""

    def __init__(self, find: Callable[[], Awaitable[Sequence[Exporter]]]) -> None:
        """`find`: which exporters there are now. Raises ApiError."""
        self._find = find
        self._exporters: dict[str, Exporter] = {}
        """By node."""
        self._find_at = 0.0
        self._session: aiohttp.ClientSession | None = None

    async def read(self, pods: Mapping[PodName, str]) -> dict[PodName, GpuUse]:
        """Of those of these pods, given with their nodes, of which something is known."""
        if not pods:
            return {}
        await self._look_for_exporters()
        nodes = [self._exporters[node] for node in sorted({*pods.values()}) if node in self._exporters]
        slots, found = asyncio.Semaphore(AT_ONCE), dict[PodName, GpuUse]()

        async def one(exporter: Exporter) -> None:
            async with slots:
                for pod, use in (await self._of(exporter)).items():
                    if pods.get(pod) == exporter.node:
                        found[pod] = use

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_SECONDS):
                await asyncio.gather(*(one(exporter) for exporter in nodes))
        return found

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _look_for_exporters(self) -> None:
        if time.monotonic() < self._find_at:
            return
        self._find_at = time.monotonic() + FIND_SECONDS
        try:
            self._exporters = {one.node: one for one in await self._find()}
        except ApiError as error:
            log.info("gpu_exporters_not_found", reason=str(error))

    async def _of(self, exporter: Exporter) -> dict[PodName, GpuUse]:
        if self._session is None:
            # What it sends is taken as it is: unpacked, it could be of any size.
            self._session = aiohttp.ClientSession(auto_decompress=False, headers={"Accept-Encoding": "identity"})
        try:
            async with (
                asyncio.timeout(ONE_SECONDS),
                self._session.get(f"http://{exporter.address}/metrics", allow_redirects=False) as answer,
            ):
                if answer.status == http.HTTPStatus.OK:
                    return uses([line async for line in _lines(answer.content)])
                reason = f"status {answer.status}"
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            reason = str(error) or type(error).__name__
        log.info("gpu_metrics_not_read", node=exporter.node, reason=reason)
        return {}


async def exporters_of(client: KubeClient, namespace: str, selector: str, port: int) -> Sequence[Exporter]:
    """The pods of this namespace with these labels that run. Raises ApiError."""
    answer = await client.read(
        f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector, limit=str(MOST_EXPORTERS)
    )
    found = msgspec.json.decode(answer, type=_PodList).items
    return [
        Exporter(pod.spec.node_name, f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}")
        for pod in found
        if (ip := pod.status.pod_ip) and pod.spec.node_name and not pod.ended
    ]


class _PodList(msgspec.Struct, frozen=True):
    items: tuple[Pod, ...] = ()


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Those of the two series. Raises ValueError where there is too much."""
    rest, size, count = b"", 0, 0
    async for chunk in content.iter_any():
        size += len(chunk)
        if size > MOST_BYTES:
            raise ValueError(f"it says more than {MOST_BYTES:,} bytes")
        *whole, rest = (rest + chunk).split(b"\n")
        # Cut, so that what has no end of a line is not copied again and again: it does not count anyway.
        rest = rest[: LINE_BYTES + 1]
        for line in whole:
            if line.startswith((UTILIZATION, MEMORY)) and len(line) <= LINE_BYTES:
                count += 1
                if count > MOST_SERIES:
                    raise ValueError(f"it says more than {MOST_SERIES:,} series")
                yield line
    if rest.startswith((UTILIZATION, MEMORY)) and len(rest) <= LINE_BYTES:
        yield rest


def uses(lines: Sequence[bytes]) -> dict[PodName, GpuUse]:
    """Of pods' main containers. Lines that say nothing of one, or no number, are passed over. Pure."""
    percents: dict[PodName, dict[str, float]] = {}
    memories: dict[PodName, dict[str, float]] = {}
    for name, labels, value in _series(lines):
        pod = labels.get("namespace", ""), labels.get("pod", "")
        if not all(pod) or labels.get("container") != MAIN:
            continue
        device = labels.get("UUID") or labels.get("gpu", "")
        if name == UTILIZATION and value <= 100:  # noqa: PLR2004 (percent)
            percents.setdefault(pod, {})[device] = value
        elif name == MEMORY and value <= MIB * MIB:
            # A device may be divided (MIG), and each part has its own.
            memories.setdefault(pod, {})[f"{device} {labels.get('GPU_I_ID', '')}"] = value
    return {
        pod: GpuUse(
            utilization_percent=sum(busy.values()) / len(busy) if (busy := percents.get(pod)) else None,
            memory_bytes=round(sum(used.values()) * MIB) if (used := memories.get(pod)) else None,
        )
        for pod in percents.keys() | memories.keys()
    }


def _series(lines: Sequence[bytes]) -> Iterator[tuple[bytes, dict[str, str], float]]:
    for line in lines:
        matched = _LINE.match(line.rstrip(b"\r"))
        if matched is None:
            continue
        try:
            value = float(matched[3])
            labels = {key.decode(): given.decode() for key, given in _LABEL.findall(matched[2])}
        except ValueError:  # UnicodeDecodeError is one
            continue
        if math.isfinite(value) and value >= 0:
            yield matched[1], labels, value
