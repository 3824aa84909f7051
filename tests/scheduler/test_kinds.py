"""A kind of workload is its module and its line in the registry: one more is followed from its creation to its end."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import pytest
from msgspec.structs import replace

from events.cluster_protocol import RunPod
from events.ids import node_key, workload_key
from events.phases import Phase
from events.project import Project
from events.workload.commands import CreateWorkload, PodFact, PodFactKind, ReportPods
from events.workload.fields.creation import TrainingCreation
from events.workload.kinds import KINDS
from events.workload.kinds.kind import Kind
from events.workload.kinds.training import backoff_limit, template
from events.workload.life import WorkloadCreated
from events.workload.pod import PodId, PodRef
from events.workload.pod_sets import PodSet
from events.workload.spec import Beside, ComputeSpec, TrainingSpec, with_defaults
from services.cluster_sync.reconcile import desired_pod, run_pod
from tests.scheduler.world import World


def master_and_workers(spec: TrainingSpec, _: Beside) -> tuple[PodSet, ...]:
    """A master without GPUs, and workers that have another image."""
    of_all = template(spec)
    master = replace(of_all, image=f"{spec.image}-master", request=replace(of_all.request, gpu_devices=0, gpu_milli=0))
    workers = spec.parallelism or 1
    return (
        PodSet(name="master", count=1, parallelism=1, template=master),
        PodSet(name="worker", count=workers, parallelism=workers, template=of_all),
    )


def master_decides(sets: tuple[PodSet, ...], succeeded: Mapping[str, int]) -> bool:
    return succeeded.get(sets[0].name) == sets[0].count


DUO: Final = Kind(
    name="Duo",
    kubernetes_name="DuoWorkload",
    collection="duos",
    priority="low",
    creation=TrainingCreation,
    shown=lambda spec, _: spec,
    with_defaults=with_defaults,
    pod_sets=master_and_workers,
    completed=master_decides,
    backoff_limit=backoff_limit,
)


@pytest.fixture
def duo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, DUO.name, DUO)


def submitted(world: World) -> str:
    world.cluster()
    world.project()
    world.node("n1", gpu_count=8)
    key = workload_key(world.project_id, "duo")
    command = CreateWorkload(
        kind="Duo",
        name="duo",
        requested_name="duo",
        project_id=world.project_id,
        cluster_id=world.cluster_id,
        spec=TrainingSpec(image="net", parallelism=2, compute=ComputeSpec(gpu_devices_request=1)),
    )
    world.do("workload", key, command)
    return key


def told(world: World, key: str, pod_set: str, index: int, kind: PodFactKind) -> None:
    pod = world.workload(key).pods[pod_set, index]
    ref = PodRef(pod_set=pod_set, index=index, attempt=pod.attempt, try_=pod.try_)
    fact = PodFact(pod=ref, kind=kind, at=world.now)
    world.do("workload", key, ReportPods(workload_id=world.workload(key).workload_id, facts=(fact,)))


@pytest.mark.usefixtures("duo")
def test_a_kind_with_two_pod_sets_and_its_own_end_goes_from_creation_to_completion() -> None:
    world = World()
    key = submitted(world)
    world.cycle()
    pods = world.workload(key).pods
    assert sorted(pods) == [("master", 0), ("worker", 0), ("worker", 1)]
    assert {id_: len(pod.devices) for id_, pod in pods.items()} == {
        ("master", 0): 0,
        ("worker", 0): 1,
        ("worker", 1): 1,
    }
    wanted: dict[PodId, RunPod] = {}
    for pod_id, pod in pods.items():
        desired = desired_pod(key, pod_id, world.workload(key), pod, Project(name="default"))
        assert desired is not None
        wanted[pod_id] = run_pod(desired)
    assert {id_: (pod.image, pod.pods) for id_, pod in wanted.items()} == {
        ("master", 0): ("net-master", 1),
        ("worker", 0): ("net", 2),
        ("worker", 1): ("net", 2),
    }
    for pod_set, index in sorted(pods):
        told(world, key, pod_set, index, "running")
    assert world.workload(key).phase is Phase.RUNNING
    told(world, key, "worker", 0, "succeeded")
    assert world.workload(key).phase is Phase.RUNNING
    told(world, key, "master", 0, "succeeded")
    assert world.workload(key).phase is Phase.COMPLETED
    assert world.workload(key).pods["worker", 1].phase == "Stopping", "what still runs is told to go"
    told(world, key, "worker", 1, "stopped")
    world.now += timedelta(seconds=1)
    world.cycle()
    assert not world.workload(key).pods
    assert not world.chain("node", node_key(world.cluster_id, "n1")).state.used_device_milli[0]


def test_a_kind_that_is_not_registered_cannot_be_created() -> None:
    with pytest.raises(ValueError, match="no kind of workload is called 'Duo'"):
        WorkloadCreated(
            workload_id="w",
            name="n",
            requested_name="n",
            kind="Duo",
            project_id="p",
            cluster_id="c",
            owner="o",
            at=World().now,
            spec=TrainingSpec(image="i"),
        )
