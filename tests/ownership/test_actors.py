"""Whom ids mean: made once for each person, whoever makes them and whatever breaks meanwhile; forgotten for good."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from nats.aio.client import Client

from development.commands import CommandPath, code, command_path, furnish, training
from development.servers import EVERYTHING, NatsServer
from development.streams import recreate_streams, stored
from events.actors import ACTOR_ID, Person
from events.aggregate import PROJECT, TENANT
from events.envelope import Accepted, Refused
from events.ids import TENANT_KEY, key_of_id
from events.project import CreateProject, GrantProjectRole, RevokeProjectRole
from events.refusal import Refusal
from events.subjects import ACTORS_STREAM, EVENTS_STREAM
from events.tenant import GrantTenantRole
from services.ownership.gate import NEW_PEOPLE_PER_HOUR
from services.runtime.identity.actors import Actors, ActorsAwayError
from services.runtime.identity.erase import erase
from services.runtime.nats.calls import call
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from services.runtime.services import SERVICES
from tests.support.refusals import raw, refused, settle

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["one server", "three servers"])
async def server(request: pytest.FixtureRequest) -> NatsServer:
    server = request.getfixturevalue("nats_server" if request.param == "one server" else "nats_cluster")
    await recreate_streams(server.settings(EVERYTHING))
    return server


@pytest.fixture
async def makers(server: NatsServer) -> AsyncIterator[tuple[Client, Client]]:
    """Connections of two replicas of the gate."""
    one, other = [await connect(server.settings("ownership"), "ownership", suffix=name) for name in "ab"]
    yield one, other
    await one.close()
    await other.close()


@pytest.fixture
async def path(fresh_log: NatsServer, tmp_path: Path) -> AsyncIterator[CommandPath]:
    async with command_path(fresh_log, tmp_path, services=()) as made:
        yield made


def actors_of(nc: Client) -> Actors:
    return Actors(nc, Requests(nc))


async def forget(server: NatsServer, issuer: str, subject: str) -> Sequence[str]:
    """What `muster user erase` does; the ids."""
    nc = await connect(server.settings("erase"), "erase")
    try:
        return (await erase(nc, subject, issuer, lambda _done, _total: None)).actors
    finally:
        await nc.close()


async def test_an_id_is_made_once_for_each_issuer_and_subject(makers: tuple[Client, Client]) -> None:
    one, other = map(actors_of, makers)
    people = [("i", "ada"), ("i", "bob"), ("j", "ada"), ("ia", "da"), ("i", "x" * 256), ("i", "ä.*> ")]
    assert [await one.find(*person) for person in people] == [None] * len(people)
    made = [await one.find_or_make(*person) for person in people]
    assert len(set(made)) == len(people)
    assert all(map(ACTOR_ID.match, made))
    assert [await other.find_or_make(*person) for person in people] == made
    await other.learn(made)
    assert [other.person(actor) for actor in made] == [Person(issuer=i, subject=s) for i, s in people]


async def test_of_many_who_make_one_at_once_all_get_the_same(makers: tuple[Client, Client]) -> None:
    for turn in range(5):
        racing = [actors_of(nc) for nc in makers for _ in range(8)]
        made = await asyncio.gather(
            *(actors.find_or_make("i", f"ada {turn}") for actors in racing), return_exceptions=True
        )
        # Who loses every race says that it does not know, and finds it the next time.
        assert {await actors.find("i", f"ada {turn}") for actors in racing} == {
            actor for actor in made if isinstance(actor, str)
        }
        assert all(isinstance(actor, str | ActorsAwayError) for actor in made)


async def test_a_follower_knows_people_also_while_the_stream_is_away(makers: tuple[Client, Client]) -> None:
    one, other = map(actors_of, makers)
    ada = await one.find_or_make("i", "ada")
    await other.start()
    bob = await one.find_or_make("i", "bob")
    async with asyncio.timeout(60):
        while bob not in other.subjects:
            await asyncio.sleep(0.01)
    await makers[1].close()
    assert (await other.find("i", "ada"), await other.find("i", "bob")) == (ada, bob)
    nobody = "a_" + 26 * "b"
    assert await other.subjects_of((ada, bob, nobody)) == {ada: "ada", bob: "bob", nobody: nobody}
    for unknown in (other.find("i", "eve"), other.find_or_make("i", "eve")):
        with pytest.raises(ActorsAwayError):
            await unknown
    await other.close()


async def test_a_person_who_is_forgotten_has_no_name_and_nobody_ever_gets_their_id(
    server: NatsServer, makers: tuple[Client, Client]
) -> None:
    one, other = map(actors_of, makers)
    ada = await one.find_or_make("i", "ada")
    await other.start()
    assert await forget(server, "i", "ada") == [ada]
    async with asyncio.timeout(60):
        while other.person(ada) != Person(subject=ada):
            await asyncio.sleep(0.01)
    fresh = actors_of(makers[0])
    assert await fresh.subjects_of((ada,)) == {ada: ada}
    assert [await actors.find("i", "ada") for actors in (other, fresh)] == [None, None]
    again = await other.find_or_make("i", "ada")
    assert again != ada
    assert await fresh.find("i", "ada") == again
    assert (await fresh.subjects_of((ada, again))) == {ada: ada, again: "ada"}
    await other.close()


async def test_a_record_can_be_deleted_by_no_service(fresh_log: NatsServer) -> None:
    gate = await connect(fresh_log.settings("ownership"), "ownership")
    await actors_of(gate).find_or_make("i", "ada")
    await gate.close()
    for service in sorted(SERVICES.keys() - {"erase"}):
        async with raw(fresh_log, service) as (user, refusals):
            for verb in ("STREAM.PURGE", "STREAM.MSG.DELETE"):
                await user.publish(call(verb, ACTORS_STREAM), b'{"seq": 1}')
                await settle(user)
                assert refused(refusals, call(verb, ACTORS_STREAM)), (service, verb)
    assert (await stored(fresh_log))[ACTORS_STREAM] == 1


async def test_what_is_stored_of_a_person_stands_in_one_place(path: CommandPath) -> None:
    """Subjects are in ACTORS, and nowhere in the log."""
    project, cluster = await furnish(path)
    reply = await path.accepted("ada", training("w", project, cluster), "k")
    assert isinstance(reply, Accepted)
    nc = await connect(path.server.settings(EVERYTHING), EVERYTHING)
    js, last = nc.jetstream(), await path.store.last_seq()
    log = [(await js.get_msg(EVENTS_STREAM, seq)).data or b"" for seq in range(1, last + 1)]
    await nc.close()
    ada = (await path.actor("ada")).encode()
    assert [payload for payload in log if ada in payload]
    for subject in ("ada", "bob", "eve", "pia"):
        assert not [payload for payload in log if f'"{subject}"'.encode() in payload]
    assert not [payload for payload in log if b'"iss"' in payload or b'"sub"' in payload]


async def test_only_who_is_given_a_role_gets_an_id(path: CommandPath) -> None:
    project, cluster = await furnish(path)
    before = (await stored(path.server))[ACTORS_STREAM]
    assert code(await path.send("mallory", training("w", project, cluster), "k1")) == "not_in_project"
    herself = GrantTenantRole(subject="mallory", role="administrator")
    assert code(await path.send("mallory", herself, "k2")) == "not_permitted"
    assert code(await path.send("eve", GrantProjectRole(project_id=project, subject="x", role="viewer"), "k3")) == (
        "not_permitted"
    )
    revoke = RevokeProjectRole(project_id=project, subject="nobody", role="viewer")
    refused = await path.send("root", revoke, "k4")
    assert isinstance(refused, Refused)
    assert (refused.refusal.code, "'nobody' has no role there" in refused.refusal.message) == ("role_not_held", True)
    assert (await stored(path.server))[ACTORS_STREAM] == before


async def test_an_administrator_of_a_project_cannot_fill_the_stream_of_people(path: CommandPath) -> None:
    """Each new person takes a place that all projects share, for good; also where the role is taken back at once."""
    project, _ = await furnish(path)
    await path.accepted("root", GrantProjectRole(project_id=project, subject="pia", role="project-admin"), "pia")

    async def give(giver: str, subject: str) -> object:
        grant = GrantProjectRole(project_id=project, subject=subject, role="viewer")
        reply = await path.send(giver, grant, f"{giver} to {subject}")
        return reply.refusal if isinstance(reply, Refused) else reply

    for number in range(NEW_PEOPLE_PER_HOUR):
        assert isinstance(await give("pia", f"new-{number}"), Accepted)
    before = (await stored(path.server))[ACTORS_STREAM]
    refusals = [given for number in range(4) if isinstance(given := await give("pia", f"more-{number}"), Refusal)]
    assert len(refusals) >= 3, "one may come back while the others are given"
    assert {refusal.code for refusal in refusals} == {"too_many_new_people"}
    assert all(refusal.retry_seconds in range(1, 3600) for refusal in refusals)
    assert (await stored(path.server))[ACTORS_STREAM] <= before + 1
    known = GrantProjectRole(project_id=project, subject="new-0", role="researcher")
    await path.accepted("pia", known, "known")
    assert isinstance(await give("root", "more-by-root"), Accepted)


async def test_a_role_waits_for_a_first_visit_and_the_same_key_gives_it_once(path: CommandPath) -> None:
    project, cluster = await furnish(path)
    grant = GrantProjectRole(project_id=project, subject="newcomer", role="researcher")
    first = await path.accepted("root", grant, "k")
    assert await path.accepted("root", grant, "k") == first
    newcomer = await path.actor("newcomer")
    assert (await path.store.load(PROJECT, key_of_id(project) or "")).state.roles[newcomer] == ("researcher",)
    await path.accepted("newcomer", training("w", project, cluster), "k")


async def test_two_gates_bind_two_roles_to_one_id(path: CommandPath) -> None:
    project, _ = await furnish(path)
    await path.start("ownership")
    grants = [
        GrantProjectRole(project_id=project, subject=f"new-{number}", role=role)
        for number in range(8)
        for role in ("viewer", "researcher")
    ]
    replies = await asyncio.gather(*(path.send("root", grant, f"g{n}") for n, grant in enumerate(grants)))
    for number, reply in enumerate(replies):
        if not isinstance(reply, Accepted):
            await path.accepted("root", grants[number], f"g{number}")
    roles = (await path.store.load(PROJECT, key_of_id(project) or "")).state.roles
    assert [sorted(roles[await path.actor(f"new-{n}")]) for n in range(8)] == [["researcher", "viewer"]] * 8


async def test_an_id_of_which_no_commit_came_is_taken_by_the_next_try(path: CommandPath) -> None:
    """The gate was killed between the two writes."""
    await path.administrator("root")
    nc = await connect(path.server.settings("ownership"), "ownership", suffix="killed")
    left = await actors_of(nc).find_or_make("muster", "newcomer")
    await nc.close()
    await path.start("ownership")
    await path.start("commands")
    await path.accepted("root", GrantTenantRole(subject="newcomer", role="viewer"), "k")
    assert (await path.store.load(TENANT, TENANT_KEY)).state.roles[left] == ("viewer",)


async def test_while_the_stream_is_away_who_is_known_goes_on_and_the_rest_is_refused_by_name(path: CommandPath) -> None:
    project, cluster = await furnish(path)
    nc = await connect(path.server.settings(EVERYTHING), EVERYTHING)
    await nc.request(call("STREAM.DELETE", ACTORS_STREAM), b"", timeout=60)
    await nc.close()
    before = await path.store.last_seq()
    for subject, command in (
        ("mallory", CreateProject(name="p")),
        ("root", GrantTenantRole(subject="newcomer", role="viewer")),
    ):
        refused = await path.send(subject, command, "k")
        assert isinstance(refused, Refused)
        assert refused.refusal.code == "actors_away"
    assert await path.store.last_seq() == before
    await path.accepted("ada", training("w", project, cluster), "k")


async def test_roles_of_a_forgotten_person_are_nobodys(path: CommandPath) -> None:
    project, cluster = await furnish(path)
    ada = await path.actor("ada")
    assert await forget(path.server, "muster", "ada") == [ada]
    refusal = Refusal(code="not_in_project", message="")
    async with asyncio.timeout(60):
        number = 0
        while code(await path.send("ada", training(f"w{number}", project, cluster), f"k{number}")) != refusal.code:
            number += 1
    assert (await path.store.load(PROJECT, key_of_id(project) or "")).state.roles[ada] == ("researcher",)
