"""Which pod a request goes to, and how many go to one workload at once."""

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, Protocol

from services.proxy.routes import Route, Routes, Target

MOST_TURNS: Final = 10_000
"""Workloads of which it is remembered whose turn it is; of more, all begin anew."""


class NoReplicaError(Exception):
    """Nothing can answer now; the message says why, and when to ask again."""

    def __init__(self, message: str, *, again_seconds: int = 5) -> None:
        super().__init__(message)
        self.again_seconds = again_seconds


type Gone = Callable[[], Awaitable[object]]
"""Returns once who asks has gone."""


class Replicas(Protocol):
    """Chooses. Whoever wants to hold requests back, or to count them, does it here."""

    def one(self, route: Route, gone: Gone | None = None) -> contextlib.AbstractAsyncContextManager[Target]:
        """A pod that answers, for as long as the request goes on. Raises NoReplicaError, and ClientGoneError where who
        asks did not wait for one.
        """
        ...


class InTurn:
    """Each pod in its turn, among those that answer now.

    Args:
        most: requests to one workload at once.
    """

    def __init__(self, routes: Routes, *, most: int) -> None:
        self._routes = routes
        self._most = most
        self._under_way: Counter[str] = Counter()
        self._turn: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def one(self, route: Route, gone: Gone | None = None) -> AsyncGenerator[Target]:  # noqa: ARG002 (no wait)
        targets = self._routes.targets(route)
        if not targets:
            raise NoReplicaError(f"workload {route.workload_name} {self._routes.how_it_is(route)}")
        if self._under_way[route.workload_id] >= self._most:
            raise NoReplicaError(f"{self._most} requests to workload {route.workload_name} are under way; try again")
        if len(self._turn) >= MOST_TURNS and route.workload_id not in self._turn:
            self._turn.clear()
        turn = self._turn[route.workload_id]
        self._turn[route.workload_id] = (turn + 1) % len(targets)
        self._under_way[route.workload_id] += 1
        try:
            yield targets[turn % len(targets)]
        finally:
            self._under_way[route.workload_id] -= 1
            if not self._under_way[route.workload_id]:
                del self._under_way[route.workload_id]
