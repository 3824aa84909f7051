"""Keys from a file and from an issuer's URL: rotation, failure, and what a stranger can make us do (log.md 6.1)."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import ECKey

from events.refusal import Refusal
from services.runtime.identity import jwks
from services.runtime.identity.authentication import Identity, authenticator
from services.runtime.identity.jwks import FileKeys, JwksError, UrlKeys
from services.runtime.identity.local_keys import load_or_create_key, sign_token, write_jwks
from services.runtime.process.settings import Settings

pytestmark = pytest.mark.anyio

FIRST = ECKey.generate_key("P-256", {"kid": "first"})
SECOND = ECKey.generate_key("P-256", {"kid": "second"})


def published(*keys: ECKey) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


class Issuer:
    """A real HTTP server that answers every request with `status` and `body`, and counts them."""

    def __init__(self) -> None:
        self.status = "200 OK"
        self.body = published(FIRST)
        self.requests = 0
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        head = f"HTTP/1.1 {self.status}\r\nContent-Length: {len(self.body)}\r\nLocation: {self.url}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + self.body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def an_issuer() -> AsyncGenerator[Issuer]:
    issuer = Issuer()
    server = await asyncio.start_server(issuer.answer, "127.0.0.1", 0)
    issuer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/jwks"
    async with server:
        yield issuer


@asynccontextmanager
async def fetched(issuer: Issuer, now: list[float]) -> AsyncGenerator[UrlKeys]:
    keys = UrlKeys(issuer.url, clock=lambda: now[0])
    await keys.start()
    try:
        yield keys
    finally:
        await keys.close()


async def test_an_unknown_key_is_asked_for_at_most_once_in_thirty_seconds() -> None:
    now = [1000.0]
    async with an_issuer() as issuer, fetched(issuer, now) as keys:
        assert await keys.key("first") is not None
        for number in range(20):
            assert await keys.key(f"made-up-{number}") is None
        assert issuer.requests == 1

        now[0] += jwks.UNKNOWN_KEY_REFETCH_SECONDS
        await asyncio.gather(*(keys.key(f"made-up-{number}") for number in range(20)))
        assert issuer.requests == 2


async def test_a_new_key_of_the_issuer_is_found_by_the_first_token_that_names_it() -> None:
    now = [1000.0]
    async with an_issuer() as issuer, fetched(issuer, now) as keys:
        issuer.body = published(FIRST, SECOND)
        now[0] += jwks.UNKNOWN_KEY_REFETCH_SECONDS

        assert await keys.key("second") is not None
        assert await keys.key("first") is not None


FAILURES: dict[str, tuple[str, bytes]] = {
    "an error": ("500 Internal Server Error", b"{}"),
    "an error page": ("200 OK", b"<html>sorry</html>"),
    "a redirect": ("302 Found", b""),
    "a flood": ("200 OK", b" " * (2 * jwks.MAX_JWKS_BYTES)),
}


@pytest.mark.parametrize(("status", "body"), FAILURES.values(), ids=FAILURES.keys())
async def test_the_last_good_keys_stay_when_the_issuer_fails(status: str, body: bytes) -> None:
    now = [1000.0]
    async with an_issuer() as issuer, fetched(issuer, now) as keys:
        issuer.status, issuer.body = status, body
        now[0] += jwks.UNKNOWN_KEY_REFETCH_SECONDS

        assert await keys.key("other") is None
        assert issuer.requests == 2
        assert await keys.key("first") is not None


async def test_a_revoked_key_dies_at_the_next_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwks, "REFRESH_SECONDS", 0.05)
    assert jwks.REFRESH_SECONDS < 300
    async with an_issuer() as issuer, fetched(issuer, [1000.0]) as keys:
        before = keys.generation
        issuer.body = published(SECOND)

        while await keys.key("first") is not None:
            await asyncio.sleep(0.02)
        assert keys.generation > before
        assert await keys.key("second") is not None


async def test_an_issuer_that_never_answers_is_named_when_a_service_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwks, "FIRST_FETCH_SECONDS", 0.1)
    keys = UrlKeys("http://127.0.0.1:9/jwks")
    with pytest.raises(JwksError, match="no JWKS could be fetched from http://127"):
        await keys.start()
    await keys.close()


@pytest.mark.parametrize("url", ["http://issuer.example/jwks", "ftp://127.0.0.1/", "file:///etc/passwd", "issuer"])
async def test_an_issuer_is_asked_over_https_only(url: str) -> None:
    with pytest.raises(JwksError, match="https"):
        UrlKeys(url)


async def test_a_changed_file_is_taken_over_and_a_broken_one_is_not(tmp_path: Path) -> None:
    path, now = tmp_path / "jwks.json", [0.0]
    path.write_bytes(published(FIRST))
    keys = FileKeys(path, clock=lambda: now[0])
    await keys.start()

    def replace(content: bytes) -> None:
        other = tmp_path / "new"
        other.write_bytes(content)
        other.replace(path)
        now[0] += jwks.FILE_CHECK_SECONDS

    replace(published(FIRST, SECOND))
    assert await keys.key("second") is not None
    replace(b"half a fi")
    assert await keys.key("second") is not None
    replace(published(SECOND))
    assert await keys.key("first") is None
    path.unlink()
    now[0] += jwks.FILE_CHECK_SECONDS
    assert await keys.key("second") is not None


async def test_a_missing_file_is_named_when_a_service_starts(tmp_path: Path) -> None:
    with pytest.raises(JwksError, match=r"jwks\.json cannot be read"):
        await FileKeys(tmp_path / "jwks.json").start()


async def test_a_local_token_is_taken_where_the_local_key_is_trusted(tmp_path: Path) -> None:
    key = load_or_create_key(tmp_path / "key")
    write_jwks(key, tmp_path / "jwks.json")
    subject = authenticator(Settings(jwks_file=tmp_path / "jwks.json"))
    await subject.start()

    identity = await subject.verify(sign_token(key, subject="ada", issuer="muster", audience="muster"))

    assert isinstance(identity, Identity)
    assert identity.sub == "ada"


async def test_a_local_key_is_refused_in_production_even_where_the_issuer_publishes_it(tmp_path: Path) -> None:
    key = load_or_create_key(tmp_path / "key")
    write_jwks(key, tmp_path / "jwks.json")
    async with an_issuer() as issuer:
        issuer.body = (tmp_path / "jwks.json").read_bytes()
        subject = authenticator(Settings(jwks_url=issuer.url))
        await subject.start()
        refusal = await subject.verify(sign_token(key, subject="ada", issuer="muster", audience="muster"))
        await subject.close()

    assert isinstance(refusal, Refusal)
    assert "local development key" in refusal.message


@pytest.mark.parametrize("given", [{}, {"jwks_url": "https://issuer.example/", "jwks_file": Path("jwks.json")}])
async def test_keys_come_from_one_place(given: dict[str, Any]) -> None:
    with pytest.raises(JwksError, match="MUSTER_JWKS_URL"):
        authenticator(Settings(**given))


async def test_no_umask_makes_the_key_readable_to_others(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        load_or_create_key(tmp_path / "key")
    finally:
        os.umask(before)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
