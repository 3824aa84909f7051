"""Webhooks in tests: receivers as other people run them, and the service on a real log, FEED and Postgres."""

import asyncio
import contextlib
import itertools
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from development.commands import RunningService, carry_out
from events.aggregate import PROJECT
from events.ids import incarnation_id, project_key
from events.webhooks import CreateWebhook, Webhook, WebhookCommand
from projections.migrate import prepare
from services.commands.service import run as run_commands
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from services.runtime.webhooks.protocol import Answered, Asked, subject_of
from services.webhooks.service import run
from tests.support.subscribing import SECONDS, Given

KEY: Final = b"0" * 64
FIRST_SEQ: Final = 1_000
"""Of events in tests: behind every commit."""
_NUMBERS: Final = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> dict[str, Any]:
        return json.loads(self.body)


@dataclass
class Receiver:
    """A small web server; each path does as it is told."""

    answers: dict[str, Callable[[int], bytes | None]] = field(default_factory=dict[str, Callable[[int], bytes | None]])
    """By path: the answer to the request of that number, from 1; None hangs. Others are answered 204."""
    requests: list[Received] = field(default_factory=list[Received])
    url: str = ""
    serving: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])

    def of(self, path: str) -> list[Received]:
        return [request for request in self.requests if request.path == path]

    def ids(self, path: str) -> Counter[str]:
        return Counter(request.id for request in self.of(path))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        task.add_done_callback(self.serving.discard)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            path = head[0].split(" ")[1]
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers["content-length"]))
            self.requests.append(Received(path=path, headers=headers, body=body))
            answer = self.answers.get(path, lambda _: reply(204))(len(self.of(path)))
            if answer is None:
                await asyncio.sleep(3_600)
                return
            writer.write(answer)
            await writer.drain()
        writer.close()


def reply(status: int, body: str = "", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


@contextlib.asynccontextmanager
async def receiving(**answers: Callable[[int], bytes | None]) -> AsyncGenerator[Receiver]:
    """The names are paths without their slash."""
    receiver = Receiver({f"/{path}": answer for path, answer in answers.items()})
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield receiver
    finally:
        server.close()
        for task in receiver.serving:
            task.cancel()
        await asyncio.gather(*receiver.serving, return_exceptions=True)


@dataclass
class Scene:
    """A project with webhooks, and the services that serve them."""

    given: Given
    settings: Callable[[str], Any]
    project_id: str = ""
    services: list[RunningService] = field(default_factory=list[RunningService])
    _sent: int = 0

    async def start(self) -> RunningService:
        service = RunningService(run, self.settings("webhooks"), f"webhooks-{len(self.services)}")
        self.services.append(service)
        return await service.ready()

    async def kill(self, service: RunningService) -> None:
        self.services.remove(service)
        await service.kill()

    async def webhook(self, url: str, *types: str, project: str = "p") -> Webhook:
        command_id = f"webhook-{next(_NUMBERS)}"
        state = (await self.given.store.load(PROJECT, project_key(project))).state
        command = CreateWebhook(project_id=state.project_id, url=url, types=types)
        await carry_out(self.given.store, command_id, command)
        return await self.now(incarnation_id(project_key(project), command_id), project)

    async def now(self, webhook_id: str, project: str = "p") -> Webhook:
        return (await self.given.store.load(PROJECT, project_key(project))).state.webhooks[webhook_id]

    async def do(self, command: WebhookCommand) -> None:
        await carry_out(self.given.store, f"act-{next(_NUMBERS)}", command)

    async def tell(
        self, count: int, *, type_: str = "WorkloadSubmitted", workload: str = "w", project: str = ""
    ) -> list[str]:
        """So many public events, one after the other; their ids."""
        ids: list[str] = []
        for _ in range(count):
            self._sent += 1
            ids.append(await self.tell_again(self._sent, type_=type_, workload=workload, project=project))
        return ids

    async def tell_again(
        self, number: int, *, type_: str = "WorkloadSubmitted", workload: str = "w", project: str = ""
    ) -> str:
        return await self.tell_at(FIRST_SEQ + number, type_=type_, workload=workload, project=project)

    async def tell_at(
        self, seq: int, *, type_: str = "WorkloadSubmitted", workload: str = "w", project: str = ""
    ) -> str:
        """One of the commit of that sequence."""
        project_id = project or self.project_id
        id_ = f"commit-{seq}.0.{type_}"
        headers = {
            "ce-specversion": "1.0",
            "ce-id": id_,
            "ce-type": f"muster.{type_}.v1",
            "ce-source": f"/projects/{project_id}",
            "ce-sequence": f"{seq:016d}.000000",
        }
        subject = f"feed.{project_id}.{workload}.{type_}"
        await self.given.nc.jetstream().publish(subject, b'{"name":"train"}', headers=headers)
        return id_

    async def ask(self, asked: Asked) -> Any:
        """As the api, which alone may."""
        (answer,) = await self.ask_all([asked])
        return answer

    async def ask_all(self, asked: Sequence[Asked], told: Callable[[int], object] = lambda _: None) -> list[Any]:
        """All at once, over one connection; `told` hears how many are answered."""
        nc = await connect(self.settings("api"), "api")
        requests, answered = Requests(nc), itertools.count(1)

        async def ask(one: Asked) -> Any:
            answer = await requests.ask(subject_of(one), msgspec.json.encode(one), seconds=SECONDS)
            told(next(answered))
            return msgspec.json.decode(answer, type=Answered)

        try:
            return list(await asyncio.gather(*map(ask, asked)))
        finally:
            await nc.close()


@contextlib.asynccontextmanager
async def scene_on(given: Given, postgres_url: str, folder: Path) -> AsyncGenerator[Scene]:
    """With a project `p` and the service `commands`."""
    await prepare(postgres_url)
    key_file = folder / "webhook-key"
    key_file.write_bytes(KEY)

    def settings(service: str) -> Any:
        return given.server.settings(
            service, postgres_url=postgres_url, webhook_key_file=key_file, webhook_allow_networks="127.0.0.0/8"
        )

    scene = Scene(given, settings)
    scene.project_id = await given.project("p")
    commands = RunningService(run_commands, settings("commands"), "commands")
    try:
        await commands.ready()
        yield scene
    finally:
        for service in scene.services:
            if not service.ended:
                await service.stop()
        await commands.stop()
