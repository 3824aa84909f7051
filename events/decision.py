"""What every decider is given beside the command and the state, and what it answers."""

from datetime import datetime

import msgspec

from events.commit import Actor
from events.refusal import Refusal


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The circumstances of one decision; also all that is not allowed to be looked up inside it."""

    now: datetime
    """UTC."""
    actor: Actor
    command_id: str
    version: int = 0
    """Sequence of the aggregate's last commit; 0 where it has none."""
    incarnation: int = 0
    """How often the log was restored from a backup."""
    protected: bool = False
    """Whether ownership protection is on for the workload's cluster, as the gate saw it."""
    override: bool = False
    """Whether the gate granted the actor the right to act on workloads of others."""


type Decision[E] = tuple[E, ...] | Refusal
"""Events to store, none where it is already so, or a named refusal."""
