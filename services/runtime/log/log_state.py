"""Whether the log can be written, as `commands` answers it to whoever asks over NATS."""

from typing import Final

import msgspec

from events.codec import UNDECODABLE
from events.subjects import LOG_STATE
from services.runtime.nats.requests import Requests, UnansweredError

ASK_SECONDS: Final = 1.0


class LogState(msgspec.Struct, frozen=True):
    trouble: str
    """Why it cannot be written; empty where it can."""


async def log_trouble(requests: Requests) -> str:
    """Why the log cannot be written, as `commands` last saw it; empty where it can. Never raises."""
    try:
        answer = await requests.ask(LOG_STATE, b"", seconds=ASK_SECONDS)
    except UnansweredError as error:
        return f"commands does not answer: {error}"
    try:
        return msgspec.json.decode(answer, type=LogState).trouble
    except UNDECODABLE as error:
        return f"what commands answers cannot be read: {error}"
