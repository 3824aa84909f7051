"""`muster price`, `muster budget`, and what usage costs: what is asked for, what is shown, and what is no value."""

from typing import Any

import pytest

from tests.cli.test_sums import hours_row
from tests.support.shapes import Reply, ShapeServer

ENDED = "2026-02-01T00:00:00Z"
PRICES = {
    "currency": "EUR",
    "prices": [
        {"gpuModel": "*", "amount": "0.80", "holdsFrom": "2026-01-01T00:00:00Z", "holdsUntil": None},
        {
            "gpuModel": "H100",
            "amount": "2.50",
            "holdsFrom": "2026-01-01T00:00:00Z",
            "holdsUntil": "2026-02-01T00:00:00Z",
        },
        {"gpuModel": "H100", "amount": None, "holdsFrom": "2026-02-01T00:00:00Z", "holdsUntil": None},
    ],
}


def budget(**more: Any) -> dict[str, Any]:
    return {
        "projectId": "p-1",
        "projectName": "default",
        "per": "month",
        "gpuHours": None,
        "amount": "5000.00",
        "currency": "EUR",
        "warnPercent": 80,
        "state": "warned",
        "period": "2026-11-01T00:00:00Z",
        "renewsAt": "2026-12-01T00:00:00Z",
        "used": "4100.25",
        "unpricedGpuHours": 0.0,
    } | more


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        (["H100", "2.50", "--currency", "EUR"], {"gpuModel": "H100", "amount": "2.50", "currency": "EUR"}),
        (["*", "0.80"], {"gpuModel": "*", "amount": "0.80"}),
        (
            ["H100", "2.2", "--from", "2027-01-01"],
            {"gpuModel": "H100", "amount": "2.2", "holdsFrom": "2027-01-01T00:00:00Z"},
        ),
        (
            ["H100", "2.2", "--from", "2027-01-01T02:00:00+01:00"],
            {"gpuModel": "H100", "amount": "2.2", "holdsFrom": "2027-01-01T01:00:00Z"},
        ),
    ],
)
def test_a_price_is_sent_as_it_was_typed(api: ShapeServer, muster: Any, typed: list[str], sent: Any) -> None:
    api.on("POST", "/prices", Reply(202, {"code": 202, "message": "an hour of H100 costs 2.50 EUR"}))
    ran = muster("price", "set", *typed)
    assert (ran.code, ran.out, ran.err) == (0, "", "an hour of H100 costs 2.50 EUR\n")
    assert api.asked("POST", "/prices")[0].body == sent


def test_prices_that_have_ended_are_listed_with_all(api: ShapeServer, muster: Any) -> None:
    api.on("GET", "/prices", Reply(body=PRICES))
    assert [line.split() for line in muster("price", "list").out.splitlines()] == [
        ["MODEL", "AMOUNT", "CURRENCY", "FROM", "UNTIL"],
        ["*", "0.80", "EUR", "2026-01-01T00:00:00Z", "-"],
        ["H100", "no", "price", "EUR", "2026-02-01T00:00:00Z", "-"],
    ]
    assert (
        "H100,2.50,EUR,2026-01-01T00:00:00Z,2026-02-01T00:00:00Z" in muster("price", "list", "--all", "-o", "csv").out
    )


def test_a_price_is_deleted_by_its_model(api: ShapeServer, muster: Any) -> None:
    api.on("DELETE", "/prices", Reply(202, {"code": 202, "message": "gone"}))
    assert muster("price", "delete", "NVIDIA A/B", "--from", "2027-01-01").err == "gone\n"
    (request,) = api.asked("DELETE", "/prices")
    assert request.query == {"gpuModel": ["NVIDIA A/B"], "holdsFrom": ["2027-01-01T00:00:00Z"]}


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        ("--amount 5000", {"per": "month", "amount": "5000"}),
        ("--per month --gpu-hours 1000 --warn-at 90%", {"per": "month", "gpuHours": 1000, "warnPercent": 90}),
        ("--gpu-hours 0.5 --warn-at 100", {"per": "month", "gpuHours": 0.5, "warnPercent": 100}),
    ],
)
def test_a_budget_is_sent_as_it_was_typed(api: ShapeServer, muster: Any, typed: str, sent: Any) -> None:
    api.on("PUT", "/budgets/p-1", Reply(202, {"code": 202, "message": "it has now this budget"}))
    ran = muster("budget", "set", "default", *typed.split())
    assert (ran.code, ran.err) == (0, "it has now this budget\n")
    assert api.asked("PUT", "/budgets/p-1")[0].body == sent


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("budget set default", "give --amount or --gpu-hours, and not both"),
        ("budget set default --amount 1 --gpu-hours 1", "give --amount or --gpu-hours, and not both"),
        ("budget set default --gpu-hours many", "--gpu-hours: 'many' is not a number"),
        ("budget set default --amount 1 --warn-at 0", "--warn-at: '0' is no share"),
        ("budget set default --amount 1 --warn-at 101%", "--warn-at: '101%' is no share"),
        ("price set H100 1 --from soon", "--from: 'soon' is no time"),
    ],
)
def test_what_is_no_value_is_said_before_anything_is_sent(api: ShapeServer, muster: Any, typed: str, told: str) -> None:
    ran = muster(*typed.split())
    assert (ran.code, told in ran.err) == (2, True), ran.err
    assert not [request for request in api.requests if request.method != "GET"]


def test_budgets_are_listed_with_what_is_used(api: ShapeServer, muster: Any) -> None:
    of_hours = budget(projectName="vision", gpuHours=1000.0, amount=None, currency=None, used="12.50", state="open")
    api.on("GET", "/budgets", Reply(body={"budgets": [budget(), of_hours]}))
    ran = muster("budget", "list", "--columns", "PROJECT,BUDGET,USED,STATE,WARNS-AT")
    assert ran.out.splitlines() == [
        "PROJECT  BUDGET          USED     STATE   WARNS-AT",
        "default  5000.00 EUR     4100.25  warned  80%",
        "vision   1000 GPU hours  12.50    open    80%",
    ]


def test_a_budget_says_which_hours_it_does_not_count(api: ShapeServer, muster: Any) -> None:
    api.on("GET", "/budgets/p-1", Reply(body=budget(unpricedGpuHours=3.5)))
    shown = muster("budget", "show", "default").out
    assert "4100.25, and 3.5 GPU hours without a price" in shown
    assert "5000.00 EUR per month" in shown
    assert muster("budget", "show", "default", "-o", "json").json() == budget(unpricedGpuHours=3.5)


def test_a_budget_is_taken_away(api: ShapeServer, muster: Any) -> None:
    api.on("DELETE", "/budgets/p-1", Reply(202, {"code": 202, "message": "it has no budget any more"}))
    assert muster("budget", "delete", "default", "-y").err == "it has no budget any more\n"


def test_an_exhausted_budget_is_a_policy_that_refuses(api: ShapeServer, muster: Any) -> None:
    body = {"code": 409, "message": "project 'default' has used 5 EUR of its 5 EUR", "details": "budget_exhausted"}
    api.on("POST", "/workloads/trainings", Reply(409, body, headers={"Retry-After": "86400"}))
    ran = muster("training", "submit", "hello", "-i", "python", "-p", "default")
    assert ran.code == 6
    assert "has used 5 EUR of its 5 EUR" in ran.err


def cost(row: dict[str, Any], cost: str | None, unpriced: float) -> dict[str, Any]:
    return row | {"cost": cost, "unpricedGpuHours": unpriced}


def test_usage_shows_what_it_costs_and_what_has_no_price(api: ShapeServer, muster: Any) -> None:
    rows = [
        cost(hours_row("vision", 10), "25.00", 0),
        cost(hours_row("speech", 4), "2.50", 3),
        cost(hours_row("old", 2), None, 2),
    ]
    found = {
        "begins": "2026-10-01T00:00:00Z",
        "ends": "2026-11-01T00:00:00Z",
        "rows": rows,
        "total": cost({"reservedGpuHours": 16, "waitingHours": 0, "runs": 6}, "27.50", 5),
        "currency": "EUR",
        "unpricedModels": ["", "T4"],
        "next": None,
    }
    api.on("GET", "/usage/hours", Reply(body=found))
    ran = muster("usage", "--columns", "NAME,GPU-HOURS,COST")
    assert ran.out.splitlines() == [
        "NAME    GPU-HOURS  COST",
        "vision  10         25.00",
        "speech  4          >= 2.50",
        "old     2          -",
    ]
    assert ran.err == (
        "from 2026-10-01T00:00:00Z to 2026-11-01T00:00:00Z: "
        "16 GPU hours reserved for 27.50 EUR, 0 hours waited, 6 runs\n"
        "no price for GPUs of an unknown model, T4: 5 GPU hours are in no cost (`muster price set`)\n"
    )
    assert "COST" in muster("usage").out
    assert muster("usage", "-o", "csv").out.splitlines()[2] == "speech,4,,,1.5,2,2.50,3,"
