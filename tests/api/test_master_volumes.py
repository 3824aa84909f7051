"""The volumes of a master: those of its workers, or its own. What is refused, what pods have, and what others add.

Requirement rows: S066, S052, S055, S059, R10, R28, R29, R30, R37.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from events.cluster import Cluster, ClusterKind
from events.ids import ANY_CLUSTER
from events.project import Project
from events.workload.changes import WorkloadChanged, after_change
from events.workload.fields.creation import DistributedCreation
from events.workload.kinds import KINDS
from events.workload.kinds.distributed import shown_master
from events.workload.spec import Distributed, TrainingSpec, beside_with_defaults, with_defaults
from events.workload.state import Workload
from events.workload.volumes import ClaimedFolder
from services.api.any_cluster import bound_to_one, placed
from services.api.check import FaultyCreation, check_creation
from services.api.creation import credentials_of
from services.api.mount_paths import MountPaths, PvcPath, moved
from services.api.rules import check_within
from tests.api.test_assets import fresh, id_of, issues, made
from tests.api.test_kinds import distributed
from tests.support.api import Served

V1 = "/api/v1"
NEW: dict[str, Any] = {"claimInfo": {"size": "1Gi"}}
SETS: dict[str, Any] = {"path": "/sets", **NEW}
OUT: dict[str, Any] = {"path": "/out", "claimInfo": {"size": "2Gi"}}


def asked(
    workers: dict[str, Any], master: dict[str, Any] | None, *, framework: str = "PyTorch", **more: Any
) -> dict[str, Any]:
    """Args: master, its volumes; None: it names none."""
    own = {"image": "m", "command": "lead"} | ({} if master is None else {"storage": master})
    return distributed(framework=framework, spec={"storage": workers, **more}, masterSpec=own)


def taken(data: dict[str, Any]) -> DistributedCreation:
    checked = check_creation(DistributedCreation, data)
    assert isinstance(checked, DistributedCreation), checked
    return checked


def refused(data: dict[str, Any]) -> list[tuple[str, str]]:
    checked = check_creation(DistributedCreation, data)
    assert isinstance(checked, FaultyCreation), f"taken: {checked}"
    return [(issue.field, issue.details) for issue in checked.issues]


def stored(data: dict[str, Any]) -> tuple[TrainingSpec, Distributed]:
    spec, beside = taken(data).order()
    found = beside_with_defaults(beside)
    assert isinstance(found, Distributed)
    return with_defaults(spec), found


def places(spec: TrainingSpec, beside: Distributed) -> dict[str, list[tuple[str, int | None]]]:
    """By pod set: where its pods find volumes, and the numbers of claims."""
    return {
        one.name: [
            (volume.mount_path, volume.number if isinstance(volume, ClaimedFolder) else None)
            for volume in one.template.volumes
        ]
        for one in KINDS["Distributed"].pod_sets(spec, beside)
    }


@pytest.mark.parametrize(
    ("workers", "master", "expected"),
    [
        ({"pvc": [SETS]}, None, [("/sets", 0)]),
        ({"pvc": [SETS]}, {}, []),
        ({"pvc": [SETS]}, {"pvc": None}, []),
        ({"pvc": [SETS]}, {"pvc": [OUT]}, [("/out", 2)]),
        ({"pvc": [SETS]}, {"pvc": [OUT, {"path": "/read", "readOnly": True, **NEW}]}, [("/out", 2), ("/read", 0)]),
        ({"pvc": [SETS, OUT]}, {"pvc": [OUT, SETS]}, [("/out", 1), ("/sets", 0)]),
        ({"pvc": [SETS]}, {"pvc": [SETS, {"path": "/more", **NEW}]}, [("/sets", 0), ("/more", 3)]),
        ({}, {"emptyDirVolume": [{"path": "/tmp/m"}], "pvc": [OUT]}, [("/tmp/m", None), ("/out", 1)]),
        (
            {"pvc": [SETS]},
            {"configMapVolume": [{"configMap": "c", "mountPath": "/c"}, {"mountPath": "/sets", "exclude": True}]},
            [("/c", None)],
        ),
    ],
    ids=[
        "the workers'",
        "none",
        "no claims",
        "its own",
        "shared",
        "both",
        "alike twice",
        "none before",
        "excluded",
    ],
)
def test_a_master_has_the_volumes_that_it_names_or_those_of_its_workers(
    workers: dict[str, Any], master: dict[str, Any] | None, expected: list[tuple[str, int | None]]
) -> None:
    """A claim that both ask for in the same words is one claim; all others have numbers of their own."""
    found = places(*stored(asked(workers, master)))
    assert found["master"] == expected
    assert found["worker"] == [(one["path"], number) for number, one in enumerate(workers.get("pvc", ()))]


def test_the_checkpoint_folder_is_one_for_all_pods_whatever_the_master_mounts() -> None:
    spec, beside = stored(asked({"pvc": [SETS]}, {"pvc": [OUT]}, checkpoint={"path": "/saved"}))
    found = places(spec, beside)
    assert found == {"master": [("/out", 2), ("/saved", 1)], "worker": [("/sets", 0), ("/saved", 1)]}


def test_what_is_shown_of_a_master_makes_it_again() -> None:
    for master in (None, {}, {"pvc": [OUT]}):
        spec, beside = stored(asked({"pvc": [SETS]}, master))
        same, own = shown_master(spec, beside)
        assert not same
        assert own is not None
        assert (own.storage is None) == (master is None)
        again = distributed(
            spec=msgspec.to_builtins(KINDS["Distributed"].shown(spec, beside)), masterSpec=msgspec.to_builtins(own)
        )
        assert stored(again) == (spec, beside)


@pytest.mark.parametrize(
    ("data", "field", "told"),
    [
        (
            asked({}, {"pvc": [SETS], "emptyDirVolume": [{"path": "/sets"}]}),
            "masterSpec.storage.pvc[0].path",
            "masterSpec.storage.emptyDirVolume[0].path",
        ),
        (asked({}, {"nfs": [{"path": "/e", "mountPath": "/n"}]}), "masterSpec.storage.nfs[0].server", "is required"),
        (asked({}, {"pvc": [{"path": "/a"}]}), "masterSpec.storage.pvc[0].claimInfo.size", "is required"),
        (
            asked({}, {"pvc": [{"path": "/saved", **NEW}]}, checkpoint={"path": "/saved"}),
            "spec.checkpoint.path",
            "masterSpec.storage.pvc[0].path",
        ),
        (
            asked({"pvc": [{**SETS, "claimName": "a"}]}, {"pvc": [{**OUT, "claimName": "a"}]}),
            "masterSpec.storage.pvc[0].claimName",
            "spec.storage.pvc[0]",
        ),
        (
            asked(
                {"pvc": [{**SETS, "claimName": "a"}]}, {"pvc": [{"path": "/b", "claimName": "a", "existingPvc": True}]}
            ),
            "masterSpec.storage.pvc[0].claimName",
            "spec.storage.pvc[0]",
        ),
        (
            asked({}, {"emptyDirVolume": [{"path": "/etc/mpi"}]}, framework="MPI"),
            "masterSpec.storage.emptyDirVolume[0].path",
            "host files",
        ),
    ],
)
def test_what_is_wrong_with_a_masters_volumes_is_told_once_and_of_the_master(
    data: dict[str, Any], field: str, told: str
) -> None:
    ((found, details),) = refused(data)
    assert found == field
    assert told in details


def test_what_is_wrong_with_volumes_that_a_master_takes_over_is_told_of_the_workers_alone() -> None:
    assert [field for field, _ in refused(asked({"pvc": [{"path": "/a"}]}, None))] == [
        "spec.storage.pvc[0].claimInfo.size"
    ]
    creation = taken(asked({"hostPath": [{"path": "/mnt", "mountPath": "/mnt"}]}, None))
    assert [issue.field for issue in check_within(creation, Project(name="p"))] == ["spec.storage.hostPath[0]"]
    creation = taken(asked({"nfs": [{"server": "s", "path": "/e", "mountPath": "/n"}]}, None))
    assert [issue.field for issue in placed(creation, Cluster(name="c", kind="local"))] == ["spec.storage.nfs[0]"]


@pytest.mark.parametrize(("privileged", "fields"), [(False, ["masterSpec.storage.hostPath[0]"]), (True, [])])
def test_a_masters_host_paths_need_the_projects_setting_privileged(*, privileged: bool, fields: list[str]) -> None:
    creation = taken(asked({}, {"hostPath": [{"path": "/mnt", "mountPath": "/mnt"}]}))
    found = check_within(creation, Project(name="p", privileged=privileged))
    assert [issue.field for issue in found] == fields


@pytest.mark.parametrize(
    ("kind", "storage", "field"),
    [
        ("local", {"nfs": [{"server": "s", "path": "/e", "mountPath": "/n"}]}, "nfs[0]"),
        ("kubernetes", {"pvc": [{"path": "/a", "claimInfo": {"size": "1Gi", "storageClass": "none"}}]}, "pvc[0]"),
    ],
)
def test_a_masters_volumes_are_held_to_what_its_cluster_has(
    kind: ClusterKind, storage: dict[str, Any], field: str
) -> None:
    creation = taken(asked({}, storage))
    (issue,) = placed(creation, Cluster(name="c", kind=kind, storage_classes=()))
    assert issue.field.startswith(f"masterSpec.storage.{field}")


def test_a_masters_volumes_are_found_on_one_cluster_and_name_credentials_as_the_workers_do() -> None:
    login = {"name": "code", "userCredential": True, "authenticationMethod": "password"}
    bucket = {"bucket": "sets", "path": "/b", "accessKeySecret": "keys", "userCredential": True}
    git = {"repository": "https://git.example.com/a", "path": "/git", "secretRef": login}
    storage = {"secretVolume": [{"secret": "s", "mountPath": "/s"}], "git": [git], "s3": [bucket]}
    creation = taken(asked({}, storage) | {"clusterId": ANY_CLUSTER})
    assert [issue.field for issue in bound_to_one(creation, "not here")] == ["masterSpec.storage.secretVolume[0]"]
    assert {(one.field, one.name) for one in credentials_of(creation)} == {
        ("masterSpec.storage.git[0].secretRef.name", "code"),
        ("masterSpec.storage.s3[0].accessKeySecret", "keys"),
    }


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        (None, [("/new", 0)]),
        ({"pvc": [{"path": "/read", **NEW}]}, [("/read", 0)]),
        ({"pvc": [{"path": "/new", **NEW}]}, [("/new", 0)]),
        ({"pvc": [OUT]}, [("/out", 2)]),
    ],
)
def test_r30_where_claims_are_laid_elsewhere_a_master_follows_that_has_its_workers_volumes(
    master: dict[str, Any] | None, expected: list[tuple[str, int]]
) -> None:
    """And no claim of it becomes another one."""
    spec, beside = stored(asked({"pvc": [SETS]}, master))
    after, wrong = moved(spec, MountPaths(pvc=(PvcPath(mounted_at="/sets", path="/new"),)), beside)
    assert not wrong
    state = after_change(Workload(name="w", spec=spec, distributed=beside), WorkloadChanged(storage=after))
    assert state.distributed is not None
    assert places(state.spec, state.distributed) == {"master": expected, "worker": [("/new", 0)]}


@pytest.mark.parametrize(("workers", "master"), [("/root/.ssh", "/x"), ("/x", "/root/.ssh")])
def test_keys_for_ssh_that_one_side_brings_are_laid_in_neither(workers: str, master: str) -> None:
    data = asked(
        {"emptyDirVolume": [{"path": workers}]}, {"emptyDirVolume": [{"path": master}]}, framework="MPI", numWorkers=1
    )
    for one in KINDS["Distributed"].pod_sets(*stored(data)):
        assert one.peers is not None
        assert one.peers.mpi is not None
        assert one.peers.mpi.ssh == ""


@pytest.fixture(scope="module")
def admin(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


def submit(admin: httpx.Client, served: Served, master: dict[str, Any], **more: Any) -> dict[str, Any]:
    spec = {"image": "i", "distributedFramework": "PyTorch", **more.pop("spec", {})}
    body = served.training(**more) | {"spec": spec, "masterSpec": {"image": "m", **master}}
    answer = admin.post(f"{V1}/workloads/distributed", json=body | more)
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_what_a_data_source_adds_a_master_has_that_names_no_volumes(admin: httpx.Client, served: Served) -> None:
    spec = {"repository": "https://git.example.com/code", "path": "/code"}
    source = made(admin, f"{V1}/asset/datasource/git", spec, name=fresh("source"))
    assets = {"assets": {"datasourceIds": [id_of(source)]}}
    follows = submit(admin, served, {}, **assets)
    assert [one["path"] for one in follows["spec"]["storage"]["git"]] == ["/code"]
    assert follows["masterSpec"]["storage"] is None
    own = submit(admin, served, {"storage": {"emptyDirVolume": [{"path": "/scratch"}]}}, **assets)
    assert [one["path"] for one in own["spec"]["storage"]["git"]] == ["/code"]
    assert [one["path"] for one in own["masterSpec"]["storage"]["emptyDirVolume"]] == ["/scratch"]
    assert own["masterSpec"]["storage"]["git"] == []


def test_r30_of_a_masters_own_claims_runs_that_begin_later_find_them_elsewhere(
    admin: httpx.Client, served: Served
) -> None:
    """Told in the history, undone, and held to policies, as those of the workers."""
    spec = {"storage": {"pvc": [SETS]}}
    one = submit(admin, served, {"storage": {"pvc": [OUT], "emptyDirVolume": [{"path": "/scratch"}]}}, spec=spec)
    path = f"{V1}/workloads/{one['workloadId']}"

    def changed(storage: dict[str, Any], **more: Any) -> httpx.Response:
        return admin.patch(path, json={"masterSpec": {"storage": storage, **more}})

    def paths() -> tuple[str, str]:
        found = admin.get(path).json()
        return found["spec"]["storage"]["pvc"][0]["path"], found["masterSpec"]["storage"]["pvc"][0]["path"]

    to = {"pvc": [{"mountedAt": "/out", "path": "/results"}]}
    answer = changed(to)
    assert answer.status_code == 202, answer.text
    assert "runs that are there keep what they have" in answer.json()["message"]
    assert paths() == ("/sets", "/results")
    assert "already" in changed(to).json()["message"]
    history = admin.get(f"{path}/history", params={"min_seq": answer.headers["X-Log-Sequence"]}).json()["records"]
    assert any("volumes of later runs of the master /out->/results" in record["message"] for record in history)
    for refused, field in (
        (changed({"pvc": [{"mountedAt": "/sets", "path": "/x"}]}), "masterSpec.storage.pvc[0].mountedAt"),
        (changed({"pvc": [{"mountedAt": "/results", "path": "/scratch"}]}), "masterSpec.storage.pvc"),
        (changed({"nfs": []}), "masterSpec.storage.nfs"),
        (changed(to, image="other"), "masterSpec.image"),
    ):
        assert refused.status_code == 400, refused.text
        assert [*issues(refused)] == [field]
    follows = f"{V1}/workloads/{submit(admin, served, {}, spec=spec)['workloadId']}"
    refused = admin.patch(follows, json={"masterSpec": {"storage": {"pvc": [{"mountedAt": "/sets", "path": "/x"}]}}})
    assert "goes where they go; change storage" in str(issues(refused)["masterSpec.storage"])

    where = {"scope": "project", "projectId": served.training()["projectId"]}
    policy = {"defaults": {}, "rules": {"storage": {"pvc": {"canAdd": False}}}}
    assert admin.put(f"{V1}/policies/distributed", params=where, json=policy).status_code in {200, 202}
    try:
        assert [*issues(changed({"pvc": [{"mountedAt": "/results", "path": "/x"}]}))] == ["masterSpec.storage.pvc"]
    finally:
        admin.delete(f"{V1}/policies/distributed", params=where)
    undone = admin.post(f"{path}/undo", json={"sequence": int(answer.headers["X-Log-Sequence"])})
    assert undone.status_code == 202, undone.text
    assert undone.json()["then"]["masterStorage"]["pvc"] == ["/out"]
    assert paths() == ("/sets", "/out")


def test_what_a_policy_says_of_volumes_holds_for_those_of_a_master_too(admin: httpx.Client, served: Served) -> None:
    scratch = {"path": "/scratch", "medium": "Memory", "sizeLimit": "1Gi"}
    body = {
        "defaults": {"storage": {"emptyDirVolume": [scratch]}},
        "rules": {"storage": {"emptyDirVolume": {"lockedItems": ["/scratch"]}}},
    }
    where = {"scope": "project", "projectId": served.training()["projectId"]}
    path = f"{V1}/policies/distributed"
    assert admin.put(path, params=where, json=body).status_code == 202
    try:
        follows = submit(admin, served, {})
        assert follows["masterSpec"]["storage"] is None
        own = submit(admin, served, {"storage": {"emptyDirVolume": [{"path": "/mine"}]}})
        assert {one["path"] for one in own["masterSpec"]["storage"]["emptyDirVolume"]} == {"/scratch", "/mine"}
        without = {"emptyDirVolume": [{"path": "/scratch", "exclude": True}]}
        request = served.training() | {
            "spec": {"image": "i", "distributedFramework": "PyTorch"},
            "masterSpec": {"image": "m", "storage": without},
        }
        answer = admin.post(f"{V1}/workloads/distributed", json=request)
        assert answer.status_code == 400, answer.text
        fields = list(issues(answer))
        assert fields
        assert all(field.startswith("masterSpec.storage.emptyDirVolume") for field in fields), fields
    finally:
        admin.delete(path, params=where)
