"""What cluster_sync knows of the log: workloads that hold nodes or may come to, nodes, clusters, projects. No I/O, no
clock.

Workloads that have ended and hold no node are forgotten, so its memory does not grow with what is over.
"""

from collections.abc import Set as AbstractSet
from typing import Any, Final, override

import msgspec
from msgspec.structs import replace

from events.aggregate import ASSET, CLUSTER, LOG, NODE, PROJECT, WORKLOAD, Chain
from events.asset import Asset, is_data_source
from events.cluster import Cluster
from events.cluster_protocol import pod_key
from events.commit import Commit
from events.ids import key_of_id
from events.installation import LOG_KEY
from events.node import Node
from events.phases import FINISHED, PodPhase
from events.project import Project
from events.simulated import SimulatedNodes, node_names
from events.subjects import wanted_subject
from events.workload.pod import Pod, PodId, split_token
from events.workload.pods import PodMap, Pods, changed, changed_left
from events.workload.state import Workload
from services.cluster_sync.reconcile import Desired, desired_pod, held_sets
from services.runtime.log.log_fold import LogFold

FOLDED: Final = (WORKLOAD, NODE, CLUSTER, PROJECT, ASSET, LOG)
"""Aggregates whose chains are kept, and stored in snapshots."""
SNAPSHOT_SHAPE: Final = 7
"""Raise it when what is forgotten, or kept, changes."""


MAX_SOURCES: Final = 20_000
MAX_SOURCE_BYTES: Final = 8 * 1024
"""Data sources of the whole tenant that are kept, and looked at, and the size of each: 160 MB of them at most. Others
are used and not looked at. Data volumes, which are small, are all kept.
"""


class Changed(msgspec.Struct):
    """What commits touched, for the shell to act on."""

    pods: set[str] = msgspec.field(default_factory=set[str])
    """Subjects in WANTED to be compared again."""
    clusters: set[str] = msgspec.field(default_factory=set[str])
    """Keys of clusters that changed."""
    removed_nodes: set[str] = msgspec.field(default_factory=set[str])


class DesiredState(LogFold):
    """The log's fold, with what each cluster should have by it."""

    def __init__(self) -> None:
        super().__init__(FOLDED, forgets=True)
        self.workloads, self.nodes = self.of(WORKLOAD), self.of(NODE)
        self.clusters, self.projects = self.of(CLUSTER), self.of(PROJECT)
        self.sources = self.of(ASSET)
        """Data sources that are there, and data volumes that were, by key."""
        self.desired: dict[str, Desired] = {}
        """By subject in WANTED: every run that holds a node."""
        self.changed = Changed()
        self.with_sessions: set[str] = set()
        """Keys of workloads into whose pods ways are open."""
        self._declared: dict[str, tuple[tuple[SimulatedNodes, ...], frozenset[str]]] = {}
        """By id of a simulated cluster: its nodes, and the names of all of them."""
        self._notes = True
        """Whether `desired` and `changed` are kept up to date about pods."""

    def note_nothing(self) -> None:
        """Until `note_all`, only keep chains: for who reads the whole log, in which nearly all runs are over."""
        self._notes = False

    def note_all(self) -> None:
        """Know from here on what each cluster should have."""
        self._notes = True
        self.desired.clear()
        for key, chain in self.workloads.items():
            self._note_pods(key, WORKLOAD.initial, chain.state)
        self.with_sessions = {key for key, chain in self.workloads.items() if chain.state.sessions}

    @override
    def took(self, commit: Commit, before: Chain[Any], after: Chain[Any]) -> None:
        match commit.aggregate:
            case "workload":
                self._took_workload(commit.key, before.state, after.state)
            case "node":
                if before.state.present and not after.state.present:
                    self.changed.removed_nodes.add(commit.key)
            case "cluster":
                if after.state.cluster_id:
                    self.changed.clusters.add(commit.key)
            case "asset":
                # Of a data volume it says here what pods find in it.
                room = len(self.sources) <= MAX_SOURCES or bool(after.state.offered)
                # One that was taken back is kept for its name, while that leaves room for what is looked at.
                gone = bool(after.state.offered) and not after.state.exists
                known = gone and len(self.sources) <= MAX_SOURCES // 2
                if not (_is_looked_at(after.state) and room) and not known:
                    self.forget(ASSET, commit.key)
            case _:
                pass  # a project, or the log

    def _took_workload(self, key: str, before: Workload, after: Workload) -> None:
        if self._notes:
            self._note_pods(key, before, after)
        if after.sessions:
            self.with_sessions.add(key)
        else:
            self.with_sessions.discard(key)
        over = after.phase in FINISHED or not after.living
        if over and not after.pods.live and not after.left and not after.sessions:
            self.forget(WORKLOAD, key)

    def _note_pods(self, key: str, before: Workload, after: Workload) -> None:
        """Bring `desired` up to date for the pods that this commit moved."""
        told = replace(after, pods=Pods())  # so that what is kept of one pod does not keep all others, as they were
        held, moved = held_sets(after), changed(before.pods, after.pods)
        for pod_id, (old, new) in moved.items():
            if old is not None and (new is None or before.cluster_id != after.cluster_id):
                self._note_gone(before, key, pod_id)
            if new is not None:
                self._note_pod(key, pod_id, told, new, held)
        if moved:
            self._note_those_after(key, after, told, held)
        for cluster_id, pod_id, old, new in changed_left(before.left, after.left):
            # It is told to end, wherever its workload is by now. Nothing newer of it is on that cluster.
            left = replace(told, cluster_id=cluster_id, left={cluster_id: PodMap[Pod]()})
            if new is not None:
                self._note_pod(key, pod_id, left, new, frozenset())
            elif old is not None:
                self._note_gone(left, key, pod_id)

    def _note_gone(self, state: Workload, key: str, pod_id: PodId) -> None:
        subject = _subject(state, key, pod_id)
        if subject is not None and self.desired.pop(subject, None) is not None:
            self.changed.pods.add(subject)

    def _note_those_after(self, key: str, after: Workload, told: Workload, held: AbstractSet[str]) -> None:
        """Pods that start after others may start, or no longer may, because those moved."""
        for pod_set in after.pod_sets:
            for index in range(pod_set.count) if pod_set.starts_after else ():
                pod = after.pods.live.get((pod_set.name, index))
                if pod is not None:
                    self._note_pod(key, (pod_set.name, index), told, pod, held)

    def _note_pod(self, key: str, pod_id: PodId, state: Workload, pod: Pod, held: AbstractSet[str]) -> None:
        subject = _subject(state, key, pod_id)
        if subject is None:
            return
        # Whose agent has spoken of it was told to start.
        waits = pod_id[0] in held and pod.phase is PodPhase.BOUND
        wanted = desired_pod(key, pod_id, state, pod, self.project(state.project_id), held=waits)
        known = self.desired.get(subject)
        if wanted is None:
            changed = self.desired.pop(subject, None) is not None
        else:
            changed = known is None or known.word != wanted.word
            self.desired[subject] = wanted
        if changed:
            self.changed.pods.add(subject)

    def take_changed(self) -> Changed:
        changed, self.changed = self.changed, Changed()
        return changed

    # -- looking things up -------------------------------------------------------------------------------------------

    def cluster(self, cluster_id: str) -> Cluster | None:
        """The cluster of this id, removed or not; None where the id is none of ours or of an earlier incarnation."""
        key = key_of_id(cluster_id)
        chain = None if key is None else self.clusters.get(key)
        return chain.state if chain is not None and chain.state.cluster_id == cluster_id else None

    def ahead(self, token: int, key: str) -> bool:
        """Whether a run was bound by a commit that is not in here yet: another instance is ahead. One of an earlier
        incarnation of the log never is: what is not in here of that was lost.
        """
        incarnation, version = split_token(token)
        chain = self.of(LOG).get(LOG_KEY)
        ours = 0 if chain is None else chain.state.incarnation
        if incarnation != ours:
            return incarnation > ours
        workload = self.workloads.get(key)
        return self.seq < version or (workload is not None and workload.version <= version)

    def project(self, project_id: str) -> Project:
        key = key_of_id(project_id)
        chain = None if key is None else self.projects.get(key)
        return PROJECT.initial if chain is None else chain.state

    def declares(self, cluster: Cluster, node_name: str) -> bool:
        """Whether a cluster has a node of this name, as far as its own log says: of others than simulated ones it does
        not say it.
        """
        if cluster.kind != "simulated":
            return True
        nodes, names = self._declared.get(cluster.cluster_id, ((), frozenset[str]()))
        if nodes is not cluster.simulated_nodes:
            names = frozenset(node_names(cluster.simulated_nodes))
            self._declared[cluster.cluster_id] = cluster.simulated_nodes, names
        return node_name in names

    def node_gone(self, node: Node) -> bool:
        """Whether a node that is there in the log is gone, as its cluster's own log says."""
        cluster = self.cluster(node.cluster_id)
        return cluster is None or cluster.removed or not self.declares(cluster, node.name)

    def cluster_gone(self, cluster_id: str) -> bool:
        cluster = self.cluster(cluster_id)
        return cluster is None or cluster.removed

    def runs_without_place(self) -> list[tuple[str, str, PodId, Pod, str]]:
        """Runs that live, or were left on a lost cluster, whose node is gone, or whose cluster was removed; with the
        reason code. By key of their workload and id of the cluster that they were bound to.
        """
        return [
            (key, cluster_id, pod_id, pod, reason)
            for key, chain in self.workloads.items()
            for cluster_id, pods in ((chain.state.cluster_id, chain.state.pods.live), *chain.state.left.items())
            for pod_id, pod in pods.items()
            if (reason := self.place_lost(cluster_id, pod))
        ]

    def place_lost(self, cluster_id: str, pod: Pod) -> str:
        """Why a run can no longer be where it was bound: a reason code, or empty."""
        if self.cluster_gone(cluster_id):
            return "cluster_removed"
        node = self.nodes.get(pod.node_key)
        return "" if node is None or node.state.present else "node_lost"


def _is_looked_at(asset: Asset) -> bool:
    return asset.exists and is_data_source(asset.kind) and len(msgspec.json.encode(asset.spec)) <= MAX_SOURCE_BYTES


def _subject(state: Workload, key: str, pod_id: PodId) -> str | None:
    """Where the pod's agent is told of it; None where no agent can be: the cluster or the pod has no possible name."""
    try:
        return wanted_subject(state.cluster_id, pod_key(key, *pod_id))
    except ValueError:
        return None
