"""What is decided of ways into pods: who is let in, and which ways are opened and closed."""

from datetime import timedelta

from events.decision import Context
from events.phases import PodPhase
from events.refusal import Refusal
from events.workload.commands import CloseSession, OpenSession
from events.workload.life import WorkloadDecision
from events.workload.pod import PodRef
from events.workload.refusals import not_owner, uses_credentials
from events.workload.sessions import (
    MOST_COMMAND_CHARACTERS,
    MOST_OPEN,
    MOST_PORTS,
    MOST_REASON_CHARACTERS,
    MOST_WORDS,
    SessionClosed,
    SessionOpened,
)
from events.workload.state import Workload


def shut_to(state: Workload, context: Context) -> Refusal | None:
    """Why this actor is not let into pods; it is asked while they are in them, too."""
    if refusal := not_owner(state, context):
        return refusal
    if uses_credentials(state) and not context.actor.id == state.owner == state.created_by:
        return Refusal(
            code="holds_credentials",
            message=f"pods of {state.name!r} hold values of its owner's credentials: nobody else is let into them, "
            "administrators neither; its logs can be read",
        )
    return None


def open_session(command: OpenSession, state: Workload, context: Context) -> WorkloadDecision:
    if any(one.session_id == command.session_id for one in state.sessions):
        return ()
    if refusal := shut_to(state, context):
        return refusal
    pod = state.pods.live.get((command.pod_set, command.index))
    if pod is None or pod.phase is not PodPhase.RUNNING:
        how = "is not there" if pod is None else f"is {pod.phase}"
        return Refusal(
            code="pod_not_running",
            message=f"pod {command.pod_set}-{command.index} of {state.name!r} {how}, and only into a running pod "
            f"anybody is let; the workload is {state.phase}",
        )
    if len(state.sessions) >= MOST_OPEN:
        return Refusal(
            code="too_many_sessions",
            message=f"{len(state.sessions)} sessions lead into pods of {state.name!r} already; end one of them first",
        )
    words = sum(map(len, command.command))
    if len(command.command) > MOST_WORDS or words > MOST_COMMAND_CHARACTERS or len(command.ports) > MOST_PORTS:
        return Refusal(
            code="invalid",
            message=f"a session has a command of at most {MOST_WORDS} words and {MOST_COMMAND_CHARACTERS} characters, "
            f"and at most {MOST_PORTS} ports",
        )
    run = PodRef(pod_set=command.pod_set, index=command.index, attempt=pod.attempt, try_=pod.try_)
    return (
        SessionOpened(
            session_id=command.session_id,
            kind=command.kind,
            pod=run,
            at=context.now,
            ends_at=context.now + timedelta(seconds=max(command.seconds, 1)),
            command=command.command,
            stdin=command.stdin,
            tty=command.tty,
            ports=command.ports,
        ),
    )


def close_session(command: CloseSession, state: Workload, context: Context) -> WorkloadDecision:
    if all(one.session_id != command.session_id for one in state.sessions):
        return ()
    return (
        SessionClosed(
            session_id=command.session_id,
            at=context.now,
            reason=command.reason,
            message=command.message[:MOST_REASON_CHARACTERS],
            exit_code=command.exit_code,
            bytes_in=command.bytes_in,
            bytes_out=command.bytes_out,
        ),
    )
