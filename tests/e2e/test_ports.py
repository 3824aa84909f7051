"""Ports and exposed URLs end to end on one machine: a real `muster up`, its proxy, a program that serves."""

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from development.stack import Api, Stack, running, until

pytestmark = pytest.mark.e2e
EXAMPLE = Path("examples") / "served.yaml"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("up")) as stack:
        yield stack


@pytest.fixture(scope="module")
def api(stack: Stack) -> Api:
    return stack.api()


def asked(url: str, **headers: str) -> httpx.Response:
    """As a browser would, which knows that every name below localhost is this machine."""
    parts = urlsplit(url)
    target = f"http://127.0.0.1:{parts.port}{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    return httpx.get(target, headers={"host": parts.netloc, **headers}, timeout=20)


def connections(api: Api, workload_id: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in api.get(f"/workloads/{workload_id}/connections")["connections"]}


def served(api: Api, name: str) -> str:
    (row,) = api.get("/workloads", filterBy=f"name=={name}")["workloads"]
    return row["id"]


def test_the_example_serves_by_its_url_and_by_its_node_port(stack: Stack, api: Api) -> None:
    """S028, S029, S030, S031, S033."""
    told = stack.muster("workspace", "submit", "-f", str(EXAMPLE))
    assert told.returncode == 0, told.stderr
    workload = served(api, "served")
    found = until(lambda: found if (found := connections(api, workload))["files"]["ready"] else None, 40)
    assert (found["files"]["connectionType"], found["direct"]["connectionType"]) == ("ExternalUrl", "NodePort")
    url, direct = found["files"]["address"], found["direct"]["address"]
    assert urlsplit(url).hostname == f"served-8888-{workload.replace('-', '')[:12]}.localhost"
    assert until(lambda: "Directory listing" in _text(f"http://{direct}") or None, 20)
    assert asked(url).status_code == 401
    assert "Directory listing" in asked(url, authorization=f"Bearer {stack.token('bea')}").text
    link = stack.muster("workspace", "open", "served", "--no-browser").stdout.strip()
    signed_in = asked(link)
    assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/")
    cookie = signed_in.headers["set-cookie"].partition(";")[0]
    assert "Directory listing" in asked(url, cookie=cookie).text
    assert asked(link).status_code == 400
    shown = stack.muster("workspace", "describe", "served").stdout
    assert url in shown
    listed = stack.muster("workload", "connections", "served")
    assert direct in listed.stdout, listed.stderr
    assert stack.muster("workspace", "delete", "served").returncode == 0
    until(lambda: asked(url, cookie=cookie).status_code == 401 or None, 20)


def _text(url: str) -> str:
    try:
        return httpx.get(url, timeout=5).text
    except httpx.HTTPError:
        return ""


def test_flags_say_who_may_open_it_and_a_taken_address_or_node_port_is_told(stack: Stack, api: Api) -> None:
    """S028, S030, S096, R11."""
    submit = ("workspace", "submit")
    words = ("-i", "x", "--command", "--", "python3", "-c", "import time; time.sleep(60)")
    domain = urlsplit(_domain(stack)).netloc
    mine = f"container=80,url=http://mine.{domain},authusers=ann;bea"
    told = stack.muster(*submit, "mine", "--external-url", mine, *words)
    assert told.returncode == 0, told.stderr
    spec = api.get(f"/workloads/{served(api, 'mine')}")["spec"]
    assert spec["exposedUrls"][0]["authorizedUsers"] == ["ann", "bea"]
    again = stack.muster(*submit, "again", "--external-url", mine, *words)
    assert again.returncode == 6, again.stderr
    assert "another workload has the address 'mine'" in again.stderr
    stranger = stack.muster(*submit, "group", "--external-url", "container=80,authgroups=research", *words)
    assert "you are a member of none of them" in stranger.stderr
    with _some_node_port() as taken:
        port = f"container=80,service-type=NodePort,external={taken.getsockname()[1]}"
        assert stack.muster("training", "submit", "taken", "--port", port, *words).returncode == 0
        ended = api.wait(served(api, "taken"), "Failed")
    assert ended["actualPhase"] == "Failed"
    (row,) = api.get("/workloads", filterBy="name==taken")["workloads"]
    assert row["phaseReason"] == "node_port_taken"
    assert "is in use" in row["phaseMessage"]


def _some_node_port() -> socket.socket:
    """That somebody listens on."""
    for number in range(32_700, 32_768):
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", number))
    raise AssertionError("no node port is free")


def _domain(stack: Stack) -> str:
    """Where this one's proxy is."""
    return f"http://localhost:{json.loads((stack.data_dir / 'ports.json').read_text())['proxy']}"
