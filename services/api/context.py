"""What the handlers of the API share: its connections and folds (`Api`), and one request under way (`Call`)."""

import asyncio
import hashlib
import hmac
import re
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import msgspec
from nats.aio.client import Client
from starlette.requests import Request

from events.actors import STRANGER
from events.authorize import Grants, Permission, authorize
from events.commands import UserCommand, target
from events.envelope import Accepted, CommandRequest, OutcomeUnknown, Refused
from events.fields.declare import Body
from events.ids import idempotent_command_id
from events.workload.exposure import ProxyAddress
from projections.queries import Queries
from projections.unanswered import ProjectionsUnavailableError, QueriesBusyError, QueryTimeoutError
from services.api.account_use import AccountUse
from services.api.answers import Created, HttpResponse
from services.api.body import BadBodyError, read_object, unfit_texts
from services.api.check import Rules, check, no_rules
from services.api.errors import ApiError, bad_request, outcome_unknown, refused
from services.api.feed_tail import FeedTail
from services.api.issues import Issue, shown
from services.api.limits import RateLimiter, Slots
from services.api.node_names import NodeNames
from services.api.operations import MAX_BIGINT, Answer, Operation, Query
from services.api.rows import LoggedRows
from services.api.session_ends import Sessions
from services.api.tickets import Ticket, Tickets
from services.runtime.identity.actors import ActorNames
from services.runtime.identity.authentication import Identity
from services.runtime.identity.directory import KINDS, Directory
from services.runtime.identity.identities import Identities, principal
from services.runtime.log.store import EventReader, LogUnavailableError
from services.runtime.nats.bus import CommandClient
from services.runtime.nats.requests import Requests
from services.runtime.webhooks.addresses import Network

MAX_WAIT_SECONDS: Final = 2.0
"""How long a read waits for `min_seq`; then it answers with what there is, marked X-Log-Stale. What the log itself has
not come to by then is refused."""
END_PAUSE_SECONDS: Final = 0.2
"""Between two looks whether the log has come to what somebody knows to be in it."""
IDEMPOTENCY_KEY: Final = re.compile(r"^[!-~]{1,255}\Z")
"""Printable ASCII without spaces: what a header carries unharmed."""
SEQUENCE_HEADER: Final = "x-log-sequence"
MAX_DIGITS: Final = 20
"""Of a number in a header or a query: more than any bound has, and few enough to be read at once."""
STREAM_RETRY_SECONDS: Final = "5"
"""After which a reader may look whether a place has become free: nobody knows when one will."""
ADDED_SECONDS: Final = 1.0
"""How long what the log alone can answer waits for what Postgres would add to it. A Postgres that hangs, and does not
even refuse, must hold up no command and no read by id."""
MIN_SEQ: Final = Query(
    name="min_seq", type="integer", help="Wait up to 2 s until the answer speaks of this sequence of the log."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLimits:
    """What is kept of code that people send."""

    max_bytes: int
    """Of one archive."""
    project_max_bytes: int
    retention_hours: float
    """Of what no living workload uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """What handlers use that read the log and the tables. No command can be given and nothing be written by any of it:
    a sandbox has these alone (services/api/sandbox.py).
    """

    identities: Identities
    actors: ActorNames
    roles: Directory
    """Who may do what: as it is now."""
    directory: Directory
    """Which clusters and projects there are. In a sandbox, as they were."""
    store: EventReader
    queries: Queries
    rows: LoggedRows
    node_names: NodeNames
    limiter: RateLimiter
    exports: Slots
    follows: Slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Api(Readers):
    """Everything a handler may use."""

    account_use: AccountUse
    commands: CommandClient
    nats: Client
    requests: Requests
    streams: Slots
    """Of public events."""
    sessions: Sessions
    """Ways into pods."""
    batches: Slots
    questions: Slots
    """That wait for the scheduler."""
    """Of large bodies."""
    heartbeat_seconds: float
    """Of them."""
    feed: FeedTail
    tickets: Tickets
    code: CodeLimits
    subscriber_url: str
    """Where subscribers find NATS."""
    credential_public_key_file: Path | None
    """What values of credentials are sealed to; None: there can be none."""
    webhook_networks: Sequence[Network]
    """Where webhooks may post to beside public addresses."""
    proxy: ProxyAddress | None = None
    """Where people reach what workloads serve."""
    ready: Callable[[], bool]
    """Whether every connection is there."""
    alarm: Callable[[], str] = str
    """What a person must mend; empty where there is nothing."""


@dataclass(slots=True, kw_only=True)
class Look:
    """One request that reads: who asks, and for what."""

    api: Readers
    operation: Operation
    request: Request
    identity: Identity
    actor: str = STRANGER
    """Id of who asks."""
    grants: Grants
    token: str = ""
    """With which; empty where the operation is public."""
    ticket: Ticket | None = None
    """That it came with, where it came with one."""
    raw: bytes = b""
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Query parameters, parsed; every one of the operation is there."""
    faults: list[Issue] = field(default_factory=list[Issue])
    """What is wrong with the query and the headers; told with what is wrong with the body, and nothing is sent."""
    policies: dict[tuple[str, str, str], Any] = field(default_factory=dict[tuple[str, str, str], Any])
    """Those that were read for this request, by kind and project: a batch has many items."""

    @property
    def queries(self) -> Queries:
        """The read models, as far as the caller may read, and with the caller's share of the connections."""
        return self.api.queries.within(self.grants.readable_projects, asker=principal(self.identity))

    @property
    def request_id(self) -> str:
        return self.request.state.request_id

    @property
    def id(self) -> str:
        """The id in the path; the router lets only UUIDs through."""
        given: UUID = next(iter(self.request.path_params.values()))
        return str(given)

    def require(self, permission: Permission, project_id: str | None) -> None:
        """Raises 403 where the caller may not."""
        refusal = authorize(self.grants, permission, project_id)
        if refusal is not None:
            raise refused(refusal, creation=True)

    def take_slot(self, slots: Slots, what: str) -> Callable[[], None]:
        """One place of what is scarce; what is returned gives it back. Raises 429 where there is none."""
        who = principal(self.identity)
        if objection := slots.objection(who, what):
            raise ApiError(429, objection, details="too_many_streams", headers={"Retry-After": STREAM_RETRY_SECONDS})
        return slots.take(who)

    def may_read(self, project_id: str) -> bool:
        return self.grants.allows(Permission.READ, project_id)

    def may_submit(self, project_id: str) -> bool:
        return self.grants.allows(Permission.SUBMIT, project_id)

    def expected_version(self) -> int | None:
        """From If-Match; what is none is among `faults`."""
        given = self.request.headers.get("if-match", "*").strip()
        return None if given == "*" else _sequence(given.removeprefix("W/").strip('"'))

    def header_faults(self) -> Iterator[Issue]:
        """What is wrong with the headers that are ours."""
        headers = self.request.headers
        key, match, sequence = (headers.get(name) for name in ("idempotency-key", "if-match", SEQUENCE_HEADER))
        if self.operation.mutates and key is not None and not IDEMPOTENCY_KEY.match(key):
            details = f"must be 1 to 255 printable ASCII characters without spaces, got {shown(key)}"
            yield Issue(field="Idempotency-Key", details=details)
        if self.operation.mutates and match is not None and match.strip() != "*" and self.expected_version() is None:
            details = f"must be a version, a whole number as in X-Version, got {shown(match)}"
            yield Issue(field="If-Match", details=details)
        if sequence is not None and _sequence(sequence) is None:
            details = f"must be a sequence, a whole number as in an answer's X-Log-Sequence, got {shown(sequence)}"
            yield Issue(field="X-Log-Sequence", details=details)

    @property
    def min_seq(self) -> int:
        """What the caller knows to be in the log: from `min_seq`, or from X-Log-Sequence of an earlier answer."""
        return max(self.values.get("min_seq") or 0, self._given_sequence)

    @property
    def _given_sequence(self) -> int:
        return _sequence(self.request.headers.get(SEQUENCE_HEADER, "0")) or 0

    async def check_min_seq(self) -> None:
        """Raises 400 where the log has not come to what the caller knows to be in it. A leader that stood still gets
        MAX_WAIT_SECONDS to learn better; a log that does not answer is for whoever asks it next.
        """
        wanted, store = self.min_seq, self.api.store
        if wanted <= store.known_seq:
            return
        end, deadline = 0, time.monotonic() + MAX_WAIT_SECONDS
        try:
            while (end := await store.last_seq()) < wanted and time.monotonic() < deadline:
                await asyncio.sleep(END_PAUSE_SECONDS)
        except LogUnavailableError:
            return
        if end < wanted:
            field = "X-Log-Sequence" if self._given_sequence == wanted else "min_seq"
            nothing = "; nothing was decided" if self.operation.mutates else ""
            details = (
                f"must be a sequence that the log has: the log ends at {end}, got {wanted}{nothing}. Give "
                "the X-Log-Sequence of an answer of this Muster, or leave it out"
            )
            raise bad_request([*self.faults, Issue(field=field, details=details, rule="max")])

    async def fresh(self, least: int = 0) -> dict[str, str]:
        """Wait until the tables speak of `min_seq`, where it was asked for, and of `least`, which the caller could have
        read already; the headers that say so where they did not come that far.
        """
        wanted = max(self.min_seq, least)
        if wanted <= 0:
            return {}
        reached = await self.queries.wait_for(wanted, MAX_WAIT_SECONDS)
        return {} if reached else {"X-Log-Stale": "true"}


@dataclass(slots=True, kw_only=True)
class Call(Look):
    """One request that may also give a command, or needs more than the log and the tables."""

    api: Api  # pyright: ignore[reportIncompatibleVariableOverride] - nothing gives a Call another one

    def json_object(self) -> dict[str, Any]:
        """The body. Raises 400."""
        try:
            data = read_object(self.raw)
        except BadBodyError as error:
            raise bad_request([Issue(field=error.field or "body", details=str(error))]) from None
        if unfit := unfit_texts(self.raw, data):
            raise bad_request(unfit)
        return data

    def fields[B: Body](self, body: type[B], rules: Rules[B] = no_rules, beside: Rules[B] = no_rules) -> B:
        """The body as it is declared, that keeps to the rules (`check`). Raises 400 with everything that is wrong."""
        checked = check(body, self.json_object(), rules, beside)
        if isinstance(checked, list):
            raise bad_request(checked)
        return checked

    @property
    def keyed(self) -> bool:
        """Whether the request may come again, with its Idempotency-Key."""
        return "idempotency-key" in self.request.headers

    def command_id(self) -> str:
        """From the Idempotency-Key where there is one, else a new one; what is none is among `faults`."""
        key = self.request.headers.get("idempotency-key")
        if key is None or not IDEMPOTENCY_KEY.match(key):
            return str(uuid4())
        return idempotent_command_id(self.actor, self.operation.method, self.request.url.path, key)

    async def send(self, command: UserCommand, *, command_id: str | None = None, creation: bool = False) -> Accepted:
        """Have a command decided. Raises what a refusal, a lost answer or an absent gate is over HTTP."""
        if self.faults:
            raise bad_request([])  # and the faults, which `endpoint` adds to what is wrong with the body
        place = target(command)
        request = CommandRequest(
            command_id=command_id or self.command_id(),
            token=self.token,
            command=command,
            body_hash=self.hash_of_keyed(),
            expected_version=self.expected_version(),
            correlation_id=self.request_id,
            min_seq=max(self.min_seq, 0 if place is None else self.api.store.seen(*place)),
            min_roles=self.api.directory.known,
        )
        reply = await self.api.commands.send(request)
        match reply:
            case Accepted():
                if place is not None:
                    self._saw(*place, reply.seq)
                return reply
            case Refused():
                raise refused(reply.refusal, creation=creation)
            case OutcomeUnknown():
                raise outcome_unknown()

    def _saw(self, aggregate: str, key: str, seq: int) -> None:
        """What was acknowledged is a floor for every later read and command of this process."""
        self.api.store.saw(aggregate, key, seq)
        if aggregate in KINDS:
            self.api.directory.told(seq)

    def hash_of_keyed(self) -> str:
        """Of all that the command id does not say already; empty without an Idempotency-Key."""
        if not self.keyed:
            return ""
        query: bytes = self.request.scope["query_string"]
        if self.operation.secret:
            # The hash stands in the log for ever: without the key, nobody can try passwords on it.
            key = self.request.headers["idempotency-key"].encode()
            return hmac.new(key, self.raw + b"?" + query, hashlib.sha256).hexdigest()
        return hashlib.sha256(self.raw + b"?" + query if query else self.raw).hexdigest()

    def accepted(self, reply: Accepted, message: str) -> Answer[HttpResponse]:
        """202 with the contract's HttpResponse."""
        return Answer(HttpResponse(code=202, message=message), status=202, headers=sequence_headers(reply.seq))

    def created(self, reply: Accepted, name: str) -> Answer[Created]:
        """202 with the id of what was made."""
        return Answer(Created(id=reply.id, name=name), status=202, headers=sequence_headers(reply.seq))


async def if_answered[T](question: Coroutine[Any, Any, T]) -> T | None:
    """What the projections say; None where they are away, or do not answer in ADDED_SECONDS."""
    asking = asyncio.create_task(question)
    try:
        # Not asyncio.timeout: a connection that hangs takes seconds to give up also when it is cancelled.
        await asyncio.wait({asking}, timeout=ADDED_SECONDS)
        return asking.result() if asking.done() else None
    except (ProjectionsUnavailableError, QueriesBusyError, QueryTimeoutError):
        return None
    finally:
        asking.cancel()


def _sequence(text: str) -> int | None:
    """A sequence of the log; None where the text is none."""
    fits = text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS and int(text) <= MAX_BIGINT
    return int(text) if fits else None


def bearer_token(request: Request) -> str:
    """The token of the Authorization header. Raises 401."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise ApiError(
            401,
            "send a token: Authorization: Bearer <token>",
            details="not_authenticated",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return token.strip()


def sequence_headers(seq: int) -> dict[str, str]:
    """Of an answer about one aggregate, whose version is its last sequence."""
    return {"X-Log-Sequence": str(seq)} | version_header(seq)


def version_header(version: int) -> dict[str, str]:
    """Of an answer about one thing that can be changed: what If-Match takes."""
    return {"X-Version": str(version)}


def read_answer[T: msgspec.Struct](body: T, seq: int, headers: Mapping[str, str]) -> Answer[T]:
    """An answer from the projections, with how far they had come."""
    return Answer(body, headers={"X-Log-Sequence": str(seq), **headers})


def rfc3339(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
