"""Ways into pods of a Kubernetes cluster: the protocol of its channels, what of it no simulated kubelet carries, and
what a server may do that keeps to none. On a real WebSocket server that takes the place of the API server.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import msgspec
import pytest
from kubernetes_asyncio.client import ApiClient, Configuration
from msgspec.structs import replace
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from events.channels import CONNECT, DATA, END, FRAME_BYTES, RESET, RESIZE, STATUS, STDERR, STDIN, STDOUT, TAKEN
from events.cluster_protocol import SessionOpen
from services.agent.backends.interface import NoWayError, Way, WayEnd
from services.agent.backends.kubernetes import ways
from services.agent.backends.kubernetes.act.objects import (
    MAIN,
    Container,
    ContainerState,
    ContainerStatus,
    Pod,
    PodMeta,
    PodSpec,
    PodStatus,
    Running,
    Terminated,
)
from services.agent.backends.kubernetes.client import KubeClient, Timeouts
from services.agent.backends.kubernetes.ways import (
    CHANNELS,
    CLOSE,
    MOST_PORTS_OPEN,
    PORTS,
    ClusterConnections,
    Place,
    PortForward,
    end_of,
    open_streams,
)
from services.runtime.forwarding import frame_of

pytestmark = pytest.mark.anyio
RUNS = ContainerState(running=Running())
POD = Pod(
    metadata=PodMeta(name="train-main-0", namespace="muster-vision", uid="u1"),
    spec=PodSpec(containers=(Container(name=MAIN), Container(name="sidecar", stdin=True, tty=True))),
    status=PodStatus(phase="Running", container_statuses=(ContainerStatus(name=MAIN, state=RUNS),)),
)
CHUNK = 64 * 1024

type Serves = Callable[[ServerConnection], Awaitable[None]]


class Api:
    """A server, the pod as it is seen, and which other agent acts."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.pod: Pod | None = POD
        self.other = ""
        self.place: Place

    def end_pod(self, exit_code: int) -> None:
        state = ContainerState(terminated=Terminated(exit_code=exit_code))
        status = PodStatus(phase="Failed", container_statuses=(ContainerStatus(name=MAIN, state=state),))
        self.pod = replace(POD, status=status)


@asynccontextmanager
async def api(
    serves: Serves, *, protocol: str = CHANNELS, refuses: tuple[int, str, str] | None = None
) -> AsyncGenerator[Api]:
    made = Api()

    def look(_: ServerConnection, request: Request) -> Response | None:
        made.asked.append(request.path)
        if refuses is None:
            return None
        status, reason, message = refuses
        body = msgspec.json.encode({"kind": "Status", "status": "Failure", "reason": reason, "message": message})
        return Response(status, HTTPStatus(status).phrase, Headers({"Content-Length": str(len(body))}), body)

    async def handle(connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            await serves(connection)

    server: Server
    async with serve(
        handle,
        "127.0.0.1",
        0,
        subprotocols=[Subprotocol(protocol)],
        process_request=look,
        max_size=None,
        compression=None,
    ) as server:
        port = server.sockets[0].getsockname()[1]
        client = KubeClient(ApiClient(Configuration(host=f"http://127.0.0.1:{port}")), timeouts=Timeouts())
        made.place = Place(client, POD, now=lambda: made.pod, other=lambda: made.other)
        try:
            yield made
        finally:
            await client.close()


def asked(*command: str, **more: Any) -> SessionOpen:
    kind = more.pop("kind", "exec")
    return SessionOpen(session_id="s", kind=kind, workload_id="w", pod_key="k", token=1, command=command, **more)


async def told(way: Way) -> tuple[list[bytes], WayEnd]:
    try:
        async with asyncio.timeout(60):
            return [frame async for frame in way.frames()], way.end()
    finally:
        await way.close()


def failure(message: str, *causes: dict[str, str], reason: str = "") -> bytes:
    body = {"status": "Failure", "reason": reason, "message": message, "details": {"causes": causes}}
    return msgspec.json.encode(body)


@pytest.mark.parametrize(
    ("status", "end"),
    [
        (b'{"metadata":{},"status":"Success"}', WayEnd("ended", "", 0)),
        (failure("it ended", {"reason": "ExitCode", "message": "7"}, reason="NonZeroExitCode"), WayEnd("ended", "", 7)),
        (failure("?", {"reason": "ExitCode", "message": "-1"}), WayEnd("failed", "?")),
        (failure('exec: "nix": executable file not found in $PATH'), ("command_not_found", 127)),
        (failure("exec /x: no such file or directory"), ("command_not_found", 127)),
        (failure('exec: "/etc/hostname": permission denied'), ("not_executable", 126)),
        (failure("x" * 5000), WayEnd("failed", "x" * 300)),
        (failure(""), WayEnd("failed", "the cluster could not do it, and does not say why")),
        (b"dial tcp: refused", WayEnd("failed", "dial tcp: refused")),
        (b"\xff{", WayEnd("failed", "\ufffd{")),
        (b"", None),
    ],
)
def test_the_error_channel_says_how_a_command_ended(status: bytes, end: Any) -> None:
    said = end_of(status)
    assert end == ((said.reason, said.exit_code) if isinstance(end, tuple) and said is not None else said)


async def test_input_ends_the_terminal_has_a_size_and_large_messages_are_cut_to_frames() -> None:
    heard: list[bytes] = []

    async def serves(connection: ServerConnection) -> None:
        await connection.send(bytes((STDOUT,)))
        async for message in connection:
            assert isinstance(message, bytes)
            heard.append(message)
            if message == bytes((CLOSE, STDIN)):
                break
        await connection.send("no bytes")
        await connection.send(b"")
        await connection.send(bytes((77,)) + b"of no channel")
        await connection.send(bytes((STDERR,)) + b"e")
        await connection.send(bytes((STDOUT,)) + b"o" * (3 * FRAME_BYTES))
        await connection.send(bytes((STATUS,)) + b'{"status": "Success"}')

    async with api(serves) as made:
        way = await open_streams(asked("sh", "-c", "a&b", stdin=True, tty=True, columns=80, rows=24), made.place)
        for frame in (bytes((STDIN,)) + b"typed", bytes((RESIZE,)) + b'{"columns": 9, "rows": 5}', bytes((END,))):
            await way.take(frame)
        frames, end = await told(way)
    assert [msgspec.json.decode(one[1:]) for one in heard if one[0] == RESIZE] == [
        {"Width": 80, "Height": 24},
        {"Width": 9, "Height": 5},
    ]
    assert [one for one in heard if one[0] != RESIZE] == [bytes((STDIN,)) + b"typed", bytes((CLOSE, STDIN))]
    path = "/api/v1/namespaces/muster-vision/pods/train-main-0/exec"
    assert made.asked == [
        f"{path}?container=main&stdin=true&stdout=true&stderr=false&tty=true&command=sh&command=-c&command=a%26b"
    ]
    assert all(len(frame) <= FRAME_BYTES for frame in frames)
    assert b"".join(frame[1:] for frame in frames if frame[0] == STDOUT) == b"o" * (3 * FRAME_BYTES)
    assert ([frame for frame in frames if frame[0] == STDERR], end.exit_code) == ([bytes((STDERR,)) + b"e"], 0)


async def test_nothing_is_typed_into_a_command_that_was_opened_without_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "LINGER_SECONDS", 0.1)
    heard: list[bytes | str] = []

    async def serves(connection: ServerConnection) -> None:
        async with asyncio.timeout(0.3):
            with contextlib.suppress(TimeoutError):
                heard.append(await connection.recv())

    async with api(serves) as made:
        way = await open_streams(asked("cat"), made.place)
        for frame in (bytes((STDIN,)) + b"typed", bytes((END,)), bytes((RESIZE,)) + b'{"columns": 9, "rows": 5}'):
            await way.take(frame)
        await told(way)
    assert heard == []


async def cuts(connection: ServerConnection) -> None:
    connection.transport.abort()


async def floods_with_one(connection: ServerConnection) -> None:
    await connection.send(bytes((STDOUT,)) + b"o" * (2 * 2**20))
    await connection.wait_closed()


@pytest.mark.parametrize("serves", [cuts, floods_with_one])
async def test_a_connection_that_breaks_is_a_failure_and_no_end_of_the_command(
    serves: Serves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "LINGER_SECONDS", 0.1)
    async with api(serves) as made:
        frames, end = await told(await open_streams(asked("true"), made.place))
    assert (frames, end) == ([], WayEnd("failed", "the connection to the pod broke off"))


@pytest.mark.parametrize("kind", ["exec", "attach"])
@pytest.mark.parametrize("over", ["the pod ends", "another agent acts", "another run has its name"])
async def test_a_way_ends_with_its_pod_and_with_its_agent(
    kind: str, over: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "LINGER_SECONDS", 0.1)

    async def serves(connection: ServerConnection) -> None:
        await connection.wait_closed()

    async with api(serves) as made:
        way = await open_streams(asked("true", kind=kind), made.place)
        reading = asyncio.create_task(told(way))
        await asyncio.sleep(0.1)
        match over:
            case "the pod ends":
                made.end_pod(3)
            case "another agent acts":
                made.other = "agent-2"
            case _:
                made.pod = replace(POD, metadata=replace(POD.metadata, uid="u2"))
        _, end = await reading
        expected = {"the pod ends": ("pod_ended", 3), "another agent acts": ("agent_stopped", None)}
        assert (end.reason, end.exit_code) == expected.get(over, ("pod_ended", None))
        if over == "another run has its name":
            with pytest.raises(NoWayError):
                await open_streams(asked("true"), made.place)


LACKS = 'pods "p" is forbidden: User "u" cannot get resource "pods/exec" in API group "" in the namespace "n"'
DENIES = "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'x' denied request: not here"


@pytest.mark.parametrize(
    ("refuses", "code", "words"),
    [
        ((403, "Forbidden", LACKS), "not_allowed", "gives it the ClusterRole muster-agent-ways"),
        ((403, "Forbidden", DENIES), "not_allowed", "does not allow it: pods .* not here"),
        ((404, "NotFound", 'pods "p" not found'), "pod_not_running", "not there any more"),
        ((400, "BadRequest", "container main is not valid"), "not_started", "container main is not valid"),
        ((503, "ServiceUnavailable", "later"), "cluster_away", "later"),
    ],
)
async def test_what_the_api_server_refuses_is_told_in_its_words_or_better_ones(
    refuses: tuple[int, str, str], code: str, words: str
) -> None:
    async with api(cuts, refuses=refuses) as made:
        with pytest.raises(NoWayError, match=words) as refused:
            await open_streams(asked("true"), made.place)
    assert refused.value.code == code


async def test_a_server_that_does_not_speak_these_channels_is_refused() -> None:
    async with api(cuts, protocol="v4.channel.k8s.io") as made:
        with pytest.raises(NoWayError) as refused:
            await open_streams(asked("true"), made.place)
    assert refused.value.code == "not_started"


async def test_a_pod_that_floods_a_reader_who_stands_still_is_held_up() -> None:
    sent = 0

    async def serves(connection: ServerConnection) -> None:
        nonlocal sent
        for _ in range(1000):
            await connection.send(bytes((STDOUT,)) + sent.to_bytes(8) + b"o" * CHUNK)
            sent += 1
        await connection.send(bytes((STATUS,)) + b'{"status": "Success"}')

    async with api(serves) as made:
        way = await open_streams(asked("yes"), made.place)
        await _stands_still(lambda: sent)
        assert sent * CHUNK < 32 * 2**20  # what the kernel's buffers hold, and a little
        size = 0
        async for frame in way.frames():
            size += len(frame) - 1
        assert (size, way.end().exit_code) == (1000 * (CHUNK + 8), 0)
        await way.close()


async def test_what_is_typed_into_a_command_that_reads_nothing_waits_and_the_way_can_be_closed() -> None:
    over = asyncio.Event()

    async def serves(connection: ServerConnection) -> None:
        connection.transport.pause_reading()
        await over.wait()
        connection.transport.abort()

    taken = 0
    async with api(serves) as made:
        way = await open_streams(asked("sleep", stdin=True), made.place)

        async def types() -> None:
            nonlocal taken
            while True:
                await way.take(bytes((STDIN,)) + b"i" * (FRAME_BYTES - 1))
                taken += 1

        typing = asyncio.create_task(types())
        await _stands_still(lambda: taken)
        assert taken * FRAME_BYTES < 32 * 2**20
        typing.cancel()
        async with asyncio.timeout(60):
            await way.close()
        over.set()


async def _stands_still(count: Callable[[], int]) -> None:
    before = -1
    while count() != before:
        before = count()
        await asyncio.sleep(0.2)


HEAD = (80).to_bytes(2, "little")


async def test_a_forwarded_connection_is_a_websocket_with_a_head_on_each_channel() -> None:
    async def serves(connection: ServerConnection) -> None:
        await connection.send(b"\0" + HEAD[:1])
        await connection.send(b"\1" + HEAD)
        await connection.send(b"\0" + HEAD[1:] + b"hel")
        await connection.send(b"\0lo")
        assert await connection.recv() == b"\0asked"
        await connection.send(b"\1no more of it")
        await connection.wait_closed()

    async with api(serves, protocol=PORTS) as made:
        of_cluster = ClusterConnections()
        way = PortForward(asked(kind="port-forward", ports=(80,)), made.place, of_cluster)
        await way.take(frame_of(CONNECT, 1, (80).to_bytes(2)))
        frames = aiter(way.frames())
        assert [await anext(frames), await anext(frames)] == [frame_of(DATA, 1, b"hel"), frame_of(DATA, 1, b"lo")]
        await way.take(frame_of(DATA, 1, b"asked"))
        assert [await anext(frames), await anext(frames)] == [frame_of(TAKEN, 1), frame_of(RESET, 1, b"no more of it")]
        made.end_pod(0)
        assert [frame async for frame in frames] == []
        assert way.end().reason == "pod_ended"
        await way.close()
        assert of_cluster.open == 0
    assert made.asked == ["/api/v1/namespaces/muster-vision/pods/train-main-0/portforward?ports=80"]


async def test_sessions_of_one_person_leave_connections_to_others() -> None:
    async def serves(connection: ServerConnection) -> None:
        await connection.wait_closed()

    async with api(serves, protocol=PORTS) as made:
        of_cluster = ClusterConnections()
        of_cluster.open = MOST_PORTS_OPEN - 3  # of the others
        greedy, other = (PortForward(asked(kind="port-forward", ports=(80,)), made.place, of_cluster) for _ in range(2))
        for number in (1, 2, 3):
            await greedy.take(frame_of(CONNECT, number, (80).to_bytes(2)))
            while of_cluster.open < min(MOST_PORTS_OPEN - 3 + number, MOST_PORTS_OPEN - 1):
                await asyncio.sleep(0.01)
        async with asyncio.timeout(60):
            refused = await anext(aiter(greedy.frames()))
        assert refused[:5] == frame_of(RESET, 3)
        assert b"this session has a share of what is left" in refused
        await other.take(frame_of(CONNECT, 1, (80).to_bytes(2)))
        async with asyncio.timeout(60):
            while of_cluster.open < MOST_PORTS_OPEN:
                await asyncio.sleep(0.01)
        await greedy.close()
        await other.close()
        assert of_cluster.open == MOST_PORTS_OPEN - 3
