"""The streams as they must be. Pure: who renders a server's configuration needs no connection.

Which setting protects what, and what was measured, stands in the design's log.md, sections 1 and 2.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Final

from events.subjects import (
    ACTORS_STREAM,
    ALL_ACTORS,
    ALL_AUDIT,
    ALL_CODE,
    ALL_CREDENTIALS,
    ALL_EVENTS,
    ALL_FEED,
    ALL_KEYS,
    ALL_OBSERVED,
    ALL_REFUSALS,
    ALL_SNAPSHOTS,
    ALL_STANDS,
    ALL_WANTED,
    AUDIT_STREAM,
    CODE_STREAM,
    CREDENTIALS_STREAM,
    EVENTS_STREAM,
    FEED_STREAM,
    KEYS_STREAM,
    OBSERVED_STREAM,
    REFUSALS_STREAM,
    SNAPSHOTS_STREAM,
    WANTED_STREAM,
    WEBHOOKS_STREAM,
)
from services.runtime.nats.calls import CONSUMER_SECONDS, UNACKNOWLEDGED

SYNC_TAG: Final = "sync:always"
"""Servers wear it; EVENTS is placed on no other."""
SERVER_REPORT_SUBJECT: Final = "muster.servers.jetstream"
"""Where the account asks every server how its JetStream is set; imported from the system account (nats_config.py)."""
SERVER_CONNECTIONS: Final = "muster.servers.connections"
"""Where every server says who is connected to it; imported likewise."""
KEYS_SECONDS: Final = 24 * 3600
"""How long a repeated Idempotency-Key is answered as the first time."""
OBSERVED_SECONDS: Final = 600
"""How long a word of an agent stays in OBSERVED: it says all that still holds at least every other minute, so what goes
is what was settled, or said by nobody any more."""

FEED_DAYS: Final = 30
"""How long public events are kept where nothing else is said, as `Settings.feed_retention_days`."""
FEED_CONSUMERS: Final = 5_000
"""On FEED at once: one for each subscription, and those of our own readers. No server changes it later."""

_GIB: Final = 1024**3
_MIB: Final = 1024**2
LOG_MAX_BYTES: Final = 8 * _GIB
"""Of the log where nothing else is said, as `Settings.log_max_bytes`."""
MAX_FILE_STORE: Final = "MUSTER_NATS_MAX_FILE_STORE"
"""Variable of a server's environment that `deploy/nats/nats.conf` names: how much of its disk it may use, in bytes."""
BESIDE_LOG_BYTES: Final = 8 * _GIB
"""What a server may use beside the log: the other streams have one, and may be given more."""
NANOSECONDS: Final = 1_000_000_000
RESTORING: Final = "muster-restoring"
"""In the metadata of the log's stream while a backup is being put back into it: the head of that backup."""
DAY_SECONDS: Final = 24 * 3600

Config = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One stream as it must be."""

    name: str
    subjects: tuple[str, ...]
    max_bytes: int
    """What setup creates it with (the log with `Settings.log_max_bytes`); it may be another, but not unlimited."""
    settings: Config = field(default_factory=dict[str, Any])
    chosen: frozenset[str] = frozenset()
    """Settings that an operator chooses: setup creates the stream with his choice, and each is right that is set."""

    def config(self, replicas: int) -> Config:
        return {
            "name": self.name,
            "subjects": list(self.subjects),
            "retention": "limits",
            "num_replicas": replicas,
            "max_bytes": self.max_bytes,
            "placement": {"tags": [SYNC_TAG]},
            "consumer_limits": {
                "inactive_threshold": CONSUMER_SECONDS * NANOSECONDS,
                "max_ack_pending": UNACKNOWLEDGED,
            },
            **self.settings,
        }


_NOTHING_EXPIRES: Final[Config] = {"max_age": 0, "max_msgs": -1, "sealed": False, "allow_msg_schedules": False}
_LAST_PER_SUBJECT: Final[Config] = {"max_msgs_per_subject": 1, "discard": "new", "allow_direct": True}

DECLARED: Final = (
    Declared(
        name=EVENTS_STREAM,
        subjects=(ALL_EVENTS,),
        max_bytes=LOG_MAX_BYTES,
        settings={
            **_NOTHING_EXPIRES,
            "storage": "file",
            "discard": "new",
            "max_msgs_per_subject": -1,
            "deny_delete": True,
            "deny_purge": True,
            "allow_rollup_hdrs": False,
            "allow_msg_ttl": False,
            "allow_atomic": True,
            "allow_direct": True,
            "compression": "none",
            "duplicate_window": 600 * NANOSECONDS,
        },
    ),
    Declared(
        name=WANTED_STREAM,
        subjects=(ALL_WANTED,),
        max_bytes=256 * _MIB,
        settings={**_NOTHING_EXPIRES, **_LAST_PER_SUBJECT, "storage": "memory", "allow_msg_ttl": True},
    ),
    Declared(
        name=OBSERVED_STREAM,
        subjects=(ALL_OBSERVED,),
        max_bytes=256 * _MIB,
        settings={
            **_NOTHING_EXPIRES,
            **_LAST_PER_SUBJECT,
            # The oldest goes first: who says very much must not keep others from being heard. What goes unread is
            # said again.
            "discard": "old",
            "storage": "memory",
            "max_age": OBSERVED_SECONDS * NANOSECONDS,
        },
    ),
    Declared(
        name=AUDIT_STREAM,
        subjects=(ALL_AUDIT,),
        max_bytes=256 * _MIB,
        # Only what took a special right: some hundred thousand of these, and then the oldest goes first.
        settings={**_NOTHING_EXPIRES, "storage": "file", "discard": "old", "deny_purge": True},
    ),
    Declared(
        name=REFUSALS_STREAM,
        subjects=(ALL_REFUSALS,),
        max_bytes=64 * _MIB,
        # The oldest goes first: nobody may stop the gate by having very many commands refused, nor push out of AUDIT
        # what administrators did.
        settings={**_NOTHING_EXPIRES, "storage": "file", "discard": "old", "deny_purge": True},
    ),
    Declared(
        name=SNAPSHOTS_STREAM,
        subjects=(ALL_SNAPSHOTS,),
        max_bytes=512 * _MIB,
        # The oldest goes first: what is there can be made again, and nobody may stop others from saving theirs for ever
        # by filling it.
        settings={**_NOTHING_EXPIRES, **_LAST_PER_SUBJECT, "discard": "old", "storage": "file"},
    ),
    Declared(
        name=KEYS_STREAM,
        subjects=(ALL_KEYS,),
        max_bytes=256 * _MIB,
        # What an Idempotency-Key stands for, for a day. At some 250 bytes each, the limit holds a million; beyond it
        # the oldest goes first: nobody may stop everybody's changes by sending very many.
        settings={
            **_NOTHING_EXPIRES,
            "storage": "file",
            "max_age": KEYS_SECONDS * NANOSECONDS,
            "max_msgs_per_subject": 1,
            "discard": "old",
            "deny_delete": True,
            "deny_purge": True,
        },
    ),
    Declared(
        name=ACTORS_STREAM,
        subjects=(ALL_ACTORS,),
        max_bytes=64 * _MIB,
        # Whom the ids in the log mean: nothing else says so, and it must last as long as the log. Some 250 bytes each.
        # Here and in the audit `muster user erase` deletes what names a person; no service has that right.
        settings={
            **_NOTHING_EXPIRES,
            **_LAST_PER_SUBJECT,
            "allow_direct": False,
            "storage": "file",
            "deny_purge": True,
            "allow_rollup_hdrs": False,
            "allow_msg_ttl": False,
            "compression": "none",
        },
    ),
    Declared(
        name=CODE_STREAM,
        subjects=(ALL_CODE,),
        max_bytes=2048 * _MIB,
        # What people sent along with workloads, in parts; the api purges what no living workload uses.
        settings={
            **_NOTHING_EXPIRES,
            **_LAST_PER_SUBJECT,
            "storage": "file",
            "deny_delete": True,
            "allow_rollup_hdrs": False,
            "allow_msg_ttl": False,
        },
    ),
    Declared(
        name=CREDENTIALS_STREAM,
        subjects=(ALL_CREDENTIALS,),
        max_bytes=256 * _MIB,
        # Values of credentials, sealed: the log says that they are, and nothing else has them. The api purges what no
        # credential has any more. Some 100,000 of 2 KiB.
        settings={
            **_NOTHING_EXPIRES,
            **_LAST_PER_SUBJECT,
            "storage": "file",
            "deny_delete": True,
            "allow_rollup_hdrs": False,
            "allow_msg_ttl": False,
        },
    ),
    Declared(
        name=FEED_STREAM,
        subjects=(ALL_FEED,),
        max_bytes=_GIB,
        # Public events, some million of them; the oldest goes first, and all can be made again from the log. Nobody
        # publishes with a message's id: a window of duplicates would only lose what is written anew.
        settings={
            **_NOTHING_EXPIRES,
            "storage": "file",
            "max_age": FEED_DAYS * DAY_SECONDS * NANOSECONDS,
            "discard": "old",
            "deny_delete": True,
            "deny_purge": True,
            "allow_rollup_hdrs": False,
            "allow_msg_ttl": False,
            "allow_atomic": True,
            "allow_direct": True,
            "duplicate_window": NANOSECONDS,
            "max_consumers": FEED_CONSUMERS,
            # A subscription's consumer stays while its subscriber is away.
            "consumer_limits": {"max_ack_pending": UNACKNOWLEDGED},
        },
        chosen=frozenset({"max_age"}),
    ),
    Declared(
        name=WEBHOOKS_STREAM,
        subjects=(ALL_STANDS,),
        max_bytes=64 * _MIB,
        # How far public events were delivered to webhooks, every few seconds while that changes: a backup takes the
        # newest, and must find one also where another is written while it reads. The limit holds more than that many.
        settings={
            **_NOTHING_EXPIRES,
            "storage": "file",
            "discard": "old",
            "max_msgs_per_subject": 10,
            "deny_delete": True,
            "deny_purge": True,
            "allow_rollup_hdrs": False,
            "allow_msg_ttl": False,
        },
    ),
)


def as_chosen(*, log_max_bytes: int = LOG_MAX_BYTES, feed_retention_days: int = FEED_DAYS) -> tuple[Declared, ...]:
    """The streams with what the operator chooses."""
    chosen: dict[str, Declared] = {declared.name: declared for declared in DECLARED}
    chosen[EVENTS_STREAM] = replace(chosen[EVENTS_STREAM], max_bytes=log_max_bytes)
    feed = chosen[FEED_STREAM]
    kept = {"max_age": feed_retention_days * DAY_SECONDS * NANOSECONDS}
    chosen[FEED_STREAM] = replace(feed, settings={**feed.settings, **kept}, chosen=frozenset())
    return tuple(chosen.values())


def file_store_bytes(log_max_bytes: int) -> int:
    """What a server must be allowed to use of its disk (`max_file_store`), for a log of that size."""
    return log_max_bytes + BESIDE_LOG_BYTES


DISPOSABLE_STREAMS: Final = (WANTED_STREAM, OBSERVED_STREAM, SNAPSHOTS_STREAM)
"""What they held is said, or made, again. The first two are in memory, and gone with the last server that held them;
the third goes where a disk has damaged it (muster/embedded/damaged.py).
"""
DERIVED_STREAMS: Final = (*DISPOSABLE_STREAMS, FEED_STREAM)
"""Those that can be made anew from others. A migration may change all of their settings."""


def store_account(stream: str) -> str:
    """The account on NATS that the stream stands in, and its folder's name."""
    return f"STORE_{stream}"
