"""Keys for ssh of MPI trainings on Kubernetes: all pods of an attempt have one pair, whoever answers for them, and no
other attempt has it.

Requirement row: S063.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key
from msgspec.structs import replace

from events.aggregate import WORKLOAD
from events.cluster_protocol import RecipeRequest, RunPod, SealedValues, StartPod, StopPod, pod_key, sealed_about
from events.commit import Actor
from events.phases import Phase
from events.subjects import agent_recipes_subject, recipes_subject
from events.workload.commands import CreateWorkload, ResumeWorkload, SuspendWorkload, TransferWorkload
from events.workload.fields.distribution import Distribution
from events.workload.fields.process import EnvironmentVariable, UserCredentialKey
from events.workload.fields.storage import SecretVolume, StorageSpec
from events.workload.spec import Distributed, TrainingSpec
from services.runtime.credentials.keys import KeyFileError, Ring, new_ring, read_ring, write_ring
from services.runtime.credentials.rotate import rotate
from services.runtime.credentials.sealed import new_private, public_of, unseal
from services.runtime.credentials.ssh import ssh_pair
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from tests.cluster_sync.given import CLUSTER_ID, KEY, PROJECT_ID, World, eventually, serving

pytestmark = pytest.mark.anyio

PODS = (pod_key(KEY, "master", 0), pod_key(KEY, "worker", 0), pod_key(KEY, "worker", 1))
OWN_KEYS = StorageSpec(secret_volume=(SecretVolume(secret="mpi-ssh", mount_path="/root/.ssh"),))


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    write_ring(tmp_path / "keys", new_ring())
    return tmp_path / "keys"


async def begun(world: World, *, ssh: str | None = None, **spec: Any) -> str:
    distribution = Distribution(distributed_framework="MPI", num_workers=2, ssh_auth_mount_path=ssh)
    master = TrainingSpec(image="m", command="mpirun x", storage=spec.get("storage", StorageSpec()))
    creation = CreateWorkload(
        kind="Distributed",
        name="train",
        requested_name="train",
        project_id=PROJECT_ID,
        cluster_id=CLUSTER_ID,
        spec=TrainingSpec(image="w", **spec),
        distributed=Distributed(distribution=distribution, master=master),
    )
    await world.decide(WORKLOAD, KEY, creation, f"create-{datetime.now(UTC).isoformat()}")
    await world.bind()
    return (await world.workload()).workload_id


async def told(world: World, pod: str, *, ssh_keys: bool = True) -> tuple[RunPod, SealedValues]:
    """What one process of the cluster's agent is told of this pod."""
    private, word = new_private(), await world.wanted_is(StartPod, pod)
    answers = await world.nc.subscribe(agent_recipes_subject(CLUSTER_ID))
    asked = RecipeRequest(pod_key=pod, token=word.token, public_key=public_of(private), ssh_keys=ssh_keys)
    try:
        await world.nc.publish(recipes_subject(CLUSTER_ID), msgspec.json.encode(asked))
        recipe = msgspec.json.decode((await answers.next_msg(timeout=60)).data, type=RunPod)
    finally:
        await answers.unsubscribe()
    if not recipe.sealed:
        return recipe, SealedValues()
    about = sealed_about(CLUSTER_ID, pod, word.token)
    return recipe, msgspec.json.decode(unseal(private, recipe.sealed, about), type=SealedValues)


def public_half(private: str) -> str:
    key = load_ssh_private_key(private.encode(), password=None)
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


async def keys_of(world: World, pods: Sequence[str] = PODS) -> set[str]:
    """Public halves of all that these pods find. Each is the half of what stands beside it, and lets itself in."""
    found: set[str] = set()
    for pod in pods:
        recipe, values = await told(world, pod)
        assert recipe.mpi is not None
        assert recipe.mpi.ssh == "/root/.ssh"
        files = values.ssh
        public = public_half(files["id_ed25519"])
        assert public_half(files["id_rsa"]) == public
        assert {files[name].strip() for name in ("id_ed25519.pub", "id_rsa.pub", "authorized_keys")} == {public}
        assert files["known_hosts"] == f"* {public}\n"
        found.add(public)
    return found


async def test_launcher_and_workers_have_one_pair_and_the_next_attempt_has_another(
    world: World, key_file: Path
) -> None:
    async with serving(world.server, credential_key_file=key_file):
        id_ = await begun(world)
        (first,) = await keys_of(world)
        await world.decide(WORKLOAD, KEY, SuspendWorkload(workload_id=id_), "suspend")
        for pod in PODS:
            await world.report(await world.wanted_is(StopPod, pod), "stopped")
        await world.phase_is(Phase.STOPPED)
        await world.decide(WORKLOAD, KEY, ResumeWorkload(workload_id=id_), "resume")
        await world.bind()
        (second,) = await keys_of(world)
    assert first != second


async def test_a_run_that_is_repeated_within_the_attempt_has_the_pair_of_those_that_go_on(
    world: World, key_file: Path
) -> None:
    async with serving(world.server, credential_key_file=key_file):
        await begun(world)
        first = await keys_of(world)
        word = await world.wanted_is(StartPod, PODS[1])
        await world.report(word, "running")
        await world.report(word, "failed", exit_code=1)

        async def bound_again() -> bool:
            await world.bind()
            again = await world.wanted(PODS[1])
            return isinstance(again, StartPod) and again.token > word.token

        await eventually(bound_again)
        assert await keys_of(world) == first


async def test_a_restart_and_a_second_instance_come_to_the_same_pair(world: World, key_file: Path) -> None:
    """Killed between two pods of an attempt: the next one neither remembers nor asks anybody."""
    async with serving(world.server, credential_key_file=key_file):
        await begun(world)
        first = await keys_of(world, PODS[:1])
    async with (
        serving(world.server, credential_key_file=key_file),
        serving(world.server, credential_key_file=key_file),
    ):
        assert await keys_of(world, PODS[1:]) == first


async def test_a_rotation_of_the_key_file_mixes_no_pairs(world: World, key_file: Path) -> None:
    before = read_ring(key_file)
    nc = await connect(world.server.settings("rotate"), "rotate")
    try:
        async with serving(world.server, credential_key_file=key_file):
            await begun(world)
            first = await keys_of(world, PODS[:1])
            for _ in range(2):
                await rotate(Requests(nc), key_file, key_file.with_name("public"), lambda *_: None, wait_seconds=0)
            assert await keys_of(world, PODS[1:]) == first
    finally:
        await nc.close()
    after = read_ring(key_file)
    assert not {*before.keys} & {*after.keys}


async def test_neither_a_given_away_workload_nor_one_without_a_credential_is_refused_its_keys(
    world: World, key_file: Path
) -> None:
    """The pair is nobody's: it is the workload's own. Values of credentials are refused as ever."""
    world.actor = Actor(kind="user", id="ann-of-the-test")
    async with serving(world.server, credential_key_file=key_file):
        id_ = await begun(world)
        given = TransferWorkload(workload_id=id_, subject="bob-of-the-test", actor="bob-of-the-test")
        await world.decide(WORKLOAD, KEY, given, "given")
        assert len(await keys_of(world)) == 1


async def test_where_a_credential_is_missing_no_keys_are_told_either(world: World, key_file: Path) -> None:
    needs = EnvironmentVariable(name="TOKEN", user_credential=UserCredentialKey(name="wandb", key="key"))
    async with serving(world.server, credential_key_file=key_file):
        await begun(world, environment_variables=(needs,))
        recipe, values = await told(world, PODS[1])
    assert (recipe.sealed, values.ssh) == (b"", {})
    assert "credential 'wandb' is not there any more" in recipe.no_credentials


@pytest.mark.parametrize(
    ("ssh_keys", "more"),
    [(False, {}), (False, {"ssh": "/keys"}), (True, {"storage": OWN_KEYS})],
    ids=["an agent that did not ask", "nor for those of a folder", "a workload with keys of its own"],
)
async def test_no_keys_are_made_where_nobody_needs_them(
    world: World, key_file: Path, *, ssh_keys: bool, more: dict[str, Any]
) -> None:
    async with serving(world.server, credential_key_file=key_file):
        await begun(world, **more)
        for pod in PODS:
            recipe, values = await told(world, pod, ssh_keys=ssh_keys)
            assert recipe.mpi is not None
            assert (recipe.sealed, recipe.mpi.ssh, values) == (b"", "", SealedValues())
            assert "IdentityFile" not in str(recipe.environment)


async def test_the_private_key_is_in_nothing_but_what_is_sealed(world: World, key_file: Path) -> None:
    async with serving(world.server, credential_key_file=key_file):
        await begun(world, ssh="/home/me/.ssh")
        recipe, values = await told(world, PODS[0])
    assert recipe.mpi is not None
    assert recipe.mpi.ssh == "/home/me/.ssh"
    assert "IdentityFile=/home/me/.ssh/id_ed25519" in recipe.environment["OMPI_MCA_plm_rsh_args"]
    lines = values.ssh["id_ed25519"].splitlines()[1:-1]
    said = msgspec.json.encode(recipe)
    assert not [line for line in lines if line.encode() in said]


def test_the_pair_follows_from_the_seed_and_from_what_it_is_for() -> None:
    (private, public), (again, same) = ssh_pair(b"s" * 32, "c w 1"), ssh_pair(b"s" * 32, "c w 1")
    assert public == same
    assert public_half(private) == public_half(again) == public.strip()
    others = {ssh_pair(b"s" * 32, "c w 2")[1], ssh_pair(b"t" * 32, "c w 1")[1], ssh_pair(b"s" * 32, "d w 1")[1]}
    assert len(others | {public}) == 4


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_workload_keeps_its_seed_whatever_is_rotated_after_it_was_submitted() -> None:
    ring = new_ring()
    first = ring.seed_of(NOW)
    assert first == ring.seed_of(None) is not None
    for day in range(1, 4):
        seeded = ring.with_seeds(new_since=NOW + timedelta(days=day))
        ring = replace(seeded, keys=new_ring().keys)
        assert ring.seed_of(NOW) == first
        assert ring.seed_of(NOW + timedelta(days=day)) not in {first, ring.seed_of(NOW + timedelta(days=day - 1))}
    for day in range(4, 110):
        ring = ring.with_seeds(new_since=NOW + timedelta(days=day))
    assert ring.seed_of(NOW) is None, "and is told so where that was too long ago"


def test_a_rotation_of_a_version_before_seeds_is_finished_with_the_seed_that_workloads_have() -> None:
    """It was killed with the old key and the new one in the file."""
    old = new_ring()
    both = Ring(keys=(*new_ring().keys, *old.keys))
    after = replace(both.with_seeds(), keys=both.keys[:1])
    assert old.seed_of(NOW) == both.seed_of(NOW) == after.seed_of(NOW)


def test_a_key_file_with_a_damaged_seed_is_no_key_file(key_file: Path) -> None:
    ring = read_ring(key_file).with_seeds(new_since=NOW)
    write_ring(key_file, replace(ring, seeds=(replace(ring.seeds[0], key="ab"), *ring.seeds[1:])))
    with pytest.raises(KeyFileError, match="does not hold keys"):
        read_ring(key_file)
