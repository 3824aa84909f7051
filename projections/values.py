"""Values as Postgres can hold them. Pure.

What stands in the log is a fact, whoever wrote it; a projection may not stumble over it. So text without NUL, and whole
numbers that fit, are made here, and the edges (api, cluster_sync) are the ones that refuse.
"""

import hashlib
from typing import Final

import msgspec

MAX_BIGINT: Final = 2**63 - 1
MAX_INDEXED_CHARACTERS: Final = 500
"""Of a text in an index, of up to four bytes each: Postgres refuses rows of an index beyond 2,704 bytes. No name that
the edges take is half as long."""

_ENCODER: Final = msgspec.json.Encoder(order="deterministic")


def clean(text: str) -> str:
    """The text with the one character that Postgres cannot hold made visible."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}") if "\x00" in text else text


def indexed(text: str) -> str:
    """As `clean`, and short enough for an index; what is cut off still tells two texts apart, by its digest."""
    text = clean(text)
    if len(text) <= MAX_INDEXED_CHARACTERS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return f"{text[:MAX_INDEXED_CHARACTERS]}\N{HORIZONTAL ELLIPSIS}{digest}"


def fit(number: int) -> int:
    """The number, or the nearest bigint where it is beyond (nobody has that much of anything)."""
    if -MAX_BIGINT <= number <= MAX_BIGINT:
        return number
    return MAX_BIGINT if number > 0 else -MAX_BIGINT


def to_json(value: object) -> str:
    """JSON text that is the same for the same value, whatever the order of its keys."""
    return _ENCODER.encode(value).decode()
