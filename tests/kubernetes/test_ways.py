"""Ways into pods through a real API server: what goes through, how it ends, and what the agent needs for it.

kwok plays the kubelet with Kubernetes' own streaming code: commands run on this machine, in the folder of the simulated
cluster; `attach` follows the log of all containers; port 7 of each pod gives back what it is sent.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from development.kubernetes.control_plane import ControlPlane
from development.kubernetes.simulated.programs import ECHO_PORT
from events.channels import CONNECT, DATA, END, EOF, FRAME_BYTES, RESET, RESIZE, STDERR, STDIN, STDOUT, TAKEN
from events.cluster_protocol import SessionOpen
from services.agent.backends.interface import NoWayError, Way, WayEnd
from services.agent.backends.kubernetes import ways
from services.runtime.forwarding import READ_BYTES, frame_of
from tests.agent.given import KEY, WORKLOAD, run_pod
from tests.kubernetes.given import KubernetesWatched, open_kubernetes

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]
MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes"
ACCOUNT = "muster-agent"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "LINGER_SECONDS", 0.5)


@pytest.fixture
async def cluster(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[KubernetesWatched]:
    watched = await open_kubernetes(control_plane, tmp_path, nodes=1)
    yield watched
    await watched.close()


async def running(cluster: KubernetesWatched, **more: Any) -> None:
    await cluster.backend.apply(run_pod(1, node_name=cluster.node, **cluster.run, **more))
    await cluster.until("running")


def asked(*command: str, **more: Any) -> SessionOpen:
    kind = more.pop("kind", "exec")
    return SessionOpen(session_id="s", kind=kind, workload_id=WORKLOAD, pod_key=KEY, token=1, command=command, **more)


async def told(way: Way) -> tuple[bytes, bytes, WayEnd]:
    """What it wrote, and how it ended."""
    out = {STDOUT: b"", STDERR: b""}
    try:
        async with asyncio.timeout(60):
            async for frame in way.frames():
                assert len(frame) <= FRAME_BYTES
                out[frame[0]] += frame[1:]
        return out[STDOUT], out[STDERR], way.end()
    finally:
        await way.close()


async def test_what_a_command_reads_and_writes_and_its_end_come_through(cluster: KubernetesWatched) -> None:
    await running(cluster)
    blob = bytes(range(256)) * 2000
    # kwok passes on neither the end of input nor exit codes: tests/agent/kubernetes/test_ways.py has those.
    script = f"head -c {len(blob)}; echo bad >&2"
    way = await cluster.backend.open_way(asked("/bin/sh", "-c", script, stdin=True))
    reading = asyncio.create_task(told(way))
    for at in range(0, len(blob), FRAME_BYTES - 1):
        await way.take(bytes((STDIN,)) + blob[at : at + FRAME_BYTES - 1])
    await way.take(bytes((END,)))
    out, err, end = await reading
    assert (out == blob, err, end) == (True, b"bad\n", WayEnd("ended", "", 0))
    _, _, end = await told(await cluster.backend.open_way(asked("no-such-program")))
    assert (end.reason, end.exit_code) == ("command_not_found", 127)


async def test_a_terminal_has_its_size_and_can_be_made_larger(cluster: KubernetesWatched) -> None:
    await running(cluster)
    script = (
        'read go && stty size && read more && stty size && echo "got $more" && sleep 0.5'  # kwok loses what is last
    )
    way = await cluster.backend.open_way(asked("/bin/sh", "-c", script, stdin=True, tty=True, columns=80, rows=24))
    reading = asyncio.create_task(told(way))
    await asyncio.sleep(0.3)
    await way.take(bytes((STDIN,)) + b"go\n")
    await asyncio.sleep(0.3)
    await way.take(bytes((RESIZE,)) + b'{"columns": 132, "rows": 50}')
    await way.take(bytes((RESIZE,)) + b'{"columns": -1, "rows": "x"}')
    await asyncio.sleep(0.3)
    await way.take(bytes((STDIN,)) + b"word\n")
    out, err, end = await reading
    assert out.split() == [b"go", b"24", b"80", b"word", b"50", b"132", b"got", b"word"]
    assert (err, end.exit_code) == (b"", 0)


async def test_whoever_attaches_sees_what_is_written_from_then_on(cluster: KubernetesWatched) -> None:
    await running(cluster)
    for more, words in (({"stdin": True}, "--stdin"), ({"stdin": True, "tty": True}, "--stdin")):
        with pytest.raises(NoWayError, match=words) as refused:
            await cluster.backend.open_way(asked(kind="attach", **more))
        assert refused.value.code == "no_stdin"
    way = await cluster.backend.open_way(asked(kind="attach"))
    frames = aiter(way.frames())
    upcoming = asyncio.ensure_future(anext(frames))
    await asyncio.sleep(0.5)
    line = f"written-{secrets.token_hex(4)}"
    with cluster.plane.container_log.open("a") as log:
        log.write(f"2026-01-01T00:00:00.000000000Z stdout F {line}\n")
    async with asyncio.timeout(60):
        assert (await upcoming) == bytes((STDOUT,)) + line.encode() + b"\n"
    await cluster.backend.delete(KEY, 1, 0)
    async with asyncio.timeout(60):
        assert [frame async for frame in frames] == []
    assert way.end().reason == "pod_ended"
    await way.close()


async def test_a_command_ends_with_its_pod(cluster: KubernetesWatched) -> None:
    await running(cluster)
    way = await cluster.backend.open_way(asked("/bin/sh", "-c", "echo up; read line", stdin=True))
    frames = aiter(way.frames())
    assert await anext(frames) == bytes((STDOUT,)) + b"up\n"
    await cluster.backend.delete(KEY, 1, 0)
    async with asyncio.timeout(60):
        assert [frame async for frame in frames] == []
    assert way.end().reason == "pod_ended"
    await way.close()
    for wrong in (asked("true"), replace(asked("true"), workload_id="x"), replace(asked("true"), token=2)):
        with pytest.raises(NoWayError) as refused:
            await cluster.backend.open_way(wrong)
        assert refused.value.code == "pod_not_running"


async def test_ports_are_reached_and_one_where_nobody_listens_says_so(
    cluster: KubernetesWatched, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running(cluster)
    way = await cluster.backend.open_way(asked(kind="port-forward", ports=(ECHO_PORT, 81)))
    frames = aiter(way.frames())

    async def upcoming() -> bytes:
        async with asyncio.timeout(60):
            return await anext(frames)

    blob = secrets.token_bytes(READ_BYTES)
    for number in (1, 2):
        await way.take(frame_of(CONNECT, number, ECHO_PORT.to_bytes(2)))
        await way.take(frame_of(DATA, number, blob))
    got = {1: b"", 2: b""}
    taken = 0
    while taken < 2 or any(len(data) < len(blob) for data in got.values()):
        frame = await upcoming()
        number = int.from_bytes(frame[1:5])
        if frame[0] == TAKEN:
            taken += 1
        else:
            assert frame[0] == DATA, frame
            got[number] += frame[5:]
            await way.take(frame_of(TAKEN, number))
    assert got == {1: blob, 2: blob}
    # The end of one direction has no word there: the connection is closed once nothing more comes.
    monkeypatch.setattr(ways, "LEFT_SECONDS", 0.2)
    await way.take(frame_of(EOF, 1))
    assert await upcoming() == frame_of(EOF, 1)
    for number, port, words in ((3, 81, b"port 81"), (4, 82, b"none of those")):
        await way.take(frame_of(CONNECT, number, port.to_bytes(2)))
        frame = await upcoming()
        assert (frame[0], frame[1:5], words in frame) == (RESET, number.to_bytes(4), True)
    monkeypatch.setattr(ways, "MOST_PORTS_OPEN", 1)
    await way.take(frame_of(CONNECT, 5, ECHO_PORT.to_bytes(2)))
    assert b"lead into this cluster" in await upcoming()
    await way.close()


async def test_without_the_optional_role_each_way_is_refused_by_its_name_and_with_it_opens(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    plane = control_plane
    files = ("namespace.yaml", "accounts.yaml", "roles.yaml", "ways.yaml")
    documents = {name: [*yaml.safe_load_all((MANIFESTS / name).read_text())] for name in files}
    for name in files[:3]:
        plane.apply(documents[name])
    for one in reversed(documents["ways.yaml"]):
        plane.apply([one])
        plane.admin("DELETE", _path(one))
    token = plane.service_account_token("muster-system", ACCOUNT)
    # Its own ConfigMaps and Lease are in the namespace in which it has the rights for that.
    cluster = await open_kubernetes(
        plane, tmp_path, nodes=1, kubeconfig=plane.kubeconfig(token), namespace="muster-system"
    )
    try:
        await running(cluster)
        requests = (asked("true"), asked(kind="attach"), asked(kind="port-forward", ports=(ECHO_PORT,)))
        for request in requests:
            with pytest.raises(
                NoWayError, match=r"ClusterRole muster-agent-ways, with `kubectl apply -f .*ways.yaml`"
            ) as no:
                await cluster.backend.open_way(request)
            assert no.value.code == "not_allowed"
        plane.apply(documents["ways.yaml"])
        try:
            async with asyncio.timeout(60):
                while True:
                    try:
                        ways_ = [await cluster.backend.open_way(request) for request in requests]
                        break
                    except NoWayError:
                        await asyncio.sleep(0.2)
            for way in ways_:
                await way.close()
        finally:
            for one in reversed(documents["ways.yaml"]):
                plane.admin("DELETE", _path(one))
    finally:
        await cluster.close()


def _path(role: dict[str, Any]) -> str:
    return f"/apis/rbac.authorization.k8s.io/v1/{role['kind'].lower()}s/{role['metadata']['name']}"
