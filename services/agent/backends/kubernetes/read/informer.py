"""One kind of objects of a cluster, as they are: listed in pages, then watched. Knows no kind by name.

A list is taken as it is only by `accept`, so that whoever doubts it can keep the older picture. The watch yields what
changed and keeps the store at it; it raises WatchBrokenError as soon as it may have missed anything, and then only a
new list helps. It asks nothing of the objects but their metadata.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final, Literal, Protocol, cast

import msgspec

from services.agent.backends.interface import WatchBrokenError
from services.agent.backends.kubernetes.client import ApiError, KubeClient, status_error

PAGE: Final = 500
"""Objects per page of a list, as Kubernetes' own clients ask for."""
LISTS: Final = 3
"""How often a list is begun in one call because its continuation ran out (the server keeps it for minutes)."""
WATCH_SHARE: Final = 0.6, 0.85
"""After which part of the silence we accept the server is to end a watch, at least and at most; jittered, so that
watches do not all come at once. A server with nothing to tell is silent, its bookmarks included, where no object of the
kind changes; but it ends a watch when it is asked to, and so one that says nothing longer than that is dead.
"""
AT_ONCE_SECONDS: Final = 1.0
"""A watch that ends sooner with nothing said is refused in truth; asked again at once, we would ask without end."""


class Metadata(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str:
        """Empty for what has none, such as nodes."""
        ...

    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> str: ...


class KubeObject(Protocol):
    @property
    def metadata(self) -> Metadata: ...


Key = tuple[str, str]
"""Namespace and name."""
Lines = list[bytes]


class Change[Object: KubeObject](msgspec.Struct, frozen=True):
    kind: Literal["added", "modified", "deleted"]
    object: Object
    """As it is now; of a deleted one what was known last."""

    @property
    def deleted(self) -> bool:
        return self.kind == "deleted"


class ListResult[Object: KubeObject](msgspec.Struct, frozen=True):
    objects: Mapping[Key, Object]
    resource_version: str
    """Of the whole list: where a watch goes on."""


class _ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _Page[Object: KubeObject](msgspec.Struct, frozen=True):
    metadata: _ListMetadata
    items: list[Object] | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    # Decoded by the type: a bookmark is an object of the kind with nothing in it, an error is a `Status`.
    object: msgspec.Raw


class _BookmarkMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str


class _Bookmark(msgspec.Struct, frozen=True):
    metadata: _BookmarkMetadata


class Informer[Object: KubeObject]:
    """Objects of type `kind` at `path`, such as `/api/v1/pods`; selectors are `labelSelector` and `fieldSelector`.

    One `list`, `accept` or `watch` at a time.
    """

    def __init__(
        self, client: KubeClient, path: str, kind: type[Object], *, silence_seconds: float, **selectors: str
    ) -> None:
        self._client = client
        self._path = path
        self._selectors = selectors
        self._silence_seconds = silence_seconds
        self._objects: dict[Key, Object] = {}
        self._resource_version = ""
        page: Any = _Page
        self._page = cast("msgspec.json.Decoder[_Page[Object]]", msgspec.json.Decoder(page[kind]))
        self._object = msgspec.json.Decoder(kind)
        self._event = msgspec.json.Decoder(_Event)
        self._bookmark = msgspec.json.Decoder(_Bookmark)

    @property
    def objects(self) -> Mapping[Key, Object]:
        """As of the last accepted list and all changes since; not to be kept over an await."""
        return self._objects

    async def list(self) -> ListResult[Object]:
        """What the server holds now, read consistently (no resource version is asked for, so none of its caches may be
        behind); the store stays as it is. Raises ApiError, also where the answer cannot be read.
        """
        for _ in range(LISTS - 1):
            try:
                return await self._list()
            except ApiError as error:
                if error.reason != "Expired":
                    raise
        return await self._list()

    def accept(self, result: ListResult[Object]) -> Sequence[Change[Object]]:
        """Make this list the store; how it differs from what was there, deletions first."""
        before, now = self._objects, result.objects
        changes = [
            Change("deleted", old)
            for key, old in before.items()
            if key not in now or now[key].metadata.uid != old.metadata.uid
        ]
        for key, new in now.items():
            old = before.get(key)
            if old is None or old.metadata.uid != new.metadata.uid:
                changes.append(Change("added", new))
            elif old.metadata.resource_version != new.metadata.resource_version:
                changes.append(Change("modified", new))
        self._objects = dict(now)
        self._resource_version = result.resource_version
        return changes

    async def watch(self) -> AsyncGenerator[Sequence[Change[Object]]]:
        """What changes from the accepted list on, in batches as they came, each change in the store before it is told.
        Endless; raises WatchBrokenError, with the reason, when something may have been missed.
        """
        loop = asyncio.get_running_loop()
        while True:
            began, told = loop.time(), False
            try:
                async with aclosing(self._stream()) as batches:
                    async for lines in batches:
                        told = True
                        changes, broken = self._take(lines)
                        if changes:
                            # Also before a break: they are in the store, so no later list differs by them.
                            yield changes
                        if broken is not None:
                            raise broken
            except ApiError as error:
                raise WatchBrokenError(f"watch of {self._path}: {error}") from error
            except msgspec.DecodeError as error:
                raise WatchBrokenError(f"watch of {self._path}: an event cannot be read: {error}") from error
            if not told and loop.time() - began < AT_ONCE_SECONDS:
                raise WatchBrokenError(f"watch of {self._path}: the server ended it at once")

    async def follow(self) -> AsyncGenerator[Sequence[Change[Object]]]:
        """As `watch`, but lists again by itself when the server's history is gone: for kinds of which a missing object
        means nothing, and of which a server keeps no history in its cache. Of Events it sends no bookmarks either, so a
        watch of theirs to which nothing was told for some minutes cannot go on.
        """
        while True:
            try:
                async with aclosing(self.watch()) as batches:
                    async for changes in batches:
                        yield changes
            except WatchBrokenError as error:
                if not (isinstance(error.__cause__, ApiError) and error.__cause__.status == HTTPStatus.GONE):
                    raise
            try:
                missed = self.accept(await self.list())
            except ApiError as error:
                raise WatchBrokenError(f"list of {self._path}: {error}") from error
            if missed:
                yield missed

    async def _list(self) -> ListResult[Object]:
        objects: dict[Key, Object] = {}
        query = {"limit": str(PAGE)} | self._selectors
        while True:
            body = await self._client.read(self._path, **query)
            try:
                page = self._page.decode(body)
            except msgspec.DecodeError as error:
                raise ApiError(0, "Unreadable", f"list of {self._path}: {error}") from error
            objects |= {_key(item): item for item in page.items or ()}
            if not page.metadata.continue_:
                # Each page carries the version of the first.
                return ListResult(objects, page.metadata.resource_version)
            query["continue"] = page.metadata.continue_

    def _stream(self) -> AsyncGenerator[Lines]:
        seconds = self._silence_seconds * random.uniform(*WATCH_SHARE)  # noqa: S311 (jitter)
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._resource_version,
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        return self._client.line_batches(self._path, silence_seconds=self._silence_seconds, **(query | self._selectors))

    def _take(self, lines: Lines) -> tuple[Sequence[Change[Object]], ApiError | msgspec.DecodeError | None]:
        """Bring the store up to these events; what changed, and what stands in the way of the rest."""
        changes: list[Change[Object]] = []
        try:
            for line in lines:
                changes += self._take_one(self._event.decode(line))
        except (ApiError, msgspec.DecodeError) as error:
            return changes, error
        return changes, None

    def _take_one(self, event: _Event) -> Sequence[Change[Object]]:
        match event.type:
            case "ADDED" | "MODIFIED":
                return self._put(self._object.decode(event.object))
            case "DELETED":
                return self._drop(self._object.decode(event.object))
            case "BOOKMARK":
                self._resource_version = self._bookmark.decode(event.object).metadata.resource_version
                return ()
            case "ERROR":
                raise status_error(event.object, self._path, status=0)
            case other:
                raise msgspec.DecodeError(f"unknown type {other!r}")

    def _put(self, new: Object) -> Sequence[Change[Object]]:
        old = self._objects.get(_key(new))
        self._objects[_key(new)] = new
        self._resource_version = new.metadata.resource_version
        if old is None:
            return [Change("added", new)]
        if old.metadata.uid != new.metadata.uid:
            return [Change("deleted", old), Change("added", new)]
        return [Change("modified", new)]

    def _drop(self, last: Object) -> Sequence[Change[Object]]:
        old = self._objects.pop(_key(last), None)
        self._resource_version = last.metadata.resource_version
        return [] if old is None else [Change("deleted", last)]


def _key(item: KubeObject) -> Key:
    return item.metadata.namespace, item.metadata.name
