"""What is wanted of the clusters that a process serves: one reader of WANTED for all of them, told apart.

First the whole picture, then what changes. WANTED may be wiped, its server restarted, the connection lost: each time
that is said, and a whole picture comes again.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

import msgspec

from services.runtime.log.latest import Latest

LOOK_SECONDS: Final = 1.0
"""How late it is said that nothing more is known, where nothing else comes."""


class Whole(msgspec.Struct, frozen=True):
    """Every subject's newest message; what is not in it is not wanted to be anything."""

    values: dict[str, bytes]


class Changed(msgspec.Struct, frozen=True):
    values: dict[str, bytes]


class Lost(msgspec.Struct, frozen=True):
    """Nothing more is known until the next whole picture."""


type News = Whole | Changed | Lost


async def follow(reader: Latest) -> AsyncGenerator[News]:
    """For ever. Raises what ended the reader, such as a connection that was closed for good."""
    reader.start()
    picture: dict[str, bytes] | None = {}
    seen_round, known = 0, False
    try:
        while True:
            said = {message.subject: message.data for message in await reader.next(LOOK_SECONDS)}
            if known and (reader.round != seen_round or not reader.current):
                picture, known = {}, False
                yield Lost()
            if reader.round != seen_round:
                picture, seen_round = {}, reader.round
            if picture is None:
                if said:
                    yield Changed(said)
                continue
            picture.update(said)
            if reader.current:
                yield Whole(picture)
                picture, known = None, True
    finally:
        await reader.close()


class Wanted:
    """News of one cluster that its agent has not taken yet, as one: a slow agent costs only the newest values."""

    def __init__(self) -> None:
        self._waiting: News | None = None
        self._there = asyncio.Event()
        self.begun = False
        """Whether a whole picture was put here ever."""

    def put(self, news: News) -> None:
        """`values` by pod key."""
        match news, self._waiting:
            case Changed(values=values), Whole(values=before):
                self._waiting = Whole({**before, **values})
            case Changed(values=values), Changed(values=before):
                self._waiting = Changed({**before, **values})
            case _:
                self._waiting = news
        self.begun = self.begun or isinstance(news, Whole)
        self._there.set()

    async def news(self) -> AsyncIterator[News]:
        while True:
            await self._there.wait()
            self._there.clear()
            taken, self._waiting = self._waiting, None
            if taken is not None:
                yield taken


def by_cluster(values: dict[str, bytes]) -> tuple[list[bytes], dict[str, dict[str, bytes]]]:
    """The clusters' own messages, and by cluster id and pod key what is wanted of its pods."""
    clusters: list[bytes] = []
    pods: dict[str, dict[str, bytes]] = {}
    for subject, data in values.items():
        match subject.split("."):
            case ["want", _, "cluster"]:
                clusters.append(data)
            case ["want", cluster_id, "pod", pod_key]:
                pods.setdefault(cluster_id, {})[pod_key] = data
            case _:
                pass
    return clusters, pods
