"""What a client of NATS may send that no library would: bytes as they are."""

import asyncio
import json
from urllib.parse import urlsplit

from development.servers import NatsServer

SECONDS = 60.0


def pub(subject: bytes, body: bytes = b"x", reply: bytes = b"") -> bytes:
    parts = [b"PUB", subject, *([reply] if reply else []), str(len(body)).encode()]
    return b" ".join(parts) + b"\r\n" + body + b"\r\n"


def hpub(subject: bytes, headers: bytes, body: bytes = b"") -> bytes:
    """`headers`: all of the block behind `NATS/1.0`, but the empty line at its end."""
    block = b"NATS/1.0" + headers + b"\r\n\r\n"
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, len(block), len(block) + len(body), block, body)


async def send(server: NatsServer, user: str, *said: bytes) -> list[bytes]:
    """Once the server has taken all of it, what it answered."""
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    login = {"user": user, "pass": server.passwords[user], "headers": True, "verbose": False, "protocol": 1}
    writer.write(b"CONNECT " + json.dumps(login).encode() + b"\r\n" + b"".join(said) + b"PING\r\n")
    answers: list[bytes] = []
    async with asyncio.timeout(SECONDS):
        while not answers or answers[-1] != b"PONG\r\n":
            answers.append(await reader.readline())
            assert answers[-1], "the server closed the connection"
    writer.close()
    return answers[1:-1]
