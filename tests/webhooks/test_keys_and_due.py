"""Signatures, as the public library checks them; and what follows from a try."""

import base64
import time
from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from services.webhooks.due import MAX_TRIES, PAUSES, Breaker, Next, Outcome, after
from services.webhooks.keys import WebhookKeys

KEYS = WebhookKeys(b"k" * 32)
BODY = b'{"type":"muster.WorkloadFailed.v1"}'
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def headers(*numbers: int, body: bytes = BODY) -> dict[str, str]:
    return KEYS.headers("w", numbers, "commit.0.WorkloadFailed", int(time.time()), body)


def test_a_receiver_with_the_public_library_takes_what_is_signed_with_either_key() -> None:
    for number in (1, 2):
        assert Webhook(KEYS.text("w", number)).verify(BODY, headers(2, 1)) == {"type": "muster.WorkloadFailed.v1"}


@pytest.mark.parametrize(
    ("key", "signed", "body"),
    [
        (KEYS.text("w", 3), headers(2, 1), BODY),
        (KEYS.text("other", 1), headers(1), BODY),
        (WebhookKeys(b"x" * 32).text("w", 1), headers(1), BODY),
        (KEYS.text("w", 1), headers(1), BODY + b" "),
        (KEYS.text("w", 1), headers(1) | {"webhook-id": "another"}, BODY),
        (KEYS.text("w", 1), headers(1) | {"webhook-timestamp": str(int(time.time()) - 10)}, BODY),
    ],
)
def test_it_takes_nothing_else(key: str, signed: dict[str, str], body: bytes) -> None:
    with pytest.raises(WebhookVerificationError):
        Webhook(key).verify(body, signed)


def test_a_key_is_of_the_size_that_the_standard_asks_for_and_a_weak_one_is_refused() -> None:
    assert len(base64.b64decode(KEYS.text("w", 1).removeprefix("whsec_"))) == 32
    with pytest.raises(ValueError, match="32"):
        WebhookKeys(b"short")


@pytest.mark.parametrize(
    ("outcome", "tries", "test", "follows"),
    [
        (Outcome(204), 1, False, Next("delivered")),
        (Outcome(299), MAX_TRIES, False, Next("delivered")),
        (Outcome(500), 1, False, Next("waiting", PAUSES[0])),
        (Outcome(302), 2, False, Next("waiting", PAUSES[1])),
        (Outcome(None, "hangs"), MAX_TRIES - 1, False, Next("waiting", PAUSES[-1])),
        (Outcome(None, "hangs"), MAX_TRIES, False, Next("parked")),
        (Outcome(410), 1, False, Next("parked", gone=True)),
        (Outcome(503, retry_after=timedelta(minutes=3)), 1, False, Next("waiting", timedelta(minutes=3))),
        (Outcome(429, retry_after=timedelta(seconds=1)), 2, False, Next("waiting", PAUSES[1])),
        (Outcome(503, retry_after=timedelta(days=900)), 1, False, Next("waiting", timedelta(hours=24))),
        (Outcome(503, retry_after=timedelta(seconds=-5)), 1, False, Next("waiting", PAUSES[0])),
        (Outcome(500), 1, True, Next("failed")),
        (Outcome(204), 1, True, Next("delivered")),
        (Outcome(410), 1, True, Next("failed", gone=True)),
    ],
)
def test_what_follows_from_a_try(outcome: Outcome, tries: int, test: bool, follows: Next) -> None:
    assert after(outcome, tries, chance=0, test=test) == follows


def test_the_tries_take_three_days_and_jitter_only_adds() -> None:
    assert timedelta(days=3) < sum(PAUSES, timedelta()) < timedelta(days=4)
    for tries, pause in enumerate(PAUSES, start=1):
        grown = after(Outcome(500), tries, chance=1).pause
        assert grown is not None
        assert pause < grown <= pause * 1.3


def test_what_fails_again_and_again_is_tried_one_at_a_time_with_pauses_until_something_is_taken() -> None:
    breaker = Breaker()
    for _ in range(Breaker.FAILURES - 1):
        breaker.note(taken=False, now=NOW)
    assert breaker.slots(8, 2, NOW) == 6
    breaker.note(taken=False, now=NOW)
    assert breaker.slots(8, 0, NOW) == 0
    assert breaker.slots(8, 0, NOW + timedelta(seconds=1)) == 1
    assert breaker.slots(8, 1, NOW + timedelta(seconds=1)) == 0
    for _ in range(20):
        breaker.note(taken=False, now=NOW)
    assert breaker.slots(8, 0, NOW + timedelta(seconds=59)) == 0
    assert breaker.slots(8, 0, NOW + Breaker.LONGEST) == 1
    breaker.note(taken=True, now=NOW)
    assert breaker.slots(8, 0, NOW) == 8
