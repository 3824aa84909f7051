"""Changes the settings of streams that are there already, by name, and only to stricter ones.

Everything else creates streams, or checks them. A change of settings can drop what is stored (`max_msgs`, `max_age`),
in spite of all that forbids deleting, so it has a user of its own (`migrate`), whose password no running service has.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
import structlog
from nats.aio.client import Client

from events.subjects import EVENTS_STREAM
from services.runtime.nats.calls import call
from services.runtime.nats.connection import connect
from services.runtime.nats.declared import DERIVED_STREAMS, Config, Declared, as_chosen
from services.runtime.nats.streams import StreamError, differences, shown, stream_config
from services.runtime.process.settings import Settings

USER: Final = "migrate"
UPDATE_SECONDS: Final = 30.0

type Changes = dict[str, tuple[Any, Any]]
"""Settings: what they are, and what they become."""


def _keeps_more(before: Any, after: Any) -> bool:
    """Of a limit, which 0 and -1 switch off."""
    return after <= 0 or 0 < before <= after


STRICTER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    # What is stored stays stored.
    "max_age": _keeps_more,
    "max_msgs": _keeps_more,
    "max_msgs_per_subject": _keeps_more,
    "max_bytes": _keeps_more,
    "max_msg_size": _keeps_more,
    "discard": lambda _, after: after == "new",
    "deny_delete": lambda _, after: after is True,
    "deny_purge": lambda _, after: after is True,
    "allow_rollup_hdrs": lambda _, after: not after,
    "allow_msg_ttl": lambda _, after: not after,
    "republish": lambda _, after: not after,
    "subject_transform": lambda _, after: not after,
    # Nothing is lost by these.
    "allow_atomic": lambda _, after: after is True,
    "allow_direct": lambda _, after: after is True,
    "duplicate_window": lambda before, after: after >= before,
    "compression": lambda _, after: after == "none",
    "consumer_limits": lambda _, after: bool(after),
    "placement": lambda before, after: not before and bool(after),
}
"""Which changes of which settings a migration makes. Every other one is refused."""
_LIMITS: Final = frozenset({"max_age", "max_msgs", "max_msgs_per_subject", "max_bytes", "max_msg_size"})


def is_stricter(key: str, before: Any, after: Any) -> bool:
    """Whether a migration may change the setting so."""
    if key in _LIMITS:
        before, after = before or 0, after or 0
    return key in STRICTER and STRICTER[key](before, after)


def wanted_streams(settings: Settings) -> tuple[Declared, ...]:
    """The streams as this installation is to have them."""
    return as_chosen(log_max_bytes=settings.log_max_bytes, feed_retention_days=settings.feed_retention_days)


def changes(declared: Declared, actual: Config, replicas: int) -> Changes:
    """What a migration changes about a stream. Raises StreamError where that would not be stricter."""
    found = differences(declared, actual, replicas)
    if declared.name == EVENTS_STREAM and 0 < actual.get("max_bytes", -1) < declared.max_bytes:
        found["max_bytes"] = (actual["max_bytes"], declared.max_bytes)
    if declared.name in DERIVED_STREAMS:
        return found
    loose = [
        f"stream {declared.name}: {key} is {shown(before)} and must be {shown(after)}: no migration makes that change, "
        "since it could lose what is stored, or let more be done to it; make the log anew from a backup."
        for key, (before, after) in found.items()
        if not is_stricter(key, before, after)
    ]
    if loose:
        raise StreamError("\n".join(loose))
    return found


async def wanted_changes(nc: Client, settings: Settings) -> dict[str, Changes]:
    """By stream. Only looks. Raises StreamError."""
    found: dict[str, Changes] = {}
    for declared in wanted_streams(settings):
        actual = await stream_config(nc, declared.name)
        if actual and (wanted := changes(declared, actual, settings.replicas)):
            found[declared.name] = wanted
    return found


def told(found: dict[str, Changes]) -> list[str]:
    return [
        f"stream {stream}: {key} {shown(before)} -> {shown(after)}"
        for stream, of_stream in found.items()
        for key, (before, after) in of_stream.items()
    ]


async def migrate(settings: Settings) -> list[str]:
    """Make every change that is wanted; a sentence for each. Raises StreamError, and then what is named before it may
    have been made.
    """
    log = structlog.get_logger(__name__)
    connection = await connect(settings, USER)
    try:
        found = await wanted_changes(connection, settings)
        for stream, of_stream in found.items():
            config = {**(await stream_config(connection, stream) or {}), **{k: v for k, (_, v) in of_stream.items()}}
            answer = await connection.request(
                call("STREAM.UPDATE", stream), msgspec.json.encode(config), timeout=UPDATE_SECONDS
            )
            if error := msgspec.json.decode(answer.data).get("error"):
                raise StreamError(
                    f"stream {stream} could not be changed ({', '.join(told({stream: of_stream}))}): "
                    f"{error['description']}; for more room, the server's own `max_file_store` must have it"
                )
            for sentence in told({stream: of_stream}):
                log.warning("stream_migrated", change=sentence)
        return told(found)
    finally:
        await connection.close()
