"""Gangs beside single pods on a full cluster, while processes are killed and nodes are cordoned and drained: the
checker holds the log to it that no part of a gang is ever bound, and in the end nothing waits.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from development.stack import Api, Part, Stack, training, until
from development.stack_check import check_at_rest
from tests.faults.test_kills import SIMULATION, all_over, brief, pause, unfinished
from tests.support.load import PLANS, Effects, Person, Submitter
from tests.support.second import Second, second

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

NODES = 8
MARKS: list[tuple[str, Any]] = [("cordon", None), ("drain", {"force": False}), ("drain", {"force": True})]


def gang(chance: random.Random) -> dict[str, Any]:
    """From a few pods to more than half of the cluster, some of which fail, and most of which end soon."""
    annotations = [{"name": SIMULATION, "value": str(chance.choice((0.3, 0.6, 1.5)))}]
    if chance.random() < 0.15:
        annotations.append({"name": "simulation.muster.dev/exit-code", "value": "3"})
    return {
        "distributedFramework": "PyTorch",
        "numWorkers": chance.choice((2, 3, 5, 8, 16, 36)),
        "annotations": annotations,
        "backoffLimit": chance.choice((0, 2, 6)),
        "priorityClass": chance.choice(("low", "medium", "medium-high")),
        "compute": {"gpuDevicesRequest": 1, "cpuCoreRequest": 0.1},
    }


@dataclass
class Gangs(Person):
    """Submits gangs, and often suspends, resumes and deletes one at once or a moment later."""

    cluster_id: str = ""
    project_id: str = ""
    acknowledged: dict[str, str] = field(default_factory=dict[str, str])
    number: int = 0

    def act(self) -> None:
        self.number += 1
        name = f"{self.prefix}-{self.number}"
        body = training(name, self.project_id, self.cluster_id, **gang(self.chance))
        body["masterSpecSameAsWorker"] = self.chance.random() < 0.5
        answer = self.ask("POST", "/workloads/distributed", key=name, body=body)
        if answer is None or answer.status_code != 202:
            self.problems.append(f"{name} was not taken: {answer and answer.text}")
            return
        id_ = self.acknowledged[name] = answer.json()["workloadId"]
        for number, verb in enumerate(self.chance.choice((*PLANS, ("suspend", "resume"), (), ()))):
            self.stopping.wait(self.chance.choice((0.0, 0.05, 0.3, 1.0)))
            method, path = ("DELETE", "") if verb == "delete" else ("POST", f"/{verb}")
            self.ask(method, f"/workloads/distributed/{id_}{path}", key=f"{verb}-{number}-{id_}")
        self.stopping.wait(self.chance.expovariate(2))


@dataclass
class Keeper(Person):
    """Cordons or drains a node, and takes the mark off a moment later."""

    cluster_id: str = ""
    nodes: Sequence[str] = ()

    def act(self) -> None:
        path = f"/nodes/{self.cluster_id}/{self.chance.choice(self.nodes)}"
        verb, body = self.chance.choice(MARKS)
        self.ask("POST", f"{path}/{verb}", body=body)
        time.sleep(self.chance.uniform(0.05, 0.5))
        self.ask("POST", f"{path}/uncordon")
        time.sleep(self.chance.uniform(0.05, 0.5))


def nodes_of(api: Api, cluster_id: str) -> list[str]:
    def found() -> list[str] | None:
        names = [node["name"] for node in api.get("/nodes")["nodes"] if node["clusterId"] == cluster_id]
        return names if len(names) == NODES else None

    return until(found, 30)


def test_no_part_of_a_gang_is_ever_bound_whatever_is_killed(tmp_path: Path, rounds: int, chance: random.Random) -> None:
    stack = Stack(tmp_path, "--gpus", "0").start()
    try:
        added = stack.muster("cluster", "add", "sim", "--simulated", f"{NODES}x8")
        assert added.returncode == 0, added.stderr
        api = stack.api()
        sim, project = api.cluster("sim"), api.project()

        def own() -> random.Random:
            return random.Random(chance.random())

        gangs = [
            Gangs([stack.api()], own(), f"gang-{number}", cluster_id=sim, project_id=project) for number in range(3)
        ]
        singles = Submitter(
            [stack.api()], own(), "single", per_second=4, spec=brief, cluster_id=sim, project_id=project
        )
        keeper = Keeper([stack.api()], own(), "keeper", cluster_id=sim, nodes=nodes_of(api, sim))
        people: list[Person] = [*gangs, singles, keeper]
        with second(stack, "scheduler") as (other,):
            for person in people:
                person.start()
            for _ in range(rounds):
                pause(chance)
                # Both schedulers at the same moment, too.
                kills: list[tuple[Second | Part, ...]] = [(other,), ("workers",), ("control",), (other, "workers")]
                for killed in chance.choice(kills):
                    if isinstance(killed, Second):
                        killed.kill()
                    else:
                        stack.kill(killed)
            for person in people:
                person.stop()
        assert [problem for person in people for problem in person.problems] == []
        acknowledged = {name: id_ for one in (*gangs, singles) for name, id_ in one.acknowledged.items()}
        until(lambda: all_over(api, len(acknowledged)), 180, lambda: unfinished(api))
        time.sleep(1)
        effects = Effects(stack.folder / "effects")
        effects.prepare()
        report = check_at_rest(stack, acknowledged, effects.lines, ())
        print(f"\n{rounds} kills, {len(acknowledged)} acknowledged, {report.bindings} bindings")
        stack.stop()
    finally:
        stack.close()
