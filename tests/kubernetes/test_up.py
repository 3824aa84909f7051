"""`make up-kubernetes`: a simulated cluster that keeps what it knows, and of which no process stays behind."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from development.kubernetes.simulated.admin import Admin
from development.stack import Api, Stack, training, until
from tests.e2e.test_readme import commands, typed

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

SHORT = [{"name": "simulation.muster.dev/runtime-seconds", "value": "0.5"}]
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kwok")


@pytest.fixture
def stack(server_folder: Path) -> Iterator[Stack]:
    stack = Stack(server_folder / "up-kubernetes", "--nodes=2", program=("development.kubernetes.up",))
    yield stack
    stack.close()


def admin_of(stack: Stack) -> Admin:
    """As a person with the kubeconfig that it names."""
    config = yaml.safe_load((stack.data_dir / "kubernetes" / "admin.kubeconfig").read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    return Admin(url=cluster["server"], ca_file=Path(cluster["certificate-authority"]), token=user["token"])


def program(process: psutil.Process) -> str:
    """Empty where it was just killed, and may still stand in the table."""
    try:
        command = process.cmdline()
    except psutil.Error:
        return ""
    return Path(command[0]).name if command else ""


def pods(stack: Stack) -> list[dict[str, Any]]:
    return admin_of(stack).call("GET", "/api/v1/namespaces/muster-default/pods")["items"]


def submitted(api: Api, name: str) -> str:
    """Its id. Asks again after a 503, as the command line does: four programs start at once beside the log."""
    body = training(name, api.project(), api.cluster("kubernetes"), annotations=SHORT)
    answers: list[httpx.Response] = []

    def taken() -> bool:
        answers.append(api.http.post("/workloads/trainings", json=body, headers={"Idempotency-Key": name}))
        assert answers[-1].status_code in {202, 503}, answers[-1].text
        return answers[-1].status_code == 202

    until(taken, 30, lambda: answers[-1].text)
    return answers[-1].json()["workloadId"]


def test_it_runs_pods_stops_on_ctrl_c_and_finds_them_again(stack: Stack) -> None:
    stack.start()
    api = stack.api()
    until(lambda: len(api.get("/nodes")["nodes"]) == 3, 60, lambda: "the nodes do not come")
    finished = api.submit("finished", cluster="kubernetes", annotations=SHORT)["workloadId"]
    api.wait(finished, "Completed")
    running = api.submit("running", cluster="kubernetes", compute={"gpuDevicesRequest": 8})["workloadId"]
    api.wait(running, "Running")
    (pod,) = pods(stack)
    everything = stack.tree()
    assert set(PROGRAMS) <= {program(each) for each in everything}

    assert stack.process is not None
    stack.process.send_signal(signal.SIGINT)
    assert stack.process.wait(10) == 0
    assert not psutil.wait_procs(everything, timeout=1)[1]

    stack.start()
    api = stack.api()
    api.wait(running, "Running")
    assert [each["metadata"]["uid"] for each in pods(stack)] == [pod["metadata"]["uid"]], "it ran on: the same pod"
    for line in commands("On Kubernetes"):
        ran = typed(stack, line)
        assert ran.returncode == 0, f"{line}\n{ran.stdout}\n{ran.stderr}"
    assert "to node kubernetes-" in typed(stack, commands("On Kubernetes")[-1]).stdout
    another = api.submit("another", cluster="kubernetes", annotations=SHORT)["workloadId"]
    api.wait(another, "Completed")
    assert api.training(finished)["actualPhase"] == "Completed"
    stack.stop()


def test_each_of_its_programs_that_is_killed_is_started_again_and_work_goes_on(stack: Stack) -> None:
    stack.start()
    running = stack.api().submit("running", cluster="kubernetes")["workloadId"]
    stack.api().wait(running, "Running")
    (pod,) = pods(stack)
    for name in PROGRAMS:
        # kwok is started again with what it speaks to, too.
        killed = until(lambda name=name: next((each for each in stack.tree() if program(each) == name), None), 60)
        killed.kill()
        psutil.wait_procs([killed], timeout=10)
        until(lambda name=name: name in map(program, stack.tree()[1:]), 20, lambda name=name: f"{name} stays away")
    after = submitted(stack.api(), "after")
    stack.api().wait(after, "Completed", timeout_seconds=90)
    stack.api().wait(running, "Running")
    assert pod["metadata"]["uid"] in [each["metadata"]["uid"] for each in pods(stack)]
    stack.stop()


@pytest.mark.parametrize("name", ["kwok", "kube-apiserver", "etcd"])
def test_a_pod_that_was_bound_while_kubelets_could_not_look_runs_all_the_same(stack: Stack, name: str) -> None:
    """Made while kwok stands still, so that it has seen nothing of it when it, or what it speaks to, is killed."""
    stack.start()
    api = stack.api()
    kwok = next(each for each in stack.tree() if program(each) == "kwok")
    kwok.suspend()
    late = [api.submit(f"late-{number}", cluster="kubernetes", annotations=SHORT)["workloadId"] for number in range(4)]
    until(lambda: len(pods(stack)) >= len(late), 180, lambda: "no pod is made")
    killed = next(each for each in stack.tree() if program(each) == name)
    killed.kill()
    psutil.wait_procs([killed], timeout=10)
    if name != "kwok":
        kwok.resume()
    for each in late:
        api.wait(each, "Completed", timeout_seconds=90)
    stack.stop()


def test_without_its_programs_it_says_what_would_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("MUSTER_KUBE_TOOLS", str(tmp_path))
    command = [sys.executable, "-m", "development.kubernetes.up", "--port=0", "--nodes=1"]
    command.append(f"--data-dir={tmp_path / 'data'}")
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 1
    assert "make kube-tools" in refused.stderr
