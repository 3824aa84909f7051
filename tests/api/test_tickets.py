"""Tickets of streams: what they hold comes out as it went in, once, in time, and nobody else's does."""

import pytest

from services.api.tickets import CLOCK_SECONDS, TICKET_SECONDS, BadTicketError, Tickets

pytestmark = pytest.mark.anyio


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


async def test_another_process_with_the_same_secret_opens_it() -> None:
    clock = Clock()
    given, until = await Tickets("secret", clock=clock).make("a.b.c", project_id="p", workload_id="w", types=("T",))
    ticket = await Tickets("secret", clock=clock).open(given)
    assert (ticket.token, ticket.project_id, ticket.workload_id, ticket.types) == ("a.b.c", "p", "w", ("T",))
    assert until == ticket.expires_at == clock.now + TICKET_SECONDS
    assert "a.b.c" not in given


@pytest.mark.parametrize("secret", ["", "another"])
async def test_a_process_with_another_secret_does_not(secret: str) -> None:
    given, _ = await Tickets("" if not secret else "secret").make("token")
    with pytest.raises(BadTicketError, match="no ticket of this Muster"):
        await Tickets(secret).open(given)


async def test_it_is_good_once_and_until_it_expires() -> None:
    clock = Clock()
    tickets = Tickets("secret", clock=clock)
    first, second = [(await tickets.make("token"))[0] for _ in range(2)]
    await tickets.open(first)
    with pytest.raises(BadTicketError, match="was used already"):
        await tickets.open(first)
    clock.now += TICKET_SECONDS + CLOCK_SECONDS + 1
    with pytest.raises(BadTicketError, match="has expired"):
        await tickets.open(second)
    with pytest.raises(BadTicketError, match="has expired"):
        await tickets.open(first)


async def test_every_changed_character_spoils_it() -> None:
    tickets = Tickets("secret")
    given, _ = await tickets.make("token")
    for at, character in enumerate(given[:-1]):
        changed = given[:at] + ("A" if character != "A" else "B") + given[at + 1 :]
        with pytest.raises(BadTicketError):
            await tickets.open(changed)
    for text in ("", "é", "====", given[:20]):
        with pytest.raises(BadTicketError):
            await tickets.open(text)
