"""In the agent of Kubernetes clusters."""

from typing import Any, Final

from tests.mutants.mutant import Mutant


def _leaving_takes_nothing(original: Any) -> Any:
    return lambda pod: original(pod) and pod.metadata.deletion_timestamp is None


def _names_its_own_devices(original: Any) -> Any:
    def environment(run: Any, *args: Any) -> Any:
        yield from original(run, *args)
        name = "NVIDIA_VISIBLE_DEVICES"
        if name in run.environment:
            yield {"name": name, "value": run.environment[name]}

    return environment


def _going_is_gone(original: Any) -> Any:
    return lambda self: original(self) or self.metadata.deletion_timestamp is not None


def _taint_alone(_: Any) -> Any:
    def out_of_service(node: Any) -> bool:
        from services.agent.backends.kubernetes.read.nodes import OUT_OF_SERVICE

        return any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints)

    return out_of_service


def _in_the_same_second(original: Any) -> Any:
    def before_anybody_asked(pod: Any, terminated: Any, deleted_at: Any) -> bool:
        from datetime import timedelta

        from msgspec.structs import replace

        if terminated.finished_at is not None:
            terminated = replace(terminated, finished_at=terminated.finished_at - timedelta(seconds=1))
        return original(pod, terminated, deleted_at)

    return before_anybody_asked


def _not_stored_again(original: Any) -> Any:
    async def read(self: Any, shard: Any) -> Any:
        await original(self, shard)
        return {}

    return read


def _however_often_renewed(_: Any) -> Any:
    def is_over(self: Any, version: str) -> bool:
        from services.agent.backends.kubernetes.act.lease import DURATION_SECONDS

        if not self._seen:
            self._seen, self._seen_at = version, self._clock()
        return self._clock() - self._seen_at > DURATION_SECONDS

    return is_over


def _from_the_answer(original: Any) -> Any:
    return lambda self, answer, asked_at: original(self, answer, self._clock())


def _listed_before(_: Any) -> Any:
    return lambda self: self._lease.held() and self._knows_now()


KUBERNETES: Final[list[Mutant]] = [
    Mutant(
        name="what-is-leaving-takes-nothing",
        function="services.agent.backends.kubernetes.read.nodes:takes_room",
        invariant="room",
        bug="A pod of another program that is being deleted takes no room, although it still runs.",
        make=_leaving_takes_nothing,
    ),
    Mutant(
        name="pods-name-their-devices",
        function="services.agent.backends.kubernetes.act.manifests:_environment",
        invariant="room",
        bug="The environment variables of a workload can change which devices its pods see.",
        make=_names_its_own_devices,
    ),
    Mutant(
        name="going-is-gone",
        function="services.agent.backends.kubernetes.act.objects:Pod.ended",
        invariant="released",
        bug="A pod that is being deleted counts as ended while its processes have their grace period.",
        make=_going_is_gone,
    ),
    Mutant(
        name="tainted-is-gone",
        function="services.agent.backends.kubernetes.read.nodes:out_of_service",
        invariant="released",
        bug="A node that is tainted as out of service counts as off although it answers.",
        make=_taint_alone,
    ),
    Mutant(
        name="cut-off-is-done",
        function="services.agent.backends.kubernetes.read.ends:_before_anybody_asked",
        invariant="completions",
        bug="A run that ended in the same second in which it was told to end counts as ended by itself.",
        make=_in_the_same_second,
    ),
    Mutant(
        name="lost-fences-stay-lost",
        function="services.agent.backends.kubernetes.act.fences:Fences._read",
        invariant="one run",
        bug="A fence that somebody removed from its ConfigMap is not written again.",
        make=_not_stored_again,
    ),
    Mutant(
        name="a-living-lease-is-taken",
        function="services.agent.backends.kubernetes.act.lease:Lease._is_over",
        invariant="one run",
        bug="A waiting agent takes the Lease after its duration, even if it was renewed in between.",
        make=_however_often_renewed,
    ),
    Mutant(
        name="the-lease-counts-from-its-answer",
        function="services.agent.backends.kubernetes.act.lease:Lease._hold",
        invariant="one run",
        bug="The time of a renewal counts from its answer, and not from its request.",
        make=_from_the_answer,
    ),
    Mutant(
        name="acts-on-an-old-list",
        function="services.agent.backends.kubernetes.backend:KubernetesBackend._is_current",
        invariant="one run",
        bug="An agent that has just got the Lease acts on a list from the time when another agent acted.",
        make=_listed_before,
    ),
]
