"""What pods write is followed, and kept after they are gone, whatever breaks in between."""

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from development.kubernetes.control_plane import ControlPlane
from events.cluster_protocol import LogsRequest
from events.workload.pod import PodRef
from services.agent.backends.interface import LogsUnavailableError
from services.agent.backends.kubernetes.client import KubeClient
from services.agent.backends.kubernetes.read import logs as module
from services.agent.backends.kubernetes.read.logs import LoggedRun, PodLogs
from services.agent.backends.local.files import delete_old_logs
from tests.support.kube import client_of, namespace
from tests.support.kubelet import Kubelet, kubelet_of

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]


class Site:
    """A namespace, a node of its own, and an agent's part that keeps logs."""

    def __init__(
        self, control_plane: ControlPlane, client: KubeClient, kubelet: Kubelet, folder: Path, *, node: str
    ) -> None:
        self.admin = control_plane.admin
        self.client = client
        self.kubelet = kubelet
        self.folder = folder
        self.space = namespace(control_plane, f"logs-{secrets.token_hex(4)}")
        self.node = node
        self._opened: list[PodLogs] = []

    async def agent(
        self,
        *,
        followers: int = 200,
        max_bytes: int = 2**24,
        retention_seconds: float = 1e6,
        total_max_bytes: int = 2**30,
    ) -> PodLogs:
        agent = PodLogs(
            self.client,
            self.folder,
            max_bytes=max_bytes,
            retention_seconds=retention_seconds,
            total_max_bytes=total_max_bytes,
            followers=followers,
        )
        self._opened.append(agent)
        return await agent.open()

    async def close(self) -> None:
        for agent in self._opened:
            await agent.close()

    async def run(self, name: str, token: int = 1) -> LoggedRun:
        """A pod that runs."""
        spec = {"nodeName": self.node, "containers": [{"name": "main", "image": "x"}]}
        spec |= {"automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1}
        pods = f"/api/v1/namespaces/{self.space}/pods"
        self.admin("POST", pods, {"metadata": {"name": name}, "spec": spec})
        await until(lambda: self.admin("GET", f"{pods}/{name}")["status"]["phase"] == "Running")
        return run_of(name, self.space, token)

    async def delete(self, run: LoggedRun) -> None:
        path = f"/api/v1/namespaces/{run.namespace}/pods/{run.name}"
        self.admin("DELETE", path)
        names = f"/api/v1/namespaces/{run.namespace}/pods"
        await until(lambda: run.name not in [pod["metadata"]["name"] for pod in self.admin("GET", names)["items"]])


def run_of(name: str, space: str, token: int = 1) -> LoggedRun:
    return LoggedRun(
        pod_key=f"{name}-key",
        token=token,
        workload_id=f"{name}-id",
        pod=PodRef(pod_set="main", index=0, attempt=1, try_=token),
        namespace=space,
        name=name,
    )


@asynccontextmanager
async def site_of(control_plane: ControlPlane, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Site]:
    """Where nobody waits long for a pod to be followed."""
    monkeypatch.setattr(module, "START_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(module, "STARTS_PER_SECOND", 1000.0)
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.05)
    name = f"logs-{secrets.token_hex(4)}"
    with kubelet_of(control_plane, name) as kubelet:
        async with client_of(control_plane) as client:
            site = Site(control_plane, client, kubelet, folder, node=name)
            try:
                yield site
            finally:
                await site.close()


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not reached():
            await asyncio.sleep(0.02)


def request(run: LoggedRun, *, follow: bool = False, tail: int | None = None, **more) -> LogsRequest:
    return LogsRequest(workload_id=run.workload_id, pod_key=run.pod_key, follow=follow, tail_lines=tail, **more)


async def texts(agent: PodLogs, asked: LogsRequest) -> list[str]:
    async with asyncio.timeout(60):
        return [line.text async for batch in agent.logs(asked) for line in batch]


async def texts_until(agent: PodLogs, run: LoggedRun, wanted: list[str]) -> None:
    """Stored lines may be a moment behind."""
    async with asyncio.timeout(60):
        while (found := await texts(agent, request(run))) != wanted:
            assert found == wanted[: len(found)], "no line twice, none left out, none in another order"
            await asyncio.sleep(0.02)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "logs"


async def test_a_log_outlives_its_pod_and_its_agent(control_plane, folder, monkeypatch) -> None:
    async with site_of(control_plane, folder, monkeypatch) as site:
        agent = await site.agent()
        run = await site.run("train")
        agent.running(run)
        site.kubelet.write("train", "one", "two")
        await texts_until(agent, run, ["one", "two"])
        site.kubelet.write("train", "three")
        site.kubelet.end("train")
        await agent.finish(run)
        await site.delete(run)
        assert await texts(agent, request(run)) == ["one", "two", "three"]
        assert await texts(agent, request(run, tail=1)) == ["three"]
        assert await texts(await site.agent(), request(run, pod=run.pod)) == ["one", "two", "three"]


async def test_a_line_says_when_it_was_written(control_plane, folder, monkeypatch) -> None:
    async with site_of(control_plane, folder, monkeypatch) as site:
        agent, run = await site.agent(), await site.run("train")
        at = datetime(2026, 11, 21, 6, 7, 8, 9, tzinfo=UTC)
        site.kubelet.write("train", "before", at=at - timedelta(seconds=10))
        site.kubelet.write("train", "with spaces  and \ttabs ", at=at)
        await agent.finish(run)
        [batch] = [batch async for batch in agent.logs(request(run, since=at))]
        [line] = batch
        assert (line.at, line.stream, line.text) == (at, "stdout", "with spaces  and \ttabs ")


async def test_a_run_that_was_never_followed_is_fetched_at_its_end(control_plane, folder, monkeypatch) -> None:
    async with site_of(control_plane, folder, monkeypatch) as site:
        agent, run = await site.agent(), await site.run("short")
        site.kubelet.write("short", *map(str, range(1000)))
        site.kubelet.end("short")
        await agent.finish(run)
        await agent.finish(run)
        assert await texts(agent, request(run)) == [*map(str, range(1000))]


async def test_whoever_follows_reads_to_the_end_of_the_run(control_plane, folder, monkeypatch) -> None:
    async with site_of(control_plane, folder, monkeypatch) as site:
        agent, run = await site.agent(), await site.run("train")
        agent.running(run)
        following = asyncio.create_task(texts(agent, request(run, follow=True)))
        for number in range(20):
            site.kubelet.write("train", str(number))
            await asyncio.sleep(0.02)
        site.kubelet.end("train")
        await agent.finish(run)
        assert await following == [*map(str, range(20))]


async def test_no_line_is_lost_or_doubled_where_the_stream_breaks(control_plane, folder, monkeypatch) -> None:
    async with site_of(control_plane, folder, monkeypatch) as site:
        agent, run = await site.agent(), await site.run("train")
        agent.running(run)
        at = datetime.now(UTC)
        for number in range(30):
            # Two lines of one moment, and many within one second: what is asked for again comes again.
            at += timedelta(milliseconds=100)
            site.kubelet.write("train", f"{number} a", f"{number} b", at=at)
            await until(lambda: bool(site.kubelet.following))
            if number % 3 == 0:
                site.kubelet.break_off()
        wanted = [f"{number} {part}" for number in range(30) for part in "ab"]
        await texts_until(agent, run, wanted)
        await agent.finish(run)
        assert await texts(agent, request(run)) == wanted


async def test_an_agent_that_starts_anew_goes_on_where_the_last_one_stopped(control_plane, folder, monkeypatch) -> None:
    async with site_of(control_plane, folder, monkeypatch) as site:
        run = await site.run("train")
        wanted: list[str] = []
        for turn in range(3):
            agent = await site.agent()
            agent.running(run)
            wanted += [f"{turn} a", f"{turn} b"]
            site.kubelet.write("train", f"{turn} a", f"{turn} b", at=datetime(2026, 1, 1, 0, 0, 0, turn, tzinfo=UTC))
            await texts_until(agent, run, wanted)
            await agent.close()
            # Killed while it wrote.
            path = folder / run.pod_key / "1" / "log"
            with path.open("ab") as file:
                file.write(b"2026-01-01T00:0")
        agent = await site.agent()
        await agent.finish(run)
        assert await texts(agent, request(run)) == wanted


async def test_a_running_pod_that_nobody_follows_is_asked_when_somebody_wants_its_log(
    control_plane, folder, monkeypatch
) -> None:
    async with site_of(control_plane, folder, monkeypatch) as site:
        agent = await site.agent(followers=0)
        run = await site.run("train")
        agent.running(run)
        site.kubelet.write("train", "one")
        assert await texts(agent, request(run)) == ["one"]
        site.kubelet.write("train", "two")
        assert await texts(agent, request(run)) == ["one", "two"]
        following = asyncio.create_task(texts(agent, request(run, follow=True)))
        await until(lambda: bool(site.kubelet.following))
        site.kubelet.write("train", "three")
        await agent.finish(run)
        assert await following == ["one", "two", "three"]
        await until(lambda: not site.kubelet.following)


async def test_no_more_pods_are_followed_at_once_than_allowed(control_plane, folder, monkeypatch) -> None:
    async with site_of(control_plane, folder, monkeypatch) as site:
        agent = await site.agent(followers=2)
        runs = [await site.run(f"train-{number}") for number in range(5)]
        for run in runs:
            site.kubelet.write(run.name, run.name)
            agent.running(run)
        await until(lambda: sorted(site.kubelet.following) == ["train-0", "train-1"])
        await asyncio.sleep(0.5)
        assert sorted(site.kubelet.following) == ["train-0", "train-1"]
        await agent.finish(runs[0])
        await until(lambda: sorted(site.kubelet.following) == ["train-1", "train-2"])
        for run in runs:
            await agent.finish(run)
            assert await texts(agent, request(run)) == [run.name]


async def test_a_node_that_cannot_answer_is_asked_again(control_plane, folder, monkeypatch) -> None:
    async with site_of(control_plane, folder, monkeypatch) as site:
        agent, run = await site.agent(), await site.run("train")
        site.kubelet.refuses = True
        agent.running(run)
        with pytest.raises(LogsUnavailableError, match="the container runtime is away"):
            await texts(agent, request(run))
        following = asyncio.create_task(texts(agent, request(run, follow=True)))
        site.kubelet.refuses = False
        site.kubelet.write("train", "one")
        await texts_until(agent, run, ["one"])
        await agent.finish(run)
        assert await following == ["one"]


async def test_a_log_that_cannot_be_had_holds_nothing_up(control_plane, folder, monkeypatch) -> None:
    async with site_of(control_plane, folder, monkeypatch) as site:
        agent, run = await site.agent(), await site.run("train")
        site.kubelet.refuses = True
        await agent.finish(run)
        await agent.finish(run_of("never", site.space))
        with pytest.raises(LogsUnavailableError, match="no log of that pod is kept"):
            await texts(agent, request(run))


async def test_another_incarnation_or_attempt_is_never_given_for_the_one_asked_for(
    control_plane, folder, monkeypatch
) -> None:
    async with site_of(control_plane, folder, monkeypatch) as site:
        agent, first = await site.agent(), await site.run("train")
        site.kubelet.write("train", "first")
        await agent.finish(first)
        second = run_of("train", site.space, token=2)
        agent.running(second)
        site.kubelet.write("train", "second", at=datetime.now(UTC) + timedelta(seconds=5))
        assert await texts(agent, request(first, pod=first.pod)) == ["first"]
        with pytest.raises(LogsUnavailableError):
            await texts(agent, request(first, pod=PodRef(pod_set="main", index=0, attempt=9, try_=9)))
        asked = LogsRequest(workload_id="another incarnation", pod_key=first.pod_key)
        with pytest.raises(LogsUnavailableError):
            await texts(agent, asked)
        assert "second" in await texts(agent, request(second))
        assert await texts(agent, request(second, previous=True)) == ["first"]
        assert await texts(agent, request(second, attempt=1, try_=1)) == ["first"]
        with pytest.raises(LogsUnavailableError, match="kept are those of attempt 1 run 2, attempt 1 run 3"):
            await texts(agent, request(second, attempt=2))


async def test_who_follows_an_older_run_comes_to_its_end_when_a_newer_one_runs(
    control_plane, folder, monkeypatch
) -> None:
    async with site_of(control_plane, folder, monkeypatch) as site:
        agent, first = await site.agent(), await site.run("train")
        agent.running(first)
        site.kubelet.write("train", "one")
        following = asyncio.create_task(texts(agent, request(first, follow=True)))
        await until(lambda: bool(site.kubelet.following))
        await texts_until(agent, first, ["one"])
        agent.running(run_of("train", site.space, token=2))
        assert await following == ["one"]


async def test_more_than_one_answer_can_hold_comes_in_several(control_plane, folder, monkeypatch) -> None:
    monkeypatch.setattr(module, "ANSWER_BYTES", 1000)
    async with site_of(control_plane, folder, monkeypatch) as site:
        agent, fetched, followed = await site.agent(), await site.run("fetched"), await site.run("followed")
        at = datetime(2026, 1, 1, tzinfo=UTC)
        agent.running(followed)
        lines = [f"{number} {'x' * (number % 50)}" for number in range(300)]
        for number, line in enumerate(lines):
            for run in (fetched, followed):
                site.kubelet.write(run.name, line, at=at + timedelta(seconds=number / 4))
        await texts_until(agent, followed, lines)
        for run in (fetched, followed):
            await agent.finish(run)
            assert await texts(agent, request(run)) == lines


async def test_a_line_without_an_end_is_cut_and_what_follows_it_is_stored(control_plane, folder, monkeypatch) -> None:
    monkeypatch.setattr(module, "ANSWER_BYTES", 1000)
    async with site_of(control_plane, folder, monkeypatch) as site:
        agent, run = await site.agent(), await site.run("train")
        at = datetime(2026, 1, 1, tzinfo=UTC)
        site.kubelet.write("train", "before", at=at)
        site.kubelet.write("train", "x" * 5000, at=at + timedelta(seconds=2))
        site.kubelet.write("train", "after", at=at + timedelta(seconds=4))
        await agent.finish(run)
        before, cut, after = await texts(agent, request(run))
        assert (before, after) == ("before", "after")
        assert 900 < len(cut) < 1000
        assert set(cut) == {"x"}


async def test_a_stored_log_keeps_its_newest_lines(control_plane, folder, monkeypatch) -> None:
    async with site_of(control_plane, folder, monkeypatch) as site:
        agent, run = await site.agent(max_bytes=64 * 1024), await site.run("train")
        agent.running(run)
        for number in range(100):
            site.kubelet.write("train", f"{number} {'x' * 2000}")
        await until((folder / run.pod_key / "1" / "log.1").exists)
        await agent.finish(run)
        found = await texts(agent, request(run))
        assert found[-1].startswith("99 ")
        assert 10 < len(found) < 40
        assert sum(path.stat().st_size for path in (folder / run.pod_key / "1").glob("log*")) <= 64 * 1024


async def test_what_simulated_pods_say_can_be_read(control_plane, folder, monkeypatch) -> None:
    async with site_of(control_plane, folder, monkeypatch) as site:
        site.node = f"plain-{secrets.token_hex(4)}"
        control_plane.add_nodes([site.node])
        agent, run = await site.agent(), await site.run("train")
        agent.running(run)
        await until((folder / run.pod_key).exists)
        before = await texts(agent, request(run))
        assert before
        await agent.finish(run)
        assert await texts(agent, request(run)) == before


async def test_old_logs_go_and_those_of_live_runs_stay(tmp_path: Path) -> None:
    for name, age_seconds in (("live", 1000), ("old", 1000), ("new", 1)):
        folder = tmp_path / name / "1"
        folder.mkdir(parents=True)
        (folder / "log").write_text("x")
        then = datetime.now(UTC).timestamp() - age_seconds
        os.utime(folder / "log", (then, then))
    assert delete_old_logs(tmp_path, 500.0, 1000, keep={tmp_path / "live" / "1"}) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"live", "new"}
