"""The whole path of a command on a real server: client as the api's, gate, commands, log; each service as its own user.

Requirement rows: S083 to S085, C14, C21; log.md sections 2.1, 2.2 and 6.1 to 6.3.
"""

import asyncio
import itertools
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from development.commands import CommandPath, carry_out, code, training
from development.servers import EVERYTHING, NatsServer
from development.streams import stored
from events.aggregate import CLUSTER, PROJECT, WORKLOAD, Chain, draft
from events.audit import AuditRecord
from events.cluster import AddCluster, ClusterAdded, RemoveCluster, SetOwnershipProtection
from events.commands import UserCommand
from events.commit import Actor, service_actor
from events.envelope import (
    Accepted,
    AdmittedCommand,
    CommandReply,
    CommandRequest,
    OutcomeUnknown,
    Refused,
)
from events.ids import cluster_key, incarnation_id, key_of_id
from events.project import GrantProjectRole, RevokeProjectRole
from events.subjects import admitted_subject
from events.tenant import GrantTenantRole
from events.workload.commands import ChangeWorkload, CreateWorkload, DeleteWorkload, ResumeWorkload, SuspendWorkload
from events.workload.fields.distribution import Distribution
from events.workload.fields.process import EnvironmentVariable
from events.workload.spec import Distributed
from services.commands.watch import LOOK_SECONDS
from services.runtime.log.store import Committed
from services.runtime.nats.bus import CommandClient, GateAwayError
from services.runtime.nats.calls import call
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from tests.support.refusals import raw, settle

pytestmark = pytest.mark.anyio


async def audited(server: NatsServer) -> list[AuditRecord]:
    everything = await connect(server.settings(EVERYTHING), EVERYTHING)
    stream = everything.jetstream()
    records: list[AuditRecord] = []
    for name in ("AUDIT", "REFUSALS"):
        last = (await stream.stream_info(name)).state.last_seq
        messages = [await stream.get_msg(name, seq=seq) for seq in range(1, last + 1)]
        records += [msgspec.json.decode(message.data or b"", type=AuditRecord) for message in messages]
    await everything.close()
    return sorted(records, key=lambda record: record.at)


async def test_what_is_accepted_stands_in_the_log_with_its_author(path: CommandPath, place: tuple[str, str]) -> None:
    command = training("first", *place)

    reply = await path.accepted("ada", command, "k1")

    chain = await path.store.load(WORKLOAD, key_of_id(reply.id) or "")
    assert (chain.version, chain.state.workload_id, chain.state.owner) == (reply.seq, reply.id, await path.actor("ada"))
    assert reply.at == chain.state.created_at


async def test_the_same_key_gives_the_same_answer_and_one_workload(path: CommandPath, place: tuple[str, str]) -> None:
    command = training("once", *place)
    first = await path.accepted("ada", command, "k1")
    before = await path.store.last_seq()

    replies = await asyncio.gather(*(path.send("ada", command, "k1") for _ in range(20)))

    assert set(replies) == {first}
    assert await path.store.last_seq() == before


async def test_the_same_key_with_another_request_is_refused_also_under_another_name(
    path: CommandPath, place: tuple[str, str]
) -> None:
    await path.accepted("ada", training("one", *place), "k1")
    assert code(await path.send("ada", training("one", *place), "k1", body_hash="other")) == "idempotency_key_reused"
    assert code(await path.send("ada", training("two", *place), "k1", body_hash="other")) == "idempotency_key_reused"
    assert code(await path.send("ada", training("two", *place), "k1")) == "idempotency_key_reused"


async def test_a_refused_key_may_be_used_again(path: CommandPath, place: tuple[str, str]) -> None:
    await path.accepted("ada", training("taken", *place), "k1")
    assert code(await path.send("ada", training("taken", *place), "k2")) == "name_taken"
    assert code(await path.send("ada", training("free", *place), "k2", body_hash="other")) == "admitted"


async def test_one_name_that_many_ask_for_at_once_is_given_once(path: CommandPath, place: tuple[str, str]) -> None:
    replies = await asyncio.gather(*(path.send("ada", training("popular", *place), f"k{n}") for n in range(64)))
    assert sorted(map(code, replies)) == ["admitted", *["name_taken"] * 63]


async def test_a_storm_on_one_aggregate_is_carried_out_whole(path: CommandPath, place: tuple[str, str]) -> None:
    """64 grants at once on one project, and two replicas of commands that do not know of each other."""
    await path.start("commands")
    project = place[0]
    commands = [GrantProjectRole(project_id=project, subject=f"s{n}", role="viewer") for n in range(64)]

    replies = await asyncio.gather(*(path.send("root", command, f"g{n}") for n, command in enumerate(commands)))
    # What lost every race is repeated with its key, as the answer says.
    for number, reply in enumerate(replies):
        if isinstance(reply, OutcomeUnknown):
            await path.accepted("root", commands[number], f"g{number}")

    state = (await path.store.load(PROJECT, key_of_id(project) or "")).state
    assert [state.roles[await path.actor(f"s{n}")] for n in range(64)] == [("viewer",)] * 64


@pytest.mark.parametrize("names", [("local", "local"), ("local", "mine"), ("yours", "mine")])
async def test_of_two_clusters_of_this_machine_that_are_added_at_once_one_is_there_at_most(
    path: CommandPath, names: tuple[str, str]
) -> None:
    """By two replicas of commands that do not know of each other."""
    await path.administrator("root")
    await path.start("ownership")
    await path.start("commands")
    await path.start("commands")
    for turn in range(5):
        adding = [
            path.send("root", AddCluster(name=name, kind="local"), f"{turn} {at}") for at, name in enumerate(names)
        ]
        made = [reply.id for reply in await asyncio.gather(*adding) if isinstance(reply, Accepted)]
        assert len(made) == ("local" in names)
        for cluster in made:
            await path.accepted("root", RemoveCluster(cluster_id=cluster), f"remove {turn}")


async def test_beside_a_cluster_of_this_machine_that_has_another_name_there_is_no_second_one(path: CommandPath) -> None:
    """Such a one can only have been added before the name was a rule."""
    now, key, actor = datetime(2026, 1, 1, tzinfo=UTC), cluster_key("mine"), service_actor("setup")
    old = ClusterAdded(cluster_id=incarnation_id(key, "old"), name="mine", kind="local", at=now)
    made = draft(CLUSTER, key, Chain(state=CLUSTER.initial), (old,), command_id="old", actor=actor, now=now)
    assert isinstance(await path.store.append(made), Committed)
    await path.administrator("root")
    await path.start("ownership")
    await path.start("commands")
    reply = await path.send("root", AddCluster(name="local", kind="local"), "k1")
    assert isinstance(reply, Refused)
    assert reply.refusal.field == "kind"
    assert "'mine'" in reply.refusal.message


async def test_roles_wait_until_the_cluster_whose_pods_can_read_the_keys_is_gone(path: CommandPath) -> None:
    await path.administrator("root")
    await path.start("ownership", local_pods="shared")
    await path.start("commands")
    grant = GrantTenantRole(subject="ada", role="viewer")
    cluster = (await path.accepted("root", AddCluster(name="local", kind="local"), "cluster")).id
    assert code(await path.send("root", grant, "k1")) == "pods_not_isolated"
    await path.accepted("root", RemoveCluster(cluster_id=cluster), "remove")
    async with asyncio.timeout(60):
        while code(await path.send("root", grant, "k1")) != "admitted":
            await asyncio.sleep(0.02)


async def test_a_stale_version_is_refused(path: CommandPath, place: tuple[str, str]) -> None:
    made = await path.accepted("ada", training("versioned", *place), "k1")
    suspend = SuspendWorkload(workload_id=made.id)
    assert code(await path.send("ada", suspend, "k2", expected_version=made.seq + 1)) == "version_moved"
    assert code(await path.send("ada", suspend, "k2", expected_version=made.seq)) == "admitted"


@pytest.mark.parametrize("what", ["projectId", "clusterId"])
async def test_a_creation_in_an_unknown_place_is_refused_by_field(
    path: CommandPath, place: tuple[str, str], what: str
) -> None:
    project, cluster = place
    nowhere = "00000000-0000-8000-8000-000000000000"
    command = training("lost", nowhere if what == "projectId" else project, nowhere if what == "clusterId" else cluster)

    reply = await path.send("root", command, "k1")

    assert isinstance(reply, Refused)
    assert reply.refusal.code == {"projectId": "unknown_project", "clusterId": "unknown_cluster"}[what]
    assert reply.refusal.field == what


async def test_a_repeated_creation_is_answered_though_its_cluster_is_gone(
    path: CommandPath, place: tuple[str, str]
) -> None:
    project, cluster = place
    first = await path.accepted("ada", training("early", project, cluster), "k1")
    await path.accepted("root", RemoveCluster(cluster_id=cluster, force=True), "remove")
    # Each try has a key of its own: one that was accepted before the removal was seen would be answered so for ever.
    for late in itertools.count():
        reply = await path.send("ada", training(f"late-{late}", project, cluster), f"late {late}")
        if code(reply) == "unknown_cluster":
            break
        await asyncio.sleep(0.01)

    assert await path.send("ada", training("early", project, cluster), "k1") == first


ACTS: list[Any] = [SuspendWorkload, ResumeWorkload, ChangeWorkload, DeleteWorkload]


@pytest.mark.parametrize("protected", [True, False])
async def test_who_may_act_on_whose_workload(path: CommandPath, place: tuple[str, str], protected: bool) -> None:
    """Ownership protection end to end (S084, C14): the creator and an administrator always, others only with it off."""
    project, cluster = place
    await path.accepted("root", SetOwnershipProtection(cluster_id=cluster, enabled=True), "on")
    if not protected:
        await path.accepted("root", SetOwnershipProtection(cluster_id=cluster, enabled=False), "off")
    expected = {
        "ada": "admitted",
        "root": "admitted",
        "bob": "not_owner" if protected else "admitted",
        "pia": "not_owner" if protected else "admitted",
        "eve": "not_permitted",
        "mallory": "not_found",
    }
    for subject, verdict in expected.items():
        made = await path.accepted("ada", training(f"of-ada-{subject}", project, cluster), f"make for {subject}")
        for act in ACTS:
            command: UserCommand = act(workload_id=made.id)
            assert code(await path.send(subject, command, f"{act.__name__} {subject}")) == verdict, (subject, act)
        state = (await path.store.load(WORKLOAD, key_of_id(made.id) or "")).state
        assert (state.deleted_at is not None) == (verdict == "admitted")


async def test_protection_counts_from_the_moment_it_is_switched_on(path: CommandPath, place: tuple[str, str]) -> None:
    """The gate's fold lags by milliseconds; before somebody touches another's workload it asks the log's leader."""
    project, cluster = place
    for round_number in range(20):
        made = await path.accepted("ada", training(f"w{round_number}", project, cluster), f"make {round_number}")
        await carry_out(path.store, f"on {round_number}", SetOwnershipProtection(cluster_id=cluster, enabled=True))
        assert code(await path.send("bob", DeleteWorkload(workload_id=made.id), f"d{round_number}")) == "not_owner"
        await carry_out(path.store, f"off {round_number}", SetOwnershipProtection(cluster_id=cluster, enabled=False))


async def test_a_role_counts_from_the_moment_it_is_given(path: CommandPath, place: tuple[str, str]) -> None:
    project, cluster = place
    for number in range(20):
        new = await path.actors.find_or_make("muster", f"new-{number}")
        role = GrantProjectRole(project_id=project, subject=f"new-{number}", role="researcher", actor=new)
        await carry_out(path.store, f"role {number}", role)
        await path.accepted(f"new-{number}", training(f"t{number}", project, cluster), "k")


async def test_a_role_that_the_api_saw_revoked_counts_no_more(path: CommandPath, place: tuple[str, str]) -> None:
    """The gate's fold lags; it waits for what the request says is known."""
    project, cluster = place
    for number in range(20):
        who = f"leaving-{number}"
        await path.accepted("root", GrantProjectRole(project_id=project, subject=who, role="researcher"), f"g{number}")
        await path.accepted(who, training(f"l{number}", project, cluster), "k1")
        revoked = RevokeProjectRole(project_id=project, subject=who, role="researcher", actor=await path.actor(who))
        seq = await carry_out(path.store, f"revoke {number}", revoked)
        reply = await path.send(who, training(f"m{number}", project, cluster), "k2", min_roles=seq)
        assert code(reply) == "not_in_project"


async def test_what_nobody_can_know_yet_is_not_decided_on(path: CommandPath, place: tuple[str, str]) -> None:
    """Fail closed: without facts as new as were asked for, nothing is done."""
    made = await path.accepted("ada", training("ahead", *place), "k1")
    ahead = await path.store.last_seq() + 1000
    suspend = SuspendWorkload(workload_id=made.id)
    replies = await asyncio.gather(
        path.send("ada", suspend, "k2", min_seq=ahead), path.send("ada", suspend, "k3", min_roles=ahead)
    )
    assert replies == [OutcomeUnknown(), OutcomeUnknown()]
    assert (await path.store.load(WORKLOAD, key_of_id(made.id) or "")).version == made.seq


async def test_refusals_and_special_rights_are_audited_without_the_token(
    path: CommandPath, place: tuple[str, str]
) -> None:
    project, cluster = place
    await path.accepted("root", SetOwnershipProtection(cluster_id=cluster, enabled=True), "on")
    made = await path.accepted("ada", training("guarded", project, cluster), "k1")
    before = len(await audited(path.server))

    await path.send("bob", DeleteWorkload(workload_id=made.id), "bob")
    await path.send("mallory", training("x", project, cluster), "mallory")
    request = path.request("ada", DeleteWorkload(workload_id=made.id), "forged")
    await path.client.send(msgspec.structs.replace(request, token=request.token[:-8] + "AAAAAAAA"))
    await path.accepted("root", DeleteWorkload(workload_id=made.id), "root")

    records = (await audited(path.server))[before:]
    assert [(r.outcome, r.command, r.code, r.actor.sub if r.actor else None) for r in records] == [
        ("refused", "DeleteWorkload", "not_owner", "bob"),
        ("refused", "CreateWorkload", "not_in_project", "mallory"),
        ("refused", "DeleteWorkload", "not_authenticated", None),
        ("admitted", "DeleteWorkload", "override_ownership", "root"),
    ]
    assert [(r.target, r.project_id) for r in records[:2]] == [(made.id, project), ("x", project)]
    assert "eyJ" not in json.dumps(msgspec.to_builtins(records))


async def test_without_a_gate_nothing_gets_through(path: CommandPath, place: tuple[str, str]) -> None:
    (gate, _) = path.services
    await gate.stop()
    before = await path.store.last_seq()

    with pytest.raises(GateAwayError):
        await path.send("ada", training("closed", *place), "k1")
    assert await path.store.last_seq() == before

    await path.start("ownership")
    await path.accepted("ada", training("closed", *place), "k1")


async def test_the_api_cannot_get_past_the_gate(path: CommandPath, place: tuple[str, str]) -> None:
    """The server's permissions: what the api publishes on the admitted side reaches nobody."""
    api = await connect(path.server.settings("api"), "api", suffix="broken")
    command = training("smuggled", *place)
    admitted = AdmittedCommand(command_id="c", actor=Actor(id="ada"), command=command, override=True)
    before = await path.store.last_seq()
    with pytest.raises(Exception, match=r"(?i)timeout"):
        await api.request(admitted_subject("CreateWorkload"), msgspec.json.encode(admitted), timeout=0.5)
    assert await path.store.last_seq() == before
    await api.close()


async def test_a_service_gives_only_its_own_command(path: CommandPath, place: tuple[str, str]) -> None:
    made = await path.accepted("ada", training("due", *place), "k1")
    connection = await connect(path.server.settings("auto_deletion"), "auto_deletion")
    client = CommandClient(Requests(connection))

    def admitted(command: UserCommand) -> AdmittedCommand:
        # Who it claims to be does not count: the subject tells.
        return AdmittedCommand(command_id="c", actor=Actor(id="root"), command=command)

    not_due = DeleteWorkload(workload_id=made.id, generation=3)
    assert await client.send_system("auto_deletion", admitted(not_due)) == Accepted(seq=made.seq, changed=False)
    assert code(await client.send_system("auto_deletion", admitted(DeleteWorkload(workload_id=made.id)))) == (
        "not_permitted"
    )
    assert (
        await client.send_system("auto_deletion", admitted(SuspendWorkload(workload_id=made.id)), timeout_seconds=0.3)
        == OutcomeUnknown()
    ), "the server lets it publish one subject only"
    await connection.close()


async def test_what_no_message_can_hold_is_refused_and_never_doubtful(
    path: CommandPath, place: tuple[str, str]
) -> None:
    """A distributed training stores its workers' variables for its master, too: twice what its body had. The api, the
    gate and the log each add something of their own.
    """
    most, refusals = 1024**2, 0
    plain = msgspec.structs.replace(training("w", *place), kind="Distributed")
    distribution = Distribution(distributed_framework="PyTorch")
    for number, more in enumerate((-2_000, -1_100, -700, -300, 1, 100_000)):

        def large(characters: int, name: str) -> CreateWorkload:
            variable = EnvironmentVariable(name="E", value="x" * characters)
            spec = msgspec.structs.replace(plain.spec, environment_variables=(variable,))
            distributed = Distributed(distribution=distribution, master=spec)
            return msgspec.structs.replace(plain, name=name, spec=spec, distributed=distributed)

        empty = len(msgspec.json.encode(path.request("ada", large(0, f"w{number}"), f"k{number}")))
        answer = await path.send("ada", large((most + more - empty) // 2, f"w{number}"), f"k{number}")
        assert not isinstance(answer, OutcomeUnknown), more
        refusals += code(answer) == "invalid"
    assert refusals > 1
    assert isinstance(await path.send("ada", training("after", *place), "after"), Accepted)


@pytest.mark.parametrize("payload", [b"", b"{}", b"[1]", b"\xff", b'{"command_id":"x","token":"t","command":{}}'])
async def test_nonsense_is_answered(path: CommandPath, place: tuple[str, str], payload: bytes) -> None:
    api = await connect(path.server.settings("api"), "api", suffix="broken")
    answer = await api.request("cmd.request.Nonsense", payload, timeout=60)
    assert code(msgspec.json.decode(answer.data, type=CommandReply)) == "invalid"
    await api.close()


async def test_refused_commands_push_no_act_of_an_administrator_out_of_the_audit(
    path: CommandPath, place: tuple[str, str]
) -> None:
    """Both streams are made small, so that some hundred refusals are as many as they hold, and more."""
    async with raw(path.server, EVERYTHING) as (everything, _):
        for stream in ("AUDIT", "REFUSALS"):
            found = json.loads((await everything.request(call("STREAM.INFO", stream), b"", timeout=60)).data)
            small = json.dumps({**found["config"], "max_bytes": 16 * 1024}).encode()
            assert "error" not in json.loads((await everything.request(call("STREAM.UPDATE", stream), small)).data)
    acts = (await stored(path.server))["AUDIT"]
    assert acts > 0
    for number in range(100):
        assert code(await path.send("eve", training(f"t{number}", *place), f"k{number}")) == "not_permitted"
    after = await stored(path.server)
    assert after["AUDIT"] == acts
    assert 0 < after["REFUSALS"] < 100, "the oldest refusals made room for newer ones"


NO_INBOXES = (
    *("ev.tenant.default", "snap.chain.tenant.x.0", "cmd.system.auto_deletion.DeleteWorkload", "audit.tenant"),
    *("_INBOX_api", "_INBOX_api.logs.c.x", "_INBOX_apis.x", "_INBOX_setup.x", "_INBOX_api.x.>", "_INBOX_api.*"),
)


async def test_answers_go_to_inboxes_of_the_asker_alone(path: CommandPath, place: tuple[str, str]) -> None:
    """`commands` may write to the log: what it was made to answer there would stand in it."""
    before = await stored(path.server)
    for service, subject in (
        ("api", "cmd.request.Nonsense"),
        ("ownership", "cmd.admitted.Nonsense"),
        ("auto_deletion", "cmd.system.auto_deletion.DeleteWorkload"),
    ):
        async with raw(path.server, service) as (client, _):
            for reply in NO_INBOXES:
                await client.publish(subject, b"{}", reply=reply)
            await settle(client)
    # Those who were asked have seen it when they answer somebody else, and still serve.
    await path.accepted("ada", training("after", *place), "k1")
    assert await stored(path.server) == {**before, "EVENTS": before["EVENTS"] + 1, "KEYS": before["KEYS"] + 1}


@pytest.mark.parametrize("call_", ["DIRECT.GET", "STREAM.MSG.GET"])
@pytest.mark.parametrize("service", ["scheduler", "setup"])
async def test_what_a_stream_gives_out_is_no_request(
    path: CommandPath, place: tuple[str, str], service: str, call_: str
) -> None:
    """Who may write a snapshot, and have it told to whatever subject, must not command with it past the gate."""
    forged = AdmittedCommand(
        command_id="forged",
        actor=Actor(id="root"),
        command=GrantTenantRole(subject="mallory", role="administrator"),
    )
    chain = {"scheduler": "workload", "setup": "project"}[service]
    subject = f"snap.chain.{chain}.forged.0"
    async with raw(path.server, service) as (client, _):
        await client.request(subject, msgspec.json.encode(forged), timeout=60)
        before = await stored(path.server)
        for target in ("cmd.admitted.GrantTenantRole", "cmd.request.GrantTenantRole", "cmd.system.setup.AddCluster"):
            body = json.dumps({"last_by_subj": subject}).encode()
            await client.publish(call(call_, "SNAPSHOTS"), body, reply=target)
        await settle(client)
    await path.accepted("ada", training("after", *place), "k1")
    assert await stored(path.server) == {**before, "EVENTS": before["EVENTS"] + 1, "KEYS": before["KEYS"] + 1}


async def test_what_a_stream_gives_out_does_not_close_the_log(path: CommandPath, place: tuple[str, str]) -> None:
    """A snapshot that reads like a keeper's word about a full disk."""
    subject = "snap.chain.workload.forged.0"
    async with raw(path.server, "scheduler") as (client, _):
        await client.request(subject, b'{"free_bytes":0,"total_bytes":1000000}', timeout=60)
        body = json.dumps({"last_by_subj": subject}).encode()
        await client.publish(call("DIRECT.GET", "SNAPSHOTS"), body, reply="muster.room.forged")
        await settle(client)
    await asyncio.sleep(LOOK_SECONDS + 0.5)  # the watch has looked since
    await path.accepted("ada", training("after", *place), "k1")


async def test_the_word_about_the_log_goes_to_inboxes_of_the_asker_alone(
    path: CommandPath, place: tuple[str, str]
) -> None:
    before = await stored(path.server)
    async with raw(path.server, "api") as (client, _):
        for reply in ("ev.void.1", "key.x", "snap.canary.x", "ev.tenant.default", *NO_INBOXES):
            await client.publish("muster.log", b"", reply=reply)
        await settle(client)
        assert (await client.request("muster.log", b"", timeout=60)).data == b'{"trouble":""}'
    assert {**await stored(path.server), "SNAPSHOTS": 0} == {**before, "SNAPSHOTS": 0}


async def test_a_command_id_that_would_break_a_header_is_refused(path: CommandPath, place: tuple[str, str]) -> None:
    command = training("header", *place)
    request = CommandRequest(command_id="a\r\nNats-Rollup: all", token=path.token("ada"), command=command)
    assert code(await path.client.send(request)) == "invalid"


async def test_a_stopping_service_answers_what_it_has_taken(path: CommandPath, place: tuple[str, str]) -> None:
    (_, commands) = path.services
    sending = [asyncio.create_task(path.send("ada", training(f"s{n}", *place), f"k{n}")) for n in range(50)]
    await asyncio.sleep(0.01)
    await commands.stop()
    await path.start("commands")
    replies = await asyncio.gather(*sending)
    for number, reply in enumerate(replies):
        if isinstance(reply, OutcomeUnknown):
            reply = await path.accepted("ada", training(f"s{number}", *place), f"k{number}")  # noqa: PLW2901
        assert isinstance(reply, Accepted)
