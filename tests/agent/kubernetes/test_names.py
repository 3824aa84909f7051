"""One name per pod, whatever the run: the API server then refuses a second live pod of one rank."""

import re
from string import ascii_lowercase

from hypothesis import assume, example, given
from hypothesis import strategies as st

from services.agent.backends.kubernetes import names
from tests.agent.kubernetes.cases import CLUSTER, run

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?\Z")
HASHES = st.text(alphabet=ascii_lowercase + "234567", min_size=12, max_size=12)
SETS = st.text(alphabet=ascii_lowercase, min_size=1, max_size=20)
POD_KEYS = st.one_of(
    st.builds("{}-{}-{}".format, HASHES, SETS, st.integers(0, 999_999_999)),
    st.from_regex(r"\A[A-Za-z0-9_-]{1,64}\Z"),
)
WORKLOAD_NAMES = st.one_of(st.text(max_size=300), st.from_regex(r"\A[a-z0-9-]{1,63}\Z"))


@given(POD_KEYS, POD_KEYS, WORKLOAD_NAMES, WORKLOAD_NAMES)
@example("abcdefghijkl-main-0", "abcdefghijkl-main-00", "x", "x")
@example("bcdefghijklm-a-1", "abcdefghijkl-bcdefghijklm-1", "abcdefghijkl", "")
def test_no_two_pod_keys_give_one_name(key: str, other: str, name: str, other_name: str) -> None:
    assume(key != other)
    one, two = run(pod_key=key, workload_name=name), run(pod_key=other, workload_name=other_name)
    assert names.pod_name(one) != names.pod_name(two)


@given(POD_KEYS, WORKLOAD_NAMES, st.integers(0, 10**6))
def test_a_name_is_a_dns_label_and_the_same_for_every_run_of_the_pod(key: str, name: str, token: int) -> None:
    made = run(pod_key=key, workload_name=name)
    assert DNS_LABEL.match(names.pod_name(made))
    assert DNS_LABEL.match(names.service_name(made))
    assert names.pod_name(made) == names.pod_name(run(pod_key=key, workload_name=name, token=token))


def test_a_persons_eye_finds_the_workload_in_the_name() -> None:
    assert names.pod_name(run()) == "train-abcdefghijkl-main-0"
    assert names.service_name(run()) == "train-abcdefghijkl"
    assert names.hostname(run()) == "main-0"


@given(HASHES, SETS, SETS, st.integers(0, 99), st.integers(0, 99))
def test_all_pods_of_a_workload_share_one_service(key: str, one: str, two: str, index: int, other: int) -> None:
    pods = (run(pod_key=f"{key}-{one}-{index}"), run(pod_key=f"{key}-{two}-{other}"))
    assert len({names.service_name(pod) for pod in pods}) == 1


@given(st.text(min_size=1, max_size=80), st.text(min_size=1, max_size=80))
@example("Team", "team")
@example("a_b", "a-b")
def test_no_two_projects_share_a_namespace(one: str, two: str) -> None:
    assume(one != two)
    spaces = [names.namespace_of("muster-{project}", project) for project in (one, two)]
    assert spaces[0] != spaces[1]
    assert all(DNS_LABEL.match(space) for space in spaces)


def test_a_projects_namespace_is_as_the_setting_says() -> None:
    assert names.namespace_of("muster-{project}", "team-a") == "muster-team-a"
    assert names.namespace_of("{project}", "7") == "7"


@given(st.text(max_size=253), st.integers(0, 31), st.text(max_size=253), st.integers(0, 31))
@example("node-1", 1, "node", 11)
def test_every_device_of_every_node_has_a_reservation_of_its_own(node: str, device: int, other: str, nth: int) -> None:
    assume((node, device) != (other, nth))
    made = [names.reservation_name(CLUSTER, *of) for of in ((node, device), (other, nth))]
    assert made[0] != made[1]
    assert all(DNS_LABEL.match(name) for name in made)


def test_two_clusters_keep_their_fences_apart() -> None:
    assert names.fence_map_name("c1", 0) != names.fence_map_name("c2", 0)
    assert DNS_LABEL.match(names.fence_map_name(CLUSTER, 63))
