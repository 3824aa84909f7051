"""Whether a message of the log can be read at all: by itself, behind what stands before it, and in its atomic batch.

Each who wants to know looks himself, at what the log's leader has: nobody's word counts for it.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from events.aggregate import AGGREGATES, Aggregate, BrokenChainError, Chain, apply
from events.codec import decode_commit
from events.commit import BatchPart, Commit
from events.subjects import EVENTS_STREAM, aggregate_subject, split_aggregate_subject
from events.void import Unreadable
from projections.fold import Fold as RowsFold
from services.runtime.log.floors import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from services.runtime.log.store import MAX_BATCH, UnreadableMessageError
from services.runtime.nats.jetstream_api import StoredMessage, message_at, next_message, next_messages
from services.runtime.nats.requests import Requests

READ_SECONDS: Final = 5.0
READ_MESSAGES: Final = 500
"""Messages read at once; also the length from which a chain is worth a snapshot."""
CAUSE_CHARACTERS: Final = 500
"""Of an error's text, which may repeat what stands in the message."""

type ReadCommit = Callable[[StoredMessage], Awaitable[Commit]]
"""A message as readers take it: nothing where it is void. Raises UnreadableMessageError."""


def decoded(subject: str, seq: int, payload: bytes) -> Commit:
    """What a message says by itself. Raises UnreadableMessageError."""
    try:
        commit = decode_commit(subject, seq, payload)
    except Exception as error:
        # Codecs, upcasters and the interpreter's own limits fail in many ways, and all mean the same here.
        raise UnreadableMessageError(seq, subject, f"{type(error).__name__}: {error}"[:CAUSE_CHARACTERS]) from error
    part = commit.record.batch
    if part is not None and not 1 <= part.index <= part.count <= MAX_BATCH:
        raise UnreadableMessageError(seq, subject, f"part {part.index} of {part.count} of an atomic batch")
    return commit


def named(error: BrokenChainError, subject: str) -> Exception:
    """The commit that breaks the chain, as what cannot be read; the error itself where it names none."""
    return UnreadableMessageError(error.seq, subject, str(error)) if error.seq else error


async def why_unreadable(requests: Requests, message: StoredMessage, read: ReadCommit) -> Unreadable | None:
    """Why a message cannot be read: it is no commit, or none that follows from what stands before it, or none that rows
    can follow. None where it can be. Raises UnreadableMessageError where one before it on the same subject cannot be
    read either, LogUnavailableError.
    """
    try:
        name, _ = split_aggregate_subject(message.subject)
        aggregate = AGGREGATES[name]
    except (ValueError, KeyError):
        return Unreadable(subject=message.subject, cause="no aggregate has this subject")
    before, rows = await _before(requests, aggregate, message, read)
    try:
        commit = decoded(message.subject, message.seq, message.data)
        apply(aggregate, before, commit)
        rows.add([commit])
        await check_batch(requests, commit, every_part=True)
    except UnreadableMessageError as error:
        cause = error.cause
    except BrokenChainError as error:
        cause = str(error)[:CAUSE_CHARACTERS]
    else:
        return None
    about = aggregate.about(before.state)
    return Unreadable(subject=message.subject, cause=cause, parent_seq=before.version, about=about)


async def _before(
    requests: Requests, aggregate: Aggregate[Any], until: StoredMessage, read: ReadCommit
) -> tuple[Chain[Any], RowsFold]:
    """The fold of what stands on a subject before a message, as a state and as rows."""
    chain = Chain(state=aggregate.initial)
    rows = RowsFold({})
    while True:
        messages, _ = await tail(requests, until.subject, chain.version + 1)
        for message in messages:
            if message.seq >= until.seq:
                return chain, rows
            try:
                commit = await read(message)
                chain = apply(aggregate, chain, commit)
                rows.add([commit])
            except BrokenChainError as error:
                raise named(error, until.subject) from error


async def tail(
    requests: Requests, subject: str, from_seq: int, *, ended: Callable[[], Awaitable[bool]] | None = None
) -> tuple[list[StoredMessage], int]:
    """Messages of a chain that has some there, and how many more there are. A replica may not have them yet; then one
    from the leader; and a leader may have stood still: then again.

    Args:
        ended: asked where none is found, whether the chain has none there. Without it, it is known to have some.
    """
    deadline = asyncio.get_running_loop().time() + READ_SECONDS
    pause = FIRST_PAUSE_SECONDS
    while True:
        messages, more = await next_messages(
            requests, EVENTS_STREAM, subject, from_seq, READ_MESSAGES, seconds=READ_SECONDS
        )
        if messages:
            return messages, more
        message = await next_message(requests, EVENTS_STREAM, subject, from_seq, seconds=READ_SECONDS)
        if message is not None:
            return [message], 0
        if ended is not None and await ended():
            return [], 0
        if asyncio.get_running_loop().time() > deadline:
            raise BrokenChainError(f"{subject}: the leader's last message is gone")
        await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 (jitter)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def check_batch(requests: Requests, commit: Commit, *, every_part: bool = False) -> None:
    """Raises UnreadableMessageError where the commit says it is part of an atomic batch that is not there. The server
    stores a batch whole or not at all, so its end tells; only who is to judge looks at every part.
    """
    part = commit.record.batch
    if part is None:
        return
    whole = True
    first = 1 if every_part else part.count
    for index in range(first, part.count + 1):
        seq = commit.seq - part.index + index
        if seq != commit.seq:
            other = await message_at(requests, EVENTS_STREAM, seq, seconds=READ_SECONDS) if seq > 0 else None
            whole = whole and other is not None and _may_be_part(other, part, index)
    if not whole:
        subject = aggregate_subject(commit.aggregate, commit.key)
        raise UnreadableMessageError(commit.seq, subject, "its atomic batch is not whole")


def _may_be_part(message: StoredMessage, part: BatchPart, index: int) -> bool:
    """Whether a message is that part of a batch; one that cannot be decoded may have been it."""
    try:
        other = decoded(message.subject, message.seq, message.data).record.batch
    except UnreadableMessageError:
        return True
    return other is not None and other.id == part.id and other.index == index
