"""Prices and budgets over HTTP: what is kept of them, what hours cost, and what an exhausted budget refuses."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from development.servers import EVERYTHING
from events.aggregate import PROJECT
from events.budgets import NoteBudgetUse, period_of
from events.ids import key_of_id, node_key
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.connection import connect
from tests.api.test_use_now import _appended as appended
from tests.api.test_use_now import placed
from tests.support.api import Served, report_node

V1 = "/api/v1"
PRICES, BUDGETS, HOURS, DIFF = f"{V1}/prices", f"{V1}/budgets", f"{V1}/usage/hours", f"{V1}/diff"
TRAININGS = f"{V1}/workloads/trainings"
HOUR = timedelta(hours=1)


@pytest.fixture
def admin(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


def done(answer: httpx.Response) -> Any:
    assert answer.status_code in {200, 202}, answer.text
    return answer.json()


def refused(answer: httpx.Response, status: int, code: str | None = None) -> str:
    assert (answer.status_code, answer.json().get("details")) == (status, code), answer.text
    return answer.text


async def _note(served: Served, project: str, *, in_money: bool, used: int) -> None:
    """As the service says it that measures."""
    nc = await connect(served.settings, EVERYTHING)
    try:
        now = datetime.now(UTC)
        command = NoteBudgetUse(project_id=project, period=period_of(now), until=now, in_money=in_money, used=used)
        await appended(JetStreamEventStore(nc), PROJECT, key_of_id(project) or "", command)
    finally:
        await nc.close()


def test_a_budget_in_money_needs_prices(served: Served, admin: httpx.Client) -> None:
    """The first of this module: there are none yet."""
    assert done(admin.get(PRICES)) == {"currency": None, "prices": []}
    refused(admin.put(f"{BUDGETS}/{served.project}", json={"amount": "5"}), 409, "no_prices")
    assert "currency" in refused(admin.post(PRICES, json={"gpuModel": "H100", "amount": "1"}), 400)


def test_prices_are_kept_with_their_past_and_cost_what_they_say(served: Served, admin: httpx.Client) -> None:
    before = int(admin.get(PRICES).headers["x-log-sequence"])
    told = done(admin.post(PRICES, json={"gpuModel": "H100", "amount": "3600", "currency": "EUR"}))
    assert "an hour of H100 costs 3600.00 EUR from " in told["message"]
    assert "already" in done(admin.post(PRICES, json={"gpuModel": "H100", "amount": "3600.00"}))["message"]
    refused(admin.post(PRICES, json={"gpuModel": "*", "amount": "1", "currency": "USD"}), 400, "other_currency")
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    past = {"gpuModel": "H100", "amount": "1", "holdsFrom": (now - HOUR).isoformat()}
    refused(admin.post(PRICES, json=past), 400, "price_in_past")
    later = now + 48 * HOUR
    done(admin.post(PRICES, json={"gpuModel": "H100", "amount": "2", "holdsFrom": later.isoformat()}))
    listed = done(admin.get(PRICES))
    assert listed["currency"] == "EUR"
    assert [(one["gpuModel"], one["amount"], one["holdsUntil"] is None) for one in listed["prices"]] == [
        ("H100", "3600.00", False),
        ("H100", "2.00", True),
    ]
    assert done(admin.get(PRICES, params={"as_of": before}))["prices"] == []
    done(admin.delete(PRICES, params={"gpuModel": "H100", "holdsFrom": later.isoformat()}))
    refused(admin.delete(PRICES, params={"gpuModel": "T4"}), 404, "not_found")

    seq = 0
    for model in ("H100", "T4"):
        report_node(served, served.cluster, model, gpus=8)
        made = done(admin.post(TRAININGS, json=served.training()))
        node = node_key(served.cluster, model)
        seq = asyncio.run(placed(served.settings, made["workloadId"], node, gpus=1, model=model))
    found = done(admin.get(HOURS, params={"min_seq": seq, "by": "gpuModel", "per": "hour"}))
    rows = {row["name"]: row for row in found["rows"]}
    assert (found["currency"], found["unpricedModels"]) == ("EUR", ["T4"])
    assert float(rows["H100"]["cost"]) == pytest.approx(3600 * rows["H100"]["reservedGpuHours"], abs=0.01)
    assert float(rows["H100"]["cost"]) > 0
    assert (rows["T4"]["cost"], rows["T4"]["unpricedGpuHours"]) == (None, rows["T4"]["reservedGpuHours"])
    assert found["total"]["cost"] == rows["H100"]["cost"]
    assert found["total"]["unpricedGpuHours"] == rows["T4"]["unpricedGpuHours"] > 0


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"gpuModel": "H100", "amount": "1,5", "currency": "EUR"}, "is no amount"),
        ({"gpuModel": "H100", "amount": "-1", "currency": "EUR"}, "is no amount"),
        ({"gpuModel": "H100", "amount": 1.5, "currency": "EUR"}, "amount"),
        ({"gpuModel": " H100", "amount": "1", "currency": "EUR"}, "is no name of a GPU model"),
        ({"gpuModel": "H100", "amount": "1", "currency": "eur"}, "is no currency"),
        ({"gpuModel": "H100", "amount": "1", "holdsFrom": "2030-01-01T00:30:00Z"}, "must be a full hour"),
        ({"gpuModel": "H100", "amount": "1", "holdsFrom": "soon"}, "is not a time"),
    ],
)
def test_a_price_that_cannot_be_is_refused(admin: httpx.Client, body: Any, says: str) -> None:
    assert says in refused(admin.post(PRICES, json=body), 400)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "give gpuHours or amount"),
        ({"gpuHours": 1, "amount": "1"}, "give gpuHours or amount"),
        ({"gpuHours": -1}, "gpuHours"),
        ({"amount": "x"}, "is no amount"),
        ({"gpuHours": 1, "currency": "EUR"}, "is of an amount"),
        ({"gpuHours": 1, "warnPercent": 0}, "warnPercent"),
        ({"gpuHours": 1, "per": "week"}, "per"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(served: Served, admin: httpx.Client, body: Any, says: str) -> None:
    assert says in refused(admin.put(f"{BUDGETS}/{served.project}", json=body), 400)


def test_an_exhausted_budget_refuses_what_is_new_and_lets_the_rest_go_on(served: Served, admin: httpx.Client) -> None:
    project = done(admin.post(f"{V1}/org-unit/projects", json={"name": "thrifty"}))["id"]
    path = f"{BUDGETS}/{project}"
    refused(admin.get(path), 404, "not_found")
    refused(admin.delete(path), 404, "not_found")
    before = int(admin.get(PRICES).headers["x-log-sequence"])
    runs, stopped = (done(admin.post(TRAININGS, json=served.training(projectId=project)))["workloadId"] for _ in "12")
    done(admin.post(f"{TRAININGS}/{stopped}/suspend"))
    done(admin.put(path, json={"amount": "10", "warnPercent": 50}))
    assert "already" in done(admin.put(path, json={"amount": "10.00", "warnPercent": 50}))["message"]

    asyncio.run(_note(served, project, in_money=True, used=6_000_000))
    asyncio.run(_note(served, project, in_money=True, used=10_500_000))
    refusals = (
        admin.post(TRAININGS, json=served.training(projectId=project)),
        admin.post(f"{TRAININGS}/{stopped}/resume"),
    )
    for answer in refusals:
        text = refused(answer, 409, "budget_exhausted")
        assert "has used 10.50 EUR of its 10.00 EUR" in text
    shown = done(admin.get(path))
    assert (shown["state"], shown["amount"], shown["currency"], shown["used"]) == ("exhausted", "10.00", "EUR", "0.00")
    done(admin.post(f"{TRAININGS}/{runs}/resume"))
    done(admin.post(f"{TRAININGS}/{runs}/suspend"))

    done(admin.put(path, json={"amount": "20", "warnPercent": 50}))
    assert done(admin.get(path))["state"] == "warned"
    done(admin.post(f"{TRAININGS}/{stopped}/resume"))
    asyncio.run(_note(served, project, in_money=True, used=20_000_000))
    refused(admin.post(TRAININGS, json=served.training(projectId=project)), 409, "budget_exhausted")
    seq = int(admin.get(path).headers["x-log-sequence"])
    done(admin.delete(path))
    done(admin.post(TRAININGS, json=served.training(projectId=project)))
    assert [one for one in done(admin.get(BUDGETS))["budgets"] if one["projectId"] == project] == []

    (then,) = done(admin.get(BUDGETS, params={"as_of": seq}))["budgets"]
    assert (then["projectName"], then["amount"], then["state"], then["used"]) == ("thrifty", "20.00", "exhausted", None)
    assert done(admin.get(path, params={"as_of": seq})) == then
    found = done(admin.get(DIFF, params={"from": str(before), "to": str(seq), "projectId": project}))
    (quota,) = found["quotas"]
    assert (quota["before"]["budget"], quota["after"]["budget"]) == (None, "20.00 EUR per month")


def test_budgets_are_shown_to_those_who_read_the_project(served: Served, admin: httpx.Client) -> None:
    done(admin.put(f"{BUDGETS}/{served.project}", json={"gpuHours": 1000.5}))
    with served.client("alice") as alice, served.client("stranger") as stranger:
        (one,) = done(alice.get(BUDGETS))["budgets"]
        assert (one["gpuHours"], one["amount"], one["currency"], one["state"]) == (1000.5, None, None, "open")
        assert float(one["used"]) >= 0
        assert done(stranger.get(BUDGETS))["budgets"] == []
        refused(stranger.get(f"{BUDGETS}/{served.project}"), 404, "not_found")
        refused(alice.put(f"{BUDGETS}/{served.project}", json={"gpuHours": 1}), 403, "not_permitted")
    asked = admin.get(f"{V1}/audit", params={"type": "SetBudget"}).json()["records"]
    assert {record["outcome"] for record in asked} == {"admitted", "refused"}
    done(admin.delete(f"{BUDGETS}/{served.project}"))
