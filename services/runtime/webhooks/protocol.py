"""What the api asks the service `webhooks`: keys, deliveries, and to deliver again. Pure."""

from datetime import datetime
from typing import Final, Literal

import msgspec

from events.subjects import WEBHOOKS_ASKED

ANSWER_SECONDS: Final = 5.0
TEST_SECONDS: Final = 25.0
"""Of a test, which waits for its receiver."""
MAX_PAGE: Final = 100
"""Deliveries in one answer, some 3 KB each at most."""
MAX_REDELIVERED: Final = 1_000
"""Named in one request."""

type State = Literal["waiting", "delivered", "parked", "failed"]
"""Of a delivery. `parked`: it was tried in vain for days, or its webhook was disabled meanwhile. `failed`: a test."""


class _Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    pass


class AskKey(_Asked, frozen=True, kw_only=True):
    """The key of a webhook, in words. Whoever asks has looked whether they may."""

    webhook_id: str
    number: int


class AskDeliveries(_Asked, frozen=True, kw_only=True):
    """The newest first."""

    webhook_id: str
    state: State | None = None
    before: int | None = None
    """Only older ones than this one."""
    limit: int = MAX_PAGE


class AskAgain(_Asked, frozen=True, kw_only=True):
    """Have these delivered again, or all that are parked."""

    webhook_id: str
    numbers: tuple[int, ...] | None = None


class AskTest(_Asked, frozen=True, kw_only=True):
    """Post a test, and say what came of it. A request that comes again, under the same id, posts it once."""

    webhook_id: str
    test_id: str


Asked = AskKey | AskDeliveries | AskAgain | AskTest


class Try(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request to the receiver."""

    at: datetime
    status: int | None = None
    """Its answer; None where there was none."""
    error: str = ""
    """Why there was none, or what was wrong with it."""
    excerpt: str = ""
    """How its answer began, where it was no success."""
    seconds: float = 0.0


class Delivery(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event for one webhook."""

    number: int
    event_id: str
    type: str
    state: State
    created_at: datetime
    due_at: datetime | None = None
    """When it is tried next."""
    tries: tuple[Try, ...] = ()
    """The oldest first."""


class _Answered(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


class Key(_Answered, frozen=True, kw_only=True):
    text: str
    """`whsec_` and Base64."""


class Deliveries(_Answered, frozen=True, kw_only=True):
    deliveries: tuple[Delivery, ...]


class Again(_Answered, frozen=True, kw_only=True):
    count: int


class Tested(_Answered, frozen=True, kw_only=True):
    delivery: Delivery


class Away(_Answered, frozen=True, kw_only=True):
    """It cannot be answered now: the service does not know this webhook yet, or Postgres is away."""

    reason: str


Answered = Key | Deliveries | Again | Tested | Away


def subject_of(asked: Asked) -> str:
    return f"{WEBHOOKS_ASKED}.{type(asked).__name__}"
