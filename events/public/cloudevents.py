"""Public events as CloudEvents 1.0: in NATS' binary mode as they stand in FEED, and as one JSON object. Pure.

Binary mode makes every attribute a header `ce-NAME`, percent-encoded. Beside the attributes that CloudEvents has, there
are `sequence` (one of its documented extensions) and `previous`: the places of an event, and of its project's event
before it, in the log. Who gets an event whose `previous` is not the last that they got has missed some.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from events.public.shape import PublicEvent

SPEC_VERSION: Final = "1.0"
SHAPE_VERSION: Final = "v1"
"""Of every shape so far. A shape that must become another one is another type beside the first."""
CONTENT_TYPE: Final = "application/json"
PREFIX: Final = "ce-"
_SEQUENCE_DIGITS: Final = 16
_NUMBER_DIGITS: Final = 6
_UNENCODED: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""All others are percent-encoded in a header."""
_ENCODED: Final = re.compile(f"[^{re.escape(_UNENCODED)}]")

_ENCODER: Final = msgspec.json.Encoder()


class Place(NamedTuple):
    """Where an event stands among all public events."""

    seq: int
    """Sequence of its commit in the log."""
    number: int
    """Among the events of that commit, from 0."""

    def text(self) -> str:
        """As `sequence` and `previous` hold it: its order as text is that of the places."""
        return f"{self.seq:0{_SEQUENCE_DIGITS}d}.{self.number:0{_NUMBER_DIGITS}d}"


def place_of(text: str) -> Place:
    """Raises ValueError where it is none."""
    seq, dot, number = text.partition(".")
    if not (dot and seq.isdecimal() and number.isdecimal()):
        raise ValueError(f"not a place among public events: {text[:80]!r}")
    return Place(int(seq), int(number))


def type_of(event: type[PublicEvent]) -> str:
    """The attribute `type`."""
    return f"muster.{event.__name__}.{SHAPE_VERSION}"


def schema_of(event: type[PublicEvent]) -> str:
    """The attribute `dataschema`, and the `$id` of the JSON Schema."""
    return f"urn:muster:event:{event.__name__}:{SHAPE_VERSION}"


def source_of(project_id: str) -> str:
    return f"/projects/{project_id}"


@lru_cache(maxsize=16)
def time_text(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")


def binary(
    event: PublicEvent, *, id_: str, project_id: str, about: str, time: datetime, sequence: str, previous: str
) -> tuple[dict[str, str], bytes]:
    """(headers, payload) of a message in binary mode.

    Args:
        about: what the event is about within the project, such as a workload's id; may be empty.
        sequence: the text of its place.
        previous: `sequence` of the project's event before it; empty where there was none.
    """
    kind = type(event)
    headers = {
        "ce-specversion": SPEC_VERSION,
        "ce-id": _encoded(id_),
        "ce-source": _encoded(source_of(project_id)),
        "ce-type": type_of(kind),
        "ce-subject": _encoded(about),
        "ce-time": time_text(time),
        "ce-datacontenttype": CONTENT_TYPE,
        "ce-dataschema": schema_of(kind),
        "ce-sequence": sequence,
        "ce-previous": previous,
    }
    if not about:
        del headers["ce-subject"]
    if not previous:
        del headers["ce-previous"]
    return headers, _ENCODER.encode(event)


def _encoded(value: str) -> str:
    """As it stands in a header. Nearly all are fit as they are, and to see that is cheaper."""
    return value if _ENCODED.search(value) is None else quote(value, safe=_UNENCODED)


def attributes_of(headers: Mapping[str, str]) -> dict[str, str]:
    """The attributes of a message in binary mode, by name."""
    return {name.removeprefix(PREFIX): unquote(value) for name, value in headers.items() if name.startswith(PREFIX)}


def as_json(headers: Mapping[str, str], payload: bytes) -> bytes:
    """The same event as one JSON object (structured mode), for readers that have no headers."""
    fields: dict[str, Any] = dict(attributes_of(headers))
    return _ENCODER.encode(fields | {"data": msgspec.Raw(payload)})
