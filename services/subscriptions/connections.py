"""Who is connected as a subscriber, on every server, and how one is cut off."""

import asyncio
import math
from collections import Counter
from collections.abc import Container
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client

from services.runtime.nats.declared import SERVER_CONNECTIONS
from services.runtime.nats.permissions import SERVER_KICK
from services.runtime.nats.requests import Requests, UnansweredError
from services.runtime.nats.streams import ask_servers
from services.subscriptions.admit import ACCOUNT

PAGE: Final = 1_000
"""Connections of one answer of a server: some 600 bytes each."""
KICK_SECONDS: Final = 2.0
MOST_PER_SECOND: Final = 5_000
"""Messages that the connections of one subscription may send, on all servers. NATS limits no rate, and remembers for a
minute where the answer to each pull goes, as long as the connection that asked is open."""
MEASURED_SECONDS: Final = 5.0
"""For so long it may send more."""

log = structlog.get_logger(__name__)


class Connection(msgspec.Struct, frozen=True):
    server_id: str
    number: int
    """The server's own, never used again."""


class _Server(msgspec.Struct, frozen=True):
    id: str


class _Connected(msgspec.Struct, frozen=True):
    cid: int
    authorized_user: str = ""
    in_msgs: int = 0


class _Data(msgspec.Struct, frozen=True):
    connections: list[_Connected] = []


class _Report(msgspec.Struct, frozen=True):
    server: _Server
    data: _Data = msgspec.field(default_factory=_Data)


class Connections:
    """By subscription. `look` learns what others let in, and forgets what is gone."""

    def __init__(self, nc: Client, requests: Requests) -> None:
        self._nc = nc
        self._requests = requests
        self._known: dict[str, set[Connection]] = {}
        self._since_look: dict[str, set[Connection]] = {}
        self._sent: dict[Connection, int] = {}
        """Messages, by the last measurement."""
        self._measured_at = -math.inf

    def admitted(self, subscription_id: str, connection: Connection) -> None:
        """One is being let in."""
        for connections in (self._known, self._since_look):
            connections.setdefault(subscription_id, set()).add(connection)

    def count(self, subscription_id: str) -> int:
        return len(self._known.get(subscription_id, ()))

    async def look(self) -> None:
        """Ask all servers."""
        self._since_look = {}
        found: dict[str, set[Connection]] = {}
        connected = await self._connected()
        for connection, subscription_id in connected:
            found.setdefault(subscription_id, set()).add(connection)
        for subscription_id, connections in self._since_look.items():
            found.setdefault(subscription_id, set()).update(connections)
        self._known = found
        for subscription_id in self._measure(connected):
            log.warning("subscriber_sends_too_much", subscription_id=subscription_id, most_per_second=MOST_PER_SECOND)
            await self.cut_off(subscription_id)

    def _measure(self, connected: dict[tuple[Connection, str], int]) -> list[str]:
        """Subscriptions that sent more than they may since the last measurement."""
        now = asyncio.get_running_loop().time()
        seconds = now - self._measured_at
        if seconds < MEASURED_SECONDS:
            return []
        sent = Counter[str]()
        for (connection, subscription_id), messages in connected.items():
            sent[subscription_id] += messages - self._sent.get(connection, 0)
        self._sent = {connection: messages for (connection, _), messages in connected.items()}
        self._measured_at = now
        return [id_ for id_, messages in sent.items() if messages > MOST_PER_SECOND * seconds]

    async def cut_off_others(self, subscriptions: Container[str]) -> int:
        """End all connections that are of none of these; how many those are."""
        gone = [id_ for id_ in self._known if id_ not in subscriptions]
        return sum([await self.cut_off(id_) for id_ in gone])

    async def cut_off(self, subscription_id: str) -> int:
        """End what is known of it; the next look tells whether that is all."""
        connections = self._known.pop(subscription_id, set())
        for connection in connections:
            subject = SERVER_KICK.replace("*", connection.server_id)
            try:
                await self._requests.ask(subject, msgspec.json.encode({"cid": connection.number}), seconds=KICK_SECONDS)
            except UnansweredError as error:
                log.warning("not_cut_off", subscription_id=subscription_id, error=str(error))
        return len(connections)

    async def _connected(self) -> dict[tuple[Connection, str], int]:
        """All there are, with the subscription that each is of, and how many messages each has sent."""
        found: dict[tuple[Connection, str], int] = {}
        offset = 0
        while True:
            question = msgspec.json.encode({"acc": ACCOUNT, "auth": True, "limit": PAGE, "offset": offset})
            answers = await ask_servers(self._nc, SERVER_CONNECTIONS, question, seconds=KICK_SECONDS)
            reports = [msgspec.json.decode(answer, type=_Report) for answer in answers]
            found |= {
                (Connection(report.server.id, connected.cid), connected.authorized_user): connected.in_msgs
                for report in reports
                for connected in report.data.connections
            }
            if all(len(report.data.connections) < PAGE for report in reports):
                return found
            offset += PAGE
