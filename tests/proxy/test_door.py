"""What passes the proxy, what does not, and who is let in; over real sockets."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest

from events.service_accounts import TOKEN_PREFIX
from events.workload.commands import DeleteWorkload
from events.workload.exposure import Access
from events.workload.fields.connections import ExposedUrl
from services.proxy import wire
from services.proxy.authorize import objection
from services.runtime.identity.authentication import Identity
from services.runtime.identity.identities import NEVER
from services.runtime.identity.member import Member
from tests.proxy.given import CONTAINER, Given, echo, head_of, program, proxy, url
from tests.support.lives import FIRST

pytestmark = pytest.mark.anyio

ALICE = {"authorization": "Bearer alice-token"}
BOB = {"authorization": "Bearer bob-token"}


@contextlib.asynccontextmanager
async def served(
    handler: Any = echo, *urls: ExposedUrl, **limits: Any
) -> AsyncGenerator[tuple[httpx.AsyncClient, str]]:
    """A client of a proxy, and the host of a workload behind it whose program is `handler`."""
    given = Given()
    async with program(handler) as port, proxy(given, **limits) as (_, at):
        key = given.workload("tool", *urls)
        given.runs(key, port)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{at}", timeout=60) as client:
            yield client, given.host(key)


async def test_a_request_reaches_the_pod_without_what_signs_its_sender_in() -> None:
    async with served() as (client, host):
        headers = {
            "host": host,
            "cookie": "own=1; muster-session=x; other=2",
            "x-forwarded-for": "6.6.6.6",
            "proxy-authorization": "x",
            "connection": "close, x-hop",
            "x-hop": "1",
            "te": "trailers",
            **ALICE,
        }
        answer = await client.get("/a/b?c=d", headers=headers)
    assert answer.status_code == 200
    head, *lines = answer.text.lower().strip().split("\r\n")
    assert head == "get /a/b?c=d http/1.1"
    assert f"host: {host}" in lines
    assert "cookie: own=1; other=2" in lines
    assert "x-forwarded-for: 127.0.0.1" in lines
    assert f"x-forwarded-host: {host}" in lines
    assert "connection: close" in lines
    assert not [line for line in lines if line.startswith(("authorization", "proxy-", "x-hop", "te:"))]


@pytest.mark.parametrize(
    ("headers", "status"), [({}, 401), ({"authorization": "Bearer nonsense"}, 401), (ALICE, 404)], ids=str
)
async def test_only_who_is_signed_in_learns_which_addresses_there_are(headers: dict[str, str], status: int) -> None:
    async with served() as (client, host):
        unknown = await client.get("/", headers={"host": "nobody.apps.test", **headers})
        known = await client.get("/", headers={"host": host, **headers})
    assert unknown.status_code == status
    assert known.status_code == (200 if status == 404 else status)
    if status == 401:
        assert known.json() == unknown.json()


@pytest.mark.parametrize(
    ("access", "alice", "bob"),
    [
        ({}, 200, 200),
        ({"authorized_users": ("alice@EXAMPLE.com",)}, 200, 403),
        ({"authorized_users": ("bob",)}, 403, 200),
        ({"authorized_groups": ("research", "else")}, 200, 403),
        ({"authorized_groups": ("Research",)}, 403, 403),
        ({"authorization_type": "authenticatedUsers", "authorized_users": ("bob",)}, 200, 200),
        (
            {"authorization_type": "authorizedGroups", "authorized_users": ("alice",), "authorized_groups": ("sales",)},
            403,
            200,
        ),
    ],
    ids=str,
)
async def test_it_lets_in_whom_the_owner_lets_in(access: dict[str, Any], alice: int, bob: int) -> None:
    async with served(echo, url(**access)) as (client, host):
        assert (await client.get("/", headers={"host": host, **ALICE})).status_code == alice
        assert (await client.get("/", headers={"host": host, **BOB})).status_code == bob


async def test_bodies_pass_piece_by_piece_in_both_directions() -> None:
    heard, more = asyncio.Event(), asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await head_of(reader)
        assert b"transfer-encoding: chunked" in head.lower()
        assert b"first" in await reader.read(100)
        heard.set()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\none")
        await writer.drain()
        await more.wait()
        writer.write(b"two")
        await writer.drain()

    async def body() -> AsyncGenerator[bytes]:
        yield b"first"
        await heard.wait()
        yield b"second"

    async with (
        served(handler) as (client, host),
        client.stream("POST", "/", content=body(), headers={"host": host, **ALICE}) as answer,
    ):
        pieces = answer.aiter_raw()
        assert await anext(pieces) == b"one"
        more.set()
        assert b"".join([piece async for piece in pieces]) == b"two"


async def test_a_websocket_passes_as_it_is() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await head_of(reader)).lower()
        assert b"upgrade: websocket" in head
        assert b"sec-websocket-key: k" in head
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: a\r\n\r\nhello"
        )
        while data := await reader.read(100):
            writer.write(data[::-1])
            await writer.drain()

    async with served(handler) as (client, host):
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(
            f"GET /ws HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer alice-token\r\nUpgrade: websocket\r\n"
            "Connection: keep-alive, Upgrade\r\nSec-WebSocket-Key: k\r\n\r\n".encode()
        )
        head = (await head_of(reader)).lower()
        assert head.startswith(b"http/1.1 101")
        assert b"sec-websocket-accept: a" in head
        assert await reader.readexactly(5) == b"hello"
        for word in (b"abc", b"\x00\xff"):
            writer.write(word)
            assert await reader.readexactly(len(word)) == word[::-1]
        writer.close()


async def test_a_browser_signs_in_once_with_a_ticket_and_its_cookie_is_good_for_this_address_alone() -> None:
    given = Given()
    async with program(echo) as port, proxy(given) as (_, at), httpx.AsyncClient() as client:
        one, two = given.workload("one", url(url="http://one.apps.test:8083")), given.workload("two")
        given.runs(one, port)
        base, host = f"http://127.0.0.1:{at}", given.host(one)
        told = await client.post(f"{base}/.muster/sign-in", headers={"host": host, **ALICE})
        link = httpx.URL(told.json()["url"])
        assert link.host == host
        path = link.raw_path.decode()
        elsewhere = await client.get(f"{base}{path}", headers={"host": given.host(two)})
        assert elsewhere.status_code == 400
        signed_in = await client.get(f"{base}{path}", headers={"host": host})
        assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/")
        set_cookie = signed_in.headers["set-cookie"]
        assert "HttpOnly" in set_cookie
        assert "SameSite=Lax" in set_cookie
        assert (await client.get(f"{base}{path}", headers={"host": host})).status_code == 400
        cookie = {"cookie": f"own=1; {set_cookie.partition(';')[0]}"}
        client.cookies.clear()
        answer = await client.get(f"{base}/x", headers={"host": host, **cookie})
        assert answer.status_code == 200
        assert "muster-session" not in answer.text
        assert "alice-token" not in set_cookie + str(link)
        assert (await client.get(f"{base}/", headers={"host": given.host(two), **cookie})).status_code == 401
        # A page of another workload makes the browser ask; or opens a websocket.
        for foreign in (
            {"origin": "http://two.apps.test:8083"},
            {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"},
            {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
        ):
            assert (await client.post(f"{base}/", headers={"host": host, **cookie, **foreign})).status_code == 403
        navigated = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        for within in ({}, {"sec-fetch-dest": "document"}):
            answer = await client.get(f"{base}/", headers={"host": host, **cookie, **navigated, **within})
            assert answer.status_code == 200


async def test_who_signed_in_to_a_workload_is_not_signed_in_to_the_next_one_of_its_address() -> None:
    """It may be somebody else's, and let in others."""
    given = Given()
    async with program(echo) as port, proxy(given) as (_, at), httpx.AsyncClient() as client:
        one = given.workload("one", url(url="http://shared.apps.test:8083", authorized_users=("alice",)))
        given.world.later(1)
        two = given.workload("two", url(url="http://shared.apps.test:8083", authorized_users=("bob",)))
        for key in (one, two):
            given.runs(key, port)
        base, host = f"http://127.0.0.1:{at}", given.host(one)
        told = await client.post(f"{base}/.muster/sign-in", headers={"host": host, **ALICE})
        path = httpx.URL(told.json()["url"]).raw_path.decode()
        signed_in = await client.get(f"{base}{path}", headers={"host": host})
        headers = {"host": host, "cookie": signed_in.headers["set-cookie"].partition(";")[0]}
        client.cookies.clear()
        assert (await client.get(base, headers=headers)).status_code == 200
        delete = DeleteWorkload(workload_id=given.world.state("workload", one).workload_id)
        assert given.world.do("workload", one, delete) is None
        given.follow()
        assert (await client.get(base, headers={"host": host, **BOB})).status_code == 200, "it has the address now"
        assert (await client.get(base, headers=headers)).status_code == 401


async def test_a_workload_sets_cookies_for_its_own_host_alone_and_never_ours() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(
            b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1; Domain=apps.test; Path=/\r\nSet-Cookie: muster-session=evil\r\n"
            b"Set-Cookie: __Host-muster-session=evil; Secure\r\nContent-Length: 0\r\n\r\n"
        )
        await writer.drain()

    async with served(handler) as (client, host):
        answer = await client.get("/", headers={"host": host, **ALICE})
    assert answer.headers.get_list("set-cookie") == ["a=1; Path=/"]


async def test_a_workload_that_cannot_answer_is_told_of_in_words() -> None:
    given = Given()
    async with proxy(given) as (_, at), httpx.AsyncClient(base_url=f"http://127.0.0.1:{at}") as client:
        key = given.workload("tool")
        headers = {"host": given.host(key), **ALICE}
        waiting = await client.get("/", headers=headers)
        assert (waiting.status_code, waiting.headers["retry-after"]) == (503, "5")
        assert "workload tool is Creating" in waiting.json()["message"]
        async with program(echo) as port:
            pass
        given.runs(key, port)
        away = await client.get("/", headers=headers)
        assert away.status_code == 502
        assert f"port {CONTAINER} of workload tool does not answer" in away.json()["message"]


async def test_a_request_that_one_pod_does_not_take_goes_to_another_and_is_carried_out_once() -> None:
    """Of a pod that ended just now the log tells a moment later."""
    bodies: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        bodies.append(await reader.readexactly(4))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()

    given = Given()
    async with program(handler) as port, proxy(given) as (_, at), httpx.AsyncClient() as client:
        key = given.workload("tool", parallelism=3, completions=3)
        async with program(echo) as gone:
            given.runs(key, gone)
        given.runs(key, port, pod=msgspec.structs.replace(FIRST, index=1))
        given.runs(key, gone, pod=msgspec.structs.replace(FIRST, index=2))
        for number in range(6):
            answer = await client.post(
                f"http://127.0.0.1:{at}/", content=b"%04d" % number, headers={"host": given.host(key), **ALICE}
            )
            assert answer.text == "ok"
    assert bodies == [b"%04d" % number for number in range(6)]


@pytest.mark.parametrize(
    "said",
    [b"", b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000],
    ids=["nothing", "a header", "nonsense", "too much"],
)
async def test_a_pod_that_speaks_no_http_is_a_bad_gateway(said: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(said)
        await writer.drain()

    async with served(handler) as (client, host):
        answer = await client.get("/", headers={"host": host, **ALICE})
    assert answer.status_code == 502
    assert ("it closed the connection before its answer was whole" in answer.text) is (said == b"")


async def test_an_answer_that_breaks_off_is_not_made_whole() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        await writer.drain()

    async with served(handler) as (client, host):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/", headers={"host": host, **ALICE})


async def test_too_large_a_body_is_refused_and_nothing_may_stand_still_for_ever() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with served(silent, most_bytes=1000, idle_seconds=0.3) as (client, host):
        large = await client.post("/", content=b"x" * 5000, headers={"host": host, **ALICE})
        assert large.status_code == 413
        assert (await client.get("/", headers={"host": host, **ALICE})).status_code == 504


async def test_a_pod_that_reads_nothing_holds_a_request_no_longer_than_one_that_says_nothing() -> None:
    """What was written to it and not taken would be waited for with the end of the connection."""

    async def deaf(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await head_of(reader)
        await asyncio.sleep(60)

    async with served(deaf, most=1, most_bytes=10**9, idle_seconds=0.3) as (client, host):
        headers = {"host": host, **ALICE}
        with contextlib.suppress(httpx.ReadError, httpx.WriteError):  # it may still be writing when it is told
            assert (await client.post("/", content=b"x" * 20_000_000, headers=headers)).status_code == 504
        assert (await client.get("/", headers=headers)).status_code == 504, "its place is free for the next one"


async def test_who_reads_nothing_of_an_answer_keeps_neither_the_connection_nor_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "LINGER_SECONDS", 0.2)

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()

    given = Given()
    async with program(flood) as port, proxy(given, idle_seconds=0.3) as (door, at):
        key = given.workload("tool")
        given.runs(key, port)
        _, writer = await asyncio.open_connection("127.0.0.1", at, limit=1024)
        writer.write(f"GET / HTTP/1.1\r\nHost: {given.host(key)}\r\nAuthorization: Bearer alice-token\r\n\r\n".encode())
        async with asyncio.timeout(60):
            while not door.open:
                await asyncio.sleep(0.01)
            (serving,) = door.open
            await asyncio.wait({serving})
        assert not door.open
        writer.close()


async def test_a_proxy_that_stops_waits_for_nobody_who_reads_nothing() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()

    given = Given()
    async with program(flood) as port, proxy(given) as (door, at):
        key = given.workload("tool")
        given.runs(key, port)
        _, writer = await asyncio.open_connection("127.0.0.1", at, limit=1024)
        writer.write(f"GET / HTTP/1.1\r\nHost: {given.host(key)}\r\nAuthorization: Bearer alice-token\r\n\r\n".encode())
        async with asyncio.timeout(60):
            while not door.open:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        (serving,) = door.open
        serving.cancel()
        assert (await asyncio.wait({serving}, timeout=60))[0], "it does not end"
        writer.close()


async def test_more_requests_to_one_workload_than_it_may_have_are_refused() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        await reader.read()

    async with served(silent, most=1) as (client, host):
        headers = {"host": host, **ALICE}
        first = asyncio.create_task(client.get("/", headers=headers))
        try:
            async with asyncio.timeout(60):
                while True:
                    second = asyncio.create_task(client.get("/", headers=headers, timeout=0.5))
                    with contextlib.suppress(httpx.ReadTimeout):
                        if (await second).status_code == 503:
                            break
        finally:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)


@pytest.mark.parametrize(
    "request_",
    [
        b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET http://169.254.169.254/ HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"nonsense\r\n\r\n",
    ],
    ids=["connect", "absolute", "no host", "two hosts", "two lengths", "nonsense"],
)
async def test_what_is_no_request_for_a_path_is_refused(request_: bytes) -> None:
    async with served() as (client, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(request_)
        assert (await head_of(reader)).startswith(b"HTTP/1.1 400")
        writer.close()


async def test_one_connection_carries_many_requests_and_no_more_are_open_than_may_be() -> None:
    async with served(most_connections=1) as (client, host):
        for _ in range(3):
            assert (await client.get("/", headers={"host": host, **ALICE})).status_code == 200
        async with httpx.AsyncClient(base_url=client.base_url) as other:
            assert (await other.get("/", headers={"host": host, **ALICE})).status_code == 503
            # Who is not signed in keeps none.
            refused = await client.post("/", content=b"abc", headers={"host": host})
            assert (refused.status_code, refused.headers["connection"]) == (401, "close")


async def test_several_proxies_open_each_others_cookies_and_those_of_another_secret_do_not() -> None:
    """As one that was killed, and is back."""
    given = Given()
    async with (
        program(echo) as port,
        proxy(given) as (_, one),
        proxy(given) as (_, two),
        proxy(given, secret="t" * 24) as (_, stranger),
        httpx.AsyncClient() as client,
    ):
        key = given.workload("tool")
        given.runs(key, port)
        host = given.host(key)
        told = await client.post(f"http://127.0.0.1:{one}/.muster/sign-in", headers={"host": host, **ALICE})
        path = httpx.URL(told.json()["url"]).raw_path.decode()
        assert (await client.get(f"http://127.0.0.1:{stranger}{path}", headers={"host": host})).status_code == 400
        signed_in = await client.get(f"http://127.0.0.1:{two}{path}", headers={"host": host})
        cookie = signed_in.headers["set-cookie"].partition(";")[0]
        for at, status in ((one, 200), (two, 200), (stranger, 401)):
            answer = await client.get(f"http://127.0.0.1:{at}/", headers={"host": host, "cookie": cookie})
            assert answer.status_code == status


async def test_who_has_gone_is_not_waited_for() -> None:
    begun, gone = asyncio.Event(), asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        begun.set()
        assert await reader.read() == b""
        gone.set()

    async with served(handler) as (client, host):
        asking = asyncio.create_task(client.get("/", headers={"host": host, **ALICE}))
        await begun.wait()
        asking.cancel()
        async with asyncio.timeout(60):
            await gone.wait()


async def test_a_pod_gets_one_length_and_no_header_that_it_could_take_for_one_of_the_proxys() -> None:
    async with served() as (client, host):
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(
            f"POST / HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer alice-token\r\nContent-Length: 3\r\n"
            "Transfer-Encoding: chunked\r\nX_Forwarded_For: 6.6.6.6\r\nX_Real-IP: 6.6.6.6\r\nTransfer_Encoding: x\r\n"
            "Cookie_: a\r\nMy_Own: 1\r\n\r\n5\r\nhello\r\n0\r\n\r\n".encode()
        )
        head = await head_of(reader)
        told = (await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))).lower()
        writer.close()
    assert b"transfer-encoding: chunked" in told
    assert b"content-length" not in told
    assert b"6.6.6.6" not in told
    assert b"transfer_encoding" not in told
    assert b"my_own: 1" in told


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ("OPTIONS *", 400),
        ("GET /.muster/sign-in?ticket=x", 400),
        ("GET /.muster/sign-in?" + "&".join(f"f{number}=x" for number in range(9)), 400),
        ("GET /.muster/else", 404),
        ("POST /.muster/sign-out", 204),
        ("GET /", 401),
    ],
)
async def test_a_stranger_is_answered_and_keeps_no_connection(asked: str, status: int) -> None:
    async with served() as (client, host):
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(f"{asked} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        async with asyncio.timeout(60):
            said = await reader.read()
        writer.close()
    assert said.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"connection: close" in said


async def test_one_address_takes_no_more_connections_than_its_share() -> None:
    async with served(most_connections_per_address=2) as (client, host):
        idle = [await asyncio.open_connection("127.0.0.1", client.base_url.port) for _ in range(2)]
        headers = {"host": host, **ALICE}
        refused = await client.get("/", headers=headers)
        assert refused.status_code == 429
        assert "MUSTER_PROXY_MAX_CONNECTIONS_PER_ADDRESS" in refused.json()["message"]
        elsewhere = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with httpx.AsyncClient(base_url=client.base_url, transport=elsewhere) as other:
            assert (await other.get("/", headers=headers)).status_code == 200
        for _, writer in idle:
            writer.close()
        async with asyncio.timeout(60):
            while (await client.get("/", headers=headers)).status_code == 429:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("case", ["a token that expires", "a cookie that expires", "an account whose token was taken"])
async def test_a_tunnel_ends_with_what_let_it_in(case: str) -> None:
    """Else who may no longer open an address would keep a websocket for as long as anything moves in it."""
    there, account = [True], f"{TOKEN_PREFIX}{'x' * 32}"
    passed, in_an_hour = [0.0], datetime.now(UTC) + timedelta(hours=1)

    async def identity(token: str) -> Identity:
        assert token in {account, "alice-token"}
        return Identity(iss="muster", sub="alice", expires_at=in_an_hour if token == "alice-token" else NEVER)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        while data := await reader.read(100):
            writer.write(data)
            await writer.drain()

    limits: dict[str, Any] = {"verify": identity, "account_there": lambda _: there[0], "look_seconds": 0.05}
    limits["clock"] = lambda: time.time() + passed[0]
    async with served(handler, **limits) as (client, host):
        signed_in = {"authorization": f"Bearer {account if 'account' in case else 'alice-token'}"}
        if "cookie" in case:
            told = await client.post("/.muster/sign-in", headers={"host": host, **signed_in})
            path = httpx.URL(told.json()["url"]).raw_path.decode()
            answer = await client.get(path, headers={"host": host})
            signed_in = {"cookie": answer.headers["set-cookie"].partition(";")[0]}
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        lines = "".join(f"{name}: {value}\r\n" for name, value in {"host": host, **signed_in}.items())
        writer.write(f"GET /ws HTTP/1.1\r\n{lines}Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n".encode())
        assert (await head_of(reader)).startswith(b"HTTP/1.1 101")
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        there[0], passed[0] = "account" not in case, 0.0 if "account" in case else 7200.0
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()


def test_a_name_is_another_where_letters_beyond_ascii_only_look_alike() -> None:
    access = Access("authorizedUsers", ("kate@example.com",))
    assert objection(access, Member(names=("KATE@Example.com",))) == ""
    assert objection(access, Member(names=("\u212aate@example.com",)))
