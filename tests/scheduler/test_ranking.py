"""What is kept of nodes and their order is what looking at all of them anew says."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from events.node import Node, NodeFacts, NodeRegistered, Taint, evolve
from events.workload.pod import DeviceShare
from events.workload.spec import PodRequest
from services.scheduler.candidates import Candidates, packed, worth_of
from services.scheduler.columns import Columns
from services.scheduler.mix import Weighed, shape_of
from services.scheduler.policy.registry import POLICY
from services.scheduler.policy.rules import Filter
from services.scheduler.ranking import NO_ROOM, UNKNOWN, Ranking
from services.scheduler.room import Room, View
from services.scheduler.snapshot import Integers, NodeTable
from tests.support.draws import draws

keys = st.tuples(st.sampled_from([0, 1, 2, NO_ROOM]), st.integers(0, 2), st.integers(0, 1))
acts = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 9), keys, st.booleans()),
        st.tuples(st.just("pop"), st.just(0), st.just((0, 0, 0)), st.just(False)),
    ),
    max_size=60,
)


@settings(max_examples=draws(300), deadline=None)
@given(st.lists(keys, max_size=10), acts, st.integers(0, 2))
def test_the_node_that_goes_first_is_the_one_with_the_least_key(first: list[Any], history: list[Any], columns: int):
    now: dict[int, tuple[int, ...]] = {index: key[: columns + 1] for index, key in enumerate(first)}
    there = {index for index, key in now.items() if key[0] != NO_ROOM}

    def rest(indexes: Integers) -> list[Integers]:
        return [np.array([now[index][1 + n] for index in indexes.tolist()]) for n in range(columns)]

    ranking = Ranking(np.array([key[0] for key in first], dtype=np.int64), rest, columns)
    for word, index, key, known in history:
        if word == "put" and index < len(first):
            now[index] = key[: columns + 1]
            ranking.put(index, now[index] if known else now[index][:1])
            there.discard(index)
            there |= {index} if key[0] != NO_ROOM else set()
        elif word == "pop":
            expected = min(((*now[i], i) for i in there), default=None)
            least = ranking.least()
            assert expected is None or least <= expected
            found = ranking.pop()
            assert (found is None) == (expected is None)
            if found is not None and expected is not None:
                assert found[-1] == expected[-1]
                assert UNKNOWN in found or found == expected
                there.discard(found[-1])


GPU_SHARES = [1, 250, 500, 1000]
requests = st.builds(
    lambda devices, milli, memory, cpu: PodRequest(
        cpu_milli=cpu,
        gpu_devices=devices,
        gpu_milli=milli if devices else 0,
        gpu_memory_bytes=memory if devices and milli < 1000 else 0,
    ),
    st.integers(0, 3),
    st.sampled_from(GPU_SHARES),
    st.sampled_from([0, 0, 5]),
    st.sampled_from([0, 500, 1_000]),
)
facts = st.builds(
    lambda gpus, memory, cpu, foreign, taint: NodeFacts(
        cpu_milli=cpu,
        memory_bytes=0,
        gpu_count=gpus,
        gpu_memory_bytes=memory,
        foreign_gpus=foreign,
        max_pods=9,
        taints=(Taint(key="t"),) if taint else (),
    ),
    st.sampled_from([0, 2, 4, 4]),
    st.sampled_from([8, 16]),
    st.sampled_from([2_000, 4_000]),
    st.sampled_from([0, 0, 1]),
    st.sampled_from([False, False, False, True]),
)
deeds = st.lists(
    st.tuples(
        st.sampled_from(["fill", "fill", "fill", "fill within", "best among", "take", "mark", "roll back"]),
        st.integers(0, 2),
        st.integers(1, 4),
        st.integers(0, 4_000),
    ),
    max_size=25,
)


def table_of(nodes: list[NodeFacts]) -> NodeTable:
    columns = Columns()
    for row, each in enumerate(nodes):
        node = evolve(Node(), NodeRegistered(cluster_id="c", name=f"n{row}", facts=each))
        columns.set(f"n{row}", node, reachable=True)
    return columns.frozen()


def plainly_best(room: Room, request: PodRequest, most_gpu_milli: int | None, within: list[bool] | None) -> int | None:
    """Row of the best node, with every filter and every score asked of every node."""
    view = View(room, request, np.arange(len(room.cpu)))
    open_ = np.ones(len(room.cpu), dtype=np.bool_) if within is None else np.array(within)
    for each in POLICY.filters:
        if each.asks(request):
            for check in (each.barred, each.closed, each.full):
                open_ &= True if check is None else ~check.refuses(view)
    if most_gpu_milli is not None:
        open_ &= request.gpu_devices * view.share_milli <= most_gpu_milli
    values = [np.clip(score.value(view), 0, (1 << score.bits) - 1).tolist() for score in POLICY.scores]
    return min(np.flatnonzero(open_).tolist(), key=lambda row: (*(column[row] for column in values), row), default=None)


class Both:
    """A room where pods are put many at a time, and one where they are put one by one on the plainly best node."""

    def __init__(self, table: NodeTable, wanted: list[PodRequest], filters: Any = POLICY.filters) -> None:
        mix = tuple(Weighed(shape_of(request), 3.0) for request in wanted if request.gpu_devices)

        def worth(room: Room) -> Any:
            return worth_of(room, mix=mix, filters=POLICY.filters)

        self.room, self.plain = Room(table, worth), Room(table, worth)
        assert self.room.worth is not self.plain.worth, "each is by what was free when it was first asked for"
        self.wanted = wanted
        pool = table.pool_numbers["c", "default"]
        self.candidates = [Candidates(self.room, each, pool, filters, packed(POLICY.scores)) for each in wanted]

    def fill(self, number: int, most: int, milli: int | None) -> None:
        candidates, request = self.candidates[number % len(self.wanted)], self.wanted[number % len(self.wanted)]
        found = candidates.fill(most, most_gpu_milli=milli)
        if found is None:
            assert plainly_best(self.plain, request, milli, None) is None
            return
        index, given = found
        assert 1 <= len(given) <= most
        row = int(candidates.rows[index])
        for devices in given:
            assert plainly_best(self.plain, request, milli, None) == row
            assert devices == self.devices(request, row)
            self.plain.take(row, request, devices)
            milli = None if milli is None else milli - sum(share.milli for share in devices)

    def check_fitting(self, number: int, most: int) -> None:
        """What was counted before and followed is what is counted anew."""
        request, candidates = self.wanted[number % len(self.wanted)], self.candidates[number % len(self.wanted)]
        pool = self.room.nodes.pool_numbers["c", "default"]
        anew = Candidates(self.room, request, pool, POLICY.filters, packed(POLICY.scores))
        count, certain = anew.fitting_in_all(most, enough=9), candidates.fitting_in_all(most, enough=3)
        assert certain == count or 3 <= certain <= count
        assert candidates.fitting_in_all(most, enough=99) == count
        assert candidates.fitting().tolist() == anew.fitting().tolist()
        assert candidates.least_gpu_milli() == anew.least_gpu_milli()

    def devices(self, request: PodRequest, row: int) -> tuple[DeviceShare, ...]:
        view = View(self.plain, request, np.array([row]))
        chosen, share = view.chosen[0].tolist(), int(view.share_milli[0])
        return tuple(DeviceShare(device=device, milli=share) for device, taken in enumerate(chosen) if taken)


def content(room: Room) -> list[object]:
    return [column.tolist() for column in (room.cpu, room.memory, room.pods, room.devices, room.free_devices)]


def not_by_room() -> tuple[Filter, ...]:
    """The filters, of which one says that it looks at more than the room of a node."""
    return tuple(replace(each, by_room=each.name != "cpu") for each in POLICY.filters)


@settings(max_examples=draws(150), deadline=None)
@given(st.lists(facts, min_size=1, max_size=6), st.lists(requests, min_size=1, max_size=3), deeds, st.booleans())
def test_pods_that_are_put_many_at_a_time_go_where_they_would_go_one_by_one(
    nodes: list[NodeFacts], wanted: list[PodRequest], history: list[Any], by_room: bool
):
    both = Both(table_of(nodes), wanted, POLICY.filters if by_room else not_by_room())
    marks: list[tuple[int, int]] = []
    for word, number, most, milli in history:
        request, candidates = wanted[number % len(wanted)], both.candidates[number % len(wanted)]
        match word:
            case "fill":
                both.fill(number, most, None)
            case "fill within":
                both.fill(number, most, milli)
            case "best among":
                among = [bool(milli >> row & 1) for row in range(len(nodes))]
                index = candidates.best(within=np.array(among)[candidates.rows])
                row = None if index is None else int(candidates.rows[index])
                assert row == plainly_best(both.plain, request, None, among)
            case "take":
                row = milli % len(nodes)
                for room in (both.room, both.plain):
                    room.take(row, PodRequest(cpu_milli=500), ())
            case "mark":
                marks.append((both.room.checkpoint(), both.plain.checkpoint()))
            case _ if marks:
                mark, plain_mark = marks.pop()
                both.room.rollback(mark)
                both.plain.rollback(plain_mark)
            case _:
                pass
        assert content(both.room) == content(both.plain)
        both.check_fitting(number, most)
    for number in range(len(wanted)):
        both.fill(number, 1, None)
