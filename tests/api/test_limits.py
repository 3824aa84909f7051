"""What one user, or one connection, may use of the API: with limits as small as a test can reach."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import asyncpg
import httpx
import pytest

from development.commands import carry_out, training
from development.servers import NatsServer, PostgresServer
from events.aggregate import WORKLOAD, Aggregate, Chain
from events.ids import workload_key
from projections.tables import workloads
from services.api.context import Call
from services.api.errors import ApiError
from services.api.kinds import load_workload
from services.runtime.log.memory import MemoryEventStore
from services.runtime.process.place import address_of
from tests.support.api import Served, serving

V1 = "/api/v1"
TRAININGS = f"{V1}/workloads/trainings"
CONNECTIONS = 12
OF_ONE_ADDRESS = 8


@pytest.fixture(scope="module")
def served(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    limits = {
        "requests_per_second": 0.01,
        "requests_burst": 100,
        "project_max_living_workloads": 3,
        "project_max_creations_per_hour": 6,
        "http_max_connections": CONNECTIONS,
        "http_max_connections_per_address": OF_ONE_ADDRESS,
        "http_max_head_seconds": 1.5,
        "http_max_stalled_seconds": 2,
        "follows_per_user": 2,
    }
    with serving(nats_server, postgres_server, tmp_path_factory.mktemp("api"), **limits) as running:
        yield running


def connect(served: Served, *, of: str = "127.0.0.1") -> socket.socket:
    """From one of this machine's own addresses."""
    address = httpx.URL(served.url)
    assert address.port is not None
    return socket.create_connection((address.host, address.port), timeout=30, source_address=(of, 0))


@contextlib.contextmanager
def asking(served: Served, path: str, subject: str = "alice") -> Generator[socket.socket]:
    """A request whose answer nobody reads, yet."""
    with connect(served) as connection:
        head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.token(subject)}\r\n\r\n"
        connection.sendall(head.encode())
        yield connection


def everything(connection: socket.socket) -> bytes:
    """What comes until the other side ends it."""
    return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_a_user_may_send_a_burst_and_then_so_many_a_second_and_others_are_not_touched(served: Served) -> None:
    with served.client("rushing") as rushing, served.client("bob") as bob:
        answers = [rushing.get(f"{V1}/workloads/count") for _ in range(105)]
        others = bob.get(f"{V1}/workloads/count")
    assert [answer.status_code for answer in answers[:100]] == [200] * 100
    refused = answers[-1]
    assert (refused.status_code, refused.json()["details"], others.status_code) == (429, "rate_limited", 200)
    assert "0.01 requests a second, and 100 at once" in refused.json()["message"]
    assert 1 <= int(refused.headers["Retry-After"]) <= 100


def test_a_project_is_refused_what_is_beyond_its_limits_with_the_figures(served: Served) -> None:
    with served.client("alice") as alice:
        made = [alice.post(TRAININGS, json=served.training()) for _ in range(3)]
        beyond = alice.post(TRAININGS, json=served.training())
        others = served.training()
        others["projectId"] = served.made["other"]
        with served.client("stranger") as stranger:
            elsewhere = stranger.post(TRAININGS, json=others)
        for answer in made:
            assert alice.delete(f"{TRAININGS}/{answer.json()['workloadId']}").status_code == 202
        again = [_until_living_allows(alice, served) for _ in range(3)]
        for answer in again:
            assert alice.delete(f"{TRAININGS}/{answer.json()['workloadId']}").status_code == 202
        too_often = _until_living_allows(alice, served)
    assert (beyond.status_code, beyond.json()["details"]) == (429, "too_many_workloads")
    assert "has 3 living workloads and may have 3" in beyond.json()["message"]
    assert elsewhere.status_code == 202, "another project has limits of its own"
    assert (too_often.status_code, too_often.json()["details"]) == (429, "too_many_creations")
    assert "created 6 workloads within 60 minutes and may create 6" in too_often.json()["message"]
    assert 0 < int(too_often.headers["Retry-After"]) <= 3600


def _until_living_allows(client: httpx.Client, served: Served) -> httpx.Response:
    """A deletion counts once the log has been followed up to it: milliseconds."""
    for _ in range(100):
        answer = client.post(TRAININGS, json=served.training())
        if answer.status_code == 202 or answer.json()["details"] != "too_many_workloads":
            return answer
        time.sleep(0.05)
    raise AssertionError("the deleted are still counted")


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "])
def test_a_head_that_does_not_come_is_cut(served: Served, sent: bytes) -> None:
    with connect(served) as connection:
        connection.sendall(sent)
        with contextlib.suppress(OSError):
            while sent:  # byte by byte, each well before any limit on silence
                connection.sendall(b"x")
                time.sleep(0.1)
                connection.settimeout(0.001)
                with contextlib.suppress(TimeoutError):
                    assert connection.recv(12, socket.MSG_PEEK)
                    break
                connection.settimeout(30)
        connection.settimeout(30)
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"head was not there within 1.5 s" in answer


def test_the_head_of_a_second_request_has_the_same_time(served: Served) -> None:
    with connect(served) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /healthz HT")
        # Behind what may still come of the first answer.
        assert b"HTTP/1.1 408 " in everything(connection)


ENDLESS_HEADS = {
    "one header": (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: ", b"x"),
    "many headers": (b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"X-B: 1\r\n"),
    "a path": (b"GET /", b"x"),
}


@pytest.mark.parametrize("head", ENDLESS_HEADS)
def test_a_head_that_is_far_too_long_is_cut_before_it_is_kept(served: Served, head: str) -> None:
    begin, more = ENDLESS_HEADS[head]
    with connect(served) as connection:
        connection.sendall(begin)
        connection.sendall((more * 65_536)[:65_536])
        answer = everything(connection)
    assert b"HTTP/1.1 431 " in answer
    assert b'"head_too_large"' in answer


REFUSED_EARLY = {
    "a head without an end": (b"GET /", b"HTTP/1.1 431 "),
    "no HTTP": (b"\x16\x03\x01 / \r\n", b"HTTP/1.1 400 "),
    "a body of the wrong type": (
        b"POST /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 500000\r\n\r\n",
        b"HTTP/1.1 415 ",
    ),
}


@pytest.mark.parametrize("request_name", REFUSED_EARLY)
def test_a_client_that_still_sends_reads_why_it_was_refused(served: Served, request_name: str) -> None:
    begin, status = REFUSED_EARLY[request_name]
    with connect(served) as connection:
        answer = _answer_while_sending(connection, begin)
    assert answer.startswith(status)


def _answer_while_sending(connection: socket.socket, begin: bytes) -> bytes:
    """What the other side says until it ends its side, read while we go on sending."""
    with ThreadPoolExecutor(1) as reading:
        answer = reading.submit(everything, connection)
        with contextlib.suppress(ConnectionError):  # sent after the other side has waited long enough
            connection.sendall(begin)
            while not answer.done():
                connection.sendall(b"x" * 65_536)
        return answer.result()


def test_trailers_that_are_far_too_long_are_cut_before_they_are_kept(served: Served) -> None:
    with connect(served) as connection:
        connection.sendall(b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-T: ")
        answer = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"x" * 65_536)
            answer = everything(connection)
    assert b"HTTP/1.1 408 " not in answer, "time alone has ended it"


def test_a_long_head_behind_a_request_that_is_still_answered_ends_the_connection(served: Served) -> None:
    with asking(served, f"{V1}/events?follow=true", "admin") as connection:
        assert connection.recv(64).startswith(b"HTTP/1.1 200 ")
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Long: " + b"x" * 4_000_000)
            everything(connection)
        with served.client(None) as client:
            assert client.get("/healthz").status_code == 200


def test_only_some_requests_may_wait_behind_one_that_is_being_answered(served: Served) -> None:
    with connect(served) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
        _until_answers(connection, 20)
    with connect(served) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000)
        with contextlib.suppress(ConnectionError):
            answers = everything(connection)
            assert answers.count(b"HTTP/1.1 200 ") < 100


def _until_answers(connection: socket.socket, count: int) -> None:
    read = b""
    while read.count(b"HTTP/1.1 200 ") < count:
        piece = connection.recv(65_536)
        assert piece, "the connection was ended before all were answered"
        read += piece


def test_one_connection_too_many_is_told_so_and_a_free_place_is_taken_again(served: Served) -> None:
    with contextlib.ExitStack() as held:
        for number in range(CONNECTIONS):
            held.enter_context(connect(served, of=f"127.0.0.{2 + number % 2}"))
        with connect(served) as refused:
            answer = everything(refused)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"too_many_connections"' in answer
    _until_served(served)


def _until_served(served: Served) -> None:
    for _ in range(100):
        with contextlib.suppress(httpx.TransportError), served.client(None) as client:
            if client.get("/healthz").status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError("no place has become free")


def test_one_address_takes_only_its_share_of_the_connections_and_all_others_are_served(served: Served) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(OF_ONE_ADDRESS):
            held.enter_context(connect(served))
        for _ in range(3):
            with connect(served) as refused:
                answer = _answer_while_sending(refused, b"GET /healthz HTTP/1.1\r\n")
            assert answer.startswith(b"HTTP/1.1 429 ")
            assert b'"too_many_connections_of_address"' in answer
            assert b"8 connections are open from your address" in answer
            assert b"MUSTER_HTTP_MAX_CONNECTIONS_PER_ADDRESS" in answer
        with connect(served, of="127.0.0.2") as another:
            another.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert another.recv(4096).startswith(b"HTTP/1.1 200 ")
    _until_served(served)


@pytest.mark.parametrize(
    ("client", "place"),
    [
        (("192.0.2.7", 1), "192.0.2.7"),
        (("::ffff:192.0.2.7", 1), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 1), "2001:db8:1:2::"),
        (("2001:db8:1:2::9", 1), "2001:db8:1:2::"),
        (("fe80::1%eth0", 1), "fe80::"),
        (None, None),
    ],
)
def test_what_counts_as_one_address(client: tuple[str, int] | None, place: str | None) -> None:
    assert address_of(client) == place


def test_exports_that_nobody_reads_are_few_and_end_and_lists_go_on_beside_them(served: Served) -> None:
    """An export holds a connection of Postgres' pool for as long as it takes."""
    with served.client("bob") as bob, served.client("stranger") as stranger:
        made = stranger.post(TRAININGS, json=served.training(projectId=served.made["other"]))
        listed = stranger.get(f"{V1}/workloads", params={"min_seq": made.headers["X-Log-Sequence"]})
        assert listed.json()["workloads"]
        asyncio.run(_many_rows(served))
        export = f"{V1}/workloads/export"
        with contextlib.ExitStack() as held:
            unread = [held.enter_context(asking(served, export, "bob")) for _ in range(2)]
            heads = [connection.recv(64) for connection in unread]
            beyond = bob.get(export)
            listed = bob.get(f"{V1}/workloads", params={"limit": 1})
            after = _until_a_place_is_free(bob, f"{export}?columns=name")
            ends = [_last_bytes(connection) for connection in unread]
    assert all(head.startswith(b"HTTP/1.1 200 ") for head in heads)
    assert (beyond.status_code, beyond.json()["details"]) == (429, "too_many_streams")
    assert "2 exports of yours are open, and you may have 2" in beyond.json()["message"]
    assert listed.status_code == 200
    assert not any(end.endswith(b"0\r\n\r\n") for end in ends), "a file that was cut must not look whole"
    assert len(after.text.splitlines()) > ROWS


ROWS = 1_000
"""Some 20 MB as CSV: far more than the kernel keeps for a reader that stands still."""


async def _many_rows(served: Served) -> None:
    connection = await asyncpg.connect(served.settings.postgres_url)
    schema = await connection.fetchval("SELECT schema_name FROM muster.current_projection")
    name = f'"{schema}".{workloads.name}'
    # One row that is there, many times under other ids.
    await connection.execute(
        f"INSERT INTO {name} SELECT r.* FROM (SELECT * FROM {name} LIMIT 1) w, generate_series(1, {ROWS}) n, "
        f"LATERAL jsonb_populate_record(NULL::{name}, to_jsonb(w) || jsonb_build_object("
        f"'id', w.id || n, 'key', w.key || n, 'project_id', '{served.project}', "
        f"'phase_message', repeat('x', 20000))) r"
    )
    await connection.close()


def _until_a_place_is_free(client: httpx.Client, path: str) -> httpx.Response:
    for _ in range(240):
        # Where the machine is busy, this reader too may stand still for as long as one may.
        with contextlib.suppress(httpx.RemoteProtocolError):
            answer = client.get(path)
            if answer.status_code != 429:
                return answer
        time.sleep(0.25)
    raise AssertionError("readers that stand still keep their places")


def _last_bytes(connection: socket.socket) -> bytes:
    """Of what the kernel had for a reader that was cut off."""
    last = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65_536):
            last = piece
    return last


@pytest.mark.anyio
async def test_no_chain_is_searched_for_one_who_may_not_read_in_its_project() -> None:
    """Earlier workloads of a name are found by reading all that ever happened under it."""

    class Store(MemoryEventStore):
        searched = 0

        async def load_at[S](self, aggregate: Aggregate[S], key: str, workload_id: str) -> Chain[S] | None:
            self.searched += 1
            return await super().load_at(aggregate, key, workload_id)

    store = Store()
    await carry_out(store, "1", training("a", "p", "c"))
    newest = (await store.load(WORKLOAD, workload_key("p", "a"))).state.workload_id
    earlier = f"{newest[:-4]}0000"
    for may_read, searched in ((False, 0), (True, 1)):
        call = cast("Call", SimpleNamespace(api=SimpleNamespace(store=store), may_read=lambda _, may=may_read: may))
        with pytest.raises(ApiError, match="there is no workload"):
            await load_workload(call, earlier)
        assert store.searched == searched
