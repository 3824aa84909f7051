"""The benchmark of placement measures what it says: the same pods for all, and kept scores as if counted anew."""

from pathlib import Path

import pytest

from benchmarks.placement import POLICIES, outcome, seeds_of, told
from benchmarks.placement_rivals import BestFit, Fgd
from benchmarks.placement_trace import Node, Pod, Trace, a_part, generated, read_nodes, read_pods, run_of

SMALL = generated("small", nodes=24, pods=200)


def test_the_pods_of_a_seed_are_the_same_again_and_ask_for_as_much_as_is_wanted():
    first, again, other = (run_of(SMALL, seed=seed, demand=1.3) for seed in (1, 1, 2))
    assert (first.pods, first.nodes) == (again.pods, again.nodes)
    assert first.pods != other.pods
    asked = sum(pod.demand_milli for pod in first.pods)
    assert 1.3 * SMALL.capacity_milli - 8_000 <= asked <= 1.3 * SMALL.capacity_milli + 8_000


@pytest.mark.parametrize("policy", [Fgd, BestFit])
def test_a_rival_that_keeps_scores_places_as_one_that_forgets_them(policy: type[Fgd | BestFit]):
    run = run_of(SMALL, seed=1, demand=1.3)
    keeps, forgets = policy(run), policy(run)
    for pod in run.pods:
        forgets._kinds.clear()
        assert keeps.place(pod) == forgets.place(pod)


def test_fgd_keeps_whole_what_the_usual_pods_need_whole():
    """Both nodes have room; on the first, half of a GPU would be of no use to anybody."""
    nodes = (
        Node(cpu_milli=64_000, memory_mib=1_000, gpus=2, model="a"),
        Node(cpu_milli=64_000, memory_mib=1_000, gpus=1, model="a"),
    )
    half, whole = (Pod(cpu_milli=1, memory_mib=1, gpus=1, gpu_milli=milli) for milli in (500, 1000))
    two = Pod(cpu_milli=1, memory_mib=1, gpus=2, gpu_milli=1000)
    trace = Trace(name="t", nodes=nodes, pods=(half, whole, two, two))
    run = run_of(trace, seed=1, demand=1.0)
    policy = Fgd(run)
    node = policy.place(half)
    assert node is not None
    assert run.nodes[node].gpus == 1


def test_every_policy_is_told_beside_the_others_with_what_it_refused(capsys: pytest.CaptureFixture[str]):
    found = [outcome(SMALL, policy, 1, 1.3) for policy in POLICIES]
    text = told(found)
    assert all(name in text for name in ("BestFit", "FGD", "Muster", "8-GPU pods refused", "above FGD"))
    for each in found:
        assert 50 < each.allocated[0] <= each.allocated[1] <= each.allocated[2] <= 100
        assert each.refused_wide <= each.wide


def test_lists_are_read_in_their_published_form(tmp_path: Path):
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn,64000,1024,2,T4\n")
    (tmp_path / "pods.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\nb,1,2,0,0,\na,3,4,1,500,T4|A10\n"
    )
    assert read_nodes(tmp_path / "nodes.csv") == (Node(cpu_milli=64_000, memory_mib=1_024, gpus=2, model="T4"),)
    assert read_pods(tmp_path / "pods.csv") == (
        Pod(cpu_milli=3, memory_mib=4, gpus=1, gpu_milli=500, models=("T4", "A10")),
        Pod(cpu_milli=1, memory_mib=2, gpus=0, gpu_milli=0),
    )
    assert len(a_part(SMALL, one_in=8).nodes) == 3
    assert list(seeds_of("42..44")) == [42, 43, 44]
    assert list(seeds_of("7")) == [7]
