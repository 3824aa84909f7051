"""The streams as they must be, and the two things done about it: setup creates them, everybody else checks them.

Only the two that are derived, and kept in memory, come and go with their server: cluster_sync makes them again.

Which setting protects what, and what was measured, stands in the design's log.md, sections 1 and 2. The servers' own
settings (sync of every write) are asked of all servers over NATS, through an import from the system account.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from events.subjects import (
    ALL_AUDIT,
    ALL_EVENTS,
    ALL_OBSERVED,
    ALL_SNAPSHOTS,
    ALL_WANTED,
    AUDIT_STREAM,
    EVENTS_STREAM,
    OBSERVED_STREAM,
    SNAPSHOTS_STREAM,
    WANTED_STREAM,
)
from services.runtime.jetstream_api import NOT_FOUND, UNAVAILABLE

MINIMUM_VERSION: Final = (2, 15)
"""The release that everything here was measured on; earlier ones lose replicated writes in known ways."""
SYNC_TAG: Final = "sync:always"
"""Servers wear it; EVENTS is placed on no other."""
SERVER_REPORT_SUBJECT: Final = "muster.servers.jetstream"
"""Where the account asks every server how its JetStream is set; imported from the system account (permissions.py)."""
REQUEST_SECONDS: Final = 5.0
STARTUP_SECONDS: Final = 30.0
"""How long a cluster that has just started may take to elect the streams' leaders."""
REPORT_SECONDS: Final = 0.2
"""How long further servers' reports are waited for after the first."""

_GIB: Final = 1024**3
_MIB: Final = 1024**2
_NANOSECONDS: Final = 1_000_000_000

Config = dict[str, Any]


class StreamError(Exception):
    """A server or a stream is not as it must be; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One stream as it must be."""

    name: str
    subjects: tuple[str, ...]
    max_bytes: int
    """What setup creates it with; an operator may raise it (the log's by `Settings.log_max_bytes`), but not leave it
    unlimited."""
    settings: Config = field(default_factory=dict[str, Any])

    def config(self, replicas: int) -> Config:
        return {
            "name": self.name,
            "subjects": list(self.subjects),
            "retention": "limits",
            "num_replicas": replicas,
            "max_bytes": self.max_bytes,
            "placement": {"tags": [SYNC_TAG]},
            **self.settings,
        }


_NOTHING_EXPIRES: Final[Config] = {"max_age": 0, "max_msgs": -1, "sealed": False, "allow_msg_schedules": False}
_LAST_PER_SUBJECT: Final[Config] = {"max_msgs_per_subject": 1, "discard": "new", "allow_direct": True}

DECLARED: Final = (
    Declared(
        name=EVENTS_STREAM,
        subjects=(ALL_EVENTS,),
        max_bytes=8 * _GIB,
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
            "duplicate_window": 600 * _NANOSECONDS,
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
        settings={**_NOTHING_EXPIRES, **_LAST_PER_SUBJECT, "storage": "memory"},
    ),
    Declared(
        name=AUDIT_STREAM,
        subjects=(ALL_AUDIT,),
        max_bytes=256 * _MIB,
        # The oldest goes first: nobody may stop the gate by having very many commands refused.
        settings={**_NOTHING_EXPIRES, "storage": "file", "discard": "old", "deny_delete": True, "deny_purge": True},
    ),
    Declared(
        name=SNAPSHOTS_STREAM,
        subjects=(ALL_SNAPSHOTS,),
        max_bytes=512 * _MIB,
        settings={**_NOTHING_EXPIRES, **_LAST_PER_SUBJECT, "storage": "file"},
    ),
)

DERIVED_STREAMS: Final = (WANTED_STREAM, OBSERVED_STREAM)
"""In memory: they are gone with the last server that held them, and can be filled again."""

_REASONS: Final = {
    "discard": "or the server acknowledges what it throws away",
    "deny_delete": "or history can be changed",
    "deny_purge": "or history can be thrown away",
    "allow_rollup_hdrs": "or one message can wipe the stream",
    "allow_msg_ttl": "or messages of the log can expire",
    "allow_msg_schedules": "or a schedule can publish in others' names",
    "allow_atomic": "or several aggregates cannot change together",
    "allow_direct": "or reads of a chain are not possible in one request",
    "max_age": "or the log forgets",
    "max_msgs": "or the log forgets",
    "max_msgs_per_subject": "or chains are cut, or state piles up",
    "storage": "as its contents are kept, or derived",
    "duplicate_window": "so that a repeated append is recognised",
    "compression": "as compaction has corrupted compressed blocks",
    "subjects": "or part of what is written goes elsewhere",
    "retention": "or reading consumes",
    "sealed": "or nothing can be written",
    "num_replicas": "as MUSTER_REPLICAS says",
    "placement": "so that it stands only on servers that sync every write",
    "max_bytes": "with a limit, so that the log says that it is full before the disk is",
}
_DEFAULTS: Final[Config] = {
    "allow_msg_schedules": False,
    "allow_atomic": False,
    "deny_delete": False,
    "deny_purge": False,
}
"""What a server leaves out of a stream's configuration where it is off."""


class _ApiError(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Created(msgspec.Struct):
    error: _ApiError | None = None


class _Info(msgspec.Struct):
    error: _ApiError | None = None
    config: Config = {}


class _JetStreamConfig(msgspec.Struct):
    sync_always: bool = False


class _ReportData(msgspec.Struct):
    config: _JetStreamConfig | None = None


class _ReportServer(msgspec.Struct):
    name: str = ""
    ver: str = ""
    tags: list[str] = []
    jetstream: bool = False


class ServerReport(msgspec.Struct):
    server: _ReportServer
    data: _ReportData = msgspec.field(default_factory=_ReportData)


async def create_streams(nc: Client, replicas: int) -> None:
    """Create what is not there; leave alone what is. Only setup calls it. Raises StreamError."""
    await _create(nc, replicas, DECLARED)


async def raise_log_limit(nc: Client, max_bytes: int) -> bool:
    """Let the log grow up to `max_bytes`; whether that is more than before: what is there is never made smaller. Only
    setup calls it. Raises StreamError.
    """
    config = await _info(nc, EVENTS_STREAM)
    if config is None or config.get("max_bytes", -1) >= max_bytes:
        return False
    request = msgspec.json.encode({**config, "max_bytes": max_bytes})
    answer = await nc.request(f"$JS.API.STREAM.UPDATE.{EVENTS_STREAM}", request, timeout=STARTUP_SECONDS)
    error = msgspec.json.decode(answer.data, type=_Created).error
    if error is not None:
        raise StreamError(
            f"stream {EVENTS_STREAM} cannot grow to {max_bytes} bytes: {error.description}; the server's own "
            "`max_file_store` must have room for it"
        )
    return True


async def create_derived_streams(nc: Client, replicas: int) -> None:
    """Create WANTED and OBSERVED where their servers came back without them. Only cluster_sync, which fills the one and
    reads the other, calls it. Raises StreamError.
    """
    await _create(nc, replicas, [declared for declared in DECLARED if declared.name in DERIVED_STREAMS])


async def _create(nc: Client, replicas: int, streams: Sequence[Declared]) -> None:
    for declared in streams:
        if await _info(nc, declared.name) is not None:
            continue
        request = msgspec.json.encode(declared.config(replicas))
        answer = await nc.request(f"$JS.API.STREAM.CREATE.{declared.name}", request, timeout=STARTUP_SECONDS)
        created = msgspec.json.decode(answer.data, type=_Created)
        if created.error is not None:
            raise StreamError(f"stream {declared.name} could not be created: {created.error.description}")


async def assert_streams(nc: Client, *, replicas: int | None = None) -> None:
    """Refuse to go on where a server or a stream would lose or change what was acknowledged. Raises StreamError with
    everything that is wrong, one sentence each. Waits some time for servers that are still starting.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + STARTUP_SECONDS
    while True:
        try:
            await _assert_once(nc, replicas)
        except (NatsTimeoutError, NoRespondersError) as error:
            if loop.time() > deadline:
                raise StreamError(
                    f"JetStream does not answer ({error}); is it running, with its leaders elected?"
                ) from error
            await asyncio.sleep(0.5)
        else:
            return


async def _assert_once(nc: Client, replicas: int | None) -> None:
    wrong = wrong_servers(await _server_reports(nc))
    for declared in DECLARED:
        actual = await _info(nc, declared.name)
        if actual is None:
            wrong.append(f"stream {declared.name} is missing: run `python -m services.setup` once.")
        else:
            wrong.extend(wrong_settings(declared, actual, replicas))
    if wrong:
        raise StreamError("\n".join(wrong))


def wrong_servers(reports: list[ServerReport]) -> list[str]:
    """What must change about the servers, one sentence each."""
    wrong: list[str] = []
    if not reports:
        wrong.append(
            f"No server answered on {SERVER_REPORT_SUBJECT}, so it is not known whether writes are synced: import "
            "$SYS.REQ.SERVER.PING.JSZ from the system account under that name (deploy/nats/nats.conf shows how)."
        )
    for report in reports:
        server, config = report.server, report.data.config
        version = tuple(int(part) for part in server.ver.split("-")[0].split(".")[:2] if part.isdigit())
        if version < MINIMUM_VERSION:
            wanted = ".".join(map(str, MINIMUM_VERSION))
            wrong.append(f"Server {server.name} is version {server.ver}: upgrade it to {wanted} or later.")
        if not server.jetstream or config is None:
            continue  # a server without JetStream stores nothing
        if not config.sync_always:
            wrong.append(
                f"Server {server.name} acknowledges writes before they are on disk: set `sync_interval: always` in "
                "the jetstream block of its configuration and restart it."
            )
        if SYNC_TAG not in server.tags:
            wrong.append(f'Server {server.name} lacks a tag: set `server_tags: ["{SYNC_TAG}"]` and restart it.')
    return wrong


def wrong_settings(declared: Declared, actual: Config, replicas: int | None) -> list[str]:
    """What must change about a stream, one sentence each."""
    wanted = declared.config(replicas or 0)
    if replicas is None:
        del wanted["num_replicas"]
    del wanted["max_bytes"], wanted["name"]
    wrong = [
        f"stream {declared.name}: {key} is {_shown(actual.get(key))}, set it to {_shown(value)}, {_REASONS[key]}."
        for key, value in wanted.items()
        if actual.get(key, _DEFAULTS.get(key)) != value
    ]
    if actual.get("max_bytes", -1) <= 0:
        wrong.append(f"stream {declared.name}: max_bytes is unlimited, set it {_REASONS['max_bytes']}.")
    foreign = {
        key: reason
        for key, reason in (
            ("mirror", "then it is not written here"),
            ("sources", "then others' messages stand between ours"),
            ("subject_transform", "then messages change their subjects"),
            ("republish", "then what is stored is also said elsewhere"),
        )
        if actual.get(key)
    }
    wrong.extend(f"stream {declared.name}: {key} is set, {reason}: remove it." for key, reason in foreign.items())
    if actual.get("persist_mode") == "async":
        wrong.append(
            f"stream {declared.name}: persist_mode is async, set it to default, or acknowledged writes are lost."
        )
    if actual.get("no_ack"):
        wrong.append(f"stream {declared.name}: no_ack is on, switch it off, or nobody knows what is stored.")
    return wrong


def _shown(value: object) -> str:
    return "not set" if value is None else msgspec.json.encode(value).decode()


async def _info(nc: Client, stream: str) -> Config | None:
    answer = await nc.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout=REQUEST_SECONDS)
    info = msgspec.json.decode(answer.data, type=_Info)
    if info.error is None:
        return info.config
    if info.error.code == NOT_FOUND:
        return None
    if info.error.code == UNAVAILABLE:
        raise NatsTimeoutError
    raise StreamError(f"stream {stream} cannot be looked at: {info.error.description}")


def parse_report(payload: bytes) -> ServerReport:
    return msgspec.json.decode(payload, type=ServerReport)


async def _server_reports(nc: Client) -> list[ServerReport]:
    """One report per server of the cluster."""
    inbox = nc.new_inbox()
    subscription = await nc.subscribe(inbox)  # pyright: ignore[reportUnknownMemberType]
    reports: list[ServerReport] = []
    try:
        await nc.publish(SERVER_REPORT_SUBJECT, b"{}", reply=inbox)
        wait = REQUEST_SECONDS
        while True:
            message = await subscription.next_msg(timeout=wait)
            if not message.data:
                return reports  # "no responders"
            reports.append(parse_report(message.data))
            wait = REPORT_SECONDS
    except NatsTimeoutError:
        return reports
    finally:
        with contextlib.suppress(NatsError):  # the connection went meanwhile, and the subscription with it
            await subscription.unsubscribe()
