"""Questions to the scheduler, so that one person's leave room for those of others."""

from typing import Final

from services.api.context import Call
from services.runtime.identity.identities import principal
from services.runtime.nats.requests import UnansweredError

QUESTIONS: Final = 64
"""That wait for an answer at a time. One takes some milliseconds, and seconds where the scheduler is busy."""
QUESTIONS_EACH: Final = 4
"""Likewise of one principal: the scheduler drops what is more than sixteen."""
UNREADABLE: Final = "the scheduler's answer cannot be read: it is of another version"


def asker(call: Call) -> str:
    """Who asks, for a question."""
    return "/".join(principal(call.identity))


async def ask_scheduler(call: Call, subject: str, question: bytes, *, seconds: float) -> bytes:
    """Raises UnansweredError, with what to tell."""
    slots, who = call.api.questions, principal(call.identity)
    if slots.objection(who, "questions to the scheduler"):
        raise UnansweredError("too many questions wait for the scheduler already; ask again")
    give_back = slots.take(who)
    try:
        return await call.api.requests.ask(subject, question, seconds=seconds)
    except UnansweredError as error:
        raise UnansweredError(f"the scheduler did not answer within {seconds:g} s; ask again") from error
    finally:
        give_back()
