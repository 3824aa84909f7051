"""What the agent of one cluster may do on NATS, as a service of its own: only what is its own, in an account apart.

Held against a real server, also where no right is asked for: an answer goes wherever the request says.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from development.servers import EVERYTHING, NatsCluster, NatsServer
from development.streams import recreate_streams
from events.cluster_protocol import LogLine, LogsChunk, LogsRequest, LogsTaken
from services.agent.logs import LogServer
from services.agent.wanted import Changed, Lost, Whole, follow
from services.runtime.nats.calls import PREFIX, call
from services.runtime.nats.connection import ConnectionLostError, ServiceClient, connect
from services.runtime.nats.inboxes import inbox_prefix, logs_inbox
from services.runtime.nats.nats_config import AGENTS_FILE, agent_user_block, render_nats_config
from tests.support.refusals import raw, refused, settle
from tests.support.wanted import wanted_of

pytestmark = pytest.mark.anyio

STREAMS = ("EVENTS", "WANTED", "OBSERVED", "AUDIT", "SNAPSHOTS", "KEYS", "ACTORS", "CODE")
OWN = (
    "obs.one.cluster",
    "obs.one.pod.k",
    "usage.one",
    "recipes.one",
    "_INBOX_api.logs.one.x",
    "_INBOX_api.exec.one.x",
    call("CONSUMER.CREATE", "WANTED", "agent-one-0", "want.one.>"),
    call("CONSUMER.CREATE", "WANTED", "agent-one-7", "want.one.cluster"),
    call("CONSUMER.MSG.NEXT", "WANTED", "agent-one-0"),
    call("CONSUMER.DELETE", "WANTED", "agent-one-0"),
    call("DIRECT.GET", "CODE", "code.one.project.digest.part.0"),
)
NOT_ITS_OWN = (
    "obs.other.cluster",
    "obs.other.pod.k",
    "usage.other",
    "recipes.other",
    "agent.one.recipes",
    "agent.other.recipes",
    "want.one.pod.k",
    "want.other.pod.k",
    "agent.one.logs",
    "agent.other.logs",
    "agent.one.exec",
    "agent.other.exec",
    "ev.workload.k",
    "ev.node.k",
    "audit.p",
    "code.one.project.digest.part.0",
    "snap.chain-x.0",
    "cmd.request.CreateWorkload",
    "cmd.admitted.CreateWorkload",
    "cmd.system.cluster_sync.DeleteWorkload",
    "muster.servers.jetstream",
    "_INBOX_api.x",
    "_INBOX_api.logs.other.x",
    "_INBOX_api.exec.other.x",
    "_INBOX_commands.x",
    "_INBOX_agent.x",
    "_INBOX_agent-other.x",
    *(
        f"{api}.{asked}"
        for api in ("$JS.API", PREFIX)
        for asked in (
            "INFO",
            "STREAM.NAMES",
            "STREAM.LIST",
            "CONSUMER.CREATE.WANTED",
            "CONSUMER.CREATE.WANTED.x",
            "CONSUMER.CREATE.WANTED.x.>",
            "CONSUMER.CREATE.WANTED.x.want.one.>",
            "CONSUMER.CREATE.WANTED.agent-one-8.want.one.>",
            "CONSUMER.CREATE.WANTED.agent-other-0.want.one.>",
            "CONSUMER.CREATE.WANTED.agent-one-0",
            "CONSUMER.CREATE.WANTED.agent-one-0.>",
            "CONSUMER.CREATE.WANTED.agent-one-0.want.>",
            "CONSUMER.CREATE.WANTED.agent-one-0.want.other.>",
            "CONSUMER.CREATE.WANTED.agent-one-0.want.*.cluster",
            "CONSUMER.MSG.NEXT.WANTED.agent-other-0",
            "CONSUMER.DELETE.WANTED.agent-other-0",
            "CONSUMER.DURABLE.CREATE.WANTED.x",
            "CONSUMER.NAMES.WANTED",
            "CONSUMER.LIST.WANTED",
            "CONSUMER.INFO.WANTED.x",
            "CONSUMER.CREATE.EVENTS.x.ev.>",
            "CONSUMER.MSG.NEXT.EVENTS.x",
            "CONSUMER.CREATE.OBSERVED.x.obs.one.>",
            "DIRECT.GET.CODE.code.other.project.digest.part.0",
            "DIRECT.GET.CODE.code.*.project.digest.part.0",
            "CONSUMER.MSG.NEXT.OBSERVED.x",
            *(
                f"{verb}.{stream}"
                for verb in ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET", "STREAM.PURGE", "STREAM.DELETE")
                for stream in STREAMS
            ),
        )
    ),
)
HEARD = ("agent.one.logs", "agent.one.exec", "agent.one.recipes", f"{inbox_prefix('agent-one')}.>")
NOT_HEARD = (
    "agent.other.logs",
    "agent.*.logs",
    "agent.other.exec",
    "agent.*.exec",
    "agent.other.recipes",
    "agent.*.recipes",
    "recipes.one",
    "ev.>",
    "want.>",
    "want.one.>",
    "want.other.>",
    "obs.>",
    "obs.other.>",
    "usage.other",
    "audit.>",
    "snap.>",
    "cmd.>",
    "_INBOX.>",
    "_INBOX_api.>",
    "_INBOX_api.logs.one.>",
    "_INBOX_api.exec.one.>",
    "_INBOX_agent-other.>",
    "_R_.>",
    "$JS.>",
    ">",
)


@pytest.fixture
def two_agents(fresh_log: NatsServer) -> NatsServer:
    for cluster in ("one", "other"):
        if cluster not in fresh_log.agents:
            fresh_log.add_agent(cluster)
    return fresh_log


@contextlib.asynccontextmanager
async def connected(server: NatsServer | NatsCluster, user: str) -> AsyncGenerator[ServiceClient]:
    client = await connect(server.settings(user), user)
    try:
        yield client
    finally:
        await client.close()


def consumer(name: str, **config: Any) -> bytes:
    config = {"name": name, "deliver_policy": "all", "ack_policy": "none", "mem_storage": True, **config}
    return msgspec.json.encode({"stream_name": "WANTED", "config": config, "action": "create"})


async def messages(everything: Client, stream: str) -> int:
    await asyncio.sleep(0.3)
    return (await everything.jetstream().stream_info(stream)).state.messages


async def test_it_publishes_its_own_and_nothing_else(two_agents: NatsServer) -> None:
    async with raw(two_agents, "agent-one") as (client, refusals):
        for subject in (*OWN, *NOT_ITS_OWN):
            await client.publish(subject, b"not json")
        await settle(client)
    violations = {subject for subject in (*OWN, *NOT_ITS_OWN) if refused(refusals, subject)}
    assert violations == set(NOT_ITS_OWN)


async def test_it_listens_to_its_own_and_nothing_else(two_agents: NatsServer) -> None:
    async with raw(two_agents, "agent-one") as (client, refusals):
        for subject in (*HEARD, *NOT_HEARD):
            await client.subscribe(subject)
        await settle(client)
    violations = {subject for subject in (*HEARD, *NOT_HEARD) if refused(refusals, subject)}
    assert violations == set(NOT_HEARD)


async def test_it_follows_what_is_wanted_of_its_cluster_and_reports_on_it(two_agents: NatsServer) -> None:
    async with connected(two_agents, EVERYTHING) as control, connected(two_agents, "agent-one") as agent:
        stream = control.jetstream()
        await stream.publish("want.one.pod.a", b"a")
        await stream.publish("want.other.pod.b", b"b")
        news = follow(wanted_of(agent, "want.one.>"))
        assert await anext(news) == Whole({"want.one.pod.a": b"a"})
        await stream.publish("want.other.pod.b", b"b2")
        await stream.publish("want.one.pod.c", b"c")
        assert await anext(news) == Changed({"want.one.pod.c": b"c"})
        await news.aclose()
        ack = await agent.jetstream().publish("obs.one.cluster", b"{}")
        assert (ack.stream, ack.seq) == ("OBSERVED", 1)
        assert (await stream.get_last_msg("OBSERVED", "obs.one.cluster")).data == b"{}"


async def test_what_a_consumer_reads_is_held_to_the_subject_it_was_asked_for_on(two_agents: NatsServer) -> None:
    async with connected(two_agents, "agent-one") as agent:
        for number, config in enumerate(
            (
                {},
                {"filter_subject": "want.other.>"},
                {"filter_subject": "want.>"},
                {"filter_subjects": ["want.one.>", "want.other.>"]},
                {"filter_subject": "want.one.>", "filter_subjects": ["want.other.>"]},
            )
        ):
            name = f"agent-one-{number}"
            subject = call("CONSUMER.CREATE", "WANTED", name, "want.one.>")
            answer = msgspec.json.decode((await agent.request(subject, consumer(name, **config))).data)
            assert answer["error"]["code"] == 400, config


async def test_nothing_it_asks_for_is_answered_into_the_services_account(two_agents: NatsServer) -> None:
    """An answer needs no right of the asker's: `ev.workload.x` as a reply subject must not write to the log."""
    async with connected(two_agents, EVERYTHING) as control, connected(two_agents, "agent-one") as agent:
        heard: list[str] = []

        async def hear(message: Msg) -> None:
            heard.append(message.subject)

        targets = ("ev.workload.x", "obs.other.pod.x", "want.other.pod.x", "cmd.admitted.x", "usage.other", "audit.x")
        for subject in ("cmd.admitted.>", "usage.*", "_INBOX_api.>", "_INBOX_agent-other.>"):
            await control.subscribe(subject, cb=hear)
        await control.flush()
        await control.jetstream().publish("want.one.pod.a", b"a")
        create = ("CONSUMER.CREATE", "WANTED")
        await agent.request(call(*create, "agent-one-7", "want.one.>"), consumer("agent-one-7"))
        before = {stream: await messages(control, stream) for stream in STREAMS}
        for number, target in enumerate((*targets, "_INBOX_api.x", "_INBOX_agent-other.x")):
            name = f"agent-one-{number % 7}"
            pushed = consumer(name, filter_subject="want.one.>", deliver_subject=target)
            await agent.request(call(*create, name, "want.one.>"), pushed)
            await agent.publish(call("CONSUMER.MSG.NEXT", "WANTED", "agent-one-7"), b"1", reply=target)
            await agent.publish(call("CONSUMER.DELETE", "WANTED", name), b"", reply=target)
            await agent.publish("obs.one.cluster", b"{}", reply=target)
        await settle(agent)
        after = {stream: await messages(control, stream) for stream in STREAMS}
        assert after == {**before, "OBSERVED": 1}
        assert heard == []


class Lines:
    """A backend of which only the logs are asked."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def standby(self) -> str:
        return ""

    async def logs(self, request: LogsRequest) -> AsyncGenerator[list[LogLine]]:
        try:
            while True:
                yield [msgspec.convert({"at": "2026-01-01T00:00:00Z", "stream": "stdout", "text": "line"}, LogLine)]
                await asyncio.sleep(0.01)
        finally:
            self.ended.set()


async def logs_are_read(*, agent_at: NatsServer, api_at: NatsServer) -> None:
    backend = Lines()
    async with connected(api_at, "api") as api, connected(agent_at, "agent-one") as agent:
        serving = asyncio.create_task(LogServer(agent, "one", backend).serve())  # pyright: ignore[reportArgumentType]
        await settle(agent)
        inbox = f"{logs_inbox('one')}.x"
        reading = await api.subscribe(inbox)
        await settle(api)
        request = LogsRequest(workload_id="w", pod_key="k", follow=True)
        await api.publish("agent.one.logs", msgspec.json.encode(request), reply=inbox)
        for _ in range(20):
            chunk = msgspec.json.decode((await reading.next_msg(timeout=60)).data, type=LogsChunk)
            assert chunk.lines[0].text == "line"
            await api.publish("agent.one.logs", msgspec.json.encode(LogsTaken(inbox=inbox)))
        await reading.unsubscribe()
        async with asyncio.timeout(60):
            await backend.ended.wait()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_logs_reach_the_api_and_end_when_it_stops_reading(two_agents: NatsServer) -> None:
    await logs_are_read(agent_at=two_agents, api_at=two_agents)


async def test_where_no_agent_listens_the_api_is_told_at_once(two_agents: NatsServer) -> None:
    async with connected(two_agents, "api") as api, connected(two_agents, "agent-one"):
        with pytest.raises(NoRespondersError):
            await api.request("agent.one.logs", b"{}", timeout=60)


async def test_an_agent_that_is_added_disturbs_nobody(two_agents: NatsServer) -> None:
    async with connected(two_agents, "agent-one") as agent, connected(two_agents, "api") as api:
        two_agents.add_agent("third")
        assert (await agent.jetstream().publish("obs.one.cluster", b"{}")).stream == "OBSERVED"
        assert agent.stats["reconnects"] == api.stats["reconnects"] == 0
        async with connected(two_agents, "agent-third") as third:
            assert (await third.jetstream().publish("obs.third.cluster", b"{}")).stream == "OBSERVED"


async def test_users_may_stand_in_a_file_beside_the_configuration(tmp_path: Path) -> None:
    """As in deploy/nats: its operator adds what `muster cluster agent NAME --nats-user` prints, and reloads."""
    server = NatsServer(tmp_path)
    config = render_nats_config(
        passwords=server.passwords,
        callout=server.callout_public,
        agents_file=AGENTS_FILE,
        store_dir=str(tmp_path / "js"),
        port=server.port,
        monitor_port=server.monitor_port,
        all_powerful=EVERYTHING,
    )
    server.configure(config)
    users = tmp_path / AGENTS_FILE
    users.write_text((Path(__file__).parents[2] / "deploy" / "nats" / AGENTS_FILE).read_text())
    server.start()
    try:
        await recreate_streams(server.settings(EVERYTHING))
        server.passwords["agent-one"] = "pass"
        with pytest.raises(ConnectionLostError):
            await connect(server.settings("agent-one"), "agent-one")
        users.write_text(f"users: [\n{agent_user_block('one', 'pass')}\n]\n")
        server.reload()
        async with connected(server, "agent-one") as agent:
            assert (await agent.jetstream().publish("obs.one.cluster", b"{}")).stream == "OBSERVED"
    finally:
        server.stop()


async def told(news: AsyncGenerator[Whole | Changed | Lost], subject: str, value: bytes) -> None:
    """A server that has not heard yet of what another one keeps says so, and is asked again."""
    async with asyncio.timeout(60):
        async for one in news:
            if not isinstance(one, Lost):
                assert one.values == {subject: value}
                return


async def test_with_three_servers_it_matters_to_nobody_which_of_them_he_asks(nats_cluster: NatsCluster) -> None:
    nats_cluster.add_agent("one")
    await recreate_streams(nats_cluster.settings(EVERYTHING))
    for number, server in enumerate(nats_cluster.servers):
        pod = f"want.one.pod.p{number}"
        async with connected(nats_cluster, EVERYTHING) as control, connected(server, "agent-one") as agent:
            stream = control.jetstream()
            await stream.publish(pod, b"a")
            async with contextlib.aclosing(follow(wanted_of(agent, pod))) as news:
                await told(news, pod, b"a")
                await stream.publish(pod, b"b")
                await told(news, pod, b"b")
            assert (await agent.jetstream().publish("obs.one.cluster", b"{}")).stream == "OBSERVED"
        await logs_are_read(agent_at=server, api_at=nats_cluster.servers[number - 1])
