"""`muster cluster add --kubeconfig` on a real API server, with the rights of deploy/kubernetes and no more."""

import contextlib
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from development.kubernetes.control_plane import ControlPlane
from development.stack import PARTS, Stack, until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

DEPLOY = Path(__file__).parents[2] / "deploy" / "kubernetes"
SHORT = [{"name": "simulation.muster.dev/runtime-seconds", "value": "0.5"}]


@pytest.fixture
def stack(server_folder: Path) -> Iterator[Stack]:
    stack = Stack(server_folder / "cluster-add")
    yield stack.start()
    stack.close()


@pytest.fixture
def plane(control_plane: ControlPlane) -> ControlPlane:
    for name in ("namespace.yaml", "accounts.yaml", "roles.yaml"):
        control_plane.apply(yaml.safe_load_all((DEPLOY / name).read_text()))
    control_plane.add_nodes([f"add-{secrets.token_hex(4)}"], gpus=2)
    return control_plane


def agents(stack: Stack) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in stack.tree():
        # One that was just killed may still stand in the table, with nothing to tell.
        with contextlib.suppress(psutil.Error):
            if "services.agent" in process.cmdline():
                found.append(process)
    return found


def parts(stack: Stack) -> list[psutil.Process | None]:
    return [stack.part(part) for part in PARTS]


def listed(stack: Stack) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(stack.muster("cluster", "list", "-o", "json").stdout)}


def add(stack: Stack, kubeconfig: Path, *options: str) -> tuple[int, str]:
    ran = stack.muster("cluster", "add", "lab", "--kubeconfig", str(kubeconfig), *options)
    return ran.returncode, ran.stderr


def test_a_cluster_is_refused_added_served_and_removed(stack: Stack, plane: ControlPlane, tmp_path: Path) -> None:
    before = parts(stack)
    clusters = stack.data_dir / "clusters"

    # What cannot work is refused, and nothing of it stays.
    plane.apply(
        [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody", "namespace": "default"}}]
    )
    nobody = plane.kubeconfig(plane.service_account_token("default", "nobody"))
    for kubeconfig, said in ((nobody, "not allowed: list nodes"), (plane.kubeconfig("wrong-token"), "Unauthorized")):
        code, told = add(stack, kubeconfig)
        assert (code, said in told) == (4, True), told
    assert add(stack, nobody, "--context", "elsewhere")[0] == 2
    assert list(clusters.iterdir()) == []
    assert set(listed(stack)) == {"local"}

    # With exactly the agent's rights it is connected, and nothing else is disturbed.
    kubeconfig = plane.kubeconfig(plane.service_account_token("muster-system", "muster-agent"))
    code, told = add(stack, kubeconfig)
    assert code == 0, told
    assert "GPUs are shared there only after" in told
    assert "cluster lab is connected" in told, told
    (stored,) = clusters.iterdir()
    assert stored.stat().st_mode & 0o777 == 0o600
    assert str(plane.ca_file) not in stored.read_text()
    (agent,) = agents(stack)
    environment = {name for name in agent.environ() if name.startswith("MUSTER_")}
    assert not environment & {"MUSTER_POSTGRES_URL", "MUSTER_KEY_FILE", "MUSTER_NATS_PASSWORD_DIR"}
    assert parts(stack) == before

    # It runs pods.
    until(lambda: (listed(stack)["lab"]["gpus"] or 0) >= 2, 30, lambda: str(listed(stack)))
    api = stack.api()
    api.wait(api.submit("first", cluster="lab", annotations=SHORT)["workloadId"], "Completed")

    # An agent that dies comes back; the same command again changes nothing but the kubeconfig.
    agent.kill()
    until(lambda: [one for one in agents(stack) if one.pid != agent.pid], 20, lambda: "it does not come back")
    api.wait(api.submit("second", cluster="lab", annotations=SHORT)["workloadId"], "Completed")
    code, told = add(stack, plane.kubeconfig())
    assert code == 0, told
    assert "GPUs are shared" not in told
    assert [path.name for path in clusters.iterdir()] == [stored.name]

    # The next `muster up` has it again.
    stack.stop()
    stack.start()
    api = stack.api()
    api.wait(api.submit("third", cluster="lab", annotations=SHORT)["workloadId"], "Completed")

    # Removed, it leaves nothing behind here.
    assert stack.muster("cluster", "remove", "lab", "-y").returncode == 0
    assert list(clusters.iterdir()) == []
    until(lambda: not agents(stack), 10, lambda: "its agent runs on")
    nats = stack.data_dir / "nats" / "nats.conf"
    until(lambda: stored.name not in nats.read_text(), 10, lambda: "NATS knows its agent")
    password = stack.data_dir / "secrets" / "nats" / f"agent-{stored.name}"
    until(lambda: not password.exists(), 10, lambda: "its agent's password stays")
    assert set(listed(stack)) == {"local"}
    stack.stop()


def test_what_broke_off_is_completed_by_the_same_command(stack: Stack, plane: ControlPlane) -> None:
    """The cluster was added, and the machine lost its power before the kubeconfig was kept."""
    assert stack.muster("cluster", "add", "lab", "--kubernetes").returncode == 0
    identifier = stack.api().cluster("lab")
    code, told = add(stack, plane.kubeconfig())
    assert code == 0, told
    # `cluster add` says so, or after its own wait that the agent is not heard yet: on a busy machine it is later.
    api = stack.api()
    until(lambda: ("lab", "Connected") in {(c["name"], c["status"]) for c in api.get("/clusters")["clusters"]}, 180)
    assert [path.name for path in (stack.data_dir / "clusters").iterdir()] == [identifier]
    stack.stop()


def test_a_name_that_is_taken_by_another_kind_is_refused_with_nothing_kept(stack: Stack, plane: ControlPlane) -> None:
    ran = stack.muster("cluster", "add", "local", "--kubeconfig", str(plane.kubeconfig()))
    assert (ran.returncode, "already exists" in ran.stderr) == (5, True), ran.stderr
    assert list((stack.data_dir / "clusters").iterdir()) == []
    stack.stop()
