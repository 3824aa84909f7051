"""A log with everything in it that a log can hold, and a backup of it."""

import asyncio
import base64
import hashlib
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from nats.aio.client import Client

from development.servers import EVERYTHING, NatsServer
from events.aggregate import LOG
from events.installation import LOG_KEY, Log
from events.subjects import aggregate_subject
from services.runtime.backup.archive import Message
from services.runtime.backup.check import compare, read_manifest
from services.runtime.backup.place import Place
from services.runtime.backup.restore import Restored, restore
from services.runtime.backup.seal import sealer_of
from services.runtime.backup.source import Source
from services.runtime.backup.write import Done, back_up
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.calls import call
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from tests.support.drafts import grant
from tests.support.stores import seqs

PASSPHRASE = b"a passphrase of tests"
OF_WRITING = ("Nats-Batch-", "Nats-Expected-", "Nats-Msg-Id")
FILES = {"keys/local.json": b'{"d": "secret of the key"}', "clusters/one": b"kubeconfig"}


def nothing(_done: int, _total: int) -> None:
    """Shows no progress."""


async def commits(client: Client, count: int, key: str = "") -> None:
    """Append so many commits, one by one."""
    store, key, parent = JetStreamEventStore(client), key or secrets.token_hex(4), 0
    for _ in range(count):
        parent = seqs(await store.append(grant(key, parent)))[0]


async def batch(client: Client, count: int) -> None:
    """Append one atomic batch."""
    store = JetStreamEventStore(client)
    await store.append_batch([grant(secrets.token_hex(4), 0) for _ in range(count)])


async def odd(client: Client) -> None:
    """What no program of ours writes: no JSON, no text, no payload, headers of somebody's."""
    for data in (b"not json", bytes(range(256)), b"", "ü\u2028\x00".encode()):
        subject = aggregate_subject("tenant", secrets.token_hex(4))
        await client.request(subject, data, timeout=5, headers={"X-Odd": "a: b", "Status": "404"})
    await commits(client, 3)


async def people(client: Client, count: int) -> None:
    """Write records beside the log, in streams that a backup keeps."""
    for number in range(count):
        await client.request(f"actor.k{number}.a{number}", b"person %d" % number, timeout=60)
        await client.request(f"audit.p{number}", b"audit %d" % number, timeout=60)
        await client.request(f"key.k{number}", b"key %d" % number, timeout=60)
        await client.request("stand.webhooks", b"stand %d" % number, timeout=60)


async def backed_up(
    server: NatsServer, folder: Path | str, *, passphrase: bytes = PASSPHRASE, files: Mapping[str, bytes] = FILES
) -> Done:
    """A backup as the user `backup` makes it."""
    client = await connect(server.settings("backup"), "backup")
    try:
        source = Source(Requests(client))
        return await back_up(source, Place(str(folder)), passphrase, dict(files), version="1", progress=nothing)
    finally:
        await client.close()


async def in_log(server: NatsServer, first: int = 1) -> list[Message]:
    """What the log holds, read one by one with the server's own call, and decoded by other code than the backup's."""
    client = await connect(server.settings(EVERYTHING), EVERYTHING)
    found: list[Message] = []
    try:
        end = (await client.jetstream().stream_info("EVENTS")).state.last_seq
        for seq in range(first, end + 1):
            answer = await client.request(
                call("STREAM.MSG.GET", "EVENTS"), msgspec.json.encode({"seq": seq}), timeout=5
            )
            stored = msgspec.json.decode(answer.data)["message"]
            lines = base64.b64decode(stored.get("hdrs", "")).decode().split("\r\n")[1:]
            headers = dict(line.split(": ", 1) for line in lines if line)
            data = base64.b64decode(stored.get("data", ""))
            found.append(Message(seq, stored["subject"], stored["time"], headers, data))
    finally:
        await client.close()
    return found


def chain_of(messages: list[Message]) -> str:
    """The hash at the end, as the page on backups describes it."""
    chain = bytes(32)
    for one in messages:
        subject = one.subject.encode()
        chain = hashlib.sha256(
            chain + one.seq.to_bytes(8, "big") + len(subject).to_bytes(4, "big") + subject + one.data
        ).digest()
    return chain.hex()


async def compared(server: NatsServer, folder: Path | str) -> int:
    user = await connect(server.settings("backup"), "backup")
    try:
        place = Place(str(folder))
        return await compare(place, read_manifest(place), Source(Requests(user)), nothing)
    finally:
        await user.close()


@asynccontextmanager
async def connected(server: NatsServer, user: str = EVERYTHING) -> AsyncGenerator[Client]:
    nc = await connect(server.settings(user), user)
    try:
        yield nc
    finally:
        await nc.close()


async def restored(server: NatsServer, folder: Path | str, put: dict[str, bytes] | None = None) -> Restored:
    """As `muster restore` does it, with its own user."""
    files: dict[str, bytes] = {} if put is None else put
    nc = await connect(server.settings("restore"), "restore")
    place = Place(str(folder))
    try:
        manifest = read_manifest(place)
        return await restore(
            nc,
            place,
            manifest,
            await asyncio.to_thread(sealer_of, manifest.sealing, PASSPHRASE),
            replicas=1,
            log_max_bytes=64 * 2**20,
            put_files=files.update,
            now=datetime.now(UTC),
            progress=lambda _what, _done, _total: None,
        )
    finally:
        await nc.close()


def told(messages: list[Message]) -> list[tuple[int, str, bytes, Mapping[str, str]]]:
    """All of a message but when it was stored, and how it was to be written."""
    return [
        (m.seq, m.subject, m.data, {k: v for k, v in m.headers.items() if not k.startswith(OF_WRITING)})
        for m in messages
    ]


async def state(server: NatsServer) -> Log:
    async with connected(server) as nc:
        return (await JetStreamEventStore(nc).load(LOG, LOG_KEY)).state
