"""The check at boot: a server or stream that would lose or change what was acknowledged is refused, with a sentence
that says what to change (log.md section 1.4; a power cut with other settings lost everything that was measured).
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client

from development.servers import EVERYTHING, NatsServer
from development.streams import delete_streams
from events.subjects import ALL_WANTED, wanted_subject
from services.runtime.log.latest import Latest
from services.runtime.nats.calls import call
from services.runtime.nats.connection import connect
from services.runtime.nats.declared import DECLARED, DERIVED_STREAMS
from services.runtime.nats.requests import Requests
from services.runtime.nats.streams import (
    StreamError,
    assert_streams,
    create_disposable_streams,
    create_streams,
    parse_report,
    wrong_servers,
    wrong_settings,
)

pytestmark = pytest.mark.anyio

EVENTS = next(declared for declared in DECLARED if declared.name == "EVENTS")

GOOD_REPORT = {
    "server": {"name": "n0", "ver": "2.15.0", "tags": ["sync:always"], "jetstream": True},
    "data": {"config": {"sync_always": True}},
}

WRONG_SETTINGS = [
    ("discard", "old", 'discard is "old", set it to "new", or the server acknowledges what it throws away'),
    ("deny_delete", False, "deny_delete is false, set it to true, or history can be changed"),
    ("deny_purge", False, "deny_purge is false, set it to true, or history can be thrown away"),
    ("allow_rollup_hdrs", True, "allow_rollup_hdrs is true, set it to false, or one message can wipe the stream"),
    ("allow_msg_ttl", True, "allow_msg_ttl is true, set it to false, or messages of the log can expire"),
    ("allow_msg_schedules", True, "allow_msg_schedules is true, set it to false"),
    ("allow_atomic", False, "allow_atomic is false, set it to true, or several aggregates cannot change together"),
    ("allow_direct", False, "allow_direct is false, set it to true"),
    ("storage", "memory", 'storage is "memory", set it to "file"'),
    ("retention", "workqueue", 'retention is "workqueue", set it to "limits", or reading consumes'),
    ("max_age", 86_400_000_000_000, "max_age is 86400000000000, set it to 0, or the log forgets"),
    ("max_msgs", 1000, "max_msgs is 1000, set it to -1, or the log forgets"),
    ("max_msgs_per_subject", 1, "max_msgs_per_subject is 1, set it to -1"),
    ("max_bytes", -1, "max_bytes is unlimited, set it with a limit"),
    ("duplicate_window", 120_000_000_000, "duplicate_window is 120000000000, set it to 600000000000"),
    ("compression", "s2", 'compression is "s2", set it to "none"'),
    ("subjects", ["ev.workload.>"], 'subjects is ["ev.workload.>"], set it to ["ev.>"]'),
    ("sealed", True, "sealed is true, set it to false, or nothing can be written"),
    ("placement", None, 'placement is not set, set it to {"tags":["sync:always"]}'),
    ("num_replicas", 3, "num_replicas is 3, set it to 1, as MUSTER_REPLICAS says"),
    ("mirror", {"name": "X"}, "mirror is set, then it is not written here: remove it"),
    ("sources", [{"name": "X"}], "sources is set, then others' messages stand between ours: remove it"),
    ("republish", {"src": ">", "dest": "x.>"}, "republish is set"),
    ("subject_transform", {"src": ">", "dest": "x.>"}, "subject_transform is set"),
    ("persist_mode", "async", "persist_mode is async, set it to default, or acknowledged writes are lost"),
    ("max_msg_size", 100, "max_msg_size is 100, set it to -1, as nothing here sets it"),
    ("max_consumers", 1, "max_consumers is 1, set it to -1, as nothing here sets it"),
    ("allow_msg_counter", True, "allow_msg_counter is true, and nothing here sets it: switch it off"),
    ("consumer_limits", {}, "consumer_limits is {}, set it to {"),
    ("no_ack", True, "no_ack is on, switch it off"),
]


@pytest.fixture
async def everything(fresh_log: NatsServer) -> AsyncIterator[Client]:
    client = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    yield client
    await client.close()


async def _config(client: Client, stream: str) -> dict[str, Any]:
    answer = await client.request(call("STREAM.INFO", stream), b"", timeout=60)
    return json.loads(answer.data)["config"]


@pytest.mark.parametrize(("setting", "value", "sentence"), WRONG_SETTINGS, ids=[row[0] for row in WRONG_SETTINGS])
async def test_each_wrong_setting_of_the_log_is_refused_by_name(
    everything: Client, setting: str, value: object, sentence: str
) -> None:
    actual = await _config(everything, "EVENTS")
    assert wrong_settings(EVENTS, actual, 1) == []
    wrong = wrong_settings(EVENTS, {**actual, setting: value}, 1)
    assert len(wrong) == 1
    assert wrong[0].startswith("stream EVENTS: ")
    assert sentence in wrong[0]


@pytest.mark.parametrize("stream", [each.name for each in DECLARED if each.name not in DERIVED_STREAMS])
async def test_a_missing_stream_is_refused_with_what_makes_it(everything: Client, stream: str) -> None:
    await delete_streams(everything, stream)
    with pytest.raises(StreamError, match=rf"stream {stream} is missing: run `python -m services.setup` once"):
        await assert_streams(everything)


async def test_streams_that_are_made_again_keep_no_service_from_its_start(everything: Client) -> None:
    """A server that was started again comes without those it had in memory, and cluster_sync may be away."""
    await delete_streams(everything, *DERIVED_STREAMS)
    await assert_streams(everything)
    reader = Latest(everything, Requests(everything), "WANTED", ALL_WANTED)
    reader.start()
    try:
        assert await reader.next(0.1) == []
        await create_disposable_streams(everything, 1)
        await everything.jetstream().publish(wanted_subject("c", "k"), b"{}")
        async with asyncio.timeout(60):
            while not await reader.next(1.0):
                pass
    finally:
        await reader.close()


@pytest.mark.parametrize("setting", ["discard", "allow_msg_ttl", "duplicate_window"])
async def test_a_real_stream_that_somebody_changed_is_refused(everything: Client, setting: str) -> None:
    changed = {"discard": "old", "allow_msg_ttl": True, "duplicate_window": 60_000_000_000}
    config = {**await _config(everything, "EVENTS"), setting: changed[setting]}
    answer = await everything.request(call("STREAM.UPDATE", "EVENTS"), json.dumps(config).encode(), timeout=60)
    assert "error" not in json.loads(answer.data), answer.data
    with pytest.raises(StreamError, match=f"stream EVENTS: {setting} is "):
        await assert_streams(everything)


async def test_everything_that_is_wrong_comes_at_once(everything: Client) -> None:
    for stream in ("CODE", "AUDIT"):
        await delete_streams(everything, stream)
    with pytest.raises(StreamError) as refused:
        await assert_streams(everything, replicas=3)
    assert str(refused.value).count("is missing") == 2
    assert str(refused.value).count("num_replicas is 1, set it to 3") == len(DECLARED) - 2


async def test_setup_leaves_streams_alone_that_are_there(everything: Client) -> None:
    await everything.jetstream().publish("ev.tenant.k", b"{}")
    await create_streams(everything, 1)
    assert (await everything.jetstream().stream_info("EVENTS")).state.messages == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"data": {"config": {"sync_always": False}}}, "set `sync_interval: always` in the jetstream block"),
        ({"data": {"config": {}}}, "set `sync_interval: always` in the jetstream block"),
        ({"server": {**GOOD_REPORT["server"], "ver": "2.14.4"}}, "is version 2.14.4: upgrade it to 2.15"),
        ({"server": {**GOOD_REPORT["server"], "ver": "2.9.25-beta.1"}}, "upgrade it to 2.15"),
        ({"server": {**GOOD_REPORT["server"], "tags": []}}, 'set `server_tags: ["sync:always"]`'),
    ],
)
def test_each_wrong_server_is_refused_by_name(change: dict[str, Any], sentence: str) -> None:
    good = parse_report(msgspec.json.encode(GOOD_REPORT))
    bad = parse_report(msgspec.json.encode({**GOOD_REPORT, **change}))
    wrong = wrong_servers([good, bad])
    assert len(wrong) == 1
    assert "Server n0" in wrong[0]
    assert sentence in wrong[0]


def test_newer_servers_and_servers_without_jetstream_are_fine() -> None:
    newer = {**GOOD_REPORT, "server": {**GOOD_REPORT["server"], "ver": "3.0.1"}}
    leaf = {"server": {"name": "leaf", "ver": "2.15.2", "jetstream": False}, "data": {}}
    assert wrong_servers([parse_report(msgspec.json.encode(report)) for report in (newer, leaf)]) == []


@pytest.mark.parametrize(
    ("line", "instead", "sentence"),
    [
        ("  sync_interval: always", "  sync_interval: 1s", "set `sync_interval: always`"),
        ("  sync_interval: always", "", "set `sync_interval: always`"),
        ('to: "muster.servers.jetstream"', 'to: "elsewhere"', "No server answered on muster.servers.jetstream"),
    ],
    ids=["synced each second", "default sync", "no report"],
)
async def test_a_real_server_with_an_unsafe_configuration_is_refused(
    tmp_path: Path, line: str, instead: str, sentence: str
) -> None:
    server = NatsServer(tmp_path)
    assert line in server.config
    server.configure(server.config.replace(line, instead))
    server.start()
    try:
        client = await connect(server.settings("setup"), "setup")
        await create_streams(client, 1)
        with pytest.raises(StreamError) as refused:
            await assert_streams(client)
        assert sentence in str(refused.value)
        await client.close()
    finally:
        server.stop()
