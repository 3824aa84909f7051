"""Server-sent events, as the stream of public events sends them. No I/O."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from muster.cli.values import Json, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One block of the stream."""

    name: str
    """Empty for a public event."""
    id: str
    """Where the stream goes on behind it."""
    data: Row | None
    """None where it only says where the stream is, and that it lives."""


def messages(lines: Iterable[str], last_id: str = "") -> Iterator[Message]:
    """Blocks, each as soon as it is whole; what is cut off is none."""
    name, data = "", list[str]()
    for line in lines:
        if line.rstrip("\r"):
            field, _, value = line.rstrip("\r").partition(":")
            value = value.removeprefix(" ")
            if field == "id":
                last_id = value
            elif field == "event":
                name = value
            elif field == "data":
                data.append(value)
            continue
        read: Json = json.loads("\n".join(data)) if data else None
        yield Message(name=name, id=last_id, data=read if isinstance(read, dict) else None)
        name, data = "", []
