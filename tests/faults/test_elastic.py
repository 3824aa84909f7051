"""An elastic training on real services: it grows when another ends and shrinks when somebody waits, also where every
scheduler is killed in between.
"""

import time
from pathlib import Path
from typing import Any

import pytest

from development.stack import Api, Stack, training, until
from development.stack_check import check_at_rest
from tests.faults.test_kills import SIMULATION, all_over, unfinished
from tests.support.load import Effects

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

LONG = {"annotations": [{"name": SIMULATION, "value": "3600"}], "terminationGracePeriodSeconds": 1}


def submit(api: Api, kind: str, name: str, cluster_id: str, **spec: Any) -> str:
    body = training(name, api.project(), cluster_id, **LONG, **spec)
    if kind == "distributed":
        body["masterSpecSameAsWorker"] = False
    answer = api.http.post(f"/workloads/{kind}", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["workloadId"])


def running(api: Api, id_: str, pods: int) -> None:
    """Until so many of its pods run, and no other of its pods holds a node."""

    def reached() -> bool:
        row = row_of(api, id_)
        return (row["runningPods"], row["gpuAllocated"], row["phase"]) == (pods, pods, "Running")

    until(reached, 120, lambda: str(row_of(api, id_)))


def row_of(api: Api, id_: str) -> dict[str, Any]:
    return dict(api.get(f"/workloads/{id_}"))


def test_it_grows_and_shrinks_whoever_is_killed(tmp_path: Path) -> None:
    stack = Stack(tmp_path, "--gpus", "0").start()
    try:
        assert stack.muster("cluster", "add", "sim", "--simulated", "2x4").returncode == 0
        api = stack.api()
        sim = api.cluster("sim")
        until(lambda: len([each for each in api.get("/nodes")["nodes"] if each["clusterId"] == sim]) == 2, 30)
        other = submit(api, "trainings", "other", sim, compute={"gpuDevicesRequest": 4})
        until(lambda: row_of(api, other)["phase"] == "Running", 60)
        elastic = {"distributedFramework": "PyTorch", "numWorkers": 2, "minReplicas": 2, "maxReplicas": 8}
        grows = submit(api, "distributed", "grows", sim, **elastic, compute={"gpuDevicesRequest": 1})
        running(api, grows, 4)

        assert api.http.delete(f"/workloads/trainings/{other}").status_code == 202
        stack.kill("workers")
        running(api, grows, 8)

        waits = submit(api, "trainings", "waits", sim, priorityClass="very-low", compute={"gpuDevicesRequest": 3})
        stack.kill("workers")
        running(api, grows, 5)
        until(lambda: row_of(api, waits)["phase"] == "Running", 60)

        history = [each["message"] for each in api.get(f"/workloads/{grows}/history", limit=200)["records"]]
        assert any(each.startswith("grown by 4 pods") for each in history), history
        assert any(each.startswith("shrunk: waits waits for the place") for each in history), history
        assert api.get(f"/workloads/{grows}")["attempt"] == 1
        for kind, id_ in (("distributed", grows), ("trainings", waits)):
            assert api.http.delete(f"/workloads/{kind}/{id_}").status_code == 202
        until(lambda: all_over(api, 3), 120, lambda: unfinished(api))
        time.sleep(1)
        effects = Effects(stack.folder / "effects")
        effects.prepare()
        check_at_rest(stack, {"other": other, "grows": grows, "waits": waits}, effects.lines, ())
        stack.stop()
    finally:
        stack.close()
