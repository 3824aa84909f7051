"""The picture of a cluster's objects is whole, or it is said that it may not be (log.md 5.1, 5.2)."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from development.kubernetes.control_plane import ControlPlane
from development.kubernetes.proxy import Mode, Proxy, proxied
from services.agent.backends.interface import WatchBrokenError
from services.agent.backends.kubernetes.act.objects import ConfigMap, Event, Pod
from services.agent.backends.kubernetes.client import ApiError, KubeClient, Timeouts
from services.agent.backends.kubernetes.connect import connect
from services.agent.backends.kubernetes.read import informer as module
from services.agent.backends.kubernetes.read.informer import Change, Informer
from tests.support.kube import namespace

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]

OURS = "test=informer"
"""Selects what a test made: the controller manager puts a map of its own into every namespace."""


@pytest.fixture
def space(control_plane: ControlPlane) -> str:
    return namespace(control_plane, f"informer-{secrets.token_hex(4)}")


@asynccontextmanager
async def connected(control_plane: ControlPlane, url: str | None = None) -> AsyncGenerator[KubeClient]:
    timeouts = Timeouts(connect_seconds=5, call_seconds=20)
    client = await connect(control_plane.kubeconfig(url=url), None, timeouts=timeouts)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[KubeClient]:
    async with connected(control_plane) as client:
        yield client


@pytest.fixture
async def proxy(control_plane: ControlPlane) -> AsyncIterator[Proxy]:
    async with proxied(control_plane) as proxy:
        yield proxy


@pytest.fixture
async def through(control_plane: ControlPlane, proxy: Proxy) -> AsyncIterator[KubeClient]:
    async with connected(control_plane, proxy.url) as client:
        yield client


def maps(space: str) -> str:
    return f"/api/v1/namespaces/{space}/configmaps"


def informer_of(client: KubeClient, space: str, silence_seconds: float = 20) -> Informer[ConfigMap]:
    return Informer(client, maps(space), ConfigMap, silence_seconds=silence_seconds, labelSelector=OURS)


async def put(client: KubeClient, space: str, name: str, value: str = "1") -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"value": value}}
    key, _, label = OURS.partition("=")
    body |= {"metadata": {"name": name, "labels": {key: label}}}
    await client.patch(f"{maps(space)}/{name}", body, kind="apply")


def told(changes: Any) -> list[tuple[str, str, str]]:
    return [(change.kind, change.object.metadata.name, change.object.data["value"]) for change in changes]


def values(informer: Informer[ConfigMap]) -> dict[str, str]:
    return {name: item.data["value"] for (_, name), item in informer.objects.items()}


class Watcher:
    """Takes what a watch tells until it breaks."""

    def __init__(self, batches: AsyncIterator[Sequence[Change[Any]]]) -> None:
        self.changes: list[Change[Any]] = []
        self._news = asyncio.Event()
        self._task = asyncio.ensure_future(self._follow(batches))

    async def _follow(self, batches: AsyncIterator[Sequence[Change[Any]]]) -> None:
        async for changes in batches:
            self.changes += changes
            self._news.set()

    async def until(self, count: int) -> list[tuple[str, str, str]]:
        """So many changes came."""
        await self.heard(count)
        return told(self.changes)

    async def heard(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.changes) < count:
                if self._task.done():
                    self._task.result()
                self._news.clear()
                await self._news.wait()

    async def broken(self) -> str:
        """Why it ended."""
        async with asyncio.timeout(60):
            with pytest.raises(WatchBrokenError) as broken:
                await self._task
        return str(broken.value)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def watching(batches: AsyncIterator[Sequence[Change[Any]]]) -> AsyncGenerator[Watcher]:
    watcher = Watcher(batches)
    try:
        yield watcher
    finally:
        await watcher.stop()


async def accepted(informer: Informer[ConfigMap]) -> list[tuple[str, str, str]]:
    return told(informer.accept(await informer.list()))


async def test_a_list_changes_nothing_until_it_is_accepted(client: KubeClient, space: str) -> None:
    informer = informer_of(client, space)
    await put(client, space, "a")
    listed = await informer.list()
    assert (len(listed.objects), len(informer.objects)) == (1, 0)
    assert told(informer.accept(listed)) == [("added", "a", "1")]
    assert values(informer) == {"a": "1"}
    assert await accepted(informer) == []


async def test_two_lists_differ_by_what_came_changed_went_or_was_made_anew(client: KubeClient, space: str) -> None:
    informer = informer_of(client, space)
    for name in ("changes", "goes", "is-made-anew", "stays"):
        await put(client, space, name)
    await accepted(informer)
    await put(client, space, "changes", "2")
    await client.delete(f"{maps(space)}/goes")
    await client.delete(f"{maps(space)}/is-made-anew")
    await put(client, space, "is-made-anew", "2")
    await put(client, space, "comes")
    assert sorted(await accepted(informer)) == [
        ("added", "comes", "1"),
        ("added", "is-made-anew", "2"),
        ("deleted", "goes", "1"),
        ("deleted", "is-made-anew", "1"),
        ("modified", "changes", "2"),
    ]


async def test_what_happens_after_the_list_is_told_once_and_in_order(client: KubeClient, space: str) -> None:
    informer = informer_of(client, space)
    await put(client, space, "before")
    await accepted(informer)
    await put(client, space, "between")  # the list, and the watch
    async with watching(informer.watch()) as watcher:
        await put(client, space, "a")
        await put(client, space, "a", "2")
        await client.delete(f"{maps(space)}/a")
        await put(client, space, "a", "3")
        assert await watcher.until(5) == [
            ("added", "between", "1"),
            ("added", "a", "1"),
            ("modified", "a", "2"),
            ("deleted", "a", "2"),
            ("added", "a", "3"),
        ]
    assert values(informer) == {"before": "1", "between": "1", "a": "3"}
    assert await accepted(informer) == []


async def test_2500_objects_come_in_pages_and_are_there_once_each(
    control_plane: ControlPlane, proxy: Proxy, through: KubeClient, space: str
) -> None:
    # Pods that no node runs: the largest kind, and nobody else touches them.
    await asyncio.to_thread(make_pods, control_plane, space, 2500)
    proxy.requests.clear()
    path = f"/api/v1/namespaces/{space}/pods"
    informer = Informer(through, path, Pod, silence_seconds=20)
    listed = await informer.list()
    assert {name for _, name in listed.objects} == {f"pod-{n}" for n in range(2500)}
    assert len(informer.accept(listed)) == 2500
    assert proxy.requests["GET", path] == 5
    async with watching(informer.watch()) as watcher:
        await through.delete(f"{path}/pod-7", grace_seconds=0)
        async with asyncio.timeout(60):
            while (space, "pod-7") in informer.objects:
                await asyncio.sleep(0.05)
        assert [change.kind for change in watcher.changes][-1] == "deleted"


def make_pods(control_plane: ControlPlane, space: str, count: int) -> None:
    control_plane._admin.create_all(
        f"/api/v1/namespaces/{space}/pods",
        [
            {"metadata": {"name": f"pod-{n}"}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
            for n in range(count)
        ],
    )


async def test_a_continuation_that_ran_out_begins_anew(
    control_plane: ControlPlane, client: KubeClient, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 2)
    for name in "abcde":
        await put(client, space, name)
    informer = informer_of(client, space)
    read, pages = client.read, 0

    async def compacted_after_the_first(path: str, **query: str) -> bytes:
        nonlocal pages
        pages += 1
        if pages == 2:
            await put(client, space, "f")
            await asyncio.to_thread(control_plane.compact)
            # A server that has just started has no old pages in its cache.
            await asyncio.to_thread(control_plane.restart_api_server)
        return await read(path, **query)

    monkeypatch.setattr(client, "read", compacted_after_the_first)
    assert sorted(name for _, name in (await informer.list()).objects) == list("abcdef")


async def test_a_watch_that_the_server_ends_goes_on_where_it_was(proxy: Proxy, through: KubeClient, space: str) -> None:
    informer = informer_of(through, space, silence_seconds=3)  # so the server ends it after one or two seconds
    await accepted(informer)
    async with watching(informer.watch()) as watcher:
        for n in range(8):
            await put(through, space, "a", str(n))
            await asyncio.sleep(0.5)
        assert await watcher.until(8) == [("added" if n == 0 else "modified", "a", str(n)) for n in range(8)]
    assert proxy.requests["GET", maps(space)] > 2, "one list, and several watches"


async def test_bookmarks_bring_a_watch_forward_while_nothing_of_its_own_happens(client: KubeClient, space: str) -> None:
    informer = informer_of(client, space, silence_seconds=8)
    await accepted(informer)
    listed_at = informer._resource_version
    async with watching(informer.watch()) as watcher:
        async with asyncio.timeout(60):
            # Again and again: a server sends bookmarks only for what happened after it had taken up the watch.
            while informer._resource_version == listed_at:
                name = f"not-selected-{secrets.token_hex(4)}"
                await client.create(maps(space), {"metadata": {"name": name}})
                await asyncio.sleep(0.5)
        assert watcher.changes == []


async def test_a_history_that_is_gone_breaks_the_watch_and_a_new_list_tells_what_was_missed(
    control_plane: ControlPlane, client: KubeClient, space: str
) -> None:
    """A real 410: compaction, and a server whose cache begins after it."""
    informer = informer_of(client, space)
    await put(client, space, "a")
    await accepted(informer)
    await client.delete(f"{maps(space)}/a")
    await put(client, space, "b")
    await asyncio.to_thread(control_plane.compact)
    await asyncio.to_thread(control_plane.restart_api_server)
    async with watching(informer.watch()) as watcher:
        assert "Expired" in await watcher.broken()
    assert await accepted(informer) == [("deleted", "a", "1"), ("added", "b", "1")]
    async with watching(informer.watch()) as watcher:
        await put(client, space, "c")
        assert await watcher.until(1) == [("added", "c", "1")]


async def test_events_are_followed_past_the_history_that_is_gone(
    control_plane: ControlPlane, proxy: Proxy, through: KubeClient, space: str
) -> None:
    """The server keeps none of them in its cache: compaction alone, which it does every five minutes, gives a 410."""
    path = f"/api/v1/namespaces/{space}/events"
    informer = Informer(through, path, Event, silence_seconds=4, fieldSelector="type=Warning")
    informer.accept(await informer.list())
    async with watching(informer.follow()) as watcher:
        await put(through, space, "a")
        await asyncio.to_thread(control_plane.compact)
        asked = proxy.requests["GET", path]
        # The watch ends, the next is refused, a list and another watch follow.
        async with asyncio.timeout(60):
            while proxy.requests["GET", path] < asked + 3:
                await asyncio.sleep(0.05)
        about = {"kind": "Pod", "namespace": space, "name": "p"}
        event = {"metadata": {"name": "p.1"}, "involvedObject": about, "type": "Warning", "reason": "Failed"}
        await through.create(path, event)
        await watcher.heard(1)
    assert [change.object.reason for change in watcher.changes] == ["Failed"]


async def test_a_killed_server_breaks_the_watch_at_once_and_can_be_listed_when_it_is_back(
    control_plane: ControlPlane, client: KubeClient, space: str
) -> None:
    informer = informer_of(client, space, silence_seconds=300)
    await accepted(informer)
    async with watching(informer.watch()) as watcher:
        await put(client, space, "a")
        await watcher.until(1)
        await asyncio.to_thread(control_plane.kill_api_server)
        await watcher.broken()
    with pytest.raises(ApiError) as away:
        await informer.list()
    assert away.value.unreachable
    await asyncio.to_thread(control_plane.start_api_server)
    await put(client, space, "b")
    assert await accepted(informer) == [("added", "b", "1")]


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        (Mode.SILENT, "Silence"),
        (Mode.CUT, "Cut"),
        (Mode.TOO_MANY, "TooManyRequests"),
        (Mode.ERROR, "InternalError"),
        (Mode.END_WATCH, "ended it at once"),
    ],
)
async def test_whatever_stands_between_breaks_the_watch_and_nothing_is_missed(
    proxy: Proxy, through: KubeClient, client: KubeClient, space: str, *, mode: Mode, says: str
) -> None:
    informer = informer_of(through, space, silence_seconds=2)
    await put(client, space, "a")
    await accepted(informer)
    async with watching(informer.watch()) as watcher:
        await put(client, space, "a", "2")
        await watcher.until(1)
        proxy.mode = mode
        await put(client, space, "b")
        assert says in await watcher.broken()
        told_by_the_watch = told(watcher.changes[1:])
    proxy.mode = Mode.PASS
    # A watch that was under way may have told it before it met what stands between; never twice, never not at all.
    assert told_by_the_watch + await accepted(informer) == [("added", "b", "1")]


async def test_what_came_before_an_error_event_is_told(client: KubeClient, space: str) -> None:
    """All in one read: the store has it, so no later list would tell it."""
    informer = informer_of(client, space)
    await put(client, space, "a")
    await accepted(informer)
    item = msgspec.json.decode(await client.read(f"{maps(space)}/a"))
    expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    events = [{"type": "DELETED", "object": item}, {"type": "ERROR", "object": expired}]

    async def together(*_: Any, **__: Any) -> AsyncGenerator[list[bytes]]:
        yield [msgspec.json.encode(event) for event in events]

    client.line_batches = together
    async with watching(informer.watch()) as watcher:
        assert "too old resource version (410 Expired)" in await watcher.broken()
    assert told(watcher.changes) == [("deleted", "a", "1")]


@pytest.mark.parametrize(
    "line", [b"{", b'{"type":"NEW","object":{}}', b'{"type":"ADDED","object":{"metadata":{}}}', b"null"]
)
async def test_an_event_that_cannot_be_read_breaks_the_watch(client: KubeClient, space: str, line: bytes) -> None:
    informer = informer_of(client, space)
    await accepted(informer)

    async def broken(*_: Any, **__: Any) -> AsyncGenerator[list[bytes]]:
        yield [line]

    client.line_batches = broken
    async with watching(informer.watch()) as watcher:
        assert "cannot be read" in await watcher.broken()
