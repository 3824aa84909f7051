"""A random log of all that can be asked about as of a moment, and the API's answers against the checker's books."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import httpx

from development.checker.answers import differences, items, lists
from development.checker.log import LogChecker
from development.checker.records import RawMessage
from events.cluster import (
    AddCluster,
    NodePool,
    RefusedReport,
    RemoveCluster,
    RemoveNodePool,
    ReportCluster,
    SetNodePool,
    SetOwnershipProtection,
)
from events.codec import encode_commit
from events.commit import Commit
from events.ids import TENANT_KEY, cluster_key, node_key, project_key
from events.node import CordonNode, NodeFacts, ReportNode, ReportNodeGone, UncordonNode
from events.project import ChangeProject, CreateProject, DeleteProject, Project
from events.simulated import SimulatedNodes
from events.tenant import GrantTenantRole
from events.workload.commands import ChangeWorkload
from tests.support.lives import CLUSTER_SYNC, World
from tests.support.random_lives import NODES, Lives

PROJECTS: Final = ("default", "vision", "nlp", "audio")
CLUSTERS: Final = ("edge", "lab")
"""Beside the one in which workloads run."""
POOLS: Final = ("default", "fast", "slow")
V1: Final = "/api/v1"


class WideLives(Lives):
    """Lives in which projects, clusters, node pools and cordons come, change and go, too."""

    def __init__(self, chance: random.Random) -> None:
        world = World()
        world.do("tenant", TENANT_KEY, GrantTenantRole(subject="admin", role="administrator", actor="admin"))
        super().__init__(chance, world)

    def step(self) -> None:
        if self.chance.random() > 0.3:
            super().step()
            return
        self.world.later(self.chance.choice((0.1, 1, 4, 70)))
        acts = (self._project, self._change_project, self._cluster, self._pool, self._report, self._mark, self._other)
        self.chance.choice(acts)()

    def _project(self) -> None:
        """One more, one less, or another one for what is submitted next."""
        name = self.chance.choice(PROJECTS)
        project: Project = self.world.state("project", project_key(name))
        if not project.exists:
            self._do("project", project_key(name), CreateProject(name=name, gpu_quota_milli=self._quota()))
        elif self.chance.random() < 0.5:
            self.project_id = project.project_id
        elif project.project_id != self.project_id and not self._lives_in(project):
            self._do("project", project_key(name), DeleteProject(project_id=project.project_id))

    def _lives_in(self, project: Project) -> bool:
        states = [self.world.state("workload", key) for key in self.keys]
        return any(state.project_id == project.project_id and state.deleted_at is None for state in states)

    def _change_project(self) -> None:
        name = self.chance.choice(PROJECTS)
        change = ChangeProject(
            project_id=self.world.state("project", project_key(name)).project_id,
            gpu_quota_milli=self._quota(),
            node_pools=tuple(self.chance.sample(POOLS, self.chance.randint(0, 2))),
            pod_security=self.chance.choice((None, "restricted")),
            privileged=self.chance.choice((False, True)),
        )
        self._do("project", project_key(name), change)

    def _quota(self) -> int | None:
        return self.chance.choice((None, 0, 2500, 8000))

    def _cluster(self) -> None:
        name = self.chance.choice(CLUSTERS)
        cluster = self.world.state("cluster", cluster_key(name))
        if not cluster.exists:
            nodes = SimulatedNodes(names=("s-0", "s-1"), cpu_milli=1000, memory_bytes=2**30)
            self._do("cluster", cluster_key(name), AddCluster(name=name, kind="simulated", simulated_nodes=(nodes,)))
        elif self.chance.random() < 0.3:
            self._do("cluster", cluster_key(name), RemoveCluster(cluster_id=cluster.cluster_id))
        else:
            facts = NodeFacts(cpu_milli=self.chance.randint(1, 9) * 500, memory_bytes=2**30, labels={"zone": name})
            report = ReportNode(cluster_id=cluster.cluster_id, name="s-0", facts=facts)
            gone = self.chance.random() < 0.3
            key = node_key(cluster.cluster_id, "s-0")
            self._do("node", key, ReportNodeGone() if gone else report, CLUSTER_SYNC)

    def _some_cluster(self) -> tuple[str, str]:
        """Key and id of one; empty where it was never added."""
        key = cluster_key(self.chance.choice(("local", *CLUSTERS)))
        return key, self.world.state("cluster", key).cluster_id

    def _pool(self) -> None:
        key, id_ = self._some_cluster()
        name = self.chance.choice(POOLS[1:])
        pool = NodePool(name=name, label_key="speed", label_value=f"{name}-{self.chance.randint(1, 2)}")
        self._do(
            "cluster",
            key,
            self.chance.choice(
                (
                    SetNodePool(cluster_id=id_, pool=pool),
                    RemoveNodePool(cluster_id=id_, name=name),
                    SetOwnershipProtection(cluster_id=id_, enabled=self.chance.random() < 0.5),
                )
            ),
        )

    def _report(self) -> None:
        key, id_ = self._some_cluster()
        connected = self.chance.random() < 0.6
        refused = RefusedReport(about="node", name="s-9", field="cpu", rule="is a number", value="many")
        report = ReportCluster(
            cluster_id=id_,
            connected=connected,
            silent_seconds=0 if connected else 30,
            problem="" if connected else self.chance.choice(("", "no rights")),
            agent_version="1.2",
            ownership_protection=self.chance.choice((None, False, True)),
            refused=(refused,) if self.chance.random() < 0.3 else (),
        )
        self._do("cluster", key, report, CLUSTER_SYNC)

    def _mark(self) -> None:
        name = self.chance.choice(NODES)
        command: Callable[..., Any] = self.chance.choice((CordonNode, UncordonNode, UncordonNode))
        self._do("node", node_key(self.cluster_id, name), command(cluster_id=self.cluster_id, name=name))

    def _other(self) -> None:
        """A node in another pool, or a workload of another class."""
        if self.keys and self.chance.random() < 0.5:
            key = self.chance.choice(self.keys)
            id_ = self.world.state("workload", key).workload_id
            priority = self.chance.choice(("low", "high", "very-high"))
            self._do("workload", key, ChangeWorkload(workload_id=id_, priority_class=priority))
            return
        facts = NodeFacts(
            cpu_milli=6000,
            memory_bytes=16 * 2**30,
            gpu_count=3,
            gpu_memory_bytes=40 * 2**30,
            pool=self.chance.choice(POOLS),
            labels={"speed": self.chance.choice(("fast-1", "slow-2"))},
            unschedulable=self.chance.random() < 0.3,
        )
        name = self.chance.choice(NODES)
        report = ReportNode(cluster_id=self.cluster_id, name=name, facts=facts)
        self._do("node", node_key(self.cluster_id, name), report, CLUSTER_SYNC)


def wide_log(seed: int, *, commits: int) -> list[Commit]:
    """Its first commit makes `admin` an administrator."""
    lives = WideLives(random.Random(seed))
    while len(lives.world.commits) < commits:
        lives.step()
    return lives.world.commits


def differences_at(
    admin: httpx.Client, commits: Sequence[Commit], moments: int, chance: random.Random
) -> Iterator[str]:
    """What an API with this log answers otherwise than the checker, at so many of its moments; every list and item."""
    wanted = set(chance.sample([commit.seq for commit in commits if commit.ends_batch], moments))
    messages = [RawMessage(c.seq, f"ev.{c.aggregate}.{c.key}", encode_commit(c.record)) for c in commits]
    whole, checker = LogChecker(), LogChecker()
    for message in messages:
        whole.feed(message)
    assert whole.finish().violations == []
    for message in messages:
        checker.feed(message)
        if message.seq not in wanted:
            continue
        for path, expected in (*lists(checker), *items(checker, whole)):
            answer = admin.get(f"{V1}{path}{'&' if '?' in path else '?'}as_of={message.seq}")
            status = 404 if expected is None else 200
            if answer.status_code != status:
                yield f"{path} as of {message.seq}: {answer.status_code} {answer.text}"
            elif expected is not None:
                yield from (f"{path} as of {message.seq}: {d}" for d in differences(expected, answer.json()))
