"""The log as `muster simulate` reads it: all of it, commit by commit, from the API or from a backup."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from events.commit import About, Actor, BatchPart, Commit, CommitRecord
from muster.cli.exits import ExitCode, Problem
from muster.cli.values import Row, number_of, parse_time, row_of, rows_of, text_of

if TYPE_CHECKING:
    from muster.cli.command import Session
    from muster.cli.progress import Progress

PAGE_COMMITS: Final = 1000
"""The most that the API gives in one answer."""


def newest_of_log(session: "Session") -> tuple[int, datetime]:
    """The last sequence of the log, and when its last commit was decided. Raises Problem."""
    page = session.api.get("/events", [("order", "desc"), ("limit", 1)])
    rows = rows_of(page, "events")
    if not rows:
        return 0, datetime.now(UTC)
    return int(number_of(rows[0], "sequence")), parse_time(text_of(rows[0], "at")) or datetime.now(UTC)


def commits_of_log(session: "Session", last: int, report: "Progress") -> Iterator[Commit]:
    """From the API, which gives them to administrators. Raises Problem."""
    after = 0
    while after < last:
        page = session.api.get("/events", [("after", after), ("limit", PAGE_COMMITS)])
        for row in rows_of(page, "events"):
            if (commit := _commit(row)) is not None:
                yield commit
        following = page.get("next")
        if not isinstance(following, int):
            return
        after = following
        report(min(after, last), last)


def _commit(row: Row) -> Commit | None:
    """None where it says nothing of places."""
    from events.codec import UNDECODABLE
    from services.api.shown_events import stored_event

    key = _key(row)
    if key is None or not rows_of(row, "events"):
        return None
    try:
        events = tuple(
            stored_event(text_of(each, "type"), row_of(each, "data"), cluster_id=text_of(row, "clusterId"))
            for each in rows_of(row, "events")
        )
    except (*UNDECODABLE, KeyError) as error:
        raise Problem(
            f"commit {int(number_of(row, 'sequence'))} of the log cannot be read here",
            why=(str(error),),
            todo="`muster version` shows whether the server is of another version; use the same one",
            code=ExitCode.FAILURE,
        ) from error
    at = parse_time(text_of(row, "at"))
    assert at is not None
    record = CommitRecord(
        commit_id="",
        command_id=text_of(row, "commandId"),
        actor=Actor(id=text_of(row_of(row, "actor"), "sub")),
        occurred_at=at,
        parent_seq=0,
        events=(),
        batch=_batch(row_of(row, "batch")),
        about=About(id=text_of(row, "id") or None),
    )
    return Commit(
        aggregate=text_of(row, "aggregate"), key=key, seq=int(number_of(row, "sequence")), record=record, events=events
    )


def _batch(row: Row) -> BatchPart | None:
    if not row:
        return None
    return BatchPart(id=text_of(row, "id"), index=int(number_of(row, "index")), count=int(number_of(row, "count")))


def _key(row: Row) -> str | None:
    """Of the aggregate, in the log; None of one that says nothing of places."""
    from events.ids import key_of_id, node_key
    from events.installation import LOG_KEY

    match text_of(row, "aggregate"):
        case "workload" | "project" | "cluster" | "department":
            return key_of_id(text_of(row, "id"))
        case "node":
            return node_key(text_of(row, "clusterId"), text_of(row, "node"))
        case "log":
            return LOG_KEY
        case _:
            return None


def commits_of_backup(place: str, report: "Progress") -> Iterator[Commit]:
    """From a backup. Raises Problem."""
    from events.codec import UNDECODABLE, UnknownEventError, decode_commit
    from services.runtime.backup.archive import BackupError
    from services.runtime.backup.check import messages_of, read_manifest
    from services.runtime.backup.place import Place

    unreadable: dict[int, str] = {}
    try:
        where = Place(place)
        manifest = read_manifest(where)
        for message, _ in messages_of(where, manifest):
            if message.seq % PAGE_COMMITS == 0:
                report(message.seq, manifest.seq)
            try:
                commit = decode_commit(message.subject, message.seq, message.data)
            except (*UNDECODABLE, UnknownEventError) as error:
                unreadable[message.seq] = str(error)
                continue
            if commit.aggregate == "void":
                for event in commit.events:
                    unreadable.pop(event.seq, None)
                continue
            yield commit
    except (BackupError, FileNotFoundError) as error:
        raise Problem(f"the backup {place} cannot be read: {error}", code=ExitCode.FAILURE) from error
    if unreadable:
        seq, why = next(iter(unreadable.items()))
        raise Problem(f"message {seq} of the backup cannot be read", why=(why,), code=ExitCode.FAILURE)


def newest_of_backup(place: str) -> tuple[int, datetime]:
    """The last sequence, and when the backup was made. Raises Problem."""
    from services.runtime.backup.archive import BackupError
    from services.runtime.backup.check import read_manifest
    from services.runtime.backup.place import Place

    try:
        manifest = read_manifest(Place(place))
    except (BackupError, FileNotFoundError) as error:
        raise Problem(
            f"the backup {place} cannot be read: {error}",
            todo="`muster backup DIR` writes one; give its folder",
            code=ExitCode.FAILURE,
        ) from error
    return manifest.seq, manifest.made_at
