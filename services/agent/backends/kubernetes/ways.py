"""Ways into pods of a Kubernetes cluster, through the API server: the subresources `exec`, `attach` and `portforward`.

What goes through is that of Kubernetes: messages of `v5.channel.k8s.io` for a command and for the pod's own process,
and one WebSocket of `v4.channel.k8s.io` for each connection to a port. That has no word for the end of one direction.
"""

import asyncio
import contextlib
import errno
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import ClientError, ClientWebSocketResponse, WSMsgType

from events.channels import END, RESIZE, STATUS, STDERR, STDIN, STDOUT
from events.cluster_protocol import SessionOpen
from events.codec import UNDECODABLE
from services.agent.backends.interface import NoWayError, WayEnd
from services.agent.backends.kubernetes.act.objects import MAIN, Pod
from services.agent.backends.kubernetes.client import ApiError, KubeClient
from services.agent.backends.kubernetes.read.observe import main_status
from services.agent.backends.local.ways import LOOK_SECONDS, MOST_SIZE, POD_ENDED, READ_BYTES, size_of
from services.runtime.forwarding import MOST_REASON_BYTES, Forwarding, RefusedError

CHANNELS: Final = "v5.channel.k8s.io"
"""Spoken by API servers from Kubernetes 1.30 on, as is the admission policy. Before it, no input could end."""
PORTS: Final = "v4.channel.k8s.io"
CLOSE: Final = 255
"""To the pod: nothing more comes on the channel that follows."""
PORT_ERROR: Final = 1
"""Channel of a forwarded connection: why it cannot be, as text. Channel 0 is its data."""
PORT_HEAD_BYTES: Final = 2
"""That come first on each of the two: the port."""
MOST_STATUS_BYTES: Final = 64 * 1024
MOST_MESSAGE_CHARACTERS: Final = 300
LINGER_SECONDS: Final = 3.0
"""Between the end of a pod and that it is seen here, and between that and what is still passed on of it."""
LEFT_SECONDS: Final = 60.0
"""How long a connection whose client will send nothing more may be silent: its server is never told that, and might
hold it open for ever."""
MOST_PORTS_OPEN: Final = 500
"""Connections to ports of all pods of the cluster at a time: each is a WebSocket of its own to the API server."""
REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
"""Where everybody may ask what they may."""
ROLE: Final = "muster-agent-ways"
NOT_ALLOWED: Final = (
    f"the agent of this cluster may not open ways into pods: its administrator gives it the ClusterRole {ROLE}, with "
    "`kubectl apply -f deploy/kubernetes/ways.yaml`"
)
_LACKS: Final = re.compile(r"cannot \w+ resource")
"""Words of a refusal for want of a right; other refusals are those of a policy of the cluster."""
_KILLED: Final = 137
_NOT_FOUND: Final = re.compile(r"executable file .*not found|no such file or directory", re.IGNORECASE)
_NOT_EXECUTABLE: Final = re.compile(r"permission denied|exec format error", re.IGNORECASE)


class _Cause(msgspec.Struct):
    reason: str = ""
    message: str = ""


class _Details(msgspec.Struct):
    causes: tuple[_Cause, ...] = ()


class _Status(msgspec.Struct):
    """What the error channel says at the end."""

    status: str = ""
    message: str = ""
    details: _Details | None = None


class _Answer(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    """SelfSubjectAccessReview."""

    status: _Answer


class Place:
    """The run of a pod that ways lead into."""

    def __init__(
        self, client: KubeClient, pod: Pod, *, now: Callable[[], Pod | None], other: Callable[[], str]
    ) -> None:
        """`now`: what stands under its key. `other`: which agent acts in our place, whose heartbeats do not tell of our
        sessions.
        """
        self.client = client
        self.pod = pod
        self._now = now
        self._other = other

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.pod.metadata.namespace}/pods/{self.pod.metadata.name}"

    def _seen(self) -> Pod | None:
        pod = self._now()
        return pod if pod is not None and pod.metadata.uid == self.pod.metadata.uid else None

    @property
    def live(self) -> bool:
        """Whether its container runs, as far as it is known here."""
        pod = self._seen()
        if pod is None or pod.ended:
            return False
        status = main_status(pod)
        return status is not None and status.state.running is not None

    @property
    def exit_code(self) -> int | None:
        """Of its own process."""
        pod = self._seen()
        status = None if pod is None else main_status(pod)
        ended = None if status is None else status.state.terminated
        return None if ended is None else ended.exit_code

    @property
    def ours(self) -> bool:
        """Whether this agent is still the one that acts."""
        return not self._other()

    async def over(self, *, seconds: float = float("inf")) -> bool:
        """Whether the run is over, or another agent's by now, waited for so long at most."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + seconds
        while self.live and self.ours and loop.time() < give_up:
            await asyncio.sleep(LOOK_SECONDS)
        return not (self.live and self.ours)

    def end(self) -> WayEnd:
        """Of a way that was open when it was over."""
        if not self.ours:
            return WayEnd("agent_stopped", "another agent of its cluster acts now")
        return WayEnd(POD_ENDED, "the pod ended", self.exit_code)


async def open_streams(request: SessionOpen, place: Place) -> "Streams":
    """Of a command, or of the pod's own process. Raises NoWayError."""
    container = place.pod.main
    tty = request.tty
    if request.kind == "attach":
        if request.stdin and (container is None or not container.stdin):
            raise NoWayError("no_stdin", "its process reads nothing: submit it with --stdin, or attach without -i")
        if request.tty and (container is None or not container.tty):
            raise NoWayError("no_stdin", "its process has no terminal: submit it with --tty, or attach without -t")
        tty = container is not None and container.tty  # what it writes comes as one or the other, whoever looks
    # A terminal has one output, and what is not given is true for the API server.
    chosen = {"stdin": request.stdin, "stdout": True, "stderr": not tty, "tty": tty}
    query = [("container", MAIN), *((name, str(value).lower()) for name, value in chosen.items())]
    query += [("command", word) for word in request.command]
    try:
        socket = await place.client.socket(f"{place.path}/{request.kind}", query, protocol=CHANNELS)
    except ApiError as error:
        raise no_way(error) from error
    way = Streams(socket, place, request, tty=tty)
    # Its name may have become that of another run while the way was opened: it is this agent that lets one go.
    if not place.live:
        await way.close()
        raise NoWayError("pod_not_running", "the pod ended a moment ago")
    try:
        if tty and 0 < request.columns <= MOST_SIZE and 0 < request.rows <= MOST_SIZE:
            await way.resize(request.columns, request.rows)
    except BaseException:
        await way.close()
        raise
    return way


def no_way(error: ApiError) -> NoWayError:
    if error.reason == "Forbidden":
        lacks = _LACKS.search(error.message) is not None
        return NoWayError("not_allowed", NOT_ALLOWED if lacks else f"the cluster does not allow it: {error.message}")
    if error.status == HTTPStatus.NOT_FOUND:
        return NoWayError("pod_not_running", "this run of the pod is not there any more")
    if error.unreachable:
        return NoWayError("cluster_away", f"the cluster does not answer: {error}")
    return NoWayError("not_started", f"the API server refused: {error}")


class Streams:
    """What goes into a container and comes out of it."""

    def __init__(self, socket: ClientWebSocketResponse, place: Place, request: SessionOpen, *, tty: bool) -> None:
        self._socket = socket
        self._place = place
        self._request = request
        self._tty = tty
        self._end = WayEnd()

    async def frames(self) -> AsyncGenerator[bytes]:
        """What it writes, until it has ended."""
        watching = asyncio.create_task(self._let_go_with_pod())
        status = b""
        try:
            async for message in messages(self._socket):
                channel = message[0]
                if channel == STATUS:
                    status = (status + message[1:])[:MOST_STATUS_BYTES]
                elif channel in (STDOUT, STDERR):
                    for at in range(1, len(message), READ_BYTES):
                        yield message[:1] + message[at : at + READ_BYTES]
            await self._note_end(status)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _let_go_with_pod(self) -> None:
        await self._place.over()
        await asyncio.sleep(LINGER_SECONDS)
        await self._socket.close()

    async def _note_end(self, status: bytes) -> None:
        said = end_of(status)
        attached = self._request.kind == "attach"
        # With the pod, all that is in it is killed; the word that the pod is over comes a moment later.
        doubtful = attached or said is None or said.exit_code in (None, _KILLED)
        if doubtful and await self._place.over(seconds=LINGER_SECONDS):
            end = self._place.end()
            self._end = end if attached or said is None else WayEnd(end.reason, end.message, said.exit_code)
        elif said is None:
            self._end = WayEnd("failed", "the connection to the pod broke off")
        else:
            self._end = said

    async def take(self, frame: bytes) -> None:
        if not self._request.stdin and frame[0] in (STDIN, END):
            return
        match frame[0]:
            case n if n == STDIN:
                await self._send(frame)
            case n if n == END:
                await self._send(bytes((CLOSE, STDIN)))
            case n if n == RESIZE and self._tty and (size := size_of(frame)) is not None:
                await self.resize(*size)
            case _:
                pass

    async def resize(self, columns: int, rows: int) -> None:
        await self._send(bytes((RESIZE,)) + msgspec.json.encode({"Width": columns, "Height": rows}))

    async def _send(self, message: bytes) -> None:
        """Returns once there is room for more. Where nobody takes it any more, how it ended is told by what comes."""
        with contextlib.suppress(ClientError, OSError):
            await self._socket.send_bytes(message)

    def end(self) -> WayEnd:
        return self._end

    async def close(self) -> None:
        """With a terminal, the kubelet hangs up, which ends what was started at it. Without one, a command only reads
        and writes nothing any more: Kubernetes has no word with which to end it.
        """
        await self._socket.close()


async def messages(socket: ClientWebSocketResponse) -> AsyncIterator[bytes]:
    """Messages with something in them, until there are no more, also where the connection broke."""
    while True:
        message = await socket.receive()
        if message.type is WSMsgType.BINARY:
            if message.data:
                yield message.data
        elif message.type is not WSMsgType.TEXT:
            return


def end_of(status: bytes) -> WayEnd | None:
    """What the error channel said of a command's end; None where it said nothing."""
    try:
        said = msgspec.json.decode(status, type=_Status)
    except UNDECODABLE:
        text = status.decode("utf-8", "replace").strip()
        return WayEnd("failed", text[:MOST_MESSAGE_CHARACTERS]) if text else None
    if said.status == "Success":
        return WayEnd("ended", "", 0)
    for cause in said.details.causes if said.details is not None else ():
        if cause.reason == "ExitCode" and cause.message.isdecimal():
            return WayEnd("ended", "", int(cause.message[:3]))
    message = said.message[:MOST_MESSAGE_CHARACTERS] or "the cluster could not do it, and does not say why"
    if _NOT_FOUND.search(said.message):
        return WayEnd("command_not_found", message, 127)
    if _NOT_EXECUTABLE.search(said.message):
        return WayEnd("not_executable", message, 126)
    return WayEnd("failed", message)


class ClusterConnections:
    """How many there are to ports of pods of this cluster."""

    def __init__(self) -> None:
        self.open = 0


class PortForward(Forwarding):
    """Connections to ports of a pod. Its network is its own: whoever listens there is of the pod."""

    def __init__(self, request: SessionOpen, place: Place, of_cluster: ClusterConnections) -> None:
        super().__init__()
        self._place = place
        self._allowed = frozenset(request.ports)
        self._of_cluster = of_cluster
        self._watching = asyncio.create_task(self._end_with_pod())

    @classmethod
    async def start(cls, request: SessionOpen, place: Place, of_cluster: ClusterConnections) -> "PortForward":
        """Whether it may is asked before anybody connects: the client is told at once. Raises NoWayError."""
        asked = {
            "namespace": place.pod.metadata.namespace,
            "resource": "pods",
            "subresource": "portforward",
            "verb": "get",
        }
        try:
            answer = await place.client.create(REVIEWS, {"spec": {"resourceAttributes": asked}})
        except ApiError as error:
            raise no_way(error) from error
        if not msgspec.json.decode(answer, type=_Review).status.allowed:
            raise NoWayError("not_allowed", NOT_ALLOWED)
        return cls(request, place, of_cluster)

    async def _end_with_pod(self) -> None:
        await self._place.over()
        self.stop()

    async def connect(self, port: int) -> tuple["Pipe", "Pipe"]:
        """Raises RefusedError."""
        if port not in self._allowed:
            raise RefusedError(f"port {port} is none of those that the session was opened for")
        # No session has more than it leaves, so that those of one person do not take all of them.
        if len(self._connections) > MOST_PORTS_OPEN - self._of_cluster.open:
            told = f"{self._of_cluster.open} connections lead into this cluster, of at most {MOST_PORTS_OPEN}"
            raise RefusedError(f"{told}, and this session has a share of what is left; close some")
        self._of_cluster.open += 1
        try:
            socket = await self._place.client.socket(
                f"{self._place.path}/portforward", [("ports", str(port))], protocol=PORTS
            )
        except BaseException as error:
            self._of_cluster.open -= 1
            if isinstance(error, ApiError):
                raise RefusedError(str(no_way(error))) from error
            raise
        pipe = Pipe(socket, self._of_cluster)
        if not self._place.live:
            pipe.close()
            await pipe.wait_closed()
            raise RefusedError("the pod ended")
        return pipe, pipe

    def end(self) -> WayEnd:
        return WayEnd("ended") if self._place.live and self._place.ours else self._place.end()

    async def close(self) -> None:
        self._watching.cancel()
        await super().close()


class Pipe:
    """A connection to one port, both of its directions."""

    def __init__(self, socket: ClientWebSocketResponse, of_cluster: ClusterConnections) -> None:
        self._socket = socket
        self._of_cluster = of_cluster
        self._head = {0: PORT_HEAD_BYTES, PORT_ERROR: PORT_HEAD_BYTES}
        """Bytes that are yet to come first on each channel."""
        self._rest = b""
        self._waiting: list[bytes] = []
        self._ends_in: asyncio.Timeout | None = None
        self._left = False
        """Whether its client sends nothing more."""
        self._closing: asyncio.Task[bool] | None = None

    async def read(self, n: int, /) -> bytes:
        """Raises OSError with what the kubelet says."""
        while not self._rest:
            try:
                async with asyncio.timeout(LEFT_SECONDS if self._left else None) as self._ends_in:
                    message = await self._socket.receive()
            except TimeoutError:
                return b""
            if message.type is not WSMsgType.BINARY:
                return b""
            self._take(message.data)
        data, self._rest = self._rest[:n], self._rest[n:]
        return data

    def _take(self, message: bytes) -> None:
        channel, data = message[:1], message[1:]
        if not channel or channel[0] not in self._head:
            return
        skipped = min(self._head[channel[0]], len(data))
        self._head[channel[0]] -= skipped
        data = data[skipped:]
        if channel[0] == PORT_ERROR and data:
            raise OSError(errno.ECONNREFUSED, data[:MOST_REASON_BYTES].decode("utf-8", "replace"))
        self._rest = data

    def write(self, data: bytes, /) -> None:
        self._waiting.append(data)

    async def drain(self) -> None:
        waiting, self._waiting = self._waiting, []
        for data in waiting:
            try:
                await self._socket.send_bytes(b"\0" + data)
            except ClientError as error:
                raise ConnectionResetError(errno.ECONNRESET, "the connection to the pod broke off") from error

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Its server is not told, and so given a while to say what it still has to."""
        self._left = True
        if self._ends_in is not None:
            with contextlib.suppress(RuntimeError):  # it is not waited for now
                self._ends_in.reschedule(asyncio.get_running_loop().time() + LEFT_SECONDS)

    def close(self) -> None:
        if self._closing is None:
            self._of_cluster.open -= 1
            self._closing = asyncio.create_task(self._socket.close())

    async def wait_closed(self) -> None:
        if self._closing is not None:
            await self._closing
