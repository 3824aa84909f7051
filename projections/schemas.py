"""Projection schemas beside their tables: what is known of each, and which there are.

What is known of a schema is kept as its comment, so it is there as long as the schema is, and goes with it in the same
transaction.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Protocol

import msgspec

from projections.postgres import Connection

SHADOW_PREFIX: Final = "muster_until_"
"""Of the name of a shadow that is as of a moment; its sequence follows."""
SANDBOX_PREFIX: Final = "muster_replay_"
"""Of the name of a sandbox's schema; the sandbox's name follows."""

type Maker = Literal["setup", "rebuild", "until", "replay"]
type State = Literal["current", "building", "replaced", "leftover", "shadow", "sandbox"]


class Replay(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is played into a sandbox. Moments stand as they were given, and as what they meant then (`Until`)."""

    from_given: str
    from_seq: int
    from_at: datetime | None = None
    from_aim: int
    to_given: str
    to_seq: int
    to_at: datetime | None = None
    to_aim: int
    speed: str
    indexed: bool = False
    """Whether it is as things stood at its beginning, with the secondary indexes."""
    url: str = ""
    """Where it was served last."""


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a projection schema."""

    by: Maker
    shape: int
    """Of its tables (`projections.tables.SHAPE`)."""
    began_at: datetime
    ready_at: datetime | None = None
    """Since when it is whole, or in use; None: it is being filled, or that was given up."""
    seq: int = 0
    """That it was at by then."""
    events: int = 0
    """That it was made of."""
    replay: Replay | None = None
    """Of a sandbox."""


LISTED: Final = """
    SELECT n.nspname AS name, obj_description(n.oid, 'pg_namespace') AS note, (
        SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
        WHERE c.relnamespace = n.oid AND c.relkind = 'r'
    ) AS bytes
    FROM pg_namespace n WHERE n.nspname ~ '^muster_((v|until_)[0-9]+|replay_[a-z0-9-]+)$' ORDER BY n.oid
"""
"""Every projection schema, the oldest first. Any role may ask this."""


class _Row(Protocol):
    def __getitem__(self, key: str, /) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    name: str
    state: State
    note: Note | None
    """None where an older Muster made it."""
    bytes: int
    """Of its tables and their indexes, on disk."""


def noted(text: str | None) -> Note | None:
    """What a schema's comment says; None where it is none of ours."""
    try:
        return None if text is None else msgspec.json.decode(text, type=Note)
    except msgspec.MsgspecError:
        return None


def listed(rows: Iterable[_Row], *, current: str, building: str | None) -> Sequence[Schema]:
    """Rows of LISTED, with what each schema is.

    Args:
        building: the schema that somebody fills at this moment, if any.
    """
    return [
        Schema(
            name=row["name"],
            state=_state(row["name"], note := noted(row["note"]), current, building),
            note=note,
            bytes=row["bytes"],
        )
        for row in rows
    ]


def _state(name: str, note: Note | None, current: str, building: str | None) -> State:
    if name == current:
        return "current"
    if name == building:
        return "building"
    if name.startswith(SHADOW_PREFIX):
        return "shadow"
    if name.startswith(SANDBOX_PREFIX):
        return "sandbox"
    return "leftover" if note is not None and note.ready_at is None else "replaced"


async def write_note(connection: Connection, schema: str, note: Note) -> None:
    """Replaces what is known of the schema."""
    text = msgspec.json.encode(note).decode()
    # Quoted by the server: the statement takes no parameters.
    await connection.execute(
        await connection.fetchval("SELECT format('COMMENT ON SCHEMA %I IS %L', $1::text, $2::text)", schema, text)
    )


async def read_note(connection: Connection, schema: str) -> Note | None:
    return noted(
        await connection.fetchval(
            "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = $1", schema
        )
    )
