"""Whatever bytes come from outside: each reader takes them or refuses them by name, and goes on.

Driven are the readers' own handlers, with messages made from the schemas and spoiled; `sites.py` lists the readers.
"""

import asyncio
import base64
import contextlib
import time
import zlib
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import hypothesis.strategies as st
import msgspec
import pytest
import structlog
from hypothesis import HealthCheck, Phase, given, settings
from nats.aio.msg import Msg

from events.actors import Person
from events.aggregate import CLUSTER, WORKLOAD
from events.audit import AuditRecord
from events.cluster_protocol import (
    LogsChunk,
    LogsRequest,
    LogsTaken,
    ObservedCluster,
    ObservedNode,
    ObservedPod,
    RecipeRequest,
    RunPod,
    UsageReport,
    WantedCluster,
    WantedPod,
)
from events.codec import UNDECODABLE
from events.commit import CommitRecord
from events.envelope import (
    AdmittedBatch,
    AdmittedCommand,
    BatchItem,
    BatchReply,
    BatchRequest,
    CommandReply,
    CommandRequest,
    OutcomeUnknown,
    unpacked,
)
from events.ids import cluster_key, incarnation_id
from events.project import CreateProject
from events.subjects import CREATE_WORKLOADS, WANTED_STREAM
from events.workload.kinds import KINDS
from services.agent.agent import Agent
from services.agent.backends.simulated import SimulatedBackend
from services.agent.clock import RealClock
from services.agent.host import AgentHost
from services.agent.logs import LogServer
from services.agent.recipes import Recipes as AgentRecipes
from services.agent.wanted import Wanted
from services.api.body import BadBodyError, read_object
from services.api.log_lines import AgentError, understood
from services.api.operation_log import _audited
from services.cluster_sync.fold import DesiredState
from services.cluster_sync.hear import NotTakenError, understand
from services.cluster_sync.recipes import Recipes
from services.commands import batches
from services.commands.counts import Counts
from services.commands.handle import Commands, serve
from services.commands.limits import CreationCounts, CreationLimits
from services.commands.watch import LogWatch, Room
from services.feed.writer import _commit_id
from services.ownership.gate import Audit, Gate
from services.projector.usage import UsageWriter
from services.runtime.backup.archive import Message
from services.runtime.backup.write import _rest_of_batch
from services.runtime.identity.actors import Actors
from services.runtime.identity.authentication import Authenticator
from services.runtime.identity.directory import Directory
from services.runtime.identity.identities import Identities
from services.runtime.identity.jwks import JwksError, parse_jwks
from services.runtime.log.examination import decoded
from services.runtime.log.fold_snapshots import FoldSnapshots
from services.runtime.log.latest import Latest
from services.runtime.log.log_state import LogState, log_trouble
from services.runtime.log.memory import MemoryEventStore
from services.runtime.log.store import UnreadableMessageError
from services.runtime.nats.bus import CommandClient
from services.runtime.nats.inboxes import logs_inbox
from services.runtime.nats.jetstream_api import StoredMessage
from services.runtime.nats.request_server import RequestServer
from services.runtime.nats.requests import Requests
from services.runtime.process.host import Health
from services.subscriptions.admit import UnreadableRequestError, _Claims, read_sign_in
from services.subscriptions.feed import Place
from services.subscriptions.positions import Positions
from tests.agent.given import NODES
from tests.runtime.test_authentication import EC, NOW, StaticKeys
from tests.support.any_bytes import HEADERS, messages, packed
from tests.support.draws import draws
from tests.support.memory_keys import MemoryKeys

spoiled = settings(
    max_examples=draws(60),
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:Generating overly large repr")]
LIMITS = CreationLimits(living=3, creations_per_hour=6, project_bytes_per_hour=2**20, user_bytes_per_hour=2**20)
CLUSTER_ID = incarnation_id(cluster_key("c"), "add-c")
HERE = WantedCluster(cluster_id=CLUSTER_ID, name="c", kind="simulated")
INBOX = f"{logs_inbox(CLUSTER_ID)}.x"
headers = st.sampled_from(HEADERS)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


class Wire:
    """A connection's other end: keeps what is sent, and answers every question with the same bytes."""

    def __init__(self, answer: bytes = b"") -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.stats = {"reconnects": 0}
        self.is_connected = True
        self._answer = answer

    async def publish(self, subject: str, payload: bytes = b"", **_: Any) -> None:
        self.sent.append((subject, payload))

    async def subscribe(self, *_: Any, **__: Any) -> "Wire":
        return self

    async def unsubscribe(self) -> None: ...

    def new_inbox(self) -> str:
        return "_INBOX_agent.x"

    async def request(self, subject: str, payload: bytes, **_: Any) -> Msg:
        return message(self._answer)

    async def ask(self, *_: Any, **__: Any) -> bytes:
        return self._answer

    async def load(self, *_: Any) -> tuple[int, bytes]:
        return 7, self._answer


def message(data: bytes, *, subject: str = "s", reply: str = "", headers: dict[str, str] | None = None) -> Msg:
    return Msg(_client=cast("Any", None), subject=subject, reply=reply, data=data, headers=headers)


def wire(answer: bytes = b"") -> Any:
    return Wire(answer)


@spoiled
@given(payload=messages(CommitRecord))
def test_the_log(payload: bytes) -> None:
    for subject in ("ev.workload.k", "ev.tenant.default", "ev.void.1", "snap.x"):
        with contextlib.suppress(UnreadableMessageError):
            assert decoded(subject, 1, payload).events


@spoiled
@given(payload=messages(ObservedPod | ObservedNode | ObservedCluster))
def test_observations_in_cluster_sync(payload: bytes) -> None:
    for subject in (f"obs.{CLUSTER_ID}.pod.k", f"obs.{CLUSTER_ID}.node.k", f"obs.{CLUSTER_ID}.cluster", "obs.x.y", "o"):
        with contextlib.suppress(NotTakenError):
            assert understand(subject, payload).said


@spoiled
@given(payload=messages(UsageReport, at=(datetime.now(UTC),)))
async def test_usage_in_the_projector(payload: bytes) -> None:
    await UsageWriter(wire()).receive(message(payload, subject="usage.c"))


@spoiled
@given(payload=messages(WantedPod))
async def test_words_about_pods_at_the_agent(payload: bytes) -> None:
    agent = Agent(HERE, SimulatedBackend(NODES, RealClock()), wire(), Wanted(), version="1")
    keys = agent._take({"k": payload, "other": payload})
    agent._look_at(keys)
    assert len(keys) <= 1


@spoiled
@given(payload=messages(RunPod))
async def test_recipes_at_the_agent(payload: bytes) -> None:
    await AgentRecipes(wire(), "c")._on_answer(message(payload, subject="agent.c.recipes"))


@spoiled
@given(payload=messages(RecipeRequest))
async def test_requests_for_recipes_in_cluster_sync(payload: bytes) -> None:
    compared: list[str] = []
    recipes = Recipes(wire(), DesiredState(), on_wait=lambda _: None, on_unwanted=compared.append)
    await recipes._on_request(message(payload, subject="recipes.c"))
    assert all(subject.startswith("want.c.pod.") for subject in compared)


@spoiled
@given(payload=messages(WantedCluster))
async def test_words_about_clusters_at_the_agent(payload: bytes) -> None:
    AgentHost(wire(), {}, version="1")._take(payload)


@spoiled
@given(
    payload=st.binary(max_size=9),
    reply=st.sampled_from(
        ("", "x", "$JS.ACK", "$JS.ACK.", "$JS.ACK.a.b.c", "$JS.ACK.S.c.1.1.x.1.0", "$JS.ACK.S.c.1.1.²." + "9" * 5_000)
    ),
    headers=headers,
)
async def test_the_inbox_of_who_reads_the_newest_messages(
    payload: bytes, reply: str, headers: dict[str, str] | None
) -> None:
    reader = Latest(wire(), Requests(wire()), WANTED_STREAM, "want.>")
    await reader._on_message(message(payload, reply=reply, headers=headers))
    await reader._on_message(message(b"v", subject="want.k", reply="$JS.ACK.WANTED.c.1.1.1.1700000000.0"))
    newest = (await reader.next(0))[-1]
    assert (newest.subject, newest.data) == ("want.k", b"v")


@spoiled
@given(
    payload=messages(LogsRequest | LogsTaken, follow=(False,), pod=(None,)), reply=st.sampled_from(("", INBOX, "ev.x"))
)
async def test_requests_for_logs_at_the_agent(payload: bytes, reply: str) -> None:
    nc = Wire()
    server = LogServer(cast("Any", nc), CLUSTER_ID, SimulatedBackend(NODES, RealClock()))
    await server._on_request(message(payload, reply=reply))
    answers = server._answers
    assert not [one for one in await asyncio.gather(*answers, return_exceptions=True) if one is not None]
    chunks = [msgspec.json.decode(data, type=LogsChunk) for subject, data in nc.sent if subject == INBOX]
    assert len(chunks) == len(nc.sent), "nothing goes anywhere but to an inbox for logs"
    assert all(chunk.end and chunk.error for chunk in chunks), "no such run is there"


@spoiled
@given(payload=messages(LogsChunk), headers=headers)
def test_logs_at_the_api(payload: bytes, headers: dict[str, str] | None) -> None:
    with contextlib.suppress(AgentError):
        for line in understood(message(payload, headers=headers)).lines:
            line.at.astimezone(UTC)


PACKED = (*(b64encode(zlib.compress(text)).decode() for text in (b"[]", b"[{}]", b"[")), "", "?")
"""What may stand for the items of a batch."""


@spoiled
@given(payload=messages(BatchItem, kind=tuple(KINDS), distributed=(None,)))
def test_items_of_a_batch(payload: bytes) -> None:
    with contextlib.suppress(*UNDECODABLE):
        assert all(item.command.kind in KINDS for item in unpacked(zlib.compress(b"[" + payload + b"]")))


@spoiled
@given(
    payload=messages(AdmittedCommand) | messages(AdmittedBatch, packed=PACKED),
    service=st.sampled_from(("admitted", "system.scheduler", "system.api")),
    name=st.sampled_from(("X", CREATE_WORKLOADS)),
)
async def test_commands(payload: bytes, service: str, name: str) -> None:
    nc, store = Wire(), MemoryEventStore()
    directory, counts = (
        Directory(store),
        Counts(
            store,
            LIMITS,
        ),
    )
    await directory.start()
    counting = asyncio.create_task(counts.run())
    commands = Commands(store=store, keys=MemoryKeys(), directory=directory, counts=counts)
    many = batches.Batches(commands, store=store, keys=MemoryKeys(), counts=counts)
    handle = batches.serve(cast("Any", nc), many, serve(cast("Any", nc), commands))
    server = RequestServer(cast("Any", nc), handle, subjects=(), queue="q")
    try:
        await server._serve(message(payload, subject=f"cmd.{service}.{name}", reply="r"))
    finally:
        counting.cancel()
        await directory.close()
    assert_answered(nc)


@spoiled
@given(payload=messages(Person))
async def test_records_of_people(payload: bytes) -> None:
    nc, actor = cast("Any", Wire()), "a_" + 26 * "a"
    actors = Actors(nc, nc)
    actors._take(f"actor.{64 * '0'}.{actor}", payload)
    actors._take("actor.somebody", payload)
    assert actors.subject(actor)


@spoiled
@given(
    payload=messages(CommandRequest, min_seq=(0,), min_roles=(0,), command_id=("c1",))
    | messages(BatchRequest, min_seq=(0,), min_roles=(0,), batch_id=("c1",), packed=PACKED),
    name=st.sampled_from(("X", CREATE_WORKLOADS)),
)
async def test_requests_at_the_gate(payload: bytes, name: str) -> None:
    nc, store = Wire(b'{"stream": "AUDIT", "seq": 1}'), MemoryEventStore()

    async def read_about(_key: str, _seq: int) -> None:
        return None

    actors, directory = Actors(cast("Any", nc), cast("Any", nc)), Directory(store)
    people = Authenticator(StaticKeys(EC), issuer="muster", audience="muster", clock=lambda: NOW)
    gate = Gate(
        connection=cast("Any", nc),
        identities=Identities(people, actors, directory),
        actors=actors,
        directory=directory,
        store=store,
        read_about=read_about,
        audit=Audit(cast("Any", nc)),
        refuse_roles_while_local=False,
    )
    await gate.handle(message(payload, subject=f"cmd.request.{name}", reply="r"))
    assert_answered(nc)


def assert_answered(nc: Wire) -> None:
    (answer,) = [data for subject, data in nc.sent if subject == "r"]
    assert msgspec.json.decode(answer, type=CommandReply | BatchReply)


@spoiled
@given(payload=messages(CommandReply))
async def test_replies_at_whoever_asked(payload: bytes) -> None:
    request = CommandRequest(command_id="c", token="t", command=CreateProject(name="p"))
    answer = await CommandClient(wire(payload)).send(request)
    try:
        assert answer == msgspec.json.decode(payload, type=CommandReply)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        assert isinstance(answer, OutcomeUnknown)


@spoiled
@given(payload=messages(LogState))
async def test_the_state_of_the_log_at_the_api(payload: bytes) -> None:
    assert isinstance(await log_trouble(wire(payload)), str)


@spoiled
@given(payload=messages(Room), headers=headers)
async def test_room_at_commands(payload: bytes, headers: dict[str, str] | None) -> None:
    class Roomy:
        async def fullness(self) -> float:
            return 0.0

    store = cast("Any", Roomy())
    watch = LogWatch(wire(), store, cast("Any", None), Health("commands"), clock=time.monotonic)
    await watch._on_room(message(payload, subject="room.n1", headers=headers))
    assert isinstance(await watch._full(), str)


@pytest.mark.parametrize("total", ["1" + "0" * 400, "-1", "0", str(2**63)])
async def test_a_volume_of_absurd_size_is_no_room_at_all(total: str) -> None:
    watch = LogWatch(wire(), cast("Any", None), cast("Any", None), Health("commands"), clock=time.monotonic)
    await watch._on_room(message(b'{"free_bytes":1,"total_bytes":%b}' % total.encode(), subject="room.n1"))
    assert watch._rooms == {}


@spoiled
@given(payload=messages(AuditRecord))
def test_audit_records_at_the_api(payload: bytes) -> None:
    told = _audited(StoredMessage("audit.tenant", 1, payload, datetime.now(UTC)))
    assert told.at.tzinfo is UTC
    msgspec.json.encode(told)


@spoiled
@given(payload=packed(CreationCounts))
async def test_snapshots_of_counts(payload: bytes) -> None:
    counts = Counts(
        MemoryEventStore(),
        LIMITS,
        wire(payload),
    )
    await counts._load()


@spoiled
@given(part=packed(CreationCounts), name=st.sampled_from(("workload", "cluster", "else")))
async def test_snapshots_of_folds(part: bytes, name: str) -> None:
    for payload in (part, msgspec.msgpack.encode([(name, part)])):
        snapshots = FoldSnapshots(wire(payload), "scheduler", shape_version=1, aggregates=(WORKLOAD, CLUSTER))
        found = await snapshots.load()
        assert found is None or set(found[1]) == {"workload", "cluster"}


@spoiled
@given(payload=messages(CommitRecord))
def test_one_message_of_the_log_at_the_feed_and_a_backup(payload: bytes) -> None:
    assert isinstance(_commit_id(payload), str)
    assert _rest_of_batch(Message(7, "ev.workload.x", "2026-01-01T00:00:00Z", {}, payload)) >= 0


@spoiled
@given(part=packed(None) | st.just(msgspec.msgpack.encode({"sub": Place(7, 1)})))
async def test_snapshots_of_how_far_subscriptions_are(part: bytes) -> None:
    class Found:
        async def load(self, _name: str, _version: int) -> tuple[int, bytes]:
            return 7, part

    positions = Positions(cast("Any", Found()), cast("Any", None))
    await positions.load()
    place = positions.get("sub")
    assert place is None or isinstance(place, Place)


@spoiled
@given(payload=messages(_Claims))
def test_who_signs_in_as_a_subscriber(payload: bytes) -> None:
    with contextlib.suppress(UnreadableRequestError):
        read_sign_in(b"h." + base64.urlsafe_b64encode(payload).rstrip(b"=") + b".s")
    with contextlib.suppress(UnreadableRequestError):
        read_sign_in(payload)


class Key(msgspec.Struct):
    kty: str
    kid: str
    crv: str
    x: str
    y: str
    n: str
    e: str
    use: str | None = None


class Keys(msgspec.Struct):
    keys: tuple[Key, ...]


@spoiled
@given(payload=messages(Keys, kty=("EC", "RSA", "OKP"), crv=("P-256", "Ed25519"), use=("sig",), kid=("k",)))
def test_an_issuers_keys(payload: bytes) -> None:
    with contextlib.suppress(JwksError):
        parse_jwks(payload, local_allowed=False)


@spoiled
@given(payload=messages(CommandRequest))
def test_bodies_at_the_api(payload: bytes) -> None:
    with contextlib.suppress(BadBodyError):
        assert isinstance(read_object(payload), dict)
