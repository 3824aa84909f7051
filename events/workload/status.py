"""The phase and the reason that a workload is said to have."""

from msgspec.structs import replace

from events.phases import (
    CLOSING,
    NODE_UNREACHABLE,
    PODS_RUN_AGAIN,
    SCALED_TO_ZERO,
    SCALED_TO_ZERO_MESSAGE,
    DesiredPhase,
    Phase,
    pods_run_again,
)
from events.workload.edit import Edit


def derive(edit: Edit, *, queued: bool = False) -> None:
    """The phase that follows from desire and pods, for everything that is neither ended nor on its way out.

    Args:
        queued: whether the scheduler takes up the attempt just now.
    """
    state, pods = edit.state, edit.pods
    if state.phase in CLOSING or state.desired is DesiredPhase.DELETED:
        return
    if state.desired is DesiredPhase.STOPPED:
        if pods.live.size and state.phase is not Phase.STOPPING:
            edit.state = replace(state, phase=Phase.STOPPING)
        return
    if pods.unseen:
        # One that nobody sees is what a person must know of first, however many others run.
        say(edit, Phase.UNKNOWN, reason=NODE_UNREACHABLE, names_unseen=True)
    elif pods.running and pods.behind:
        say(edit, Phase.DEGRADED, reason=PODS_RUN_AGAIN, message=pods_run_again(pods.behind))
    elif pods.running:
        say(edit, Phase.RUNNING)
    elif pods.coming:
        say(edit, Phase.INITIALIZING)
    elif (queued or state.queued) and state.inference is not None and not state.inference.replicas:
        # Whoever asks is answered, once the first replica is up: nothing is missing.
        say(edit, Phase.RUNNING, reason=SCALED_TO_ZERO, message=SCALED_TO_ZERO_MESSAGE)
    elif (queued or state.queued) and state.phase is not Phase.PENDING:
        say(edit, Phase.PENDING)
    elif state.phase is not Phase.PENDING:
        say(edit, state.phase)
    # Why it waits is told as long as it waits.


def say(edit: Edit, phase: Phase, *, reason: str = "", message: str = "", names_unseen: bool = False) -> None:
    """Give it this phase and reason, where it has others."""
    state = edit.state
    edit.names_unseen = names_unseen
    if state.phase is not phase or state.reason != reason or (state.message != message and not names_unseen):
        edit.state = replace(state, phase=phase, reason=reason, message=message)
