"""An API server that is away or says that nothing is there, nodes that fall silent or go, two agents at once."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from development.kubernetes.checker import Recorder, check_all
from development.kubernetes.proxy import Mode
from development.kubernetes.stack import KubernetesStack, ProxyThread
from development.stack import Api, until
from tests.kubernetes.e2e.looks import FOREIGN, gone, label, lives, the_pod, the_pods, told, uid

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(240)]

AWAY_SECONDS = 60.0
"""Issue section 2.5."""
BACK_SECONDS = 10.0
"""The same: after that all is reconciled."""
LOAD_SECONDS = 30.0


def conditions(stack: KubernetesStack, name: str = "Ready") -> set[str]:
    """What the nodes' conditions of this name say, all of them."""
    nodes = stack.plane.admin("GET", "/api/v1/nodes")["items"]
    return {each["status"] for node in nodes for each in node["status"]["conditions"] if each["type"] == name}


def disconnected(stack: KubernetesStack, *words: str) -> None:
    """Wait until the cluster is shown as disconnected, for a reason that holds the words."""

    def shown() -> bool:
        row = stack.cluster_row()
        return row["status"] == "Disconnected" and all(word in (row["problem"] or "") for word in words)

    until(shown, 40, lambda: str(stack.cluster_row()))


def unchanged(stack: KubernetesStack, key: str, uids: list[str]) -> None:
    """The workload still has these objects, none is being deleted, and the log has no word of an end."""
    pods = stack.pods(key)
    assert [uid(pod) for pod in pods] == uids
    assert not [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" in pod["metadata"]]
    types = {record["type"] for record in stack.api.history(key)}
    assert not types & {"PodInterrupted", "PodFailed", "PodStopped", "PodSucceeded"}, stack.api.story(key)


def empty(proxy: ProxyThread, path: str) -> None:
    """All lists of what begins like this are empty from now on, and whoever listens must list again."""
    proxy.proxy.only = lambda request: request.path.startswith(path) and "/log" not in request.path
    proxy.proxy.mode = Mode.EMPTY_LIST
    proxy.break_connections()


def test_with_the_control_plane_away_for_a_minute_nothing_is_started_or_ended_and_then_all_is_made_good(
    stack: KubernetesStack, api: Api
) -> None:
    """Issue section 2.5."""
    made = [stack.submit(f"away-{n}", runtime_seconds=None, compute={"gpuDevicesRequest": 1}) for n in range(4)]
    keys = [each["workloadId"] for each in made]
    stays, suspended, deleted, too = keys
    uids = {key: [uid(the_pod(stack, key))] for key in keys}
    for key in keys:
        until(lambda key=key: api.training(key)["actualPhase"] == "Running", 60)
    with stack.api_server_away():
        away_until = time.monotonic() + AWAY_SECONDS
        disconnected(stack, "API server")
        messages = len(stack.read_log())
        assert api.act("suspend", suspended).status_code == 202
        assert api.act("delete", deleted).status_code == 202
        new = stack.submit("submitted-meanwhile", runtime_seconds=None)["workloadId"]
        assert told(stack, new, "WorkloadWaiting", "reports a problem", "API server")
        time.sleep(max(0.0, away_until - time.monotonic()))
        phases = {key: api.training(key)["actualPhase"] for key in (*keys, new)}
        assert list(phases.values()) == ["Running", "Stopping", "Deleting", "Running", "Pending"], phases
        assert len(stack.read_log()) - messages < 20, "nothing happened, and nothing is written of it again and again"
    back = time.monotonic()
    # How soon kubelets speak up again is theirs to decide: these do so at once.
    stack.plane.stop_kwok()
    stack.plane.start_kwok()

    def made_good() -> bool:
        return (
            stack.cluster_row()["status"] == "Connected"
            and api.training(suspended)["actualPhase"] == "Stopped"
            and api.training(deleted).get("deletedAt") is not None
            and bool(stack.pods(new))
            and not stack.pods(suspended)
            and not stack.pods(deleted)
        )

    until(
        made_good,
        back + BACK_SECONDS - time.monotonic(),
        lambda: f"{stack.cluster_row()}: {[api.story(key)[-3:] for key in (*keys, new)]}",
    )
    print(f"\nreconciled {time.monotonic() - back:.1f} s after the API server was back")
    for key in (stays, too):
        unchanged(stack, key, uids[key])
    for key in (stays, too, new, suspended):
        assert api.act("delete", key).status_code == 202
        gone(stack, key)
    stack.wait_connected()


def test_a_server_that_lists_nothing_is_not_believed_and_nothing_is_given_up(stack: KubernetesStack, api: Api) -> None:
    """Nor by an agent that begins while it does so."""
    proxy = stack.proxy()
    agent = stack.agent(url=proxy.url, kubernetes_not_ready_seconds=1)
    with stack.instead(agent):
        stack.wait_connected()
        key = stack.submit("held", runtime_seconds=None, completions=8, parallelism=8)["workloadId"]
        uids = [uid(pod) for pod in the_pods(stack, key, 8)]
        until(lambda: api.training(key)["actualPhase"] == "Running", 60)
        empty(proxy, "/api/v1/pods")
        disconnected(stack, "lists only 0 of", "acceptMissingUntil")
        new = stack.submit("after-the-doubt", runtime_seconds=0.2)["workloadId"]
        unchanged(stack, key, uids)
        assert api.training(new)["actualPhase"] == "Pending"
        proxy.proxy.mode = Mode.PASS
        api.wait(new, "Completed")
        empty(proxy, "/api/v1/nodes")
        disconnected(stack, "has /api/v1/nodes/", "but does not list it")
        unchanged(stack, key, uids)
        proxy.proxy.mode = Mode.PASS
        stack.wait_connected()
        agent.kill()
        empty(proxy, "/api/v1/")
        agent.start(wait=False)
        disconnected(stack, "lists no namespaces")
        unchanged(stack, key, uids)
        proxy.proxy.mode = Mode.PASS
        stack.wait_connected()
        unchanged(stack, key, uids)
        assert api.act("delete", key).status_code == 202
        gone(stack, key)


def test_silent_nodes_keep_their_pods_which_are_unknown_for_a_while_and_never_doubled(
    stack: KubernetesStack, recorder: Recorder, api: Api
) -> None:
    agent = stack.agent(kubernetes_not_ready_seconds=1, kubernetes_node_lost_seconds=2)
    with stack.instead(agent):
        stack.wait_connected()
        key = stack.submit("out-of-sight", runtime_seconds=None, compute={"gpuDevicesRequest": 1})["workloadId"]
        first = the_pod(stack, key)
        until(lambda: api.training(key)["actualPhase"] == "Running", 60)
        stack.plane.stop_kwok()
        try:
            until(lambda: conditions(stack) == {"Unknown"}, 60)
            until(lambda: api.training(key)["actualPhase"] == "Unknown", 30, lambda: str(api.story(key)))
            assert told(stack, key, "PodUnreachable", "may still run there", first["spec"]["nodeName"])
            waiting = stack.submit("for-a-ready-node", runtime_seconds=0.2)["workloadId"]
            agent.kill()
            agent.start()
            assert [uid(pod) for pod in stack.pods(key)] == [uid(first)]
            assert stack.pods(waiting) == []
            (row,) = api.get(f"/workloads/{key}/pods")["pods"]
            nodes = api.get("/nodes", clusterId=stack.cluster_id)["nodes"]
            (node,) = (node for node in nodes if node["name"] == row["node"])
            assert node["reserved"]["gpus"] == 1, "what it has stays its own"
        finally:
            stack.plane.start_kwok()
        until(lambda: api.training(key)["actualPhase"] == "Running", 30, lambda: str(api.story(key)))
        api.wait(waiting, "Completed")
        unchanged(stack, key, [uid(first)])
        assert api.act("delete", key).status_code == 202
        gone(stack, key)
    assert len(lives(recorder.history(), key)) == 1


def test_pods_of_a_node_that_is_removed_are_placed_on_another(
    stack: KubernetesStack, recorder: Recorder, api: Api
) -> None:
    key = stack.submit("moves", runtime_seconds=None, compute={"gpuDevicesRequest": 1}, backoffLimit=0)["workloadId"]
    first = the_pod(stack, key)
    until(lambda: api.training(key)["actualPhase"] == "Running", 60)
    node = first["spec"]["nodeName"]
    stack.plane.admin("DELETE", f"/api/v1/nodes/{node}")
    try:
        assert told(stack, key, "PodInterrupted", f"node {node}")

        def moved() -> dict[str, Any] | None:
            pods = [pod for pod in stack.pods(key) if uid(pod) != uid(first)]
            return pods[0] if pods and pods[0]["status"].get("phase") == "Running" else None

        second = until(moved, 30, lambda: str(api.story(key)))
        assert second["spec"]["nodeName"] != node
        assert label(second, "try") == "1"
        ((_, _, went), (_, came, _)) = lives(recorder.history(), key)
        assert 0 < went < came
    finally:
        stack.plane.add_nodes([node], gpus=stack.gpus)
    stack.wait_connected()
    assert api.act("delete", key).status_code == 202
    gone(stack, key)


def test_two_agents_at_once_do_everything_once(stack: KubernetesStack, recorder: Recorder, api: Api) -> None:
    """Under load, with people who change their minds and one agent that is paused now and then."""
    second = stack.agent(kubernetes_not_ready_seconds=1).start()
    chance = random.Random(1)
    shapes: list[dict[str, Any]] = [
        {"compute": {"gpuDevicesRequest": 1}},
        {"compute": {"gpuDevicesRequest": 1, "gpuRequestType": "portion", "gpuPortionRequest": 0.5}},
        {"completions": 3, "parallelism": 2},
        {"simulation": {"exit-code": "3"}, "backoffLimit": 1},
        {"runtime_seconds": None},
    ]

    def person(number: int) -> None:
        mine = stack.client()
        until_ = time.monotonic() + LOAD_SECONDS
        round_ = 0
        while time.monotonic() < until_:
            round_ += 1
            shape: dict[str, Any] = {"runtime_seconds": 0.5, **chance.choice(shapes)}
            key = stack.submit(f"both-{number}-{round_}", api=mine, terminationGracePeriodSeconds=1, **shape)[
                "workloadId"
            ]
            time.sleep(chance.uniform(0, 1.5))
            if shape["runtime_seconds"] is None or chance.random() < 0.3:
                for verb in chance.sample(("suspend", "resume"), k=chance.randint(0, 2)):
                    assert mine.act(verb, key).status_code in {202, 409}
                    time.sleep(chance.uniform(0, 0.3))
                assert mine.act("delete", key).status_code == 202

    with ThreadPoolExecutor(3) as people:
        going = [people.submit(person, number) for number in range(3)]
        while not all(one.done() for one in going):
            time.sleep(1)
            paused = chance.choice([stack.agents[0], second])
            paused.pause()
            time.sleep(chance.uniform(2, 6))
            paused.resume()
        for one in going:
            one.result()
    keys = [id_ for name, id_ in stack.acknowledged.items() if name.startswith("both-")]
    rests = {"Completed", "Failed"}
    for key in keys:
        until(
            lambda key=key: (seen := api.training(key))["actualPhase"] in rests or bool(seen.get("deletedAt")),
            60,
            lambda key=key: str(api.story(key)),
        )
        gone(stack, key)
    second.stop()
    stack.end_all()
    found = check_all(stack, recorder, stack.acknowledged, foreign_may_go=FOREIGN)
    print(
        f"\n{len(keys)} workloads, {len(found.server.runs)} objects so far, {found.server.events} events, no violation"
    )
