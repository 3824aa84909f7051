"""How tests look at pods on the API server, and what they wait for there."""

from typing import Any, Final

from development.kubernetes.checker import Event
from development.kubernetes.stack import KubernetesStack
from development.stack import until

FOREIGN: Final = {f"foreign-{number}-abcdefghijkl-main-0" for number in range(20)}
"""Pods of others that the tests make and take away again, named as ours are."""

type Object = dict[str, Any]


def the_pod(stack: KubernetesStack, workload_id: str, phase: str = "Running") -> Object:
    """The workload's one pod, once the API server has it in this phase."""

    def found() -> Object | None:
        pods = [pod for pod in stack.pods(workload_id) if pod["status"].get("phase") == phase]
        return pods[0] if len(pods) == 1 else None

    return until(found, 30, lambda: f"{stack.pods(workload_id)}: {stack.api.story(workload_id)}")


def the_pods(stack: KubernetesStack, workload_id: str, count: int, phase: str = "Running") -> list[Object]:
    """As many pods of the workload, once all of them are in this phase."""

    def found() -> list[Object] | None:
        pods = stack.pods(workload_id)
        return pods if [pod["status"].get("phase") for pod in pods] == [phase] * count else None

    return until(found, 30, lambda: f"{stack.pods(workload_id)}: {stack.api.story(workload_id)}")


def gone(stack: KubernetesStack, workload_id: str) -> None:
    """Wait until no object of the workload is left: each was let go."""
    until(lambda: not stack.pods(workload_id), 20, lambda: str(stack.pods(workload_id)))


def label(pod: Object, name: str) -> str:
    return pod["metadata"]["labels"][f"muster.dev/{name}"]


def uid(pod: Object) -> str:
    return pod["metadata"]["uid"]


def environment(pod: Object) -> dict[str, Any]:
    """Values by name; of a reference, the reference."""
    (container,) = pod["spec"]["containers"]
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container.get("env", [])}


def lives(events: list[Event], workload_id: str) -> list[tuple[Object, int, int]]:
    """Of each object that the workload ever had: its last state, the versions at which it came and went, in order."""
    came: dict[str, int] = {}
    went: dict[str, int] = {}
    last: dict[str, Object] = {}
    for event in events:
        labels = event.object.get("metadata", {}).get("labels", {})
        if event.kind == "pods" and labels.get("muster.dev/workload") == workload_id:
            last[uid(event.object)] = event.object
            if event.type == "DELETED":
                went[uid(event.object)] = event.version
            came.setdefault(uid(event.object), event.version)
    return [(last[id_], version, went.get(id_, 0)) for id_, version in came.items()]


def most_at_once(events: list[Event], workload_id: str) -> int:
    """How many pods of the workload lived at the same time, at most: made, and in no phase that is an end."""
    live: set[str] = set()
    most = 0
    for event in events:
        labels = event.object.get("metadata", {}).get("labels", {})
        if event.kind != "pods" or labels.get("muster.dev/workload") != workload_id:
            continue
        ended = event.type == "DELETED" or event.object["status"].get("phase") in {"Succeeded", "Failed"}
        (live.discard if ended else live.add)(uid(event.object))
        most = max(most, len(live))
    return most


def told(stack: KubernetesStack, workload_id: str, type_: str, *words: str) -> str:
    """The first sentence of this kind in the workload's history that holds all the words, once it is there."""

    def found() -> str | None:
        records = stack.api.history(workload_id)
        sentences = [record["message"] for record in records if record["type"] == type_]
        return next((text for text in sentences if all(word in text for word in words)), None)

    return until(found, 30, lambda: f"no {type_} with {words}: {stack.api.story(workload_id)}")
