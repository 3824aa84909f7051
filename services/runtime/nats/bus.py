"""Request and reply over NATS: how commands are sent. How they are served stands in `request_server.py`.

Nothing here knows what a command means.
"""

from typing import Final

import msgspec
import structlog
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError

from events.codec import UNDECODABLE
from events.envelope import (
    AdmittedCommand,
    BatchReply,
    BatchRequest,
    CommandReply,
    CommandRequest,
    OutcomeUnknown,
    Refused,
)
from events.refusal import Refusal
from events.subjects import CREATE_WORKLOADS, request_subject, system_subject
from services.runtime.nats.requests import NobodyListensError, Requests, UnansweredError

REPLY_SECONDS: Final = 5.0
"""How long the api waits for an answer (architecture.md section 4); who works on one must be done before."""
TOO_LARGE: Final = Refused(
    refusal=Refusal(code="invalid", message="the request is too large to be stored; send less text")
)
"""A body within its limit may still be: a distributed training stores what its master has in common with its workers
twice.
"""
_ENCODER: Final = msgspec.json.Encoder()
_REPLY_DECODER: Final = msgspec.json.Decoder(CommandReply)
_BATCH_REPLY_DECODER: Final = msgspec.json.Decoder(BatchReply)

log = structlog.get_logger(__name__)


class GateAwayError(Exception):
    """Nobody takes requests: nothing was done, and nothing is until somebody does (fail closed)."""


class CommandClient:
    """Sends commands and waits for the truth about them."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def send(self, request: CommandRequest, *, timeout_seconds: float = REPLY_SECONDS) -> CommandReply:
        """From the api to the gate. Raises GateAwayError where no gate runs; no answer in time, or none that
        can be read, is OutcomeUnknown.
        """
        subject = request_subject(type(request.command).__name__)
        return await self._send(subject, request, _REPLY_DECODER, timeout_seconds)

    async def send_batch(self, request: BatchRequest, *, timeout_seconds: float = REPLY_SECONDS) -> BatchReply:
        """A part of a batch of creations, likewise. It may be sent again: each of its items is a command of its own."""
        return await self._send(request_subject(CREATE_WORKLOADS), request, _BATCH_REPLY_DECODER, timeout_seconds)

    async def send_system(
        self, service: str, command: AdmittedCommand, *, timeout_seconds: float = REPLY_SECONDS
    ) -> CommandReply:
        """From a service to commands, past the gate. Raises GateAwayError where nobody decides commands."""
        subject = system_subject(service, type(command.command).__name__)
        return await self._send(subject, command, _REPLY_DECODER, timeout_seconds)

    async def _send[R](
        self, subject: str, message: msgspec.Struct, decoder: msgspec.json.Decoder[R], timeout_seconds: float
    ) -> R | OutcomeUnknown:
        try:
            answer = await self._requests.ask(subject, _ENCODER.encode(message), seconds=timeout_seconds)
        except NobodyListensError as error:
            raise GateAwayError(f"nobody listens on {subject}") from error
        except MaxPayloadError:
            return TOO_LARGE  # nothing was sent, and nothing will be however often it is tried
        except (UnansweredError, NatsError, OSError):
            # Also a connection that broke: what was sent may have arrived.
            return OutcomeUnknown()
        try:
            return decoder.decode(answer)
        except UNDECODABLE as error:
            # Something was done, or nothing.
            log.warning("reply_not_read", subject=subject, error=str(error))
            return OutcomeUnknown()
