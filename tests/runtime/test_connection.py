"""What a service may rely on of its connection to NATS."""

import asyncio
import gc
import logging
from pathlib import Path

import pytest

from development.ports import free_port
from development.servers import EVERYTHING, NatsServer
from muster.embedded.certificates import authority_in
from services.runtime.nats.connection import ConnectionLostError, connect
from tests.support.proxy import proxied

pytestmark = pytest.mark.anyio

ROUNDS = 20
MANY = 200


async def test_after_a_flush_the_server_has_heard_of_every_subscription(nats_server: NatsServer) -> None:
    """Else who says that it is ready misses what others send it at once."""
    hears = await connect(nats_server.settings(EVERYTHING), EVERYTHING)
    speaks = await connect(nats_server.settings(EVERYTHING), EVERYTHING)
    try:
        for round_ in range(ROUNDS):
            subscriptions = [await hears.subscribe(f"usage.{round_}.{number}") for number in range(MANY)]
            await hears.flush()
            await speaks.publish(f"usage.{round_}.{MANY - 1}", b"heard")
            assert (await subscriptions[-1].next_msg(timeout=60)).data == b"heard"
    finally:
        await hears.close()
        await speaks.close()


async def test_a_connection_that_ends_before_the_server_lets_it_in_is_closed_before_the_next_is_tried(
    nats_server: NatsServer,
) -> None:
    """Else its socket stays open until Python finds it, and says so in a warning: which is an error here."""
    async with proxied(nats_server.port) as proxy:
        client = await connect(nats_server.settings(EVERYTHING, nats_url=proxy.url), EVERYTHING)
        proxy.target_port = free_port()  # the proxy takes connections, and ends them without a word
        proxy.cut_after_bytes = 0
        await client.subscribe("usage.cut")
        await client.publish("usage.cut", b"has the server send something")
        async with asyncio.timeout(60):
            while proxy.cuts == 0 or client._server_pool[0].reconnects < 3:
                await asyncio.sleep(0.05)
            proxy.target_port, proxy.cut_after_bytes = nats_server.port, None
            while not client.is_connected:
                await asyncio.sleep(0.05)
        await client.flush()
        await client.close()
        gc.collect()


async def test_who_is_refused_is_told_so_though_the_first_refusal_was_lost(nats_server: NatsServer) -> None:
    """The server ends a connection with its reason, which is lost where it had not read all that came."""
    refusals: list[bytes] = [b"", b"-ERR 'Authorization Violation'\r\n"]

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"auth_required": true, "max_payload": 1024}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(refusals.pop(0))
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1") as server:
        url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectionLostError, match="Authorization Violation"):
            await connect(nats_server.settings(EVERYTHING, nats_url=url), EVERYTHING)
    assert not refusals


async def test_the_end_of_a_connection_with_tls_is_no_warning(
    nats_server: NatsServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority_in(tmp_path)
    settings = nats_server.settings(EVERYTHING, nats_ca_file=tmp_path / "ca.crt")
    await (await connect(settings, EVERYTHING)).close()
    logging.getLogger("asyncio").warning("returning true from eof_received() has no effect when using ssl")
    logging.getLogger("asyncio").warning("something else")
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == ["something else"]
