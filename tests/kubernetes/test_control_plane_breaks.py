"""The simulated cluster can be broken as a real one breaks, and comes back with everything that it knew."""

import contextlib
import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from development.kubernetes.control_plane import ControlPlane
from development.kubernetes.simulated.admin import AdminError
from tests.kubernetes.simulated import PODS, Pods, stream, until

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One that no other test feels."""
    plane = ControlPlane(tmp_path_factory.mktemp("breakable"), scheduler=True)
    plane.start()
    yield plane
    plane.stop()


@pytest.fixture
def pods(breakable: ControlPlane) -> Pods:
    return Pods(breakable)


def test_nodes_whose_kubelets_fall_silent_become_unknown_and_recover(pods: Pods) -> None:
    def ready() -> str:
        node = pods.plane.admin("GET", f"/api/v1/nodes/{pods.node}")
        return next(each["status"] for each in node["status"]["conditions"] if each["type"] == "Ready")

    name = pods.create(runtime_seconds="0")
    pods.until_phase(name, "Succeeded")
    pods.plane.stop_kwok()
    others = [Pods(pods.plane) for _ in range(15)]
    late = pods.create(runtime_seconds="0")
    on_others = [other.create(runtime_seconds="0") for other in others]
    until(lambda: ready() == "Unknown")
    assert pods.read(late)["status"]["phase"] == "Pending"

    pods.plane.start_kwok()

    until(lambda: ready() == "True")
    for each in (late, *on_others):
        pods.until_phase(each, "Succeeded")


def test_objects_outlive_the_api_server_and_etcd(pods: Pods) -> None:
    name = pods.create()
    pods.until_phase(name, "Running")
    pods.plane.kill_api_server()
    with pytest.raises(OSError, match="refused"):
        pods.read(name)
    pods.plane.start_api_server()
    pods.plane.restart_etcd()
    assert until(lambda: found(pods, name))
    after = pods.create(runtime_seconds="0")
    pods.until_phase(after, "Succeeded")


def test_a_watch_from_before_a_compaction_is_told_that_it_is_too_old(pods: Pods) -> None:
    version = pods.plane.admin("GET", PODS)["metadata"]["resourceVersion"]
    pods.until_phase(pods.create(runtime_seconds="0"), "Succeeded")
    pods.plane.compact()
    pods.plane.restart_api_server()
    path = f"{PODS}?watch=true&resourceVersion={version}"
    with contextlib.closing(stream(pods.plane, path)) as lines:
        event = json.loads(next(lines))
    assert event["object"]["code"] == http.client.GONE


def test_the_real_scheduler_places_pods_on_the_same_nodes(pods: Pods) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "to-be-placed"},
        "spec": {
            "containers": [
                {"name": "main", "image": "image", "resources": {"limits": {"nvidia.com/gpu": "8"}}},
            ]
        },
    }
    pods.plane.admin("POST", PODS, pod)
    assert pods.until_phase("to-be-placed", "Running")["spec"]["nodeName"]


def test_nothing_of_it_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    program = """
import sys, threading, time
from pathlib import Path
from development.kubernetes.control_plane import ControlPlane
plane = ControlPlane(Path(sys.argv[1]))
starter = threading.Thread(target=plane.start)
starter.start(); starter.join()
plane.admin("GET", "/readyz")  # also when the thread that started it has ended
print("serves", flush=True)
time.sleep(600)
"""
    starter = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    with starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"serves\n"
        children = psutil.Process(starter.pid).children()
        assert len(children) == 4
        starter.kill()
    assert psutil.wait_procs(children, timeout=30)[1] == []


def found(pods: Pods, name: str) -> bool:
    """Whether it is there; an API server that has just lost its etcd refuses for a moment."""
    try:
        return bool(pods.read(name))
    except AdminError:
        return False
