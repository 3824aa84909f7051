"""Code that is sent for workloads to run: taken in parts, checked, counted, and removed once nothing uses it."""

import asyncio
import base64
import hashlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest

from development.servers import EVERYTHING, NatsServer, PostgresServer
from events.subjects import ALL_CODE, CODE_STREAM
from services.api.code import remove_unused
from services.api.context import CodeLimits
from services.runtime.code.kept import KeptCode
from services.runtime.code.limits import PART_BYTES
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.calls import call
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from tests.support.api import Served, serving

V1 = "/api/v1"
MOST_PARTS = 4
PROJECT_PARTS = 6


@pytest.fixture(scope="module")
def running(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    limits = {"code_max_bytes": MOST_PARTS * PART_BYTES, "code_project_max_bytes": PROJECT_PARTS * PART_BYTES}
    with serving(nats_server, postgres_server, tmp_path_factory.mktemp("api"), **limits) as running:
        yield running


@pytest.fixture
def served(running: Served) -> Served:
    """With no code, and no mark of any: all that the api knows of it is in the stream."""

    async def purge() -> None:
        nc = await connect(running.settings, EVERYTHING)
        try:
            answer = await nc.request(call("STREAM.PURGE", CODE_STREAM), b"", timeout=60)
            assert "error" not in msgspec.json.decode(answer.data)
        finally:
            await nc.close()

    asyncio.run(purge())
    return running


@dataclass
class Archive:
    """Bytes of anybody, with their digest: what the api takes is no archive to it."""

    data: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def parts(self) -> list[bytes]:
        return [self.data[at : at + PART_BYTES] for at in range(0, len(self.data), PART_BYTES)]


def archive(parts: int) -> Archive:
    return Archive(secrets.token_bytes((parts - 1) * PART_BYTES + 100))


def send(
    served: Served, client: httpx.Client, given: Archive, *numbers: int, digest: str = "", **more: Any
) -> list[httpx.Response]:
    """These parts of it; all, where none is named."""
    parts = given.parts
    return [
        client.post(
            f"{V1}/code",
            json={
                "projectId": served.project,
                "clusterId": served.cluster,
                "digest": digest or given.digest,
                "part": number,
                "parts": len(parts),
                "data": base64.b64encode(parts[number]).decode(),
            }
            | more,
        )
        for number in numbers or range(len(parts))
    ]


def kept(served: Served, client: httpx.Client, digest: str) -> bool:
    place = {"projectId": served.project, "clusterId": served.cluster, "digest": digest}
    answer = client.get(f"{V1}/code", params=place)
    assert answer.status_code == 200, answer.text
    return answer.json()["kept"]


def test_an_archive_is_kept_once_all_parts_are_there_and_may_then_be_run(served: Served) -> None:
    with served.client("alice") as alice:
        given = archive(3)
        assert [answer.status_code for answer in send(served, alice, given, 0, 1)] == [202, 202]
        assert not kept(served, alice, given.digest)
        body = served.training(spec={"code": given.digest})
        refused = alice.post(f"{V1}/workloads/trainings", json=body)
        assert refused.status_code == 400
        assert [issue["field"] for issue in refused.json()["complianceIssues"]] == ["spec.code"]
        assert send(served, alice, given, 2)[0].status_code == 202
        assert kept(served, alice, given.digest)
        made = alice.post(f"{V1}/workloads/trainings", json=body)
        assert (made.status_code, made.json()["spec"]["code"]) == (202, given.digest)
        assert all(answer.status_code == 202 for answer in send(served, alice, given)), "sent again, nothing changes"


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"digest": "A" * 64}, "digest"),
        ({"digest": "../../x"}, "digest"),
        ({"data": "no base64!"}, "data"),
        ({"data": ""}, "data"),
        ({"data": base64.b64encode(bytes(PART_BYTES + 1)).decode()}, "data"),
        ({"part": 1}, "part"),
        ({"part": -1}, "part"),
        ({"parts": MOST_PARTS + 1}, "parts"),
        ({"parts": 0}, "parts"),
        ({"projectId": "x.>"}, "projectId"),
        ({"clusterId": "*"}, "clusterId"),
        ({"parts": 2}, "data"),
    ],
)
def test_what_is_wrong_with_a_part_is_said_by_its_field(served: Served, more: dict[str, Any], field: str) -> None:
    with served.client() as admin:
        (answer,) = send(served, admin, archive(1), **more)
    assert answer.status_code == 400, answer.text
    assert field in [issue["field"] for issue in answer.json()["complianceIssues"]]


def test_what_is_not_what_its_digest_says_is_not_kept_and_takes_no_room(served: Served) -> None:
    with served.client("alice") as alice:
        given, wrong = archive(4), archive(1).digest
        for _ in range(3):
            answers = send(served, alice, given, digest=wrong)
            assert [answer.status_code for answer in answers] == [202, 202, 202, 400]
            assert "does not match its digest" in answers[-1].text
        assert not kept(served, alice, wrong)


def test_a_part_without_a_beginning_is_refused(served: Served) -> None:
    """Else who never sends the first part would take room that nobody counts."""
    with served.client("alice") as alice:
        given = archive(3)
        assert send(served, alice, given, 1)[0].status_code == 400
        assert send(served, alice, given, 0)[0].status_code == 202
        assert send(served, alice, given, 1, parts=4)[0].status_code == 400
        assert send(served, alice, given, 1)[0].status_code == 202


def test_a_project_keeps_so_much_and_no_more(served: Served) -> None:
    with served.client("alice") as alice:
        assert all(answer.status_code == 202 for answer in send(served, alice, archive(4)))
        answer = send(served, alice, archive(3), 0)[0]
        assert (answer.status_code, answer.json()["details"]) == (403, "code_quota")
        assert all(answer.status_code == 202 for answer in send(served, alice, archive(2))), (
            "what was refused took none"
        )


def test_who_may_not_submit_there_may_not_send_and_learns_nothing(served: Served) -> None:
    given = archive(1)
    with served.client() as admin:
        assert send(served, admin, given)[0].status_code == 202
    place = {"projectId": served.project, "clusterId": served.cluster, "digest": given.digest}
    for stranger in ("vic", "nobody"):  # a viewer, and one without any role
        with served.client(stranger) as client:
            assert send(served, client, archive(1))[0].status_code == 403
            assert client.get(f"{V1}/code", params=place).status_code == 403


async def _removed(served: Served, hours: float) -> int:
    """As the api does it once in an hour, so many hours from now."""
    nc = await connect(served.settings, EVERYTHING)
    try:
        limits = CodeLimits(max_bytes=1, project_max_bytes=1, retention_hours=24)
        api: Any = SimpleNamespace(requests=Requests(nc), store=JetStreamEventStore(nc), code=limits)
        return await remove_unused(api, datetime.now(UTC) + timedelta(hours=hours))
    finally:
        await nc.close()


def test_code_is_removed_once_no_living_workload_uses_it_and_some_time_has_passed(served: Served) -> None:
    with served.client("alice") as alice:
        used, unused = archive(2), archive(1)
        send(served, alice, used)
        send(served, alice, unused)
        made = alice.post(f"{V1}/workloads/trainings", json=served.training(spec={"code": used.digest})).json()
        assert asyncio.run(_removed(served, 23)) == 0
        assert asyncio.run(_removed(served, 25)) == 1
        assert [kept(served, alice, given.digest) for given in (used, unused)] == [True, False]
        assert alice.delete(f"{V1}/workloads/trainings/{made['workloadId']}").status_code == 202
        assert asyncio.run(_removed(served, 25)) == 1
        assert not kept(served, alice, used.digest)
        send(served, alice, unused)
        assert kept(served, alice, unused.digest), "what was removed may be sent again"


def test_what_was_begun_and_not_ended_keeps_its_room_for_an_hour(served: Served) -> None:
    """Else a few uploads that somebody gave up, or never meant to end, shut code off for the project for a day."""
    with served.client("alice") as alice:
        assert send(served, alice, archive(4), 0)[0].status_code == 202
        whole = archive(2)
        assert all(answer.status_code == 202 for answer in send(served, alice, whole))
        assert send(served, alice, archive(3), 0)[0].json()["details"] == "code_quota"
        assert asyncio.run(_removed(served, 0.9)) == 0
        assert asyncio.run(_removed(served, 1.1)) == 1
        assert kept(served, alice, whole.digest)
        assert all(answer.status_code == 202 for answer in send(served, alice, archive(3)))


def test_a_name_that_does_not_use_code_any_more_is_not_looked_at_for_ever(served: Served) -> None:
    """Given code that a living workload uses, when others that used it are gone for a day, then so are their marks."""
    with served.client("alice") as alice:
        used = archive(1)
        send(served, alice, used)
        lives, gone = (served.training(spec={"code": used.digest}) for _ in range(2))
        assert alice.post(f"{V1}/workloads/trainings", json=lives).status_code == 202
        made = alice.post(f"{V1}/workloads/trainings", json=gone).json()
        assert alice.delete(f"{V1}/workloads/trainings/{made['workloadId']}").status_code == 202
        assert _marks(served) == 2
        assert asyncio.run(_removed(served, 25)) == 0
        assert _marks(served) == 1
        assert kept(served, alice, used.digest)


def _marks(served: Served) -> int:
    async def count() -> int:
        nc = await connect(served.settings, EVERYTHING)
        try:
            return len([one for one in await KeptCode(Requests(nc)).subjects(ALL_CODE) if ".use." in one])
        finally:
            await nc.close()

    return asyncio.run(count())
