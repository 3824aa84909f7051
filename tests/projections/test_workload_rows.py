"""What few commits of wide workloads, and several lives of one name, change in the tables."""

from typing import Literal

import pytest

from events.workload.commands import (
    CreateWorkload,
    DeleteWorkload,
    PlacePods,
    PodFact,
    PodWarning,
    ReportPods,
    SuspendWorkload,
)
from events.workload.pod import Placement, PodRef
from events.workload.spec import TrainingSpec
from projections.fold import fold
from projections.workloads.project import RowsLostError, restored
from tests.support.lives import CLUSTER_SYNC, SCHEDULER, World

PODS = 1_000


def run(index: int) -> PodRef:
    return PodRef(pod_set="main", index=index, attempt=1, try_=0)


def wide_world() -> tuple[World, str]:
    """A workload of a thousand pods on ten nodes, all bound and none started."""
    world = World()
    cluster_id, project_id = world.cluster(), world.project()
    key = world.training("wide", project_id, cluster_id, TrainingSpec(image="x", completions=PODS, parallelism=PODS))
    placements = tuple(
        Placement(pod=run(n), node_key=f"n{n % 10}", node_name=f"node-{n % 10}", pool="default") for n in range(PODS)
    )
    bind = PlacePods(workload_id=world.state("workload", key).workload_id, placements=placements)
    world.do("workload", key, bind, SCHEDULER)
    return world, key


def test_one_fact_of_one_pod_of_a_wide_workload_puts_its_row_and_the_workloads_and_no_other() -> None:
    world, key = wide_world()
    before, _ = fold({}, world.commits)
    known = len(world.commits)
    fact = PodFact(pod=run(7), kind="running", at=world.now)
    report = ReportPods(workload_id=world.state("workload", key).workload_id, facts=(fact,))
    world.do("workload", key, report, CLUSTER_SYNC)
    after, changes = fold(before, world.commits[known:])
    assert {table: len(rows) for table, rows in changes.put.items() if rows} == {"workloads": 1, "pods": 1}
    assert not any(changes.removed.values())
    (row,) = changes.put["workloads"].values()
    assert (row.phase, row.running_pods, row.live_pods) == ("Running", 1, PODS)
    assert row.current_nodes == tuple(f"node-{n}" for n in range(10))
    old, new = before["workload", key], after["workload", key]
    # What did not change is shared, and not copied.
    shared = [chunk for id_, chunk in new.told.chunks.items() if old.told.chunks[id_] is chunk]
    assert len(shared) == len(new.told.chunks) - 1


def test_two_lives_of_one_name_in_one_batch_keep_their_own_rows() -> None:
    world, key = wide_world()
    first = world.state("workload", key).workload_id
    cluster_id, project_id = world.state("workload", key).cluster_id, world.state("workload", key).project_id
    world.do("workload", key, DeleteWorkload(workload_id=first))
    gone = tuple(PodFact(pod=run(n), kind="stopped", at=world.now) for n in range(PODS))
    world.do("workload", key, ReportPods(workload_id=first, facts=gone), CLUSTER_SYNC)
    again = CreateWorkload(
        kind="Training",
        name="wide",
        requested_name="wide",
        project_id=project_id,
        cluster_id=cluster_id,
        spec=TrainingSpec(image="y"),
    )
    world.do("workload", key, again)
    second = world.state("workload", key).workload_id
    assert second != first
    _, changes = fold({}, world.commits)
    rows = changes.put["workloads"]
    assert (rows[first].image, rows[first].deleted_at is not None) == ("x", True)
    assert (rows[second].image, rows[second].phase) == ("y", "Creating")
    assert {pod.phase for pod in changes.put["pods"].values()} == {"Stopped"}
    assert {use.workloads for use in changes.use.values()} == {1}


def test_an_entry_is_restored_from_state_and_rows_as_the_fold_left_it() -> None:
    world, key = wide_world()
    after, changes = fold({}, world.commits)
    entry = after["workload", key]
    runs = list(changes.put["pods"].values())
    assert restored(world.chain("workload", key), entry.row, runs) == entry


@pytest.mark.parametrize("there", ["nothing", "an older row"])
def test_rows_that_are_not_where_the_log_says_are_not_gone_on_from(there: str) -> None:
    world, key = wide_world()
    earlier, _ = fold({}, world.commits[:-1])
    row = None if there == "nothing" else earlier["workload", key].row
    with pytest.raises(RowsLostError, match="the tables were changed"):
        restored(world.chain("workload", key), row, [])


@pytest.mark.parametrize("end", ["stopped", "succeeded"])
def test_a_run_that_has_ended_does_not_show_what_was_said_of_its_start(end: Literal["stopped", "succeeded"]) -> None:
    world, key = wide_world()
    identifier = world.state("workload", key).workload_id
    said = PodFact(pod=run(7), kind="starting", at=world.now, message="image 'x' is recorded, not pulled")
    world.do("workload", key, ReportPods(workload_id=identifier, facts=(said,)), CLUSTER_SYNC)
    if end == "stopped":
        world.do("workload", key, SuspendWorkload(workload_id=identifier))
    fact = PodFact(pod=run(7), kind=end, at=world.now, exit_code=0)
    world.do("workload", key, ReportPods(workload_id=identifier, facts=(fact,)), CLUSTER_SYNC)
    _, changes = fold({}, world.commits)
    (row,) = (row for row in changes.put["pods"].values() if row.index == run(7).index and row.finished_at)
    assert (row.reason, row.message) == ("", "")


def test_what_hinders_a_pod_from_starting_is_why_its_workload_does_not_run() -> None:
    """As long as none of its pods runs; of several, the first one's, and of how many more."""
    world, key = wide_world()
    workload_id = world.state("workload", key).workload_id

    def why(index: int, kind: Literal["starting", "interrupted", "running"], warned: str = "") -> tuple[str, str]:
        """After this report; and an entry that is restored from the tables goes on alike."""
        warnings = (PodWarning(reason="image_pull", message=warned, at=world.now),) if warned else ()
        fact = PodFact(pod=run(index), kind=kind, at=world.now, warnings=warnings)
        world.do("workload", key, ReportPods(workload_id=workload_id, facts=(fact,)), CLUSTER_SYNC)
        after, changes = fold({}, world.commits)
        row = changes.put["workloads"][workload_id]
        assert restored(world.chain("workload", key), row, list(changes.put["pods"].values())) == after["workload", key]
        return row.phase, row.phase_message

    assert why(70, "starting") == ("Initializing", "")
    assert why(9, "starting", "image not found") == ("Initializing", "pod main-9: image not found")
    assert why(80, "starting", "disk is full") == ("Initializing", "pod main-9: image not found (and of 1 more)")
    assert why(7, "starting", "\x00") == ("Initializing", "pod main-7: \N{REPLACEMENT CHARACTER} (and of 2 more)")
    assert why(7, "interrupted") == ("Initializing", "pod main-9: image not found (and of 1 more)")
    assert why(9, "interrupted") == ("Initializing", "pod main-80: disk is full")
    phase, told = why(70, "running")
    assert (phase, told.endswith("others run")) == ("Degraded", True), told
