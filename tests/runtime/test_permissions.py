"""What each service may do on NATS, held against a real server (log.md section 6.4): deny by default.

Requirements on the ownership gate: nobody but `ownership` admits a command, nobody but deciders appends.
"""

import asyncio
import json
from pathlib import Path

import pytest

from development.servers import NatsServer
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.calls import FEW_CONSUMERS, call
from services.runtime.nats.connection import ConnectionLostError, connect
from services.runtime.nats.inboxes import inbox_prefix
from services.runtime.nats.nats_config import DEPLOYED_CALLOUT, deployed_nats_config, render_nats_config
from services.runtime.nats.streams import assert_streams
from services.runtime.services import SERVICES as TABLE
from tests.support.drafts import grant
from tests.support.refusals import raw, refused, settle
from tests.support.stores import collect, flat, seqs

pytestmark = pytest.mark.anyio

SERVICES = tuple(TABLE)
STREAMS = ("EVENTS", "WANTED", "OBSERVED", "AUDIT", "SNAPSHOTS", "KEYS", "REFUSALS", "ACTORS")
DESTROYING = tuple(
    call(f"STREAM.{verb}", stream)
    for verb in ("DELETE", "PURGE", "UPDATE", "MSG.DELETE", "RESTORE", "SNAPSHOT")
    for stream in STREAMS
)
FOLLOWERS = (
    "api",
    "ownership",
    "commands",
    "scheduler",
    "cluster_sync",
    "projector",
    "operator",
    "subscriptions",
    "feed",
    "webhooks",
    "autoscaler",
    "proxy",
)

MAY_PUBLISH = {
    "ev.workload.k": {"commands", "scheduler", "cluster_sync", "restore"},
    "ev.node.k": {"commands", "scheduler", "cluster_sync", "restore"},
    "ev.cluster.k": {"commands", "cluster_sync", "setup", "restore"},
    "ev.project.k": {"commands", "setup", "restore"},
    "ev.tenant.k": {"commands", "setup", "restore"},
    "cmd.request.CreateWorkload": {"api"},
    "cmd.admitted.CreateWorkload": {"ownership"},
    "cmd.system.auto_deletion.DeleteWorkload": {"auto_deletion"},
    "cmd.system.auto_deletion.CreateWorkload": set(),
    "cmd.system.autoscaler.ScaleInference": {"autoscaler"},
    "cmd.system.autoscaler.DeleteWorkload": set(),
    "load.p": {"proxy"},
    "cmd.system.webhooks.DisableWebhook": {"webhooks"},
    "cmd.system.webhooks.DeleteWebhook": set(),
    "webhooks.asked.AskKey": {"api"},
    "scheduler.asked": {"api"},
    "cmd.system.scheduler.DeleteWorkload": set(),
    "want.c.cluster": {"cluster_sync"},
    "obs.c.cluster": {"agent"},
    "usage.c": {"agent"},
    "agent.c.logs": {"api"},
    "agent.c.exec": {"api"},
    "cmd.system.api.CloseSession": {"api"},
    "cmd.system.api.OpenSession": set(),
    "audit.p": {"ownership", "restore", "erase"},
    "refused.p": {"ownership", "erase"},
    "key.c": {"commands", "restore"},
    "snap.chain.tenant.x.0": {"setup", "commands"},
    "snap.chain.project.x.0": {"setup", "commands"},
    "snap.chain.cluster.x.0": {"setup", "commands", "cluster_sync"},
    "snap.chain.workload.x.0": {"commands", "scheduler", "cluster_sync"},
    "snap.chain.node.x.0": {"commands", "scheduler", "cluster_sync"},
    "snap.fold.scheduler.0": {"scheduler"},
    "snap.fold.cluster_sync.0": {"cluster_sync"},
    "snap.fold.autoscaler.0": {"autoscaler"},
    "snap.fold.subscriptions.0": {"subscriptions"},
    "snap.fold.proxy.0": {"proxy"},
    "snap.x.0": set(),
    "feed.p.w.T": {"feed"},
    "muster.servers.connections": {"subscriptions"},
    "muster.servers.n0.kick": {"subscriptions"},
    call("CONSUMER.CREATE", "FEED", "x", "feed", "p", "*", "*"): {"subscriptions"},
    call("CONSUMER.CREATE", "FEED", "x"): set(),
    call("CONSUMER.DELETE", "FEED", "x"): {"subscriptions"},
    call("CONSUMER.RESET", "FEED", "x"): {"subscriptions"},
    call("CONSUMER.LIST", "FEED"): {"subscriptions"},
    call("CONSUMER.INFO", "FEED", "x"): {"api"},
    call("CONSUMER.MSG.NEXT", "FEED", "x"): set(),
    "snap.canary.n0": {"commands", "keeper"},
    "muster.room.n0": {"keeper"},
    "muster.log": {"api"},
    "muster.servers.health": {"commands", "keeper"},
    "_INBOX_api.x": {"ownership", "commands", "scheduler", "webhooks"},
    "_INBOX_api.logs.c.x": {"ownership", "commands", "scheduler", "agent", "webhooks"},
    "_INBOX_api.exec.c.x": {"ownership", "commands", "scheduler", "agent", "webhooks"},
    "_INBOX_commands.x": set(),
    "_INBOX_setup.x": {"commands"},
    call("STREAM.CREATE", "EVENTS"): {"setup", "restore"},
    call("STREAM.CREATE", "WANTED"): {"setup", "cluster_sync"},
    call("STREAM.CREATE", "OTHER"): set(),
    call("CONSUMER.DURABLE.CREATE", "EVENTS", "x"): set(),
    call("CONSUMER.CREATE", "EVENTS"): set(),
    call("CONSUMER.CREATE", "EVENTS", "x"): set(),
    **{
        call(verb, "EVENTS", f"{service}-0"): {service} if service in FOLLOWERS else set[str]()
        for service in SERVICES
        for verb in ("CONSUMER.CREATE", "CONSUMER.MSG.NEXT", "CONSUMER.DELETE", "CONSUMER.INFO")
    },
    call("CONSUMER.CREATE", "EVENTS", f"operator-{FEW_CONSUMERS}"): set(),
    call("CONSUMER.CREATE", "WANTED", "agent-0", "want.>"): {"agent"},
    call("CONSUMER.CREATE", "WANTED", "agent-0"): set(),
    "$SYS.REQ.SERVER.PING.JSZ": set(),
    "$JS.API.ACCOUNT.PURGE.MUSTER": set(),
    "$JS.API.STREAM.INFO.EVENTS": set(),
    **{subject: set() for subject in DESTROYING},
    **{call("STREAM.UPDATE", stream): {"migrate"} for stream in STREAMS},
    call("STREAM.UPDATE", "EVENTS"): {"migrate", "restore"},
    call("STREAM.DELETE", "FEED"): {"migrate"},
    **{call("STREAM.MSG.DELETE", stream): {"erase"} for stream in ("ACTORS", "AUDIT", "REFUSALS")},
    call("STREAM.PURGE", "FEED"): set(),
}
"""Every subject, and who may publish on it."""

MAY_SUBSCRIBE = {
    "cmd.request.>": {"ownership"},
    "cmd.request.CreateWorkload": {"ownership"},
    "cmd.admitted.>": {"commands"},
    "scheduler.asked": {"scheduler"},
    "cmd.system.*.>": {"commands"},
    "usage.*": {"projector"},
    "load.*": {"autoscaler"},
    "agent.*.logs": {"agent"},
    "agent.*.exec": {"agent"},
    "muster.log": {"commands"},
    "muster.room.*": {"commands"},
    "ev.>": set(),
    "want.>": set(),
    "obs.>": set(),
    "audit.>": set(),
    "key.>": set(),
    ">": set(),
    "_INBOX.>": set(),
    **{f"{inbox_prefix(service)}.>": {service} for service in SERVICES},
}


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_may_publish_exactly_what_is_its_own(fresh_log: NatsServer, service: str) -> None:
    async with raw(fresh_log, service) as (client, refusals):
        for subject in MAY_PUBLISH:
            # Nothing that is allowed is meant to work: an API request without a body answers with an error.
            await client.publish(subject, b"not json")
        await settle(client)
        allowed = {subject for subject in MAY_PUBLISH if not refused(refusals, subject)}
    assert allowed == {subject for subject, services in MAY_PUBLISH.items() if service in services}


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_may_listen_exactly_to_what_is_its_own(fresh_log: NatsServer, service: str) -> None:
    async with raw(fresh_log, service) as (client, refusals):
        for subject in MAY_SUBSCRIBE:
            await client.subscribe(subject)
        await settle(client)
        allowed = {subject for subject in MAY_SUBSCRIBE if not refused(refusals, subject)}
    assert allowed == {subject for subject, services in MAY_SUBSCRIBE.items() if service in services}


@pytest.mark.parametrize("service", sorted({*SERVICES} - {"keeper"}))
async def test_every_service_can_check_servers_and_streams_at_boot(fresh_log: NatsServer, service: str) -> None:
    client = await connect(fresh_log.settings(service), service)
    await assert_streams(client, replicas=1)
    await client.close()


@pytest.mark.parametrize("service", FOLLOWERS)
async def test_those_who_follow_the_log_can(fresh_log: NatsServer, service: str) -> None:
    writer = await connect(fresh_log.settings("commands"), "commands")
    assert seqs(await JetStreamEventStore(writer).append(grant("a", 0))) == [1]
    client = await connect(fresh_log.settings(service), service)
    store = JetStreamEventStore(client)
    assert [commit.seq for commit in flat(await collect(store, 0, 1))] == [1]
    assert await store.last_seq() == 1
    await client.close()
    await writer.close()


async def test_without_a_password_nobody_gets_in(fresh_log: NatsServer) -> None:
    for login in ({}, {"user": "api"}, {"user": "api", "pass": "wrong"}, {"user": "admin", "pass": "admin"}):
        reader, writer = await asyncio.open_connection("127.0.0.1", fresh_log.port)
        await reader.readline()
        writer.write(b"CONNECT " + json.dumps({"verbose": False, **login}).encode() + b"\r\nPING\r\n")
        async with asyncio.timeout(60):
            assert await reader.read() == b"-ERR 'Authorization Violation'\r\n"
        writer.close()


async def test_a_wrong_password_ends_the_attempt_at_once_and_says_which_user(fresh_log: NatsServer) -> None:
    with pytest.raises(ConnectionLostError, match="password of user 'api'"):
        await connect(fresh_log.settings("api", nats_password="wrong"), "api")


def test_the_configuration_in_deploy_is_what_the_permissions_say() -> None:
    """Rendered by `python -m services.runtime.nats.nats_config > deploy/nats/nats.conf`."""
    committed = Path(__file__).parents[2] / "deploy" / "nats" / "nats.conf"
    assert committed.read_text() == deployed_nats_config()


def test_quotes_and_backslashes_in_a_password_stay_inside_it() -> None:
    passwords = dict.fromkeys(TABLE, 'a"b\\c')
    assert '{ user: api, password: "a\\"b\\\\c", permissions' in render_nats_config(
        passwords=passwords, callout=DEPLOYED_CALLOUT, store_dir="/d"
    )
