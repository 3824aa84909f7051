"""The prices aggregate: what an hour of a GPU costs, by its model. There is one for the installation.

A price holds from a full hour on, until the next one of the same model. What past hours cost never changes: a price may
only begin in the past where nothing had a price since.
"""

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, assert_never

import msgspec
from msgspec.structs import replace

from events.decision import Context, Decision
from events.event import Event
from events.money import CURRENCY_PATTERN, MICROS, MOST_AMOUNT
from events.refusal import Refusal

PRICES_KEY: Final = "prices"
"""The only key of this aggregate."""
ANY_MODEL: Final = "*"
"""Stands for every model that has no price of its own, also for an unknown one."""
MAX_MODEL: Final = 256
"""Characters of a model's name."""
MAX_PRICES: Final = 1_000
"""Of all models, past and future: sums are cut wherever one changes, as often as somebody may ask for periods."""
EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
MOST_AHEAD: Final = timedelta(days=3_660)
HOUR: Final = timedelta(hours=1)

# -- events ----------------------------------------------------------------------------------------------------------


class _Event(Event, frozen=True, kw_only=True):
    gpu_model: str
    """As nodes name it; `*` for all models without a price of their own."""
    holds_from: datetime
    """The full hour from which on this holds."""


class PriceSet(_Event, frozen=True, kw_only=True):
    """An hour of a GPU of this model has this price."""

    currency: str
    """Three letters. All prices of the installation have the same."""
    micros: int
    """Millionths of the currency for an hour of a whole GPU."""


class PriceRemoved(_Event, frozen=True, kw_only=True):
    """The model has no price of its own any more. What hours cost before stays as it is."""


PriceEvent = PriceSet | PriceRemoved

# -- state -----------------------------------------------------------------------------------------------------------


class Price(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    holds_from: datetime
    micros: int | None = None
    """For an hour of a whole GPU, in millionths. None: no price from here on."""


class Prices(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    currency: str = ""
    """Empty as long as there never was a price."""
    models: dict[str, tuple[Price, ...]] = msgspec.field(default_factory=dict[str, tuple[Price, ...]])
    """All prices of each model, in the order in which they hold."""

    def own(self, model: str, at: datetime) -> int | None:
        """What the model itself has at a moment, in millionths for an hour."""
        prices = self.models.get(model, ())
        held = bisect_right(prices, at, key=lambda price: price.holds_from)
        return prices[held - 1].micros if held else None

    def at(self, model: str, at: datetime) -> int | None:
        """What an hour of a GPU costs at a moment, in millionths; None where it has no price."""
        own = self.own(model, at)
        return self.own(ANY_MODEL, at) if own is None else own

    def changes(self) -> Iterator[datetime]:
        """When any price begins or ends, in no order."""
        return (price.holds_from for prices in self.models.values() for price in prices)


def evolve(state: Prices, event: PriceEvent) -> Prices:
    """The state after one event; the very same where the event does not fit it: then it changes nothing."""
    known = state.models.get(event.gpu_model, ())
    match event:
        case PriceSet():
            if not event.currency:
                return state
            others = (price for price in known if price.holds_from != event.holds_from)
            new = Price(holds_from=event.holds_from, micros=event.micros)
            prices = tuple(sorted((*others, new), key=lambda price: price.holds_from))
            return replace(state, currency=event.currency, models=state.models | {event.gpu_model: prices})
        case PriceRemoved():
            prices = tuple(price for price in known if price.holds_from < event.holds_from)
            if prices and prices[-1].micros is not None:
                prices = (*prices, Price(holds_from=event.holds_from))
            if prices == known:
                return state
            models = {model: kept for model, kept in state.models.items() if model != event.gpu_model}
            return replace(state, models=models | {event.gpu_model: prices} if prices else models)
        case _:
            assert_never(event)


# -- commands and decide ---------------------------------------------------------------------------------------------


class _Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    gpu_model: str
    holds_from: datetime | None = None
    """A full hour. None: this hour, or the next one where this one has a price already."""

    def __post_init__(self) -> None:
        """Raises ValueError where these cannot be: nobody but the api has looked at them before."""
        if not fit_model(self.gpu_model):
            raise ValueError("no model of a GPU")
        moment = self.holds_from
        if moment is not None and not is_full_hour(moment):
            raise ValueError("no full hour")


class SetPrice(_Command, frozen=True, kw_only=True):
    currency: str
    micros: int

    def __post_init__(self) -> None:
        """Raises ValueError, as above."""
        super().__post_init__()
        if not CURRENCY_PATTERN.match(self.currency) or not 0 <= self.micros <= MOST_AMOUNT * MICROS:
            raise ValueError("no price")


class RemovePrice(_Command, frozen=True, kw_only=True):
    """The model shall have no price of its own from then on; later ones that were set ahead go, too."""


PriceCommand = SetPrice | RemovePrice


def fit_model(name: str) -> bool:
    return 0 < len(name) <= MAX_MODEL and name.isprintable() and name == name.strip()


def is_full_hour(moment: datetime) -> bool:
    """Of UTC. What is no moment there, at the ends of the calendar, is none either."""
    try:
        return moment.tzinfo is not None and full_hour(moment) == moment
    except OverflowError:
        return False


def full_hour(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def decide(command: PriceCommand, state: Prices, context: Context) -> Decision[PriceEvent]:
    model, this_hour = command.gpu_model, full_hour(context.now)
    earliest = _earliest(model, state, this_hour)
    holds_from = max(earliest, this_hour) if command.holds_from is None else command.holds_from
    if not EARLIEST <= holds_from <= context.now + MOST_AHEAD:
        return Refusal(
            code="invalid",
            field="holdsFrom",
            message=f"must be between {_told(EARLIEST)} and ten years from now, got {_told(holds_from)}",
        )
    if holds_from < earliest:
        return _of_the_past(model, earliest)
    match command:
        case SetPrice():
            return _set(command, state, holds_from)
        case RemovePrice():
            later = any(p.micros is not None and p.holds_from > holds_from for p in state.models.get(model, ()))
            if state.own(model, holds_from) is None and not later:
                message = f"{model!r} has no price of its own from {_told(holds_from)} on"
                return Refusal(code="not_found", message=message)
            return (PriceRemoved(gpu_model=model, holds_from=holds_from),)
        case _:
            assert_never(command)


def _earliest(model: str, state: Prices, this_hour: datetime) -> datetime:
    """From when on a price can hold without changing what any hour before, or this one, cost."""
    if state.at(model, this_hour) is not None:
        return this_hour + HOUR
    unpriced_since = this_hour
    for moment in sorted({moment for moment in state.changes() if moment <= this_hour}, reverse=True):
        if state.at(model, moment) is not None:
            return unpriced_since
        unpriced_since = moment
    return EARLIEST


def _set(command: SetPrice, state: Prices, holds_from: datetime) -> Decision[PriceEvent]:
    model = command.gpu_model
    if state.currency and command.currency != state.currency:
        return Refusal(
            code="other_currency",
            field="currency",
            message=f"all prices here are in {state.currency}, and there can be only one currency; got "
            f"{command.currency}",
        )
    known = state.models.get(model, ())
    if state.own(model, holds_from) == command.micros:
        return ()
    kept = any(price.holds_from == holds_from for price in known)
    if not kept and sum(map(len, state.models.values())) >= MAX_PRICES:
        return Refusal(
            code="too_many_prices",
            message=f"there are {MAX_PRICES:,} prices, past ones included, which is the limit; one for {ANY_MODEL!r} "
            "holds for all models that have none",
        )
    return (PriceSet(gpu_model=model, holds_from=holds_from, currency=command.currency, micros=command.micros),)


def _of_the_past(model: str, earliest: datetime) -> Refusal:
    return Refusal(
        code="price_in_past",
        field="holdsFrom",
        message=f"hours of {model!r} had a price already, and what past hours cost never changes; this can hold from "
        f"{_told(earliest)} on",
    )


def _told(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
