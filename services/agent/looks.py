"""Looks whether pods of a cluster could use the data sources that there are, and tells cluster_sync.

Everything that is found is told again at each round, so nothing that is lost stays so. What is wrong is told once it
was found twice, a round apart: who restarts a server marks nothing. Rounds come less often the longer they take.
"""

import asyncio
import random
from datetime import datetime
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

from events.cluster_protocol import MAX_ISSUE, Looked, Sources, SourcesRequest, SourceToLookAt
from events.subjects import recipes_subject
from services.agent.backends.interface import Backend, BackendError

ROUND_SECONDS: Final = 60.0
LONGEST_ROUND_SECONDS: Final = 900.0
"""Between two rounds."""
REST: Final = 4
"""A round that took a minute is followed by four without."""
MOST_PAGES: Final = 40
"""Of data sources, in one round."""
ANSWER_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 10.0
"""For one data source."""
AT_ONCE: Final = 8

type Key = tuple[str, datetime]
"""Of a data source: its id, and since when it is as it is."""

log = structlog.get_logger(__name__)


class Looks:
    """Of one cluster."""

    def __init__(self, nc: Client, cluster_id: str, backend: Backend, *, round_seconds: float = ROUND_SECONDS) -> None:
        self._nc = nc
        self._cluster_id = cluster_id
        self._backend = backend
        self._round_seconds = round_seconds
        self._asked: tuple[str, asyncio.Future[Sources]] | None = None
        """After which asset, and who waits for the answer."""
        self._wrong: set[Key] = set()
        """Where something was found in the last round."""
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        loop, pause = asyncio.get_running_loop(), self._round_seconds
        while True:
            await asyncio.sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311 (spreads load, protects nothing)
            if not self._nc.is_connected or self._backend.standby() or self._backend.problem():
                continue
            began = loop.time()
            await self._round()
            pause = min(max(self._round_seconds, REST * (loop.time() - began)), LONGEST_ROUND_SECONDS)

    def hear(self, said: Sources) -> None:
        """What cluster_sync answers."""
        if self._asked is not None and self._asked[0] == said.after and not self._asked[1].done():
            self._asked[1].set_result(said)

    async def _round(self) -> None:
        after, looked, wrong = "", tuple[Looked, ...](), set[Key]()
        for _ in range(MOST_PAGES):
            said = await self._ask(after, looked)
            if said is None:
                return
            found = await asyncio.gather(*(self._look(source, wrong) for source in said.sources))
            looked = tuple(one for one in found if one is not None)
            after = said.last
            if not after:
                break
        self._wrong = wrong

    async def _look(self, source: SourceToLookAt, wrong: set[Key]) -> Looked | None:
        """None where nothing is to be told yet. Adds to `wrong` what is so."""
        try:
            async with self._slots, asyncio.timeout(LOOK_SECONDS):
                issue = await self._backend.look(source)
        except (BackendError, TimeoutError):
            return None
        if issue:
            key = source.asset_id, source.spec_at
            wrong.add(key)
            if key not in self._wrong:
                return None
        return Looked(asset_id=source.asset_id, spec_at=source.spec_at, issue=issue[:MAX_ISSUE])

    async def _ask(self, after: str, looked: tuple[Looked, ...]) -> Sources | None:
        """None where nobody answers: what was found is told in the next round."""
        answer = asyncio.get_running_loop().create_future()
        self._asked = after, answer
        try:
            request = msgspec.json.encode(SourcesRequest(after=after, looked=looked))
            await self._nc.publish(recipes_subject(self._cluster_id), request)
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        except (TimeoutError, NatsError) as error:
            log.info("data_sources_not_told", cluster=self._cluster_id, reason=str(error) or type(error).__name__)
            return None
        finally:
            self._asked = None
