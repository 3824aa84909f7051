"""Plays the log into a sandbox: its schema is filled as the projector fills its own, up to a moment, at a speed.

Nothing here can write but to the sandbox's schema: the log is an EventReader, and what was played is told to a
PlayedLog, which the sandbox's API reads.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import asyncpg
import msgspec

from events.commit import Commit
from projections.postgres import Connection
from projections.schemas import Note, Replay, write_note
from projections.tables import SHAPE
from services.projector import sandboxes
from services.projector.arrivals import Arrivals, Until, arrivals, at_seq, moment
from services.projector.engine import Engine, open_pool
from services.projector.sandboxes import BadReplayError, SandboxError
from services.projector.writer import Writer
from services.runtime.log.played import PlayedLog
from services.runtime.log.store import EventReader
from services.runtime.process.failpoints import reached

PLAYED_COMMITS: Final = 2_000
"""At once, at most: whoever looks at the sandbox sees them together."""
TICK_SECONDS: Final = 0.2
"""How often what has become due is played, where a speed is kept."""
ALIVE_SECONDS: Final = 1.0
"""How often it is looked whether the sandbox was removed."""
ANSWER_SECONDS: Final = 10.0
FASTEST: Final = 100_000.0
MAX: Final = "max"
ORIGINAL: Final = "original"

type Progress = Callable[[int, int], None]
"""Told (sequence reached, sequence aimed at)."""


class RemovedError(Exception):
    """Somebody removed the sandbox while it was played, or Postgres went away."""


def factor_of(speed: str) -> float | None:
    """How many seconds of the log are played in a second; None: as fast as it goes. Raises BadReplayError."""
    if speed == MAX:
        return None
    if speed == ORIGINAL:
        return 1.0
    try:
        factor = float(speed.removesuffix("x"))
    except ValueError:
        factor = 0.0
    if not speed.endswith("x") or not 0 < factor <= FASTEST:
        raise BadReplayError(f"{speed!r} is no speed; write original, max, or a factor such as 10x (up to 100000x)")
    return factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be played. Of a sandbox that is there already, None is as it was made."""

    name: str
    from_: str | None
    """A sequence or an RFC 3339 time; None for a new one: the log's beginning."""
    to: str | None
    """None for a new one: the log's end at this moment."""
    speed: str | None
    """None for a new one: `max`."""


@dataclass(slots=True, kw_only=True)
class Player:
    """One sandbox that is held, and may be played and served."""

    name: str
    schema: str
    played: PlayedLog
    connection: Connection
    """That holds it."""
    note: Note
    replay: Replay
    engine: Engine
    arrivals: Arrivals
    progress: Progress
    _taken: tuple[int, datetime | None, dict[str, int]]
    """The end of what was taken in, of which the last batch may not be written yet: as `PlayedLog.move` takes it."""
    turns: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Of `connection`, which does one thing at a time."""

    async def prepare(self, stop: asyncio.Event) -> None:
        """Make it as the log stood at its beginning, where it is not yet."""
        if self.replay.indexed:
            return
        start = Until(seq=self.replay.from_seq, at=self.replay.from_at, aim=self.replay.from_aim)
        await self._all(start, stop)
        await self._written()
        if not stop.is_set():
            reached("replay_prepared")
            self.replay = msgspec.structs.replace(self.replay, indexed=True)
            async with self.turns:
                await sandboxes.index(self.connection, self.name, self._noted())

    async def play(self, stop: asyncio.Event) -> bool:
        """Play on to the end, or until `stop`; whether the end was reached. What was taken in is written whole."""
        end = Until(seq=self.replay.to_seq, at=self.replay.to_at, aim=self.replay.to_aim)
        factor = factor_of(self.replay.speed)
        done = await (self._all(end, stop) if factor is None else self._paced(end, factor, stop))
        await self._written()
        if done and self.note.ready_at is None:
            self.note = msgspec.structs.replace(self.note, ready_at=datetime.now(UTC), seq=self.engine.seq)
            await self._write_note()
        return done

    async def say(self, url: str) -> None:
        """Keep where it is served."""
        self.replay = msgspec.structs.replace(self.replay, url=url)
        await self._write_note()

    async def _write_note(self) -> None:
        async with self.turns:
            await write_note(self.connection, self.schema, self._noted())

    def _noted(self) -> Note:
        return msgspec.structs.replace(self.note, replay=self.replay)

    async def _all(self, end: Until, stop: asyncio.Event) -> bool:
        while not stop.is_set():
            if not (commits := await self.arrivals.take(end, most=PLAYED_COMMITS)):
                return True
            await self._take(commits, end.aim)
        return False

    async def _paced(self, end: Until, factor: float, stop: asyncio.Event) -> bool:
        """As the commits followed each other, by their own times."""
        clock = asyncio.get_running_loop().time
        at = max(filter(None, (self.played.at, self.replay.from_at)), default=None)
        begun, at = clock(), at or await self.arrivals.next_time(end)
        while at is not None and not stop.is_set():
            now = at + timedelta(seconds=(clock() - begun) * factor)
            due = Until(seq=end.seq, at=now if end.at is None else min(now, end.at), aim=end.aim)
            if commits := await self.arrivals.take(due, most=PLAYED_COMMITS):
                await self._take(commits, end.aim)
                await self._written()
            elif await self.arrivals.next_time(end) is None:
                return True
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TICK_SECONDS):
                        await stop.wait()
        return at is None

    async def _take(self, commits: Sequence[Commit], aim: int) -> None:
        before, (_, at, _) = self._taken, self._taken
        await self.engine.apply(commits)
        # One batch is folded while the one before it is written: that one is there now.
        self.played.move(*before)
        latest = max(commit.record.occurred_at for commit in commits)
        newest = {commit.aggregate: commit.seq for commit in commits}
        self._taken = (self.engine.seq, latest if at is None else max(at, latest), newest)
        self.progress(self.engine.seq, max(aim, self.engine.seq))

    async def _written(self) -> None:
        await self.engine.flush()
        self.played.move(*self._taken)


@asynccontextmanager
async def player(log: EventReader, postgres_url: str, wanted: Wanted, progress: Progress) -> AsyncGenerator[Player]:
    """The sandbox, made where it is not there yet, and held by us. Raises SandboxError, MomentError, what the log
    raises and what asyncpg raises.
    """
    schema = sandboxes.schema_of(wanted.name)
    async with sandboxes.connected(postgres_url) as connection:
        if not await sandboxes.hold(connection, wanted.name):
            raise SandboxError(f"the sandbox {wanted.name!r} is being played by another process; Ctrl-C ends it there")
        note, replay = await _made(log, connection, wanted)
        seq, at = await sandboxes.place(connection, wanted.name)
        taken = (seq, at, await sandboxes.newest(connection, wanted.name))
        played = PlayedLog(log)
        played.move(*taken)
        pool = await open_pool(postgres_url)
        try:
            writer = Writer(pool, schema)
            engine = Engine(log, writer, await writer.checkpoint(), batch_commits=PLAYED_COMMITS)
            try:
                async with arrivals(log, seq) as read:
                    yield Player(
                        name=wanted.name,
                        schema=schema,
                        played=played,
                        connection=connection,
                        note=note,
                        replay=replay,
                        engine=engine,
                        arrivals=read,
                        progress=progress,
                        _taken=taken,
                    )
            finally:
                await engine.discard()
        finally:
            pool.terminate()


async def _made(log: EventReader, connection: Connection, wanted: Wanted) -> tuple[Note, Replay]:
    """What is known of the sandbox; a new one is made as it is wanted."""
    speed = wanted.speed or MAX
    factor_of(speed)
    known = await sandboxes.known(connection, wanted.name)
    if known is None:
        replay = await _new(log, wanted, speed)
        note = Note(by="replay", shape=SHAPE, began_at=datetime.now(UTC), replay=replay)
        await sandboxes.make(connection, wanted.name, note)
        return note, replay
    replay, again = known.replay, f"remove it with `muster replay rm {wanted.name}`"
    if replay is None or known.shape != SHAPE:
        raise SandboxError(f"the sandbox {wanted.name!r} is of another version of Muster; {again}")
    if wanted.from_ is not None or wanted.to is not None:
        raise SandboxError(
            f"there is a sandbox {wanted.name!r}, from {replay.from_given} to {replay.to_given}: "
            f"leave --from and --to out to go on with it, or {again}"
        )
    return known, msgspec.structs.replace(replay, speed=wanted.speed or replay.speed)


async def _new(log: EventReader, wanted: Wanted, speed: str) -> Replay:
    end = await log.last_seq()
    start = at_seq(0) if wanted.from_ is None else await moment(log, wanted.from_)
    last = at_seq(end) if wanted.to is None else await moment(log, wanted.to)
    if start.aim > last.aim:
        raise BadReplayError(
            f"--from ({wanted.from_}, about {start.aim} in the log) is behind --to "
            f"({wanted.to or end}, about {last.aim})"
        )
    return Replay(
        from_given=wanted.from_ or "0",
        from_seq=start.seq,
        from_at=start.at,
        from_aim=start.aim,
        to_given=wanted.to or str(end),
        to_seq=last.seq,
        to_at=last.at,
        to_aim=last.aim,
        speed=speed,
    )


async def until_removed(player: Player, stop: asyncio.Event) -> None:
    """Wait for `stop`. Where the sandbox is no longer ours, it sets that, so that nobody plays on, and raises
    RemovedError.
    """
    while not stop.is_set():
        try:
            async with player.turns:
                await player.connection.fetchval("SELECT 1", timeout=ANSWER_SECONDS)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            stop.set()
            raise RemovedError(f"the sandbox {player.name!r} was removed, or Postgres went away") from error
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ALIVE_SECONDS):
                await stop.wait()
