"""Repositories that are cloned over ssh, from a real server by the real git and ssh: only with the key that came with
them, only from a server whose key came with them, and the key stands nowhere.

Requirement rows: S057, R34.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from events.cluster_protocol import RepositoryKey, SealedValues
from events.workload.volumes import ClonedFolder, FolderLogin
from tests.agent.given import KEY, Watched, log_text, open_local, run_pod
from tests.agent.test_git_volume import PLACE, Repository
from tests.support.ssh_server import SshServer, pair, serving_ssh

pytestmark = pytest.mark.anyio

PRIVATE, PUBLIC = pair()
OTHER_PRIVATE, OTHER_PUBLIC = pair()
SHOW = f"""
cat {PLACE}/file; git -C {PLACE} log -1 --format=%s
env; ls -A /dev/shm; grep -r PRIVATE {PLACE} /dev/shm || true
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Watched]:
    watched = await open_local(tmp_path / "data")
    yield watched
    await watched.close()


@pytest.fixture
async def server() -> AsyncIterator[SshServer]:
    async with serving_ssh(PUBLIC) as serving:
        yield serving


async def clone(
    local: Watched, address: str, known_hosts: str, *, private: str = PRIVATE, script: str = SHOW, revision: str = ""
) -> None:
    login = FolderLogin(name="mine", credential=True)
    volume = ClonedFolder(mount_path=PLACE, repository=address, login=login, revision=revision)
    pod = run_pod(node_name=local.node, arguments=("/bin/sh", "-ec", script), volumes=(volume,))
    await local.backend.apply(pod, SealedValues(keys={PLACE: RepositoryKey(private=private, known_hosts=known_hosts)}))


def lines_of(key: str) -> list[str]:
    """By which it is found again. The first has what any such key begins with."""
    return [line for line in key.splitlines() if not line.startswith("-----")][1:]


@pytest.mark.parametrize("asked", [("", "three"), ("v1", "one")], ids=["newest", "tag"])
async def test_it_is_cloned_with_its_key_which_stands_in_no_file_and_is_with_no_program(
    local: Watched, server: SshServer, repository: Repository, tmp_path: Path, asked: tuple[str, str]
) -> None:
    revision, found = asked
    await clone(local, server.address(repository.folder), server.known, revision=revision)
    end = await local.until("succeeded", "failed")
    said = await log_text(local.backend)
    assert (end.kind, said[:2]) == ("succeeded", [found, found]), said
    assert server.offered
    assert {*server.offered} == {PUBLIC}
    told = "\n".join([str(end), *said])
    assert "MUSTER_GIT" not in told
    assert "muster-clone" not in told
    files = [file.read_bytes() for file in (tmp_path / "data").rglob("*") if file.is_file()]
    for line in lines_of(PRIVATE):
        assert line not in told
        assert not [content for content in files if line.encode() in content]


@pytest.mark.parametrize("known", ["", "another host", "another key"])
async def test_a_server_whose_key_did_not_come_with_it_is_told_nothing(
    local: Watched, server: SshServer, repository: Repository, known: str
) -> None:
    hosts = {
        "": "# none\n",
        "another host": server.known.replace("127.0.0.1", "127.0.0.2"),
        "another key": server.known.replace(server.host_key, OTHER_PUBLIC),
    }
    await clone(local, server.address(repository.folder), hosts[known])
    end = await local.until("succeeded", "failed")
    said = "\n".join(await log_text(local.backend))
    assert (end.kind, end.reason, end.started_at) == ("failed", "git", None)
    assert "Host key verification failed" in said
    assert server.offered == []
    assert server.commands == []


async def test_another_key_is_refused_and_none_of_the_machines_is_tried(
    local: Watched, server: SshServer, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/no-such-agent")
    await clone(local, server.address(repository.folder), server.known, private=OTHER_PRIVATE)
    end = await local.until("succeeded", "failed")
    assert (end.kind, end.reason) == ("failed", "git")
    assert {*server.offered} == {OTHER_PUBLIC}
    assert server.commands == []


ADDRESSES = ("ssh://-oProxyCommand=touch${IFS}%s/touched/a", "ssh://git@-x/a", "git@h:a;touch %s/touched")


@pytest.mark.parametrize("address", ADDRESSES)
async def test_an_address_is_no_option_and_no_command(local: Watched, tmp_path: Path, address: str) -> None:
    """Whoever got it past the rules."""
    await clone(local, address.replace("%s", str(tmp_path)), "host key\n")
    assert (await local.until("succeeded", "failed")).reason == "git"
    assert not (tmp_path / "touched").exists()


async def test_who_is_told_to_go_while_a_server_is_silent_leaves_no_key(
    local: Watched, repository: Repository, tmp_path: Path
) -> None:
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await clone(local, f"ssh://git@127.0.0.1:{port}{repository.folder}", f"[127.0.0.1]:{port} {PUBLIC}\n")
    async with asyncio.timeout(60):
        await asked.wait()
    assert (await local.until("starting", "failed")).kind == "starting"
    await local.backend.delete(KEY, 1, 5)
    assert (await local.until("stopped", "failed")).kind == "stopped"
    server.close()
    assert not Path("/dev/shm/muster-clone").exists(), "it lies in the pod's own memory"
    for file in (tmp_path / "data").rglob("*"):
        assert not file.is_file() or lines_of(PRIVATE)[0].encode() not in file.read_bytes(), file
