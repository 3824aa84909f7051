"""Who has which address of the proxy, and where it forwards: from the log alone, and never where no pod can be."""

import ipaddress
from typing import Any

import pytest

from events.aggregate import WORKLOAD
from events.ids import cluster_key, incarnation_id
from events.workload.commands import DeleteWorkload, PodFact, ResumeWorkload, SuspendWorkload
from events.workload.pod import PodAddress, PodRef, PortAddress
from services.proxy.routes import Bounds, Routes, Target
from services.proxy.service import bounds_of
from services.runtime.process.settings import Settings
from tests.proxy.given import CONTAINER, Given, url
from tests.support.lives import FIRST

NETWORKS = (
    ipaddress.ip_network("10.244.0.0/16"),
    ipaddress.ip_network("fd00::/8"),
    ipaddress.ip_network("127.0.0.0/8"),
)


def targets(given: Given, key: str, index: int = 0) -> tuple[Target, ...]:
    route = given.routes.find(given.host(key, index).partition(".")[0])
    return () if route is None else given.routes.targets(route)


@pytest.mark.parametrize(
    ("host", "port", "reached"),
    [
        ("127.0.0.1", 20_000, True),
        ("127.0.0.1", 1023, False),
        ("127.0.0.1", 4222, False),
        ("127.0.0.2", 20_000, True),
        ("10.0.0.1", 20_000, False),
        ("169.254.169.254", 20_000, False),
        ("0.0.0.0", 20_000, False),
        ("::1", 20_000, False),
        ("::ffff:127.0.0.1", 20_000, False),
        ("localhost", 20_000, False),
        ("127.1", 20_000, False),
        ("muster.example", 20_000, False),
        ("", 20_000, False),
    ],
)
def test_on_this_machine_it_forwards_to_loopback_alone_and_to_no_server_of_musters(
    host: str, port: int, reached: bool
) -> None:
    given = Given("local", Bounds(own_ports=frozenset({4222}), pod_networks=NETWORKS))
    key = given.workload("tool")
    given.runs(key, port, host=host)
    assert targets(given, key) == ((Target(host, port),) if reached else ())


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("10.244.3.4", True),
        ("fd00::7", True),
        ("10.245.0.1", False),
        ("127.0.0.1", False),
        ("169.254.169.254", False),
        ("::ffff:10.244.3.4", False),
        ("8.8.8.8", False),
        ("kubernetes.default.svc", False),
    ],
)
def test_on_kubernetes_it_forwards_to_networks_of_pods_alone_and_to_the_port_that_the_submitter_named(
    host: str, reached: bool
) -> None:
    given = Given("kubernetes", Bounds(pod_networks=NETWORKS))
    key = given.workload("tool")
    # What an agent says of the port does not count there.
    given.runs(key, 6443, host=host)
    assert targets(given, key) == ((Target(host, CONTAINER),) if reached else ())


def test_a_network_of_one_cluster_is_reached_by_what_its_agent_says_and_by_no_other_agents_word() -> None:
    """Else whoever has the agent of one cluster, and a workload there, reaches the pods of another."""
    given = Given("kubernetes")
    keys = given.workload("tool"), given.workload("other")
    given.runs(keys[0], CONTAINER, host="10.244.3.4")
    given.runs(keys[1], CONTAINER, host="10.99.0.1")
    another = incarnation_id(cluster_key("another"), "add")
    for cluster_id, reached in ((given.cluster, [1, 1]), (another, [0, 1])):
        settings = Settings(proxy_pod_networks=f" {cluster_id.upper()}=10.244.0.0/16,10.99.0.0/16")
        routes = Routes(bounds_of(settings))
        for commit in given.world.commits:
            routes.apply(commit)
        found = [routes.find(given.host(key).partition(".")[0]) for key in keys]
        assert [len(routes.targets(route)) for route in found if route is not None] == reached


@pytest.mark.parametrize("text", ["x=10.0.0.0/8", "10.0.0.1/8", "46f10f9e-1d49-8cef-b3ea-3d8f6e20e367=pods"])
def test_a_setting_that_names_no_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no network in CIDR form|is no id of a cluster"):
        Settings(proxy_pod_networks=text)


def test_a_proxy_of_one_cluster_serves_no_other() -> None:
    given = Given("local")
    key = given.workload("tool")
    given.runs(key, 20_000)
    for cluster_id, reached in ((given.cluster, 1), ("another", 0)):
        other = Given("local", routes=Routes(Bounds(cluster_id=cluster_id)))
        for commit in given.world.commits:
            other.take(commit)
        route = other.routes.find(given.host(key).partition(".")[0])
        assert route is not None
        assert len(other.routes.targets(route)) == reached


def test_an_address_is_there_while_its_workload_is_and_leads_to_it_while_it_runs() -> None:
    given = Given()
    key = given.workload("tool")
    state = given.world.state("workload", key)
    assert targets(given, key) == ()
    given.runs(key, 20_000)
    assert targets(given, key) == (Target("127.0.0.1", 20_000),)
    given.world.do("workload", key, SuspendWorkload(workload_id=state.workload_id))
    given.follow()
    given.report(key, PodFact(pod=FIRST, kind="stopped", at=given.world.now))
    assert targets(given, key) == ()
    assert len(given.routes) == 1
    given.world.do("workload", key, ResumeWorkload(workload_id=state.workload_id))
    given.follow()
    # A late word of the run before, with an address, changes nothing.
    late = PodAddress(host="127.0.0.1", ports=(PortAddress(container=CONTAINER, port=22_222),))
    given.report(key, PodFact(pod=FIRST, kind="running", at=given.world.now, address=late))
    assert targets(given, key) == ()
    again = PodRef(pod_set="main", index=0, attempt=2, try_=0)
    given.runs(key, 20_001, pod=again)
    assert targets(given, key) == (Target("127.0.0.1", 20_001),)
    given.world.do("workload", key, DeleteWorkload(workload_id=state.workload_id))
    given.follow()
    assert len(given.routes) == 0
    assert given.routes.of(WORKLOAD) == {}


def test_whoever_was_first_has_an_address_until_it_has_ended_in_whatever_order_a_proxy_meets_them() -> None:
    given = Given()
    same = url(url="http://tool.apps.test:8083")
    first = given.workload("a", same)
    given.world.later(1)
    second = given.workload("b", same)

    def holder(routes: Routes) -> str:
        route = routes.find("tool")
        return "" if route is None else route.key

    assert holder(given.routes) == first
    backwards = Routes()
    chains = {name: dict(reversed(of.items())) for name, of in given.routes.chains.items()}
    backwards.restore(len(given.world.commits), chains)
    assert holder(backwards) == first
    given.world.do("workload", first, DeleteWorkload(workload_id=given.world.state("workload", first).workload_id))
    given.follow()
    assert holder(given.routes) == second


def test_pods_answer_in_turn_in_the_order_of_their_indexes() -> None:
    given = Given()
    key = given.workload("tool", url(), parallelism=3, completions=3)
    for index in range(3):
        given.world.place([(key, PodRef(pod_set="main", index=index, attempt=1, try_=0), given.node, index)])
    for index in (2, 0, 1):
        pod = PodRef(pod_set="main", index=index, attempt=1, try_=0)
        address = PodAddress(host="127.0.0.1", ports=(PortAddress(container=CONTAINER, port=20_000 + index),))
        given.report(key, PodFact(pod=pod, kind="running", at=given.world.now, address=address))
    assert [target.port for target in targets(given, key)] == [20_000, 20_001, 20_002]


def test_a_snapshot_is_as_good_as_the_log() -> None:
    given = Given()
    key = given.workload("tool")
    given.runs(key, 20_000)
    restored = Given(routes=Routes())
    restored.routes.restore(len(given.world.commits), given.routes.chains)
    route = restored.routes.find(given.host(key).partition(".")[0])
    assert route is not None
    assert restored.routes.targets(route) == targets(given, key)


def test_ten_thousand_addresses_are_found_each_by_itself_and_forgotten_with_their_workloads() -> None:
    given = Given()
    urls = tuple(url(container, url=f"http://t{container}.apps.test:8083") for container in range(1, 1001))
    keys = [
        given.workload(
            f"w{n}", *(url(one.container or 0, url=f"http://t{n}-{one.container}.apps.test:8083") for one in urls)
        )
        for n in range(10)
    ]
    assert len(given.routes) == 10_000
    route = given.routes.find("t7-999")
    assert route is not None
    assert (route.key, route.container) == (keys[7], 999)
    for key in keys:
        given.world.do("workload", key, DeleteWorkload(workload_id=given.world.state("workload", key).workload_id))
    given.follow()
    assert len(given.routes) == 0


@pytest.mark.parametrize(
    ("kind", "said"),
    [("simulated", "simulated cluster"), ("kubernetes", "MUSTER_PROXY_POD_NETWORKS"), ("local", "MUSTER_PROXY")],
)
def test_why_nothing_answers_is_said(kind: Any, said: str) -> None:
    given = Given(kind)
    key = given.workload("tool")
    given.runs(key, 20_000, host="192.0.2.1")
    route = given.routes.find(given.host(key).partition(".")[0])
    assert route is not None
    assert given.routes.targets(route) == ()
    assert said in given.routes.how_it_is(route)
