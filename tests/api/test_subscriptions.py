"""Subscriptions over HTTP: the answer that creates one is all that a plain client needs, and shows its seed once."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import nats
import pytest
from nats.js.api import StreamInfo

from development.servers import EVERYTHING, NatsServer, PostgresServer
from development.stack import until
from services.runtime.nats.connection import connect
from tests.support.api import Served, serving

SUBSCRIPTIONS = "/api/v1/subscriptions"


@pytest.fixture(scope="module")
def served(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with serving(
        nats_server,
        postgres_server,
        tmp_path_factory.mktemp("api"),
        callout_key_dir=nats_server.callout_key_dir(),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def admin(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


def made(client: httpx.Client, project: str, headers: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    answer = client.post(SUBSCRIPTIONS, json={"projectId": project, **more}, headers=headers)
    assert answer.status_code == 202, answer.text
    return answer.json()


def publish(served: Served, project: str, *bodies: str) -> None:
    asyncio.run(_publish(served, project, bodies))


async def _publish(served: Served, project: str, bodies: tuple[str, ...]) -> None:
    nc = await connect(served.settings, EVERYTHING)
    try:
        info: StreamInfo = await nc.jetstream().stream_info("EVENTS")
        for number, body in enumerate(bodies):
            place = {"ce-sequence": f"{info.state.last_seq}.{number}"}
            await nc.jetstream().publish(f"feed.{project}.w.WorkloadSubmitted", body.encode(), headers=place)
    finally:
        await nc.close()


async def read(given: dict[str, Any], count: int) -> list[str]:
    """Ten lines of somebody else's program."""
    connection = await nats.connect(given["url"], nkeys_seed_str=given["seed"], inbox_prefix=given["inboxPrefix"])
    jetstream = connection.jetstream(domain=given["domain"])
    subscription = await jetstream.pull_subscribe_bind(given["consumer"], stream=given["stream"])
    messages = await subscription.fetch(count, timeout=60)
    for message in messages:
        await message.ack()
    await connection.drain()
    return [message.data.decode() for message in messages]


def test_what_the_answer_holds_is_enough_and_works_at_once(served: Served, admin: httpx.Client) -> None:
    given = made(admin, served.project, name="chat")
    publish(served, served.project, "one", "two")
    publish(served, served.made["other"], "secret")
    assert asyncio.run(read(given, 2)) == ["one", "two"]
    shown = admin.get(f"{SUBSCRIPTIONS}/{given['id']}").json()
    assert "seed" not in shown
    assert {name: shown[name] for name in ("name", "projectName", "createdBy")} == {
        "name": "chat",
        "projectName": "default",
        "createdBy": "admin",
    }
    assert until(lambda: admin.get(f"{SUBSCRIPTIONS}/{given['id']}").json()["lastDeliveredAt"], 60)
    assert (shown["pending"], given["subjects"]) == (0, [f"feed.{served.project}.*.*"])
    listed = admin.get(SUBSCRIPTIONS, params={"projectId": served.project}).text
    events = admin.get("/api/v1/events", params={"order": "desc", "type": "SubscriptionCreated"}).text
    assert given["id"] in listed
    assert given["id"] in events
    assert given["seed"] not in listed + events + admin.get("/api/v1/audit").text


def test_a_creation_that_comes_again_shows_no_seed_and_makes_no_second(served: Served, admin: httpx.Client) -> None:
    headers = {"Idempotency-Key": "subscription-again"}
    first, again = (made(admin, served.project, headers, name="again") for _ in range(2))
    assert first["seed"]
    assert again["seed"] is None
    assert again["id"] == first["id"]
    assert "delete" in again["message"]
    assert admin.delete(f"{SUBSCRIPTIONS}/{first['id']}").status_code == 202
    once_more = admin.post(SUBSCRIPTIONS, json={"projectId": served.project, "name": "again"}, headers=headers)
    assert once_more.status_code == 404


def test_a_deleted_one_is_cut_off(served: Served, admin: httpx.Client) -> None:
    given = made(admin, served.project)

    async def act() -> None:
        closed = asyncio.Event()

        async def on_disconnect() -> None:
            closed.set()

        nc = await nats.connect(
            given["url"], nkeys_seed_str=given["seed"], allow_reconnect=False, disconnected_cb=on_disconnect
        )
        answer = await asyncio.to_thread(admin.delete, f"{SUBSCRIPTIONS}/{given['id']}")
        assert answer.status_code == 202
        async with asyncio.timeout(60):
            await closed.wait()
        await nc.close()

    asyncio.run(act())
    assert admin.get(f"{SUBSCRIPTIONS}/{given['id']}").status_code == 404


def test_it_begins_at_a_sequence_or_a_time(served: Served, admin: httpx.Client) -> None:
    before = made(admin, served.project)["fromSequence"]
    time.sleep(0.01)
    moment = admin.get("/api/v1/events", params={"order": "desc", "limit": 1}).json()["events"][0]["at"]
    later = made(admin, served.project)["fromSequence"]
    assert later == before + 1
    assert made(admin, served.project, fromSequence=before)["fromSequence"] == before
    assert before <= made(admin, served.project, fromTime=moment)["fromSequence"] <= later


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "Has Space"}, "name"),
        ({"fromTime": "yesterday"}, "fromTime"),
        ({"fromTime": "2999-01-01T00:00:00Z"}, "fromTime"),
        ({"fromTime": "2026-01-01T00:00:00Z", "fromSequence": 1}, "fromTime"),
        ({"fromSequence": 0}, "fromSequence"),
        ({"fromSequence": 10**12}, "fromSequence"),
    ],
)
def test_what_none_can_be_is_refused_by_field(
    served: Served, admin: httpx.Client, body: dict[str, Any], field: str
) -> None:
    answer = admin.post(SUBSCRIPTIONS, json=body | {"projectId": served.project})
    assert answer.status_code == 400
    assert [issue["field"] for issue in answer.json()["complianceIssues"]] == [field]


def test_administrators_of_the_project_alone_see_and_change_them(served: Served, admin: httpx.Client) -> None:
    given = made(admin, served.project)
    path = f"{SUBSCRIPTIONS}/{given['id']}"
    rule = {"subjectId": "pia", "roleName": "project-admin", "scopeType": "project", "scopeId": served.project}
    assert admin.post("/api/v1/authorization/access-rules", json=rule).status_code == 202
    for subject in ("alice", "vic", "stranger"):
        with served.client(subject) as somebody:
            refused = somebody.post(SUBSCRIPTIONS, json={"projectId": served.project})
            assert refused.status_code == 403, subject
            assert somebody.get(path).status_code == 404
            assert somebody.delete(path).status_code == 404
            assert somebody.get(SUBSCRIPTIONS).status_code == 403
    with served.client("pia") as pia:
        assert given["id"] in pia.get(SUBSCRIPTIONS).text
        own = made(pia, served.project)
        assert pia.post(SUBSCRIPTIONS, json={"projectId": served.made["other"]}).status_code == 403
        assert pia.delete(path).status_code == 202
        assert pia.delete(f"{SUBSCRIPTIONS}/{own['id']}").status_code == 202
