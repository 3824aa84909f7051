"""Prices: what an hour of a GPU costs, by its model."""

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import Annotated

from events.aggregate import PRICES
from events.fields.declare import Body, Limits
from events.money import CURRENCY_PATTERN, MOST_AMOUNT, amount_text, micros_of
from events.prices import MAX_MODEL, PRICES_KEY, RemovePrice, SetPrice, fit_model, full_hour
from events.prices import Prices as PricesState
from services.api import answers
from services.api.clusters import require_some_role
from services.api.context import MIN_SEQ, Call, Look, read_answer, rfc3339
from services.api.errors import bad_request
from services.api.issues import BadValueError, Issue, shown
from services.api.moments import AS_OF, MOMENT_HEADERS, moment_headers, moment_of, parse_moment
from services.api.operations import Answer, Query, changes, reads
from services.api.paths import PRICES as PRICES_PATH
from services.api.places import directory_caught_up, directory_fresh

WHICH = (
    Query(name="gpuModel", help="The model; `*`: all models without a price of their own."),
    Query(
        name="holdsFrom",
        read=parse_moment,
        help="The full hour (RFC 3339) from which on it has no price. Default: this hour, or the next one if this one "
        "has a price.",
    ),
)


class PriceSetting(Body, frozen=True, kw_only=True):
    gpu_model: Annotated[str, Limits(shortest=1, longest=MAX_MODEL)]
    """As nodes name it (`muster node describe`). `*`: all models without a price of their own."""
    amount: Annotated[str, Limits(shortest=1, longest=20)]
    """For an hour of a whole GPU, as a decimal with at most six digits after the point."""
    currency: Annotated[str, Limits(shortest=3, longest=3)] | None = None
    """Three letters, such as `EUR`. Null: that of the prices that there are."""
    holds_from: Annotated[str, Limits(shortest=1, longest=40)] | None = None
    """The full hour (RFC 3339) from which on it holds; in the past only where nothing had a price since. Null: this
    hour, or the next one if this one has a price."""


@reads(
    PRICES_PATH,
    tag="Organisation",
    summary="List what an hour of a GPU costs, by model: past, present and future prices",
    query=(AS_OF, MIN_SEQ),
    headers=MOMENT_HEADERS,
    errors=(403,),
)
async def list_prices(call: Look) -> Answer[answers.Prices]:
    require_some_role(call)
    if (moment := await moment_of(call)) is not None:
        chain = await call.api.store.load(PRICES, PRICES_KEY, moment.seq) if moment.seq else None
        held = PricesState() if chain is None else chain.state
        return read_answer(_answer(held), moment.seq, moment_headers(moment))
    headers = await directory_fresh(call)
    return read_answer(_answer(call.api.directory.prices), call.api.directory.seq, headers)


@changes(
    "POST",
    PRICES_PATH,
    tag="Organisation",
    summary="Set what an hour of a GPU costs from a full hour on. What past hours cost never changes",
    body=PriceSetting,
    example={"gpuModel": "NVIDIA H100 80GB HBM3", "amount": "2.50", "currency": "EUR"},
    errors=(403, 409),
)
async def set_price(call: Call) -> Answer[answers.HttpResponse]:
    given = call.fields(PriceSetting, lambda setting: _issues(call, setting))
    await directory_fresh(call)
    micros, currency = micros_of(given.amount), given.currency or call.api.directory.prices.currency
    assert micros is not None, "it was checked"
    command = SetPrice(
        gpu_model=given.gpu_model,
        holds_from=None if given.holds_from is None else parse_moment(given.holds_from),
        currency=currency,
        micros=micros,
    )
    reply = await call.send(command)
    await directory_caught_up(call, reply)
    costs = f"an hour of {_called(given.gpu_model)} costs {amount_text(micros)} {currency}"
    if not reply.changed:
        return call.accepted(reply, f"{costs} already")
    prices = (await call.api.store.load(PRICES, PRICES_KEY, min_seq=reply.seq)).state.models.get(given.gpu_model, ())
    since = [price.holds_from for price in prices if price.micros == micros]
    return call.accepted(reply, f"{costs} from {rfc3339(since[-1])} on" if since else costs)


@changes(
    "DELETE",
    PRICES_PATH,
    tag="Organisation",
    summary="Let a model have no price of its own from a full hour on. What past hours cost never changes",
    query=WHICH,
    errors=(403, 404),
)
async def remove_price(call: Call) -> Answer[answers.HttpResponse]:
    model: str | None = call.values["gpuModel"]
    moment: datetime | None = call.values["holdsFrom"]
    issues = [] if model is not None else [Issue(field="gpuModel", details="is required", rule="required")]
    if model is not None and not fit_model(model):
        issues.append(_no_model(model))
    if moment is not None:
        issues.extend(_hour_issues(moment))
    if model is None or issues:
        raise bad_request(issues)
    reply = await call.send(RemovePrice(gpu_model=model, holds_from=moment))
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"{_called(model)} has no price of its own any more; past hours keep theirs")


def _called(model: str) -> str:
    return "any other GPU" if model == "*" else model


def _answer(held: PricesState) -> answers.Prices:
    return answers.Prices(
        currency=held.currency or None,
        prices=[
            answers.Price(
                gpu_model=model,
                amount=None if price.micros is None else amount_text(price.micros),
                holds_from=price.holds_from,
                holds_until=None if following is None else following.holds_from,
            )
            for model, prices in sorted(held.models.items())
            for price, following in pairwise((*prices, None))
            if price is not None
        ],
    )


def _issues(call: Call, setting: PriceSetting) -> Iterator[Issue]:
    if setting.gpu_model and not fit_model(setting.gpu_model):
        yield _no_model(setting.gpu_model)
    if setting.amount and micros_of(setting.amount) is None:
        yield no_amount("amount", setting.amount)
    if setting.currency is not None:
        yield from currency_issues(setting.currency)
    elif not call.api.directory.prices.currency:
        details = "is required with the first price, such as EUR; all others are in the same"
        yield Issue(field="currency", details=details, rule="required")
    if setting.holds_from is not None:
        try:
            yield from _hour_issues(parse_moment(setting.holds_from))
        except BadValueError as error:
            yield Issue(field="holdsFrom", details=str(error))


def _no_model(given: str) -> Issue:
    details = f"{shown(given)} is no name of a GPU model: at most {MAX_MODEL} printable characters, no space at an end"
    return Issue(field="gpuModel", details=details)


def no_amount(field: str, given: str) -> Issue:
    """Of a text that is no amount of money."""
    details = (
        f"{shown(given)} is no amount: write a decimal such as 2.50, with at most six digits after the point, at most "
        f"{MOST_AMOUNT:,}"
    )
    return Issue(field=field, details=details)


def currency_issues(given: str) -> Iterator[Issue]:
    if given and not CURRENCY_PATTERN.match(given):
        yield Issue(field="currency", details=f"{shown(given)} is no currency: three capital letters, such as EUR")


def _hour_issues(moment: datetime) -> Iterator[Issue]:
    if full_hour(moment) != moment:
        details = f"must be a full hour (UTC), such as {rfc3339(full_hour(moment))}, got {rfc3339(moment)}"
        yield Issue(field="holdsFrom", details=details)
