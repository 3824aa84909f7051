"""What is refused of a workload's environment is what the agents would set in its place."""

from pathlib import Path
from typing import get_args

import pytest

from events.cluster_protocol import DeviceShare
from events.workload import mpi, rendezvous
from events.workload.fields.distribution import DistributedFramework
from events.workload.rendezvous import Peers
from services.agent.backends.kubernetes.act.manifests import pod_manifest
from services.agent.backends.local.environment import pod_environment
from services.agent.backends.local.gpus import Gpu
from services.agent.backends.local.mpi import Meetings
from services.api.rules import OF_MPS, SET_BY_MUSTER, SET_WITH_DEVICES, SET_WITH_PORTIONS
from tests.agent.given import machine, run_pod

FORGED = dict.fromkeys((*SET_BY_MUSTER, *SET_WITH_DEVICES, *SET_WITH_PORTIONS), "forged")
SHARED = run_pod(environment=FORGED, devices=(DeviceShare(device=0, milli=500),))


def test_on_this_machine_every_variable_that_is_refused_is_set_and_no_other(tmp_path: Path) -> None:
    gpu = Gpu(name="GPU-0", model="H100", memory_bytes=2**30)
    said = pod_environment(SHARED, machine(tmp_path), [gpu])
    assert "forged" not in said.values()
    assert said.keys() - {"PATH", "HOME", "LANG", "PYTHONUNBUFFERED"} == FORGED.keys() | {"CUDA_VISIBLE_DEVICES"}


def test_on_kubernetes_every_variable_that_is_refused_is_set_and_no_other() -> None:
    made = pod_manifest(SHARED, cluster_id="c", namespace="n", devices=["GPU-0"], device_memory_bytes=2**30)
    said = {one["name"]: one.get("value") for one in made["spec"]["containers"][0]["env"]}
    assert "forged" not in said.values()
    assert said.keys() == FORGED.keys()


def test_all_of_mps_that_is_set_is_among_what_is_refused_by_its_beginning() -> None:
    """More is refused than is set: by the folder of another server a program would not be limited."""
    assert {name for name in FORGED if name.startswith(OF_MPS)} == SET_WITH_PORTIONS


@pytest.mark.parametrize("framework", [one for one in get_args(DistributedFramework) if one != "MPI"])
def test_what_is_refused_for_a_framework_is_what_its_pods_get(framework: DistributedFramework, tmp_path: Path) -> None:
    names = rendezvous.names(framework)
    said: set[str] = set()
    for elastic in (None, (1, 2)):
        peers = Peers(framework=framework, sets=(("master", 1), ("worker", 1)), first_rank=0, elastic=elastic)
        forged = dict.fromkeys(names, "forged")
        pod = run_pod(environment=forged, rendezvous=rendezvous.variables(peers, 0))
        local = pod_environment(pod, machine(tmp_path), [])
        made = pod_manifest(pod, cluster_id="c", namespace="n", service="s")
        remote = {one["name"]: one.get("value") for one in made["spec"]["containers"][0]["env"]}
        for environment in (local, remote):
            assert all("<" not in str(environment[name]) for name in pod.rendezvous), "no marker is left"
            assert all(environment[name] != "forged" for name in pod.rendezvous)
        said |= pod.rendezvous.keys()
    assert said == names


def test_what_is_refused_for_mpi_is_what_its_launcher_gets(tmp_path: Path) -> None:
    forged = dict.fromkeys(mpi.NAMES | mpi.NAMES_OF_ONE_MACHINE, "forged")
    pod = run_pod(environment=forged, mpi=mpi.Mpi(role="launcher", workers=1, slots=1))
    local = pod_environment(pod, machine(tmp_path), [], more=Meetings(tmp_path).variables(pod))
    assert "forged" not in local.values()
    made = pod_manifest(pod, cluster_id="c", namespace="n", service="s")
    remote = {one["name"]: one.get("value") for one in made["spec"]["containers"][0]["env"]}
    assert {name for name, value in remote.items() if value == "forged"} == mpi.NAMES_OF_ONE_MACHINE
