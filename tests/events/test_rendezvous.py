"""What pods of a distributed training find in their environment, framework by framework."""

import json
from typing import Any

import pytest

from events.workload.fields.distribution import DistributedFramework, Distribution
from events.workload.fields.saving import CheckpointSpec
from events.workload.fields.storage import EmptyDirVolume, StorageSpec
from events.workload.kinds import KINDS
from events.workload.mpi import Mpi, hostfile, machinefile, ssh_files, sshd_options, suggested
from events.workload.mpi import variables as mpi_variables
from events.workload.pod_sets import PodSet
from events.workload.rendezvous import names, variables, with_addresses
from events.workload.spec import ComputeSpec, Distributed, TrainingSpec


def sets_of(framework: DistributedFramework, *, master: bool = True, gpus: int = 0, **more: Any) -> tuple[PodSet, ...]:
    spec = TrainingSpec(image="w", compute=ComputeSpec(gpu_devices_request=gpus))
    distribution = Distribution(distributed_framework=framework, num_workers=more.pop("num_workers", 2), **more)
    distributed = Distributed(distribution=distribution, master=TrainingSpec(image="m") if master else None)
    return KINDS["Distributed"].pod_sets(spec, distributed)


def volume(path: str) -> StorageSpec:
    return StorageSpec(empty_dir_volume=(EmptyDirVolume(path=path),))


def found(pod_set: PodSet, index: int) -> dict[str, str]:
    assert pod_set.peers is not None
    values = variables(pod_set.peers, index)
    return with_addresses(values, host=lambda name, at: f"{name}-{at}.s", port=lambda _, usual: usual)


def test_every_pod_of_pytorch_knows_the_master_and_its_own_rank() -> None:
    master, worker = sets_of("PyTorch", gpus=4)
    assert found(master, 0) == {
        "MASTER_ADDR": "master-0.s",
        "MASTER_PORT": "23456",
        "WORLD_SIZE": "3",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "PET_NPROC_PER_NODE": "1",
        "PET_NODE_RANK": "0",
        "PET_NNODES": "3",
        "PET_MASTER_ADDR": "master-0.s",
        "PET_MASTER_PORT": "23456",
    }
    assert [found(worker, index)["RANK"] for index in range(2)] == ["1", "2"]
    assert found(worker, 0)["PET_NPROC_PER_NODE"] == "4"


def test_without_a_master_worker_0_is_rank_0() -> None:
    (worker,) = sets_of("PyTorch", master=False)
    assert [found(worker, index)["RANK"] for index in range(2)] == ["0", "1"]
    assert found(worker, 1)["MASTER_ADDR"] == "worker-0.s"


def test_elastic_pytorch_meets_by_torchruns_rendezvous_with_least_and_most() -> None:
    (worker,) = sets_of("PyTorch", master=False, num_workers=4, min_replicas=2, max_replicas=6)
    assert worker.count == worker.minimum == 2
    said = found(worker, 1)
    assert (said["PET_NNODES"], said["PET_RDZV_BACKEND"], said["PET_RDZV_ENDPOINT"]) == (
        "2:6",
        "c10d",
        "worker-0.s:23456",
    )
    assert said["MASTER_ADDR"] == "worker-0.s"
    assert said.keys().isdisjoint({"PET_MASTER_ADDR", "RANK", "WORLD_SIZE", "LOCAL_RANK", "PET_NODE_RANK"}), (
        "they change with each pod that comes or goes, and torchrun says them"
    )
    assert found(worker, 7) == said, "one that is added later meets the others as they do"


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({"num_workers": 2}, (2, 0, 0)),
        ({"num_workers": 2, "min_replicas": 2}, (2, 0, 0)),
        ({"num_workers": 3, "min_replicas": 2}, (2, 3, 3)),
        ({"num_workers": 2, "max_replicas": 4}, (2, 2, 4)),
        ({"num_workers": 3, "min_replicas": 1, "max_replicas": 4}, (1, 3, 4)),
    ],
)
def test_an_elastic_one_has_least_wanted_and_most_workers(given: dict[str, Any], sizes: tuple[int, ...]) -> None:
    master, worker = sets_of("PyTorch", **given)
    assert (worker.minimum, worker.wanted, worker.most) == sizes
    assert (master.minimum, master.wanted, master.most) == (1, 0, 0)


def test_tensorflow_reads_one_variable_with_the_cluster_and_its_task() -> None:
    master, worker = sets_of("TensorFlow")
    cluster = {"chief": ["master-0.s:2222"], "worker": ["worker-0.s:2222", "worker-1.s:2222"]}
    for pod_set, index, task in (
        (master, 0, {"type": "chief", "index": 0}),
        (worker, 1, {"type": "worker", "index": 1}),
    ):
        assert json.loads(found(pod_set, index)["TF_CONFIG"]) == {
            "cluster": cluster,
            "task": task,
            "environment": "cloud",
        }


def test_xgboost_finds_its_tracker_at_rank_0() -> None:
    _, worker = sets_of("XGBoost")
    said = found(worker, 0)
    assert {name: said[name] for name in said if name.startswith("DMLC")} == {
        "DMLC_TRACKER_URI": "master-0.s",
        "DMLC_TRACKER_PORT": "9999",
        "DMLC_NUM_WORKER": "3",
        "DMLC_TASK_ID": "1",
    }
    assert (said["RANK"], said["WORLD_SIZE"]) == ("1", "3")


def test_jax_finds_its_coordinator() -> None:
    (worker,) = sets_of("JAX", master=False)
    said = found(worker, 1)
    assert {name: said[name] for name in said if name.startswith("JAX")} == {
        "JAX_COORDINATOR_ADDRESS": "worker-0.s:6666",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "1",
    }


def test_an_mpi_launcher_is_told_of_its_workers_and_may_wait_for_them() -> None:
    master, worker = sets_of("MPI", slots_per_worker=4, mpi_launcher_creation_policy="WaitForWorkersReady")
    assert [made.peers and made.peers.mpi for made in (master, worker)] == [
        Mpi(role="launcher", workers=2, slots=4, ssh="/root/.ssh", serves=True),
        Mpi(role="worker", workers=2, slots=4, ssh="/root/.ssh", serves=True),
    ]
    assert (master.starts_after, worker.starts_after) == ("worker", "")
    assert found(master, 0) == found(worker, 0) == {}, "its variables name files, which only the agent knows"
    for policy in (None, "AtStartup"):
        assert {made.starts_after for made in sets_of("MPI", mpi_launcher_creation_policy=policy)} == {""}


def test_each_mpi_reads_its_own_variables_and_form_of_the_host_file() -> None:
    hosts = ["worker-0.s", "worker-1.s"]
    assert hostfile(hosts, 2) == "worker-0.s slots=2\nworker-1.s slots=2\n"
    assert machinefile(hosts, 2) == "worker-0.s:2\nworker-1.s:2\n"
    said = mpi_variables(Mpi(role="launcher", workers=2, slots=2), "/etc/mpi")
    files = {name: value for name, value in said.items() if value.startswith("/etc/mpi/")}
    assert files == {
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "PRTE_MCA_prte_default_hostfile": "/etc/mpi/hostfile",
        "HYDRA_HOST_FILE": "/etc/mpi/machinefile",
        "I_MPI_HYDRA_HOST_FILE": "/etc/mpi/machinefile",
    }
    assert mpi_variables(Mpi(role="worker", workers=2, slots=2), "/etc/mpi") == {"K_MPI_JOB_ROLE": "worker"}
    assert names("MPI") == set(said)


def options_of(text: str) -> dict[str, str]:
    """Of a command line, or of a file of OpenSSH."""
    words = text.replace("-o ", "").replace("=", " ").removeprefix("Host *\n").split()
    return dict(zip(words[::2], words[1::2], strict=True))


SHARED = {"ConnectionAttempts": "10", "IdentityFile": "/keys/id_ed25519"}


@pytest.mark.parametrize(
    ("serves", "expected"),
    [
        (
            True,
            {
                "StrictHostKeyChecking": "yes",
                "UserKnownHostsFile": "/keys/known_hosts",
                "HostKeyAlgorithms": "ssh-ed25519",
            },
        ),
        (False, {"StrictHostKeyChecking": "no", "UserKnownHostsFile": "/dev/null"}),
    ],
)
def test_ssh_believes_the_sshd_that_muster_starts_and_any_that_a_workload_starts(
    *, serves: bool, expected: dict[str, str]
) -> None:
    """S063: on its command line, and in the file that it reads where nobody gives it that."""
    mpi = Mpi(role="launcher", workers=1, slots=1, ssh="/keys", serves=serves)
    assert {options_of(text) == SHARED | expected for text in suggested(mpi).values()} == {True}
    files = ssh_files(mpi, "private\n", "public\n")
    assert options_of(files["config"]) == SHARED | expected
    assert files["known_hosts"] == "* public\n"
    assert {files[name] for name in ("id_ed25519", "id_rsa")} == {"private\n"}


def test_the_sshd_that_muster_starts_has_the_pair_as_its_own_and_lets_it_in() -> None:
    said = options_of(" ".join(sshd_options(Mpi(role="worker", workers=1, slots=1, ssh="/keys"))[:2]))
    assert said == {"HostKey": "/keys/id_ed25519"}
    assert sshd_options(Mpi(role="worker", workers=1, slots=1)) == ()
    assert suggested(Mpi(role="worker", workers=1, slots=1, ssh="/keys")) == {}


@pytest.mark.parametrize(
    ("spec", "more", "expected"),
    [
        ({}, {}, ("/root/.ssh", True)),
        ({}, {"ssh_auth_mount_path": "/keys"}, ("/keys", True)),
        ({"command": "sshd-of-mine"}, {}, ("/root/.ssh", False)),
        ({"args": "sshd-of-mine"}, {}, ("/root/.ssh", False)),
        ({"storage": volume("/root/.ssh/")}, {}, ("", True)),
        ({"storage": volume("/root/.ssh/more")}, {}, ("", True)),
        ({"storage": volume("/root")}, {}, ("/root/.ssh", True)),
        ({"checkpoint": CheckpointSpec(path="/root/.ssh/")}, {}, ("", True)),
        ({"checkpoint": CheckpointSpec(path="/root/.ssh/more")}, {}, ("", True)),
        ({"checkpoint": CheckpointSpec()}, {}, ("/root/.ssh", True)),
        ({"storage": volume("/root/.ssh")}, {"ssh_auth_mount_path": "/keys"}, ("/keys", True)),
    ],
)
def test_where_the_keys_for_ssh_are_and_whose_sshd_it_is(
    spec: dict[str, Any], more: dict[str, Any], expected: tuple[str, bool]
) -> None:
    distribution = Distribution(distributed_framework="MPI", **more)
    beside = Distributed(distribution=distribution, master=TrainingSpec(image="m"))
    for made in KINDS["Distributed"].pod_sets(TrainingSpec(image="w", **spec), beside):
        assert made.peers is not None
        assert made.peers.mpi is not None
        assert (made.peers.mpi.ssh, made.peers.mpi.serves) == expected
