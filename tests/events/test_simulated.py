"""Nodes of simulated clusters as their log has them. S039, S043."""

import contextlib
from datetime import UTC, datetime
from typing import Any, Final

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from events.aggregate import CLUSTER
from events.cluster import AddCluster, Cluster, NodePool, SetNodePool, decide, evolve, pool_of
from events.commit import service_actor
from events.decision import Context
from events.node import Taint
from events.refusal import Refusal
from events.simulated import (
    MOST_NODES,
    POOL_LABEL,
    AddSimulatedNodes,
    ChangeSimulatedNode,
    DisconnectSimulatedCluster,
    ReconnectSimulatedCluster,
    RemoveSimulatedNodes,
    SimulatedNodes,
    all_labels,
    node_names,
    packed,
    unpacked,
    with_nodes,
)
from tests.support.draws import draws

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
CONTEXT: Final = Context(now=NOW, actor=service_actor("test"), command_id="c", version=0)
ALIKE: Final = SimulatedNodes(names=("a", "b"), cpu_milli=1000, memory_bytes=2**30)


def done(state: Cluster, *commands: Any) -> Cluster:
    for command in commands:
        decision = decide(command, state, CONTEXT)
        assert not isinstance(decision, Refusal), decision
        for event in decision:
            state = evolve(state, event)
    return state


def refusal(state: Cluster, command: Any) -> Refusal:
    decision = decide(command, state, CONTEXT)
    assert isinstance(decision, Refusal)
    return decision


DEMO: Final = done(CLUSTER.initial, AddCluster(name="demo", kind="simulated", simulated_nodes=(ALIKE,)))
ID: Final = DEMO.cluster_id


def the_node(state: Cluster, name: str) -> SimulatedNodes:
    (found,) = [alike for alike in state.simulated_nodes if name in alike.names]
    return found


def test_nodes_come_change_and_go() -> None:
    more = replace(ALIKE, names=("c",))
    state = done(DEMO, AddSimulatedNodes(cluster_id=ID, nodes=(more,)))
    assert [alike.names for alike in state.simulated_nodes] == [("a", "b", "c")], "those that are alike are one entry"
    change = ChangeSimulatedNode(cluster_id=ID, name="b", cpu_milli=2000, labels={"zone": "x"}, extended={"a/b": 2})
    state = done(state, change)
    assert node_names(state.simulated_nodes) == {"a", "b", "c"}
    assert (the_node(state, "b").cpu_milli, the_node(state, "b").extended) == (2000, {"a/b": 2})
    assert the_node(state, "a").cpu_milli == 1000
    assert decide(change, state, CONTEXT) == (), "the same again changes nothing"
    state = done(state, ChangeSimulatedNode(cluster_id=ID, name="b", labels={"zone": None}, extended={"a/b": None}))
    assert (the_node(state, "b").labels, the_node(state, "b").extended) == ({}, {})
    state = done(state, RemoveSimulatedNodes(cluster_id=ID, names=("a", "c")))
    assert node_names(state.simulated_nodes) == {"b"}


def test_a_taint_is_set_and_dropped_by_key_and_effect() -> None:
    taint = Taint(key="team", value="x", effect="NoSchedule")
    state = done(DEMO, ChangeSimulatedNode(cluster_id=ID, name="a", taints=(taint,)))
    other = changed_taint(taint, "y")
    state = done(state, ChangeSimulatedNode(cluster_id=ID, name="a", taints=(other,)))
    assert the_node(state, "a").taints == (other,)
    state = done(state, ChangeSimulatedNode(cluster_id=ID, name="a", dropped_taints=(taint,)))
    assert the_node(state, "a").taints == ()


def changed_taint(taint: Taint, value: str) -> Taint:
    return replace(taint, value=value)


def test_a_node_that_loses_its_gpus_loses_what_is_said_of_them() -> None:
    change = ChangeSimulatedNode(cluster_id=ID, name="a", gpu_count=8, gpu_model="H100", gpu_memory_bytes=7)
    state = done(DEMO, change, ChangeSimulatedNode(cluster_id=ID, name="a", gpu_count=0))
    assert replace(the_node(state, "a"), names=()) == replace(ALIKE, names=())
    wrong = refusal(DEMO, ChangeSimulatedNode(cluster_id=ID, name="a", gpu_model="H100"))
    assert (wrong.code, wrong.field) == ("invalid", "gpus")


def test_a_pool_that_is_named_is_made_or_its_label_is_given() -> None:
    """Given a pool with a label of its own, nodes that are to be in it get that label; else a pool is made."""
    h100 = NodePool(name="h100", label_key="model", label_value="H100")
    new = (replace(ALIKE, names=("c",)), replace(ALIKE, names=("d",)), replace(ALIKE, names=("e",)))
    state = done(
        DEMO,
        SetNodePool(cluster_id=ID, pool=h100),
        AddSimulatedNodes(cluster_id=ID, nodes=new, node_pools=("h100", "fast", "")),
    )
    assert state.node_pools["fast"] == NodePool(name="fast", label_key=POOL_LABEL, label_value="fast")
    pools = {name: pool_of(all_labels(name, the_node(state, name)), state.node_pools) for name in "acde"}
    assert pools == {"a": "default", "c": "h100", "d": "fast", "e": "default"}
    state = done(state, ChangeSimulatedNode(cluster_id=ID, name="d", node_pool="h100"))
    assert pool_of(all_labels("d", the_node(state, "d")), state.node_pools) == "h100"
    assert POOL_LABEL not in the_node(state, "d").labels


def test_a_pool_that_its_labels_contradict_is_refused() -> None:
    pool = NodePool(name="early", label_key="zone", label_value="x")
    state = done(DEMO, SetNodePool(cluster_id=ID, pool=pool))
    node = replace(ALIKE, names=("c",), labels={"zone": "x"})
    wrong = refusal(state, AddSimulatedNodes(cluster_id=ID, nodes=(node,), node_pools=("late",)))
    assert "'early': their label zone=x puts them there; leave out the pool, or the label" in wrong.message


@pytest.mark.parametrize("kind", ["local", "kubernetes"])
def test_nodes_of_a_real_cluster_are_refused_by_name_with_what_would_do(kind: Any) -> None:
    state = done(CLUSTER.initial, AddCluster(name="local", kind=kind))
    for command in (
        AddSimulatedNodes(cluster_id=state.cluster_id, nodes=(ALIKE,)),
        ChangeSimulatedNode(cluster_id=state.cluster_id, name="a", cpu_milli=1),
        RemoveSimulatedNodes(cluster_id=state.cluster_id, names=("a",)),
    ):
        wrong = refusal(state, command)
        assert wrong.code == "not_simulated"
        assert "`muster node cordon` and `muster node drain` work on them" in wrong.message


def test_a_simulated_cluster_is_cut_off_once_and_connected_again_once() -> None:
    cut, back = DisconnectSimulatedCluster(cluster_id=ID), ReconnectSimulatedCluster(cluster_id=ID)
    assert decide(back, DEMO, CONTEXT) == ()
    there = done(DEMO, cut)
    assert (there.cut_off_at, decide(cut, there, CONTEXT)) == (NOW, ())
    assert done(there, back) == DEMO


@pytest.mark.parametrize("kind", ["local", "kubernetes"])
def test_the_agent_of_a_real_cluster_is_not_cut_off(kind: Any) -> None:
    state = done(CLUSTER.initial, AddCluster(name="local", kind=kind))
    for command in (DisconnectSimulatedCluster, ReconnectSimulatedCluster):
        wrong = refusal(state, command(cluster_id=state.cluster_id))
        assert (wrong.code, wrong.field) == ("not_simulated", "clusterId")
        assert f"is of kind {kind}, and only a simulated cluster can be cut off" in wrong.message


def test_what_cannot_be_is_refused() -> None:
    assert refusal(DEMO, AddSimulatedNodes(cluster_id=ID, nodes=(ALIKE,))).code == "name_taken"
    twice = AddSimulatedNodes(cluster_id=ID, nodes=(replace(ALIKE, names=("c", "c")),))
    assert refusal(DEMO, twice).code == "invalid"
    many = replace(ALIKE, names=tuple(f"n{number}" for number in range(MOST_NODES - 1)))
    assert (
        "at most 10,000 nodes, and would have 10,001"
        in refusal(DEMO, AddSimulatedNodes(cluster_id=ID, nodes=(many,))).message
    )
    assert refusal(DEMO, ChangeSimulatedNode(cluster_id=ID, name="z", cpu_milli=1)).code == "not_found"
    assert "no node y, z" in refusal(DEMO, RemoveSimulatedNodes(cluster_id=ID, names=("a", "z", "y"))).message


def test_ten_thousand_nodes_that_all_differ_can_be_told_to_their_agent() -> None:
    nodes = tuple(
        replace(ALIKE, names=(f"rack-{n % 97}-node-{n}",), labels={"rack": f"r{n % 97}", "serial": f"{n * 7919:x}"})
        for n in range(MOST_NODES)
    )
    state = done(CLUSTER.initial, AddCluster(name="big", kind="simulated", simulated_nodes=nodes))
    assert unpacked(packed(state.simulated_nodes)) == nodes


def test_what_could_not_be_told_to_the_agent_is_refused() -> None:
    noise = "".join(f"{number * 2654435761 % 2**32:08x}" for number in range(300_000))
    labels = [{f"k{at}": noise[at : at + 60]} for at in range(0, len(noise) - 60, 60)]
    nodes = tuple(replace(ALIKE, names=(f"n{at}",), labels=one) for at, one in enumerate(labels[:MOST_NODES]))
    nodes = tuple(
        replace(one, labels=one.labels | {f"l{at}": noise[at * 55 : at * 55 + 60] for at in range(n, n + 3)})
        for n, one in enumerate(nodes)
    )
    wrong = refusal(CLUSTER.initial, AddCluster(name="big", kind="simulated", simulated_nodes=nodes))
    assert "give fewer labels, taints and resources that differ from node to node" in wrong.message


def test_numbers_that_no_node_has_are_kept_and_told_as_they_stand_in_the_log() -> None:
    absurd = replace(ALIKE, cpu_milli=2**80, memory_bytes=-(2**80), extended={"a.example/b": 2**64})
    nodes = with_nodes((), (absurd, replace(absurd, names=("c",))))
    assert nodes == (replace(absurd, names=("a", "b", "c")),)
    assert unpacked(packed(nodes)) == nodes


@given(st.binary(max_size=200))
def test_damaged_words_of_nodes_are_an_error_and_nothing_else(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        unpacked(data)


NAMES = st.lists(st.sampled_from("abcdef"), unique=True, min_size=1).map(tuple)


@given(st.lists(st.tuples(NAMES, st.sampled_from(["add", "change", "remove"]), st.integers(1, 3)), max_size=12))
@settings(max_examples=draws(60))
def test_kept_nodes_equal_those_that_the_changes_say(acts: list[tuple[tuple[str, ...], str, int]]) -> None:
    state, expected = done(CLUSTER.initial, AddCluster(name="x", kind="simulated")), dict[str, int]()
    for names, act, milli in acts:
        command: Any
        match act:
            case "add":
                nodes = (replace(ALIKE, names=names, cpu_milli=milli),)
                command = AddSimulatedNodes(cluster_id=state.cluster_id, nodes=nodes)
            case "change":
                command = ChangeSimulatedNode(cluster_id=state.cluster_id, name=names[0], cpu_milli=milli)
            case _:
                command = RemoveSimulatedNodes(cluster_id=state.cluster_id, names=names)
        decision = decide(command, state, CONTEXT)
        if isinstance(decision, Refusal):
            continue
        for event in decision:
            state = evolve(state, event)
        if act == "remove":
            expected = {name: each for name, each in expected.items() if name not in names}
        else:
            expected |= dict.fromkeys(names if act == "add" else names[:1], milli)
    assert {name: alike.cpu_milli for alike in state.simulated_nodes for name in alike.names} == expected
