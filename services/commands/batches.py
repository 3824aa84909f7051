"""Parts of batches of creations: each item decided as a creation of its own, and all appended in one atomic batch.

Every item is a command with an id of its own, made from the batch's: where an item of a repeated batch was created
before, it is found by that (docs/adr/0085). What a creation means is decided by its aggregate.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from prometheus_client import Counter

from events.aggregate import WORKLOAD, Chain, Draft
from events.codec import UNDECODABLE
from events.envelope import (
    Accepted,
    AdmittedBatch,
    AdmittedCommand,
    BatchAnswered,
    BatchItem,
    BatchReply,
    CommandReply,
    ItemReply,
    OutcomeUnknown,
    Refused,
    unpacked,
)
from events.ids import incarnation_id, item_command_id, workload_key
from events.refusal import Refusal
from events.subjects import CREATE_WORKLOADS, admitted_subject
from events.workload.commands import CreateWorkload
from events.workload.exposure import asked_labels
from events.workload.refusals import name_taken, others_refused
from events.workload.state import Workload
from services.commands.counts import Counts
from services.commands.decide import decide_on, key_reused, refused
from services.commands.handle import (
    HANDLE_SECONDS,
    LIMIT_REACHED,
    LONGEST_PAUSE_SECONDS,
    MAX_TRIES,
    PAUSE_SECONDS,
    Commands,
    log_full_refusal,
    utc_now,
)
from services.commands.keys import Keys, Pledged
from services.commands.limits import Creation
from services.commands.pledge import accepted
from services.runtime.log.jetstream import STREAM_FULL_CODE
from services.runtime.log.store import Committed, Conflict, EventStore, Outcome, Rejected, UnreadableMessageError
from services.runtime.nats.jetstream_api import JetStreamError
from services.runtime.nats.request_server import reply
from services.runtime.nats.requests import UnansweredError

CHAINS_AT_ONCE: Final = 32
"""Read from the log side by side, where names turn out not to be new."""
DECIDED_AT_ONCE: Final = 50
"""Before others have their turn: some milliseconds."""
MOST_COMMIT_BYTES: Final = 1_000_000
"""Of the events of one item: a message of the log holds 1 MiB, with what stands beside them."""
KEY_TARGET: Final = "workloads:batch"
"""What the Idempotency-Key of a batch is about, in its record."""

_DECODER: Final = msgspec.json.Decoder(AdmittedBatch)
_SUBJECT: Final = admitted_subject(CREATE_WORKLOADS)
_ITEMS: Final = Counter("muster_batch_items", "Items of batches that were answered", ["outcome"])

log = structlog.get_logger(__name__)

type _Handler = Callable[[Msg], Awaitable[None]]


def serve(connection: Client, batches: "Batches", others: _Handler) -> _Handler:
    """What answers a part of a batch; every other message is for `others`."""

    async def handle(message: Msg) -> None:
        if message.subject != _SUBJECT:
            await others(message)
            return
        try:
            batch = _DECODER.decode(message.data)
            items = unpacked(batch.packed)
        except UNDECODABLE as error:
            log.warning("batch_not_read", subject=message.subject, error=str(error))
            await reply(connection, message, refused("invalid", "the message is no batch known here"))
            return
        answer = await batches.answer(batch, items)
        outcomes = [item.reply for item in answer.items] if isinstance(answer, BatchAnswered) else [answer]
        for outcome in outcomes:
            _ITEMS.labels(outcome.refusal.code if isinstance(outcome, Refused) else type(outcome).__name__).inc()
        await reply(connection, message, answer)

    return handle


@dataclass(slots=True)
class _Item:
    """One creation under way."""

    index: int
    command: CreateWorkload
    key: str
    admitted: AdmittedCommand
    obstacle: Refusal | None = None
    chain: Chain[Workload] | None = None
    """None until it was read: most names are new."""
    reply: CommandReply | None = None
    """None while it is not decided."""

    @property
    def command_id(self) -> str:
        return self.admitted.command_id

    def refuse(self, refusal: Refusal) -> None:
        self.reply = Refused(refusal=refusal)


class Batches:
    """Carries out parts of batches."""

    def __init__(
        self,
        commands: Commands,
        *,
        store: EventStore,
        keys: Keys,
        counts: Counts,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._commands = commands
        self._store = store
        self._keys = keys
        self._counts = counts
        self._clock = clock

    async def answer(self, batch: AdmittedBatch, given: Sequence[BatchItem]) -> BatchReply:
        """Carry a part out, in HANDLE_SECONDS at most."""
        try:
            async with asyncio.timeout(HANDLE_SECONDS):
                return await self._carry_out(batch, given)
        except UnreadableMessageError as error:
            log.warning("batch_without_facts", batch_id=batch.batch_id, error=str(error))
            return refused("log_unreadable", f"{error}; an administrator must {error.todo}")
        except (UnansweredError, JetStreamError, TimeoutError) as error:
            log.warning("batch_outcome_unknown", batch_id=batch.batch_id, error=str(error) or "too slow")
            return OutcomeUnknown()

    async def _carry_out(self, batch: AdmittedBatch, given: Sequence[BatchItem]) -> BatchReply:
        if batch.body_hash and not await self._pledged(batch):
            return key_reused()
        items = _items_of(batch, given)
        try:
            await self._find_obstacles(items)
            await self._decide_and_append(batch, items)
        finally:
            for item in items:
                self._counts.end(item.command_id, item.reply.seq if isinstance(item.reply, Accepted) else None)
        replies = [ItemReply(index=item.index, reply=item.reply or OutcomeUnknown()) for item in items]
        return BatchAnswered(items=tuple(sorted([*batch.refused, *replies], key=lambda one: one.index)))

    async def _pledged(self, batch: AdmittedBatch) -> bool:
        """Whether the Idempotency-Key stands for this very batch. Unlike that of one command it stays with it, whatever
        becomes of its items: another part may have been carried out.
        """
        kept = await self._keys.read(batch.batch_id)
        if kept is None:
            entry = Pledged(target=KEY_TARGET, body_hash=batch.body_hash)
            if await self._keys.write(batch.batch_id, entry, over=0) is not None:
                return True
            kept = await self._keys.read(batch.batch_id)
        known = None if kept is None else kept.entry
        return isinstance(known, Pledged) and (known.target, known.body_hash) == (KEY_TARGET, batch.body_hash)

    async def _find_obstacles(self, items: Sequence[_Item]) -> None:
        """What stands in the way of each outside its name: one look for each project and cluster, and the limits."""
        full = self._commands.log_full
        misplaced: dict[tuple[str, str, tuple[str, ...]], Refusal | None] = {}
        asked: list[tuple[str, Creation]] = []
        creations: dict[tuple[str, int], Creation] = {}
        for item in items:
            command = item.command
            place = (command.project_id, command.cluster_id, command.among)
            if place not in misplaced:
                misplaced[place] = log_full_refusal(full) if full else await self._commands.misplaced(command)
            item.obstacle = misplaced[place]
            if item.obstacle is None:
                whose = command.project_id, id(command.spec)
                creation = creations.get(whose) or _creation(command, item.admitted.actor.id)
                creations[whose] = creation
                asked.append((item.command_id, creation))
        refusals = await self._counts.admit_all(asked, self._clock())
        for item in items:
            item.obstacle = item.obstacle or refusals.get(item.command_id)

    async def _decide_and_append(self, batch: AdmittedBatch, items: Sequence[_Item]) -> None:
        """Gives every item its reply; those that nobody knows of have none."""
        deadline = asyncio.get_running_loop().time() + HANDLE_SECONDS
        # What was created before is answered as it was then, whatever stands in the way now.
        await self._read([item for item in items if item.obstacle is not None])
        pause = PAUSE_SECONDS
        for _ in range(MAX_TRIES):
            drafts = await self._decided(items)
            if batch.all_or_nothing and (batch.refused or any(isinstance(item.reply, Refused) for item in items)):
                await self._read([item for item, _ in drafts if item.chain is None])
                _leave_out(await self._decided(items))
                return
            if not drafts:
                return
            left = deadline - asyncio.get_running_loop().time()
            outcome = await self._store.append_batch([draft for _, draft in drafts], deadline_seconds=max(left, 0.0))
            if not isinstance(outcome, Conflict):
                _settle(drafts, outcome, batch)
                return
            await asyncio.sleep(pause * random.random())  # noqa: S311 (jitter, so that two do not chase each other)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            await self._read([item for item, _ in drafts])
        log.warning("batch_lost_every_race", batch_id=batch.batch_id)

    async def _decided(self, items: Sequence[_Item]) -> list[tuple[_Item, Draft]]:
        """What is to be appended; items that are decided without have their reply."""
        drafts: list[tuple[_Item, Draft]] = []
        for number, item in enumerate(items):
            if number % DECIDED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if item.reply is not None:
                continue
            chain = item.chain or Chain(state=WORKLOAD.initial)
            decided = decide_on(WORKLOAD, item.key, chain, item.admitted, self._clock())
            if isinstance(decided, Draft) and item.obstacle is not None:
                decided = Refused(refusal=item.obstacle)
            if isinstance(decided, Draft) and _size(decided) > MOST_COMMIT_BYTES:
                decided = refused("invalid", "the item is too large to be stored; send less text")
            if isinstance(decided, Draft):
                drafts.append((item, decided))
            else:
                item.reply = decided
        return drafts

    async def _read(self, items: Sequence[_Item]) -> None:
        """The chains of these names as they are now; an item that was created before, and is no more the newest of its
        name, has its reply.
        """
        places = asyncio.Semaphore(CHAINS_AT_ONCE)

        async def read(item: _Item) -> None:
            async with places:
                item.chain = await self._store.load(WORKLOAD, item.key, min_seq=item.admitted.min_seq)
                made = incarnation_id(item.key, item.command_id)
                if not item.chain.version or item.chain.state.workload_id == made:
                    return
                earlier = await self._store.load_at(WORKLOAD, item.key, made)
                if earlier is not None:
                    item.reply = Accepted(seq=earlier.version, id=made, at=earlier.state.created_at)

        await asyncio.gather(*(read(item) for item in items if item.reply is None))


def _items_of(batch: AdmittedBatch, items_given: Sequence[BatchItem]) -> list[_Item]:
    """Of two with one name the later is refused: one atomic batch holds one commit of a name."""
    items: list[_Item] = []
    keys: set[str] = set()
    for given in items_given:
        admitted = AdmittedCommand(
            command_id=item_command_id(batch.batch_id, given.index),
            actor=batch.actor,
            command=given.command,
            body_hash=batch.body_hash,
            correlation_id=batch.correlation_id,
            min_seq=batch.min_seq,
        )
        command = given.command
        item = _Item(given.index, command, workload_key(command.project_id, command.name), admitted)
        if item.key in keys:
            item.refuse(name_taken(given.command.name))
        keys.add(item.key)
        items.append(item)
    return items


def _creation(command: CreateWorkload, actor: str) -> Creation:
    """As limits count it."""
    labels = asked_labels(command.spec.exposed_urls)
    return Creation(command.project_id, actor, len(msgspec.json.encode(command.spec)), labels=labels)


def _leave_out(drafts: Sequence[tuple[_Item, Draft]]) -> None:
    for item, _ in drafts:
        item.refuse(others_refused())


def _size(draft: Draft) -> int:
    return sum([memoryview(event.data).nbytes for event in draft.record.events])


def _settle(drafts: Sequence[tuple[_Item, Draft]], outcome: Outcome, batch: AdmittedBatch) -> None:
    """The replies of items that were to be appended."""
    if isinstance(outcome, Committed):
        for (item, _), commit in zip(drafts, outcome.commits, strict=True):
            item.reply = accepted(commit, item.admitted)
    elif isinstance(outcome, Rejected) and outcome.code == STREAM_FULL_CODE:
        for item, _ in drafts:
            item.refuse(log_full_refusal(LIMIT_REACHED))
    else:
        log.warning("batch_append_unknown", batch_id=batch.batch_id, reason=getattr(outcome, "message", ""))
