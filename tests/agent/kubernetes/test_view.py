"""What of a cluster's lists and watch events is news, in whatever order and however often they come."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from events.cluster_protocol import ObservedNode, ObservedPod, PodWarning
from services.agent.backends.interface import LIVE_KINDS, Observation
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.objects import Node, Pod
from services.agent.backends.kubernetes.read.nodes import Readiness
from services.agent.backends.kubernetes.read.view import View
from tests.agent.kubernetes.cases import CLUSTER, golden, pod, run
from tests.agent.kubernetes.test_nodes import node

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
KEY = run().pod_key
LOST_SECONDS = 100.0


class Cluster:
    """A view, and the fences that it asks for."""

    def __init__(self) -> None:
        self.fences: dict[str, int] = {}
        readiness = Readiness(not_ready_seconds=5, lost_seconds=LOST_SECONDS)
        self.view = View(
            CLUSTER,
            fence=lambda key: self.fences.get(key, 0),
            readiness=readiness,
            is_place=lambda namespace: namespace.startswith("muster-"),
        )
        self.view.see_node(a_node(), 0.0)
        self.news()

    def news(self, tick: float = 0.0) -> Sequence[Observation]:
        return self.view.news(NOW, tick)

    def kinds(self, tick: float = 0.0) -> list[str]:
        return [one.kind for one in self.news(tick) if isinstance(one, ObservedPod)]


def a_node(*, ready: str = "True", spec: dict[str, Any] | None = None) -> Node:
    return node(ready=ready, spec=spec or {})


def a_pod(phase: str = "Running", *, version: int = 1, uid: str = "u-1", token: int = 41, exit_code: int = 0) -> Pod:
    made = pod(run(token=token))
    made["metadata"] |= {"uid": uid, "resourceVersion": str(version), "creationTimestamp": "2026-01-01T12:00:00Z"}
    ended = {"exitCode": exit_code, "startedAt": "2026-01-01T12:00:01Z", "finishedAt": "2026-01-01T12:00:09Z"}
    state = {
        "Running": {"running": {"startedAt": "2026-01-01T12:00:01Z"}},
        "Succeeded": {"terminated": ended},
        "Failed": {"terminated": ended | {"exitCode": exit_code or 1}},
    }.get(phase)
    statuses = [{"name": "main", "state": state}] if state else []
    status = {"phase": phase, "containerStatuses": statuses}
    return msgspec.json.decode(msgspec.json.encode({**made, "status": status}), type=Pod)


def with_metadata(of: Pod, more: dict[str, Any]) -> Pod:
    metadata = msgspec.to_builtins(of.metadata) | more
    return replace(of, metadata=msgspec.convert(metadata, type=type(of.metadata)))


def a_foreign_pod(name: str, *, cpu: str = "1", phase: str = "Running") -> Pod:
    spec = {"nodeName": "node-1", "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}
    metadata = {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": phase}}, type=Pod)


def test_a_run_is_told_once_per_change_however_often_it_is_seen() -> None:
    cluster = Cluster()
    for _ in range(3):
        cluster.view.see_pod(a_pod("Pending", version=1))
    assert cluster.kinds() == ["starting"]
    cluster.view.see_pod(a_pod(version=2))
    cluster.view.see_pod(a_pod(version=3))
    assert cluster.kinds() == ["running"]
    cluster.view.see_pod(a_pod("Succeeded", version=4))
    assert cluster.kinds() == ["succeeded"]
    assert cluster.kinds() == []


def test_an_older_state_of_an_object_changes_nothing() -> None:
    cluster = Cluster()
    cluster.view.see_pod(a_pod("Succeeded", version=9))
    cluster.news()
    cluster.view.see_pod(a_pod(version=5))
    assert cluster.kinds() == []


def a_copy(namespace: str, *, created: str = "2026-01-01T12:00:05Z") -> Pod:
    """Of a run's object, by whoever may make pods in another namespace; it has ended."""
    marks = {"namespace": namespace, "creationTimestamp": created}
    return with_metadata(a_pod("Succeeded", version=7, uid="copy"), marks)


@pytest.mark.parametrize("namespace", ["default", "team-b", "muster-of-another-project"])
@pytest.mark.parametrize("relisted", [False, True])
def test_a_copy_of_a_runs_object_in_another_namespace_says_nothing_of_the_run(namespace: str, relisted: bool) -> None:
    """`kubectl get pod -o yaml`, another namespace, `kubectl apply`: by intent, or to look for a fault."""
    cluster = Cluster()
    if relisted:
        cluster.view.relist([a_copy(namespace), a_pod(version=3)], [a_node()], version=9, tick=0.0)
    else:
        cluster.view.see_pod(a_pod(version=3))
        cluster.view.see_pod(a_copy(namespace))
    assert cluster.kinds() == ["running"]
    assert cluster.view.pods[KEY].metadata.uid == "u-1"
    cluster.view.pod_gone(a_copy(namespace), NOW)
    assert cluster.kinds() == []


def test_what_another_agent_made_counts_once_its_namespace_is_known_as_ours() -> None:
    cluster, places = Cluster(), set[str]()
    cluster.view = View(
        CLUSTER,
        fence=lambda _: 0,
        readiness=Readiness(not_ready_seconds=5, lost_seconds=100),
        is_place=places.__contains__,
    )
    cluster.view.see_node(a_node(), 0.0)
    cluster.view.see_pod(a_pod())
    assert cluster.kinds() == []
    places.add(a_pod().metadata.namespace)
    cluster.view.places_found()
    told = cluster.news()
    assert [seen.facts.foreign_pods for seen in told if isinstance(seen, ObservedNode)] == [0]
    assert [seen.kind for seen in told if isinstance(seen, ObservedPod)] == ["running"]
    assert not cluster.view.unplaced


def test_nobody_makes_a_run_end_before_it_was_begun_from_a_namespace_that_is_not_ours() -> None:
    cluster = Cluster()
    cluster.view.see_pod(a_copy("team-b", created="2026-01-01T11:00:00Z"))
    assert cluster.kinds() == []
    assert KEY not in cluster.view.pods


def test_what_lives_on_a_node_and_is_neither_a_run_nor_a_reservation_of_ours_takes_of_it() -> None:
    """A copy in a namespace that is not ours, and what has some of our marks only: nobody reports it as a run, so its
    node must not seem free.
    """
    cluster = Cluster()
    reservation = msgspec.convert(golden("reservation"), Pod)
    copy = with_metadata(a_pod(version=8, uid="copy"), {"namespace": "team-b"})
    marks = {names.CLUSTER: CLUSTER, names.POD_KEY: "x"}
    daemon = with_metadata(a_foreign_pod("daemon"), {"labels": marks})
    for one in (a_pod(), reservation, copy, daemon, a_copy("team-c")):
        cluster.view.see_pod(one)
    [foreign] = [seen.facts.foreign_pods for seen in cluster.news() if isinstance(seen, ObservedNode)]
    assert foreign == 2, "the copy and the daemon; one that has ended takes nothing"


def test_what_is_still_said_of_an_object_that_was_let_go_is_no_news() -> None:
    cluster = Cluster()
    cluster.view.see_pod(a_pod("Succeeded", version=5))
    cluster.news()
    cluster.view.released(a_pod("Succeeded", version=5))
    cluster.view.forget(KEY, 41)
    cluster.view.see_pod(a_pod("Succeeded", version=6))
    cluster.view.pod_gone(a_pod("Succeeded", version=7), NOW)
    assert cluster.kinds() == []
    assert not cluster.view.picture(NOW, 0.0).pods


@pytest.mark.parametrize(("fence", "kind"), [(0, "interrupted"), (42, "stopped")])
def test_an_object_taken_away_by_others_ends_its_run(fence: int, kind: str) -> None:
    cluster = Cluster()
    cluster.view.see_pod(a_pod())
    cluster.news()
    cluster.fences[KEY] = fence
    cluster.view.pod_gone(a_pod(version=2), NOW)
    assert cluster.kinds() == [kind]
    assert [one.kind for one in cluster.view.picture(NOW, 0.0).pods] == [kind]


def test_the_last_state_of_a_vanished_object_tells_its_end() -> None:
    cluster = Cluster()
    cluster.view.see_pod(a_pod())
    cluster.view.pod_gone(a_pod("Failed", version=2, exit_code=3), NOW)
    [seen] = cluster.news()
    assert isinstance(seen, ObservedPod)
    assert (seen.kind, seen.exit_code) == ("failed", 3)


def test_when_a_deletion_was_asked_for_is_remembered_after_its_node_has_overwritten_it() -> None:
    cluster = Cluster()
    deleted = {"deletionTimestamp": "2026-01-01T12:00:38Z", "deletionGracePeriodSeconds": 30}
    cluster.view.see_pod(with_metadata(a_pod(version=2), deleted))
    overwritten = {"deletionTimestamp": "2026-01-01T12:01:30Z", "deletionGracePeriodSeconds": 0}
    cluster.view.see_pod(with_metadata(a_pod("Succeeded", version=3), overwritten))
    assert cluster.kinds() == ["interrupted"]


@pytest.mark.parametrize(("asked_at", "kind"), [("12:01:30", "succeeded"), ("12:00:08", "interrupted")])
def test_a_deletion_without_grace_was_asked_for_when_its_time_says_so(asked_at: str, kind: str) -> None:
    cluster = Cluster()
    deleted = {"deletionTimestamp": f"2026-01-01T{asked_at}Z", "deletionGracePeriodSeconds": 0}
    cluster.view.see_pod(with_metadata(a_pod(version=2), deleted))
    settled = {"deletionTimestamp": "2026-01-01T12:01:31Z", "deletionGracePeriodSeconds": 0}
    cluster.view.see_pod(with_metadata(a_pod("Succeeded", version=3), settled))
    assert cluster.kinds() == [kind]


def test_an_end_that_was_told_is_for_ever() -> None:
    """What its object says while it is let go, fenced and deleted, is no other end."""
    cluster = Cluster()
    cluster.view.see_pod(a_pod("Succeeded", version=2))
    assert cluster.kinds() == ["succeeded"]
    cluster.fences[KEY] = 42
    deleted = {"deletionTimestamp": "2026-01-01T12:00:09Z", "deletionGracePeriodSeconds": 0}
    cluster.view.see_pod(with_metadata(a_pod("Succeeded", version=3), deleted))
    assert cluster.kinds() == []


def test_a_newer_object_under_the_same_name_takes_over_and_the_older_ones_last_word_is_not_about_it() -> None:
    cluster = Cluster()
    cluster.view.see_pod(a_pod("Failed", version=1, exit_code=1))
    cluster.view.see_pod(a_pod(version=5, uid="u-2", token=50))
    cluster.view.pod_gone(a_pod("Failed", version=4), NOW)
    [seen] = cluster.news()
    assert isinstance(seen, ObservedPod)
    assert (seen.kind, seen.token) == ("running", 50)


def test_a_node_that_does_not_answer_has_unreachable_runs_after_its_time_and_running_ones_when_it_is_back() -> None:
    cluster = Cluster()
    cluster.view.see_pod(a_pod())
    cluster.news()
    cluster.view.see_node(a_node(ready="Unknown"), 10.0)
    cluster.view.advance(10.0 + LOST_SECONDS - 1)
    assert cluster.kinds(10.0 + LOST_SECONDS - 1) == []
    cluster.view.advance(10.0 + LOST_SECONDS + 1)
    assert cluster.kinds(10.0 + LOST_SECONDS + 1) == ["unreachable"]
    cluster.view.advance(10.0 + LOST_SECONDS + 50)
    assert cluster.kinds(10.0 + LOST_SECONDS + 50) == []
    cluster.view.see_node(a_node(), 500.0)
    assert cluster.kinds(500.0) == ["running"]


def test_time_in_which_the_cluster_was_out_of_sight_does_not_count() -> None:
    cluster = Cluster()
    cluster.view.see_pod(a_pod())
    cluster.news()
    cluster.view.see_node(a_node(ready="Unknown"), 10.0)
    cluster.view.view_broke()
    cluster.view.relist([a_pod()], [a_node(ready="Unknown")], version=1, tick=10.0 + LOST_SECONDS)
    cluster.view.advance(10.0 + LOST_SECONDS + 5)
    assert "unreachable" not in cluster.kinds(10.0 + LOST_SECONDS + 5)
    cluster.view.advance(10.0 + 2 * LOST_SECONDS + 5)
    assert cluster.kinds(10.0 + 2 * LOST_SECONDS + 5) == ["unreachable"]


@pytest.mark.parametrize("how", ["deleted", "out of service"])
def test_a_node_that_is_known_to_be_off_has_lost_its_runs_at_once(how: str) -> None:
    cluster = Cluster()
    cluster.view.see_pod(a_pod())
    cluster.news()
    if how == "deleted":
        cluster.view.node_gone("node-1")
    else:
        taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
        cluster.view.see_node(a_node(ready="Unknown", spec={"taints": [taint]}), 1.0)
    [seen] = [one for one in cluster.news() if isinstance(one, ObservedPod)]
    assert (seen.kind, seen.reason) == ("interrupted", "node_lost")
    assert cluster.view.fenced("node-1")


def test_warnings_are_told_with_the_run_once_and_go_with_its_object() -> None:
    cluster = Cluster()
    cluster.view.see_pod(a_pod("Pending"))
    cluster.news()
    warning = PodWarning(reason="volume_not_mounted", message="no such volume", at=NOW)
    cluster.view.warn("u-1", warning)
    cluster.view.warn("u-1", replace(warning, at=NOW))
    cluster.view.warn("somebody-else", warning)
    [seen] = cluster.news()
    assert isinstance(seen, ObservedPod)
    assert seen.warnings == (warning,)
    assert cluster.news() == []


def test_a_list_takes_away_what_it_lacks_but_not_what_was_made_after_it() -> None:
    cluster = Cluster()
    cluster.view.see_pod(a_pod(version=5))
    cluster.view.relist([], [a_node()], version=4, tick=0.0)
    assert [one.token for one in cluster.view.picture(NOW, 0.0).pods] == [41]
    cluster.view.relist([], [a_node()], version=6, tick=0.0)
    assert not cluster.view.picture(NOW, 0.0).pods


@given(
    st.lists(
        st.tuples(st.sampled_from(["see", "end", "gone"]), st.integers(0, 4), st.sampled_from(["100m", "1", "2500m"])),
        max_size=40,
    )
)
def test_what_others_take_of_a_node_is_what_their_live_pods_request(steps: list[tuple[str, int, str]]) -> None:
    cluster = Cluster()
    alive: dict[str, int] = {}
    milli = {"100m": 100, "1": 1000, "2500m": 2500}
    for step, number, cpu in steps:
        name = f"p{number}"
        if step == "see":
            cluster.view.see_pod(a_foreign_pod(name, cpu=cpu))
            alive[name] = milli[cpu]
        elif step == "end":
            cluster.view.see_pod(a_foreign_pod(name, cpu=cpu, phase="Succeeded"))
            alive.pop(name, None)
        else:
            cluster.view.pod_gone(a_foreign_pod(name), NOW)
            alive.pop(name, None)
    [seen] = cluster.view.picture(NOW, 0.0).nodes
    assert isinstance(seen, ObservedNode)
    assert (seen.facts.foreign_cpu_milli, seen.facts.foreign_pods) == (sum(alive.values()), len(alive))


PHASES = ("Pending", "Running", "Succeeded")


@given(st.permutations([(version, phase) for version, phase in enumerate(PHASES, start=1)]), st.integers(1, 3))
def test_in_whatever_order_states_come_and_however_often_an_end_is_told_once_and_last(
    order: list[tuple[int, str]], times: int
) -> None:
    cluster = Cluster()
    told: list[str] = []
    for version, phase in order * times:
        cluster.view.see_pod(a_pod(phase, version=version))
        told += cluster.kinds()
    assert told[-1] == "succeeded"
    assert [kind in LIVE_KINDS for kind in told].count(False) == 1
