"""Inferences end to end on one machine: replicas that follow their load. S054, S067 to S070."""

import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from development.stack import Api, Stack, running, until

pytestmark = pytest.mark.e2e
EXAMPLE = Path("examples") / "inference.yaml"
RATE = "simulation.muster.dev/requests-per-second"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with pytest.MonkeyPatch.context() as patch:
        # A minute of patience is two seconds.
        patch.setenv("MUSTER_AUTOSCALER_SPEED", "30")
        with running(tmp_path_factory.mktemp("up")) as stack:
            added = stack.muster("cluster", "add", "simulated", "--simulated", "2x4")
            assert added.returncode == 0, added.stderr
            yield stack


@pytest.fixture(scope="module")
def api(stack: Stack) -> Api:
    return stack.api()


def workload(api: Api, name: str) -> dict[str, Any]:
    (row,) = api.get("/workloads", filterBy=f"name=={name}")["workloads"]
    return row


def test_replicas_follow_a_stated_load_to_none_and_back(stack: Stack, api: Api) -> None:
    told = stack.muster("inference", "submit", "-f", str(EXAMPLE), "--cluster", "simulated")
    assert told.returncode == 0, told.stderr
    id_ = workload(api, "chat")["id"]
    assert stack.muster("workload", "annotate", "chat", f"{RATE}=340").returncode == 0

    def has(replicas: int, phase: str = "Running") -> None:
        def reached() -> bool:
            row = workload(api, "chat")
            return (row["phase"], row["runningPods"], row["requestedPods"]) == (phase, replicas, replicas)

        until(reached, 30, lambda: f"not {replicas} replicas: {api.story(id_)}")

    has(4)
    assert workload(api, "chat")["gpuAllocated"] == 4
    assert stack.muster("workload", "annotate", "chat", f"{RATE}=0").returncode == 0
    has(0)
    row = workload(api, "chat")
    assert (row["phaseReason"], row["gpuAllocated"]) == ("scaled_to_zero", 0)
    assert stack.muster("workload", "annotate", "chat", f"{RATE}=7").returncode == 0
    has(1)
    story = "\n".join(api.story(id_))
    assert "scaled: load 340 requests/s over 1 replica, target 100: 4 replicas (was 1)" in story
    assert "scaled: no request for 1 minute: 0 replicas" in story
    assert "scaled: 7 requests waiting while there was no replica: 1 replica (was 0)" in story
    described = stack.muster("inference", "describe", "chat")
    assert "Inference (InferenceWorkload)" in described.stdout
    read = api.get(f"/workloads/inferences/{id_}", explain="true")
    assert (read["spec"]["autoscaling"]["minReplicas"], read["setBy"]["spec.autoscaling.minReplicas"]) == (0, "default")
    assert stack.muster("inference", "suspend", "chat", "--wait", "--timeout", "30s").returncode == 0
    assert stack.muster("inference", "resume", "chat", "--wait", "--timeout", "30s").returncode == 0
    assert stack.muster("inference", "list", "-o", "name").stdout.split() == ["chat"]
    assert stack.muster("inference", "delete", "chat", "-y", "--wait", "--timeout", "30s").returncode == 0


def test_requests_to_an_inference_of_this_machine_start_its_replicas_and_their_end_ends_them(
    stack: Stack, api: Api
) -> None:
    """From zero, with the first request held; up under load; down; to zero again."""
    words = ("--command", "--", "python3", "server.py")
    scaling = ("--max-replicas", "3", "--metric", "concurrency", "--metric-threshold", "2")
    told = stack.muster(
        *("inference", "submit", "echo", "-i", "python:3.13", "--serving-port", "8000", *scaling),
        *("--scale-to-zero-retention", "1m", "--environment", "SECONDS_PER_REQUEST=0.5"),
        *("--code", str(EXAMPLE.parent / "inference"), *words),
    )
    assert told.returncode == 0, told.stderr
    id_ = workload(api, "echo")["id"]

    def has(*replicas: int, reason: str | None = None) -> None:
        def reached() -> bool:
            row = workload(api, "echo")
            return row["runningPods"] in replicas and row["phaseReason"] == reason and row["phase"] == "Running"

        until(reached, 40, lambda: f"not {replicas} replicas: {api.story(id_)}")

    has(0, reason="scaled_to_zero")
    (connection,) = api.get(f"/workloads/{id_}/connections")["connections"]
    assert connection["ready"], "the next request starts a replica"
    # Names below localhost mean this machine to browsers; not everywhere to its resolver.
    address = httpx.URL(connection["address"])
    headers = {**api.http.headers, "Host": address.netloc.decode()}
    here = address.copy_with(host="127.0.0.1")
    with httpx.Client(headers=headers, timeout=60, trust_env=False, base_url=here) as proxy:
        first = proxy.get("/first")
        assert (first.status_code, first.text.endswith("answers /first\n")) == (200, True), first.text
        with ThreadPoolExecutor(8) as clients, stopped() as stop:
            answers: set[str] = set()

            def ask() -> None:
                while not stop.is_set():
                    answer = proxy.get("/busy")
                    answers.add(f"{answer.status_code} {answer.text.partition(' answers')[0]}")

            asking = [clients.submit(ask) for _ in range(8)]
            has(3)
            until(lambda: len({*answers}) == 3, 30, lambda: f"not all of them answer: {answers}")
            stop.set()
            for one in asking:
                one.result()
        assert {answer[:3] for answer in answers} == {"200"}, "no request is lost while replicas come"
    has(0, reason="scaled_to_zero")
    story = "\n".join(api.story(id_))
    assert "requests at once over" in story
    assert stack.muster("inference", "delete", "echo", "-y", "--wait", "--timeout", "30s").returncode == 0


@contextmanager
def stopped() -> Generator[threading.Event]:
    """Set at the end, so that who waits for it does not for ever."""
    stop = threading.Event()
    try:
        yield stop
    finally:
        stop.set()


def test_evaluate_says_what_an_inference_would_be_and_a_policy_rules_it(stack: Stack, api: Api, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("rules: {autoscaling: {maxReplicas: {max: 2}}}\n")
    assert stack.muster("policy", "set", "inferences", "-f", str(file)).returncode == 0
    told = stack.muster("inference", "submit", "-f", str(EXAMPLE), "--cluster", "simulated", "--dry-run=server")
    assert "spec.autoscaling.maxReplicas" in told.stdout + told.stderr
    refused = stack.muster("inference", "submit", "-f", str(EXAMPLE), "--cluster", "simulated")
    assert refused.returncode != 0
    assert "spec.autoscaling.maxReplicas" in refused.stderr
    assert stack.muster("policy", "delete", "inferences", "-y").returncode == 0
