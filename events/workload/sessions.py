"""Ways into a pod: a command that is run in it (`exec`), what its process writes and reads (`attach`), its ports
(`port-forward`). What can have happened to one, and what the workload keeps of those that are open.

Who opened one stands in the commit. Nothing that goes through one is in the log, only how much that was.
"""

from datetime import datetime
from typing import Final, Literal

import msgspec

from events.event import Event
from events.workload.pod import PodRef

MOST_OPEN: Final = 50
"""Sessions of one workload at a time: each stands in its state."""
MOST_WORDS: Final = 64
MOST_COMMAND_CHARACTERS: Final = 4096
"""Of all words of a command together: it is kept for ever, and has to fit a URL."""
MOST_PORTS: Final = 32
MOST_REASON_CHARACTERS: Final = 300

SessionKind = Literal["exec", "attach", "port-forward"]


class SessionOpened(Event, frozen=True, kw_only=True):
    """Somebody was let into a pod of it. It is told before the pod's cluster is asked."""

    session_id: str
    """UUID."""
    kind: SessionKind
    """`exec`, `attach` or `port-forward`."""
    pod: PodRef
    """The run that they were let into."""
    at: datetime
    """When it was decided."""
    ends_at: datetime
    """When it is over at the latest."""
    command: tuple[str, ...] = ()
    """Of `exec`: what is run."""
    stdin: bool = False
    """Whether something can be typed."""
    tty: bool = False
    """Whether it has a terminal."""
    ports: tuple[int, ...] = ()
    """Of `port-forward`: the ports of the container."""


class SessionClosed(Event, frozen=True, kw_only=True):
    """A session is over."""

    session_id: str
    """UUID."""
    at: datetime
    """When it was over."""
    reason: str
    """Code, such as `ended`, `left`, `idle` or `lost` (sessions.md)."""
    message: str = ""
    """The same in a sentence, where there is more to say."""
    exit_code: int | None = None
    """Of the command, where it ended."""
    bytes_in: int = 0
    """That went into the pod."""
    bytes_out: int = 0
    """That came out of it."""


class Session(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One that is open."""

    session_id: str
    kind: SessionKind
    pod: PodRef
    at: datetime
    ends_at: datetime
