"""asyncpg as we use it, with types: the library ships none for its connections and pools.

Nothing here adds behaviour; `connect` and `create_pool` only say what they return.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Literal, Protocol, cast

import asyncpg

_library: Any = asyncpg
"""The library, as far as its own annotations go."""

CUT_OFF: Final = (asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What the library raises of its own where a connection ended at a bad moment; the latter, where the server was killed
as the pool took the connection back. It passes by itself."""


class Record(Protocol):
    """A row: by name or place, and its values in order."""

    def __getitem__(self, key: str | int) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...
    def keys(self) -> Iterable[str]: ...


class Queryable(Protocol):
    """What connections and pools have in common."""

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str: ...
    async def fetch(self, query: str, *args: object, timeout: float | None = None) -> list[Record]: ...
    async def fetchrow(self, query: str, *args: object, timeout: float | None = None) -> Record | None: ...
    async def fetchval(self, query: str, *args: object, timeout: float | None = None) -> Any: ...
    async def copy_to_table(
        self,
        table_name: str,
        *,
        source: memoryview,
        schema_name: str,
        **options: str,
    ) -> str: ...


class Connection(Queryable, Protocol):
    def transaction(
        self, *, isolation: Literal["read_committed", "repeatable_read"] | None = None, readonly: bool = False
    ) -> AbstractAsyncContextManager[object]: ...
    def cursor(self, query: str, *args: object, prefetch: int = 50) -> AsyncIterator[Record]: ...
    async def close(self, *, timeout: float | None = None) -> None: ...


class Pool(Queryable, Protocol):
    def acquire(self, *, timeout: float | None = None) -> AbstractAsyncContextManager[Connection]: ...
    async def close(self) -> None: ...
    def terminate(self) -> None: ...


async def connect(
    url: str,
    *,
    timeout_seconds: float,
    command_timeout_seconds: float | None,
    server_settings: dict[str, str] | None = None,
) -> Connection:
    """One connection. Raises what asyncpg and the system raise."""
    connection: Any = await _library.connect(
        url, timeout=timeout_seconds, command_timeout=command_timeout_seconds, server_settings=server_settings or {}
    )
    return cast("Connection", connection)


async def create_pool(
    url: str,
    *,
    min_size: int,
    max_size: int,
    timeout_seconds: float,
    command_timeout_seconds: float,
    server_settings: dict[str, str],
) -> Pool:
    """A pool with its first `min_size` connections open. Raises what asyncpg and the system raise."""
    pool: Any = await _library.create_pool(
        url,
        min_size=min_size,
        max_size=max_size,
        timeout=timeout_seconds,
        command_timeout=command_timeout_seconds,
        server_settings=server_settings,
    )
    return cast("Pool", pool)
