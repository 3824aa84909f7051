"""What is done about the streams as they are declared: setup creates them, everybody else checks them.

Only the two that are derived, and kept in memory, come and go with their server: cluster_sync makes them again.

The servers' own settings (sync of every write) are asked of all servers over NATS, through an import from the system
account.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from services.runtime.nats.calls import call
from services.runtime.nats.declared import (
    DECLARED,
    DERIVED_STREAMS,
    DISPOSABLE_STREAMS,
    NANOSECONDS,
    RESTORING,
    SERVER_REPORT_SUBJECT,
    SYNC_TAG,
    Config,
    Declared,
)
from services.runtime.nats.jetstream_api import NOT_FOUND, UNAVAILABLE

MINIMUM_VERSION: Final = (2, 15)
"""The release that everything here was measured on; earlier ones lose replicated writes in known ways."""
REQUEST_SECONDS: Final = 5.0
STARTUP_SECONDS: Final = 30.0
"""How long a cluster that has just started may take to elect the streams' leaders."""
REPORT_SECONDS: Final = 0.2
"""How long further servers' reports are waited for after the first."""


class StreamError(Exception):
    """A server or a stream is not as it must be; the message says what to change."""


_REASONS: Final = {
    "discard": "or the server acknowledges what it throws away",
    "deny_delete": "or history can be changed",
    "deny_purge": "or history can be thrown away",
    "allow_rollup_hdrs": "or one message can wipe the stream",
    "allow_msg_ttl": "or messages of the log can expire",
    "allow_msg_schedules": "or a schedule can publish in others' names",
    "allow_atomic": "or several aggregates cannot change together",
    "allow_direct": "or reads of a chain are not possible in one request",
    "max_age": "or the log forgets, or what is over is kept for ever",
    "max_msgs": "or the log forgets",
    "max_msgs_per_subject": "or chains are cut, or state piles up",
    "storage": "as its contents are kept, or derived",
    "duplicate_window": "so that a repeated append is recognised",
    "compression": "as compaction has corrupted compressed blocks",
    "subjects": "or part of what is written goes elsewhere",
    "retention": "or reading consumes",
    "sealed": "or nothing can be written",
    "num_replicas": "as MUSTER_REPLICAS says",
    "consumer_limits": "or consumers that nobody pulls from, or acknowledges to, stay and grow",
    "placement": "so that it stands only on servers that sync every write",
    "max_bytes": "with a limit, so that the log says that it is full before the disk is",
}
_DEFAULTS: Final[Config] = {
    "allow_msg_schedules": False,
    "allow_atomic": False,
    "deny_delete": False,
    "deny_purge": False,
    "max_consumers": -1,
    "max_msg_size": -1,
    "max_msgs_per_subject": -1,
    "duplicate_window": 120 * NANOSECONDS,
    "compression": "none",
}
"""What a setting is where nobody set it; where it is not here, off. A server leaves some of them out."""
_OF_NO_MATTER: Final = frozenset({"name", "description", "metadata", "max_bytes", "num_replicas", "first_seq"})
"""Or looked at apart."""
_SENTENCES: Final = {
    "mirror": "is set, then it is not written here: remove it",
    "sources": "is set, then others' messages stand between ours: remove it",
    "subject_transform": "is set, then messages change their subjects: remove it",
    "republish": "is set, then what is stored is also said elsewhere: remove it",
    "no_ack": "is on, switch it off, or nobody knows what is stored",
}


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


async def create_streams(nc: Client, replicas: int, streams: Sequence[Declared] = DECLARED) -> None:
    """Create what is not there; leave alone what is. Raises StreamError."""
    await _create(nc, replicas, streams)


async def create_disposable_streams(nc: Client, replicas: int) -> None:
    """Create WANTED, OBSERVED and SNAPSHOTS where their servers came back without them. Only cluster_sync, which fills
    the first and reads the second, calls it. Raises StreamError.
    """
    await _create(nc, replicas, [declared for declared in DECLARED if declared.name in DISPOSABLE_STREAMS])


async def _create(nc: Client, replicas: int, streams: Sequence[Declared]) -> None:
    for declared in streams:
        if await stream_config(nc, declared.name) is not None:
            continue
        request = msgspec.json.encode(declared.config(replicas))
        answer = await nc.request(call("STREAM.CREATE", declared.name), request, timeout=STARTUP_SECONDS)
        created = msgspec.json.decode(answer.data, type=_Created)
        if created.error is not None:
            raise StreamError(
                f"stream {declared.name} of at most {declared.max_bytes} bytes could not be created: "
                f"{created.error.description}; the server's `max_file_store` must have room for it"
            )


async def assert_streams(nc: Client, *, replicas: int | None = None) -> None:
    """Refuse to go on where a server or a stream would lose or change what was acknowledged. Raises StreamError with
    everything that is wrong, one sentence each. Waits some time for servers that are still starting. Streams that
    cluster_sync and feed make again may be missing.
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
        actual = await stream_config(nc, declared.name)
        if actual is None and declared.name in DERIVED_STREAMS:
            # A server comes back without what it had in memory, and cluster_sync makes it again; FEED is made again by
            # feed. Until then, who reads it waits, and nobody else needs it: no service depends on those for its start.
            continue
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


def differences(declared: Declared, actual: Config, replicas: int | None) -> dict[str, tuple[Any, Any]]:
    """Every setting of a stream that is not as it must be: what it is, and what it must be. Also those that nobody here
    sets: a stream that keeps no large message, or copies another one, is not what it seems.
    """
    wanted = declared.config(replicas or 0)
    if replicas is None:
        del wanted["num_replicas"]
    del wanted["max_bytes"], wanted["name"]
    for key in declared.chosen:
        if actual.get(key):
            wanted[key] = actual[key]
    for key in actual.keys() - wanted.keys() - _OF_NO_MATTER:
        wanted[key] = _DEFAULTS.get(key)
    found = {key: (actual.get(key, _DEFAULTS.get(key)), value) for key, value in wanted.items()}
    if actual.get("deny_delete"):
        # Forbidden where it need not be, nothing is less safe; only nobody can be forgotten there.
        found.pop("deny_delete", None)
    return {key: (is_, must) for key, (is_, must) in found.items() if is_ != must and (is_ or must)}


def wrong_settings(declared: Declared, actual: Config, replicas: int | None) -> list[str]:
    """What must change about a stream, one sentence each."""
    wrong = [
        f"stream {declared.name}: {_sentence(key, is_, must)}."
        for key, (is_, must) in differences(declared, actual, replicas).items()
    ]
    if head := metadata_of(actual).get(RESTORING):
        wrong.append(
            f"stream {declared.name}: a backup with the head {head} is being restored into it. Wait for `muster "
            "restore`, or run it again to go on; nothing starts before it is done."
        )
    if actual.get("max_bytes", -1) <= 0:
        wrong.append(f"stream {declared.name}: max_bytes is unlimited, set it {_REASONS['max_bytes']}.")
    return wrong


def metadata_of(config: Config | None) -> dict[str, str]:
    """What a stream is labelled with."""
    found: dict[str, str] | None = (config or {}).get("metadata")
    return found or {}


def _sentence(key: str, is_: Any, must: Any) -> str:
    if key == "persist_mode":
        return f"persist_mode is {is_}, set it to default, or acknowledged writes are lost"
    if key in _SENTENCES:
        return f"{key} {_SENTENCES[key]}"
    if must is None:
        return f"{key} is {shown(is_)}, and nothing here sets it: switch it off"
    return f"{key} is {shown(is_)}, set it to {shown(must)}, {_REASONS.get(key, 'as nothing here sets it')}"


def shown(value: object) -> str:
    return "not set" if value is None else msgspec.json.encode(value).decode()


async def stream_config(nc: Client, stream: str) -> Config | None:
    """The stream's settings; None where there is no such stream. Raises StreamError, NatsTimeoutError."""
    answer = await nc.request(call("STREAM.INFO", stream), b"", timeout=REQUEST_SECONDS)
    info = msgspec.json.decode(answer.data, type=_Info)
    if info.error is None:
        return info.config
    if info.error.code == NOT_FOUND:
        return None
    if info.error.code == UNAVAILABLE:
        raise NatsTimeoutError
    raise StreamError(f"stream {stream} cannot be read: {info.error.description}")


def parse_report(payload: bytes) -> ServerReport:
    return msgspec.json.decode(payload, type=ServerReport)


async def _server_reports(nc: Client) -> list[ServerReport]:
    """One report per server of the cluster."""
    return [parse_report(answer) for answer in await ask_servers(nc, SERVER_REPORT_SUBJECT)]


async def ask_servers(
    nc: Client, subject: str, question: bytes = b"{}", *, seconds: float = REQUEST_SECONDS
) -> list[bytes]:
    """What every server of the cluster answers, in any order; none where none does within that time."""
    inbox = nc.new_inbox()
    subscription = await nc.subscribe(inbox)  # pyright: ignore[reportUnknownMemberType]
    answers: list[bytes] = []
    try:
        await nc.publish(subject, question, reply=inbox)
        wait = seconds
        while True:
            message = await subscription.next_msg(timeout=wait)
            if not message.data:
                return answers  # "no responders"
            answers.append(message.data)
            wait = REPORT_SECONDS
    except NatsTimeoutError:
        return answers
    finally:
        with contextlib.suppress(NatsError):  # the connection went meanwhile, and the subscription with it
            await subscription.unsubscribe()
