"""What the free part of one GPU is worth, by the sizes of the shares that come. Pure.

Shares pair well or badly: 0.65 with 0.35 fills a GPU, with 0.2 it leaves a hole that nobody fills. The multisets of
sizes that fit one GPU are its patterns. The least number of GPUs that hold all the demand is a linear program over
them, and its duals say what a share of each size is worth in GPUs. What is free is then worth the best that fits into
it.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from events.workload.spec import WHOLE_GPU_MILLI
from services.scheduler.snapshot import Integers

MOST_SIZES: Final = 20
"""Those asked for most; the rest fit in somewhere."""
LEAST_MILLI: Final = 20
"""What is smaller counts as so much: it finds room anywhere."""
PARTS: Final = 128
"""Demand counts in so many parts of the whole: what hardly changes has the same answer, which is kept."""
WORTH_OF_A_GPU: Final = 10_000
"""In this unit it is told what is worth how much."""
_STEPS: Final = 300
"""Of the simplex algorithm; some 40 for twenty sizes. What it has found by then is a lower bound, and serves."""
_TINY: Final = 1e-9

type Floats = NDArray[np.float64]


def worth_of_rest(demand: Mapping[int, float]) -> Integers:
    """Worth of each free part of a GPU, from 0 to 1000 thousandths, in 1/10,000 of a GPU. It never falls.

    Args:
        demand: how many shares come of each size in thousandths, from 1 to 999.
    """
    counted: dict[int, float] = {}
    for milli, count in demand.items():
        size = max(milli, LEAST_MILLI)
        counted[size] = counted.get(size, 0.0) + count
    most = sorted(counted.items(), key=lambda each: (-each[1], each[0]))[:MOST_SIZES]
    total = sum(count for _, count in most)
    parts = ((size, round(PARTS * count / total)) for size, count in most) if total > 0 else ()
    return _worth_of_rest(tuple(sorted(((size, count) for size, count in parts if count), reverse=True)))


@lru_cache(maxsize=64)
def _worth_of_rest(demand: tuple[tuple[int, int], ...]) -> Integers:
    sizes = [size for size, _ in demand]
    best = _best(sizes, _duals(sizes, [count for _, count in demand]))
    worth = np.rint(best * WORTH_OF_A_GPU).astype(np.int64)
    worth.setflags(write=False)
    return worth


def _duals(sizes: list[int], demand: list[int]) -> Floats:
    """What one share of each size is worth, in GPUs, by column generation: patterns come in as prices ask for them."""
    count = len(sizes)
    if not count:
        return np.zeros(0)
    wanted = np.array(demand, dtype=np.float64) / sum(demand)
    # A little more of each, differently: else the algorithm could go round in circles.
    wanted += 1e-6 * np.arange(1, count + 1) / count
    basis = np.diag([float(WHOLE_GPU_MILLI // size) for size in sizes])
    costs, prices = np.ones(count), np.zeros(count)
    for _ in range(_STEPS):
        prices = np.linalg.solve(basis.T, costs)
        enters, cost = np.zeros(count), 0.0
        if prices.min() < -_TINY:
            enters[int(prices.argmin())] = -1.0  # more than is wanted
        else:
            prices = np.maximum(prices, 0.0)
            best = _best(sizes, prices)
            if best[WHOLE_GPU_MILLI] <= 1 + 1e-7:
                break
            enters, cost = _pattern(sizes, prices, best), 1.0
        amounts, falls = np.linalg.solve(basis, wanted), np.linalg.solve(basis, enters)
        steps = np.full(count, np.inf)
        np.divide(amounts, falls, out=steps, where=falls > _TINY)
        leaves = int(steps.argmin())
        basis[:, leaves], costs[leaves] = enters, cost
    prices = np.maximum(prices, 0.0)
    return prices / max(float(_best(sizes, prices)[WHOLE_GPU_MILLI]), 1.0)


def _best(sizes: list[int], prices: Floats) -> Floats:
    """For each free part of a GPU: the most that shares which fit into it are worth together."""
    best: NDArray[Any] = np.zeros(WHOLE_GPU_MILLI + 1)
    for size, price in zip(sizes, prices.tolist(), strict=True):
        if price > 0:
            # Row k of the table: k shares of this size, and what was found without them.
            rows = -(-len(best) // size)
            table = np.full(rows * size, -np.inf)
            table[: len(best)] = best
            worth = np.arange(rows)[:, None] * price
            table = np.maximum.accumulate(table.reshape(rows, size) - worth, axis=0) + worth
            best = table.ravel()[: WHOLE_GPU_MILLI + 1]
    return best


def _pattern(sizes: list[int], prices: Floats, best: Floats) -> Floats:
    """The shares that make up the most of a whole GPU."""
    pattern, left = np.zeros(len(sizes)), WHOLE_GPU_MILLI
    while best[left] > _TINY:
        fitting = (i for i, size in enumerate(sizes) if size <= left and prices[i] > 0)
        i = min(fitting, key=lambda i: best[left] - prices[i] - best[left - sizes[i]])
        pattern[i] += 1
        left -= sizes[i]
    return pattern
