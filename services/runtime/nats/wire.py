"""What a server sends, read so that no message of anybody's can end the connection that it comes on.

A server passes on what it was given: subjects and replies of any bytes but blanks and line ends, and any bytes as
headers. The library (nats-py 2.16) decodes all of it as UTF-8 while it reads: what is none ended its reading without a
word, and the connection was deaf until its pings went unanswered. Vertical tabs it took for the end of a subject.
"""

import re
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import ProtocolError
from nats.protocol import parser
from nats.protocol.parser import Parser

_VERSION: Final = b"NATS/1.0"
_DELIVERED: Final = "$JS.ACK."
_LINE_END: Final = b"\r\n"
_BLANKS: Final = b" \t"

# The library's patterns, but for what parts words: blanks and tabs, as for the server.
_WORDS: Final = rb"[ \t]+([^ \t\r\n]+)[ \t]+([^ \t\r\n]+)[ \t]+(([^ \t\r\n]+)[ \t]+)?"
parser.MSG_RE = re.compile(rb"\AMSG" + _WORDS + rb"(\d+)\r\n")
parser.HMSG_RE = re.compile(rb"\AHMSG" + _WORDS + rb"(\d+)[ \t]+(\d+)\r\n")


def text(raw: bytes) -> str:
    """What is no UTF-8 is replaced, as the server does where it answers in JSON."""
    return raw.decode(errors="replace")


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


def is_stored(message: Msg) -> bool:
    """Whether a consumer delivered it: it stands in a stream, whatever its headers say. What comes on the asker's own
    inbox, and is to be acknowledged nowhere, is the server's word.
    """
    return message.reply.startswith(_DELIVERED)


def is_last(message: Msg) -> bool:
    """Whether it is a server's word, and no message read from a stream: the server says where each of those stood."""
    headers = message.headers
    return headers is not None and "Status" in headers and "Nats-Sequence" not in headers


class SteadyParser(Parser):
    """One whose failure ends the connection at once, so that another is made; the library's only stops to read."""

    async def parse(self, data: bytes = b"") -> None:
        try:
            await super().parse(data)
        except (ProtocolError, OSError):
            raise
        except Exception as error:
            raise ProtocolError(f"not understood: {type(error).__name__}: {error}") from error


class SteadyClient(Client):
    """The library's client, which reads whatever comes."""

    def __init__(self) -> None:
        super().__init__()
        setattr(self, "_ps", SteadyParser(self))  # noqa: B010 (the library has no other way)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        return headers_of(headers)

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Any:
        return self.msg_class(
            subject=text(subject), reply=text(reply), data=data, headers=headers, _client=self, _sid=sid
        )
