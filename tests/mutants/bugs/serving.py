"""In the proxy, the autoscaler, bounds of GPUs, keys of credentials, and acts on workloads of others."""

from typing import Any, Final

from tests.mutants.mutant import Mutant


def _whoever_has_the_address(original: Any) -> Any:
    return lambda self, session: self._routes.find(session.label)


def _any_group(original: Any) -> Any:
    def objection(access: Any, member: Any) -> str:
        return "" if access.type == "authorizedGroups" and member.groups else original(access, member)

    return objection


def _all_that_live(original: Any) -> Any:
    def answering(state: Any, pod_set: str) -> Any:
        return ((index, pod) for (name, index), pod in state.pods.live.items() if name == pod_set)

    return answering


def _with_all_cookies(original: Any) -> Any:
    def request_headers(headers: Any, **more: Any) -> Any:
        passed = [(name, value) for name, value in original(headers, **more) if name != b"cookie"]
        return [*passed, *((name, value) for name, value in headers if name == b"cookie")]

    return request_headers


def _refused_is_busy(original: Any) -> Any:
    def ready(self: Any, route: Any, found: Any) -> Any:
        found.up.update(self._routes.targets(route))
        return original(self, route, found)

    return ready


def _against_any_number(original: Any) -> Any:
    def rescale(command: Any, state: Any) -> Any:
        from msgspec.structs import replace

        return original(command if state.inference is None else replace(command, was=state.inference.replicas), state)

    return rescale


def _the_last_moment(original: Any) -> Any:
    def with_(past: Any, now: float, wanted: int) -> Any:
        from dataclasses import replace

        return replace(original(past, now, wanted), peaks=((now, wanted),))

    return with_


def _the_newest_alone(original: Any) -> Any:
    def private(self: Any, name: str) -> Any:
        return original(type(self)(keys=self.keys[:1]), name)

    return private


def _as_an_administrator(original: Any) -> Any:
    def transfer(command: Any, state: Any, context: Any) -> Any:
        from msgspec.structs import replace

        return original(command, state, replace(context, override=True))

    return transfer


SERVING: Final = [
    Mutant(
        name="a-cookie-for-the-next-one",
        function="services.proxy.door:Door._of_session",
        invariant="who may",
        bug="Who signed in to a workload is signed in to the next one that has its address, too.",
        make=_whoever_has_the_address,
    ),
    Mutant(
        name="any-group-may-open-it",
        function="services.proxy.authorize:objection",
        invariant="who may",
        bug="An address that some groups may open is open to whoever is in any group.",
        make=_any_group,
    ),
    Mutant(
        name="cookies-pass-to-workloads",
        function="services.proxy.headers:request_headers",
        invariant="who may",
        bug="A workload gets the cookies that sign people in to it.",
        make=_with_all_cookies,
    ),
    Mutant(
        name="requests-to-who-must-go",
        function="services.proxy.routes:_answering",
        invariant="life",
        bug="A replica that was told to end still gets requests.",
        make=_all_that_live,
    ),
    Mutant(
        name="requests-to-who-still-loads",
        function="services.proxy.holding:Holding._ready",
        invariant="true answers",
        bug="A replica gets requests as soon as its process runs, whether or not it takes connections.",
        make=_refused_is_busy,
    ),
    Mutant(
        name="late-steps-count",
        function="events.workload.decide:_rescale",
        invariant="once",
        bug="A step of an autoscaler that was decided against another number of replicas is carried out.",
        make=_against_any_number,
    ),
    Mutant(
        name="the-last-moment-decides",
        function="services.autoscaler.decide:_with",
        invariant="life",
        bug="Replicas are ended as soon as the load is low for a moment.",
        make=_the_last_moment,
    ),
    Mutant(
        name="a-plan-of-its-own",
        function="services.scheduler.policy.phases.quota:use",
        invariant="room",
        bug="Pods of one plan do not count against quotas and limits for the others of the same plan.",
        make=lambda original: lambda planning, pod_class, pool, gpu_milli: None,
    ),
    Mutant(
        name="old-keys-open-nothing",
        function="services.runtime.credentials.keys:Ring.private",
        invariant="true answers",
        bug="While keys of credentials are replaced, values that are still sealed to the old one cannot be opened.",
        make=_the_newest_alone,
    ),
    Mutant(
        name="given-away-by-anybody",
        function="events.workload.decide:_transfer",
        invariant="who may",
        bug="Whoever may act on a workload can give it to another owner, and so make it theirs.",
        make=_as_an_administrator,
    ),
    Mutant(
        name="undone-over-others",
        function="events.workload.decide:_moved_on",
        invariant="true answers",
        bug="A change is set back although somebody has changed the same thing since.",
        make=lambda original: lambda command, state: "",
    ),
]
