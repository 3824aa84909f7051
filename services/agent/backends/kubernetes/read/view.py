"""What the cluster looks like to us: our pods, nodes and what others take of them, and what of it is news. No I/O.

Fed with lists and watch events, in any order and more than once; gives observations, each only when it differs from the
one before. Time comes in as arguments: `now` in UTC, `tick` in monotonic seconds.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from events.cluster_protocol import ObservedNode, ObservedPod, PodWarning
from services.agent.backends.interface import LIVE_KINDS, Observation, Picture
from services.agent.backends.kubernetes.act.objects import Node, Pod
from services.agent.backends.kubernetes.read.ends import deletion_asked_at
from services.agent.backends.kubernetes.read.nodes import (
    ForeignUse,
    Readiness,
    is_ready,
    observed_node,
    out_of_service,
    takes_room,
    use_of,
)
from services.agent.backends.kubernetes.read.observe import lost_with_node, observed_pod, unreachable

WARNINGS_KEPT: Final = 5
"""Of one pod: the newest."""

Name = tuple[str, str]
"""Namespace and name of an object."""


def name_of(pod: Pod) -> Name:
    return pod.metadata.namespace, pod.metadata.name


def token_of(pod: Pod) -> int:
    return int(pod.metadata.labels.token)


class View:
    """Mutable; belongs to one event loop."""

    def __init__(
        self,
        cluster_id: str,
        *,
        fence: Callable[[str], int],
        readiness: Readiness,
        is_place: Callable[[str], bool],
    ) -> None:
        """`is_place`: whether a namespace is one in which we make runs."""
        self._cluster_id = cluster_id
        self._fence = fence
        self._is_place = is_place
        self._readiness = readiness
        self.pods: dict[str, Pod] = {}
        """Our pods' objects by pod key: one object each."""
        self.reservations: dict[Name, Pod] = {}
        """Reservation pods of ours."""
        self.unplaced: dict[Name, Pod] = {}
        """Pods with the marks of runs, in namespaces that are not known to be ours: others' copies, or what another
        agent made in a namespace that it made a moment ago."""
        self.nodes: dict[str, Node] = {}
        self._on_node: dict[str, set[str]] = {}
        """Keys of our pods by node."""
        self._foreign: dict[Name, tuple[str, ForeignUse]] = {}
        self._foreign_use: dict[str, ForeignUse] = {}
        self._key_of: dict[str, str] = {}
        """By uid of the pod; likewise below."""
        self._deleted_at: dict[str, datetime] = {}
        """When the deletion of a live pod was asked for; its object forgets that when the pod ends."""
        self._warnings: dict[str, tuple[PodWarning, ...]] = {}
        self._saved_at: dict[str, datetime] = {}
        """When its work was saved last, as its folder says."""
        self._without_object: dict[str, ObservedPod] = {}
        """Ends of runs that have no object: refused by the API server or by us, or taken away by somebody else."""
        self._released: set[str] = set()
        """Uids of objects that we let go and whose last events are still to come."""
        self._said: dict[str, ObservedPod] = {}
        self._said_nodes: dict[str, ObservedNode] = {}
        self._changed: set[str] = set()
        self._changed_nodes: set[str] = set()

    # -- pods --------------------------------------------------------------------------------------------------------

    def see_pod(self, pod: Pod) -> None:
        """An object as it is, or was a moment ago."""
        self._forget_foreign(name_of(pod))
        if self._is_run(pod):
            self._see_ours(pod)
        elif pod.holds_gpu(self._cluster_id):
            self.reservations[name_of(pod)] = pod
        else:
            self._see_foreign(pod)

    def _is_run(self, pod: Pod) -> bool:
        """Whether it is the object of a run of ours, and not somebody's copy of one: of one rank there are never two at
        once, so the one that was made first is ours.
        """
        if not pod.ours(self._cluster_id):
            return False
        if not self._is_place(pod.metadata.namespace):
            self.unplaced[name_of(pod)] = pod
            return False
        first = self.pods.get(pod.metadata.labels.pod_key)
        if first is None or name_of(first) == name_of(pod):
            return True
        if pod.metadata.creation_timestamp >= first.metadata.creation_timestamp:
            return False
        self._drop(first.metadata.labels.pod_key, first)
        self._see_foreign(first)
        return True

    def _see_ours(self, pod: Pod) -> None:
        key = pod.metadata.labels.pod_key
        before = self.pods.get(key)
        if pod.metadata.uid in self._released or (before is not None and not _newer(pod, before)):
            return
        if before is not None and before.metadata.uid != pod.metadata.uid:
            self._drop(key, before)
        self.pods[key] = pod
        self._key_of[pod.metadata.uid] = key
        if (asked := deletion_asked_at(pod)) is not None:
            self._deleted_at[pod.metadata.uid] = asked
        self._on_node.setdefault(pod.spec.node_name, set()).add(key)
        self._changed.add(key)

    def places_found(self) -> None:
        """Namespaces of ours are known that were not."""
        for pod in [pod for (namespace, _), pod in self.unplaced.items() if self._is_place(namespace)]:
            self.see_pod(pod)

    def _forget_foreign(self, name: Name) -> None:
        self.unplaced.pop(name, None)
        before = self._foreign.pop(name, None)
        if before is not None:
            self._foreign_use[before[0]] -= before[1]
            self._changed_nodes.add(before[0])

    def _see_foreign(self, pod: Pod) -> None:
        name = name_of(pod)
        if takes_room(pod):
            use = use_of(pod)
            node = pod.spec.node_name
            self._foreign[name] = (node, use)
            self._foreign_use[node] = self._foreign_use.get(node, ForeignUse()) + use
            self._changed_nodes.add(node)

    def pod_gone(self, pod: Pod, now: datetime) -> None:
        """Its object is gone from the API server; `pod` is its last state."""
        name = name_of(pod)
        self.reservations.pop(name, None)
        self._forget_foreign(name)
        self._released.discard(pod.metadata.uid)
        key = pod.metadata.labels.pod_key
        known = self.pods.get(key)
        if known is None or known.metadata.uid != pod.metadata.uid:
            return
        seen = self._observe(pod)
        if seen is not None:
            # We take an object away only when its end is forgotten: somebody else took our finalizer off.
            self._without_object[key] = _unseen_end(seen, self._fence(key), now) if seen.kind in LIVE_KINDS else seen
            self._changed.add(key)
        self._drop(key, known)

    def _drop(self, key: str, pod: Pod) -> None:
        self.pods.pop(key, None)
        self._key_of.pop(pod.metadata.uid, None)
        self._warnings.pop(pod.metadata.uid, None)
        self._deleted_at.pop(pod.metadata.uid, None)
        self._saved_at.pop(pod.metadata.uid, None)
        on_node = self._on_node.get(pod.spec.node_name)
        if on_node is not None:
            on_node.discard(key)
            if not on_node:
                del self._on_node[pod.spec.node_name]

    def refuse(self, seen: ObservedPod) -> None:
        """The end of a run that gets no object."""
        self._without_object[seen.pod_key] = seen
        self._changed.add(seen.pod_key)

    def end_of(self, key: str) -> ObservedPod | None:
        """The end of a run without an object."""
        return self._without_object.get(key)

    def forget(self, key: str, token: int) -> None:
        """The ends of this pod up to this token need not be listed any more."""
        refused = self._without_object.get(key)
        if refused is not None and refused.token <= token:
            del self._without_object[key]
        pod = self.pods.get(key)
        if pod is not None and token_of(pod) <= token:
            self._drop(key, pod)
        if key not in self.pods and key not in self._without_object:
            self._said.pop(key, None)

    def released(self, pod: Pod) -> None:
        """We let this object go: what is still said of it is no news."""
        self._released.add(pod.metadata.uid)
        known = self.pods.get(pod.metadata.labels.pod_key)
        if known is not None and known.metadata.uid == pod.metadata.uid:
            self._drop(pod.metadata.labels.pod_key, known)

    def lost(self, pod: Pod, now: datetime, why: str) -> ObservedPod | None:
        """The end of a live run whose object is taken away unasked: its node cannot end it any more."""
        seen = self._observe(pod)
        return None if seen is None else lost_with_node(seen, at=now, why=why)

    def device_memory_bytes(self, node: str) -> int:
        """Of one device of the node; 0 where unknown."""
        said = self._said_nodes.get(node)
        return 0 if said is None else said.facts.gpu_memory_bytes

    def fence_moved(self, key: str) -> None:
        """What ended by deletion may count as stopped now."""
        self._changed.add(key)

    def warn(self, uid: str, warning: PodWarning) -> None:
        """What the cluster says of the pod of this uid; nothing where that is none of ours."""
        key = self._key_of.get(uid)
        if key is None:
            return
        held = self._warnings.get(uid, ())
        if any((one.reason, one.message) == (warning.reason, warning.message) for one in held):
            return
        self._warnings[uid] = (*(one for one in held if one.reason != warning.reason), warning)[-WARNINGS_KEPT:]
        self._changed.add(key)

    def saved(self, uid: str, at: datetime) -> bool:
        """The pod of this uid saved its work then; whether that is news."""
        key = self._key_of.get(uid)
        if key is None or self._saved_at.get(uid) == at:
            return False
        self._saved_at[uid] = at
        self._changed.add(key)
        return True

    # -- nodes -------------------------------------------------------------------------------------------------------

    def see_node(self, node: Node, tick: float) -> None:
        name = node.metadata.name
        before, self.nodes[name] = self.nodes.get(name), node
        state = self._readiness.state(name)
        if self._readiness.observe(name, ready=is_ready(node), now=tick) != state:
            self._pods_of(name)
        if before is None or out_of_service(before) != out_of_service(node):
            self._pods_of(name)
        self._changed_nodes.add(name)

    def node_gone(self, name: str) -> None:
        self.nodes.pop(name, None)
        self._readiness.forget(name)
        self._changed_nodes.add(name)
        self._pods_of(name)

    def advance(self, tick: float) -> None:
        """Time has passed: nodes may be lost by now."""
        for name in self._readiness.advance(tick):
            self._changed_nodes.add(name)
            self._pods_of(name)

    def view_broke(self) -> None:
        """What happened meanwhile is not known: every wait for a node begins again."""
        self._readiness.reset()
        self._changed_nodes.update(self.nodes)

    def _pods_of(self, node: str) -> None:
        self._changed.update(self._on_node.get(node, ()))

    def fenced(self, node: str) -> bool:
        """Whether nothing can run there any more: the node's object is gone, or somebody vouches that it is off."""
        known = self.nodes.get(node)
        return known is None or out_of_service(known)

    def used_nodes(self) -> set[str]:
        """Those to which live pods of ours are bound."""
        return {pod.spec.node_name for pod in self.pods.values() if not pod.ended} & self.nodes.keys()

    def lost_pods(self) -> list[Pod]:
        """Live pods on nodes that were declared lost."""
        return [
            self.pods[key]
            for node, keys in self._on_node.items()
            if node in self.nodes and self._readiness.state(node) == "lost"
            for key in keys
            if not self.pods[key].ended
        ]

    # -- all of it ---------------------------------------------------------------------------------------------------

    def relist(self, pods: Iterable[Pod], nodes: Iterable[Node], *, version: int, tick: float) -> None:
        """Everything as a list of this resource version says; our pods that were made after it stay."""
        kept = [pod for pod in self.pods.values() if int(pod.metadata.resource_version or 0) > version]
        before_nodes = set(self.nodes)
        self.reservations.clear()
        self.unplaced.clear()
        self._foreign.clear()
        self._changed_nodes.update(self._foreign_use)
        self._foreign_use.clear()
        self.pods.clear()
        self._key_of.clear()
        self._on_node.clear()
        listed_pods = [*pods]
        # Those that are gone by now will never be spoken of again.
        self._released &= {pod.metadata.uid for pod in listed_pods}
        for pod in (*listed_pods, *kept):
            self.see_pod(pod)
        listed = {node.metadata.name: node for node in nodes}
        for node in listed.values():
            self.see_node(node, tick)
        for name in before_nodes - listed.keys():
            self.node_gone(name)
        self._warnings = {uid: held for uid, held in self._warnings.items() if uid in self._key_of}
        self._deleted_at = {uid: asked for uid, asked in self._deleted_at.items() if uid in self._key_of}
        self._saved_at = {uid: at for uid, at in self._saved_at.items() if uid in self._key_of}
        for key in self._said.keys() - self.pods.keys() - self._without_object.keys():
            del self._said[key]

    def picture(self, now: datetime, tick: float) -> Picture:
        """Everything as it is now; what it holds is no news any more."""
        self._changed.update(self.pods, self._without_object)
        self._changed_nodes.update(self.nodes)
        self.news(now, tick)
        return Picture(
            pods=tuple(self._said[key] for key in (*self.pods, *self._without_object) if key in self._said),
            nodes=tuple(self._said_nodes.values()),
        )

    def news(self, now: datetime, tick: float) -> Sequence[Observation]:
        """What differs from what was said before."""
        said: list[Observation] = []
        changed, self._changed = self._changed, set()
        for key in changed:
            seen = self._seen(key, now, tick)
            before = self._said.get(key)
            if seen is None or before == seen or _is_over(before, seen):
                continue
            self._said[key] = seen
            said.append(seen)
        changed_nodes, self._changed_nodes = self._changed_nodes, set()
        for name in changed_nodes:
            node = self._seen_node(name)
            if node is not None and self._said_nodes.get(name) != node:
                if node.gone:
                    del self._said_nodes[name]
                else:
                    self._said_nodes[name] = node
                said.append(node)
        return said

    def _seen(self, key: str, now: datetime, tick: float) -> ObservedPod | None:
        pod, refused = self.pods.get(key), self._without_object.get(key)
        if pod is None or (refused is not None and refused.token >= token_of(pod)):
            return refused
        seen = self._observe(pod)
        if seen is None or seen.kind not in LIVE_KINDS:
            return seen
        node = self.nodes.get(pod.spec.node_name)
        if node is None:
            return self._once(key, lost_with_node(seen, at=now, why="it is no longer in the cluster"))
        if out_of_service(node):
            return self._once(key, lost_with_node(seen, at=now, why="it is tainted as out of service"))
        if self._readiness.state(pod.spec.node_name) == "lost":
            seconds = self._readiness.not_ready_for(pod.spec.node_name, tick)
            return self._once(key, unreachable(seen, at=now, seconds=seconds))
        return seen

    def _once(self, key: str, seen: ObservedPod) -> ObservedPod:
        """The same as said before where only the moment differs."""
        said = self._said.get(key)
        same = said is not None and (said.token, said.kind, said.reason) == (seen.token, seen.kind, seen.reason)
        return said if same and said is not None else seen

    def _observe(self, pod: Pod) -> ObservedPod | None:
        seen = observed_pod(
            pod,
            fence=self._fence(pod.metadata.labels.pod_key),
            cluster_id=self._cluster_id,
            deleted_at=self._deleted_at.get(pod.metadata.uid),
        )
        if seen is not None and (saved := self._saved_at.get(pod.metadata.uid)) is not None:
            seen = replace(seen, checkpoint_at=saved)
        held = self._warnings.get(pod.metadata.uid)
        if seen is None or not held:
            return seen
        told = {warning.reason for warning in seen.warnings}
        return replace(seen, warnings=(*seen.warnings, *(one for one in held if one.reason not in told)))

    def _seen_node(self, name: str) -> ObservedNode | None:
        node = self.nodes.get(name)
        if node is None:
            said = self._said_nodes.get(name)
            return None if said is None else replace(said, gone=True)
        ready = self._readiness.state(name) == "ready"
        return observed_node(node, self._foreign_use.get(name, ForeignUse()), ready=ready)


def _unseen_end(seen: ObservedPod, fence: int, now: datetime) -> ObservedPod:
    asked = fence > seen.token
    return replace(
        seen,
        kind="stopped" if asked else "interrupted",
        at=now,
        reason="stopped" if asked else "deleted",
        message="the pod was deleted by force, and nobody saw its end",
    )


def _is_over(before: ObservedPod | None, seen: ObservedPod) -> bool:
    """Whether this run's end was told: an end is for ever, whatever its object says once it is let go."""
    return before is not None and before.token == seen.token and before.kind not in LIVE_KINDS


def _newer(pod: Pod, before: Pod) -> bool:
    """Whether it says more than what is known of the same name. Versions are numbers that rise (Kubernetes 1.35)."""
    return int(pod.metadata.resource_version or 0) >= int(before.metadata.resource_version or 0)
