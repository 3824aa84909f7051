"""What a request to make a workload costs: the largest that is legal, in CPU alone, and `:evaluate` of a common one."""

import gc
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import Figure, Report, quantile
from development.stack import running, training
from events.asset_specs import spec_node
from events.workload.kinds import KINDS
from services.api.check import FaultyCreation, check_creation
from services.api.explain import set_by
from services.api.merge import Layer, Merged, alone, merged
from services.api.not_yet import not_yet_in_force
from services.runtime.process.host import GC_ALLOCATIONS

ITEMS = 1_000
"""Of each list: the contract's maxItems."""
KIND = KINDS["Training"]
GOAL_MILLISECONDS = 5
EVALUATE_GOAL_MILLISECONDS = 30


def run(report: Report, *, short: bool) -> None:
    """Print the figures of checking, merging and converting, and of evaluation."""
    gc.collect()
    gc.freeze()  # as the API's process does
    gc.set_threshold(GC_ALLOCATIONS, 20, 20)
    spec, below = _spec(), _spec()
    node = spec_node(KIND.name)
    request = Layer(source="request", name="", spec=spec)
    template = Layer(source="template", name="t", spec=below)
    times = 5 if short else 40
    size = len(json.dumps(_body(spec)).encode()) // 1024
    plain = _cpu(lambda: _command(alone(node, request)), times)
    over = _cpu(lambda: _command(merged(node, [template, request])), times)
    report.add(
        Figure(
            name=f"largest request ({size} KiB): checked, merged, converted",
            value=plain,
            unit="ms of CPU",
            goal=GOAL_MILLISECONDS,
            at_most=True,
        )
    )
    report.add(Figure(name="  over a template with as many items", value=over, unit="ms of CPU"))
    _evaluate(report, count=50 if short else 500)


def _spec() -> dict[str, Any]:
    """Seven lists of plain items, each as long as it may be."""
    many = range(ITEMS)
    return {
        "image": "python:3.13",
        "labels": [{"name": f"l{at}", "value": "v"} for at in many],
        "annotations": [{"name": f"l{at}", "value": "some text of thirty characters"} for at in many],
        "environmentVariables": [{"name": f"L{at}", "value": "v"} for at in many],
        "relatedUrls": [{"url": f"https://x.example/{at}", "type": "wandb", "name": f"u{at}"} for at in many],
        "imagePullSecrets": [{"name": f"s{at}"} for at in many],
        "tolerations": [
            {"name": f"t{at}", "key": f"k{at}", "operator": "Exists", "effect": "NoSchedule"} for at in many
        ],
        "compute": {"extendedResources": [{"resource": f"e.example/x{at}", "quantity": "1"} for at in many]},
    }


def _body(spec: dict[str, Any]) -> dict[str, Any]:
    some_id = "00000000-0000-4000-8000-000000000000"
    return {"name": "large", "projectId": some_id, "clusterId": some_id, "spec": spec}


def _command(whole: Merged) -> None:
    """From the merged layers to what is stored, and what is answered beside it."""
    checked = check_creation(KIND.creation, _body(whole.spec))
    assert not isinstance(checked, FaultyCreation), checked.issues[:3]
    ordered, beside = checked.order()
    full = KIND.with_defaults(ordered)
    set_by(KIND, whole, full, beside)
    not_yet_in_force(full)


def _cpu(act: Callable[[], object], times: int) -> float:
    """Milliseconds, of the quickest: others share the machine."""
    took: list[float] = []
    for _ in range(times):
        began = time.process_time()
        act()
        took.append(time.process_time() - began)
    return 1000 * min(took)


def _evaluate(report: Report, *, count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder, running(Path(folder), "--gpus", "2") as stack:
        api = stack.api()
        body = training("asked", api.project(), api.cluster("local"), command="true")
        waits: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            answer = api.http.post("/workloads/trainings:evaluate", json=body)
            waits.append(time.perf_counter() - began)
            assert answer.status_code == 200, answer.text
            assert answer.json()["accepted"], answer.text
        p50, p99 = (1000 * quantile(waits, q) for q in (0.5, 0.99))
        report.add(Figure(name="evaluate: p50", value=p50, unit="ms"))
        report.add(Figure(name="evaluate: p99", value=p99, unit="ms", goal=EVALUATE_GOAL_MILLISECONDS, at_most=True))
