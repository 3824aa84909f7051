"""Programs of other people that read public events, killed or paused again and again, as the API is, while FEED is
deleted and written anew by two services: each has seen every event once, after removing what it was told twice, and
each workload's in their order.
"""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
import pytest

from development.ports import free_port
from development.servers import EVERYTHING, NatsServer, PostgresServer
from events.commit import Commit
from events.subjects import FEED_STREAM, split_feed_subject
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.connection import connect
from services.setup.feed import rebuild_feed
from services.setup.migrate import USER
from tests.support.api import Served, serving
from tests.support.busy_users import BusyUsers
from tests.support.public_events import Everything

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

SETTLE_SECONDS: Final = 120.0
OVER_HTTP: Final = """
import http.client, json, os, sys, time, urllib.error, urllib.parse, urllib.request

url, token, path = sys.argv[1:4]
done = open(path, "rb").read().split(b"\\n")[:-1] if os.path.exists(path) else []
last = json.loads(done[-1])["at"] if done else ""
out = open(path, "r+b" if done else "wb")
out.truncate(out.seek(sum(len(line) + 1 for line in done)))  # what the one before was killed in the middle of
while True:
    query = {"lastEventId": last} if last else {"from": "1"}
    query = urllib.parse.urlencode(query)
    request = urllib.request.Request(url + "?" + query, headers={"Authorization": "Bearer " + token})
    try:
        name = data = ""
        id = last
        for line in urllib.request.urlopen(request, timeout=30):
            field, _, value = line.decode().rstrip("\\n").partition(": ")
            if field == "id":
                id = value
            elif field in {"data", "event"}:
                name, data = (value, data) if field == "event" else (name, value)
            elif not field:
                if data and (name or json.loads(data).get("id")):
                    out.write(json.dumps({"at": id, "name": name, "event": json.loads(data)}).encode() + b"\\n")
                    out.flush()
                last, name, data = id, "", ""  # a block that is cut off counts for nothing
    except (OSError, urllib.error.URLError, http.client.HTTPException):
        time.sleep(0.05)
"""
OVER_NATS: Final = """
import asyncio, json, sys, nats

given, path = json.loads(sys.argv[1]), sys.argv[2]

async def main():
    async def ignore(_): pass
    nc = await nats.connect(
        given["url"], nkeys_seed_str=given["seed"], inbox_prefix=given["inboxPrefix"], error_cb=ignore,
        max_reconnect_attempts=-1,
    )
    out = open(path, "ab")
    out.write(b"\\n")
    jetstream = nc.jetstream(domain=given["domain"])
    while True:
        try:
            reader = await jetstream.pull_subscribe_bind(given["consumer"], stream=given["stream"])
            for message in await reader.fetch(50, timeout=2):
                names = {name.removeprefix("ce-"): value for name, value in message.headers.items()}
                out.write(json.dumps({"name": "", "event": names}).encode() + b"\\n")
                out.flush()
                await message.ack()
        except (TimeoutError, nats.errors.Error, nats.js.errors.Error):
            await asyncio.sleep(0.2)

asyncio.run(main())
"""


class Told(NamedTuple):
    """A public event, as far as it matters here."""

    id: str
    workload: str
    sequence: str


class Killable:
    """A process that is killed and started again."""

    def __init__(self, *command: str, **environment: str) -> None:
        self._command = command
        self._environment = os.environ | environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, env=self._environment, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, "it ended by itself"
        self._process.kill()
        self._process.wait()

    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def end(self) -> None:
        """Killed, where it has not ended by itself."""
        if self.runs():
            self.kill()

    def seen(self) -> psutil.Process:
        """As the system shows it."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        process = self.seen()
        process.suspend()
        try:
            yield
        finally:
            process.resume()


class Program:
    """Somebody's program, with a file of what it has seen."""

    def __init__(self, code: str, seen: Path, *arguments: str) -> None:
        self.process = Killable(sys.executable, "-c", code, *arguments, str(seen))
        self._seen = seen

    def _lines(self) -> Iterator[dict[str, Any]]:
        for line in self._seen.read_bytes().split(b"\n") if self._seen.exists() else ():
            with contextlib.suppress(ValueError):  # it was killed in the middle of it
                yield json.loads(line)

    def seen(self) -> list[Told]:
        """In the order in which it saw them first."""
        found: dict[str, Told] = {}
        for line in self._lines():
            if not line["name"]:
                event = line["event"]
                found.setdefault(event["id"], Told(event["id"], event.get("subject", ""), event["sequence"]))
        return list(found.values())

    def said_of_gaps(self) -> bool:
        return any(line["name"] == "gap" for line in self._lines())


async def public_events(server: NatsServer, project: str) -> list[Told]:
    """All of a project, as they follow from the log."""
    nc = await connect(server.settings(EVERYTHING), EVERYTHING)
    try:
        store = JetStreamEventStore(nc)
        end, commits = await store.last_seq(), list[Commit]()
        async with aclosing(store.follow(0)) as batches:
            async for batch in batches:
                commits += batch
                if commits and commits[-1].seq >= end:
                    break
    finally:
        await nc.close()
    told = [(split_feed_subject(m.subject), m.headers) for m in Everything().take(commits).told]
    return [Told(h["ce-id"], workload, h["ce-sequence"]) for (of, workload, _), h in told if of == project]


def test_readers_that_are_killed_see_every_event_once_and_in_order(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path: Path, rounds: int, chance: random.Random
) -> None:
    limits = {"callout_key_dir": nats_server.callout_key_dir()}
    with contextlib.ExitStack() as ends, serving(nats_server, postgres_server, tmp_path, "feed", **limits) as served:
        with served.client() as admin:
            body = {"projectId": served.project, "name": "reader", "fromSequence": 1}
            given = admin.post("/api/v1/subscriptions", json=body).text
        api, url = second_api(nats_server, served, tmp_path)
        programs = [
            Program(OVER_HTTP, tmp_path / "http", f"{url}/api/v1/events/stream", served.token("vic")),
            Program(OVER_NATS, tmp_path / "nats", given),
        ]
        for process in (processes := [*(program.process for program in programs), second_feed(nats_server), api]):
            process.start()
            ends.callback(process.kill)
        with BusyUsers(served, seed=chance.randint(0, 2**32), pause_seconds=0.05):
            for _ in range(rounds):
                time.sleep(chance.uniform(0.2, 1.5))
                if chance.random() < 0.5:
                    assert FEED_STREAM in asyncio.run(rebuild_feed(nats_server.settings(USER)))
                for process in chance.sample(processes, chance.randint(1, 4)):
                    if chance.random() < 0.2:
                        with process.paused():
                            time.sleep(chance.uniform(0.0, 2.0))
                        continue
                    process.kill()
                    time.sleep(chance.uniform(0.0, 0.5))
                    process.start()
        expected = asyncio.run(public_events(nats_server, served.project))
        deadline = time.monotonic() + SETTLE_SECONDS
        for program in programs:
            while len(program.seen()) < len(expected) and time.monotonic() < deadline:
                time.sleep(0.2)
    for program in programs:
        seen = program.seen()
        assert sorted(seen) == sorted(expected), "every event, and no other"
        assert not program.said_of_gaps()
        of: dict[str, list[str]] = {}
        for event in seen:
            of.setdefault(event.workload, []).append(event.sequence)
        assert all(sequences == sorted(sequences) for sequences in of.values())


def second_feed(server: NatsServer) -> Killable:
    """Beside the one that runs with the api."""
    settings = server.settings("feed")
    return Killable(
        *(sys.executable, "-m", "services.feed"),
        MUSTER_NATS_URL=settings.nats_url,
        MUSTER_NATS_PASSWORD=settings.nats_password,
    )


def second_api(server: NatsServer, served: Served, folder: Path) -> tuple[Killable, str]:
    """Beside the one that people work with, and its URL."""
    settings, port = server.settings("api"), free_port()
    process = Killable(
        *(sys.executable, "-m", "services.api"),
        MUSTER_NATS_URL=settings.nats_url,
        MUSTER_NATS_PASSWORD=settings.nats_password,
        MUSTER_POSTGRES_URL=served.settings.postgres_url,
        MUSTER_JWKS_FILE=str(folder / "jwks.json"),
        MUSTER_HTTP_PORT=str(port),
    )
    return process, f"http://127.0.0.1:{port}"
