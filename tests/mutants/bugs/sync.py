"""In cluster_sync: what clusters are told, and what is taken of what they say."""

from typing import Any, Final

from tests.mutants.mutant import Mutant


def _forgets_the_last(original: Any) -> Any:
    def desired_pod(*args: Any, **kwargs: Any) -> Any:
        desired = original(*args, **kwargs)
        return None if desired is not None and desired.stop else desired

    return desired_pod


def _older_over_newer(original: Any) -> Any:
    def reconcile(subjects: Any, desired: Any, held: Any) -> Any:
        older = {s: h for s, h in held.items() if s not in desired or h.token <= desired[s].token}
        return original(subjects, desired, older)

    return reconcile


def _never_lost(original: Any) -> Any:
    async def check(self: Any) -> None:
        self._newest_seq = 0
        await original(self)

    return check


def _zero_is_thirty(original: Any) -> Any:
    def template(spec: Any) -> Any:
        from msgspec.structs import replace

        found = original(spec)
        return replace(found, grace_seconds=found.grace_seconds or 30)

    return template


def _end_alone(original: Any) -> Any:
    def facts_of(observed: Any, pod: Any) -> Any:
        return original(observed, pod)[-1:]

    return facts_of


def _said_before(original: Any) -> Any:
    return lambda version, facts: original(0, facts)


def _of_any_cluster(original: Any) -> Any:
    def hear_pod(self: Any, cluster_id: str, key: str, observed: Any) -> None:
        chain = self._fold.workloads.get(key.rsplit("-", 2)[0])
        original(self, cluster_id if chain is None else chain.state.cluster_id, key, observed)

    return hear_pod


def _nodes_stay(original: Any) -> Any:
    def place_lost(self: Any, cluster_id: Any, pod: Any) -> str:
        reason = original(self, cluster_id, pod)
        return "" if reason == "node_lost" else reason

    return place_lost


def _by_age_alone(original: Any) -> Any:
    def left_unsaid(nodes: Any, heard: Any, newest: Any, now: float) -> Any:
        from msgspec.structs import replace

        from services.cluster_sync.observe import UNSAID_SECONDS

        lately = sum(now - at <= UNSAID_SECONDS for at in heard.values())
        return original(nodes, heard, replace(newest, nodes=lately), now)

    return left_unsaid


SYNC: Final[list[Mutant]] = [
    Mutant(
        name="stops-are-not-wanted",
        function="services.cluster_sync.reconcile:desired_pod",
        invariant="wanted",
        bug="An agent is never told to end a run, only that the run is settled.",
        make=_forgets_the_last,
    ),
    Mutant(
        name="an-old-word-over-a-newer",
        function="services.cluster_sync.reconcile:reconcile",
        invariant="wanted",
        bug="An instance of cluster_sync that is behind overwrites what another one wrote about a newer run.",
        make=_older_over_newer,
    ),
    Mutant(
        name="an-empty-wanted-is-fine",
        function="services.cluster_sync.wanted:Wanted.check",
        invariant="wanted",
        bug="Nobody notices that WANTED was emptied.",
        make=_never_lost,
    ),
    Mutant(
        name="no-grace-is-thirty-seconds",
        function="events.workload.kinds.training:template",
        invariant="asked",
        bug="A grace period of 0 s counts as not given, and becomes 30 s.",
        make=_zero_is_thirty,
    ),
    Mutant(
        name="starts-are-lost",
        function="services.cluster_sync.observe:facts_of",
        invariant="facts",
        bug="A run whose start was not reported ends without a start in the log.",
        make=_end_alone,
    ),
    Mutant(
        name="said-before-is-done-before",
        function="services.cluster_sync.report:_identity",
        invariant="facts",
        bug="A report that repeats an earlier one is the same command as then, although it would have an effect again.",
        make=_said_before,
    ),
    Mutant(
        name="pods-of-other-clusters",
        function="services.cluster_sync.service:ClusterSync._hear_pod",
        invariant="facts",
        bug="Reports of an agent about pods of another cluster are accepted.",
        make=_of_any_cluster,
    ),
    Mutant(
        name="unsaid-is-gone",
        function="services.cluster_sync.observe:left_unsaid",
        invariant="facts",
        bug="A node without a recent report counts as gone, although its agent counts more nodes than that.",
        make=_by_age_alone,
    ),
    Mutant(
        name="runs-of-a-node-that-is-gone",
        function="services.cluster_sync.fold:DesiredState.place_lost",
        invariant="released",
        bug="A run whose node was removed from the cluster is still waited for.",
        make=_nodes_stay,
    ),
]
