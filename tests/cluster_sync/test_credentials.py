"""Values of credentials are told to the agent that starts the run that needs them, sealed to it, and to nobody else.

Requirement rows: S018, S020, S057, R10.
"""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_ssh_private_key,
)

from events.aggregate import ASSET, WORKLOAD
from events.asset import CreateCredential, DeleteCredential, asset_key
from events.cluster_protocol import (
    Login,
    RecipeRequest,
    Registry,
    RepositoryKey,
    RunPod,
    SealedValues,
    StartPod,
    sealed_about,
)
from events.commit import Actor
from events.ids import incarnation_id
from events.subjects import agent_recipes_subject, credential_subject, recipes_subject
from events.workload.commands import TransferWorkload
from events.workload.fields.process import EnvironmentVariable, ImagePullSecret, UserCredentialKey
from events.workload.fields.storage import GitSecretRef, GitVolume, StorageSpec
from services.runtime.credentials.kept import KeptCredentials
from services.runtime.credentials.keys import KeyFileError, new_ring, read_public, read_ring, write_public, write_ring
from services.runtime.credentials.rotate import rotate
from services.runtime.credentials.sealed import SealError, new_private, public_of, unseal
from services.runtime.credentials.ssh import ssh_pair
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from tests.cluster_sync.given import CLUSTER_ID, KEY, PROJECT_ID, World, serving

pytestmark = pytest.mark.anyio

OWNER = "ann-of-the-test"
NEEDS = EnvironmentVariable(name="TOKEN", user_credential=UserCredentialKey(name="wandb", key="key"))


class Agent:
    """One process of the cluster's agent."""

    def __init__(self, world: World) -> None:
        self.private = new_private()
        self._world = world

    async def recipe(self, word: StartPod, *, public: bytes | None = None, seconds: float = 60) -> RunPod | None:
        answers = await self._world.nc.subscribe(agent_recipes_subject(CLUSTER_ID))
        asked = RecipeRequest(
            pod_key=word.pod_key, token=word.token, public_key=public_of(self.private) if public is None else public
        )
        try:
            await self._world.nc.publish(recipes_subject(CLUSTER_ID), msgspec.json.encode(asked))
            return msgspec.json.decode((await answers.next_msg(timeout=seconds)).data, type=RunPod)
        except TimeoutError:
            return None
        finally:
            await answers.unsubscribe()

    def opened(self, recipe: RunPod) -> dict[str, str]:
        return self.all_of(recipe).environment

    def all_of(self, recipe: RunPod) -> SealedValues:
        about = sealed_about(CLUSTER_ID, recipe.pod_key, recipe.token)
        return msgspec.json.decode(unseal(self.private, recipe.sealed, about), type=SealedValues)


class Store:
    """The store of credentials, as the API writes it."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world = world
        self.private, self.public = folder / "private", folder / "public"
        write_ring(self.private, new_ring())
        write_public(self.public, read_ring(self.private))
        self.kept = KeptCredentials(world.requests)

    async def credential(
        self,
        value: str,
        *,
        owner: str = OWNER,
        name: str = "wandb",
        kind: str = "generic-secret",
        data: dict[str, str] | None = None,
    ) -> str:
        """Its id."""
        key = asset_key("credentials", "project", PROJECT_ID, name)
        value_id = incarnation_id(key, value)
        whole = {"key": value} if data is None else data
        await self.kept.put(owner, value_id, whole, read_public(self.public))
        spec = {"credential": {"kind": kind, "keys": sorted(whole), "value": value_id}}
        creation = CreateCredential(project_id=PROJECT_ID, name=name, spec=spec)
        await self._world.decide(ASSET, key, creation, f"{name} {value}")
        return (await self._world.store.load(ASSET, key)).state.asset_id

    async def delete(self, asset_id: str) -> None:
        key = asset_key("credentials", "project", PROJECT_ID, "wandb")
        await self._world.decide(ASSET, key, DeleteCredential(asset_id=asset_id, project_id=PROJECT_ID), "delete")


@pytest.fixture
def store(world: World, tmp_path: Path) -> Store:
    world.actor = Actor(kind="user", id=OWNER)
    return Store(world, tmp_path)


async def started(world: World, *variables: EnvironmentVariable) -> StartPod:
    await world.create(command="true", environment_variables=variables or (NEEDS,))
    await world.bind()
    return await world.wanted_is(StartPod)


async def test_the_agent_that_asks_finds_the_value_and_no_other_key_opens_it(world: World, store: Store) -> None:
    await store.credential("s3cr3t-of-ann")
    async with serving(world.server, credential_key_file=store.private):
        agent, other = Agent(world), Agent(world)
        recipe = await agent.recipe(await started(world, NEEDS, EnvironmentVariable(name="A", value="1")))
        assert recipe is not None
        assert (agent.opened(recipe), recipe.environment) == ({"TOKEN": "s3cr3t-of-ann"}, {"A": "1"})
        with pytest.raises(SealError):
            other.opened(recipe)
        moved = msgspec.structs.replace(recipe, token=recipe.token + 1)
        with pytest.raises(SealError):
            agent.opened(moved)


REGISTRY = {"url": "https://registry.example.com", "username": "ann", "password": "r-s3cr3t"}


async def test_registries_and_logins_are_sealed_beside_the_variables(world: World, store: Store) -> None:
    """S018, S057: by the kind and the keys of each credential."""
    await store.credential("1", name="registry", kind="docker-registry", data=REGISTRY)
    await store.credential("2", name="login", kind="password", data={"username": "ann", "password": "p-s3cr3t\n"})
    await store.credential("3", name="token", data={"TOKEN": "t-s3cr3t"})
    volumes = (
        GitVolume(repository="https://a/b", path="/one", secret_ref=login("login")),
        GitVolume(repository="https://a/b", path="/two", secret_ref=login("token", key="TOKEN")),
        GitVolume(repository="https://a/b", path="/of-all"),
        GitVolume(repository="https://a/b", path="/of-the-cluster", secret_ref=login("login", own=False)),
    )
    pulls = (ImagePullSecret(name="registry", user_credential=True), ImagePullSecret(name="of-the-cluster"))
    async with serving(world.server, credential_key_file=store.private):
        await world.create(command="true", image_pull_secrets=pulls, storage=StorageSpec(git=volumes))
        await world.bind()
        agent = Agent(world)
        recipe = await agent.recipe(await world.wanted_is(StartPod))
    assert recipe is not None
    found = agent.all_of(recipe)
    assert found.environment == {}
    assert found.registries == (Registry(url=REGISTRY["url"], user="ann", password="r-s3cr3t"),)
    assert found.logins == {
        "/one": Login(user="ann", password="p-s3cr3t"),
        "/two": Login(user="git", password="t-s3cr3t"),
    }
    assert recipe.container.pull_secrets == ("of-the-cluster",)
    assert b"s3cr3t" not in msgspec.json.encode(recipe)


UNFIT: list[tuple[str, dict[str, dict[str, str]], str]] = [
    ("of another kind", {"one": {"key": "v"}}, "is of kind"),
    ("twice", {"one": REGISTRY, "two": REGISTRY | {"username": "bob"}}, "are for one registry"),
]


@pytest.mark.parametrize(("made", "words"), [one[1:] for one in UNFIT], ids=[one[0] for one in UNFIT])
async def test_what_no_image_can_be_pulled_with_is_told_as_why_it_cannot_run(
    world: World, store: Store, made: dict[str, dict[str, str]], words: str
) -> None:
    for name, data in made.items():
        kind = "docker-registry" if "url" in data else "generic-secret"
        await store.credential(name, name=name, kind=kind, data=data)
    pulls = tuple(ImagePullSecret(name=name, user_credential=True) for name in made)
    async with serving(world.server, credential_key_file=store.private):
        await world.create(command="true", image_pull_secrets=pulls)
        await world.bind()
        recipe = await Agent(world).recipe(await world.wanted_is(StartPod))
    assert recipe is not None
    assert (recipe.sealed, words in recipe.no_credentials) == (b"", True)


def login(name: str, *, key: str | None = None, own: bool = True) -> GitSecretRef:
    return GitSecretRef(name=name, user_credential=own, authentication_method="password", secret_key_of_password=key)


def by_ssh(name: str, *, key: str | None = None) -> GitVolume:
    held = GitSecretRef(name=name, user_credential=True, authentication_method="ssh-key", secret_key_of_password=key)
    return GitVolume(repository=f"git@git.example.com:{name}", path=f"/{name}", secret_ref=held)


PRIVATE = ssh_pair(b"0" * 32, "a repository")[0]
HOSTS = "git.example.com ssh-ed25519 AAAA\n"
LOCKED = load_ssh_private_key(PRIVATE.encode(), password=None).private_bytes(
    Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"s3cr3t")
)


async def test_keys_for_ssh_are_sealed_as_ssh_reads_them(world: World, store: Store) -> None:
    """S057, R34."""
    typed_elsewhere = {"ssh-privatekey": PRIVATE.strip().replace("\n", "\r\n"), "known_hosts": HOSTS.strip()}
    await store.credential("1", name="usual", data=typed_elsewhere)
    await store.credential("2", name="named", data={"mine": PRIVATE, "known_hosts": f"# ours\n{HOSTS}"})
    async with serving(world.server, credential_key_file=store.private):
        volumes = (by_ssh("usual"), by_ssh("named", key="mine"))
        await world.create(command="true", storage=StorageSpec(git=volumes))
        await world.bind()
        agent = Agent(world)
        recipe = await agent.recipe(await world.wanted_is(StartPod))
    assert recipe is not None
    assert agent.all_of(recipe) == SealedValues(
        keys={
            "/usual": RepositoryKey(private=PRIVATE, known_hosts=HOSTS),
            "/named": RepositoryKey(private=PRIVATE, known_hosts=f"# ours\n{HOSTS}"),
        }
    )


NO_KEYS: list[tuple[str, dict[str, str], str]] = [
    ("no key", {"ssh-privatekey": "s3cr3t", "known_hosts": HOSTS}, "holds no private key"),
    ("a passphrase", {"ssh-privatekey": LOCKED.decode(), "known_hosts": HOSTS}, "has a passphrase"),
    ("no server", {"ssh-privatekey": PRIVATE, "known_hosts": "# none\n\n"}, "names no server"),
    ("no known_hosts", {"ssh-privatekey": PRIVATE}, "has no key 'known_hosts'"),
]


@pytest.mark.parametrize(("data", "words"), [one[1:] for one in NO_KEYS], ids=[one[0] for one in NO_KEYS])
async def test_what_no_repository_can_be_cloned_with_is_told_as_why_it_cannot_run(
    world: World, store: Store, data: dict[str, str], words: str
) -> None:
    await store.credential("1", name="code", data=data)
    async with serving(world.server, credential_key_file=store.private):
        await world.create(command="true", storage=StorageSpec(git=(by_ssh("code"),)))
        await world.bind()
        recipe = await Agent(world).recipe(await world.wanted_is(StartPod))
    assert recipe is not None
    assert (recipe.sealed, words in recipe.no_credentials) == (b"", True), recipe.no_credentials
    assert "s3cr3t" not in recipe.no_credentials


async def test_a_run_that_needs_none_and_a_key_that_is_none_are_told_no_value(world: World, store: Store) -> None:
    await store.credential("s3cr3t-of-ann")
    async with serving(world.server, credential_key_file=store.private):
        word = await started(world)
        agent = Agent(world)
        old = await agent.recipe(word, public=b"")
        assert old is not None
        assert (old.sealed, "update it" in old.no_credentials) == (b"", True)
        assert await agent.recipe(word, public=b"x" * 5, seconds=1) is None
        assert (await agent.recipe(word)) is not None


@pytest.mark.parametrize("case", ["gone", "another's", "key", "value"])
async def test_what_is_not_there_for_this_owner_is_told_as_why_it_cannot_run(
    world: World, store: Store, case: str
) -> None:
    if case == "another's":
        world.actor = Actor(kind="user", id="bob-of-the-test")
    made = await store.credential("s3cr3t-of-ann", owner=world.actor.id)
    world.actor = Actor(kind="user", id=OWNER)
    key = asset_key("credentials", "project", PROJECT_ID, "wandb")
    needs = NEEDS
    match case:
        case "gone":
            await store.delete(made)
        case "another's":
            pass
        case "key":
            needs = EnvironmentVariable(name="TOKEN", user_credential=UserCredentialKey(name="wandb", key="none"))
        case _:
            await store.kept.remove(credential_subject(OWNER, incarnation_id(key, "s3cr3t-of-ann")))
    async with serving(world.server, credential_key_file=store.private):
        recipe = await Agent(world).recipe(await started(world, needs))
        assert recipe is not None
        assert recipe.sealed == b""
        assert "credential" in recipe.no_credentials


@pytest.mark.parametrize("heir", ["bob-of-the-test", "ann-of-the-test"])
async def test_a_workload_that_was_given_away_finds_neither_the_values_of_its_owner_nor_those_of_who_submitted_it(
    world: World, store: Store, heir: str
) -> None:
    """Else whoever gives somebody a workload of theirs would read the values of that person in its log."""
    submitter = ({"bob-of-the-test", OWNER} - {heir}).pop()
    world.actor = Actor(kind="user", id=OWNER)
    await store.credential("s3cr3t-of-ann")
    world.actor = Actor(kind="user", id=submitter)
    async with serving(world.server, credential_key_file=store.private):
        await world.create(command="true", environment_variables=(NEEDS,))
        given = TransferWorkload(workload_id=(await world.workload()).workload_id, subject=heir, actor=heir)
        await world.decide(WORKLOAD, KEY, given, "given")
        await world.bind()
        recipe = await Agent(world).recipe(await world.wanted_is(StartPod))
        assert recipe is not None
        assert recipe.sealed == b""
        assert "submit it again" in recipe.no_credentials


async def test_without_the_key_file_nothing_is_said_and_the_agent_asks_again(world: World, store: Store) -> None:
    await store.credential("s3cr3t-of-ann")
    async with serving(world.server):
        assert await Agent(world).recipe(await started(world), seconds=1) is None


async def test_a_rotation_seals_everything_anew_while_runs_start(world: World, store: Store) -> None:
    await store.credential("s3cr3t-of-ann")
    before = read_ring(store.private)
    nc = await connect(world.server.settings("rotate"), "rotate")
    try:
        async with serving(world.server, credential_key_file=store.private):
            word, agent = await started(world), Agent(world)
            seen: list[tuple[int, int]] = []
            done = await rotate(Requests(nc), store.private, store.public, lambda *at: seen.append(at), wait_seconds=0)
            assert (done, seen[-1]) == (1, (1, 1))
            recipe = await agent.recipe(word)
            assert recipe is not None
            assert agent.opened(recipe) == {"TOKEN": "s3cr3t-of-ann"}
    finally:
        await nc.close()
    after = read_ring(store.private)
    assert len(after.keys) == 1
    assert after.keys != before.keys
    assert read_public(store.public) == after.public


async def test_two_rotations_at_once_are_one_and_a_killed_one_leaves_no_keys_behind(world: World, store: Store) -> None:
    """One that stood still between two steps would write its keys over those of the other, and lose all values."""
    await store.credential("s3cr3t-of-ann")
    nc = await connect(world.server.settings("rotate"), "rotate")
    (store.private.parent / f".{store.private.name}.half").write_text("keys of one that was killed")
    try:
        begun, requests = asyncio.Event(), Requests(nc)

        async def first() -> int:
            return await rotate(requests, store.private, store.public, lambda *_: begun.set(), wait_seconds=0.2)

        going = asyncio.create_task(first())
        await asyncio.sleep(0.05)
        with pytest.raises(KeyFileError, match=r"another rotation of .* is at work"):
            await rotate(requests, store.private, store.public, lambda *_: None, wait_seconds=0)
        assert await going == 1
        assert begun.is_set()
        assert await first() == 1, "and then the next one may"
    finally:
        await nc.close()
    assert not list(store.private.parent.glob(f".{store.private.name}.*"))


async def test_a_rotation_that_was_killed_is_finished_by_the_next_and_raises_no_dead_value(
    world: World, store: Store
) -> None:
    await store.credential("s3cr3t-of-ann")
    key = asset_key("credentials", "project", PROJECT_ID, "wandb")
    old = read_ring(store.private)
    write_ring(store.private, msgspec.structs.replace(old, keys=(*new_ring().keys, *old.keys)))
    both = read_ring(store.private)
    assert await store.kept.get(OWNER, incarnation_id(key, "s3cr3t-of-ann"), both) == {"key": "s3cr3t-of-ann"}
    nc = await connect(world.server.settings("rotate"), "rotate")
    try:
        await store.kept.remove(credential_subject(OWNER, incarnation_id(key, "s3cr3t-of-ann")))
        assert await rotate(Requests(nc), store.private, store.public, lambda *_: None, wait_seconds=0) == 0
    finally:
        await nc.close()
    assert read_ring(store.private).keys == both.keys[:1]
    assert await store.kept.get(OWNER, incarnation_id(key, "s3cr3t-of-ann"), both) is None


async def test_nobody_but_cluster_sync_reads_the_store_and_the_api_cannot(world: World, store: Store) -> None:

    await store.credential("s3cr3t-of-ann")
    key = asset_key("credentials", "project", PROJECT_ID, "wandb")
    for user, may in (("cluster_sync", True), ("api", False), ("agent", False), ("operator", False)):
        nc = await connect(world.server.settings(user), user)
        try:
            asking = KeptCredentials(Requests(nc)).get(
                OWNER, incarnation_id(key, "s3cr3t-of-ann"), read_ring(store.private)
            )
            found: Any = None
            try:
                async with asyncio.timeout(2):
                    found = await asking
            except Exception as error:  # noqa: BLE001 (however it is refused)
                found = error
            assert (found == {"key": "s3cr3t-of-ann"}) is may, (user, found)
        finally:
            await nc.close()


async def test_what_a_workload_stores_names_the_credential_and_holds_no_value(world: World, store: Store) -> None:
    await store.credential("s3cr3t-of-ann")
    await world.create(command="true", environment_variables=(NEEDS,))
    stored = (await world.workload()).spec
    assert b"s3cr3t-of-ann" not in msgspec.json.encode(stored)
    assert stored.environment_variables[0].user_credential.name == "wandb"
