"""Which requests have come: counted from the log, older ones less, and the same after a restart."""

from datetime import timedelta
from typing import Any

import pytest

from events.workload.fields.scheduling import MatchExpression, NodeSelectorTerm
from events.workload.needs import ExtendedAmount, Tolerated
from events.workload.spec import PodRequest
from services.scheduler.fold import SchedulingState
from services.scheduler.mix import HALVED_AFTER, MOST_EXPRESSIONS, MOST_KEPT, MOST_TOLD, Mix, shape_of
from tests.scheduler.world import BEGIN, World

ONE = shape_of(PodRequest(gpu_devices=1, gpu_milli=1000))
HALF = shape_of(PodRequest(gpu_devices=1, gpu_milli=500))


def weights(mix: Mix) -> dict[Any, Any]:
    return {each.shape: pytest.approx(each.weight) for each in mix.told()}


def test_what_came_a_half_life_ago_counts_half_and_the_newest_one_each():
    mix = Mix()
    mix.add(ONE, 8, BEGIN)
    mix.add(HALF, 3, BEGIN + HALVED_AFTER)
    assert weights(mix) == {ONE: 4.0, HALF: 3.0}
    assert [each.shape for each in mix.told()] == [ONE, HALF]


@pytest.mark.parametrize("late", [timedelta(days=7 * 65), timedelta(days=7 * 3_000), timedelta(days=365 * 7_000)])
def test_after_years_only_the_newest_count_and_a_clock_that_jumps_breaks_nothing(late: timedelta):
    mix = Mix()
    mix.add(ONE, 1_000, BEGIN)
    mix.add(HALF, 2, BEGIN + late)
    mix.add(HALF, 2, BEGIN)
    told = mix.told()
    assert told[0].shape == HALF
    assert told[0].weight == pytest.approx(2.0)
    assert sum(each.weight for each in told[1:]) < 1e-9


def test_no_more_shapes_are_kept_or_told_than_their_bounds_and_the_most_frequent_stay():
    mix = Mix()
    mix.add(ONE, 5, BEGIN)
    for n in range(3 * MOST_KEPT):
        mix.add(shape_of(PodRequest(gpu_devices=1, gpu_milli=1 + n)), 1, BEGIN)
    assert mix.told()[0] == (ONE, 5.0)
    assert len(mix.told()) == MOST_TOLD
    assert len(mix.stored()) < 100 * 2 * MOST_KEPT


def test_what_does_not_matter_for_room_makes_no_other_shape():
    plain = PodRequest(cpu_milli=1, gpu_devices=1, gpu_milli=1000)
    long = NodeSelectorTerm(match_expressions=(MatchExpression(key="a", operator="Exists"),) * (MOST_EXPRESSIONS + 1))
    others = PodRequest(
        cpu_milli=1,
        gpu_devices=1,
        gpu_milli=1000,
        extended=(ExtendedAmount(resource="rdma/hca", amount=1),),
        tolerated=(Tolerated(key="a"),),
        node_terms=(long,),
    )
    assert shape_of(others) == shape_of(plain)


def test_pods_without_gpus_are_not_counted():
    mix = Mix()
    mix.add(shape_of(PodRequest(cpu_milli=4_000)), 100, BEGIN)
    assert mix.told() == ()


@pytest.mark.parametrize("stored", [b"", b"\xc1", b"\x93\x01\x02\x03"])
def test_what_was_kept_and_cannot_be_read_is_counted_anew(stored: bytes):
    mix = Mix.restored(stored)
    assert mix.told() == ()
    mix.add(ONE, 1, BEGIN)
    assert Mix.restored(mix.stored()).told() == mix.told()


def test_what_came_and_has_ended_still_counts_also_after_a_restart():
    world = World()
    world.cluster()
    world.project()
    world.node("a", gpu_count=8)
    key = world.submit("w", gpu_devices_request=2, completions=5, parallelism=3)
    world.submit("without")
    for index in range(3):
        world.settle()
        world.fact(key, "running", index=index)
        world.fact(key, "succeeded", index=index)
    [told] = world.fold.mix.told()
    assert (told.shape.request.gpu_devices, told.shape.cluster_id) == (2, world.cluster_id)
    assert told.weight == pytest.approx(3.0), "as many as live at the same time"
    restored = SchedulingState()
    chains = {name: dict(chains) for name, chains in world.fold.chains.items()}
    restored.restore(world.fold.seq, chains, beside=world.fold.beside())
    assert restored.snapshot(world.now).mix == world.fold.snapshot(world.now).mix == (told,)
