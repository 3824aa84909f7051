"""Replicas of inferences: the least busy one answers, requests wait for the first one, and what is asked of all is told
to the autoscaler. Of other workloads each pod answers in its turn.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Gauge

from events.load import InferenceLoad, LoadReport
from services.proxy.forward import ClientGoneError, UnreachableError
from services.proxy.replicas import Gone, NoReplicaError, Replicas
from services.proxy.routes import Route, Routes, Target

MOST_REPORTED: Final = 1_000
"""Inferences in one report: it fits a message. Several are sent of more."""
FIRST_LOOK_SECONDS: Final = 0.02
LONGEST_LOOK_SECONDS: Final = 1.0
"""Between two looks at a replica that takes no connections yet."""
_MILLIS: Final = 1_000

_HELD: Final = Gauge("muster_proxy_held", "Requests that wait for a replica")


@dataclass(slots=True)
class _Inference:
    """What is asked of one, here."""

    under_way: dict[Target, int] = field(default_factory=dict[Target, int])
    up: set[Target] = field(default_factory=set[Target])
    """Those that take connections. A process that runs may still be loading its model."""
    looking: dict[Target, asyncio.Task[None]] = field(default_factory=dict[Target, asyncio.Task[None]])
    """At those that do not take connections yet."""
    held: int = 0
    arrived: int = 0
    """Since it was last reported; likewise below."""
    answered: int = 0
    milliseconds: float = 0.0

    @property
    def in_flight(self) -> int:
        return sum(self.under_way.values())


type Takes = Callable[[Target], Awaitable[bool]]


class Holding:
    """Chooses pods. Belongs to one event loop.

    Args:
        others: chooses those of workloads that are no inference.
        takes: whether a pod takes a connection now.
        most: requests that one inference works on at once.
        most_held: requests that wait for one inference at once, at most: they hold connections.
        hold_seconds: for which each waits, at most.
        on_held: called where one begins to wait.
    """

    def __init__(
        self,
        routes: Routes,
        others: Replicas,
        *,
        takes: Takes,
        most: int,
        most_held: int,
        hold_seconds: float,
        on_held: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._routes = routes
        self._others = others
        self._takes = takes
        self._most = most
        self._most_held = most_held
        self._hold_seconds = hold_seconds
        self._on_held = on_held
        self._clock = clock
        self._inferences: dict[str, _Inference] = {}
        """By workload id."""
        self._moved = asyncio.Event()
        self._reported_at = clock()

    def one(self, route: Route, gone: Gone | None = None) -> contextlib.AbstractAsyncContextManager[Target]:
        """As `Replicas.one`."""
        return self._serving(route, gone) if route.serves else self._others.one(route, gone)

    def moved(self) -> None:
        """What the routes know has changed: whoever waits looks again."""
        self._moved.set()
        self._moved = asyncio.Event()

    def reports(self, inferences: Collection[str]) -> list[LoadReport]:
        """What was asked of each of these since the last time, also where that is nothing."""
        now = self._clock()
        seconds = min(max(now - self._reported_at, 0.001), 3600.0)
        self._reported_at = now
        told = [self._told(id_) for id_ in inferences]
        # What has gone is told no more; what is still under way is forgotten with its end.
        self._inferences = {
            id_: found
            for id_, found in self._inferences.items()
            if found.held or found.under_way or found.looking or id_ in inferences
        }
        return [
            LoadReport(seconds=seconds, loads=tuple(told[start : start + MOST_REPORTED]))
            for start in range(0, len(told), MOST_REPORTED)
        ]

    def _told(self, id_: str) -> InferenceLoad:
        found = self._inferences.get(id_)
        if found is None:
            return InferenceLoad(workload_id=id_)
        load = InferenceLoad(
            workload_id=id_,
            arrived=found.arrived,
            answered=found.answered,
            milliseconds=round(found.milliseconds),
            in_flight=found.in_flight,
            held=found.held,
        )
        found.arrived, found.answered, found.milliseconds = 0, 0, 0.0
        return load

    @contextlib.asynccontextmanager
    async def _serving(self, route: Route, gone: Gone | None) -> AsyncGenerator[Target]:
        found = self._inferences.setdefault(route.workload_id, _Inference())
        found.arrived += 1
        targets = self._ready(route, found) or await self._hold(route, found, gone)
        if found.in_flight >= self._most:
            raise NoReplicaError(f"{self._most} requests to workload {route.workload_name} are under way; try again")
        target = min(targets, key=lambda one: found.under_way.get(one, 0))
        found.under_way[target] = found.under_way.get(target, 0) + 1
        begun = self._clock()
        try:
            yield target
            found.answered += 1
            found.milliseconds += max(self._clock() - begun, 0.0) * _MILLIS
        except UnreachableError:
            found.up.discard(target)
            found.arrived = max(found.arrived - 1, 0)  # it comes again, for another one
            raise
        finally:
            found.under_way[target] -= 1
            if not found.under_way[target]:
                del found.under_way[target]

    def _ready(self, route: Route, found: _Inference) -> list[Target]:
        """Those that take connections; the others are looked at until they do."""
        targets = self._routes.targets(route)
        found.up.intersection_update(targets)
        for target in targets:
            if target not in found.up and target not in found.looking:
                found.looking[target] = asyncio.create_task(self._look(route, found, target), name="proxy look")
        return [target for target in targets if target in found.up]

    async def _look(self, route: Route, found: _Inference, target: Target) -> None:
        pause = FIRST_LOOK_SECONDS
        try:
            while target in self._routes.targets(route):
                if await self._takes(target):
                    found.up.add(target)
                    self.moved()
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_LOOK_SECONDS)
        finally:
            del found.looking[target]

    async def close(self) -> None:
        """Nothing is looked at any more."""
        tasks = [task for found in self._inferences.values() for task in found.looking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _hold(self, route: Route, found: _Inference, gone: Gone | None) -> list[Target]:
        """Until a replica answers. Raises NoReplicaError, ClientGoneError."""
        if not self._routes.may_come(route):
            raise NoReplicaError(f"workload {route.workload_name} {self._routes.how_it_is(route)}")
        if found.held >= self._most_held:
            raise NoReplicaError(f"{found.held} requests wait for a replica of {route.workload_name}; try again")
        found.held += 1
        _HELD.inc()
        self._on_held()
        going = None if gone is None else asyncio.ensure_future(gone())
        try:
            async with asyncio.timeout(self._hold_seconds) as waiting:
                if going is not None:
                    # Who went takes no place, counts as no load, and has nothing worked on.
                    going.add_done_callback(lambda _: None if waiting.when() is None else waiting.reschedule(0))
                while not (targets := self._ready(route, found)):
                    if not self._routes.may_come(route):
                        raise NoReplicaError(f"workload {route.workload_name} {self._routes.how_it_is(route)}")
                    await self._moved.wait()
                waiting.reschedule(None)
                return targets
        except TimeoutError:
            if going is not None and going.done():
                raise ClientGoneError from None
            told = self._routes.how_it_is(route)
            message = f"no replica of {route.workload_name} answered within {self._hold_seconds:g} s: it {told}"
            raise NoReplicaError(message) from None
        finally:
            found.held -= 1
            _HELD.dec()
            if going is not None:
                going.cancel()
                await asyncio.gather(going, return_exceptions=True)
