"""How full the streams are that take nothing more once they are full, and the alarm before that. The others let go of
the oldest, and are full in good order.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import structlog
from prometheus_client import Gauge

from services.runtime.nats.declared import DECLARED
from services.runtime.nats.jetstream_api import stream_info
from services.runtime.nats.requests import Requests
from services.runtime.process.host import Health

ALARM_SHARE: Final = 0.8
"""There is still time to make room, or to find who fills it."""
CALM_SHARE: Final = 0.75
"""Below it an alarm ends: not at every message around the mark."""
LOOK_SECONDS: Final = 3.0

WATCHED: Final = tuple(declared.name for declared in DECLARED if declared.settings.get("discard") == "new")

_FULLNESS: Final = Gauge("muster_stream_fullness", "Share of its limit that a stream uses, 0 to 1", ["stream"])

log = structlog.get_logger(__name__)


class Fullness(msgspec.Struct, frozen=True):
    stream: str
    bytes: int
    max_bytes: int

    @property
    def share(self) -> float:
        return self.bytes / self.max_bytes if self.max_bytes > 0 else 0.0


async def fullness(requests: Requests, streams: Sequence[str] = WATCHED) -> list[Fullness]:
    """Raises UnansweredError, JetStreamError."""
    found: list[Fullness] = []
    for stream in streams:
        info = await stream_info(requests, stream, seconds=LOOK_SECONDS)
        found.append(Fullness(stream, info.state.bytes, info.config.max_bytes))
    return found


class Alarms:
    """Says when a stream is nearly full, and when it no longer is: in the health, in the log, as a figure."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def look(self, found: Sequence[Fullness]) -> None:
        for one in found:
            _FULLNESS.labels(one.stream).set(one.share)
            name, raised = f"stream {one.stream}", f"stream {one.stream}" in self._health.warnings
            if one.share >= ALARM_SHARE:
                if not raised:
                    log.error("stream_nearly_full", stream=one.stream, bytes=one.bytes, max_bytes=one.max_bytes)
                self._health.warnings[name] = f"{one.share:.0%} of {one.max_bytes:,} bytes are used"
            elif raised and one.share < CALM_SHARE:
                del self._health.warnings[name]
                log.info("stream_has_room", stream=one.stream, bytes=one.bytes, max_bytes=one.max_bytes)
