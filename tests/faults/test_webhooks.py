"""Two webhook services that are killed and paused again and again while people work, Postgres and NATS go away, and
receivers fail in every way: each receiver that is not gone has had every event that it wants, each once after removing
repeated ids, and of each workload first in order. And one that is away while very much waits for it.
"""

import asyncio
import contextlib
import json
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self

import psutil
import pytest

from development.servers import EVERYTHING, NatsServer, PostgresServer
from events.commit import Commit
from events.subjects import split_feed_subject
from events.webhooks import Webhook
from services.runtime.identity.directory import Directory
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.connection import connect
from tests.faults.test_event_readers import Killable
from tests.support.api import Served, serving, webhook_key
from tests.support.busy_users import BusyUsers
from tests.support.public_events import Everything
from tests.support.subscribing import given_on
from tests.support.webhooks import KEY, Scene, scene_on

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

SETTLE_SECONDS: Final = 600.0
RECEIVERS: Final = 500
RECEIVERS_IN_SHORT: Final = 20
WAITING: Final = 10_000
WAITING_IN_SHORT: Final = 200
MOST_MEMORY: Final = 64 * 2**20
"""Bytes that a service may take more than before, whatever waits."""
ANNOUNCED: Final = 8
"""Requests that may be under way to one receiver, of each service."""
HASTE: Final = """
from datetime import timedelta
from services.webhooks import due, post, table
due.PAUSES = (timedelta(seconds=0.3),) * 10_000
due.MAX_TRIES = 10_001
due.Breaker.LONGEST = timedelta(seconds=0.5)
post.TRY_SECONDS, table.CLAIM_SECONDS = 2.0, 4
from services.runtime.process.host import main
from services.webhooks.service import run
main("webhooks", run)
"""
"""The service, in which hours are moments."""
FILTERS: Final = ((), ("WorkloadDeleted",), ("Workload*",), ("WorkloadSubmitted", "*Deleted"), ("WorkloadFailed",))

type Kind = Literal["fine", "moody", "away", "gone"]


class Wanted(NamedTuple):
    """A public event, as far as it matters here."""

    id: str
    type: str
    workload: str
    place: str


class Got(NamedTuple):
    at: float
    id: str
    workload: str
    place: str
    taken: bool
    """Whether it was answered in a way that says so."""


class Receivers:
    """Servers of many people, in a thread: at `/KIND/NUMBER` each is of that kind."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.got: defaultdict[str, list[Got]] = defaultdict(list)
        """By path, in the order in which it came."""
        self.back = threading.Event()
        """Those that were away are there again, and nobody is moody."""
        self.url = ""
        self._ready = threading.Event()
        self._stop: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._thread.join(10)

    async def _listen(self) -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stopped.set)
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1_000)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await stopped.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            event = json.loads(await reader.readexactly(int(headers["content-length"])))
            path = head[0].split(" ")[1]
            answer = self._answer(path)
            taken = answer.startswith((b"HTTP/1.1 204", b"HTTP/1.1 200"))
            self.got[path].append(
                Got(time.monotonic(), headers["webhook-id"], event.get("subject", ""), event["sequence"], taken)
            )
            if not answer:
                await reader.read()  # until the other side has waited enough
            writer.write(answer)
            await writer.drain()
        writer.close()

    def _answer(self, path: str) -> bytes:
        """Empty: none."""
        kind = path.split("/")[1]
        if kind == "gone" and len(self.got[path]) >= 5:
            return b"HTTP/1.1 410 X\r\ncontent-length: 50\r\n\r\nit ends in the mid"
        if kind == "away" and not self.back.is_set():
            return b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n"
        good = b"HTTP/1.1 204 X\r\n\r\n"
        if kind == "moody" and not self.back.is_set():
            bad = (
                b"HTTP/1.1 500 X\r\ncontent-length: 4\r\n\r\nohno",
                b"HTTP/1.1 503 X\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n",
                b"HTTP/1.1 302 X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
                b"HTTP/1.1 200 X\r\ncontent-length: 50\r\n\r\nit ends in the mid",
                b"HTTP/1.1 20",
                b"nonsense\r\n\r\n",
                b"",
            )
            return self._chance.choice((*bad, *[good] * len(bad)))
        return good


class Run:
    """What is disturbed, and when it was."""

    def __init__(self, nats: NatsServer, postgres: PostgresServer, services: list[Killable], seed: int) -> None:
        self._nats = nats
        self._postgres = postgres
        self._services = services
        self._chance = random.Random(seed)
        self.times: list[tuple[float, float]] = []

    def disturb(self) -> None:
        began = time.monotonic()
        what, chance = self._chance.random(), self._chance
        if what < 0.1:
            self._postgres.kill()
            time.sleep(chance.uniform(0.0, 6.0))
            self._postgres.start()
        elif what < 0.2:
            self._nats.kill()
            time.sleep(chance.uniform(0.0, 3.0))
            self._nats.start()
        elif what < 0.3:
            service = chance.choice(self._services)
            with service.paused():
                time.sleep(chance.uniform(0.0, 7.0))
        else:
            killed = chance.sample(self._services, chance.randint(1, 2))
            for service in killed:
                service.kill()
            time.sleep(chance.uniform(0.0, 0.5))
            for service in killed:
                service.start()
        self.times.append((began, time.monotonic()))

    def explains(self, first: Got, second: Got) -> bool:
        """Whether something was disturbed between the answer to the one and the other."""
        return any(began <= second.at and ended >= first.at for began, ended in self.times)


def webhooks_service(nats: NatsServer, postgres_url: str, folder: Path, code: str = HASTE) -> Killable:
    settings = nats.settings("webhooks")
    return Killable(
        *(sys.executable, "-c", code),
        MUSTER_NATS_URL=settings.nats_url,
        MUSTER_NATS_PASSWORD=settings.nats_password,
        MUSTER_POSTGRES_URL=postgres_url,
        MUSTER_WEBHOOK_KEY_FILE=str(webhook_key(folder)),
        MUSTER_WEBHOOK_ALLOW_NETWORKS="127.0.0.0/8",
    )


@contextlib.asynccontextmanager
async def the_log(server: NatsServer) -> AsyncGenerator[JetStreamEventStore]:
    nc = await connect(server.settings(EVERYTHING), EVERYTHING)
    try:
        yield JetStreamEventStore(nc)
    finally:
        await nc.close()


async def public_events(server: NatsServer) -> dict[str, list[Wanted]]:
    """All of each project, as they follow from the log."""
    async with the_log(server) as store:
        end, commits = await store.last_seq(), list[Commit]()
        async with aclosing(store.follow(0)) as batches:
            async for batch in batches:
                commits += batch
                if commits and commits[-1].seq >= end:
                    break
    found: defaultdict[str, list[Wanted]] = defaultdict(list)
    for message in Everything().take(commits).told:
        project, workload, type_ = split_feed_subject(message.subject)
        headers = message.headers
        found[project].append(Wanted(headers["ce-id"], type_, workload or "", headers["ce-sequence"]))
    return found


async def webhooks_now(server: NatsServer) -> dict[str, tuple[Webhook, str, int]]:
    """By path: each with its project, and the sequence behind which it is told."""
    async with the_log(server) as store:
        directory = Directory(store)
        await directory.start()
        try:
            known = directory.webhooks.values()
            return {"/" + one.webhook.url.split("/", 3)[3]: (one.webhook, one.project_id, one.since) for one in known}
        finally:
            await directory.close()


def set_up(served: Served, receivers: Receivers, count: int, chance: random.Random) -> list[str]:
    """Webhooks of some projects; the projects."""
    kinds: tuple[Kind, ...] = ("fine", "fine", "moody", "moody", "away", "gone")
    with served.client() as admin:
        projects: list[str] = []
        for number in range(1 + count // 90):
            made = admin.post("/api/v1/org-unit/projects", json={"name": f"p{number}"})
            projects.append(made.json()["id"])
        for number in range(count):
            # One in eight wants everything, and most want little, as people do.
            types = FILTERS[number % 5] if number % 40 < 5 else chance.choice(FILTERS[1:])
            url = f"{receivers.url}/{kinds[number % 6]}/{number}"
            body = {"projectId": projects[number % len(projects)], "url": url} | ({"types": types} if types else {})
            deadline = time.monotonic() + 60
            while (made := admin.post("/api/v1/webhooks", json=body)).status_code == 503:
                assert time.monotonic() < deadline, made.text
            assert made.status_code == 202, made.text
    return projects


def due_to(webhook: Webhook, since: int, events: list[Wanted]) -> dict[str, Wanted]:
    return {one.id: one for one in events if int(one.place.split(".")[0]) > since and webhook.takes(one.type)}


def test_receivers_get_every_event_that_they_want_whatever_is_killed(  # noqa: PLR0917 (fixtures)
    nats_server: NatsServer,
    postgres_server: PostgresServer,
    tmp_path: Path,
    rounds: int,
    chance: random.Random,
    request: pytest.FixtureRequest,
) -> None:
    short = request.config.option.short
    count = RECEIVERS_IN_SHORT if short else RECEIVERS
    seeds = iter(lambda: chance.randint(0, 2**32), -1)
    allowed = {"webhook_allow_networks": "127.0.0.0/8"}
    with (
        contextlib.ExitStack() as ends,
        serving(nats_server, postgres_server, tmp_path, "feed", **allowed) as served,
        Receivers(next(seeds)) as receivers,
    ):
        services = [webhooks_service(nats_server, served.settings.postgres_url, tmp_path) for _ in range(2)]
        for service in services:
            service.start()
            ends.callback(service.kill)
        projects = set_up(served, receivers, count, chance)
        run = Run(nats_server, postgres_server, services, next(seeds))
        pause = 0.1 if short else 0.4
        with BusyUsers(served, seed=next(seeds), pause_seconds=pause, projects=projects, living=10):
            for _ in range(rounds if short else max(rounds, 50)):
                time.sleep(chance.uniform(0.2, 1.5))
                run.disturb()
        receivers.back.set()
        # Nothing is disturbed any more: whatever happens now happens once.
        with BusyUsers(served, seed=next(seeds), pause_seconds=pause, projects=projects, living=10):
            time.sleep(3)
        events = asyncio.run(public_events(nats_server))
        settle(receivers, nats_server, events)
        webhooks = asyncio.run(webhooks_now(nats_server))
    assert len(webhooks) == count
    for path, (webhook, project, since) in webhooks.items():
        got, expected = receivers.got[path], due_to(webhook, since, events[project])
        check_one(path, webhook, got, expected, run)
        check_order(path, got, expected)


def settle(receivers: Receivers, server: NatsServer, events: dict[str, list[Wanted]]) -> None:
    """Wait until everything is taken, as long as it goes on."""
    deadline, open_before = time.monotonic() + SETTLE_SECONDS, -1
    while time.monotonic() < deadline:
        left = 0
        for path, (webhook, project, since) in asyncio.run(webhooks_now(server)).items():
            if webhook.disabled is None:
                taken = {one.id for one in receivers.got[path] if one.taken}
                left += len(due_to(webhook, since, events[project]).keys() - taken)
        if not left:
            return
        if left != open_before:
            print(f"{left} are to be taken")
        open_before = left
        time.sleep(1)


def check_one(path: str, webhook: Webhook, got: list[Got], expected: dict[str, Wanted], run: Run) -> None:
    taken: dict[str, Got] = {}
    for one in got:
        if one.id in taken:
            assert run.explains(taken[one.id], one), f"{path} was told {one.id} again, and nothing was killed"
        elif one.taken:
            taken[one.id] = one
    assert {one.id for one in got} <= expected.keys(), "no other"
    if path.startswith("/gone/"):
        assert webhook.disabled == ("gone" if len(got) > 5 else None), path
        times = sorted(one.at for one in got if not one.taken)
        assert len(times) <= 2 * ANNOUNCED * (1 + len(run.times)), f"{path} is gone, and was told of more"
        return
    assert webhook.disabled is None, f"{path} was disabled: {webhook.disabled}"
    assert taken.keys() == expected.keys(), f"{path} lacks {sorted(expected.keys() - taken.keys())[:5]}"


def check_order(path: str, got: list[Got], expected: dict[str, Wanted]) -> None:
    of: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for one in got:
        of[expected[one.id].workload].setdefault(one.id, one.place)
    for workload, places in of.items():
        assert list(places.values()) == sorted(places.values()), f"{path}: {workload} is out of order"


# -- much waits -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running(service: Killable) -> Generator[psutil.Process]:
    service.start()
    try:
        yield service.seen()
    finally:
        service.kill()


@pytest.mark.anyio
@pytest.mark.parametrize("workloads", [1, 100])
async def test_much_that_waits_for_one_holds_up_no_other_and_takes_no_memory(
    fresh_log: NatsServer, postgres_database: str, tmp_path: Path, request: pytest.FixtureRequest, workloads: int
) -> None:
    count = WAITING_IN_SHORT if request.config.option.short else WAITING
    with Receivers(0) as receivers:
        async with given_on(fresh_log) as given, scene_on(given, postgres_database, tmp_path) as scene:
            assert webhook_key(tmp_path).read_bytes() == KEY
            other = await given.project("other")
            away = await scene.webhook(f"{receivers.url}/away/0")
            await scene.webhook(f"{receivers.url}/fine/0", project="other")
            with running(webhooks_service(fresh_log, postgres_database, tmp_path)) as process:
                await told(scene, receivers, "/fine/0", await scene.tell(10, project=other))
                before = process.memory_info().rss
                ids = [id_ for n in range(count) for id_ in await scene.tell(1, workload=f"w{n % workloads}")]
                await told(scene, receivers, "/fine/0", await scene.tell(10, project=other))
                assert process.memory_info().rss - before < MOST_MEMORY
                receivers.back.set()
                await told(scene, receivers, "/fine/0", await scene.tell(10, project=other))
                await told(scene, receivers, "/away/0", ids)
                await told(scene, receivers, "/fine/0", await scene.tell(10, project=other))
                assert process.memory_info().rss - before < MOST_MEMORY
            assert (await scene.now(away.id)).disabled is None
        firsts = list(dict.fromkeys(one.id for one in receivers.got["/away/0"]))
        firsts = {id_: number for number, id_ in enumerate(dict.fromkeys(one.id for one in receivers.got["/away/0"]))}
        for n in range(workloads):
            numbers = [firsts[id_] for id_ in ids[n::workloads]]
            assert numbers == sorted(numbers)


async def told(scene: Scene, receivers: Receivers, path: str, ids: list[str]) -> None:
    """Wait until it has taken them, for as long as it goes on."""
    deadline, before = time.monotonic() + 30, -1
    while left := set(ids) - {one.id for one in receivers.got[path] if one.taken}:
        assert time.monotonic() < deadline, f"{path} lacks {len(left)} of {len(ids)}, and gets no more"
        if len(left) != before:
            deadline, before = time.monotonic() + 30, len(left)
        await asyncio.sleep(0.05)
