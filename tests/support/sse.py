"""Server-sent events as a browser understands them, for tests."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import msgspec


class Message(NamedTuple):
    """One that is dispatched."""

    name: str
    """`message` where the stream gave none."""
    id: str
    """What Last-Event-ID is after it."""
    data: Any

    @property
    def event_id(self) -> str:
        return self.data["id"]


class Parser:
    """Line by line, as the standard has it: what has an id and no data only moves the id."""

    def __init__(self, last_id: str = "") -> None:
        self.last_id = last_id
        self.comments = 0
        self.retry = 0
        self._name, self._data = "", list[str]()

    def feed(self, line: str) -> Message | None:
        if line:
            self._field(line)
            return None
        name, data = self._name, self._data
        self._name, self._data = "", []
        if not data:
            return None
        return Message(name or "message", self.last_id, msgspec.json.decode("\n".join(data)))

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "":
                self.comments += 1
            case "id":
                self.last_id = value
            case "event":
                self._name = value
            case "data":
                self._data.append(value)
            case "retry":
                self.retry = int(value)
            case _:
                pass

    def messages(self, lines: Iterator[str]) -> Iterator[Message]:
        for line in lines:
            if (message := self.feed(line)) is not None:
                yield message

    async def amessages(self, lines: AsyncIterator[str]) -> AsyncIterator[Message]:
        async for line in lines:
            if (message := self.feed(line)) is not None:
                yield message
