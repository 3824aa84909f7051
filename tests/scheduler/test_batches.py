"""From a plan to atomic batches: closed, of bounded size, and without what the world has refused."""

from typing import Any
from uuid import uuid4

import pytest

from events.node import Taint
from events.workload.commands import SuspendWorkload
from services.scheduler.batches import batch_drafts, batches, decided_ahead
from tests.scheduler.world import World


def world_with(nodes: int, **facts: Any) -> World:
    world = World()
    world.cluster()
    world.project()
    for n in range(nodes):
        world.node(f"n{n}", **facts)
    return world


def test_every_batch_holds_the_nodes_of_its_pods_and_no_aggregate_twice():
    world = world_with(4, gpu_count=2)
    for n in range(6):
        world.submit(f"w{n}", gpu_devices_request=1)
    bound, released = batches(world.plan(), max_messages=4)
    assert not released
    assert len(bound) > 1
    for batch in bound:
        assert batch.messages <= 4
        placed = {(key, p.node_key) for key, placements in batch.placements.items() for p in placements}
        held = {(r.workload_key, key) for key, reservations in batch.reservations.items() for r in reservations}
        assert placed == held
    assert sum(len(p) for batch in bound for p in batch.placements.values()) == 6


def test_a_workload_of_many_pods_is_bound_over_several_batches():
    world = world_with(12, max_pods=1)
    key = world.submit("w", completions=12, parallelism=12)
    world.cycle(max_messages=4)
    assert len(world.places(key)) == 12
    assert not world.check().violations


def test_releases_go_with_the_first_reservation_of_their_node_and_others_alone():
    world = world_with(2, gpu_count=1)
    first, second = (world.submit(name, gpu_devices_request=1) for name in ("first", "second"))
    world.settle()
    world.fact(first, "succeeded")
    world.fact(second, "succeeded")
    world.submit("third", gpu_devices_request=1)
    bound, released = batches(world.plan(), max_messages=300)
    assert [list(batch.releases) for batch in bound] == [list(batch.reservations) for batch in bound]
    assert len(released) == 1


def test_what_moved_on_since_the_plan_is_left_out_and_the_rest_is_committed():
    world = world_with(2, gpu_count=1)
    first, second = (world.submit(name, gpu_devices_request=1) for name in ("first", "second"))
    planned = world.plan()
    world.command(first, SuspendWorkload)
    (batch,), _ = batches(planned, max_messages=300)
    drafts, refused = batch_drafts(world.heads(), batch, str(uuid4()), world.now)
    assert {key: refusal.code for key, refusal in refused.items()} == {first: "stale_placement"}
    world.append(*drafts)
    assert not world.places(first)
    assert world.places(second)
    assert not world.check().violations


def test_a_node_that_closed_since_the_plan_takes_its_workloads_out_of_the_batch():
    world = world_with(2, gpu_count=1)
    first, second = (world.submit(name, gpu_devices_request=1) for name in ("first", "second"))
    planned = world.plan()
    closed = planned.bindings[0].placement.node_name
    world.node(closed, gpu_count=1, unschedulable=True)
    (batch,), _ = batches(planned, max_messages=300)
    drafts, refused = batch_drafts(world.heads(), batch, str(uuid4()), world.now)
    assert {refusal.code for refusal in refused.values()} == {"node_not_schedulable"}
    world.append(*drafts)
    assert sorted(map(bool, (world.places(first), world.places(second)))) == [False, True]
    assert not world.check().violations


def test_what_was_decided_ahead_counts_only_while_the_workload_is_the_same():
    """Given a batch whose workloads were decided while the one before was being stored, when one of them was suspended
    meanwhile, then that one is decided again, and refused; the others are as they would be without that.
    """
    world = world_with(2, gpu_count=1)
    first, second = (world.submit(name, gpu_devices_request=1) for name in ("first", "second"))
    (batch,), _ = batches(world.plan(), max_messages=300)
    ahead = {key: decided_ahead(world.heads(), batch, key, "id", world.now) for key in batch.placements}
    alike, _ = batch_drafts(world.heads(), batch, "id", world.now, ahead)
    assert alike == batch_drafts(world.heads(), batch, "id", world.now)[0]
    world.command(first, SuspendWorkload)
    drafts, refused = batch_drafts(world.heads(), batch, "id", world.now, ahead)
    assert {key: refusal.code for key, refusal in refused.items()} == {first: "stale_placement"}
    assert drafts == batch_drafts(world.heads(), batch, "id", world.now)[0]
    world.append(*drafts)
    assert world.places(second)
    assert not world.check().violations


@pytest.mark.parametrize(
    "change",
    [{"labels": {"zone": "b"}}, {"taints": (Taint(key="away", value="", effect="NoSchedule"),)}, {"pool": "other"}],
    ids=["labels", "taints", "pool"],
)
def test_a_node_of_which_the_plan_knew_something_else_takes_its_workloads_out_of_the_batch(change: dict[str, Any]):
    """What pods ask of labels and taints is looked at by the plan alone."""
    world = world_with(2, gpu_count=1, labels={"zone": "a"})
    first, second = (world.submit(name, gpu_devices_request=1) for name in ("first", "second"))
    planned = world.plan()
    facts: dict[str, Any] = {"gpu_count": 1, "labels": {"zone": "a"}} | change
    world.node(planned.bindings[0].placement.node_name, **facts)
    (batch,), _ = batches(planned, max_messages=300)
    drafts, refused = batch_drafts(world.heads(), batch, str(uuid4()), world.now)
    assert {refusal.code for refusal in refused.values()} == {"stale_placement"}
    world.append(*drafts)
    assert sorted(map(bool, (world.places(first), world.places(second)))) == [False, True]
    assert not world.check().violations
