"""Many creations in one request: every item checked as it would be alone, and sent on in parts that fit a message.

What is wrong with any item in itself refuses the whole request, with everything that is wrong. What only the newest
state can tell (rights, names, limits, what there is) is answered for each item.
"""

import asyncio
import dataclasses
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from events.aggregate import WORKLOAD
from events.codec import UNDECODABLE
from events.envelope import (
    Accepted,
    BatchAnswered,
    BatchItem,
    BatchRequest,
    CommandReply,
    OutcomeUnknown,
    Refused,
    packed,
)
from events.fields.declare import Body, Limits
from events.ids import item_command_id, workload_key
from events.refusal import Refusal
from events.workload.fields.creation import MOST_CREATIONS, BatchCreation
from events.workload.kinds import KINDS
from events.workload.kinds.kind import Kind
from events.workload.refusals import others_refused
from events.workload.spec import TrainingSpec
from services.api.answers import BatchItemOutcome, BatchOutcome, ComplianceIssue
from services.api.body import MAX_BODY_BYTES, BadBodyError, colons, read_object, unfit_texts
from services.api.check import check
from services.api.code import keep_for
from services.api.context import Call
from services.api.creation import code_of, misfits
from services.api.errors import ApiError, bad_request, compliance_issues, outcome_unknown, refused
from services.api.issues import MAX_ISSUES, Issue, none_of
from services.api.kinds import Examined, examined
from services.api.merge import Json
from services.api.operations import Answer, changes
from services.api.paths import CREATIONS
from services.api.rules import check_name
from services.runtime.nats.bus import GateAwayError

BATCHES: Final = 4
"""Requests of up to 16 MiB that are held at once; each takes several times its size."""
BATCHES_EACH: Final = 2
MOST_PROJECTS: Final = 50
"""In one batch: each takes a look at the caller's roles in it."""
PART_ITEMS: Final = 250
"""Decided and appended at once: some tenths of a second."""
PARTS_UNDER_WAY: Final = 2
"""Of one batch: one is decided while another is stored."""
PART_BYTES: Final = 640 * 1024
"""Of one part's items before they are packed: whatever they hold, a message takes it."""
MOST_PACKED_BYTES: Final = 700 * 1024
"""Of one part's items as they travel, in base64 below the 1 MiB of a message."""
MOST_VALUES: Final = 1_000_000
"""Of a body, counted by its commas: as many small values would take twenty times what they have in bytes."""
_EMPTY: Final[dict[str, Any]] = {}
"""Stands for every item that is an object, while what is around them is checked."""
MAX_TRIES: Final = 4
"""Of one part whose answer was lost: it is the same commands again, so each is carried out once."""
PAUSE_SECONDS: Final = 0.2
MOST_ALIKE: Final = 50
"""Different items of one batch that are remembered: more are no sweep."""
LONGEST_CHARACTER: Final = 6
"""Bytes of one in JSON."""
CHECKED_AT_ONCE: Final = 20
"""Before others have their turn: some milliseconds."""

_EXAMPLE: Final = {
    "items": [
        {
            "kind": "Training",
            "name": f"bert-{number}",
            "projectId": "7d1c2b3a-0000-8000-8000-000000000000",
            "clusterId": "5e6f7a8b-0000-8000-8000-000000000000",
            "spec": {"image": "python:3.13", "args": f"train.py --seed {number}"},
        }
        for number in (1, 2)
    ]
}


class _Nothing(Body, frozen=True, kw_only=True):
    """Stands for an item, each of which is checked apart."""


class _Around(Body, frozen=True, kw_only=True):
    """A batch without what is in its items."""

    items: Annotated[tuple[_Nothing, ...], Limits(shortest=1, longest=MOST_CREATIONS)]
    all_or_nothing: bool = False


class _Prepared(msgspec.Struct, frozen=True):
    """An item as it will be decided."""

    item: BatchItem
    asked: Examined
    size: int
    """In bytes, about as it is sent on before it is packed."""


@changes(
    "POST",
    CREATIONS,
    tag="Workloads",
    summary="Create up to 1,000 workloads of any kinds. The answer says for each whether it is stored",
    body=BatchCreation,
    example=_EXAMPLE,
    errors=(403,),
    large=True,
)
async def create_workloads(call: Call) -> Answer[BatchOutcome]:
    """Each item that is created is created once, however often the request comes with the same Idempotency-Key; one
    that was refused is decided anew.
    """
    raws, all_or_nothing = _around(call.raw)
    if call.expected_version() is not None:
        call.faults.append(Issue(field="If-Match", details="a batch has no version; leave it out"))
    batch_id, body_hash = call.command_id(), call.hash_of_keyed()
    prepared = await _prepared(call, raws, batch_id)
    call.raw, raws = b"", []  # they are held long enough
    outcomes = await _misfitting(call, prepared, batch_id)
    if outcomes and all_or_nothing:
        for one in prepared:
            outcomes.setdefault(one.item.index, _of_refusal(one, others_refused()))
    sound = [one for one in prepared if one.item.index not in outcomes]
    request = BatchRequest(
        batch_id=batch_id,
        token=call.token,
        packed=b"",
        all_or_nothing=all_or_nothing,
        body_hash=body_hash,
        correlation_id=call.request_id,
        min_seq=call.min_seq,
        min_roles=call.api.directory.known,
    )
    newest = 0
    for part, reply in await _all_sent(call, request, _parts(sound, whole=all_or_nothing)):
        if isinstance(reply, Refused):
            outcomes |= {one.item.index: _of_refusal(one, reply.refusal) for one in part}
            continue
        newest = max(newest, _saw(call, part, reply))
        by_index = {one.index: one.reply for one in reply.items}
        outcomes |= {one.item.index: _of_reply(one, by_index[one.item.index]) for one in part}
    return _answer([outcomes[one.item.index] for one in prepared], newest, all_or_nothing=all_or_nothing)


def _around(raw: bytes) -> tuple[list[msgspec.Raw], bool]:
    """(the items as they came, whether it is all or nothing). Raises 400."""
    if raw.count(b",") > MOST_VALUES:
        details = f"has more than {MOST_VALUES:,} values; send several batches"
        raise bad_request([Issue(field="body", details=details, rule="max")])
    try:
        shell: dict[str, Any] = dict(msgspec.json.decode(raw, type=dict[str, msgspec.Raw]))
        raws: list[msgspec.Raw] = []
        if colons(raw) != sum(name.count(":") + 1 + colons(bytes(value)) for name, value in shell.items()):
            _object(raw, "body")  # says which field stands there twice
        for name, value in shell.items():
            if name == "items" and bytes(memoryview(value)[:1]) == b"[":
                raws = msgspec.json.decode(value, type=list[msgspec.Raw])
                shell[name] = [_EMPTY if _is_object(item) else msgspec.json.decode(item) for item in raws]
            else:
                shell[name] = msgspec.json.decode(value)
    except UNDECODABLE:
        # What is wrong with it in words.
        _object(raw, "body")
        raise bad_request([Issue(field="body", details="is not JSON")]) from None
    checked = check(_Around, shell)
    if isinstance(checked, list):
        raise bad_request(checked)
    return raws, checked.all_or_nothing


def _is_object(raw: msgspec.Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b"{"


def _object(raw: bytes | memoryview, field: str) -> dict[str, Any]:
    """Raises 400."""
    try:
        return read_object(bytes(raw))
    except BadBodyError as error:
        raise bad_request([Issue(field=error.field or field, details=str(error))]) from None


async def _prepared(call: Call, raws: Sequence[msgspec.Raw], batch_id: str) -> list[_Prepared]:
    """Every item, checked in itself. Raises 400 with all that is wrong with any of them, and does not go together with
    what there is.
    """
    found: list[Issue] = []
    prepared: list[_Prepared] = []
    faulty: list[tuple[int, Examined]] = []
    projects: set[str] = set()
    alike = _Alike(call)
    for index, raw in enumerate(raws):
        if index % CHECKED_AT_ONCE == 0:
            await asyncio.sleep(0)
        command_id = item_command_id(batch_id, index)
        asked = await alike.examined(bytes(raw), command_id)
        if isinstance(asked, list):
            found += _within(index, asked)
        elif asked.faults:
            found += _within(index, asked.told())
            faulty.append((index, asked))
        elif len(projects | {asked.checked.project_id}) > MOST_PROJECTS:
            details = f"is one project more than the {MOST_PROJECTS} that a batch may be for; send several batches"
            found.append(Issue(field=f"items[{index}].projectId", details=details, rule="max"))
        else:
            projects.add(asked.checked.project_id)
            item = BatchItem(index=index, command=asked.command(command_id))
            prepared.append(_Prepared(item, asked, alike.size(item)))
        if len(found) >= MAX_ISSUES:
            raise bad_request(found[:MAX_ISSUES])
    if not (found or call.faults):
        return prepared
    for index, asked in sorted([*faulty, *((one.item.index, one.asked) for one in prepared)], key=lambda one: one[0]):
        id_, nowhere = item_command_id(batch_id, index), asked.nowhere
        more = await misfits(call, asked.checked, id_, faulty=True, nowhere=nowhere)
        found += _within(index, asked.told(more)[len(asked.told()) if asked.faults else 0 :])
        if len(found) >= MAX_ISSUES:
            break
    raise bad_request(found[:MAX_ISSUES])


class _Alike:
    """Items that differ in their names only are checked once: most of a sweep's do, and a check is the most that an
    item costs.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._known: dict[tuple[int, *tuple[tuple[str, bytes], ...]], Examined] = {}
        """By the colons of an item, of which one with a field twice has more, and its fields."""
        self._last: tuple[TrainingSpec | None, int] = None, 0
        """Of the item before: its spec, and how many bytes it had without its name."""

    def size(self, item: BatchItem) -> int:
        """In bytes, as it would be sent on by itself; those behind the first of the same spec are but estimated."""
        command = item.command
        names = LONGEST_CHARACTER * (len(command.name) + len(command.requested_name))
        if self._last[0] is not command.spec:
            self._last = command.spec, len(msgspec.json.encode(item))
        return self._last[1] + names

    async def examined(self, raw: bytes, command_id: str) -> Examined | list[Issue]:
        """One item as it will be decided, with what is wrong with it; a list where it is no creation at all."""
        try:
            fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
            name = msgspec.json.decode(fields.pop("name", msgspec.Raw(b"null")))
        except UNDECODABLE:
            return await self._examined(raw, command_id)
        key = colons(raw), *((field, bytes(value)) for field, value in fields.items())
        known = self._known.get(key)
        fits = isinstance(name, str) and name and "\x00" not in name and len(raw) <= MAX_BODY_BYTES
        if known is not None and fits:
            checked = known.checked
            if not [*check_name(name, as_prefix=checked.use_given_name_as_prefix)]:
                if known.like is None:
                    known = self._known[key] = dataclasses.replace(known, like=known.command(command_id))
                return dataclasses.replace(known, checked=replace(checked, name=name))
        asked = await self._examined(raw, command_id)
        if not isinstance(asked, list) and not asked.faulty and len(self._known) < MOST_ALIKE:
            self._known[key] = asked
        return asked

    async def _examined(self, raw: bytes, command_id: str) -> Examined | list[Issue]:
        found = _read(raw)
        return found if isinstance(found, list) else await examined(self._call, *found, command_id)


def _read(raw: bytes) -> tuple[Kind, Json] | list[Issue]:
    """The kind and the fields of one item, or why it has none."""
    if len(raw) > MAX_BODY_BYTES:
        details = f"must be at most {MAX_BODY_BYTES} bytes, got {len(raw)} bytes"
        return [Issue(field="", details=details, rule="max")]
    try:
        data = read_object(raw)
    except BadBodyError as error:
        return [Issue(field=error.field, details=str(error))]
    if unfit := unfit_texts(raw, data):
        return unfit
    kind = data.pop("kind", None)
    if kind is None:
        return [Issue(field="kind", details=f"is required: {', '.join(KINDS)}", rule="required")]
    if not isinstance(kind, str) or kind not in KINDS:
        return [Issue(field="kind", details=none_of(str(kind), KINDS), rule="options")]
    return KINDS[kind], data


def _within(index: int, issues: Iterable[Issue]) -> Iterator[Issue]:
    """Issues of an item, as those of the request."""
    for issue in issues:
        below = f"items[{index}]"
        yield Issue(field=f"{below}.{issue.field}" if issue.field else below, details=issue.details, rule=issue.rule)


async def _misfitting(call: Call, prepared: Sequence[_Prepared], batch_id: str) -> dict[int, BatchItemOutcome]:
    """Items that do not go together with what there is, or with an item before them, by index; the code of all others
    is kept from here on.
    """
    found: dict[int, BatchItemOutcome] = {}
    keys: set[str] = set()
    fitting: set[tuple[str, str, tuple[str, ...], int, int, int]] = set()
    """What was looked at already: without its name, nothing tells one item from another of the same objects."""
    for number, one in enumerate(prepared):
        if number % CHECKED_AT_ONCE == 0:
            await asyncio.sleep(0)
        command, command_id = one.item.command, item_command_id(batch_id, one.item.index)
        key = workload_key(command.project_id, command.name)
        if key in keys:
            twice = Refusal(code="name_taken", field="name", message="another item of the batch has this name already")
            found[one.item.index] = _of_refusal(one, twice)
            continue
        keys.add(key)
        objects = id(command.spec), id(command.distributed), id(command.inference)
        same = command.project_id, command.cluster_id, command.among, *objects
        asked, more = one.asked, list[Issue]()
        if same not in fitting:
            more = await misfits(call, asked.checked, command_id, faulty=asked.faulty, nowhere=asked.nowhere)
        if issues := one.asked.told(more):
            found[one.item.index] = _of_error(one, bad_request(issues))
            continue
        fitting.add(same)
        if (code := code_of(one.asked.checked)) is not None and call.may_submit(command.project_id):
            await keep_for(call, code, key)
    return found


def _parts(prepared: Sequence[_Prepared], *, whole: bool) -> Iterator[list[_Prepared]]:
    """What is decided at once."""
    part: list[_Prepared] = []
    size = 0
    for one in prepared:
        if part and not whole and (len(part) == PART_ITEMS or size + one.size > PART_BYTES):
            yield part
            part, size = [], 0
        part.append(one)
        size += one.size
    if part:
        yield part


async def _all_sent(
    call: Call, request: BatchRequest, parts: Iterator[list[_Prepared]]
) -> list[tuple[list[_Prepared], BatchAnswered | Refused]]:
    """What became of each part. Once the first is answered, the next one is under way while one is being stored."""
    answered: list[tuple[list[_Prepared], BatchAnswered | Refused]] = []
    under_way = deque[tuple[list[_Prepared], asyncio.Task[BatchAnswered | Refused]]]()
    try:
        for part in parts:
            if not answered:
                answered.append((part, await _sent(call, request, part, first=True)))
                continue
            under_way.append((part, asyncio.create_task(_sent(call, request, part, first=False))))
            if len(under_way) == PARTS_UNDER_WAY:
                answered.append((under_way[0][0], await under_way[0][1]))
                under_way.popleft()
        while under_way:
            answered.append((under_way[0][0], await under_way[0][1]))
            under_way.popleft()
    finally:
        for _, task in under_way:
            task.cancel()
        await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)
    return answered


async def _sent(
    call: Call, request: BatchRequest, part: Sequence[_Prepared], *, first: bool
) -> BatchAnswered | Refused:
    """What became of a part. Raises 400 where it fits no message, and 503 where nobody knows."""
    request = replace(request, packed=packed([one.item for one in part]))
    if len(request.packed) > MOST_PACKED_BYTES:
        return Refused(refusal=_too_large(len(request.packed), whole=request.all_or_nothing))
    pause = PAUSE_SECONDS
    for number in range(MAX_TRIES):
        try:
            reply = await call.api.commands.send_batch(request)
        except GateAwayError:
            if first and number == 0:
                raise  # and nothing was done
            reply = OutcomeUnknown()
        if isinstance(reply, Refused) and first:
            raise refused(reply.refusal, creation=True)
        unknown = isinstance(reply, BatchAnswered) and any(isinstance(o.reply, OutcomeUnknown) for o in reply.items)
        if not (unknown or isinstance(reply, OutcomeUnknown)):
            return reply
        await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 (jitter)
        pause *= 2
    raise outcome_unknown()


def _too_large(size: int, *, whole: bool) -> Refusal:
    if whole:
        message = (
            f"the items take {size:,} bytes packed, and one step takes {MOST_PACKED_BYTES:,}; send fewer at once, or "
            "leave allOrNothing out"
        )
        return Refusal(code="invalid", field="allOrNothing", message=message)
    return Refusal(code="invalid", message="the item is too large to be sent on; send less text")


def _saw(call: Call, part: Sequence[_Prepared], reply: BatchAnswered) -> int:
    """The newest sequence of what was acknowledged: a floor for every later read of this process."""
    commands = {one.item.index: one.item.command for one in part}
    newest = 0
    for one in reply.items:
        if isinstance(one.reply, Accepted):
            command = commands[one.index]
            call.api.store.saw(WORKLOAD.name, workload_key(command.project_id, command.name), one.reply.seq)
            newest = max(newest, one.reply.seq)
    return newest


def _of_reply(one: _Prepared, reply: CommandReply) -> BatchItemOutcome:
    if isinstance(reply, Accepted):
        return BatchItemOutcome(index=one.item.index, code=202, name=one.item.command.name, id=reply.id)
    assert isinstance(reply, Refused), "what nobody knows was asked again"
    return _of_refusal(one, reply.refusal)


def _of_refusal(one: _Prepared, refusal: Refusal) -> BatchItemOutcome:
    return _of_error(one, refused(refusal, creation=True))


def _of_error(one: _Prepared, error: ApiError) -> BatchItemOutcome:
    return BatchItemOutcome(
        index=one.item.index,
        code=error.status,
        name=one.item.command.name,
        message=error.message,
        details=UNSET if error.details is None else error.details,
        compliance_issues=UNSET if error.issues is None else compliance_issues(error.issues),
    )


def _answer(outcomes: list[BatchItemOutcome], seq: int, *, all_or_nothing: bool) -> Answer[BatchOutcome]:
    """Raises what is the matter where a batch that is all or nothing is nothing."""
    created = sum(outcome.id is not UNSET for outcome in outcomes)
    if all_or_nothing and not created:
        raise _nothing_created(outcomes)
    body = BatchOutcome(created=created, refused=len(outcomes) - created, items=outcomes)
    return Answer(body, status=202, headers={"X-Log-Sequence": str(seq)} if seq else {})


def _nothing_created(outcomes: Sequence[BatchItemOutcome]) -> ApiError:
    """One status for all: that of the items that are at fault, where they agree."""
    at_fault = [outcome for outcome in outcomes if outcome.details != "others_refused"]
    first, statuses = at_fault[0], {outcome.code for outcome in at_fault}
    status = statuses.pop() if len(statuses) == 1 else 400
    issues = [
        Issue(field=f"items[{outcome.index}].{issue.field}", details=issue.details)
        for outcome in at_fault
        for issue in (outcome.compliance_issues or [ComplianceIssue(field="name", details=outcome.message or "")])
    ]
    more = f", and {len(at_fault) - 1} more" if len(at_fault) > 1 else ""
    return ApiError(
        status,
        f"nothing was created: items[{first.index}]: {first.message}{more}",
        details=first.details or None,
        issues=issues[:MAX_ISSUES] if status == HTTPStatus.BAD_REQUEST else None,
    )
