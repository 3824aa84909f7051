"""The API server's own story of all pods: a watch, as a process of its own, with the moment of each event.

Usage: python -m benchmarks.kubernetes_watch '{"kubeconfig": "…", "file": "…"}'. Prints a line of counts whenever they
changed, at most five a second; the first one when the watch is there. A watch that the server ends (as it does to slow
readers) goes on where it was; one that cannot ends this with an error: a story with a hole proves nothing.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from services.agent.backends.kubernetes.act.objects import TERMINAL_PHASES, Pod
from services.agent.backends.kubernetes.client import Timeouts
from services.agent.backends.kubernetes.connect import connect

TELL_SECONDS = 0.2
WATCH_SECONDS = 3600


class Counts(msgspec.Struct, kw_only=True):
    """Of pods, each counted once."""

    created: int = 0
    running: int = 0
    ended: int = 0
    gone: int = 0


class Change(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw

    def pod(self) -> Pod:
        return msgspec.json.decode(self.object, type=Pod)


class _List(msgspec.Struct, frozen=True):
    metadata: dict[str, Any]
    items: list[Pod] = []


def read_story(file: Path) -> Iterator[tuple[float, Change]]:
    """What was written: when each event came, in seconds since the epoch, and the event."""
    with file.open("rb") as lines:
        for line in lines:
            at, _, raw = line.partition(b" ")
            yield float(at), msgspec.json.decode(raw, type=Change)


class _Recorder:
    def __init__(self, file: Path, version: str) -> None:
        self._file = file.open("wb", buffering=1024 * 1024)
        self._counts = Counts()
        self._phases: dict[str, str] = {}
        """By uid, the newest."""
        self.version = version
        """Of the newest event."""

    def take(self, line: bytes, at: float) -> None:
        change = msgspec.json.decode(line, type=Change)
        if change.type == "BOOKMARK":
            return
        if change.type == "ERROR":
            raise RuntimeError(f"the watch was ended: {bytes(change.object)[:500]!r}")
        self._file.write(b"%.6f %s\n" % (at, line))
        pod = change.pod()
        self.version = pod.metadata.resource_version
        uid, phase = pod.metadata.uid, pod.status.phase
        before = self._phases.get(uid, "")
        self._counts.created += not before
        if phase != before:
            self._counts.running += phase == "Running"
            self._counts.ended += phase in TERMINAL_PHASES
        self._phases[uid] = phase
        self._counts.gone += change.type == "DELETED"

    async def tell(self) -> None:
        told = b""
        while True:
            self._file.flush()
            counts = msgspec.json.encode(self._counts)
            if counts != told:
                told = counts
                print(counts.decode(), flush=True)
            await asyncio.sleep(TELL_SECONDS)


async def record(kubeconfig: Path, file: Path) -> None:
    """Until it is ended from outside, or the watch breaks."""
    client = await connect(kubeconfig, None, timeouts=Timeouts())
    listed = msgspec.json.decode(await client.read("/api/v1/pods"), type=_List)
    assert not listed.items, "the story must begin with no pods"
    recorder = _Recorder(file, listed.metadata["resourceVersion"])
    telling = asyncio.create_task(recorder.tell())
    try:
        while True:
            query = {"resourceVersion": recorder.version, "timeoutSeconds": str(WATCH_SECONDS)}
            stream = client.line_batches("/api/v1/pods", silence_seconds=WATCH_SECONDS, watch="true", **query)
            async with aclosing(stream) as batches:
                async for lines in batches:
                    at = time.time()
                    for line in lines:
                        recorder.take(line, at)
    finally:
        telling.cancel()


def main() -> None:
    plan = json.loads(sys.argv[1])
    uvloop.run(record(Path(plan["kubeconfig"]), Path(plan["file"])))


if __name__ == "__main__":
    main()
