"""Tells a chat which workloads completed, failed, or wait for long: python notify.py STATE.json

CHAT_URL is an incoming webhook that takes {"text": …}, as those of Slack and Mattermost do. MUSTER_URL and MUSTER_TOKEN
are those of the client. WAIT_SECONDS is how long a workload may wait to run, by default an hour.

STATE.json says how far it has come. It is written before every step, so after a restart nothing is told twice. What was
being posted when the program was killed is not posted again, since the chat may have it.
"""

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx
from muster_client import Muster, Told, models

CHAT_URL = os.environ.get("CHAT_URL") or sys.exit("CHAT_URL is not set: the address of an incoming webhook of the chat")
WAIT_SECONDS = float(os.environ.get("WAIT_SECONDS", "3600"))
LONGEST_PAUSE_SECONDS = 60.0
GIVE_UP_SECONDS = 3_600.0
BEGINS = ("WorkloadSubmitted", "WorkloadResuming", "WorkloadEvicted")
REASONS = ("WorkloadPending", "WorkloadWaiting")
ENDS = (
    "WorkloadRunning",
    "WorkloadCompleted",
    "WorkloadFailed",
    "WorkloadStopping",
    "WorkloadStopped",
    "WorkloadDeleting",
)


@dataclass
class Waiting:
    name: str
    since: float
    why: str = ""


@dataclass
class State:
    place: str | None = None
    waiting: dict[str, Waiting] = field(default_factory=dict[str, Waiting])
    """Workloads that wait and were not told of, by id."""
    outbox: list[str] = field(default_factory=list[str])
    posting: bool = False
    """Whether the first one of the outbox may be at the chat already."""


def read(file: Path) -> State:
    if not file.exists():
        return State()
    held = json.loads(file.read_text())
    return State(**held | {"waiting": {id_: Waiting(**one) for id_, one in held["waiting"].items()}})


def write(file: Path, state: State) -> None:
    new = file.with_suffix(".new")
    with new.open("w") as out:
        json.dump(asdict(state), out)
        out.flush()
        os.fsync(out.fileno())
    new.replace(file)


def take(state: State, told: Told) -> None:
    """What was told changes what waits, and what is to be posted."""
    event = told.event
    # Of what happened while this program was away, the event's own time says how long something had waited.
    now = event.time.timestamp() if event is not None else time.time()
    for id_, one in list(state.waiting.items()):
        if now - one.since >= WAIT_SECONDS:
            state.outbox.append(f"{one.name} waits for {WAIT_SECONDS / 3600:.3g} h: {one.why}")
            del state.waiting[id_]
    match event:
        case models.WorkloadSubmittedPublicEvent() | models.WorkloadResumingPublicEvent():
            state.waiting[event.data.workload_id] = Waiting(event.data.name, now)
        case models.WorkloadEvictedPublicEvent():
            state.waiting[event.data.workload_id] = Waiting(event.data.name, now, event.data.message)
        case models.WorkloadPendingPublicEvent() | models.WorkloadWaitingPublicEvent():
            if (known := state.waiting.get(event.data.workload_id)) is not None:
                known.why = event.data.message or known.why
        case models.WorkloadCompletedPublicEvent():
            state.outbox.append(f"{event.data.name} completed")
        case models.WorkloadFailedPublicEvent():
            state.outbox.append(f"{event.data.name} failed: {event.data.message}")
        case _:
            pass
    if event is not None and any(f".{name}." in event.type for name in ENDS):
        state.waiting.pop(event.subject or "", None)
    if told.lost is not None:
        state.outbox.append(f"Events are missing: {told.lost}")
    state.place = told.place


def post_all(file: Path, state: State, chat: httpx.Client) -> None:
    """Empty the outbox. What the chat does not take is tried again, for an hour; then the program ends."""
    tries, ends = 0, time.monotonic() + GIVE_UP_SECONDS
    while state.outbox:
        state.posting = True
        write(file, state)
        try:
            taken = chat.post(CHAT_URL, json={"text": state.outbox[0]}).is_success
        except (httpx.ConnectError, httpx.ConnectTimeout):
            taken = False
        except httpx.TransportError:
            taken = True  # nobody knows; it is not told twice
        state.posting = False
        if taken:
            state.outbox.pop(0)
            tries = 0
        write(file, state)
        if not taken:
            if time.monotonic() > ends:
                sys.exit(f"{len(state.outbox)} messages wait for the chat, which has not taken any for an hour")
            time.sleep(min(LONGEST_PAUSE_SECONDS, 2**tries))
            tries += 1


def main(file: Path) -> None:
    state = read(file)
    if state.posting:
        state.outbox.pop(0)
    with httpx.Client(timeout=15) as chat, Muster() as muster:
        post_all(file, state, chat)
        for told in muster.follow_events(types=BEGINS + REASONS + ENDS, last_event_id=state.place):
            take(state, told)
            write(file, state)
            post_all(file, state, chat)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
