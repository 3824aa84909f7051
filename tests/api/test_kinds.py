"""Distributed trainings and workspaces as they are asked for: what is refused, and what is stored of the rest. Pure."""

from typing import Any

import msgspec
import pytest

from events.cluster import Cluster, ClusterKind
from events.workload.fields.creation import Creation, DistributedCreation, WorkspaceCreation
from events.workload.fields.distribution import Distribution
from events.workload.fields.storage import PvcVolume, StorageSpec
from events.workload.kinds import KINDS
from events.workload.kinds.distributed import shown_master
from events.workload.spec import Distributed, TrainingSpec, beside_with_defaults
from services.api.check import FaultyCreation, check_creation
from services.api.mount_paths import MountPaths, PvcPath, moved
from services.api.rules import check_placed


def body(*, spec: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    given = {"image": "i", **(spec or {})}
    return {"name": "n", "projectId": "p", "clusterId": "c", "spec": given, **more}


def distributed(*, framework: str = "PyTorch", spec: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return body(spec={"distributedFramework": framework, **(spec or {})}, **more)


def mpi(**spec: Any) -> dict[str, Any]:
    return distributed(framework="MPI", spec=spec, masterSpec={"image": "m", "command": "mpirun train"})


def faults(creation: type[Creation], data: dict[str, Any]) -> list[tuple[str, str | None]]:
    checked = check_creation(creation, data)
    assert isinstance(checked, FaultyCreation), f"taken: {checked}"
    return [(issue.field, issue.rule) for issue in checked.issues]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (body(), [("spec.distributedFramework", "required")]),
        (distributed(framework="Spark"), [("spec.distributedFramework", "options")]),
        (distributed(spec={"completions": 2}), [("spec.completions", None)]),
        (distributed(spec={"slotsPerWorker": 8}), [("spec.slotsPerWorker", "canAdd")]),
        (
            distributed(spec={"mpiLauncherCreationPolicy": "AtStartup"}),
            [("spec.mpiLauncherCreationPolicy", "canAdd")],
        ),
        (mpi(slotsPerWorker=0), [("spec.slotsPerWorker", "min")]),
        (mpi(slotsPerWorker=1025), [("spec.slotsPerWorker", "max")]),
        (mpi(mpiLauncherCreationPolicy="Never"), [("spec.mpiLauncherCreationPolicy", "options")]),
        (mpi(minReplicas=1), [("spec.minReplicas", "canAdd")]),
        (distributed(spec={"sshAuthMountPath": "/keys"}), [("spec.sshAuthMountPath", "canAdd")]),
        (mpi(sshAuthMountPath=""), [("spec.sshAuthMountPath", "min")]),
        (mpi(sshAuthMountPath="keys"), [("spec.sshAuthMountPath", None)]),
        (mpi(sshAuthMountPath="/"), [("spec.sshAuthMountPath", None)]),
        (mpi(sshAuthMountPath="/a/../b"), [("spec.sshAuthMountPath", None)]),
        (mpi(sshAuthMountPath="/a b"), [("spec.sshAuthMountPath", None)]),
        (mpi(sshAuthMountPath="/a,b"), [("spec.sshAuthMountPath", None)]),
        (mpi(sshAuthMountPath="/a/"), [("spec.sshAuthMountPath", None)]),
        (mpi(sshAuthMountPath="/etc/mpi"), [("spec.sshAuthMountPath", None)]),
        (mpi(sshAuthMountPath="/muster/home/.ssh"), [("spec.sshAuthMountPath", None)]),
        (
            mpi(sshAuthMountPath="/keys", storage={"emptyDirVolume": [{"path": "/keys"}, {"path": "/keys/more"}]}),
            [("spec.storage.emptyDirVolume[0].path", "locked"), ("spec.storage.emptyDirVolume[1].path", "locked")],
        ),
        (mpi(command="/usr/bin/mpirun -n 2 train"), [("spec.command", None)]),
        (mpi(args="mpiexec"), [("spec.args", None)]),
        (mpi(storage={"emptyDirVolume": [{"path": "/etc/mpi/"}]}), [("spec.storage.emptyDirVolume[0].path", "locked")]),
        (mpi(checkpoint={"path": "/etc/mpi"}), [("spec.checkpoint.path", "locked")]),
        (
            mpi(sshAuthMountPath="/root/.ssh", checkpoint={"path": "/root/.ssh"}),
            [("spec.checkpoint.path", "locked")],
        ),
        (mpi(sshAuthMountPath="/keys", checkpoint={"path": "/keys/more"}), [("spec.checkpoint.path", "locked")]),
        (distributed(framework="MPI", masterSpecSameAsWorker=False), [("masterSpecSameAsWorker", "options")]),
        (distributed(spec={"numWorkers": 0}), [("spec.numWorkers", "min")]),
        (distributed(spec={"numWorkers": 500}), [("spec.numWorkers", "max")]),
        (distributed(spec={"numWorkers": 2, "minReplicas": 3}), [("spec.minReplicas", "max")]),
        (distributed(spec={"numWorkers": 3, "maxReplicas": 2}), [("spec.maxReplicas", "min")]),
        (
            distributed(framework="JAX", spec={"numWorkers": 2, "minReplicas": 1, "maxReplicas": 2}),
            [("spec.minReplicas", "canAdd"), ("spec.maxReplicas", "canAdd")],
        ),
        (distributed(masterSpecSameAsWorker=True, masterSpec={"image": "m"}), [("masterSpec", "canAdd")]),
        (distributed(masterSpec={}), [("masterSpec.image", "required")]),
        (distributed(masterSpec={"image": "m", "backoffLimit": 1}), [("masterSpec.backoffLimit", None)]),
        (distributed(masterSpec={"image": "m", "command": "'"}), [("masterSpec.command", None)]),
        (distributed(spec={"nodePools": ["a", "a"]}, masterSpec={"image": "m"}), [("spec.nodePools[1]", None)]),
        (
            distributed(masterSpec={"image": "m", "compute": {"gpuRequestType": "portion"}}),
            [("masterSpec.compute.gpuPortionRequest", "required")],
        ),
        (
            distributed(masterSpec={"image": "m", "compute": {"gpuDevicesRequest": 0, "gpuRequestType": "memory"}}),
            [
                ("masterSpec.compute.gpuDevicesRequest", "min"),
                ("masterSpec.compute.gpuMemoryRequest", "required"),
            ],
        ),
    ],
)
def test_a_distributed_training_that_cannot_be_is_refused_by_field_and_rule(
    data: dict[str, Any], expected: list[tuple[str, str | None]]
) -> None:
    assert sorted(faults(DistributedCreation, data)) == sorted(expected)


@pytest.mark.parametrize(
    ("given", "master"),
    [
        ({}, "i"),
        ({"masterSpecSameAsWorker": True}, "i"),
        ({"masterSpecSameAsWorker": False}, None),
        ({"masterSpec": {"image": "m"}}, "m"),
        ({"masterSpecSameAsWorker": False, "masterSpec": {"image": "m"}}, "m"),
    ],
)
def test_a_master_is_as_the_workers_unless_something_else_is_said(given: dict[str, Any], master: str | None) -> None:
    checked = check_creation(DistributedCreation, distributed(**given))
    assert isinstance(checked, DistributedCreation)
    spec, found = checked.order()
    assert (found.master and found.master.image) == master
    same, own = shown_master(spec, found)
    assert (same, own and own.image) == (master == "i", "m" if master == "m" else None)


def test_what_is_shown_of_a_distributed_training_is_what_was_asked_for() -> None:
    checked = check_creation(DistributedCreation, distributed(spec={"numWorkers": 3, "category": "Train"}))
    assert isinstance(checked, DistributedCreation)
    kind = KINDS["Distributed"]
    spec, found = checked.order()
    assert kind.shown(spec, found) == checked.spec
    again = check_creation(DistributedCreation, body(spec=msgspec.to_builtins(kind.shown(spec, found))))
    assert isinstance(again, DistributedCreation)
    assert again.spec == checked.spec


def test_what_mpi_has_by_default_is_written_out_and_taken_again() -> None:
    checked = check_creation(DistributedCreation, mpi())
    assert isinstance(checked, DistributedCreation)
    kind, (spec, found) = KINDS["Distributed"], checked.order()
    shown = msgspec.to_builtins(kind.shown(kind.with_defaults(spec), beside_with_defaults(found)))
    assert (shown["slotsPerWorker"], shown["mpiLauncherCreationPolicy"]) == (1, "AtStartup")
    assert isinstance(check_creation(DistributedCreation, body(spec=shown)), DistributedCreation)


@pytest.mark.parametrize(
    ("kind", "master", "fields"),
    [
        ("local", {"command": "mpirun x"}, set()),
        ("local", {"args": "x"}, set()),
        ("local", {}, {"masterSpec.command"}),
        ("local", None, {"masterSpec"}),
        ("kubernetes", {}, set()),
        ("kubernetes", None, set()),
        ("simulated", None, set()),
    ],
)
def test_a_launcher_says_what_it_runs_where_no_image_says_it(
    kind: ClusterKind, master: dict[str, Any] | None, fields: set[str]
) -> None:
    """A worker needs no command: it waits for the launcher."""
    given = distributed(framework="MPI", masterSpec=master if master is None else {"image": "m", **master})
    checked = check_creation(DistributedCreation, given)
    assert isinstance(checked, DistributedCreation)
    assert {issue.field for issue in check_placed(checked, Cluster(name="c", kind=kind))} == fields


@pytest.mark.parametrize(("kind", "refused"), [("local", True), ("kubernetes", False), ("simulated", False)])
def test_keys_for_ssh_are_refused_by_name_where_mpirun_has_no_use_for_them(kind: ClusterKind, *, refused: bool) -> None:
    checked = check_creation(DistributedCreation, mpi(sshAuthMountPath="/home/me/.ssh"))
    assert isinstance(checked, DistributedCreation)
    issues = list(check_placed(checked, Cluster(name="c", kind=kind)))
    assert [issue.field for issue in issues] == (["spec.sshAuthMountPath"] if refused else [])
    assert all("leave it out" in issue.details for issue in issues)


@pytest.mark.parametrize(
    ("kind", "locked"),
    [
        ("local", {"HYDRA_HOST_FILE", "OMPI_MCA_plm_rsh_agent"}),
        ("kubernetes", {"HYDRA_HOST_FILE"}),
        ("simulated", set()),
    ],
)
def test_variables_of_mpi_that_muster_only_suggests_are_the_workloads_to_set(
    kind: ClusterKind, locked: set[str]
) -> None:
    names = ("HYDRA_HOST_FILE", "OMPI_MCA_plm_rsh_agent", "OMPI_MCA_plm_rsh_args", "OMPI_MCA_btl")
    checked = check_creation(
        DistributedCreation, mpi(environmentVariables=[{"name": name, "value": "x"} for name in names])
    )
    assert isinstance(checked, DistributedCreation)
    found = {issue.field for issue in check_placed(checked, Cluster(name="c", kind=kind))}
    assert found == {f"spec.environmentVariables[{names.index(name)}].name" for name in locked}


@pytest.mark.parametrize("kind", ["local", "kubernetes", "simulated"])
def test_variables_by_which_pods_find_each_other_are_not_the_workloads_to_set(kind: ClusterKind) -> None:
    variables = [{"name": "RANK", "value": "7"}, {"name": "TF_CONFIG", "value": "{}"}]
    master = {"image": "m", "environmentVariables": variables}
    checked = check_creation(
        DistributedCreation, distributed(spec={"environmentVariables": variables}, masterSpec=master)
    )
    assert isinstance(checked, DistributedCreation)
    fields = {issue.field for issue in check_placed(checked, Cluster(name="c", kind=kind))}
    assert fields == (
        set()
        if kind == "simulated"
        else {"spec.environmentVariables[0].name", "masterSpec.environmentVariables[0].name"}
    )


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, ("high", "non-preemptible", False)),
        ({"allowOverQuota": True}, ("high", "preemptible", True)),
        ({"preemptibility": "preemptible"}, ("high", "preemptible", True)),
        ({"priorityClass": "low"}, ("low", "preemptible", True)),
        ({"allowOverQuota": False}, ("high", "non-preemptible", False)),
        ({"allowOverQuota": False, "priorityClass": "very-high"}, ("very-high", "non-preemptible", False)),
        (
            {"allowOverQuota": False, "priorityClass": "low", "preemptibility": "non-preemptible"},
            ("low", "non-preemptible", False),
        ),
        ({"allowOverQuota": None, "preemptibility": "preemptible"}, ("high", "preemptible", True)),
    ],
)
def test_a_workspace_is_kept_from_preemption_unless_it_may_go_beyond_the_quota(
    spec: dict[str, Any], expected: tuple[str, str, bool]
) -> None:
    checked = check_creation(WorkspaceCreation, body(spec=spec))
    assert isinstance(checked, WorkspaceCreation)
    kind = KINDS["Workspace"]
    stored, _ = checked.order()
    shown: Any = kind.shown(kind.with_defaults(stored), None)
    assert (shown.priority_class, shown.preemptibility, shown.allow_over_quota) == expected
    assert "completions" not in shown.__struct_fields__


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"completions": 1}, [("spec.completions", None)]),
        ({"parallelism": 1}, [("spec.parallelism", None)]),
        ({"allowOverQuota": True, "preemptibility": "non-preemptible"}, [("spec.allowOverQuota", "options")]),
        ({"allowOverQuota": False, "preemptibility": "preemptible"}, [("spec.allowOverQuota", "options")]),
        ({"allowOverQuota": False, "priorityClass": "medium"}, [("spec.allowOverQuota", "options")]),
        ({"allowOverQuota": False, "priorityClass": "urgent"}, [("spec.priorityClass", "options")]),
        ({"allowOverQuota": "yes"}, [("spec.allowOverQuota", None)]),
    ],
)
def test_a_workspace_that_cannot_be_is_refused(spec: dict[str, Any], expected: list[tuple[str, str | None]]) -> None:
    assert faults(WorkspaceCreation, body(spec=spec)) == expected


@pytest.mark.parametrize(
    ("kind", "field", "told"),
    [
        ("Workspace", "completions", "is a field of Training, and this is of kind Workspace; leave it out"),
        ("Distributed", "parallelism", "is a field of Training, and this is of kind Distributed; leave it out"),
        ("Training", "numWorkers", "is a field of Distributed, and this is of kind Training; leave it out"),
        (
            "Inference",
            "backoffLimit",
            "is a field of Training, Distributed, Workspace, and this is of kind Inference",
        ),
        ("Training", "complettions", "is unknown; did you mean 'completions'"),
    ],
)
def test_a_field_of_another_kind_is_told_as_that(kind: str, field: str, told: str) -> None:
    """R25, R26."""
    needed: dict[str, Any] = {
        "Distributed": {"distributedFramework": "JAX"},
        "Inference": {"servingPort": {"container": 80}},
    }
    checked = check_creation(KINDS[kind].creation, body(spec={**needed.get(kind, {}), field: 2}))
    assert isinstance(checked, FaultyCreation)
    (issue,) = checked.issues
    assert issue.field == f"spec.{field}"
    assert issue.details.startswith(told)


@pytest.mark.parametrize(
    ("to", "refused"),
    [("/etc/mpi", True), ("/keys", True), ("/keys/more", True), ("/root/.ssh", False), ("/sets", False)],
)
def test_r30_no_volume_moves_later_to_where_a_launcher_finds_its_files(to: str, *, refused: bool) -> None:
    storage = StorageSpec(pvc=(PvcVolume(path="/data", claim_name="sets", existing_pvc=True),))
    distribution = Distribution(distributed_framework="MPI", ssh_auth_mount_path="/keys")
    asked = MountPaths(pvc=(PvcPath(mounted_at="/data", path=to),))
    spec = TrainingSpec(image="w", storage=storage)
    _, issues = moved(spec, asked, Distributed(distribution=distribution, master=TrainingSpec(image="m")))
    assert [(issue.field, issue.rule) for issue in issues] == ([("storage.pvc", "locked")] if refused else [])
