"""What pods, refusals and Warning Events say of a run: one row of ends.yaml per rule."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from events.cluster_protocol import ObservedPod
from events.workload.pod import PortAddress
from services.agent.backends.interface import LIVE_KINDS
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.objects import Event, Pod
from services.agent.backends.kubernetes.act.port_manifests import ports_text, read_ports
from services.agent.backends.kubernetes.names import code_map_name
from services.agent.backends.kubernetes.read.ends import REFUSALS
from services.agent.backends.kubernetes.read.observe import (
    MAX_MESSAGE,
    creation_refused,
    lost_with_node,
    missing_code,
    missing_secret,
    observed_pod,
    unreachable,
    warning_of,
)
from tests.agent.kubernetes.cases import CLUSTER, PORTS, pod, run

ROWS: list[dict[str, Any]] = yaml.load((Path(__file__).parent / "ends.yaml").read_text(), yaml.CSafeLoader)
MOUNT = 'MountVolume.SetUp failed for volume "code-parts"'
NOW = datetime(2026, 1, 1, 13, 0, tzinfo=UTC)


def object_of(row: dict[str, Any]) -> Pod:
    made = pod(run(token=41))
    made["metadata"] |= {"uid": "u-1", "creationTimestamp": "2026-01-01T12:00:00Z", **row.get("deletion", {})}
    if "asked_to_end_at" in row:
        made["metadata"]["annotations"][names.ASKED_TO_END_AT] = row["asked_to_end_at"]
    if "restricted_by" in row:
        made["metadata"]["annotations"][names.RESTRICTED_BY] = row["restricted_by"]
    if "code" in row:
        made["metadata"]["annotations"][names.CODE] = row["code"]
    if "init_containers" in row:
        made["spec"]["initContainers"] = row["init_containers"]
    if "limits" in row:
        made["spec"]["containers"][0]["resources"]["limits"] = row["limits"]
    # By way of text, as the server writes it.
    return msgspec.json.decode(msgspec.json.encode({**made, "status": row["status"]}), type=Pod)


def seen(row: dict[str, Any], fence: int = 41) -> ObservedPod:
    found = observed_pod(object_of(row), fence=fence, cluster_id=CLUSTER)
    assert found is not None
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_pods_object_says_what_became_of_its_run(row: dict[str, Any]) -> None:
    found = seen(row, row.get("fence", 41))
    then: dict[str, Any] = dict(row["then"])
    codes = then.pop("warning_codes", None)
    assert {key: msgspec.json.decode(msgspec.json.encode(getattr(found, key))) for key in then} == then
    assert row.get("message", "") in found.message
    assert codes is None or [warning.reason for warning in found.warnings] == codes
    assert (found.pod_key, found.token, found.pod, found.node_name) == (run().pod_key, 41, run().pod, "node-1")


@pytest.mark.parametrize(("probed", "said", "ready"), [(False, False, True), (True, False, False), (True, True, True)])
def test_a_pod_that_is_asked_whether_it_is_ready_is_so_once_its_node_says_it(
    probed: bool, said: bool, ready: bool
) -> None:
    """R21."""
    state = {"running": {"startedAt": "2026-01-01T12:00:05Z"}}
    row = {"status": {"phase": "Running", "containerStatuses": [{"name": "main", "ready": said, "state": state}]}}
    made = object_of(row)
    marks = msgspec.structs.replace(made.metadata.annotations, probed="true" if probed else "")
    made = msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, annotations=marks))
    found = observed_pod(made, fence=41, cluster_id=CLUSTER)
    assert found is not None
    assert (found.kind, found.ready) == ("running", ready)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_an_end_comes_only_with_a_terminal_phase_and_always_with_it(row: dict[str, Any]) -> None:
    live = seen(row, row.get("fence", 41)).kind in LIVE_KINDS
    assert live == (row["status"]["phase"] not in {"Succeeded", "Failed"})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_every_end_that_is_not_success_says_why(row: dict[str, Any]) -> None:
    found = seen(row, row.get("fence", 41))
    if found.kind not in {*LIVE_KINDS, "succeeded"}:
        assert found.reason
        assert found.message or found.exit_code is not None or found.kind == "stopped"


@pytest.mark.parametrize("reason", sorted(REFUSALS))
def test_what_a_node_refuses_is_placed_again_and_spends_no_retry(reason: str) -> None:
    row = {"status": {"phase": "Failed", "reason": reason, "message": "Pod was rejected: words"}}
    assert (seen(row).kind, seen(row).reason) == ("refused", "node_refused")
    assert REFUSALS[reason] in seen(row).message


@pytest.mark.parametrize(
    "marks",
    [
        {names.CLUSTER: "another"},
        {names.CLUSTER: ""},
        {names.POD_KEY: ""},
        {names.TOKEN: "seven"},
        {names.TOKEN: "-1"},
        {names.INDEX: ""},
        {names.TRY: "x"},
        {names.POD_SET: ""},
    ],
)
def test_a_pod_without_our_marks_is_none_of_ours_whatever_its_name(marks: dict[str, str]) -> None:
    made = pod(run())
    made["metadata"]["labels"] |= marks
    assert observed_pod(msgspec.convert(made, Pod), fence=0, cluster_id=CLUSTER) is None


TIMES = st.one_of(st.none(), st.integers(0, 59).map(lambda second: f"2026-01-01T12:00:{second:02}Z"))
STATES = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"waiting": st.fixed_dictionaries({"reason": st.sampled_from(["ErrImagePull", "X"])})}),
    st.fixed_dictionaries({"running": st.fixed_dictionaries({"startedAt": TIMES})}),
    st.fixed_dictionaries(
        {
            "terminated": st.fixed_dictionaries(
                {
                    "exitCode": st.sampled_from([0, 1, 137, 143]),
                    "reason": st.sampled_from(["Completed", "Error", "OOMKilled", "ContainerStatusUnknown"]),
                    "finishedAt": TIMES,
                    "startedAt": TIMES,
                    "message": st.text(max_size=5) | st.just("x" * 5000),
                }
            )
        }
    ),
)
STATUSES = st.fixed_dictionaries(
    {
        "phase": st.sampled_from(["", "Pending", "Running", "Succeeded", "Failed", "Unknown"]),
        "reason": st.sampled_from(["", "Evicted", "NodeLost", "OutOfcpu", "Terminated", "X"]),
        "conditions": st.lists(
            st.fixed_dictionaries(
                {
                    "type": st.sampled_from(["Ready", "DisruptionTarget"]),
                    "status": st.sampled_from(["True", "False"]),
                    "reason": st.sampled_from(["DeletionByPodGC", "X"]),
                    "lastTransitionTime": TIMES,
                }
            ),
            max_size=2,
        ),
        "containerStatuses": st.lists(st.fixed_dictionaries({"name": st.just("main"), "state": STATES}), max_size=1),
    }
)
DELETIONS = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {
            "deletionTimestamp": st.just("2026-01-01T12:00:30Z"),
            "deletionGracePeriodSeconds": st.sampled_from([None, 0, 30]),
        }
    ),
)


@given(status=STATUSES, deletion=DELETIONS, fence=st.sampled_from([0, 41, 42]))
def test_any_object_is_one_observation_and_the_same_at_every_look(status: Any, deletion: Any, fence: int) -> None:
    row = {"status": status, "deletion": deletion}
    found = seen(row, fence)
    assert found == seen(row, fence)
    assert (found.kind not in LIVE_KINDS) == (status["phase"] in {"Succeeded", "Failed"})
    assert found.kind != "stopped" or (deletion and fence == 42)
    assert len(found.message) <= MAX_MESSAGE


# -- what a pod's own object cannot say ------------------------------------------------------------------------------


def test_a_run_on_a_silent_node_is_live_still_and_says_what_would_end_the_waiting() -> None:
    found = unreachable(seen(ROWS[2]), at=NOW, seconds=3600)
    assert (found.kind, found.reason, found.at) == ("unreachable", "node_unreachable", NOW)
    assert "node-1 has not answered for 3600 s" in found.message
    assert found.started_at == seen(ROWS[2]).started_at


def test_a_run_on_a_lost_node_was_interrupted() -> None:
    found = lost_with_node(seen(ROWS[2]), at=NOW, why="its object was removed from the cluster")
    assert (found.kind, found.reason, found.warnings) == ("interrupted", "node_lost", ())
    assert "its object was removed from the cluster" in found.message


@pytest.mark.parametrize(
    ("status", "message", "kind", "reason"),
    [
        (422, 'Pod "x" is invalid: spec.containers[0].image: Required value', "failed", "invalid_pod"),
        (413, "limit is 3145728", "failed", "invalid_pod"),
        (403, 'pods "x" is forbidden: violates PodSecurity "restricted:latest": …', "failed", "invalid_pod"),
        (403, 'pods "x" is forbidden: exceeded quota: q, requested: pods=1', "refused", "quota_of_namespace"),
        (403, 'pods "x" is forbidden: failed quota: q: must specify limits.cpu', "failed", "invalid_pod"),
        (403, "forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi", "failed", "invalid_pod"),
        (403, 'admission webhook "v.example" denied the request: no', "failed", "invalid_pod"),
        (400, 'admission webhook "v.example" denied the request: no', "failed", "invalid_pod"),
        (403, "ValidatingAdmissionPolicy 'v.example' with binding 'b' denied request: no", "failed", "invalid_pod"),
    ],
)
def test_a_refused_creation_that_is_the_runs_fault_ends_it(status: int, message: str, kind: str, reason: str) -> None:
    found = creation_refused(run(), namespace="muster-x", status=status, message=message, at=NOW)
    assert found is not None
    assert (found.kind, found.reason, found.at, found.token) == (kind, reason, NOW, 41)
    assert message in found.message


@pytest.mark.parametrize(("enforced", "looser"), [("restricted", "baseline"), ("baseline", "privileged")])
def test_a_refusal_by_pod_security_says_which_setting_to_change(enforced: str, looser: str) -> None:
    said = f'pods "x" is forbidden: violates PodSecurity "{enforced}:latest": …'
    found = creation_refused(run(), namespace="muster-x", status=403, message=said, at=NOW)
    assert found is not None
    assert f"namespace muster-x pod-security.kubernetes.io/enforce={looser}" in found.message


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, 'pods is forbidden: User "agent" cannot create resource "pods" in API group ""'),
        (403, "forbidden: unable to create new content in namespace x because it is being terminated"),
        (403, 'error looking up service account x/default: serviceaccount "default" not found'),
        (403, "status unknown for quota: q, resources: pods"),
        (400, "the server could not understand the request"),
        (404, 'namespaces "x" not found'),
        (409, 'pods "x" already exists'),
        (429, "too many requests"),
        (500, 'failed calling webhook "v.example": connection refused'),
        (503, "apiserver is shutting down"),
    ],
)
def test_a_refused_creation_that_may_pass_later_ends_nothing(status: int, message: str) -> None:
    assert creation_refused(run(), namespace="muster-x", status=status, message=message, at=NOW) is None


# -- Warning Events --------------------------------------------------------------------------------------------------


def event(reason: str, message: str = "words", **more: Any) -> Event:
    fields: dict[str, Any] = {
        "metadata": {"name": "e", "creationTimestamp": "2026-01-01T12:00:09Z"},
        "involvedObject": {"kind": "Pod", "namespace": "n", "name": "x", "uid": "u-1"},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "firstTimestamp": "2026-01-01T12:00:01Z",
        "lastTimestamp": "2026-01-01T12:07:00Z",
        "eventTime": None,
        "count": 7,
    }
    return msgspec.convert(fields | more, Event)


@pytest.mark.parametrize(
    ("reason", "message", "code", "part"),
    [
        ("FailedMount", 'secret "data" not found', "volume", 'a volume cannot be mounted: secret "data" not found;'),
        ("FailedCreatePodSandBox", "cni: no addresses", "sandbox", "cni: no addresses; the node tries again"),
        ("Failed", 'Failed to pull image "x": denied', "image_pull", "its image cannot be pulled: Failed to pull"),
        ("Evicted", "The node was low on resource: memory.", "evicted", "it is being evicted from its node: The node"),
        ("TaintManagerEviction", "Marking for deletion Pod n/x", "evicted", "Marking for deletion"),
        ("NetworkNotReady", "cni plugin not initialized", "network", "cni plugin not initialized"),
        ("SomethingElseFailed", "in its own words", "something_else_failed", "in its own words"),
    ],
)
def test_a_warning_event_becomes_a_sentence(reason: str, message: str, code: str, part: str) -> None:
    found = warning_of(event(reason, message))
    assert found is not None
    assert (found[0], found[1].reason) == ("u-1", code)
    assert part in found[1].message


def test_a_warning_that_is_repeated_stays_the_same() -> None:
    later = event("FailedMount", lastTimestamp="2026-01-01T12:30:00Z", count=90)
    assert warning_of(later) == warning_of(event("FailedMount"))


def test_an_event_of_the_newer_kind_has_its_time_elsewhere() -> None:
    newer = event("FailedMount", firstTimestamp=None, lastTimestamp=None, eventTime="2026-01-01T12:00:02.5Z")
    found = warning_of(newer)
    assert found is not None
    assert found[1].at == datetime(2026, 1, 1, 12, 0, 2, 500_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("message", "digest"),
    [
        (f'{MOUNT} : configmap "{code_map_name(CLUSTER, "a" * 64, 0)}" not found', "a" * 64),
        (f'{MOUNT} : [configmap "{code_map_name(CLUSTER, "b" * 64, 0)}" not found, configmap "x" not found]', "b" * 64),
        ('MountVolume.SetUp failed for volume "x" : configmap "options" not found', None),
        ('configmap "muster-code-x" not found', None),
        (f'the user wrote "{code_map_name(CLUSTER, "a" * 64, 0)}"', None),
    ],
)
def test_a_node_that_does_not_find_code_is_told_apart(message: str, digest: str | None) -> None:
    """It is there a moment later, so nobody is warned of it; who makes it looks again."""
    about = {"kind": "Pod", "name": "x", "namespace": "muster-p", "uid": "u-1"}
    found = missing_code(event("FailedMount", message, involvedObject=about))
    assert found == (None if digest is None else ("muster-p", digest))
    assert missing_code(event("BackOff", message, involvedObject=about)) is None


@pytest.mark.parametrize(
    ("reason", "message", "found"),
    [
        ("FailedMount", f'{MOUNT} : secret "muster-credentials-a1" not found', True),
        ("FailedMount", f'{MOUNT} : object "muster-p"/"muster-credentials-a1" not registered', False),
        ("FailedMount", f'{MOUNT} : secret "mpi-ssh" not found', False),
        ("Failed", 'Error: secret "muster-credentials-a1" not found', True),
        ("BackOff", 'secret "muster-credentials-a1" not found', False),
    ],
)
def test_a_node_that_does_not_find_the_secret_of_a_pod_is_told_apart(reason: str, message: str, *, found: bool) -> None:
    """S063: who makes it is told, however the pod needs it: as variables, for its image, or as files."""
    about = {"kind": "Pod", "name": "x", "namespace": "muster-p", "uid": "u-1"}
    at = datetime(2026, 1, 1, 12, 7, tzinfo=UTC)
    expected = ("muster-p", "muster-credentials-a1", at) if found else None
    assert missing_secret(event(reason, message, involvedObject=about)) == expected


@pytest.mark.parametrize(
    "other",
    [
        event("Pulled", type="Normal"),
        event("NodeNotReady", involvedObject={"kind": "Node", "name": "node-1", "uid": "n-1"}),
        event("FailedMount", involvedObject={"kind": "Pod", "name": "x"}),
        event("Failed", "Error: ImagePullBackOff"),
        event("BackOff", 'Back-off pulling image "x"'),
        event("OutOfcpu", "Node didn't have enough resource: cpu"),
        event("UnexpectedAdmissionError"),
    ],
)
def test_what_is_no_warning_of_a_pod_or_stands_on_its_object_is_left_out(other: Event) -> None:
    assert warning_of(other) is None


@pytest.mark.parametrize(
    ("status", "ready"),
    [({"podIP": "10.1.2.3", "hostIP": "192.0.2.7"}, True), ({"hostIP": "192.0.2.7"}, False)],
    ids=["with an address", "without"],
)
def test_a_pod_with_ports_runs_once_it_is_known_where_it_answers(status: dict[str, str], ready: bool) -> None:
    """S030, S031."""
    running = {"phase": "Running", "startTime": "2026-01-01T12:00:01Z", **status}
    made = {**pod(run(ports=PORTS)), "status": running}
    made["metadata"] |= {"uid": "u-1", "creationTimestamp": "2026-01-01T12:00:00Z"}
    found = observed_pod(msgspec.json.decode(msgspec.json.encode(made), type=Pod), fence=41, cluster_id=CLUSTER)
    assert found is not None
    assert (found.kind, found.ready) == ("running", ready)
    if ready:
        assert found.address is not None
        assert (found.address.host, found.address.node) == ("10.1.2.3", "192.0.2.7")
        assert found.address.ports == (PortAddress(container=8888, port=8888, external=30_088),)
        assert found.address.service.endswith(f".{made['metadata']['namespace']}.svc")
    else:
        assert found.address is None


@given(st.text())
def test_an_annotation_that_somebody_changed_names_no_ports_or_ports(text: str) -> None:
    assert read_ports(ports_text(PORTS)) == PORTS
    assert len(read_ports(text)) <= len(text)
