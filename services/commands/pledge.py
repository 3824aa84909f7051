"""One command that came with an Idempotency-Key: the key is pledged to it before anything is stored, so that no other
request can use the key meanwhile, and so that the same one finds its first answer (docs/adr/0028).

The chain's guard alone makes a command take effect once on one aggregate; here is what holds across aggregates, and
after the chain has forgotten the command.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from events.aggregate import Chain, Draft
from events.commands import creates
from events.commit import Commit
from events.envelope import Accepted, AdmittedCommand, CommandReply, Refused
from services.commands.decide import key_reused
from services.commands.keys import Entry, Kept, Keys, Pledged, Released, Settled
from services.runtime.nats.requests import UnansweredError

PAUSE_SECONDS: Final = 0.01
"""Before another look where two wrote at once, or an answer was lost; doubled each time up to the longest."""
LONGEST_PAUSE_SECONDS: Final = 0.5

log = structlog.get_logger(__name__)

type FindCommit = Callable[[int, int], Awaitable[Commit | None]]
"""This command's commit in the target's chain, after one sequence and up to another; None where there is none."""


class Pledge:
    """What the key of one command stands for, while the command is carried out.

    Args:
        target: subject of the aggregate that the command is about.
        find: looks for the command's commit in that aggregate's chain.
    """

    def __init__(self, keys: Keys, admitted: AdmittedCommand, target: str, find: FindCommit) -> None:
        self._keys = keys
        self._admitted = admitted
        self._id = admitted.command_id
        self._target = target
        self._find = find
        self._held = 0
        """Sequence of our own record; 0: we have none yet."""
        self._alone = False
        """Nobody but us can have had this request under way since the key was free."""
        self._after_seq = 0
        """Up to here, the chain was searched for what another one may have stored."""

    async def settle(self, decided: Draft | CommandReply, chain: Chain[Any]) -> Draft | CommandReply:
        """What is to be done about a decision on `chain`: append it, or answer. Ends with the caller's deadline."""
        pause = PAUSE_SECONDS
        while True:
            try:
                settled = await self._try(decided, chain)
            except UnansweredError as error:
                # Stored or not: the next look tells.
                log.info("key_not_answered", command_id=self._id, error=str(error))
                settled = None
            if settled is not None:
                return settled
            await asyncio.sleep(pause * random.random())  # noqa: S311 (jitter)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _try(self, decided: Draft | CommandReply, chain: Chain[Any]) -> Draft | CommandReply | None:
        """None: another one was faster, look again."""
        if self._held:
            return await self._with_ours(decided, chain)
        if not isinstance(decided, Refused) and await self._write(decided, chain.version, over=0):
            self._alone = True
            return decided
        kept = await self._keys.read(self._id)
        if isinstance(decided, Refused) and (kept is None or isinstance(kept.entry, Released)):
            return decided
        return None if kept is None else await self._over(kept, decided, chain)

    async def _with_ours(self, decided: Draft | CommandReply, chain: Chain[Any]) -> Draft | CommandReply | None:
        if not self._alone and (answer := await self._found(chain.version)):
            return answer
        if isinstance(decided, Draft):
            return decided
        if isinstance(decided, Refused):
            if self._alone:
                # Where another one has pledged the key again meanwhile, it stays with that one.
                await self._keys.write(self._id, Released(), over=self._held)
            return decided
        if await self._write(decided, chain.version, over=self._held):
            return decided
        self._held = 0
        return None

    async def _over(self, kept: Kept, decided: Draft | CommandReply, chain: Chain[Any]) -> Draft | CommandReply | None:
        """Where the key has stood for something already."""
        entry = kept.entry
        if isinstance(entry, Released):
            self._alone = await self._write(decided, chain.version, over=kept.seq)
            return decided if self._alone else None
        if (entry.target, entry.body_hash) != (self._target, self._admitted.body_hash):
            return key_reused()
        if isinstance(entry, Settled):
            return entry.answer
        self._after_seq = entry.after_seq
        if answer := await self._found(chain.version):
            return answer
        if isinstance(decided, Refused):
            return decided  # and the key stays with this request: its first try may still be under way
        return decided if await self._write(decided, entry.after_seq, over=kept.seq) else None

    async def _write(self, decided: Draft | CommandReply, after_seq: int, *, over: int) -> bool:
        target, body_hash = self._target, self._admitted.body_hash
        entry: Entry = Pledged(target=target, body_hash=body_hash, after_seq=after_seq)
        if isinstance(decided, Accepted):
            entry = Settled(target=target, body_hash=body_hash, answer=decided)
        self._held = await self._keys.write(self._id, entry, over=over) or 0
        return self._held > 0

    async def _found(self, until_seq: int) -> Accepted | None:
        """The answer of the first time, where its commit is in the chain's part that was not searched yet."""
        if until_seq <= self._after_seq:
            return None
        commit = await self._find(self._after_seq, until_seq)
        self._after_seq = until_seq
        return None if commit is None else accepted(commit, self._admitted)


def accepted(commit: Commit, admitted: AdmittedCommand) -> Accepted:
    """The answer to a command that made a commit, today and whenever it comes again."""
    made = commit.record.about.id if creates(admitted.command) else None
    return Accepted(seq=commit.seq, id=made or "", at=commit.record.occurred_at)
