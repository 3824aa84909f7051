"""Volumes of pods on this machine: what they find at their paths, what they cannot do there, and what is left of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from events.cluster_protocol import SourceToLookAt
from events.workload.pod_sets import Container
from events.workload.volumes import ClaimedFolder, ConfigFiles, EmptyFolder, NewClaim, NfsFolder, NodeFolder, Volume
from services.agent.backends.interface import HeldClaims
from services.agent.backends.local.backend import LocalBackend
from services.agent.backends.privileged import beyond_baseline
from tests.agent.given import WORKLOAD, NoCode, Watched, log_text, machine, open_local, run_pod
from tests.agent.test_isolation import Machine, without_rights
from tests.agent.test_local import no_file_grows_beyond

pytestmark = pytest.mark.anyio

PLACE = "/muster-test-data"
"""No machine has it, and none must have it afterwards."""
NOT_THERE = "No such file or directory"
BEFORE = datetime(2026, 1, 1, tzinfo=UTC)
KEPT = NewClaim(size_bytes=1024**3, modes=("ReadWriteOnce",))
EPHEMERAL = NewClaim(size_bytes=1024**3, modes=("ReadWriteOnce",), ephemeral=True)


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Watched]:
    watched = await open_local(tmp_path / "data")
    yield watched
    await watched.close()
    assert not Path(PLACE).exists()


async def ended(local: Watched, script: str, *volumes: Volume, token: int = 1, **more: Any):
    arguments = ("/bin/sh", "-ec", script)
    await local.backend.apply(run_pod(token, node_name=local.node, arguments=arguments, volumes=volumes, **more))
    return await local.until("succeeded", "failed", token=token)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def said(local: Watched) -> list[str]:
    return await log_text(local.backend)


async def test_an_empty_folder_is_empty_for_each_run_and_gone_with_it(local: Watched, tmp_path: Path) -> None:
    """S059. Where the machine has no such path, it gets none: the pod alone sees it."""
    script = f"ls -A {PLACE}/scratch; echo mine > {PLACE}/scratch/file; cat {PLACE}/scratch/file"
    for token in (1, 2):
        end = await ended(local, script, EmptyFolder(mount_path=f"{PLACE}/scratch"), token=token)
        assert end.kind == "succeeded", end
        assert await said(local) == ["mine"]
        folder = tmp_path / "data" / "pods" / end.pod_key / str(token) / "volumes"
        assert folder.exists()
        await local.backend.forget(end.pod_key, token)
        settled = tmp_path / "data" / "settled" / end.pod_key / str(token)
        async with asyncio.timeout(60):
            while (settled / "volumes").exists():
                await asyncio.sleep(0.02)
        assert (settled / "log").exists()


async def test_memory_is_held_to_its_size(local: Watched) -> None:
    volume = EmptyFolder(mount_path=PLACE, in_memory=True, most_bytes=1024**2)
    end = await ended(local, f"head -c 4000000 /dev/zero > {PLACE}/file", volume)
    assert end.kind == "failed"
    assert "No space left" in "".join(await said(local))


async def test_a_path_of_the_machine_is_read_only_unless_it_was_asked_for(local: Watched, tmp_path: Path) -> None:
    """S059, C7. A file is laid as a file, and a folder lies in another volume as in any folder."""
    models = tmp_path / "models"
    models.mkdir()
    (models / "a").write_text("model\n")
    end = await ended(
        local,
        f"cat {PLACE}/read/a {PLACE}/one; echo new > {PLACE}/write/b; echo no > {PLACE}/read/c",
        NodeFolder(mount_path=f"{PLACE}/read", path=str(models)),
        NodeFolder(mount_path=f"{PLACE}/write", path=str(models), read_only=False),
        NodeFolder(mount_path=f"{PLACE}/one", path=str(models / "a")),
    )
    assert end.kind == "failed"
    lines = await said(local)
    assert lines[:2] == ["model", "model"]
    assert "Read-only file system" in lines[2]
    assert names_in(models) == ["a", "b"]


async def test_a_project_that_is_privileged_no_more_has_no_paths_of_the_machine(local: Watched) -> None:
    """Given a workload that was submitted while it was, and runs again only now."""
    end = await ended(local, "true", NodeFolder(mount_path=PLACE, path="/etc"), privileged=False, project_name="nlp")
    assert (end.kind, end.reason) == ("failed", "not_privileged")
    assert "path /etc of the node is for projects with the setting privileged, which project nlp has not" in end.message


@pytest.mark.parametrize(
    ("container", "told"),
    [
        (Container(host_network=True), "the network of the node"),
        (Container(host_ipc=True), "memory and semaphores"),
        (Container(seccomp="Unconfined"), "seccomp"),
        (Container(capabilities=("CHOWN", "SYS_ADMIN")), "capability SYS_ADMIN"),
        (Container(capabilities=("CHOWN",), seccomp="RuntimeDefault"), ""),
    ],
)
def test_what_baseline_forbids_needs_a_privileged_project_each_time(container: Container, told: str) -> None:
    assert not beyond_baseline(run_pod(container=container))
    found = beyond_baseline(run_pod(container=container, privileged=False))
    assert found.startswith(told) if told else not found


async def test_a_path_of_the_machine_shows_a_pod_nothing_that_is_hidden_from_it(local: Watched, tmp_path: Path) -> None:
    (tmp_path / "data" / "secret").write_text("the signing key")
    (tmp_path / "mine").write_text("mine")
    end = await ended(
        local, f"cat {PLACE}/mine; cat {PLACE}/data/secret", NodeFolder(mount_path=PLACE, path=str(tmp_path))
    )
    assert end.kind == "failed"
    assert "the signing key" not in "".join(await said(local))


@pytest.mark.parametrize(
    ("volume", "told"),
    [
        (NodeFolder(mount_path=PLACE, path="/no/such/folder"), "/no/such/folder of this machine cannot be used"),
        (EmptyFolder(mount_path="/tmp/muster-test-data"), "none is made in /tmp, which is yours"),
        (EmptyFolder(mount_path="/etc/passwd/below"), "/etc/passwd/below cannot be laid there"),
        (NfsFolder(mount_path=PLACE, server="a", path="/b"), "nothing to lay"),
        (ConfigFiles(mount_path=PLACE, object_name="a"), "there is no ConfigMap a in this project on this machine"),
        (ConfigFiles(mount_path=PLACE, object_name="a", secret=True), "there is no Secret a in this project"),
        (ConfigFiles(mount_path=PLACE, object_name="../x"), "no name of a ConfigMap"),
        (EmptyFolder(mount_path=PLACE, most_bytes=1), "cannot be held to a size"),
        (NodeFolder(mount_path=PLACE, path="/", propagation="HostToContainer"), "mounted below / later"),
        (ClaimedFolder(mount_path=PLACE, claim="sets"), "there is no claim sets"),
        (ClaimedFolder(mount_path=PLACE, claim="../../x", new=KEPT), "no name of a claim"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_volume_that_cannot_be_had_fails_the_run_and_says_why(
    local: Watched, volume: Volume, told: str
) -> None:
    end = await ended(local, "true", volume)
    reason = "no_claim" if isinstance(volume, ClaimedFolder) else "no_volume"
    assert (end.kind, end.reason, end.exit_code) == ("failed", reason, None)
    assert told in end.message
    assert end.started_at is None


async def test_pods_that_share_everything_with_the_machine_have_no_volumes(tmp_path: Path) -> None:
    local = await open_local(tmp_path / "data", isolation=None)
    end = await ended(local, "true", EmptyFolder(mount_path=PLACE))
    assert (end.kind, end.reason) == ("failed", "no_volume")
    assert "not in namespaces" in end.message
    await local.close()


@pytest.mark.parametrize("prepare", [None, without_rights], ids=["as we are", "in a user namespace"])
def test_whoever_runs_pods_volumes_are_laid_and_nothing_else_changes(tmp_path: Path, prepare: Any) -> None:
    """Given a path below a folder that is there, of which the pod then sees all but cannot make anything in it."""
    host = Machine(tmp_path, prepare)
    volume = host.run / "volumes" / "0"
    volume.mkdir(parents=True)
    beside = names_in(Path("/opt"))
    script = (
        f"ls /opt; echo hi > /opt/muster-test/x; mkdir /opt/muster-test/y && ls /opt/muster-test; cat {host.key};"
        "touch /opt/other; ls -d /usr /tmp /proc/1"
    )
    said, end = host.pod(script, volumes=[{"kind": "own", "target": "/opt/muster-test", "source": str(volume)}])
    assert end.get("exit_code") == 0, (end, said)
    assert said.split()[: len(beside) + 1] == sorted([*beside, "muster-test"])
    assert "the signing key" not in said
    assert "'/opt/other': Read-only file system" in said
    assert names_in(Path("/opt")) == beside
    assert names_in(volume) == ["x", "y"]


# -- ConfigMaps and Secrets --------------------------------------------------------------------------------------------


async def test_keys_of_config_maps_and_secrets_are_files_that_the_pod_alone_has(local: Watched, tmp_path: Path) -> None:
    """S060, S055: with the rights that were asked for; of one key, or of all."""
    settings = tmp_path / "data" / "config-maps" / "p1" / "settings"
    login = tmp_path / "data" / "secrets" / "p1" / "login"
    for folder, keys in ((settings, {"rate": "0.1\n", "seed": "7\n", "no key": "x"}), (login, {"token": "t\n"})):
        (folder / "below").mkdir(parents=True)
        for key, value in keys.items():
            (folder / key).write_text(value)
    script = (
        f"cd {PLACE}; ls all; cat all/rate one secret/token; stat -c %a all/rate secret/token;"
        f"for it in all/rate one secret/token secret/new; do echo x 2>&1 > $it || true; done; ls {login} || true"
    )
    end = await ended(
        local,
        script,
        ConfigFiles(mount_path=f"{PLACE}/all", object_name="settings"),
        ConfigFiles(mount_path=f"{PLACE}/one", object_name="settings", only_key="seed"),
        ConfigFiles(mount_path=f"{PLACE}/secret", object_name="login", secret=True, mode=0o400),
    )
    assert end.kind == "succeeded", end
    lines = await said(local)
    assert lines[:7] == ["rate", "seed", "0.1", "7", "t", "644", "400"]
    assert [line.rpartition(": ")[2] for line in lines[7:]] == [*["Read-only file system"] * 4, NOT_THERE]
    assert (settings / "rate").read_text() == "0.1\n"
    await local.backend.forget(end.pod_key, 1)
    async with asyncio.timeout(60):
        while [*(tmp_path / "data" / "settled").rglob("token")]:
            await asyncio.sleep(0.02)
    assert names_in(login) == ["below", "token"]


@pytest.mark.parametrize(
    ("only_key", "size", "told"),
    [("lr", 1, "ConfigMap settings has no key lr on this machine; it has rate"), ("", 2**20 + 1, "more than 1 MiB")],
)
async def test_what_a_config_map_cannot_give_fails_the_run(
    local: Watched, tmp_path: Path, only_key: str, size: int, told: str
) -> None:
    folder = tmp_path / "data" / "config-maps" / "p1" / "settings"
    folder.mkdir(parents=True)
    (folder / "rate").write_bytes(b"x" * size)
    end = await ended(local, "true", ConfigFiles(mount_path=PLACE, object_name="settings", only_key=only_key))
    assert (end.kind, end.reason) == ("failed", "no_volume")
    assert told in end.message


async def test_data_sources_are_looked_for_among_the_files_of_their_project(local: Watched, tmp_path: Path) -> None:
    """S053."""
    (tmp_path / "data" / "secrets" / "p1" / "login").mkdir(parents=True)

    async def looked(volume: Volume, project_id: str = "p1") -> str:
        source = SourceToLookAt(asset_id="a", spec_at=BEFORE, volume=volume, project_id=project_id, project_name="nlp")
        return await local.backend.look(source)

    secret = ConfigFiles(mount_path=PLACE, object_name="login", secret=True)
    assert await looked(secret) == ""
    assert await looked(secret, "p2") == "the project has no Secret login here"
    assert await looked(replace(secret, secret=False)) == "the project has no ConfigMap login here"
    assert await looked(secret, "") == "", "who uses it says in which project"


# -- claims ------------------------------------------------------------------------------------------------------------


async def claims_of(local: Watched) -> list[HeldClaims]:
    return list(await local.backend.claims())


async def test_a_claim_is_kept_from_run_to_run_until_it_is_removed(local: Watched, tmp_path: Path) -> None:
    """S052, R40, C16."""
    kept = ClaimedFolder(mount_path=f"{PLACE}/kept", number=0, new=KEPT)
    fleeting = ClaimedFolder(mount_path=f"{PLACE}/fleeting", number=1, new=EPHEMERAL)
    script = f"cd {PLACE}; for one in kept fleeting; do echo run >> $one/runs; wc -l < $one/runs; done"
    counted: list[list[str]] = []
    for token in (1, 2, 3):
        if token == 3:
            await local.backend.remove_claims(WORKLOAD, ephemeral_only=True)
        assert (await ended(local, script, kept, fleeting, token=token)).kind == "succeeded"
        counted.append(await said(local))
    assert counted == [["1", "1"], ["2", "2"], ["3", "1"]]
    assert await claims_of(local) == [HeldClaims(workload_id=WORKLOAD, ephemeral=True)]
    await local.backend.remove_claims(WORKLOAD, ephemeral_only=False)
    assert await claims_of(local) == []
    assert list((tmp_path / "data" / "claims" / "p1").iterdir()) == []


async def test_no_claim_is_removed_under_a_pod_and_none_is_forgotten_with_the_agent(tmp_path: Path) -> None:
    local = await open_local(tmp_path / "data")
    claim = ClaimedFolder(mount_path=PLACE, claim="sets", new=KEPT)
    await local.backend.apply(
        run_pod(node_name=local.node, arguments=("/bin/sh", "-c", f"touch {PLACE}/a; sleep 60"), volumes=(claim,))
    )
    await local.until("running")
    assert await claims_of(local) == []
    await local.backend.remove_claims(WORKLOAD, ephemeral_only=False)
    assert (tmp_path / "data" / "claims" / "p1" / "sets").exists()
    await local.close()
    again = await LocalBackend(machine(tmp_path / "data"), NoCode()).open()
    async with asyncio.timeout(60):
        while list(await again.claims()) != [HeldClaims(workload_id=WORKLOAD)]:
            await asyncio.sleep(0.02)  # its pod was told to end, and may not have ended yet
    await again.close()


async def test_a_claim_of_another_is_used_by_name_and_never_taken_over(local: Watched, tmp_path: Path) -> None:
    """Given one that a workload made, and one that an administrator did."""
    folder = tmp_path / "data" / "claims" / "p1"
    made = ClaimedFolder(mount_path=PLACE, claim="made", new=KEPT)
    assert (await ended(local, f"echo made > {PLACE}/a", made)).kind == "succeeded"
    (folder / "by-hand").mkdir()
    (folder / "by-hand" / "a").write_text("by hand\n")
    both = [ClaimedFolder(mount_path=f"{PLACE}/{name}", claim=name) for name in ("made", "by-hand")]
    end = await ended(local, f"cat {PLACE}/*/a", *both, token=2, workload_id="w-2")
    assert end.kind == "succeeded"
    assert await log_text(local.backend, workload_id="w-2") == ["by hand", "made"]
    for token, name in ((3, "made"), (4, "by-hand")):
        taken = ClaimedFolder(mount_path=PLACE, claim=name, new=KEPT)
        end = await ended(local, "true", taken, token=token, workload_id="w-2")
        assert (end.kind, end.reason) == ("failed", "no_claim")
        assert "did not make" in end.message
    await local.backend.remove_claims("w-2", ephemeral_only=False)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["by-hand", "made"]


async def test_a_claim_stays_while_a_pod_of_another_workload_uses_it(local: Watched, tmp_path: Path) -> None:
    """Given a workload that is gone, whose claim another one has by name: it loses nothing under its feet."""
    made = ClaimedFolder(mount_path=PLACE, claim="sets", new=KEPT)
    assert (await ended(local, f"echo made > {PLACE}/a", made)).kind == "succeeded"
    waits = ("/bin/sh", "-c", f"while [ ! -e {PLACE}/b ]; do sleep 0.05; done; cat {PLACE}/a")
    used = ClaimedFolder(mount_path=PLACE, claim="sets")
    pod = run_pod(2, node_name=local.node, arguments=waits, volumes=(used,), workload_id="w-2")
    await local.backend.apply(pod)
    await local.until("running", token=2)
    await local.backend.remove_claims(WORKLOAD, ephemeral_only=False)
    folder = tmp_path / "data" / "claims" / "p1" / "sets"
    (folder / "b").touch()
    assert (await local.until("succeeded", "failed", token=2)).kind == "succeeded"
    assert await claims_of(local) == [HeldClaims(workload_id=WORKLOAD)]
    await local.backend.remove_claims(WORKLOAD, ephemeral_only=False)
    assert not folder.exists()


def test_a_full_disk_keeps_nobody_from_removing_claims(tmp_path: Path) -> None:
    """Given no room for another folder, and none for a record."""
    from services.agent.backends.local.claims import REMOVED, Claims

    run = run_pod(volumes=(ClaimedFolder(mount_path="/a", claim="a", new=KEPT),))
    claims = Claims(tmp_path)
    claims.open()
    claims.ensure(run)
    other = run_pod(workload_id="w-2", volumes=(ClaimedFolder(mount_path="/a", claim="b", new=KEPT),))
    with no_file_grows_beyond(10), pytest.raises(OSError):
        claims.ensure(other)
    assert names_in(tmp_path / "p1") == [".a.json", "a"]
    (tmp_path / "p1" / ".b.json.1.tmp").touch()
    assert [folder.parent for folder in claims.remove(WORKLOAD, ephemeral_only=False)] == [tmp_path / REMOVED]
    Claims(tmp_path).open()
    assert names_in(tmp_path / "p1") == []
    claims.clear()
    assert names_in(tmp_path) == [REMOVED, "p1"]


def test_the_record_of_a_claim_is_there_before_its_folder(tmp_path: Path) -> None:
    """So that an agent that dies in between leaves no folder that is nobody's."""
    from services.agent.backends.local.claims import Claims

    run = run_pod(volumes=(ClaimedFolder(mount_path="/a", claim="a", new=EPHEMERAL),))
    claims = Claims(tmp_path)
    claims.open()
    claims.ensure(run)
    record = json.loads((tmp_path / "p1" / ".a.json").read_text())
    assert record == {"workload_id": WORKLOAD, "ephemeral": True}
    (tmp_path / "p1" / "a").rmdir()
    again = Claims(tmp_path)
    again.open()
    again.ensure(run)
    assert (tmp_path / "p1" / "a").is_dir()
    assert len(again.remove(WORKLOAD, ephemeral_only=True)) == 1
    assert list(again.held()) == []
