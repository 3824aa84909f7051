"""Reading as of a moment of the past: the parameter `as_of`, and which place of the log it means."""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

from projections.found import Moment
from projections.queries import Queries
from services.api.context import MAX_DIGITS, MAX_WAIT_SECONDS, Look, rfc3339
from services.api.errors import bad_request, unavailable
from services.api.issues import BadValueError, Issue, shown
from services.api.operations import MAX_BIGINT, Query

AS_OF_HEADER: Final = "X-As-Of"


def parse_moment(given: str, *, or_else: str = "") -> datetime:
    """An RFC 3339 time. Raises BadValueError; `or_else`: what the parameter takes beside, for the refusal."""
    try:
        moment = datetime.fromisoformat(given)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadValueError(f"{shown(given)} is not a time; write it like 2026-11-21T09:30:00Z{or_else}") from None


def parse_zoned(given: str) -> datetime:
    """A time of something that is planned: with its zone, or a date alone, which is its midnight by UTC. Raises
    BadValueError.
    """
    moment = parse_moment(given)
    if datetime.fromisoformat(given).tzinfo is None and not _is_date(given):
        details = f"{shown(given)} has no zone; write it like 2027-01-01T10:00:00Z or 2027-01-01T10:00:00+01:00"
        raise BadValueError(details)
    return moment


def _is_date(given: str) -> bool:
    try:
        date.fromisoformat(given)
    except ValueError:
        return False
    return True


def parse_as_of(given: str) -> datetime | int:
    """A time, or a sequence of the log. Raises BadValueError."""
    if given.isascii() and given.isdigit():
        if len(given) > MAX_DIGITS or int(given) > MAX_BIGINT:
            raise BadValueError(f"{shown(given)} is beyond every sequence of the log", "max")
        return int(given)
    return parse_moment(given, or_else=", or as a sequence of the log such as 4711")


AS_OF: Final = Query(
    name="as_of",
    read=parse_as_of,
    help="Answer as of this time (RFC 3339) or sequence of the log, instead of now.",
)
MOMENT_HEADERS: Final = (
    (AS_OF_HEADER, "The time that an answer about the past is of. The sequence is in X-Log-Sequence."),
)
"""Of operations that take AS_OF."""


async def moment_of(call: Look, name: str = AS_OF.name) -> Moment | None:
    """The moment that this parameter asks for; None: now. Raises 400 of the future, and 503 where the tables have not
    come that far.
    """
    wanted: datetime | int | None = call.values[name]
    if wanted is None:
        return None
    if call.values.get("min_seq") is not None:
        details = "is for answers of now, and as_of is given; leave one of them out"
        raise bad_request([Issue(field="min_seq", details=details, involves=frozenset({"as_of"}))])
    end = await call.api.store.last_seq()
    if isinstance(wanted, int) and wanted > end:
        raise _future(name, f"the log ends at {end}, got {wanted}")
    if isinstance(wanted, datetime) and wanted > (now := datetime.now(UTC)):
        raise _future(name, f"it is {rfc3339(now)} now, got {rfc3339(wanted)}")
    found = await call.queries.moment(wanted)
    if not found.settled:
        # What is in the log by now may belong before it; what comes later does not change the answer to a sequence.
        if not await call.queries.wait_for(wanted if isinstance(wanted, int) else end, MAX_WAIT_SECONDS):
            raise unavailable("the tables have not come to this moment yet; try again", details="tables_behind")
        found = await call.queries.moment(wanted)
    return found.moment


def _future(name: str, why: str) -> Exception:
    details = f"must be a moment of the past: {why}"
    return bad_request([Issue(field=name, details=details, rule="max")])


def moment_headers(moment: Moment) -> dict[str, str]:
    """Of an answer about the past."""
    at = rfc3339(moment.at)
    return {"X-Log-Sequence": str(moment.seq)} | ({} if at is None else {AS_OF_HEADER: at})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The tables as of the moment that was asked for."""

    queries: Queries
    headers: dict[str, str]
    moment: Moment | None
    """None: now."""


async def reading(call: Look) -> Reading:
    """Raises what `moment_of` raises. Of now, it waits as `Call.fresh` does."""
    moment = await moment_of(call)
    headers = await call.fresh() if moment is None else moment_headers(moment)
    return Reading(queries=call.queries.as_of(moment), headers=headers, moment=moment)
