"""The launcher of an MPI training that waits for its workers: what its cluster is told of it, and when. It ends with a
reason whatever becomes of them, and whoever is restarted meanwhile.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from events.aggregate import WORKLOAD
from events.cluster_protocol import SettledPod, StartPod, StopPod, pod_key
from events.phases import Phase, PodPhase
from events.project import Project
from events.subjects import wanted_subject
from events.workload.commands import CreateWorkload, PlacePods, PodFactKind, ReportPods, SuspendWorkload
from events.workload.fields.distribution import Distribution, LauncherCreationPolicy
from events.workload.places import bindable
from events.workload.pod import PodRef
from events.workload.spec import Distributed, TrainingSpec
from events.workload.state import Workload
from services.cluster_sync.reconcile import Held, desired_pod, held_sets, reconcile
from tests.cluster_sync.given import CLUSTER_ID, KEY, PROJECT_ID, World, eventually, serving
from tests.events.given import NOW, Story, fact, placement

pytestmark = pytest.mark.anyio

MASTER = pod_key(KEY, "master", 0)
WORKERS = (pod_key(KEY, "worker", 0), pod_key(KEY, "worker", 1))
SUBJECT = wanted_subject(CLUSTER_ID, MASTER)


def creation(policy: LauncherCreationPolicy | None = "WaitForWorkersReady", *, limit: int = 6) -> CreateWorkload:
    distribution = Distribution(
        distributed_framework="MPI", num_workers=len(WORKERS), mpi_launcher_creation_policy=policy
    )
    return CreateWorkload(
        kind="Distributed",
        name="train",
        requested_name="train",
        project_id=PROJECT_ID,
        cluster_id=CLUSTER_ID,
        spec=TrainingSpec(image="w", backoff_limit=limit),
        distributed=Distributed(distribution=distribution, master=TrainingSpec(image="m", command="mpirun x")),
    )


def ref(pod_set: str, index: int = 0, try_: int = 0) -> PodRef:
    return PodRef(pod_set=pod_set, index=index, attempt=1, try_=try_)


def story(policy: LauncherCreationPolicy | None = "WaitForWorkersReady") -> Story:
    made = Story()
    made.when(creation(policy))
    placements = tuple(map(placement, bindable(made.state, NOW)))
    made.when(PlacePods(workload_id=made.state.workload_id, placements=placements))
    return made


def saw(made: Story, *said: tuple[PodFactKind, PodRef]) -> Workload:
    """What a workload is after its agent has said this."""
    for kind, pod in said:
        made.when(ReportPods(workload_id=made.state.workload_id, facts=(fact(kind, pod, exit_code=1),)))
    return made.state


@pytest.mark.parametrize(
    ("said", "held"),
    [
        ((), True),
        ((("running", ref("worker", 0)),), True),
        ((("starting", ref("worker", 0)), ("starting", ref("worker", 1))), True),
        ((("running", ref("worker", 0)), ("running", ref("worker", 1))), False),
        ((("running", ref("worker", 0)), ("succeeded", ref("worker", 1))), False),
        ((("running", ref("worker", 0)), ("running", ref("worker", 1)), ("failed", ref("worker", 0))), True),
        ((("running", ref("worker", 0)), ("running", ref("worker", 1)), ("unreachable", ref("worker", 0))), True),
    ],
    ids=["none runs", "one runs", "both start", "both run", "one is over", "one failed", "one is out of sight"],
)
def test_a_launcher_waits_until_all_workers_run(said: tuple[tuple[PodFactKind, PodRef], ...], *, held: bool) -> None:
    assert held_sets(saw(story(), *said)) == ({"master"} if held else set())
    assert not held_sets(saw(story("AtStartup"), *said))
    assert not held_sets(saw(story(None), *said))


@pytest.mark.parametrize(
    ("held", "known", "words"),
    [
        (True, None, []),
        (True, Held(StartPod, 5), [SettledPod]),
        (True, Held(StopPod, 5), [SettledPod]),
        (True, Held(StartPod, 9), []),
        (False, None, [StartPod]),
        (False, Held(StartPod, 5), [StartPod]),
        (False, Held(StartPod, 9), []),
    ],
    ids=[
        "waits",
        "an earlier run is over",
        "an earlier run was stopped",
        "was told already",
        "may start",
        "again",
        "told",
    ],
)
def test_what_was_told_to_start_stays_told(*, held: bool, known: Held | None, words: list[type]) -> None:
    state = story().state
    pod = replace(state.pods["master", 0], token=9)
    wanted = desired_pod(KEY, ("master", 0), state, pod, Project(name="nlp"), held=held)
    assert wanted is not None
    told = reconcile([SUBJECT], {SUBJECT: wanted}, {} if known is None else {SUBJECT: known})
    assert [type(word) for _, word in told] == words


async def begun(world: World, **more: Any) -> str:
    await world.decide(WORKLOAD, KEY, creation(**more), "create")
    await world.bind()
    return (await world.workload()).workload_id


async def run(world: World, *keys: str) -> None:
    for key in keys:
        await world.report(await world.wanted_is(StartPod, key), "running")


async def phase_of(world: World, name: str, index: int, phase: PodPhase | None) -> None:
    async def is_so() -> bool:
        pod = (await world.workload()).pods.get((name, index))
        return (None if pod is None else pod.phase) is phase

    await eventually(is_so)


async def test_two_instances_one_of_them_killed_start_the_launcher_once_all_workers_run(world: World) -> None:
    """Whoever is there when the last worker runs tells it; a worker that dies then takes nothing back."""
    async with serving(world.server):
        async with serving(world.server):
            await begun(world)
            await run(world, WORKERS[0])
            await phase_of(world, "worker", 0, PodPhase.RUNNING)
        assert await world.wanted(MASTER) is None
    await run(world, WORKERS[1])
    async with serving(world.server):
        word = await world.wanted_is(StartPod, MASTER)
        await world.report(await world.wanted(WORKERS[0]), "failed", exit_code=1)
        await phase_of(world, "worker", 0, PodPhase.PENDING)
    async with serving(world.server):
        assert await world.wanted_is(StartPod, MASTER) == word
        assert (await world.recipe(word)).mpi is not None
        await world.report(word, "running")
        await phase_of(world, "master", 0, PodPhase.RUNNING)


async def test_a_launcher_whose_worker_fails_for_good_is_stopped_before_it_was_started(world: World) -> None:
    async with serving(world.server):
        await begun(world, limit=0)
        await run(world, WORKERS[0])
        await world.report(await world.wanted_is(StartPod, WORKERS[1]), "failed", exit_code=3)
        state = await world.phase_is(Phase.FAILED)
        assert (state.reason, "worker-1 ended with exit code 3" in state.message) == ("backoff_limit_exceeded", True)
        for key in (MASTER, WORKERS[0]):
            await world.report(await world.wanted_is(StopPod, key), "stopped")
        await phase_of(world, "master", 0, None)


async def test_a_launcher_that_waits_is_suspended_though_it_never_started(world: World) -> None:
    async with serving(world.server):
        id_ = await begun(world)
        await run(world, WORKERS[0])
        await phase_of(world, "worker", 0, PodPhase.RUNNING)
        await world.decide(WORKLOAD, KEY, SuspendWorkload(workload_id=id_), "suspend")
        for key in (MASTER, *WORKERS):
            await world.report(await world.wanted_is(StopPod, key), "stopped")
        await world.phase_is(Phase.STOPPED)


async def test_a_launcher_that_failed_is_run_again_once_all_workers_run_again(world: World) -> None:
    async with serving(world.server):
        await begun(world)
        await run(world, *WORKERS, MASTER)
        first = await world.wanted_is(StartPod, MASTER)
        await phase_of(world, "master", 0, PodPhase.RUNNING)
        for key in (WORKERS[1], MASTER):
            await world.report(await world.wanted_is(StartPod, key), "failed", exit_code=1)
        await phase_of(world, "master", 0, PodPhase.PENDING)

        async def bound() -> bool:
            await world.bind()
            return (await world.workload()).pods["master", 0].phase is PodPhase.BOUND

        await eventually(bound)
        worker = await world.wanted_is(StartPod, WORKERS[1])
        assert not isinstance(await world.wanted(MASTER), StartPod)
        await world.report(worker, "running")
        again = await world.wanted_is(StartPod, MASTER)
        assert again.token > first.token
        await world.report(again, "succeeded")
        assert (await world.phase_is(Phase.COMPLETED)).succeeded == 1
