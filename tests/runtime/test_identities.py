"""Tokens of service accounts: who they speak for when they are looked up, and whose share they take."""

from typing import Any

import pytest

from development.commands import carry_out
from events.authorize import Permission
from events.ids import incarnation_id, project_key
from events.project import CreateProject, DeleteProject, RevokeProjectRole
from events.refusal import Refusal
from events.service_accounts import (
    TOKEN_PREFIX,
    CreateServiceAccount,
    DeleteServiceAccount,
    RotateServiceAccount,
    token_hash,
)
from services.api.limits import RateLimiter
from services.runtime.identity.authentication import Identity
from services.runtime.identity.directory import Directory
from services.runtime.identity.identities import NEVER, Identities, principal
from services.runtime.log.memory import MemoryEventStore

pytestmark = pytest.mark.anyio

PROJECT_ID = incarnation_id(project_key("vision"), "1")
CI = "service-account:vision/ci"
OLD, NEW = TOKEN_PREFIX + "old", TOKEN_PREFIX + "new"

ENDS: dict[str, Any] = {
    "rotate": RotateServiceAccount(project_id=PROJECT_ID, name="ci", token_hash=token_hash(NEW)),
    "delete": DeleteServiceAccount(project_id=PROJECT_ID, name="ci"),
    "removal of its last role": RevokeProjectRole(project_id=PROJECT_ID, subject=CI, role="researcher", actor=CI),
    "deletion of its project": DeleteProject(project_id=PROJECT_ID),
}


class Given:
    """A log with a project `vision` and its account `ci`, and what follows it."""

    def __init__(self) -> None:
        self.store = MemoryEventStore()
        self.directory = Directory(self.store)
        nobody: Any = None
        self.identities = Identities(nobody, nobody, self.directory)

    async def does(self, command_id: str, command: Any) -> None:
        seq = await carry_out(self.store, command_id, command)
        assert await self.directory.reached(seq, timeout_seconds=60)

    async def begins(self) -> None:
        await self.directory.start()
        await self.does("1", CreateProject(name="vision"))
        await self.does("2", self.account("ci", OLD))

    def account(self, name: str, token: str) -> CreateServiceAccount:
        return CreateServiceAccount(project_id=PROJECT_ID, name=name, role="researcher", token_hash=token_hash(token))

    async def code(self, token: str) -> str:
        verdict = await self.identities.verify(token)
        return verdict.code if isinstance(verdict, Refusal) else verdict.sub


async def test_a_token_speaks_for_its_account_in_its_project_alone_and_never_expires() -> None:
    given = Given()
    await given.begins()
    try:
        identity = await given.identities.verify(OLD)
        assert identity == Identity(iss="muster", sub=CI, expires_at=NEVER)
        assert isinstance(identity, Identity)
        assert await given.identities.actor(identity) == CI
        grants = given.directory.grants(CI)
        assert grants.allows(Permission.SUBMIT, PROJECT_ID)
        assert not grants.allows(Permission.SUBMIT, "another")
        assert not grants.allows(Permission.READ, None)
    finally:
        await given.directory.close()


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
async def test_a_token_ends_with_the_commit_of(end: Any) -> None:
    given = Given()
    await given.begins()
    try:
        assert await given.code(OLD) == CI
        await given.does("3", end)
        assert await given.code(OLD) == "not_authenticated"
        rotated = isinstance(end, RotateServiceAccount)
        assert await given.code(NEW) == (CI if rotated else "not_authenticated")
        assert given.directory.grants(CI).allows(Permission.SUBMIT, PROJECT_ID) == rotated
    finally:
        await given.directory.close()


@pytest.mark.parametrize(
    "token", [TOKEN_PREFIX, TOKEN_PREFIX + "other", token_hash(OLD), TOKEN_PREFIX + token_hash(OLD)]
)
async def test_neither_a_guess_nor_the_hash_that_the_log_holds_is_a_token(token: str) -> None:
    given = Given()
    await given.begins()
    try:
        if token.startswith(TOKEN_PREFIX):
            assert await given.code(token) == "not_authenticated"
        assert given.directory.account_with(token_hash(token)) is None
    finally:
        await given.directory.close()


def test_a_hundred_accounts_of_a_project_may_send_no_more_than_one() -> None:
    limiter = RateLimiter(rate=1, burst=10, clock=lambda: 0.0)
    accounts = [Identity(iss="muster", sub=f"service-account:vision/a{n}", expires_at=NEVER) for n in range(100)]
    assert sum(limiter.wait_seconds(principal(account)) == 0 for account in accounts) == 10
    others = Identity(iss="muster", sub="service-account:nlp/a0", expires_at=NEVER)
    ann = Identity(iss="muster", sub="ann", expires_at=NEVER)
    assert limiter.wait_seconds(principal(others)) == 0
    assert limiter.wait_seconds(principal(ann)) == 0
