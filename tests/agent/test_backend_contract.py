"""What every backend must do (architecture.md section 6). tests/kubernetes/test_backend_contract.py has the Kubernetes
backend pass the same tests, on a real API server.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from events.cluster_protocol import LogLine, LogsRequest
from events.workload.pod import DeviceShare
from services.agent.backends.interface import LIVE_KINDS, BackendError, LogsUnavailableError
from tests.agent.given import KEY, OPENERS, WORKLOAD, Watched, log_text, ref

pytestmark = pytest.mark.anyio


@pytest.fixture(params=sorted(OPENERS))
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Watched]:
    watched = await OPENERS[request.param](tmp_path)
    yield watched
    await watched.close()


def went_through(cluster: Watched) -> list[str]:
    """What was said of the run, but for its start: a watch may say "running" at once."""
    kinds = [seen.kind for seen in cluster.history[KEY, 1]]
    return kinds[1:] if kinds[0] == "starting" else [*kinds]


async def test_a_cluster_shows_its_nodes_with_what_they_have(cluster: Watched) -> None:
    picture = await cluster.backend.list_all()
    assert cluster.node in {node.name for node in picture.nodes}
    facts = next(node.facts for node in picture.nodes if node.name == cluster.node)
    assert facts.cpu_milli > 0
    assert facts.memory_bytes > 0
    assert facts.gpu_count == 2
    assert facts.stand_in is not cluster.real


async def test_a_pod_starts_runs_and_succeeds_and_its_end_says_when_it_began(cluster: Watched) -> None:
    await cluster.backend.apply(cluster.pod(seconds=0.1))
    end = await cluster.until("succeeded")
    assert went_through(cluster) == ["running", "succeeded"]
    assert end.started_at is not None
    assert end.started_at <= end.at
    assert end.node_name == cluster.node


async def test_a_pod_that_ends_badly_failed_with_its_exit_code(cluster: Watched) -> None:
    await cluster.backend.apply(cluster.pod(seconds=0.05, exit_code=7))
    end = await cluster.until("failed")
    assert (end.exit_code, end.reason) == (7, "exit_code")


async def test_where_images_are_recorded_and_not_pulled_the_first_word_on_a_pod_says_so(cluster: Watched) -> None:
    await cluster.backend.apply(cluster.pod())
    first = await cluster.until("starting", "running")
    said = " ".join(f"{word.message} {word.note}" for word in (cluster.history[KEY, 1][0], first))
    assert ("not pulled" in said) is not cluster.real


async def test_a_pod_applied_twice_runs_once(cluster: Watched) -> None:
    await cluster.backend.apply(cluster.pod())
    await cluster.until("running")
    await cluster.backend.apply(cluster.pod())
    await asyncio.sleep(0.2)
    assert went_through(cluster) == ["running"]
    assert len((await cluster.backend.list_all()).pods) == 1


async def test_a_pod_told_to_go_is_stopped_not_failed(cluster: Watched) -> None:
    await cluster.backend.apply(cluster.pod())
    await cluster.until("running")
    await cluster.backend.delete(KEY, 1, 10)
    end = await cluster.until("stopped", "failed", "interrupted", "succeeded")
    assert end.kind == "stopped"


async def test_a_pod_that_will_not_go_is_killed_after_its_grace_period(cluster: Watched) -> None:
    await cluster.backend.apply(cluster.pod(stubborn=True))
    await cluster.until("running")
    await cluster.ignores_term()
    await cluster.backend.delete(KEY, 1, 1)
    end = await cluster.until("stopped")
    assert end.exit_code == 137


async def test_a_second_deletion_shortens_the_grace_period(cluster: Watched) -> None:
    await cluster.backend.apply(cluster.pod(stubborn=True))
    await cluster.until("running")
    await cluster.ignores_term()
    await cluster.backend.delete(KEY, 1, 1000)
    await asyncio.sleep(0.1)
    await cluster.backend.delete(KEY, 1, 0)
    assert (await cluster.until("stopped")).exit_code == 137


async def test_ending_a_run_leaves_a_newer_one_of_its_pod_alone(cluster: Watched) -> None:
    await cluster.backend.apply(cluster.pod(seconds=0.05))
    await cluster.until("succeeded")
    await cluster.backend.apply(cluster.pod(token=2))
    await cluster.until("running", token=2)
    await cluster.backend.delete(KEY, 1, 0)
    await asyncio.sleep(0.2)
    assert {pod.kind for pod in (await cluster.backend.list_all()).pods if pod.token == 2} == {"running"}


async def test_deleting_what_is_not_there_only_moves_the_fence(cluster: Watched) -> None:
    await cluster.backend.delete(KEY, 4, 0)
    assert cluster.backend.fences()[KEY] == 5
    assert not (await cluster.backend.list_all()).pods


async def test_starting_forgetting_and_deleting_move_the_fence_and_never_back(cluster: Watched) -> None:
    await cluster.backend.apply(cluster.pod(token=3, seconds=0.05))
    assert cluster.backend.fences()[KEY] == 3
    await cluster.until("succeeded", token=3)
    await cluster.backend.forget(KEY, 3)
    assert cluster.backend.fences()[KEY] == 4
    await cluster.backend.delete(KEY, 2, 0)
    assert cluster.backend.fences()[KEY] == 4


async def test_a_run_below_the_fence_is_refused_whoever_asks_for_it(cluster: Watched) -> None:
    """The agent looks at the fence first; the backend is the last gate."""
    await cluster.backend.delete(KEY, 2, 0)
    with pytest.raises(BackendError, match=f"run 2 of {KEY} may not be started any more"):
        await cluster.backend.apply(cluster.pod(token=2))
    await cluster.backend.apply(cluster.pod(token=3, seconds=0.05))
    await cluster.until("succeeded", token=3)
    await cluster.backend.forget(KEY, 3)
    with pytest.raises(BackendError, match=f"run 3 of {KEY} may not be started any more"):
        await cluster.backend.apply(cluster.pod(token=3))
    assert not (await cluster.backend.list_all()).pods
    assert cluster.backend.fences()[KEY] == 4


async def test_an_older_run_is_never_started_beside_a_newer_one(cluster: Watched) -> None:
    await cluster.backend.apply(cluster.pod(token=3))
    await cluster.until("running", token=3)
    with contextlib.suppress(BackendError):
        await cluster.backend.apply(cluster.pod(token=2))
    assert [(pod.kind, pod.token) for pod in (await cluster.backend.list_all()).pods] == [("running", 3)]
    assert cluster.newest(token=2) is None


async def test_an_ended_run_is_listed_until_it_is_forgotten_and_a_live_one_cannot_be(cluster: Watched) -> None:
    await cluster.backend.apply(cluster.pod())
    await cluster.until("running")
    await cluster.backend.forget(KEY, 1)
    assert len((await cluster.backend.list_all()).pods) == 1
    await cluster.backend.delete(KEY, 1, 5)
    await cluster.until("stopped")
    assert [pod.kind for pod in (await cluster.backend.list_all()).pods] == ["stopped"]
    await cluster.backend.forget(KEY, 1)
    assert not (await cluster.backend.list_all()).pods


async def test_the_list_says_what_the_watch_said_last(cluster: Watched) -> None:
    for index in range(5):
        await cluster.backend.apply(cluster.pod(pod_key=f"k-main-{index}", seconds=0.05, exit_code=index))
    for index in range(5):
        await cluster.until("succeeded", "failed", key=f"k-main-{index}")
    listed = {pod.pod_key: pod for pod in (await cluster.backend.list_all()).pods}
    assert listed == {key: seen[-1] for (key, _), seen in cluster.history.items()}


async def test_a_pod_for_a_node_or_device_that_is_not_there_is_refused_with_a_reason(cluster: Watched) -> None:
    await cluster.backend.apply(cluster.pod(node_name="elsewhere"))
    assert "elsewhere" in (await cluster.until("refused")).message
    await cluster.backend.apply(cluster.pod(token=2, devices=(DeviceShare(device=5, milli=1000),)))
    assert "no device 5" in (await cluster.until("refused", token=2)).message


async def test_logs_are_there_while_the_pod_runs_when_it_ended_and_when_it_is_forgotten(cluster: Watched) -> None:
    """S082: logs are kept after the pod is gone."""
    await cluster.backend.apply(cluster.pod(seconds=0.3))
    await cluster.until("running")
    followed = asyncio.create_task(log_text(cluster.backend, follow=True))
    await cluster.until("succeeded")
    async with asyncio.timeout(60):
        assert await followed
    ended = await log_text(cluster.backend)
    assert ended == await followed
    await cluster.backend.forget(KEY, 1)
    assert await log_text(cluster.backend) == ended
    assert await log_text(cluster.backend, tail_lines=1) == ended[-1:]
    assert await log_text(cluster.backend, tail_lines=0) == []
    assert await log_text(cluster.backend, pod=ref(try_=1)) == ended


@pytest.mark.parametrize("wrong", [{"pod_key": "other-main-0"}, {"workload_id": "other"}, {"pod": ref(try_=9)}])
async def test_logs_of_another_run_or_incarnation_are_never_given(cluster: Watched, wrong: dict[str, object]) -> None:
    await cluster.backend.apply(cluster.pod(seconds=0.05))
    await cluster.until("succeeded")
    with pytest.raises(LogsUnavailableError):
        await log_text(cluster.backend, **wrong)


async def test_logs_of_earlier_runs_are_given_to_who_asks_for_them(cluster: Watched) -> None:
    runs = [(1, ref(attempt=1, try_=0)), (2, ref(attempt=1, try_=1)), (3, ref(attempt=2, try_=0))]

    async def told(**more: object) -> list[LogLine]:
        request = msgspec.convert({"workload_id": WORKLOAD, "pod_key": KEY, **more}, LogsRequest)
        return [line async for lines in cluster.backend.logs(request) for line in lines]

    of: dict[int, list[LogLine]] = {}
    for token, run in runs:
        await cluster.backend.apply(cluster.pod(token, pod=run, seconds=0.05))
        await cluster.until("succeeded", token=token)
        of[token] = await told()
        await cluster.backend.forget(KEY, token)
    # The stand-in for kubelets gives every pod the same lines; tests/kubernetes/test_logs.py has runs apart.
    if cluster.kind != "kubernetes":
        assert len({tuple(lines) for lines in of.values()}) == len(runs), "each at a time of its own"

    assert await told() == await told(attempt=2) == of[3]
    assert await told(previous=True) == await told(attempt=1) == of[2]
    assert await told(attempt=1, **{"try": 0}) == of[1]
    with pytest.raises(LogsUnavailableError, match=r"attempt 7 .* attempt 1 run 1, attempt 1 run 2, attempt 2 run 1"):
        await told(attempt=7)


async def test_nothing_runs_nothing_is_used(cluster: Watched) -> None:
    assert list(await cluster.backend.usage()) == []


async def test_running_pods_have_usage(cluster: Watched) -> None:
    await cluster.backend.apply(cluster.pod(memory_bytes=1024))
    await cluster.until("running")
    assert [sample.workload_id for sample in await cluster.measured()] == ["w-1"]


async def test_every_live_kind_is_followed_by_exactly_one_end(cluster: Watched) -> None:
    for token in range(1, 6):
        await cluster.backend.apply(cluster.pod(token, pod_key=f"k-main-{token}"))
    for token in range(1, 6):
        await cluster.backend.delete(f"k-main-{token}", token, 5)
    for token in range(1, 6):
        await cluster.until("stopped", token=token, key=f"k-main-{token}")
    await asyncio.sleep(0.1)
    for seen in cluster.history.values():
        assert [observed.kind in LIVE_KINDS for observed in seen].count(False) == 1
