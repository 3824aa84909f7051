"""What a workload has saved, what it would lose, and what it has lost (issue 14, section 2). S049."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from events.aggregate import WORKLOAD
from events.workload.at_risk import CheckpointSaved, gpu_hours_at_risk, seconds_at_risk
from events.workload.commands import EvictPods, PlacePods, SuspendWorkload
from events.workload.evictions import PodsEvicted
from events.workload.fields.distribution import Distribution
from events.workload.fields.saving import CheckpointSpec, PreStop
from events.workload.kinds import KINDS
from events.workload.pod import DeviceShare
from events.workload.pod_sets import StopBy
from events.workload.reports import checkpoint_pause
from events.workload.spec import Distributed, TrainingSpec, with_defaults
from events.workload.volumes import ClaimedFolder, NewClaim, checkpoint_of
from tests.events.given import ID, SERVICE, Story, at, context, fact, names, placement, ref, report

GPUS = (DeviceShare(device=0, milli=1000), DeviceShare(device=1, milli=500))
HOUR = 3600


def running(**spec: Any) -> Story:
    """A workload whose pod has run on one GPU and a half since NOW."""
    story = Story().created(**({"checkpoint": CheckpointSpec()} | spec))
    story.when(PlacePods(workload_id=ID, placements=(replace(placement(ref()), devices=GPUS),)))
    return story.saw(fact("running"))


def saved(story: Story, seconds: float, *, now: float, **more: Any) -> list[str]:
    """The names of the events of a report that the newest file was changed then."""
    kind = more.pop("kind", "running")
    told = fact(kind, seconds=now, checkpoint_at=at(seconds), **more)
    return names(story.when(report(told), context(now=at(now), actor=SERVICE)))


def test_the_first_file_of_a_run_is_told_at_once_and_the_next_ones_are_told_now_and_then() -> None:
    """So a program that saves each second does not fill the log."""
    story = running()
    assert saved(story, 10, now=20) == ["CheckpointSaved"]
    assert saved(story, 10, now=30) == []
    assert saved(story, 69, now=70) == []
    assert saved(story, 71, now=71) == ["CheckpointSaved"]
    told = sum(bool(saved(story, second, now=second)) for second in range(72, 2 * HOUR))
    assert told <= 40
    late = [second for second in range(20 * HOUR, 21 * HOUR) if saved(story, second, now=second)]
    assert len(late) == 6
    assert story.state.checkpoint_at == at(late[-1])


@pytest.mark.parametrize("kind", ["starting", "unreachable"])
def test_a_pod_that_has_not_run_has_saved_nothing_whatever_its_agent_says_and_however_often(kind: str) -> None:
    story = Story().created(checkpoint=CheckpointSpec())
    story.when(PlacePods(workload_id=ID, placements=(replace(placement(ref()), devices=GPUS),)))
    told = [name for second in range(1_000) for name in saved(story, second, now=second, kind=kind)]
    assert "CheckpointSaved" not in told
    assert story.state.checkpoint_at is None
    assert saved(story, 5_000, now=5_000) == ["CheckpointSaved", "PodRunning"], "a file that it had when it was seen"


def test_a_pod_that_is_told_to_end_before_it_ran_tells_of_no_file() -> None:
    story = Story().created(checkpoint=CheckpointSpec())
    story.when(PlacePods(workload_id=ID, placements=(replace(placement(ref()), devices=GPUS),)))
    story.when(SuspendWorkload(workload_id=ID))
    assert [name for second in range(100) for name in saved(story, second, now=second)] == []
    assert saved(story, 200, now=200, kind="stopped") == ["PodStopped", "WorkloadStopped"]


@pytest.mark.parametrize(("age", "pause"), [(0, 60), (HOUR / 2, 180), (HOUR, 360), (48 * HOUR, 600)])
def test_what_is_old_is_told_less_often(age: float, pause: float) -> None:
    assert checkpoint_pause(timedelta(seconds=age)).total_seconds() == pause


def test_the_last_file_is_told_with_the_end_of_its_run_however_soon_it_came() -> None:
    story = running()
    assert saved(story, 100, now=100) == ["CheckpointSaved"]
    story.when(SuspendWorkload(workload_id=ID))
    assert saved(story, 101, now=102, kind="stopped") == ["CheckpointSaved", "PodStopped", "WorkloadStopped"]
    assert story.state.checkpoint_at == at(101)


def test_a_file_of_an_earlier_run_or_of_a_time_to_come_is_taken_for_what_it_is() -> None:
    story = running()
    assert saved(story, -50, now=10) == [], "older than the run, it saves nothing of its work"
    assert saved(story, 10**9, now=20) == ["CheckpointSaved"]
    assert story.state.checkpoint_at == at(20)
    assert saved(story, 15, now=500) == [], "it never goes back"


def test_what_has_no_folder_tells_of_no_file() -> None:
    story = running(checkpoint=None)
    assert saved(story, 10, now=20) == []


def test_a_run_that_is_over_tells_nothing() -> None:
    story = running()
    assert saved(story, 10, now=20, pod=ref(try_=3)) == []


def test_at_risk_is_what_was_done_since_the_newest_file_or_since_the_start() -> None:
    story = running()
    pod = story.state.pods["main", 0]
    assert seconds_at_risk(story.state, pod, at(HOUR)) == HOUR
    assert gpu_hours_at_risk(story.state, at(HOUR)) == 1.5
    saved(story, HOUR / 2, now=HOUR)
    assert gpu_hours_at_risk(story.state, at(HOUR)) == 0.75
    assert gpu_hours_at_risk(story.state, at(0)) == 0, "a clock that was set back"


def test_an_eviction_says_what_it_takes_and_the_end_what_was_lost() -> None:
    """Given a pod that saves its work between the two."""
    story = running()
    saved(story, HOUR, now=HOUR)
    evict = EvictPods(workload_id=ID, pods=(ref(),), reason="preempted", message="m", beneficiary="b")
    (evicted,) = story.when(evict, context(now=at(2 * HOUR), actor=SERVICE))
    assert isinstance(evicted, PodsEvicted)
    assert evicted.gpu_seconds_at_risk == HOUR * 3 // 2
    assert saved(story, 2 * HOUR + 10, now=2 * HOUR + 30, kind="stopped") == ["CheckpointSaved", "PodStopped"]
    assert story.state.gpu_milli_seconds_lost == 20 * 1500


def test_an_interruption_loses_work_and_a_suspension_or_an_end_does_not() -> None:
    story = running().saw(fact("interrupted", seconds=100), now=at(100))
    assert story.state.gpu_milli_seconds_lost == 100 * 1500
    story = running()
    story.when(SuspendWorkload(workload_id=ID))
    story.saw(fact("stopped", seconds=100), now=at(100))
    assert story.state.gpu_milli_seconds_lost == 0
    story = running().saw(fact("succeeded", seconds=100), now=at(100))
    assert story.state.gpu_milli_seconds_lost == 0


@pytest.mark.parametrize(
    ("completions", "parallelism", "modes"),
    [(1, 1, ("ReadWriteOnce",)), (9, 1, ("ReadWriteOnce",)), (9, 3, ("ReadWriteMany",))],
)
def test_the_folder_is_a_claim_of_the_workload_that_all_its_pods_have(
    completions: int, parallelism: int, modes: tuple[str, ...]
) -> None:
    spec = TrainingSpec(
        image="i",
        checkpoint=CheckpointSpec(size="5Gi", path="/saves", storage_class="fast"),
        completions=completions,
        parallelism=parallelism,
    )
    (pod_set,) = KINDS["Training"].pod_sets(with_defaults(spec), None)
    new = NewClaim(size_bytes=5 * 1024**3, storage_class="fast", modes=modes)
    folder = ClaimedFolder(mount_path="/saves", number=0, new=new, checkpoint=True)
    assert checkpoint_of(pod_set.template.volumes) == folder


def test_master_and_workers_share_the_folder_and_are_told_to_end_alike() -> None:
    spec = TrainingSpec(image="i", checkpoint=CheckpointSpec(), pre_stop=PreStop(command="python save.py --now"))
    beside = Distributed(
        distribution=Distribution(distributed_framework="PyTorch", num_workers=2), master=TrainingSpec(image="m")
    )
    sets = KINDS["Distributed"].pod_sets(spec, beside)
    first, second = (checkpoint_of(each.template.volumes) for each in sets)
    assert first is not None
    assert first == second
    told = StopBy(arguments=("python", "save.py", "--now"))
    assert [each.template.stop_by for each in sets] == [told, told]


def test_an_event_that_says_nothing_newer_changes_nothing() -> None:
    story = running()
    saved(story, 100, now=100)
    before = story.state
    after = WORKLOAD.evolve(before, CheckpointSaved(pod=ref(), at=at(50)))
    assert after.checkpoint_at == at(100)
