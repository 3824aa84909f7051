"""Calls of an API server: what it refuses is told in its words, what fails on the way is told as such (log.md 5.1)."""

import asyncio
import json
import os
import secrets
import shutil
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
import yaml

from development.kubernetes.control_plane import ControlPlane, free_port
from development.kubernetes.proxy import Mode, Proxy, Request, proxied
from services.agent.backends.kubernetes import connect as connecting
from services.agent.backends.kubernetes.client import CALLS, TRIES, ApiError, KubeClient, Timeouts
from services.agent.backends.kubernetes.connect import ConnectError, connect
from tests.support.kube import namespace

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]

TIMEOUTS = Timeouts(connect_seconds=5, call_seconds=20)


@pytest.fixture
def space(control_plane: ControlPlane) -> str:
    return namespace(control_plane, f"client-{secrets.token_hex(4)}")


@asynccontextmanager
async def connected(kubeconfig: Path, timeouts: Timeouts = TIMEOUTS) -> AsyncGenerator[KubeClient]:
    client = await connect(kubeconfig, None, timeouts=timeouts)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[KubeClient]:
    async with connected(control_plane.kubeconfig()) as client:
        yield client


@pytest.fixture
async def proxy(control_plane: ControlPlane) -> AsyncIterator[Proxy]:
    async with proxied(control_plane) as proxy:
        yield proxy


@pytest.fixture
async def through(control_plane: ControlPlane, proxy: Proxy) -> AsyncIterator[KubeClient]:
    async with connected(control_plane.kubeconfig(url=proxy.url)) as client:
        yield client


def maps(space: str) -> str:
    return f"/api/v1/namespaces/{space}/configmaps"


def a_map(name: str = "one", **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


async def test_an_object_is_created_read_changed_and_deleted(client: KubeClient, space: str) -> None:
    made = msgspec.json.decode(await client.create(maps(space), a_map(a="1")))
    assert msgspec.json.decode(await client.read(f"{maps(space)}/one")) == made
    await client.patch(f"{maps(space)}/one", {"data": {"a": None, "b": "2"}})
    assert msgspec.json.decode(await client.read(f"{maps(space)}/one"))["data"] == {"b": "2"}
    await client.delete(f"{maps(space)}/one", uid=made["metadata"]["uid"], grace_seconds=1)
    with pytest.raises(ApiError) as gone:
        await client.read(f"{maps(space)}/one")
    assert (gone.value.status, gone.value.reason, gone.value.unreachable) == (404, "NotFound", False)
    assert 'configmaps "one" not found' in gone.value.message


async def test_a_merge_patch_with_an_outdated_version_is_refused(client: KubeClient, space: str) -> None:
    made = msgspec.json.decode(await client.create(maps(space), a_map(a="1")))
    version = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    await client.patch(f"{maps(space)}/one", version | {"data": {"a": "2"}})
    with pytest.raises(ApiError) as conflict:
        await client.patch(f"{maps(space)}/one", version | {"data": {"a": "3"}})
    assert (conflict.value.status, conflict.value.reason) == (409, "Conflict")


async def test_server_side_apply_makes_what_is_not_there_and_takes_fields_over(client: KubeClient, space: str) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap"} | a_map(a="1")
    await client.patch(f"{maps(space)}/one", body, kind="apply")
    await client.patch(f"{maps(space)}/one", {"data": {"a": "somebody's"}}, fieldManager="somebody")
    await client.patch(f"{maps(space)}/one", body, kind="apply")
    assert msgspec.json.decode(await client.read(f"{maps(space)}/one"))["data"] == {"a": "1"}


async def test_another_object_under_the_same_name_is_not_deleted(client: KubeClient, space: str) -> None:
    await client.create(maps(space), a_map())
    with pytest.raises(ApiError) as conflict:
        await client.delete(f"{maps(space)}/one", uid="00000000-0000-0000-0000-000000000000")
    assert conflict.value.status == 409
    assert "uid" in conflict.value.message.lower()
    await client.read(f"{maps(space)}/one")


async def test_what_exists_is_not_created_again(client: KubeClient, space: str) -> None:
    await client.create(maps(space), a_map())
    with pytest.raises(ApiError) as exists:
        await client.create(maps(space), a_map())
    assert (exists.value.status, exists.value.reason) == (409, "AlreadyExists")


async def test_what_is_wrong_with_an_object_is_said_in_the_servers_words(client: KubeClient, space: str) -> None:
    with pytest.raises(ApiError) as invalid:
        await client.create(maps(space), a_map("No Such Name!"))
    assert (invalid.value.status, invalid.value.reason) == (422, "Invalid")
    assert "No Such Name!" in invalid.value.message


async def test_who_lacks_a_right_is_told_which(control_plane: ControlPlane, space: str) -> None:
    control_plane.admin("POST", f"/api/v1/namespaces/{space}/serviceaccounts", {"metadata": {"name": "nobody"}})
    token = control_plane.service_account_token(space, "nobody")
    async with connected(control_plane.kubeconfig(token)) as client:
        with pytest.raises(ApiError) as forbidden:
            await client.read("/api/v1/nodes")
    assert (forbidden.value.status, forbidden.value.reason) == (403, "Forbidden")
    assert 'cannot list resource "nodes"' in forbidden.value.message


async def test_an_object_of_more_than_a_mebibyte_comes_whole_in_a_call_and_in_a_line(
    control_plane: ControlPlane, client: KubeClient, space: str
) -> None:
    big = secrets.token_hex(520_000)
    made = {"metadata": {"name": "big", "annotations": {"more": "x" * 200_000}}, "data": {"big": big}}
    await asyncio.to_thread(control_plane.admin, "POST", maps(space), made)
    assert msgspec.json.decode(await client.read(f"{maps(space)}/big"))["data"]["big"] == big
    async with aclosing(
        client.lines(maps(space), silence_seconds=20, watch="true", fieldSelector="metadata.name=big")
    ) as lines:
        async for line in lines:
            assert msgspec.json.decode(line)["object"]["data"]["big"] == big
            return
    pytest.fail("the watch told nothing")


async def test_hundreds_of_calls_at_once_are_all_answered(client: KubeClient, space: str) -> None:
    await asyncio.gather(*(client.create(maps(space), a_map(f"map-{n}")) for n in range(300)))
    listed = msgspec.json.decode(await client.read(maps(space)))
    assert {f"map-{n}" for n in range(300)} <= {item["metadata"]["name"] for item in listed["items"]}


async def test_too_many_requests_are_asked_again_after_the_time_the_server_names(
    proxy: Proxy, through: KubeClient, space: str
) -> None:
    proxy.mode = Mode.TOO_MANY
    # The second try meets a server that has recovered.
    proxy.only = lambda _: proxy.struck[Mode.TOO_MANY] < 1
    await through.create(maps(space), a_map())
    assert proxy.requests["POST", maps(space)] == 2


async def test_too_many_requests_for_longer_become_an_error_that_says_when_to_come_back(
    proxy: Proxy, through: KubeClient, space: str
) -> None:
    proxy.mode, proxy.retry_after_seconds = Mode.TOO_MANY, 3600
    with pytest.raises(ApiError) as refused:
        await through.create(maps(space), a_map())
    assert (refused.value.status, refused.value.retry_after_seconds) == (429, 3600)
    assert refused.value.unreachable
    assert proxy.requests["POST", maps(space)] == 1, "an hour is longer than a call may take"
    proxy.retry_after_seconds = 0
    with pytest.raises(ApiError):
        await through.create(maps(space), a_map())
    assert proxy.requests["POST", maps(space)] == 1 + TRIES


async def test_a_servers_own_fault_is_not_asked_again(proxy: Proxy, through: KubeClient, space: str) -> None:
    proxy.mode = Mode.ERROR
    with pytest.raises(ApiError) as broken:
        await through.create(maps(space), a_map())
    assert (broken.value.status, broken.value.message) == (500, "the proxy says InternalError")
    assert broken.value.unreachable
    assert proxy.requests["POST", maps(space)] == 1


async def test_an_answer_that_breaks_off_says_nothing_of_what_was_done(
    proxy: Proxy, through: KubeClient, space: str
) -> None:
    proxy.mode = Mode.CUT
    with pytest.raises(ApiError) as cut:
        await through.create(maps(space), a_map())
    assert (cut.value.status, cut.value.reason, cut.value.unreachable) == (0, "Cut", True)
    assert proxy.requests["POST", maps(space)] == 1
    proxy.mode = Mode.PASS
    await through.read(f"{maps(space)}/one")


async def test_a_server_that_says_nothing_is_given_up(control_plane: ControlPlane, proxy: Proxy, space: str) -> None:
    timeouts = Timeouts(connect_seconds=1, call_seconds=1)
    async with connected(control_plane.kubeconfig(url=proxy.url), timeouts) as client:
        await client.read(maps(space))
        proxy.mode = Mode.SILENT
        with pytest.raises(ApiError) as silent:
            await client.read(maps(space))
        assert (silent.value.status, silent.value.reason) == (0, "Timeout")
        proxy.mode = Mode.PASS
        await client.read(maps(space))


async def test_a_stream_that_falls_silent_or_breaks_off_is_no_end(
    proxy: Proxy, through: KubeClient, client: KubeClient, space: str
) -> None:
    await client.create(maps(space), a_map("first"))

    async def meets(mode: Mode, name: str) -> str:
        proxy.mode = Mode.PASS
        try:
            async for _ in through.lines(maps(space), silence_seconds=2, watch="true"):
                if proxy.mode is Mode.PASS:
                    proxy.mode = mode
                    await client.create(maps(space), a_map(name))
        except ApiError as error:
            return error.reason
        return "ended in order"

    assert await meets(Mode.CUT, "second") == "Cut"
    assert await meets(Mode.SILENT, "third") == "Silence"


async def test_lines_end_with_the_stream(client: KubeClient, space: str) -> None:
    await client.create(maps(space), a_map())
    lines = client.lines(maps(space), silence_seconds=20, watch="true", timeoutSeconds="1")
    assert [msgspec.json.decode(line)["type"] async for line in lines] == ["ADDED"]


async def test_nobody_there_is_said_after_some_tries(control_plane: ControlPlane) -> None:
    async with connected(control_plane.kubeconfig(url=f"https://127.0.0.1:{free_port()}")) as client:
        with pytest.raises(ApiError) as refused:
            await client.read("/readyz")
    assert (refused.value.status, refused.value.reason, refused.value.unreachable) == (0, "Refused", True)


async def test_a_server_that_comes_back_soon_is_not_missed(proxy: Proxy, through: KubeClient, space: str) -> None:
    await proxy.close()
    calling = asyncio.ensure_future(through.create(maps(space), a_map()))
    await asyncio.sleep(0.05)
    await proxy.listen()
    await calling
    assert proxy.requests["POST", maps(space)] == 1


async def test_a_server_with_a_strangers_certificate_gets_nothing(
    control_plane: ControlPlane, proxy: Proxy, tmp_path: Path
) -> None:
    stranger = ControlPlane(tmp_path / "stranger")  # never started: only its authority is used
    config = yaml.safe_load(control_plane.kubeconfig(url=proxy.url).read_text())
    config["clusters"][0]["cluster"] = {"server": proxy.url, "certificate-authority": str(stranger.ca_file)}
    async with connected(written(tmp_path, config)) as client:
        with pytest.raises(ApiError) as untrusted:
            await client.read("/readyz")
    assert (untrusted.value.status, untrusted.value.reason) == (0, "Untrusted")
    assert not proxy.requests


def written(folder: Path, config: dict[str, Any]) -> Path:
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return file


async def test_a_credential_plugin_is_asked_again_when_its_token_is_no_longer_known(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is under way goes on: a new token cuts no stream."""
    monkeypatch.setattr(connecting, "RENEW_SECONDS", 0.0)
    token = tmp_path / "token"
    version = "client.authentication.k8s.io/v1"
    said = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": "%s"}}
    script = f"printf '{json.dumps(said)}' $(cat {token})"
    plugin = {"apiVersion": version, "command": "/bin/sh", "args": ["-c", script]}
    config = yaml.safe_load(control_plane.kubeconfig().read_text())
    config["users"][0]["user"] = {"exec": plugin}
    token.write_text(control_plane.admin_token)
    async with connected(written(tmp_path, config)) as client:
        async with aclosing(client.lines("/api/v1/namespaces", silence_seconds=20, watch="true")) as lines:
            await anext(lines)
            library: Any = client._api
            library.configuration.api_key["BearerToken"] = "Bearer outdated"
            await asyncio.gather(*(client.read("/api/v1/namespaces") for _ in range(3)))
            namespace(control_plane, f"client-{secrets.token_hex(4)}")
            await anext(lines)
        token.write_text("unknown")
        library.configuration.api_key["BearerToken"] = "Bearer outdated"
        with pytest.raises(ApiError) as unknown:
            await client.read("/api/v1/namespaces")
    assert (unknown.value.status, unknown.value.reason) == (401, "Unauthorized")


async def test_in_a_pod_the_service_accounts_files_are_used_and_read_again(
    control_plane: ControlPlane, space: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _, port = control_plane.url.removeprefix("https://").partition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    shutil.copy(control_plane.ca_file, tmp_path / "ca.crt")
    (tmp_path / "token").write_text("outdated\n")
    client = await connect(None, None, timeouts=TIMEOUTS, service_account=tmp_path)
    try:
        (tmp_path / "token").write_text(control_plane.admin_token + "\n")
        await client.read(maps(space))
    finally:
        await client.close()


async def test_outside_of_a_pod_a_kubeconfig_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConnectError, match="no kubeconfig was given"):
        await connect(None, None, timeouts=TIMEOUTS, service_account=tmp_path)


async def test_a_password_file_of_the_machine_is_not_looked_at(
    control_plane: ControlPlane, space: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with connected(control_plane.kubeconfig()) as client:
        await client.create(maps(space), a_map())


async def test_a_proxy_of_the_environment_is_used_unless_the_host_is_excepted(
    control_plane: ControlPlane, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        async with connected(control_plane.kubeconfig()) as client:
            with pytest.raises(ApiError, match="403"):
                await client.create(maps(space), a_map())
        assert asked == [f"CONNECT 127.0.0.1:{control_plane.cluster.ports.api} HTTP/1.1\r\n".encode()]
        monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
        async with connected(control_plane.kubeconfig()) as client:
            await client.create(maps(space), a_map())
        assert len(asked) == 1


CLUSTERS = [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}]
CONTEXTS = [{"name": name, "context": {"cluster": "c", "user": "u"}} for name in ("blue", "green")]
WHOLE = {"clusters": CLUSTERS, "contexts": CONTEXTS, "users": [{"name": "u", "user": {"token": "t"}}]}
GREEN = WHOLE | {"current-context": "green"}


def clusters(**cluster: Any) -> dict[str, Any]:
    return {"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"} | cluster}]}


@pytest.mark.parametrize(
    ("config", "context", "says"),
    [
        (GREEN, "red", "has no context 'red'; there are: blue, green"),
        (WHOLE, None, "names no current context; there are: blue, green"),
        ({}, None, "names no current context; there are none"),
        (GREEN | clusters(server="http://127.0.0.1:1"), None, "must begin with https://"),
        (GREEN | clusters(**{"insecure-skip-tls-verify": True}), None, "insecure-skip-tls-verify"),
        (GREEN | {"clusters": []}, None, "context 'green'"),
        (GREEN | clusters(**{"certificate-authority": "/no/such/file"}), "blue", "/no/such/file"),
        (GREEN | {"users": [{"name": "u", "user": {"exec": {"command": "x"}}}]}, None, "exec"),
        ([], None, "not a mapping"),
        (None, None, "not a mapping"),
    ],
)
async def test_what_is_wrong_with_a_kubeconfig_is_said_with_the_file_and_the_context(
    tmp_path: Path, config: Any, context: str | None, says: str
) -> None:
    file = written(tmp_path, config)
    with pytest.raises(ConnectError, match=says) as wrong:
        await connect(file, context, timeouts=TIMEOUTS)
    assert str(file) in str(wrong.value)


async def test_a_kubeconfig_that_is_not_there_or_no_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConnectError, match="nowhere"):
        await connect(tmp_path / "nowhere", None, timeouts=TIMEOUTS)
    (tmp_path / "noise").write_text("{[")
    with pytest.raises(ConnectError, match="noise is not YAML"):
        await connect(tmp_path / "noise", None, timeouts=TIMEOUTS)


async def test_lists_of_a_broken_server_are_empty_and_its_objects_are_there(
    proxy: Proxy, through: KubeClient, space: str
) -> None:
    """What the fault runs rely on."""
    await through.create(maps(space), a_map())
    proxy.mode, proxy.only = Mode.EMPTY_LIST, _reads_maps
    assert msgspec.json.decode(await through.read(maps(space), limit="500"))["items"] == []
    await through.read(f"{maps(space)}/one")


def _reads_maps(request: Request) -> bool:
    return "/configmaps" in request.path


async def test_what_may_not_be_made_any_more_is_not_sent_after_a_wait_for_its_turn(
    client: KubeClient, space: str
) -> None:
    """Given calls that fill all turns, when one is asked for that is forbidden meanwhile, then it never leaves."""
    turns = [client._turns.acquire() for _ in range(CALLS)]
    await asyncio.gather(*turns)
    allowed = [True]

    def sure() -> None:
        if not allowed[0]:
            raise RuntimeError("not any more")

    body = {"metadata": {"name": "late"}}
    late = asyncio.create_task(client.create(maps(space), body, tries=1, sure=sure))
    await asyncio.sleep(0.1)
    allowed[0] = False
    for _ in range(CALLS):
        client._turns.release()
    with pytest.raises(RuntimeError, match="not any more"):
        await late
    assert not await client.has(f"{maps(space)}/late")


def test_a_descriptor_that_still_counts_as_open_ends_a_call_and_not_the_agent(control_plane: ControlPlane) -> None:
    """As uvloop has it where a connection was given up in the middle of its making."""

    async def call() -> None:
        client = await connecting.connect(control_plane.kubeconfig(), None, timeouts=Timeouts(call_seconds=5))
        server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, "127.0.0.1", port)
        os.close(transport.get_extra_info("socket").fileno())
        with pytest.raises(ApiError) as refused:
            await client.read("/version")
        assert refused.value.unreachable
        server.close()
        await client.close()
        os._exit(0)  # the loop cannot close what is closed

    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)  # where it failed, its loop cannot be closed either
        uvloop.run(call())
    assert os.waitpid(child, 0)[1] == 0
