"""One command on one chain: what to append, or what to answer without appending. Pure.

What a command means for its aggregate is the aggregate's own `decide`; here stands what holds for all of them: a
command that comes again, a version that has moved on, and which service may give which command.
"""

from datetime import datetime
from typing import Any

from events.aggregate import Aggregate, Chain, Draft, draft
from events.codec import UnwritableError
from events.commands import COMMANDS, UserCommand, creates
from events.decision import Context
from events.envelope import Accepted, AdmittedCommand, CommandReply, Refused
from events.ids import incarnation_id
from events.refusal import Refusal
from events.workload.commands import DeleteWorkload


def decide_on[S](
    aggregate: Aggregate[S], key: str, chain: Chain[S], admitted: AdmittedCommand, now: datetime
) -> Draft | CommandReply:
    """The commit to append on top of `chain`, or the answer where there is nothing to append."""
    if known := remembered(key, chain, admitted):
        return known
    if repeated := _made_before(aggregate, key, chain, admitted):
        return repeated
    expected = admitted.expected_version
    if expected is not None and expected != chain.version:
        return refused(
            "version_moved",
            f"If-Match named version {expected}, but the newest is {chain.version}; read it again and decide anew",
        )
    context = Context(
        now=now,
        actor=admitted.actor,
        command_id=admitted.command_id,
        version=chain.version,
        protected=admitted.protected,
        override=admitted.override,
    )
    decision = aggregate.decide(admitted.command, chain.state, context)
    if isinstance(decision, Refusal):
        return Refused(refusal=decision)
    if not decision:
        return Accepted(seq=chain.version, changed=False)
    try:
        return draft(
            aggregate,
            key,
            chain,
            decision,
            command_id=admitted.command_id,
            actor=admitted.actor,
            now=now,
            body_hash=admitted.body_hash,
            correlation_id=admitted.correlation_id,
        )
    except UnwritableError as error:
        return refused("invalid", f"nobody could read this again, so it is not written: {error}")


def fits_full_log(admitted: AdmittedCommand) -> bool:
    """Whether a nearly full log still takes the command: what makes room, takes rights away or repairs the log, and
    what administrators do short of making new things.
    """
    line = COMMANDS[type(admitted.command)]
    return line.in_full_log or (admitted.override and not line.creates)


def remembered(key: str, chain: Chain[Any], admitted: AdmittedCommand) -> CommandReply | None:
    """The answer of the first time, where the chain itself remembers the command."""
    known = chain.remembered(admitted.command_id)
    if known is None:
        return None
    if known.body_hash != admitted.body_hash:
        return key_reused()
    made = incarnation_id(key, admitted.command_id) if creates(admitted.command) else ""
    return Accepted(seq=known.seq, id=made, at=known.at)


def _made_before(
    aggregate: Aggregate[Any], key: str, chain: Chain[Any], admitted: AdmittedCommand
) -> CommandReply | None:
    """Where the chain no longer remembers a creation: the id of what it made is the command's own."""
    if chain.version == 0 or not creates(admitted.command):
        return None
    made = incarnation_id(key, admitted.command_id)
    if aggregate.about(chain.state).id != made:
        return None
    return Accepted(seq=chain.version, id=made, at=chain.state.created_at)


def key_reused() -> Refused:
    return refused(
        "idempotency_key_reused",
        "this Idempotency-Key came before with another request; send a new request with a new key",
    )


def not_for_service(service: str, command: UserCommand) -> Refusal | None:
    """Why a service may not give this command; None where it may."""
    if COMMANDS[type(command)].service != service:
        return Refusal(code="not_permitted", message=f"service {service!r} may not give {type(command).__name__}")
    if isinstance(command, DeleteWorkload) and command.generation is None:
        if command.project_deleted or command.cluster_removed:
            return None
        return Refusal(
            code="not_permitted",
            message=f"service {service!r} must name the generation of the auto-deletion that is due, or say that the "
            "project or the cluster is gone",
        )
    return None


def refused(code: str, message: str, field: str | None = None) -> Refused:
    return Refused(refusal=Refusal(code=code, message=message, field=field))
