"""Demand that comes in steps, and what each project holds of a pool once reclaim has settled, beside an ideal."""

import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from development.fairness.world import World
from events.ids import workload_key

MOST_CYCLES: Final = 30
STEPS: Final = 8


class Step(NamedTuple):
    """After one more workload, once nothing more happens."""

    error: float
    """What is held by others than it should be, as a part of the pool."""
    cycles: int
    """In which others were told to end."""
    below_quota: int
    """Projects that hold less than their quota although they want it."""


def ideal(total: int, quotas: Sequence[int], weights: Sequence[float], wanted: Sequence[int]) -> list[int]:
    """One GPU after the other, to who has the least beyond its quota for its weight."""
    got = [min(quota, want) for quota, want in zip(quotas, wanted, strict=True)]
    while sum(got) < min(total, sum(wanted)):
        hungry = [i for i, want in enumerate(wanted) if got[i] < want]
        got[min(hungry, key=lambda i: ((got[i] + 1 - quotas[i]) / weights[i], i))] += 1
    return got


def steps(*, nodes: int, seed: int) -> Iterator[Step]:
    """Six projects want more and more, in pods of one GPU."""
    chance, world = random.Random(seed), World()
    world.cluster()
    for number in range(nodes):
        world.node(f"n{number}", gpu_count=8, cpu_milli=96_000)
    total = 8 * nodes
    quotas = [chance.choice((0, total // 8, total // 16)) for _ in range(6)]
    weights = [chance.choice((1.0, 1.0, 2.0, 3.0)) for _ in quotas]
    both = enumerate(zip(quotas, weights, strict=True))
    projects = [world.project(f"p{n}", quota=1000 * quota, over_quota_weight=weight) for n, (quota, weight) in both]
    keys: list[list[str]] = [[] for _ in projects]
    wanted = [0 for _ in projects]
    for number in range(STEPS):
        world.now += timedelta(hours=1)
        who, pods = chance.randrange(len(projects)), chance.randrange(total // 8, total)
        world.submit(f"w{number}", project_id=projects[who], gpu_devices_request=1, parallelism=pods, completions=pods)
        keys[who].append(workload_key(projects[who], f"w{number}"))
        wanted[who] += pods
        cycles = _until_rest(world, [key for of in keys for key in of])
        held = [sum(_goes_on(world, key) for key in of) for of in keys]
        expected = ideal(total, quotas, weights, wanted)
        below = sum(has < min(quota, want) for has, quota, want in zip(held, quotas, wanted, strict=True))
        apart = sum(abs(has - want) for has, want in zip(held, expected, strict=True)) / 2
        yield Step(apart / total, cycles, below)
    assert not world.check().violations


def _goes_on(world: World, key: str) -> int:
    return sum(pod.phase != "Stopping" for pod in world.workload(key).pods.live.values())


def _until_rest(world: World, keys: Sequence[str]) -> int:
    evicting = 0
    for _ in range(MOST_CYCLES):
        planned = world.cycle()
        evicting += bool(planned.evictions)
        stopping = [
            (key, index)
            for key in keys
            for (_, index), pod in list(world.workload(key).pods.live.items())
            if pod.phase == "Stopping"
        ]
        for key, index in stopping:
            world.fact(key, "stopped", index=index)
        if planned.empty and not planned.put_off and not stopping:
            return evicting
    raise AssertionError("the scheduler does not come to rest")
