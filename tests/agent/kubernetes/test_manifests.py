"""Pods are built from an allow-list, as log.md section 6.5 wants: nothing a user writes adds a field or a right."""

from datetime import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.project import PodSecurity
from events.quantities import parse_bytes, parse_quantity
from events.workload.pod import DeviceShare
from events.workload.pod_sets import Container
from events.workload.volumes import BucketFolder
from services.agent.backends.fetching import SECRET
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.objects import Pod
from services.agent.backends.kubernetes.act.security import Security, security_of, with_project
from services.agent.backends.kubernetes.read.nodes import use_of
from services.agent.backends.kubernetes.read.observe import observed_pod
from tests.agent.kubernetes.cases import CASES, CLUSTER, GOLDENS, coded, golden, pod, run, whole

TEXTS = st.text(max_size=80)
KEYS = st.one_of(
    TEXTS,
    st.from_regex(r"\A[a-z0-9.-]{0,20}/[A-Za-z0-9._-]{0,70}\Z"),
    st.sampled_from([names.CLUSTER, names.TOKEN, names.MANAGED_BY, "kubernetes.io/os", "muster.dev/", "MUSTER_RUN_ID"]),
)
PLAIN = pod(run())


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_manifest_is_as_its_golden(name: str) -> None:
    assert CASES[name]() == golden(name)


def test_no_golden_is_left_over() -> None:
    assert {path.stem for path in GOLDENS.iterdir()} == CASES.keys()


@given(labels=st.dictionaries(KEYS, TEXTS), annotations=st.dictionaries(KEYS, TEXTS))
def test_what_a_user_writes_on_a_pod_never_changes_our_marks(labels: Any, annotations: Any) -> None:
    made = pod(run(labels=labels, annotations=annotations))
    assert made["metadata"]["labels"].items() >= PLAIN["metadata"]["labels"].items()
    assert made["metadata"]["annotations"].items() >= PLAIN["metadata"]["annotations"].items()
    ours = [key for key in made["metadata"]["annotations"] if key.startswith(names.OUR_PREFIX)]
    assert set(ours) <= PLAIN["metadata"]["annotations"].keys() | {names.LABELS_LEFT_OUT, names.ANNOTATIONS_LEFT_OUT}
    assert made["spec"] == PLAIN["spec"]


@given(labels=st.dictionaries(KEYS, TEXTS))
def test_every_label_of_a_user_stands_on_the_pod_or_is_listed_as_left_out(labels: dict[str, str]) -> None:
    metadata = pod(run(labels=labels))["metadata"]
    left_out = msgspec.json.decode(metadata["annotations"].get(names.LABELS_LEFT_OUT, "[]"))
    assert labels.keys() <= metadata["labels"].keys() | set(left_out)
    assert not metadata["labels"].keys() & set(left_out)


@given(environment=st.dictionaries(KEYS, TEXTS), arguments=st.lists(TEXTS), image=TEXTS, folder=TEXTS)
def test_what_a_user_runs_fills_four_fields_and_no_other(environment: Any, arguments: Any, image: str, folder: str):
    made = pod(run(environment=environment, arguments=tuple(arguments), image=image, working_dir=folder))
    [container], [plain] = made["spec"].pop("containers"), PLAIN["spec"]["containers"]
    assert made["spec"] == {key: value for key, value in PLAIN["spec"].items() if key != "containers"}
    assert container.keys() - plain.keys() <= {"command", "workingDir"}
    assert all(container[key] == plain[key] for key in ("name", "resources", "securityContext"))
    assert container["env"][: len(plain["env"])] == plain["env"]
    assert len({entry["name"] for entry in container["env"]}) == len(container["env"])


@given(environment=st.dictionaries(KEYS, TEXTS), arguments=st.lists(TEXTS), folder=TEXTS)
def test_what_a_user_runs_changes_nothing_of_what_unpacks_the_code(environment: Any, arguments: Any, folder: str):
    made = pod(coded(environment=environment, arguments=tuple(arguments), working_dir=folder), code_maps=1)
    plain = pod(coded(), code_maps=1)
    assert made["spec"]["initContainers"] == plain["spec"]["initContainers"]
    assert made["spec"]["volumes"] == plain["spec"]["volumes"]
    (container,) = made["spec"]["containers"]
    assert container["workingDir"] == plain["spec"]["containers"][0]["workingDir"]


def test_no_word_of_a_bucket_has_a_value_of_its_key_put_in_place() -> None:
    """Kubernetes would, where a word says `$(NAME)`: the address of a data source could have everybody's secret sent
    to it.
    """
    made = pod(run(volumes=(BucketFolder(mount_path="/a$(HOME)", bucket="b", url=f"https://a/$({SECRET})$$"),)))
    (fetches,) = made["spec"]["initContainers"]
    assert fetches["command"][3:] == [f"https://a/$$({SECRET})$$$$", "b", "/a$$(HOME)"]


@given(cpu=st.integers(0, 10**6), memory=st.integers(0, 2**40), devices=st.integers(0, 8))
def test_unpacking_code_asks_for_nothing_beside_the_pod(cpu: int, memory: int, devices: int) -> None:
    """As the kubelet counts it; and the pod's class of service stays as it is."""
    fields: dict[str, Any] = {
        "cpu_milli": cpu,
        "memory_bytes": memory,
        "cpu_limit_milli": cpu,
        "memory_limit_bytes": memory,
        "devices": whole(devices),
    }
    coded_pod = pod(run(code="a" * 64, **fields), code_maps=3)
    uses = [use_of(msgspec.convert(made, Pod)) for made in (pod(run(**fields)), coded_pod)]
    assert uses[0] == uses[1]
    (unpacks,), (main,) = coded_pod["spec"]["initContainers"], coded_pod["spec"]["containers"]
    assert "nvidia.com/gpu" not in {**unpacks["resources"]["requests"], **unpacks["resources"].get("limits", {})}
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in unpacks["env"]
    for name in ("cpu", "memory"):
        assert unpacks["resources"]["requests"][name] == main["resources"]["requests"][name]
        assert unpacks["resources"].get("limits", {}).get(name) == main["resources"].get("limits", {}).get(name)


@given(cpu=st.integers(0, 10**9), memory=st.integers(0, 2**62))
def test_requests_and_limits_are_exact(cpu: int, memory: int) -> None:
    made = pod(run(cpu_milli=cpu, memory_bytes=memory, cpu_limit_milli=cpu, memory_limit_bytes=memory))
    resources = made["spec"]["containers"][0]["resources"]
    for kind in ("requests", "limits") if cpu and memory else ("requests",):
        assert parse_quantity(resources[kind]["cpu"]) * 1000 == cpu
        assert parse_bytes(resources[kind]["memory"]) == memory


@pytest.mark.parametrize(("keeps", "field"), [(False, "command"), (True, "args")])
def test_arguments_without_a_command_are_for_the_images_own_entry_point(keeps: bool, field: str) -> None:
    """S019."""
    (container,) = pod(run(arguments=("train.py", "--fast"), keeps_entry_point=keeps))["spec"]["containers"]
    assert {key: container[key] for key in ("command", "args") if key in container} == {field: ["train.py", "--fast"]}


def test_a_pod_without_gpus_sees_none_whatever_its_image_asks_for() -> None:
    made = pod(run(environment={"NVIDIA_VISIBLE_DEVICES": "all"}))
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in made["spec"]["containers"][0]["env"]


def test_a_pod_with_whole_gpus_sees_those_that_its_node_gives_it_and_cannot_name_others() -> None:
    container = pod(run(devices=whole(2), environment={"NVIDIA_VISIBLE_DEVICES": "all"}))["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert "NVIDIA_VISIBLE_DEVICES" not in {entry["name"] for entry in container["env"]}


def test_a_pod_that_shares_a_device_is_not_made_before_it_is_known_which() -> None:
    with pytest.raises(ValueError, match="needs to know which devices"):
        pod(run(devices=(DeviceShare(device=0, milli=500),)))


def test_a_run_of_a_project_that_became_strict_after_it_was_submitted_has_no_more_than_strict_pods() -> None:
    """Its namespace is not strict, so the API server would let it through."""
    asked = Container(
        capabilities=("CHOWN", "NET_BIND_SERVICE"),
        escalation=True,
        seccomp="Unconfined",
        host_network=True,
        host_ipc=True,
    )
    spec = pod(run(container=asked, pod_security="restricted"), security="baseline")["spec"]
    assert not {"hostNetwork", "hostIPC"} & spec.keys()
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (made,) = spec["containers"]
    assert made["securityContext"]["allowPrivilegeEscalation"] is False
    assert made["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}
    refused = pod(run(container=asked, pod_security="restricted"), security="restricted")["spec"]["containers"][0]
    assert refused["securityContext"]["allowPrivilegeEscalation"], "there the API server refuses it by name"


def test_the_level_of_pod_security_is_the_namespaces_and_the_strictest_where_it_says_none() -> None:
    assert security_of({names.ENFORCE: "privileged"}) == "privileged"
    assert security_of({names.ENFORCE: "baseline"}) == "baseline"
    assert security_of({names.ENFORCE: "restricted"}) == "restricted"
    assert security_of({}) == "restricted"


@pytest.mark.parametrize(
    ("cluster", "project", "both"),
    [
        ("baseline", None, "baseline"),
        ("baseline", "restricted", "restricted"),
        ("restricted", "baseline", "restricted"),
        ("privileged", "baseline", "baseline"),
        ("privileged", None, "privileged"),
    ],
)
def test_a_project_may_be_stricter_than_its_cluster_and_never_looser(
    cluster: Security, project: PodSecurity | None, both: Security
) -> None:
    assert with_project(cluster, project) == both


def test_the_image_decides_about_its_user_unless_the_project_or_the_namespace_is_restricted() -> None:
    assert "runAsNonRoot" not in PLAIN["spec"]["securityContext"]
    assert pod(run(pod_security="restricted"))["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod(run(), security="restricted")["spec"]["securityContext"]["runAsNonRoot"] is True
    assert "runAsNonRoot" not in pod(run(pod_security="baseline"), security="privileged")["spec"]["securityContext"]


def test_a_grace_period_of_zero_is_sent_as_it_was_asked_for() -> None:
    assert pod(run(grace_seconds=0))["spec"]["terminationGracePeriodSeconds"] == 0


@pytest.mark.parametrize("name", sorted(name for name in CASES if name.startswith("pod")))
def test_the_run_can_be_read_back_from_its_pod(name: str) -> None:
    made = golden(name)
    made["metadata"] |= {"uid": "u-1", "creationTimestamp": "2026-01-01T12:00:00Z"}
    seen = observed_pod(msgspec.convert(made, Pod, strict=False), fence=0, cluster_id=CLUSTER)
    assert seen is not None
    assert (seen.pod_key, seen.token, seen.workload_id) == (
        f"{seen.pod_key[:12]}-{seen.pod.pod_set}-{seen.pod.index}",
        run().token,
        run().workload_id,
    )
    assert (seen.kind, seen.at, seen.node_name) == (
        "starting",
        datetime.fromisoformat("2026-01-01T12:00:00Z"),
        "node-1",
    )
