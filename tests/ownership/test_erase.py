"""Forgetting a person: their name is nowhere in the server's files, all else stays, and a killed run is finished."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client

from development.commands import CommandPath, code, command_path, furnish, training
from development.servers import EVERYTHING, NatsServer
from events.actors import Person, actor_key
from events.audit import AuditRecord, Speaker
from events.cluster import SetOwnershipProtection
from events.project import CreateProject, GrantProjectRole
from events.subjects import (
    ACTORS_STREAM,
    AUDIT_STREAM,
    REFUSALS_STREAM,
    actor_subject,
    audit_subject,
    credential_subject,
)
from events.tenant import GrantTenantRole, RevokeTenantRole
from events.workload.commands import DeleteWorkload
from services.runtime.backup.source import Source
from services.runtime.credentials.kept import KeptCredentials
from services.runtime.credentials.keys import new_ring
from services.runtime.identity.actors import Actors
from services.runtime.identity.erase import NOBODY, Erased, EraseError, erase
from services.runtime.nats.calls import call
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests

pytestmark = pytest.mark.anyio

NAME = "canary.of.the-mine@example.com"


class KilledError(Exception):
    """Of the process, at one of its writes."""


@pytest.fixture
async def path(fresh_log: NatsServer, tmp_path: Path) -> AsyncIterator[CommandPath]:
    async with command_path(fresh_log, tmp_path, services=()) as made:
        yield made


@pytest.fixture
async def nc(fresh_log: NatsServer) -> AsyncIterator[Client]:
    """May do everything."""
    made = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    yield made
    await made.close()


def nothing(_done: int, _total: int) -> None:
    """Shows no progress."""


async def erased(server: NatsServer, subject: str = NAME, issuer: str | None = None) -> Erased:
    nc = await connect(server.settings("erase"), "erase")
    try:
        return await erase(nc, subject, issuer, nothing)
    finally:
        await nc.close()


async def stored(server: NatsServer, *streams: str) -> dict[str, list[bytes]]:
    nc = await connect(server.settings(EVERYTHING), EVERYTHING)
    try:
        source = Source(Requests(nc))
        return {
            stream: [message.data async for message in source.stream(stream, await source.info(stream))]
            for stream in streams
        }
    finally:
        await nc.close()


async def records(server: NatsServer) -> list[AuditRecord]:
    of = await stored(server, AUDIT_STREAM, REFUSALS_STREAM)
    found = [msgspec.json.decode(data, type=AuditRecord) for data in of[AUDIT_STREAM] + of[REFUSALS_STREAM]]
    return sorted(found, key=lambda record: record.at)


def naming(server: NatsServer, text: str = NAME) -> list[str]:
    """The server's files that hold the text."""
    files = [path for path in server.store_dir.rglob("*") if path.is_file()]
    assert files
    return [str(path.relative_to(server.store_dir)) for path in files if text.encode() in path.read_bytes()]


async def lived(path: CommandPath) -> str:
    """Somebody who was a stranger, got a role, worked, and is named in what others were told; their id."""
    project, cluster = await furnish(path)
    await path.accepted("root", SetOwnershipProtection(cluster_id=cluster, enabled=True), "protect")
    assert code(await path.send(NAME, CreateProject(name="p"), "stranger")) != "admitted"
    await path.accepted("root", GrantProjectRole(project_id=project, subject=NAME, role="researcher"), "grant")
    workload = (await path.accepted(NAME, training("w", project, cluster), "create")).id
    assert code(await path.send(NAME, GrantTenantRole(subject=NAME, role="administrator"), "more")) != "admitted"
    assert code(await path.send("bob", DeleteWorkload(workload_id=workload), "theirs")) == "not_owner"
    return await path.actor(NAME)


async def test_the_name_is_found_in_no_file_of_the_server_and_every_record_stays(path: CommandPath) -> None:
    actor = await lived(path)
    before = await records(path.server)
    assert naming(path.server)
    done = await erased(path.server)
    assert done.actors == [actor]
    assert naming(path.server) == []
    assert naming(path.server, actor_key("muster", NAME)) == []  # not even the hash
    after = await records(path.server)
    assert [(one.at, one.command, one.command_id, one.code) for one in after] == [
        (one.at, one.command, one.command_id, one.code) for one in before
    ]
    assert [one for one in after if actor in msgspec.json.encode(one).decode()] != []
    assert [one for one in after if one in before] == [one for one in before if NAME not in str(one)]
    told = [one.message for one in after if one.code == "not_owner"]
    assert told
    assert all(repr(actor) in message for message in told)
    assert not (await erased(path.server)).anything


async def test_the_values_of_a_persons_credentials_go_with_them_and_those_of_others_stay(
    path: CommandPath, nc: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor, ring = await lived(path), new_ring()
    kept = KeptCredentials(Requests(nc))
    for owner in (actor, "a_of_somebody_else"):
        await kept.put(owner, f"id-{owner}", {"key": f"of {owner}"}, ring.public)
    ask = Requests.ask

    async def storing(self: Requests, subject: str, *given: Any, **more: Any) -> bytes:
        """The person stores one more while they are being forgotten."""
        if subject == call("STREAM.MSG.DELETE", ACTORS_STREAM):
            await kept.put(actor, "late", {"key": "late"}, ring.public)
        return await ask(self, subject, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Requests, "ask", storing)
        assert (await erased(path.server)).actors == [actor]
    assert await kept.subjects() == [credential_subject("a_of_somebody_else", "id-a_of_somebody_else")]
    assert await kept.get("a_of_somebody_else", "id-a_of_somebody_else", ring) == {"key": "of a_of_somebody_else"}


async def test_an_id_is_no_name_and_the_audit_keeps_whom_it_speaks_of(path: CommandPath) -> None:
    """Lists show a forgotten person's id where names stand, so somebody will try."""
    actor = await lived(path)
    for state in ("of somebody, and no name", "of somebody who was forgotten, and no name"):
        before = await records(path.server)
        with pytest.raises(EraseError, match=state):
            await erased(path.server, actor)
        assert await records(path.server) == before
        await erased(path.server)


async def test_an_administrator_is_erased_only_once_they_are_none(path: CommandPath) -> None:
    """Else the only one could go, and nobody would administer; and an id that names nobody would count for one."""
    await furnish(path)
    await path.accepted("root", GrantTenantRole(subject=NAME, role="administrator"), "grant")
    with pytest.raises(EraseError, match=rf"is administrator everywhere: .*`muster role revoke {NAME} administrator`"):
        await erased(path.server)
    assert naming(path.server)
    await path.accepted("root", RevokeTenantRole(subject=NAME, role="administrator"), "revoke")
    assert (await erased(path.server)).anything
    assert naming(path.server) == []


async def test_who_comes_again_is_somebody_else(path: CommandPath, nc: Client) -> None:
    project, cluster = await furnish(path)
    await path.accepted("root", GrantProjectRole(project_id=project, subject=NAME, role="researcher"), "grant")
    actor = await path.actor(NAME)
    await erased(path.server)
    async with asyncio.timeout(60):
        number = 0
        while code(await path.send(NAME, training(f"w{number}", project, cluster), f"k{number}")) != "not_in_project":
            number += 1
    await path.accepted("root", GrantTenantRole(subject=NAME, role="viewer"), "again")
    found = await Actors(nc, Requests(nc)).find("muster", NAME)
    assert found not in {None, actor}


async def test_of_two_of_one_name_the_issuer_says_which(fresh_log: NatsServer, nc: Client) -> None:
    for issuer, actor in (("one", "a_" + "a" * 26), ("two", "a_" + "b" * 26)):
        where = actor_subject(actor_key(issuer, NAME), actor)
        await nc.request(where, msgspec.json.encode(Person(issuer=issuer, subject=NAME)), timeout=60)
        await nc.request(audit_subject("tenant"), msgspec.json.encode(record(issuer)), timeout=60)
    with pytest.raises(EraseError, match=r"2 people are called .* by one, two: say which with --issuer"):
        await erased(fresh_log)
    assert (await erased(fresh_log, issuer="two")).actors == ["a_" + "b" * 26]
    assert [one.actor for one in await records(fresh_log)] == [
        Speaker(iss="one", sub=NAME),
        Speaker(iss="two", sub="a_" + "b" * 26),
    ]


def record(issuer: str, **more: Any) -> AuditRecord:
    return AuditRecord(
        at=datetime.now(UTC),
        outcome="refused",
        command="CreateProject",
        command_id="c",
        actor=Speaker(iss=issuer, sub=NAME),
        **more,
    )


async def test_a_stranger_who_was_only_refused_is_forgotten_too_and_others_sentences_stay(
    fresh_log: NatsServer, nc: Client
) -> None:
    of_other = msgspec.structs.replace(record("i"), actor=Speaker(iss="i", sub="ann"), target=NAME)
    for one in (record("i"), of_other):
        await nc.request(audit_subject("tenant"), msgspec.json.encode(one), timeout=60)
    await nc.request(audit_subject("tenant"), b'{"no record": "' + NAME.encode() + b'"}', timeout=60)
    done = await erased(fresh_log)
    assert (done.actors, done.records, done.unreadable) == ([], 1, 1)
    # A workload may be called as a person is: that is not theirs to forget.
    assert {(one.actor and one.actor.sub, one.target) for one in await records(fresh_log)} == {
        (NOBODY, ""),
        ("ann", NAME),
    }


@pytest.mark.parametrize("at", range(6))
async def test_a_run_that_is_killed_is_finished_by_the_next(
    path: CommandPath, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    actor = await lived(path)
    before = await records(path.server)
    asked = 0

    async def killed(self: Requests, subject: str, *given: Any, **more: Any) -> bytes:
        nonlocal asked
        if "STREAM.MSG.DELETE" in subject or subject.startswith(("actor.", "audit.", "refused.")):
            asked += 1
            if asked > at:
                raise KilledError
        return await ask(self, subject, *given, **more)

    ask = Requests.ask
    with monkeypatch.context() as patch:
        patch.setattr(Requests, "ask", killed)
        with pytest.raises(KilledError):
            await erased(path.server)
    await erased(path.server)
    assert naming(path.server) == []
    after = await records(path.server)
    assert [(one.at, one.command_id) for one in after] == [(one.at, one.command_id) for one in before]
    people = [
        msgspec.json.decode(data, type=Person) for data in (await stored(path.server, ACTORS_STREAM))[ACTORS_STREAM]
    ]
    assert len([person for person in people if not person.subject]) == 1
    assert actor


async def test_an_installation_of_an_earlier_version_is_told_what_to_do(fresh_log: NatsServer, nc: Client) -> None:
    config = msgspec.json.decode((await nc.request(call("STREAM.INFO", AUDIT_STREAM), b"", timeout=60)).data)["config"]
    answer = await nc.request(
        call("STREAM.UPDATE", AUDIT_STREAM), msgspec.json.encode({**config, "deny_delete": True}), timeout=5
    )
    assert b'"error"' not in answer.data
    with pytest.raises(EraseError, match=r"AUDIT .* forbids deleting .*: back up, restore into a new installation"):
        await erased(fresh_log)
