"""A thousand simulated nodes, five thousand one-GPU trainings (kubernetes.md; goals for two cores).

Three stretches on one control plane, each from an empty cluster to an empty one, with the same pods:

1. *bare*: kubernetes-asyncio creates them, each with its node, as fast as it can;
2. *kube-scheduler*: the same loop without nodes, and Kubernetes' own scheduler places them;
3. *Muster*: submitted through its HTTP API; every service is real, the agent has the rights of deploy/kubernetes.

Moments: when the log stored a commit, when the API server noted down that it had made a pod, and when a watch of it (a
process of its own) brought that one runs. "Pods created" counts from the first created pod to the last; "submit ->
Running of all" from the first request, to Muster or to the API server, until all pods were seen running.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.kubernetes_phase import REST_SECONDS, CpuClock, Times, rate, result, start, story
from benchmarks.report import Figure, Report, quantile
from development.kubernetes.checker import check_all
from development.kubernetes.stack import (
    AGENT_ACCOUNT,
    AGENT_NAMESPACE,
    SIMULATION,
    TOKEN_SECONDS,
    KubernetesStack,
    running_stack,
    simulated,
)
from development.servers import EVERYTHING
from development.stack import training, until
from events.cluster_protocol import RunPod
from events.node import DeviceShare
from events.subjects import EVENTS_STREAM
from events.workload.pod import PodRef
from services.agent.backends.kubernetes.act.manifests import namespace_manifest, pod_manifest
from services.runtime.nats.connection import connect

CREATES_AT_ONCE = 64
"""Of the bare loop; as many as the agent has on their way at most."""
HTTP_CLIENTS = 64
PACE = 10
"""Submits per second where no pod waits for another."""
NAMESPACE = "muster-bench"
PATIENCE_SECONDS = 600.0
MARK = "@NAME@"


def run(report: Report, *, short: bool) -> None:
    """Print the figures of the Kubernetes backend. Needs a control plane (`make kube-tools`)."""
    nodes, pods = (100, 200) if short else (1000, 5000)
    runtime_seconds = 15 if short else 90
    with running_stack(agents=0, nodes=nodes, gpus=8, node_monitor_grace_seconds=40, audit=True) as stack:
        stack.plane.admin("POST", "/api/v1/namespaces", _namespace())
        bare = _bare(report, stack, pods)
        peer = _kube_scheduler(report, stack, pods)
        stack.agent().start()
        stack.wait_connected(120)
        _muster(report, stack, pods, runtime_seconds, bare=bare, peer=peer)


def _bare(report: Report, stack: KubernetesStack, count: int) -> float:
    """Pods created per second."""
    with story(stack.plane, stack.folder / "bare") as told, _cpu(report, "bare", stack, count) as used:
        used["client"] = result(_create(stack, count, _pod(), stack.node_names))["cpu_seconds"]
        told.wait(PATIENCE_SECONDS, created=count, running=count)
    times = told.times().values()
    _clear(stack)
    return rate([pod.created for pod in times])


def _kube_scheduler(report: Report, stack: KubernetesStack, count: int) -> float:
    """Seconds until the last pod ran."""
    stack.plane.start_scheduler()
    time.sleep(REST_SECONDS)
    pod = _pod()
    pod["spec"]["schedulerName"] = "default-scheduler"
    del pod["spec"]["nodeName"]
    with story(stack.plane, stack.folder / "scheduler") as told, _cpu(report, "kube-scheduler", stack, count) as used:
        created = result(_create(stack, count, pod, []))
        used["client"] = created["cpu_seconds"]
        told.wait(PATIENCE_SECONDS, running=count)
    times = told.times().values()
    stack.plane.stop_scheduler()
    _clear(stack)
    return max(pod.running for pod in times) - created["began"]


def _muster(
    report: Report, stack: KubernetesStack, count: int, runtime_seconds: float, *, bare: float, peer: float
) -> None:
    """A few one after the other, which find nobody before them, then all at once."""
    few = count // 25
    with story(stack.plane, stack.folder / "muster") as told:
        paced = result(_submit(stack, "paced", runtime_seconds=1, rate=PACE, seconds=few / PACE))
        told.wait(PATIENCE_SECONDS, gone=few)
        with _cpu(report, "Muster", stack, count) as used:
            sent = result(_submit(stack, "flood", runtime_seconds=runtime_seconds, count=count))
            used["client"] = sent["cpu_seconds"]
            assert sent["statuses"] == {"202": count}, sent["statuses"]
            told.wait(PATIENCE_SECONDS, running=few + count)
        told.wait(PATIENCE_SECONDS, ended=few + count, gone=few + count)
        until(lambda: _completed(stack) == few + count, PATIENCE_SECONDS, lambda: f"{_completed(stack)} completed")
    found = check_all(stack, told, paced["ids"] | sent["ids"])
    assert len(found.log.completed) == few + count, f"{len(found.log.completed)} of {few + count} completed"
    _report(report, stack, list(told.times().values()), sent, bare=bare, peer=peer)


def _submit(stack: KubernetesStack, prefix: str, *, runtime_seconds: float, **pace: float) -> Any:
    spec = simulated(runtime_seconds, command="python train.py", compute={"gpuDevicesRequest": 1})
    plan = {
        "port": stack.http_port,
        "token": stack.api.http.headers["Authorization"][7:],
        "body": json.dumps(training(MARK, stack.api.project(), stack.cluster_id, **spec)),
        "clients": HTTP_CLIENTS,
        "seconds": PATIENCE_SECONDS,
        "prefix": prefix,
        "ids": True,
    }
    return start("benchmarks.loadgen", plan | pace)


@contextlib.contextmanager
def _cpu(report: Report, name: str, stack: KubernetesStack, count: int) -> Generator[dict[str, float]]:
    """Say who used the processors, from the first request until all pods ran. What is put in counts with it."""
    clock = CpuClock(_processes(stack))
    used: dict[str, float] = {}
    yield used
    used |= clock.used()
    total = 1000 * sum(used.values()) / count
    report.add(Figure(name=f"  {name}: CPU until all run", value=total, unit="ms/pod"))
    each = sorted(used.items(), key=lambda item: -item[1])
    print("    " + ", ".join(f"{who} {1000 * seconds / count:.2f}" for who, seconds in each), flush=True)


def _report(
    report: Report, stack: KubernetesStack, pods: list[Times], sent: dict[str, Any], *, bare: float, peer: float
) -> None:
    bound = _bound_at(stack)
    flood = [pod for pod in pods if bound[pod.token] >= sent["began"]]
    paced = [pod for pod in pods if bound[pod.token] < sent["began"]]
    for name, some in ((f"{PACE}/s", paced), ("all at once", flood)):
        waits = [1000 * (pod.created - bound[pod.token]) for pod in some]
        for q, word in ((0.5, "p50"), (0.99, "p99")):
            report.add(Figure(name=f"{name}: bound -> pod created {word}", value=quantile(waits, q), unit="ms"))
    accepted = sent["statuses"]["202"] / sent["seconds"]
    report.add(Figure(name=f"all at once: submits, {HTTP_CLIENTS} clients", value=accepted, unit="/s"))
    created = rate([pod.created for pod in flood])
    report.add(Figure(name="all at once: pods created", value=created, unit="/s", baseline=bare, goal_ratio=0.60))
    seconds = max(pod.running for pod in flood) - sent["began"]
    name = "submit -> Running of all (goal: kube-scheduler's)"
    report.add(Figure(name=name, value=seconds, unit="s", goal=peer, at_most=True))
    memory = _peak_bytes(stack.agents[0].pid) / 2**20
    report.add(Figure(name="agent: resident at most", value=memory, unit="MiB", goal=300, at_most=True))


def _create(stack: KubernetesStack, count: int, body: dict[str, Any], nodes: list[str]) -> Any:
    token = stack.plane.service_account_token(AGENT_NAMESPACE, AGENT_ACCOUNT, TOKEN_SECONDS)
    plan = {"kubeconfig": str(stack.plane.kubeconfig(token)), "body": body, "nodes": nodes}
    return start("benchmarks.kubernetes_bare", plan | {"count": count, "at_once": CREATES_AT_ONCE})


def _clear(stack: KubernetesStack) -> None:
    plan = {"kubeconfig": str(stack.plane.kubeconfig()), "delete_in": NAMESPACE, "at_once": CREATES_AT_ONCE}
    result(start("benchmarks.kubernetes_bare", plan))
    until(lambda: not stack.plane.admin("GET", "/api/v1/pods", limit=1)["items"], PATIENCE_SECONDS)
    time.sleep(REST_SECONDS)


def _namespace() -> dict[str, Any]:
    """As the agent makes them: each pod, made with the agent's rights, is held against the same rules."""
    return namespace_manifest(NAMESPACE, cluster_id="none", project_id="none", project_name="bench")


def _pod() -> dict[str, Any]:
    """What Muster makes of the benchmark's training, but for the finalizer, which nobody would take off here."""
    name = "bench-10-100"
    made = RunPod(
        pod_key="0123456789abcdef0123456789abcdef-main-0",
        token=1,
        workload_id="01234567-89ab-cdef-0123-456789abcdef",
        workload_name=name,
        project_id="01234567-89ab-cdef-0123-456789abcdef",
        project_name="default",
        pod=PodRef(pod_set="main", index=0, attempt=1, try_=0),
        node_name="node-0",
        devices=(DeviceShare(device=0, milli=1000),),
        image="python:3.13",
        arguments=("python", "train.py"),
        annotations={f"{SIMULATION}/why": "a bare pod"},
    )
    manifest = pod_manifest(made, cluster_id="none", namespace=NAMESPACE)
    del manifest["metadata"]["finalizers"]
    manifest["metadata"]["name"] = name
    return manifest


def _processes(stack: KubernetesStack) -> dict[str, psutil.Process]:
    """Everything that runs, by a name for people. What a process starts counts with it."""
    parts = {"api+commands": stack.control, "scheduler+projector": stack.workers, "cluster_sync": stack.cluster_sync}
    parts |= {program.name: program for program in stack.agents}
    named = {program.pid: name for name, program in parts.items()}
    found: dict[str, psutil.Process] = {}
    for process in psutil.Process().children():
        name = named.get(process.pid) or process.name()
        module = " ".join(process.cmdline()).partition("-m benchmarks.")[2].partition(" ")[0]
        found[module or name] = process
    return found


def _peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024


def _completed(stack: KubernetesStack) -> int:
    return stack.api.get("/workloads/count", filterBy="phase==Completed")["count"]


def _bound_at(stack: KubernetesStack) -> dict[int, float]:
    """When each run was bound, by its token: the moment at which the log stored the commit."""
    return asyncio.run(_read_bound(stack))


async def _read_bound(stack: KubernetesStack) -> dict[int, float]:
    nc = await connect(stack.nats.settings(EVERYTHING), EVERYTHING)
    try:
        js = nc.jetstream()
        left = (await js.stream_info(EVENTS_STREAM)).state.messages
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True)
        subscription = await js.pull_subscribe("ev.>", stream=EVENTS_STREAM, config=config)
        found: dict[int, float] = {}
        while left:
            for message in await subscription.fetch(min(left, 1000), timeout=10):
                left -= 1
                if b'"PodsBound"' not in message.data:
                    continue
                for event in json.loads(message.data)["events"]:
                    if event["type"] == "PodsBound":
                        found[event["data"]["token"]] = message.metadata.timestamp.timestamp()
        return found
    finally:
        await nc.close()
