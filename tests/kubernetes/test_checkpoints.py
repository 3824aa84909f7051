"""When pods saved their work last, through a real API server. kwok runs commands in pods on this machine, so the folder
of a pod is one of this machine here.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from development.kubernetes.control_plane import ControlPlane
from events.cluster_protocol import ObservedPod
from events.workload.volumes import ClaimedFolder, NewClaim
from services.agent.backends.kubernetes.read import checkpoints, turns
from services.agent.backends.kubernetes.read.checkpoints import NOT_SEEN
from tests.agent.given import KEY, run_pod
from tests.kubernetes.given import KubernetesWatched, open_kubernetes

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]
SAVED = 1_600_000_000


@pytest.fixture
async def cluster(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[KubernetesWatched]:
    watched = await open_kubernetes(control_plane, tmp_path / "agent", nodes=1)
    yield watched
    await watched.close()


def saves(folder: Path, name: str, at: float) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).touch()
    os.utime(folder / name, (at, at))


async def runs_with(cluster: KubernetesWatched, folder: Path, **more: Any) -> None:
    claim = NewClaim(size_bytes=2**30, storage_class="", modes=("ReadWriteOnce",))
    volume = ClaimedFolder(mount_path=str(folder), number=0, new=claim, checkpoint=True)
    await cluster.backend.apply(run_pod(1, node_name=cluster.node, volumes=(volume,), **cluster.run, **more))
    await cluster.until("running")


async def seen(cluster: KubernetesWatched, *, at: float | None = None, warned: str = "") -> ObservedPod:
    """The run, once that is told of it."""
    async with asyncio.timeout(120):
        while True:
            newest = cluster.newest()
            assert newest is not None
            saved = None if newest.checkpoint_at is None else newest.checkpoint_at.timestamp()
            if saved == at and (not warned or warned in {each.reason for each in newest.warnings}):
                return newest
            await asyncio.sleep(0.1)


async def test_the_newest_file_of_the_folder_is_told_and_newer_ones_are_once_they_are_there(
    cluster: KubernetesWatched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a pod that saves its work, later again, and then with a time that is still to come."""
    monkeypatch.setattr(turns, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(turns, "IDLE_SHARE", 0.0)
    folder = tmp_path / "saved"
    saves(folder, "step 0", SAVED - 60)
    await runs_with(cluster, folder)
    for number, at in enumerate((SAVED, SAVED + 60)):
        saves(folder, f"step {number}", at)
        await seen(cluster, at=at)
    saves(folder, "step 0", time.time() + 3600)
    async with asyncio.timeout(120):
        while (newest := cluster.newest()) is None or newest.checkpoint_at == datetime.fromtimestamp(SAVED + 60, UTC):
            await asyncio.sleep(0.1)
    assert newest.checkpoint_at is not None
    assert newest.checkpoint_at <= datetime.now(UTC)


async def test_an_image_that_cannot_look_is_warned_of_once_and_asked_no_more(
    cluster: KubernetesWatched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(checkpoints, "SCRIPT", 'echo lacks stat; echo >> "$1/asked"')
    await runs_with(cluster, tmp_path)
    newest = await seen(cluster, warned=NOT_SEEN)
    assert "lacks stat" in newest.warnings[0].message
    await asyncio.sleep(3)
    assert (tmp_path / "asked").read_text() == "\n"


async def test_what_a_pod_saves_while_it_ends_is_told_and_stands_in_its_end(
    cluster: KubernetesWatched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given looks that come once an hour, and a pod that is told to end and takes its grace for that."""
    monkeypatch.setattr(turns, "LOOK_SECONDS", 3600.0)
    monkeypatch.setattr(turns, "ENDING_SECONDS", 0.2)
    monkeypatch.setattr(turns, "IDLE_SHARE", 0.0)
    folder = tmp_path / "saved"
    saves(folder, "first", SAVED)
    await runs_with(cluster, folder, annotations={"simulation.muster.dev/ignore-term": "true"})
    await seen(cluster, at=SAVED)
    saves(folder, "last", SAVED + 5)
    await cluster.backend.delete(KEY, 1, 300)
    await seen(cluster, at=SAVED + 5)
    await cluster.backend.delete(KEY, 1, 0)
    ended = await cluster.until("stopped", "succeeded", "failed", seconds=120)
    assert ended.checkpoint_at == datetime.fromtimestamp(SAVED + 5, UTC)
