"""Service accounts at the gate, attacked: what a token may do, when it ends, and where nothing of it is found."""

import asyncio
from typing import Any

import msgspec
import pytest
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from development.commands import CommandPath, code, training
from development.servers import EVERYTHING
from events.aggregate import PROJECT
from events.cluster import AddCluster
from events.commands import UserCommand
from events.envelope import CommandReply
from events.ids import key_of_id
from events.node import CordonNode
from events.project import CreateProject, DeleteProject, GrantProjectRole, RevokeProjectRole
from events.service_accounts import (
    TOKEN_PREFIX,
    AccountRole,
    CreateServiceAccount,
    DeleteServiceAccount,
    RotateServiceAccount,
    token_hash,
)
from events.tenant import GrantTenantRole
from services.runtime.nats.connection import connect
from services.runtime.nats.declared import DECLARED
from tests.commands.test_path import audited

pytestmark = pytest.mark.anyio

CI = "service-account:vision/ci"
TOKEN = TOKEN_PREFIX + "Zm9yIHRlc3RzIG9ubHksIG5vdCBieSBjaGFuY2U"
NEXT = TOKEN_PREFIX + "YW5vdGhlciBvbmUsIGZvciB0ZXN0cyBvbmx5Li4u"


class Attack:
    """A project `vision` whose administrator is pia, and its account `ci` with TOKEN."""

    def __init__(self, path: CommandPath, place: tuple[str, str]) -> None:
        self.path, (self.project, self.cluster) = path, place
        self._sent = 0

    def account(self, name: str = "ci", token: str = TOKEN, role: AccountRole = "researcher") -> CreateServiceAccount:
        return CreateServiceAccount(project_id=self.project, name=name, role=role, token_hash=token_hash(token))

    async def asks(self, subject: str, command: UserCommand) -> str:
        """The code of what a person is answered."""
        self._sent += 1
        return code(await self.path.send(subject, command, f"attack {self._sent}"))

    async def with_token(self, command: UserCommand, token: str = TOKEN) -> str:
        return code(await self.answered(command, token))

    async def answered(self, command: UserCommand, token: str = TOKEN) -> CommandReply:
        """As an api sends it that knows all changes of roles so far."""
        self._sent += 1
        key = f"attack {self._sent}"
        newest = await self.path.store.last_seq(aggregates=("project", "tenant", "cluster"))
        request = self.path.request("nobody", command, key, min_roles=newest)
        return await self.path.client.send(msgspec.structs.replace(request, token=token))


@pytest.fixture
async def attack(path: CommandPath, place: tuple[str, str]) -> Attack:
    begun = Attack(path, place)
    assert await begun.asks("pia", begun.account()) == "admitted"
    return begun


async def test_who_makes_accounts_does_so_in_their_project_only(path: CommandPath, place: tuple[str, str]) -> None:
    attack = Attack(path, place)
    other = (await path.accepted("root", CreateProject(name="nlp"), "nlp")).id
    elsewhere = CreateServiceAccount(project_id=other, name="ci", role="viewer", token_hash=token_hash(TOKEN))
    asked = [("pia", attack.account()), ("ada", attack.account("a")), ("eve", attack.account("b")), ("pia", elsewhere)]
    assert [await attack.asks(who, command) for who, command in asked] == [
        *("admitted", "not_permitted", "not_permitted", "not_in_project"),
    ]


async def test_an_account_submits_in_its_project_as_its_owner_and_nowhere_else(attack: Attack) -> None:
    other = (await attack.path.accepted("root", CreateProject(name="nlp"), "nlp")).id
    assert await attack.with_token(training("mine", attack.project, attack.cluster)) == "admitted"
    assert await attack.with_token(training("theirs", other, attack.cluster)) == "not_in_project"
    chain = await attack.path.store.load(PROJECT, key_of_id(attack.project) or "")
    assert chain.state.roles[CI] == ("researcher",)


async def test_an_account_cannot_make_anybody_anything(attack: Attack) -> None:
    """Not an administrator, not an account, not itself more than it is; and what it tried stands in the audit."""
    tried: list[UserCommand] = [
        GrantTenantRole(subject="mallory", role="administrator"),
        GrantProjectRole(project_id=attack.project, subject="mallory", role="project-admin"),
        GrantProjectRole(project_id=attack.project, subject=CI, role="project-admin"),
        RevokeProjectRole(project_id=attack.project, subject="pia", role="project-admin"),
        attack.account("second", NEXT),
        RotateServiceAccount(project_id=attack.project, name="ci", token_hash=token_hash(NEXT)),
        DeleteServiceAccount(project_id=attack.project, name="ci"),
        CreateProject(name="mine"),
        DeleteProject(project_id=attack.project),
        AddCluster(name="mine", kind="kubernetes"),
        CordonNode(cluster_id=attack.cluster, name="n"),
    ]
    assert {await attack.with_token(command) for command in tried} == {"not_permitted"}
    by_it = [record for record in await audited(attack.path.server) if record.actor and record.actor.sub == CI]
    assert [record.outcome for record in by_it] == ["refused"] * len(tried)


async def test_an_account_is_given_nothing_by_a_person_either(attack: Attack) -> None:
    """Also not by an administrator: who can do that by mistake makes a program more than anybody meant."""
    more: list[UserCommand] = [
        GrantTenantRole(subject=CI, role="administrator"),
        GrantProjectRole(project_id=attack.project, subject=CI, role="project-admin"),
    ]
    assert [await attack.asks("root", command) for command in more] == ["not_for_accounts"] * 2


async def test_a_person_whose_token_claims_to_be_an_account_is_nobody(attack: Attack) -> None:
    with pytest.raises(ValueError, match="service account"):
        attack.path.token(CI)
    assert await attack.with_token(training("x", attack.project, attack.cluster), "muster_sa_") == "not_authenticated"


@pytest.mark.parametrize("end", ["rotate", "delete", "role", "project"])
async def test_the_next_command_after_the_end_is_refused(attack: Attack, end: str) -> None:
    commands: dict[str, Any] = {
        "rotate": RotateServiceAccount(project_id=attack.project, name="ci", token_hash=token_hash(NEXT)),
        "delete": DeleteServiceAccount(project_id=attack.project, name="ci"),
        "role": RevokeProjectRole(project_id=attack.project, subject=CI, role="researcher"),
        "project": DeleteProject(project_id=attack.project),
    }
    command = training("late", attack.project, attack.cluster)
    assert await attack.asks("root", commands[end]) == "admitted"
    assert await attack.with_token(command) == "not_authenticated"
    if end == "rotate":
        assert await attack.with_token(command, NEXT) == "admitted"


async def test_a_command_that_was_sent_before_the_end_and_comes_again_is_not_carried_out_twice(attack: Attack) -> None:
    answers = await asyncio.gather(
        *(attack.with_token(training(f"w{n}", attack.project, attack.cluster)) for n in range(20)),
        attack.asks("pia", DeleteServiceAccount(project_id=attack.project, name="ci")),
    )
    assert set(answers) <= {"admitted", "not_authenticated"}
    assert await attack.with_token(training("after", attack.project, attack.cluster)) == "not_authenticated"


async def test_no_token_stands_in_any_stream_and_its_hash_in_the_log_alone(attack: Attack) -> None:
    assert await attack.with_token(training("mine", attack.project, attack.cluster)) == "admitted"
    assert await attack.with_token(GrantTenantRole(subject="eve", role="viewer")) == "not_permitted"
    everything = await connect(attack.path.server.settings(EVERYTHING), EVERYTHING)
    try:
        with_hash = await _streams_with_hash(everything.jetstream())
    finally:
        await everything.close()
    assert with_hash <= {"EVENTS", "SNAPSHOTS"}


async def _streams_with_hash(stream: JetStreamContext) -> set[str]:
    """Also sees to it that the token itself is nowhere."""
    secret, hash_ = TOKEN.removeprefix(TOKEN_PREFIX).encode(), token_hash(TOKEN).encode()
    with_hash: set[str] = set()
    for name in (declared.name for declared in DECLARED):
        info = await stream.stream_info(name)
        for seq in range(max(info.state.first_seq, 1), info.state.last_seq + 1):
            try:
                message = await stream.get_msg(name, seq=seq)
            except NotFoundError:
                continue  # a newer one took its place
            stored = (message.data or b"") + str(message.headers).encode()
            assert secret not in stored, name
            with_hash |= {name} if hash_ in stored else set()
    return with_hash
