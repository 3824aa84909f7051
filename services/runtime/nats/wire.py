"""What a server sends, read so that no message of anybody's can end the connection that it comes on.

A server passes on what it was given: subjects and replies of any bytes but blanks and line ends, and any bytes as
headers. The library (nats-py 2.16) decodes all of it as UTF-8 while it reads: what is none ended its reading without a
word, and the connection was deaf until its pings went unanswered. Vertical tabs it took for the end of a subject.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import ConnectionClosedError, ConnectionDrainingError, OutboundBufferLimitError, ProtocolError
from nats.protocol import parser
from nats.protocol.parser import Parser

_VERSION: Final = b"NATS/1.0"
_DELIVERED: Final = "$JS.ACK."
_LINE_END: Final = b"\r\n"
_NAME: Final = functools.lru_cache(maxsize=256)(re.compile(r"[!#-'*+\-.0-9A-Z^_`a-z|~]+").fullmatch)
"""What may be the name of a header, which are few."""
_BLANKS: Final = b" \t"
_BLOCK_BYTES: Final = 64 * 1024
"""Of messages that are sent in one go: the first are on their way while the next are written."""

# The library's patterns, but for what parts words: blanks and tabs, as for the server.
_WORDS: Final = rb"[ \t]+([^ \t\r\n]+)[ \t]+([^ \t\r\n]+)[ \t]+(([^ \t\r\n]+)[ \t]+)?"
_MSG: Final = rb"MSG" + _WORDS + rb"(\d+)\r\n"
_HMSG: Final = rb"HMSG" + _WORDS + rb"(\d+)[ \t]+(\d+)\r\n"
parser.MSG_RE = re.compile(rb"\A" + _MSG)
parser.HMSG_RE = re.compile(rb"\A" + _HMSG)
_MSG_HERE: Final = re.compile(_MSG)
_HMSG_HERE: Final = re.compile(_HMSG)


def text(raw: bytes) -> str:
    """What is no UTF-8 is replaced, as the server does where it answers in JSON."""
    return raw.decode(errors="replace")


def header_block(headers: Mapping[str, str]) -> bytes:
    """Headers as they are sent. Their names and values must be fit for that."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def headers_of(raw: bytes | None) -> dict[str, str] | None:
    """Headers of a message, with what a server says in their first line as `Status` and `Description`; None where there
    is none. Of a name that comes twice the last counts: what a server adds stands behind what it was given.
    """
    if not raw:
        return None
    first, *lines = raw.split(_LINE_END)
    found: dict[str, str] = {}
    if first.startswith(_VERSION) and (said := first[len(_VERSION) :].strip(_BLANKS)):
        status, _, description = said.partition(b" ")
        if status.isdigit():
            found["Status"] = text(status)
            if description := description.strip(_BLANKS):
                found["Description"] = text(description)
    for line in lines:
        name, colon, value = line.partition(b":")
        if colon:
            found[text(name.strip(_BLANKS))] = text(value.strip(_BLANKS))
    return found or None


def is_stored(message: "Msg | Taken") -> bool:
    """Whether a consumer delivered it: it stands in a stream, whatever its headers say. What comes on the asker's own
    inbox, and is to be acknowledged nowhere, is the server's word.
    """
    return message.reply.startswith(_DELIVERED)


def is_last(message: "Msg | Taken") -> bool:
    """Whether it is a server's word, and no message read from a stream: the server says where each of those stood."""
    headers = message.headers
    return headers is not None and "Status" in headers and "Nats-Sequence" not in headers


class Taken(NamedTuple):
    """A message as it came, for who takes very many."""

    subject: str
    reply: str
    raw_headers: bytes
    data: bytes

    @property
    def headers(self) -> dict[str, str] | None:
        return headers_of(self.raw_headers)


type Taker = Callable[[Taken], None]


class SteadyParser(Parser):
    """One whose failure ends the connection at once, so that another is made; the library's only stops to read.

    It hands what is for a taker to that, and everything else to the library, one whole message or line at a time. The
    library takes a message through a queue and a task, and reads its headers: that is most of what a message costs.
    """

    def __init__(self, client: "SteadyClient") -> None:
        self._client = client
        super().__init__(client)  # pyright: ignore[reportUnknownMemberType]

    def reset(self) -> None:
        super().reset()
        self._parts: list[bytes] = []
        """What has come of a line, or a message, that is not whole yet."""
        self._missing = 0
        """At least so many bytes."""

    async def parse(self, data: bytes = b"") -> None:
        self._parts.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return
        block = b"".join(self._parts)
        self._parts, self._missing = [], 0
        try:
            await self._parse(block)
        except (ProtocolError, OSError):
            raise
        except Exception as error:
            raise ProtocolError(f"not understood: {type(error).__name__}: {error}") from error

    async def _parse(self, block: bytes) -> None:
        takers, start = self._client.takers, 0
        parts = self._parts
        while start < len(block):
            found = (_HMSG_HERE if block.startswith(b"H", start) else _MSG_HERE).match(block, start)
            if found is None:
                end = block.find(_LINE_END, start) + len(_LINE_END)
                missing = 1 if end < len(_LINE_END) else 0
            else:
                end = found.end() + int(found[found.lastindex or 0]) + len(_LINE_END)
                missing = end - len(block)
            if missing > 0:
                parts.append(block[start:])
                self._missing = missing
                return
            taker = None if found is None else takers.get(found[2])
            if found is None or taker is None:
                await super().parse(block[start:end])
            else:
                await self._hand_over(taker, found, block[found.end() : end - len(_LINE_END)])
            start = end

    async def _hand_over(self, taker: Taker, found: re.Match[bytes], content: bytes) -> None:
        headers_end = int(found[5]) if found.re is _HMSG_HERE else 0
        stats = self._client.stats
        stats["in_msgs"] += 1
        stats["in_bytes"] += len(content) - headers_end
        try:
            taker(Taken(text(found[1]), text(found[4] or b""), content[:headers_end], content[headers_end:]))
        except Exception as error:  # noqa: BLE001 (no reason to end the connection of all others)
            await self._client.tell_error(error)


class SteadyClient(Client):
    """The library's client, which reads whatever comes."""

    def __init__(self) -> None:
        super().__init__()
        self.takers: dict[bytes, Taker] = {}
        """By id of their subscription."""
        setattr(self, "_ps", SteadyParser(self))  # noqa: B010 (the library has no other way)

    async def take(self, subject: str, taker: Taker) -> Subscription:
        """As `subscribe`, but each message is handed over as it is read, behind no queue: the taker does not wait."""
        subscription = await self.subscribe(subject)  # pyright: ignore[reportUnknownMemberType]
        sid: int = subscription._id  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] (it stands nowhere else)
        self.takers[b"%d" % sid] = taker
        return subscription

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        super()._remove_sub(sid, max_msgs)
        self.takers.pop(b"%d" % sid, None)

    async def _send_publish(
        self, subject: str, reply: str, payload: bytes, payload_size: int, headers: dict[str, Any] | None
    ) -> None:
        """As the library does it, with its headers written at once: one by one, they are most of what a message costs.
        A name or a value that is not fit for a header is left to the library, which mends or refuses it.
        """
        values = "".join(headers.values()) if headers else ""
        one_line = "\n" not in values and "\r" not in values
        if not headers or not subject or not one_line or not all(map(_NAME, headers)):
            await super()._send_publish(subject, reply, payload, payload_size, headers)
            return
        block = header_block({name: value.strip() for name, value in headers.items()})
        size = len(block)
        line = f"HPUB {subject} {reply} {size} {size + payload_size}\r\n".encode()
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += payload_size
        await self._send_command(b"".join((line, block, payload, _LINE_END)))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    async def publish_all(self, messages: Iterable[tuple[str, bytes, bytes]]) -> None:
        """As `publish`, of many in one go. Subjects are our own, and are not looked at again.

        Args:
            messages: of each its subject, its headers as of `header_block`, and its payload.
        """
        parts, size = list[bytes](), 0
        for subject, headers, payload in messages:
            length = len(headers)
            line = f"HPUB {subject}  {length} {length + len(payload)}\r\n".encode()
            parts += (line, headers, payload, _LINE_END)
            size += len(payload)
            self.stats["out_msgs"] += 1
            self.stats["out_bytes"] += len(payload)
            if size >= _BLOCK_BYTES:
                await self._publish_block(parts, size)
                parts, size = [], 0
        if parts:
            await self._publish_block(parts, size)

    async def _publish_block(self, parts: list[bytes], size: int) -> None:
        if self.is_closed:
            raise ConnectionClosedError
        if self.is_draining_pubs:
            raise ConnectionDrainingError
        if not self.is_connected and size + self._pending_data_size > self._max_pending_size:
            raise OutboundBufferLimitError
        await self._send_command(b"".join(parts))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    async def tell_error(self, error: Exception) -> None:
        await self._error_cb(error)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        return headers_of(headers)

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Any:
        return self.msg_class(
            subject=text(subject), reply=text(reply), data=data, headers=headers, _client=self, _sid=sid
        )
