"""Volumes that are refused and volumes that are taken, as tables. Pure: no server."""

from typing import Any

import pytest
from msgspec.structs import replace

from events.cluster import Cluster, StorageClass
from events.project import Project
from events.workload.fields.saving import CheckpointSpec
from events.workload.kinds.training import template
from events.workload.spec import with_defaults
from events.workload.volumes import (
    BucketFolder,
    ClaimedFolder,
    ClonedFolder,
    ConfigFiles,
    EmptyFolder,
    FolderLogin,
    NewClaim,
    NfsFolder,
    NodeFolder,
    SharedFolder,
)
from services.api.check import FaultyCreation, check_training
from services.api.rules import check_kind, check_within
from services.api.saving_rules import check_checkpoint_class
from services.api.storage_rules import check_classes

type Issues = set[tuple[str, str | None]]
GIB = 1024**3


def checked(storage: dict[str, Any], **spec: Any) -> Any:
    body = {"name": "n", "projectId": "p", "clusterId": "c", "spec": {"image": "i", "storage": storage, **spec}}
    return check_training(body)


def spec_of(storage: dict[str, Any], **spec: Any) -> Any:
    taken = checked(storage, **spec)
    assert not isinstance(taken, FaultyCreation), taken
    return taken.spec


def found(storage: dict[str, Any], **spec: Any) -> Issues:
    refused = checked(storage, **spec)
    assert isinstance(refused, FaultyCreation), f"taken: {refused}"
    return {(issue.field.removeprefix("spec.storage."), issue.rule) for issue in refused.issues}


def pvc(**more: Any) -> dict[str, Any]:
    return {"pvc": [{"path": "/data", "claimInfo": {"size": "10Gi"}, **more}]}


def empty(*paths: str) -> dict[str, Any]:
    return {"emptyDirVolume": [{"path": path} for path in paths]}


HOST = {"path": "/models", "mountPath": "/models"}
SHARED_ID = "7b0e9f2a-6f0e-4c55-9c6b-2f2f6b3f1a10"
GIT = {"repository": "https://git.example.com/a/b", "path": "/src"}
NFS = {"path": "/export", "server": "nfs.example.com", "mountPath": "/sets"}
S3 = {"bucket": "training-sets", "path": "/buckets"}
BAD: list[tuple[str, dict[str, Any], Issues]] = [
    ("R28 no path", {"pvc": [{"claimInfo": {"size": "1Gi"}}]}, {("pvc[0].path", "required")}),
    ("R28 no size", {"pvc": [{"path": "/data"}]}, {("pvc[0].claimInfo.size", "required")}),
    ("R28 an empty claimInfo", pvc(claimInfo={}), {("pvc[0].claimInfo.size", "required")}),
    ("R28 an existing claim is not made", pvc(existingPvc=True, claimName="a"), {("pvc[0].claimInfo", "canAdd")}),
    ("R28 an existing claim has a name", pvc(existingPvc=True, claimInfo=None), {("pvc[0].claimName", "required")}),
    (
        "R40 an existing claim is never deleted",
        pvc(existingPvc=True, claimName="a", claimInfo=None, ephemeral=True),
        {("pvc[0].ephemeral", "canAdd")},
    ),
    ("a claim's name", pvc(claimName="My claim"), {("pvc[0].claimName", None)}),
    *(
        (f"a claim's name that Kubernetes refuses: {name}", pvc(claimName=name), {("pvc[0].claimName", None)})
        for name in ("a..b", "a.-b", "a-.b", ".a", "a.")
    ),
    ("C9 a size with a B", pvc(claimInfo={"size": "10GB"}), {("pvc[0].claimInfo.size", None)}),
    ("C9 a size that is none", pvc(claimInfo={"size": "1.2.3"}), {("pvc[0].claimInfo.size", None)}),
    ("a size of nothing", pvc(claimInfo={"size": "0"}), {("pvc[0].claimInfo.size", "min")}),
    (
        "S052 no access mode",
        pvc(claimInfo={"size": "1Gi", "accessModes": {"readWriteOnce": False}}),
        {("pvc[0].claimInfo.accessModes", "required")},
    ),
    (
        "one name for two new claims",
        {"pvc": [{"path": path, "claimName": "a", "claimInfo": {"size": "1Gi"}} for path in ("/a", "/b")]},
        {("pvc[1].claimName", None)},
    ),
    ("R31 no path", {"hostPath": [{"mountPath": "/a"}]}, {("hostPath[0].path", "required")}),
    ("R31 no mount path", {"hostPath": [{"path": "/a"}]}, {("hostPath[0].mountPath", "required")}),
    ("a path of the node that is relative", {"hostPath": [HOST | {"path": "a"}]}, {("hostPath[0].path", None)}),
    ("a path of the node that climbs", {"hostPath": [HOST | {"path": "/a/../b"}]}, {("hostPath[0].path", None)}),
    (
        "R31 two propagations",
        {"hostPath": [HOST, HOST | {"mountPath": "/b", "mountPropagation": "HostToContainer"}]},
        {("hostPath[1].mountPropagation", None)},
    ),
    (
        "no such propagation",
        {"hostPath": [HOST | {"mountPropagation": "Bidirectional"}]},
        {("hostPath[0].mountPropagation", "options")},
    ),
    ("R32 no path", {"nfs": [NFS | {"path": None}]}, {("nfs[0].path", "required")}),
    ("R32 no server", {"nfs": [NFS | {"server": None}]}, {("nfs[0].server", "required")}),
    ("R32 no mount path", {"nfs": [NFS | {"mountPath": None}]}, {("nfs[0].mountPath", "required")}),
    ("a server that is an address of the web", {"nfs": [NFS | {"server": "http://a/b"}]}, {("nfs[0].server", None)}),
    ("R33 no bucket", {"s3": [{"path": "/a"}]}, {("s3[0].bucket", "required")}),
    ("R33 no path", {"s3": [{"bucket": "sets"}]}, {("s3[0].path", "required")}),
    ("R33 a path that is relative", {"s3": [S3 | {"path": "a"}]}, {("s3[0].path", None)}),
    *(
        (f"R33 no bucket: {name}", {"s3": [S3 | {"bucket": name}]}, {("s3[0].bucket", None)})
        for name in ("a", "a/b", "-ab", "a..b", "sets?x", "größe", "s3://sets", "a b")
    ),
    *(
        (f"R33 no object store: {address}", {"s3": [S3 | {"url": address}]}, {("s3[0].url", None)})
        for address in (
            "store.example.com",
            "ftp://store.example.com",
            "https://",
            "https://store.example.com:0",
            "https://store.example.com:port",
            "https://AKIA:secret@store.example.com",
            "https://store.example.com/?versions",
            "https://store.example.com/a b",
            "https://store.example.com/a#b",
        )
    ),
    (
        "R33 no Secret",
        {"s3": [S3 | {"accessKeySecret": "a", "secretKeyOfSecretKey": "a/b"}]},
        {("s3[0].secretKeyOfSecretKey", None)},
    ),
    (
        "R33 keys of nothing",
        {"s3": [S3 | {"secretKeyOfAccessKeyId": "a", "secretKeyOfSecretKey": "b"}]},
        {("s3[0].secretKeyOfAccessKeyId", "canAdd"), ("s3[0].secretKeyOfSecretKey", "canAdd")},
    ),
    ("R33 a credential without a name", {"s3": [S3 | {"userCredential": True}]}, {("s3[0].userCredential", "canAdd")}),
    (
        "R33 somebody's values",
        {"s3": [S3 | {"accessKeySecret": "muster-credentials-a"}]},
        {("s3[0].accessKeySecret", "options")},
    ),
    ("R33 a bucket where another volume is", {"s3": [S3, S3 | {"bucket": "other"}]}, {("s3[1].path", None)}),
    ("R34 no repository", {"git": [{"path": "/a"}]}, {("git[0].repository", "required")}),
    ("R34 no path", {"git": [GIT | {"path": None}]}, {("git[0].path", "required")}),
    *(
        (f"no public repository: {address}", {"git": [GIT | {"repository": address}]}, {("git[0].repository", None)})
        for address in (
            "file:///etc",
            "HTTPS://a.example/b",
            "/etc",
            "ext::sh -c a",
            "ssh://git:password@a.example/b",
            "ssh://git@a.example",
            "ssh://-oProxyCommand=id/b",
            "ssh://git@a.example:70000/b",
            "ssh://git@a.example/-b",
            "ssh://git@a.example/b c",
            "ssh://git@a.example/$(id)",
            "git@-a.example:b",
            "git@a.example:-b",
            "git@a.example:",
            "https://a:secret@a.example/b",
            "https://token@a.example/b",
            "https://a.example/b c",
            "-u",
        )
    ),
    *(
        (f"no branch: {name}", {"git": [GIT | {"branch": name}]}, {("git[0].branch", None)})
        for name in ("-b", "a b", "a..b", "a.lock", "+a:b", "a/")
    ),
    ("no revision", {"git": [GIT | {"revision": "HEAD~1"}]}, {("git[0].revision", None)}),
    ("R35 no ConfigMap", {"configMapVolume": [{"mountPath": "/a"}]}, {("configMapVolume[0].configMap", "required")}),
    ("R35 no Secret", {"secretVolume": [{"mountPath": "/a"}]}, {("secretVolume[0].secret", "required")}),
    ("R35 no data volume", {"dataVolume": [{"mountPath": "/a"}]}, {("dataVolume[0].id", "required")}),
    ("R35 nowhere", {"dataVolume": [{"id": SHARED_ID}]}, {("dataVolume[0].mountPath", "required")}),
    (
        "R35 a relative path",
        {"dataVolume": [{"id": SHARED_ID, "mountPath": "a"}]},
        {("dataVolume[0].mountPath", None)},
    ),
    (
        "two volumes at one path, one of them of another project",
        {"dataVolume": [{"id": SHARED_ID, "mountPath": "/a"}], "emptyDirVolume": [{"path": "/a"}]},
        {("emptyDirVolume[0].path", None)},
    ),
    (
        "a claim of a data volume by its own name",
        {"pvc": [{"path": "/a", "existingPvc": True, "claimName": "muster-shared-abc"}]},
        {("pvc[0].claimName", "options")},
    ),
    ("R35 no path", {"emptyDirVolume": [{}]}, {("emptyDirVolume[0].path", "required")}),
    (
        "a Secret's name",
        {
            "secretVolume": [
                {"secret": each, "mountPath": f"/{number}"} for number, each in enumerate(("My_Secret", "a..b"))
            ]
        },
        {("secretVolume[0].secret", None), ("secretVolume[1].secret", None)},
    ),
    (
        "S060 a mode that is not octal",
        {"configMapVolume": [{"configMap": "a", "mountPath": "/a", "defaultMode": "0998"}]},
        {("configMapVolume[0].defaultMode", None)},
    ),
    (
        "a key that climbs",
        {"configMapVolume": [{"configMap": "a", "mountPath": "/a", "subPath": "../b"}]},
        {("configMapVolume[0].subPath", None)},
    ),
    (
        "S059 no such medium",
        {"emptyDirVolume": [{"path": "/a", "medium": "SSD"}]},
        {("emptyDirVolume[0].medium", "options")},
    ),
    (
        "C9 a limit with a B",
        {"emptyDirVolume": [{"path": "/a", "sizeLimit": "5TB"}]},
        {("emptyDirVolume[0].sizeLimit", None)},
    ),
    *(
        (f"no place for a volume: {path}", empty(path), {("emptyDirVolume[0].path", None)})
        for path in ("data", "/", "//", "/a/..", "/a/../b", "/a:b", "/proc", "/sys/fs", "/dev", "/muster/code", "/a\n")
    ),
    ("two volumes at one path", empty("/a", "/b", "/a/"), {("emptyDirVolume[2].path", None)}),
    (
        "two volumes of two kinds at one path",
        empty("/models") | {"hostPath": [HOST]},
        {("hostPath[0].mountPath", None)},
    ),
    (
        "R37 one name twice, of two kinds",
        {"emptyDirVolume": [{"name": "a", "path": "/a"}], "nfs": [NFS | {"name": "a"}]},
        {("nfs[0].name", None)},
    ),
    (
        "more Secrets than are possible",
        {"secretVolume": [{"secret": "a", "mountPath": f"/{number}"} for number in range(1001)]},
        {("secretVolume", "max")},
    ),
    (
        "everything at once",
        {"pvc": [{}], "hostPath": [{}], "nfs": [{"server": "a b", "path": "/a", "mountPath": "/a"}]},
        {
            ("pvc[0].path", "required"),
            ("pvc[0].claimInfo.size", "required"),
            ("hostPath[0].path", "required"),
            ("hostPath[0].mountPath", "required"),
            ("nfs[0].server", None),
        },
    ),
]


@pytest.mark.parametrize(("storage", "issues"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_volume_that_breaks_a_rule_is_refused_with_its_field(storage: dict[str, Any], issues: Issues) -> None:
    assert found(storage) == issues


def test_a_refusal_says_which_other_volume_is_in_the_way_and_which_unit_would_do() -> None:
    refused = checked(empty("/a", "/a") | {"pvc": [{"path": "/b", "claimInfo": {"size": "10GB"}}]})
    told = {issue.field: issue.details for issue in refused.issues}
    assert "taken by spec.storage.emptyDirVolume[0].path" in told["spec.storage.emptyDirVolume[1].path"]
    assert "Kubernetes writes 10G" in told["spec.storage.pvc[0].claimInfo.size"]


def test_where_the_id_of_a_data_volume_is_missing_the_command_that_shows_it_is_named() -> None:
    (issue,) = checked({"dataVolume": [{"mountPath": "/a"}]}).issues
    assert "`muster datasource data-volume list` shows with -o wide" in issue.details


def test_a_password_in_the_address_of_a_repository_is_not_told_again() -> None:
    refused = checked({"git": [GIT | {"repository": "https://a:secret@a.example/b"}]})
    assert "secret" not in str(refused.issues)


def test_a_large_dev_shm_is_the_only_volume_there() -> None:
    assert spec_of(empty("/dev/shm"))
    assert found(empty("/dev/shm"), compute={"largeShmRequest": True}) == {("emptyDirVolume[0].path", None)}


def test_what_is_asked_for_is_what_pods_are_made_of() -> None:
    """S052, S055 to S060; C7: a path of the node is read-only where nothing is said."""
    spec = spec_of(
        {
            "configMapVolume": [{"configMap": "a", "mountPath": "/etc/a", "subPath": "k", "defaultMode": "0400"}],
            "dataVolume": [{"id": SHARED_ID.upper(), "mountPath": "/shared"}, {"mountPath": "/a", "exclude": True}],
            "emptyDirVolume": [{"path": "/fast", "medium": "Memory", "sizeLimit": "2Gi"}, None],
            "git": [GIT | {"branch": "release/1.0", "revision": "0123abc"}],
            "hostPath": [HOST, HOST | {"mountPath": "/out", "readOnly": False}],
            "nfs": [NFS],
            "pvc": [
                {"path": "/data", "ephemeral": True, "claimInfo": {"size": "1.5Gi"}},
                {"path": "/claimed", "existingPvc": True, "claimName": "sets", "readOnly": True},
            ],
            "s3": [S3],
            "secretVolume": [{"secret": "s", "mountPath": "/etc/s"}],
        }
    )
    assert template(with_defaults(spec)).volumes == (
        ConfigFiles(mount_path="/etc/a", object_name="a", only_key="k", mode=0o400),
        EmptyFolder(mount_path="/fast", in_memory=True, most_bytes=2 * GIB),
        ClonedFolder(
            mount_path="/src", repository="https://git.example.com/a/b", branch="release/1.0", revision="0123abc"
        ),
        NodeFolder(mount_path="/models", path="/models"),
        NodeFolder(mount_path="/out", path="/models", read_only=False),
        NfsFolder(mount_path="/sets", server="nfs.example.com", path="/export"),
        ClaimedFolder(
            mount_path="/data", new=NewClaim(size_bytes=1536 * 1024**2, modes=("ReadWriteOnce",), ephemeral=True)
        ),
        ClaimedFolder(mount_path="/claimed", claim="sets", number=1, read_only=True),
        ConfigFiles(mount_path="/etc/s", object_name="s", secret=True),
        BucketFolder(mount_path="/buckets", bucket="training-sets", url="https://s3.amazonaws.com"),
        SharedFolder(mount_path="/shared", data_volume=SHARED_ID),
    )


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, None),
        ({"accessKeySecret": "a"}, ("a", False, "AccessKeyId", "SecretKey")),
        ({"accessKeySecret": "a", "userCredential": True}, ("a", True, "accessKeyId", "accessKeySecret")),
        (
            {"accessKeySecret": "a", "secretKeyOfAccessKeyId": "i", "secretKeyOfSecretKey": "s"},
            ("a", False, "i", "s"),
        ),
        ({"accessKeySecret": "a", "secretKeyOfSecretKey": "s"}, ("a", False, "AccessKeyId", "s")),
    ],
)
def test_a_bucket_is_read_with_the_usual_keys_unless_others_are_named(
    given: dict[str, Any], wanted: tuple[str, bool, str, str] | None
) -> None:
    """R33, S058."""
    (bucket,) = template(spec_of({"s3": [S3 | {"url": "http://store.example.com:9000"} | given]})).volumes
    assert isinstance(bucket, BucketFolder)
    found = bucket.login
    assert wanted == (found and (found.name, found.credential, found.user_key, found.password_key))


OWN = {"name": "mine", "userCredential": True, "authenticationMethod": "password"}
SSH = OWN | {"authenticationMethod": "ssh-key"}
BY_SSH = "ssh://git@git.example.com/team/a"
LOGINS: list[tuple[str, dict[str, Any], dict[str, Any], set[tuple[str, str | None]]]] = [
    ("no name and no method", {}, {}, {("secretRef.name", "required"), ("secretRef.authenticationMethod", "required")}),
    ("a key over https", {}, SSH, {("secretRef.authenticationMethod", "options")}),
    ("a password over ssh", {"repository": BY_SSH}, OWN, {("secretRef.authenticationMethod", "options")}),
    (
        "a user beside a key",
        {"repository": BY_SSH},
        SSH | {"secretKeyOfUser": "who"},
        {("secretRef.secretKeyOfUser", "canAdd")},
    ),
    ("a key", {"repository": BY_SSH}, SSH, set()),
    ("a key at a port", {"repository": "ssh://me@git.example.com:2222/~/a.git"}, SSH, set()),
    ("a key and no user", {"repository": "ssh://git.example.com/a"}, SSH, set()),
    ("a key in short", {"repository": "git@git.example.com:team/a.git"}, SSH | {"secretKeyOfPassword": "k"}, set()),
    ("in the clear", {"repository": "http://git.example.com/a"}, OWN, {("repository", None)}),
    (
        "no keys",
        {},
        OWN | {"secretKeyOfUser": "a b", "secretKeyOfPassword": "a/b"},
        {("secretRef.secretKeyOfUser", None), ("secretRef.secretKeyOfPassword", None)},
    ),
    ("no Secret", {}, OWN | {"userCredential": None, "name": "A_b"}, {("secretRef.name", None)}),
    (
        "somebody's",
        {},
        OWN | {"userCredential": False, "name": "muster-credentials-a"},
        {("secretRef.name", "options")},
    ),
    ("to this machine", {"repository": "http://127.0.0.1:3000/a"}, OWN, set()),
    ("as it should be", {}, OWN | {"secretKeyOfPassword": "TOKEN"}, set()),
]


@pytest.mark.parametrize(("git", "login", "wanted"), [one[1:] for one in LOGINS], ids=[one[0] for one in LOGINS])
def test_a_repository_that_not_everybody_may_read_is_cloned_with_a_password(
    git: dict[str, Any], login: dict[str, Any], wanted: set[tuple[str, str | None]]
) -> None:
    """R34, S057."""
    storage = {"git": [GIT | git | {"secretRef": login}]}
    if not wanted:
        assert list(check_kind(spec_of(storage), "local")) == []
        return
    assert found(storage) == {(f"git[0].{field}", rule) for field, rule in wanted}


def test_nothing_is_cloned_over_ssh_without_a_key() -> None:
    """R34."""
    assert found({"git": [GIT | {"repository": BY_SSH}]}) == {("git[0].secretRef", "required")}


@pytest.mark.parametrize(
    ("given", "faults"),
    [
        ({"passwordSecret": "team"}, set()),
        ({"passwordSecret": "team", "secretKeyOfUser": "u", "secretKeyOfPassword": "p"}, set()),
        ({"secretKeyOfUser": "u"}, {("git[0].passwordSecret", "required")}),
        ({"passwordSecret": "team", "secretRef": OWN}, {("git[0].passwordSecret", "canAdd")}),
        ({"passwordSecret": "a b"}, {("git[0].passwordSecret", None)}),
        ({"passwordSecret": "team", "secretKeyOfPassword": "a b"}, {("git[0].secretKeyOfPassword", None)}),
        ({"passwordSecret": "team", "repository": BY_SSH}, {("git[0].passwordSecret", "options")}),
        ({"passwordSecret": "team", "repository": "http://git.example.com/a"}, {("git[0].repository", None)}),
    ],
)
def test_r34_the_older_fields_name_a_secret_as_secret_ref_does(
    given: dict[str, Any], faults: set[tuple[str, str | None]]
) -> None:
    """S057. One of the two ways is said."""
    if faults:
        assert found({"git": [GIT | given]}) == faults
    else:
        spec = spec_of({"git": [GIT | given]})
        (volume,) = template(spec).volumes
        assert isinstance(volume, ClonedFolder)
        keys = given.get("secretKeyOfUser", ""), given.get("secretKeyOfPassword", "")
        assert volume.login == FolderLogin(name="team", user_key=keys[0], password_key=keys[1])
        (issue,) = check_kind(spec, "local")
        assert issue.field == "spec.storage.git[0].passwordSecret"


def test_a_login_is_told_by_the_names_of_what_holds_it() -> None:
    spec = spec_of(
        {"git": [GIT | {"secretRef": OWN}, GIT | {"path": "/b", "secretRef": OWN | {"userCredential": None}}]}
    )
    mine, of_all = (volume.login for volume in template(spec).volumes if isinstance(volume, ClonedFolder))
    assert mine == FolderLogin(name="mine", credential=True)
    assert of_all == FolderLogin(name="mine")


NOT_HERE: list[tuple[str, dict[str, Any]]] = [
    ("git[0].secretRef.name", {"git": [GIT | {"secretRef": OWN | {"userCredential": None}}]}),
    ("dataVolume[0]", {"dataVolume": [{"id": SHARED_ID, "mountPath": "/a"}]}),
    ("nfs[0]", {"nfs": [NFS]}),
    ("s3[0]", {"s3": [S3]}),
    ("emptyDirVolume[0].sizeLimit", {"emptyDirVolume": [{"path": "/a", "sizeLimit": "1Gi"}]}),
    ("hostPath[0].mountPropagation", {"hostPath": [HOST | {"mountPropagation": "HostToContainer"}]}),
    ("pvc[0].claimInfo.volumeMode", pvc(claimInfo={"size": "1Gi", "volumeMode": "Block"})),
]


@pytest.mark.parametrize(("field", "storage"), NOT_HERE, ids=[case[0] for case in NOT_HERE])
def test_what_only_other_machines_have_is_refused_by_name_on_the_local_cluster(
    field: str, storage: dict[str, Any]
) -> None:
    spec = spec_of(storage)
    (issue,) = check_kind(spec, "local")
    assert (issue.field, issue.rule) == (f"spec.storage.{field}", "canAdd")
    for kind in ("kubernetes", "simulated"):
        assert list(check_kind(spec, kind)) == []


def test_what_this_machine_has_is_taken_on_the_local_cluster() -> None:
    storage = {
        "emptyDirVolume": [{"path": "/a"}, {"path": "/b", "medium": "Memory", "sizeLimit": "1Gi"}],
        "hostPath": [HOST],
        "pvc": [{"path": "/c", "claimInfo": {"size": "1Gi", "volumeMode": "Filesystem"}}],
        "configMapVolume": [{"configMap": "a", "mountPath": "/d", "subPath": "key", "defaultMode": "0400"}],
        "secretVolume": [{"secret": "a", "mountPath": "/e"}],
        "git": [GIT | {"path": "/f"}],
    }
    assert list(check_kind(spec_of(storage), "local")) == []


BEYOND: list[tuple[str, dict[str, Any]]] = [
    ("storage.hostPath[0]", {"storage": {"hostPath": [HOST]}}),
    ("security.hostNetwork", {"security": {"hostNetwork": True}}),
    ("security.hostIpc", {"security": {"hostIpc": True}}),
    ("security.capabilities[1]", {"security": {"capabilities": ["CHOWN", "SYS_ADMIN"]}}),
    ("security.seccompProfileType", {"security": {"seccompProfileType": "Unconfined"}}),
]


@pytest.mark.parametrize(("field", "spec"), BEYOND, ids=[case[0] for case in BEYOND])
def test_what_baseline_forbids_needs_the_projects_setting_privileged(field: str, spec: dict[str, Any]) -> None:
    """S023, S059."""
    taken = checked(spec.pop("storage", {}), **spec)
    assert not isinstance(taken, FaultyCreation)
    (issue,) = check_within(taken, Project(name="vision"))
    assert (issue.field, issue.rule) == (f"spec.{field}", "blocked")
    assert "muster project set vision --privileged on" in issue.details
    assert list(check_within(taken, Project(name="vision", privileged=True))) == []


def test_a_restricted_project_has_no_volumes_of_nfs_servers() -> None:
    taken = checked({"nfs": [NFS]})
    (issue,) = check_within(taken, Project(pod_security="restricted"))
    assert (issue.field, issue.rule) == ("spec.storage.nfs[0]", "blocked")
    assert list(check_within(taken, Project(pod_security="baseline"))) == []


FAST = StorageClass(name="fast", default=True, attributes=("tier", "iops"))
CLASSES = (FAST, StorageClass(name="slow"))


@pytest.mark.parametrize(
    ("classes", "info", "fault"),
    [
        (CLASSES, {"storageClass": "fast", "addedAttrValues": [{"key": "tier", "value": "gold"}]}, None),
        (CLASSES, {"addedAttrValues": [{"key": "iops"}]}, None),
        (CLASSES, {"storageClass": "slow"}, None),
        (
            CLASSES,
            {"storageClass": "quick"},
            ("storageClass", "cluster c has no storage class 'quick'; it has fast, slow"),
        ),
        (
            CLASSES,
            {"storageClass": "slow", "addedAttrValues": [{"key": "tier"}]},
            ("addedAttrValues[0].key", "class slow allows no attribute 'tier'; it allows none"),
        ),
        (
            CLASSES,
            {"addedAttrValues": [{"key": "tier"}, {"key": "colour"}]},
            ("addedAttrValues[1].key", "class fast allows no attribute 'colour'; it allows tier, iops"),
        ),
        (
            CLASSES[1:],
            {"addedAttrValues": [{"key": "tier"}]},
            ("addedAttrValues[0].key", "class slow allows no attribute 'tier'; it allows none"),
        ),
        (
            (),
            {"addedAttrValues": [{"key": "tier"}]},
            (
                "addedAttrValues[0].key",
                "the cluster has no default class, so a claim without one allows no attribute 'tier'; it allows none",
            ),
        ),
        (None, {"storageClass": "whatever"}, None),
        (
            None,
            {"addedAttrValues": [{"key": "tier"}]},
            ("addedAttrValues", "cluster c has not told what its storage classes allow; leave it out"),
        ),
    ],
)
def test_r29_a_claim_has_a_class_that_is_there_and_attributes_that_it_allows(
    classes: tuple[StorageClass, ...] | None, info: dict[str, Any], fault: tuple[str, str] | None
) -> None:
    storage = spec_of(pvc(claimInfo={"size": "1Gi"} | info)).storage
    told = list(check_classes(storage, Cluster(name="c", kind="kubernetes", storage_classes=classes)))
    assert [(issue.field, issue.details, issue.rule) for issue in told] == (
        [] if fault is None else [(f"spec.storage.pvc[0].claimInfo.{fault[0]}", fault[1], "options")]
    )
    assert list(check_classes(storage, Cluster(name="c", kind="simulated", storage_classes=classes))) == []


SLOW, OTHER = StorageClass(name="slow"), StorageClass(name="other")


@pytest.mark.parametrize(
    ("classes", "named", "is_required"),
    [
        ((SLOW, OTHER), None, True),
        ((SLOW, OTHER), "slow", False),
        ((SLOW,), None, False),
        ((SLOW, StorageClass(name="other", default=True)), None, False),
        ((), None, False),
        (None, None, False),
    ],
    ids=["two", "named", "the only one", "the default", "volumes of no class", "nobody knows"],
)
def test_r28_a_new_claim_names_its_class_unless_there_is_one_or_a_default(
    classes: tuple[StorageClass, ...] | None, named: str | None, *, is_required: bool
) -> None:
    """The checkpoint folder is such a claim, too."""
    cluster = Cluster(name="c", kind="kubernetes", storage_classes=classes)
    spec = spec_of(pvc(claimInfo={"size": "1Gi", "storageClass": named}))
    spec = replace(spec, checkpoint=CheckpointSpec(storage_class=named))
    told = [*check_classes(spec.storage, cluster), *check_checkpoint_class(spec, cluster)]
    fields = ["spec.storage.pvc[0].claimInfo.storageClass", "spec.checkpoint.storageClass"] if is_required else []
    assert [(issue.field, issue.rule) for issue in told] == [(field, "required") for field in fields]
    assert all("cluster c has no default storage class; it has slow, other" in issue.details for issue in told)
    existing = spec_of({"pvc": [{"path": "/a", "existingPvc": True, "claimName": "there"}]})
    assert [*check_classes(existing.storage, cluster)] == []


def test_attributes_of_a_claim_have_keys_of_their_own() -> None:
    attributes = [{"key": "tier"}, {"key": "tier"}, {"key": "-x"}]
    told = found(pvc(claimInfo={"size": "1Gi", "addedAttrValues": attributes}))
    assert {field for field, _ in told} == {f"pvc[0].claimInfo.addedAttrValues[{index}].key" for index in (1, 2)}
