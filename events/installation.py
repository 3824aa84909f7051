"""The log aggregate: one for the whole log. It says how often the log was restored from a backup.

A restored log gives sequences out again that commits had which were lost. So whatever is told apart by a sequence
outside of the log, as agents tell runs, carries the incarnation, too.
"""

from datetime import datetime
from typing import Final, assert_never

import msgspec

from events.decision import Context, Decision
from events.refusal import Refusal

LOG_KEY: Final = "log"
"""The only key of this aggregate."""
MOST_INCARNATIONS: Final = 8_000
"""Run tokens have room for so many, and stay whole numbers in JavaScript (workload/pod.py)."""

# -- events ----------------------------------------------------------------------------------------------------------


class LogRestored(msgspec.Struct, frozen=True, kw_only=True):
    """The log was restored from a backup. What came after that backup is lost."""

    incarnation: int
    """How often the log has been restored; 1 the first time."""
    seq: int
    """Last sequence of the backup."""
    chain: str
    """Hash of the whole log up to there, as `muster backup` prints it."""
    backed_up_at: datetime
    """When the backup was made. Everything later is lost."""


LogEvent = LogRestored

# -- state -----------------------------------------------------------------------------------------------------------


class Log(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    incarnation: int = 0
    """How often the log has been restored."""
    restored_seq: int = 0
    """Last sequence of the backup that it was restored from; 0 where it never was."""


def evolve(_: Log, event: LogEvent) -> Log:
    match event:
        case LogRestored():
            return Log(incarnation=event.incarnation, restored_seq=event.seq)
        case _:
            assert_never(event)


# -- commands and decide ---------------------------------------------------------------------------------------------


class RestoreLog(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    seq: int
    chain: str
    backed_up_at: datetime


LogCommand = RestoreLog


def decide(command: LogCommand, state: Log, _: Context) -> Decision[LogEvent]:
    match command:
        case RestoreLog():
            if state.restored_seq == command.seq and command.seq:
                return ()  # the same restore, gone on with
            if state.incarnation >= MOST_INCARNATIONS:
                return Refusal(code="too_many_restores", message=f"a log can be restored {MOST_INCARNATIONS:,} times")
            return (
                LogRestored(
                    incarnation=state.incarnation + 1,
                    seq=command.seq,
                    chain=command.chain,
                    backed_up_at=command.backed_up_at,
                ),
            )
        case _:
            assert_never(command)
