"""The plan follows from the log: not from the hashes of a process, nor from when a fold was settled or restored."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

from events.workload.fields.scheduling import PodAffinity
from tests.scheduler.world import World

READ = """
import pickle, sys
from services.scheduler.fold import SchedulingState
from services.scheduler.plan import plan

commits, now = pickle.load(open(sys.argv[1], "rb"))
fresh, kept, restored = (SchedulingState() for _ in range(3))
for commit in commits:
    fresh.apply(commit)
    kept.apply(commit)
    kept.settle(now)
restored.restore(kept.seq, {name: dict(chains) for name, chains in kept.chains.items()}, beside=kept.beside())
for fold in (fresh, kept, restored):
    snapshot = fold.snapshot(now)
    planned = plan(snapshot)
    print([(b.name, b.placement.pod.index, b.placement.node_name, b.placement.devices) for b in planned.bindings],
          [(e.name, e.pods) for e in planned.evictions], [(u.key, u.waiting) for u in planned.updates],
          snapshot.nodes.names, snapshot.nodes.pool_numbers, [queue.pod_class for queue in snapshot.queues],
          [*snapshot.projects], [*snapshot.running], snapshot.held_in, snapshot.leaving, snapshot.releases)
"""


def a_log() -> World:
    """Nodes that are alike, pods that run, two projects, several classes of pods that wait, and one that stops."""
    world = World()
    world.cluster(pools=("a", "b"))
    projects = [world.project(name) for name in ("first", "second", "third")]
    for n in range(8):
        world.node(f"n{n}", gpu_count=4, labels={"zone": "xy"[n % 2]}, pool="ab"[n // 4])
    ran = [world.submit(f"r{n}", project_id=id_, gpu_devices_request=1) for n, id_ in enumerate(projects)]
    world.cycle()
    for key in ran:
        world.fact(key, "running")
    world.fact(ran[0], "succeeded")
    for n, project_id in enumerate(projects * 2):
        world.submit(f"w{n}", project_id=project_id, gpu_devices_request=1 + n % 2, completions=2, parallelism=2)
    together = PodAffinity(type="Required", key="zone")
    world.submit("together", gpu_devices_request=1, completions=4, parallelism=4, pod_affinity=together)
    world.submit("never", gpu_devices_request=8)
    return world


def test_a_plan_follows_from_the_log_alone(tmp_path: Path) -> None:
    world = a_log()
    log = tmp_path / "log"
    log.write_bytes(pickle.dumps((world.commits, world.now)))
    children = [
        subprocess.Popen(
            [sys.executable, "-c", READ, str(log)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1", "2")
    ]
    plans = [line for child in children for line in child.communicate(timeout=60)[0].splitlines()]
    assert len(plans) == 9
    assert "together" in plans[0]
    assert len(set(plans)) == 1
