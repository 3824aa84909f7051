"""The keeper of `muster up` on a NATS server of a test's own."""

from collections.abc import Callable
from pathlib import Path

from development.servers import NatsServer
from muster.embedded.canary import Server, look_at, room_of
from muster.embedded.keeper import Down, Keeper


class Kept:
    """A keeper of the server, and what it did.

    Args:
        store: the folder whose disk the keeper watches.
        end: how the server is brought down: `kill` where it does not end by itself any more.
    """

    def __init__(self, server: NatsServer, store: Path, end: Callable[[], None]) -> None:
        self.said: list[str] = []
        self.restarts = 0
        self._server = server
        self._end = end
        place = Server(port=server.port, password=server.passwords["keeper"], store=store)
        self.look = Keeper(
            look=lambda room: look_at(place, room),
            room=lambda: room_of(store),
            store=store,
            restart=self._restart,
            say=self.said.append,
        ).once

    async def _restart(self, down: Down) -> None:
        self.restarts += 1
        self._end()
        down()
        self._server.start()
