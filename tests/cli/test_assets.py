"""`muster environment`, `compute` and `template`, and `submit` with their names: what is sent, shown and refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.cli.assets import SOURCES
from tests.support.shapes import Ran, Reply, Request, ShapeServer

ID = "0a1b2c3d-4e5f-8a6b-9c7d-aaaaaaaaaaaa"
NOUNS = {
    "environment": ("/asset/environment", "environments"),
    "compute": ("/asset/compute", "computeResources"),
    "template": ("/workload-templates", "templates"),
    "datasource git": ("/asset/datasource/git", "dataSources"),
}
type Muster = Callable[..., Ran]


def row(name: str = "torch", **meta: Any) -> dict[str, Any]:
    return {
        "meta": {
            "id": ID,
            "name": name,
            "scope": "tenant",
            "projectId": None,
            "clusterId": None,
            "createdBy": "ann",
            "createdAt": "2026-01-02T03:04:05Z",
            "changedAt": None,
        }
        | meta,
        "spec": {"image": "python:3.13", "compute": {"cpuCoreRequest": 0.5}, "labels": [{"name": "a", "value": "b"}]},
    }


@pytest.fixture(params=NOUNS)
def noun(request: pytest.FixtureRequest) -> str:
    return request.param


def there_is(api: ShapeServer, noun: str, *rows: dict[str, Any]) -> None:
    path, key = NOUNS[noun]

    def listed(request: Request) -> Reply:
        (name,) = request.query.get("name", [""])
        found = [one for one in rows if not name or one["meta"]["name"] == name]
        return Reply(body={key: found, "next": None})

    api.on("GET", path, listed)
    for one in rows:
        api.on("GET", f"{path}/{one['meta']['id']}", Reply(body=one))


def test_a_description_names_the_place(api: ShapeServer, muster: Muster, noun: str) -> None:
    there_is(api, noun, row(scope="project", projectId="p-1"))
    assert "project default" in muster(*noun.split(), "describe", "torch").out
    there_is(api, noun, row(scope="cluster", clusterId="gone"))
    assert "cluster gone" in muster(*noun.split(), "describe", "torch").out, "which has no name any more"


def test_lists_and_descriptions_say_what_it_sets(api: ShapeServer, muster: Muster, noun: str) -> None:
    there_is(api, noun, row())
    listed = muster(*noun.split(), "list", "--search", "tor", "-p", "default", "--cluster", "local")
    assert "torch" in listed.out
    assert "python:3.13, cpuCoreRequest 0.5" in listed.out
    (asked,) = api.asked("GET", NOUNS[noun][0])
    assert asked.query == {
        "search": ["tor"],
        "projectId": ["p-1"],
        "clusterId": ["c-1"],
        "offset": ["0"],
        "limit": ["100"],
    }
    told = muster(*noun.split(), "describe", "torch").out
    assert "Scope:" in told
    assert "image: python:3.13" in told
    assert muster(*noun.split(), "describe", ID, "-o", "json").json() == row()
    there_is(api, noun, row() | {"spec": {"priorityClass": "low", "labels": []}})
    assert "priorityClass, labels" in muster(*noun.split(), "list").out


def test_a_data_source_says_where_it_cannot_be_used_and_why(api: ShapeServer, muster: Muster) -> None:
    """S053."""
    issue = {"clusterId": "c-1", "issue": "there is no claim sets", "since": "2026-01-02T03:04:05Z"}
    marked = row("sets") | {"status": "issuesFound", "issues": [issue]}
    there_is(api, "datasource git", row("code") | {"status": "ready", "issues": []}, marked)
    header, code, sets = muster("datasource", "git", "list").out.splitlines()
    assert header.split()[:3] == ["NAME", "SCOPE", "STATUS"]
    assert code.split()[:3] == ["code", "tenant", "ready"]
    assert sets.split()[:4] == ["sets", "tenant", "issues", "found"]
    api.on("GET", "/clusters", Reply(body={"clusters": [{"id": "c-1", "name": "lab"}]}))
    told = muster("datasource", "git", "describe", "sets").out
    assert "cluster lab: there is no claim sets (found " in told
    assert "Issues" not in muster("datasource", "git", "describe", "code").out
    both = row("sets") | {"status": "issuesFound", "issues": [issue, issue | {"clusterId": "c-2"}]}
    there_is(api, "datasource git", both)
    assert "issues found on 2 clusters" in muster("datasource", "git", "list").out


def test_what_is_not_there_is_named_with_what_is(api: ShapeServer, muster: Muster, noun: str) -> None:
    there_is(api, noun, row())
    ran = muster(*noun.split(), "describe", "toch")
    assert ran.code == 3, ran.err
    assert "there are: torch" in ran.err
    there_is(api, noun, row(), row(id=ID.replace("a", "b"), scope="project", projectId="p-1"))
    ran = muster(*noun.split(), "delete", "torch", "-y")
    assert ran.code == 2, ran.err
    assert "project p-1" in ran.err


@pytest.mark.parametrize(
    "case",
    [
        ([], {"name": "torch", "scope": "tenant"}),
        (["other"], {"name": "other", "scope": "tenant"}),
        (["-p", "default"], {"name": "torch", "scope": "project", "projectId": "p-1"}),
        (["--cluster", "local"], {"name": "torch", "scope": "cluster", "clusterId": "c-1"}),
        (["--scope", "project", "-p", "default"], {"name": "torch", "scope": "project", "projectId": "p-1"}),
    ],
)
def test_one_is_made_from_a_file_and_flags_go_before_it(
    api: ShapeServer, muster: Muster, noun: str, tmp_path: Path, case: tuple[list[str], dict[str, Any]]
) -> None:
    typed, meta = case
    file = tmp_path / "asset.yaml"
    file.write_text("meta: {name: torch}\nspec: {image: null}\n")
    api.on("POST", NOUNS[noun][0], Reply(202, row()))
    ran = muster(*noun.split(), "create", *typed, "-f", str(file))
    assert ran.code == 0, ran.err
    (sent,) = api.asked("POST", NOUNS[noun][0])
    assert sent.body == {"meta": meta, "spec": {"image": None}}


def test_it_is_updated_from_a_file_and_deleted(api: ShapeServer, muster: Muster, noun: str, tmp_path: Path) -> None:
    file = tmp_path / "asset.yaml"
    file.write_text("spec: {image: other}\n")
    there_is(api, noun, row())
    path = f"{NOUNS[noun][0]}/{ID}"
    api.on("PUT", path, Reply(202, row()))
    api.on("DELETE", path, Reply(202, {"code": 202, "message": "deleted"}))
    assert muster(*noun.split(), "update", "torch", "-f", str(file)).code == 0
    (sent,) = api.asked("PUT", path)
    assert sent.body == {"spec": {"image": "other"}}
    assert muster(*noun.split(), "delete", "torch", "-y").code == 0
    assert len(api.asked("DELETE", path)) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [("spec: {}\nname: x\n", "unknown field 'name'"), ("[]", "does not hold an asset"), ("spec: {}", "needs a name")],
)
def test_a_file_that_holds_no_asset_is_refused(
    api: ShapeServer, muster: Muster, tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "asset.yaml"
    file.write_text(text)
    ran = muster("environment", "create", "-f", str(file))
    assert ran.code == 2, ran.err
    assert said in ran.err
    assert api.requests == []


def test_submit_takes_names_of_all_three(api: ShapeServer, muster: Muster) -> None:
    for noun, name in (("environment", "torch"), ("compute", "small"), ("template", "nightly")):
        there_is(api, noun, row(name))
    flags = ["--template", "nightly", "-e", "A=1", "--environment", "torch", "--compute", ID]
    ran = muster("training", "submit", "hello", *flags)
    assert ran.code == 0, ran.err
    (sent,) = api.asked("POST", "/workloads/trainings")
    assert sent.body["templateId"] == ID
    assert sent.body["assets"] == {"environmentId": ID, "computeId": ID}
    assert sent.body["spec"]["environmentVariables"] == [{"name": "A", "value": "1"}]
    (asked,) = api.asked("GET", "/workload-templates")
    assert asked.query == {"name": ["nightly"], "projectId": ["p-1"], "clusterId": ["c-1"]}


def test_data_sources_are_named_alone_with_their_kind_or_by_id(api: ShapeServer, muster: Muster) -> None:
    for kind in ("pvc", "git", "nfs", "s3", "host-path", "config-map", "secret", "data-volume"):
        NOUNS.setdefault(kind, (f"/asset/datasource/{kind}", "dataSources"))
        there_is(api, kind, *([row("code", id=ID)] if kind == "git" else []))
    other = ID.replace("a", "c")
    flags = ["--datasource", "code", "--datasource", "git/code", "--datasource", other]
    ran = muster("training", "submit", "hello", "-i", "i", *flags)
    assert ran.code == 0, ran.err
    (sent,) = api.asked("POST", "/workloads/trainings")
    assert sent.body["assets"] == {"datasourceIds": [ID, ID, other]}
    listed = muster("datasource", "list").out.splitlines()
    assert [line.split()[:2] for line in listed] == [["NAME", "KIND"], ["code", "git"]]
    assert "there is no data source 'cod'" in muster("training", "submit", "x", "-i", "i", "--datasource", "cod").err
    assert "is no kind" in muster("training", "submit", "x", "-i", "i", "--datasource", "volume/x").err
    there_is(api, "pvc", row("code", id=other))
    ran = muster("training", "submit", "x", "-i", "i", "--datasource", "code")
    assert (ran.code, "several" in ran.err) == (2, True), ran.err


def test_a_data_volume_is_made_of_the_claim_of_a_project_on_a_cluster_by_their_names(
    api: ShapeServer, muster: Muster, tmp_path: Path
) -> None:
    """S060: for whom it is, the flags say, and whose claim it is, the file."""
    file = tmp_path / "sets.yaml"
    file.write_text("spec: {projectId: default, clusterId: local, claimName: imagenet, mountPath: /data}")
    api.on("POST", "/asset/datasource/data-volume", Reply(status=202, body=row("sets")))
    ran = muster("datasource", "data-volume", "create", "sets", "-f", str(file))
    assert ran.code == 0, ran.err
    (sent,) = api.asked("POST", "/asset/datasource/data-volume")
    assert sent.body == {
        "meta": {"name": "sets", "scope": "tenant"},
        "spec": {"projectId": "p-1", "clusterId": "c-1", "claimName": "imagenet", "mountPath": "/data"},
    }
    NOUNS.setdefault("data-volume", ("/asset/datasource/data-volume", "dataSources"))
    there_is(api, "data-volume", row("sets"))
    ran = muster("training", "submit", "hello", "-i", "i", "--datasource", "data-volume/sets")
    assert ran.code == 0, ran.err
    (sent,) = api.asked("POST", "/workloads/trainings")
    assert sent.body["assets"] == {"datasourceIds": [ID]}
    flag = f"id={ID},mountPath=/sets"
    assert muster("training", "submit", "hello", "-i", "i", "--data-volume", flag).code == 0
    assert api.asked("POST", "/workloads/trainings")[-1].body["spec"]["storage"] == {
        "dataVolume": [{"id": ID, "mountPath": "/sets"}]
    }
    assert "that starts later finds it" in muster("datasource", "data-volume", "delete", "--help").out


def test_data_volumes_of_one_name_are_told_apart_by_their_owners(api: ShapeServer, muster: Muster) -> None:
    """Nobody is given another's data for its name."""
    NOUNS.setdefault("datasource data-volume", ("/asset/datasource/data-volume", "dataSources"))
    other = ID.replace("a", "c")
    owners = {"vision": ID, "mallory": other}
    rows = [
        row("sets", id=id_) | {"ownerProject": owner, "spec": {"projectId": f"id-of-{owner}", "claimName": "c"}}
        for owner, id_ in owners.items()
    ]
    there_is(api, "datasource data-volume", *rows)
    submit = ("training", "submit", "hello", "-i", "i", "--datasource")
    ran = muster(*submit, "data-volume/sets")
    assert ran.code == 2, ran.err
    for owner, id_ in owners.items():
        assert f"{id_}  tenant, of project {owner}" in ran.err
    assert "data-volume/OWNER/NAME" in ran.err
    for given in ("vision/sets", "id-of-vision/sets"):
        assert muster(*submit, f"data-volume/{given}").code == 0
        assert api.asked("POST", "/workloads/trainings")[-1].body["assets"] == {"datasourceIds": [ID]}
    ran = muster(*submit, "data-volume/speech/sets")
    assert ran.code == 3, ran.err
    assert "there are: vision/sets, mallory/sets" in ran.err
    header, first, second = muster("datasource", "data-volume", "list").out.splitlines()
    assert header.split()[:2] == ["NAME", "OWNER"]
    assert [first.split()[1], second.split()[1]] == ["vision", "mallory"]
    assert "mallory" in muster("datasource", "data-volume", "describe", "mallory/sets").out


@pytest.mark.parametrize("given", ["data-volume/sets", "sets"])
@pytest.mark.parametrize("where", [(), ("--cluster", "any"), ("--cluster", "local")], ids=str)
def test_a_data_volume_that_is_not_found_here_says_on_which_cluster_it_is(
    api: ShapeServer, muster: Muster, given: str, where: tuple[str, ...]
) -> None:
    """S060: its claim is on one cluster alone, which has to be named."""
    clusters = [{"id": "c-1", "name": "local", "kind": "local"}, {"id": "c-2", "name": "a", "kind": "kubernetes"}]
    api.on("GET", "/clusters", Reply(body={"clusters": clusters}))
    for of in SOURCES:
        api.on("GET", of.path, Reply(body={"dataSources": [], "next": None}))
    volume = row("sets") | {"spec": {"clusterId": "c-2", "claimName": "imagenet", "mountPath": "/data"}}

    def listed(request: Request) -> Reply:
        there = [] if request.query.get("clusterId") else [volume]
        return Reply(body={"dataSources": there, "next": None})

    api.on("GET", "/asset/datasource/data-volume", listed)
    ran = muster("training", "submit", "hello", "-i", "i", *where, "--datasource", given)
    assert ran.code == 3, ran.err
    assert "'sets' is on cluster a alone" in ran.err
    assert "--cluster a" in ran.err


def test_a_plain_name_is_what_one_has_and_not_a_data_volume_that_somebody_offers(
    api: ShapeServer, muster: Muster
) -> None:
    """Any project offers data volumes by any name: so nobody breaks the commands of others."""
    other = ID.replace("a", "c")
    offered = row("code", id=other) | {"ownerProject": "mallory", "spec": {"projectId": "p-9", "claimName": "c"}}
    for of in SOURCES:
        rows = {"/asset/datasource/git": [row("code")], "/asset/datasource/data-volume": [offered]}.get(of.path, [])
        api.on("GET", of.path, Reply(body={"dataSources": rows, "next": None}))
    ran = muster("training", "submit", "hello", "-i", "i", "--datasource", "code")
    assert ran.code == 0, ran.err
    assert api.asked("POST", "/workloads/trainings")[-1].body["assets"] == {"datasourceIds": [ID]}
    assert "data-volume/code" in ran.err
    assert muster("training", "submit", "hello", "-i", "i", "--datasource", "data-volume/code").code == 0
    assert api.asked("POST", "/workloads/trainings")[-1].body["assets"] == {"datasourceIds": [other]}


def test_help_says_for_whom_an_asset_is_and_of_a_data_volume_no_cluster(api: ShapeServer, muster: Muster) -> None:
    """The project of a flag is the one that uses it, and none is taken from elsewhere."""
    told = " ".join(muster("datasource", "data-volume", "create", "--help").out.split())
    assert "Only for workloads of this project" in told
    assert "--scope tenant|department|project" in told
    assert "whose claim it is: projectId, clusterId and claimName" in told
    assert "--cluster" not in told
    told = " ".join(muster("environment", "create", "--help").out.split())
    assert "MUSTER_PROJECT" not in told
    assert "--scope tenant|cluster|department|project" in told
    assert "Only for workloads of this cluster" in told
    assert "else workloads of your default project" in " ".join(muster("credentials", "create", "--help").out.split())


def test_tables_of_data_volumes_say_on_which_cluster_the_claim_is(api: ShapeServer, muster: Muster) -> None:
    spec = {"projectId": "p-1", "clusterId": "c-2", "claimName": "c", "mountPath": "/data"}
    volume = row("sets") | {"ownerProject": "vision", "spec": spec}
    api.on("GET", "/asset/datasource/data-volume", Reply(body={"dataSources": [volume], "next": None}))
    ran = muster("datasource", "data-volume", "list", "--columns", "name,ownerProject,spec.clusterId", "--no-headers")
    assert (ran.code, ran.out.split()) == (0, ["sets", "vision", "c-2"]), ran.err
    assert "c-2" in muster("datasource", "data-volume", "list", "-o", "wide").out


def test_two_environments_and_one_that_is_not_there_are_refused(api: ShapeServer, muster: Muster) -> None:
    there_is(api, "environment", row())
    ran = muster("training", "submit", "hello", "-e", "torch", "-e", "other", "-i", "i")
    assert ran.code == 2, ran.err
    assert "one environment" in ran.err
    ran = muster("training", "submit", "hello", "-e", "LR", "-i", "i")
    assert ran.code == 3, ran.err
    assert "there is no environment 'LR'" in ran.err
    assert "a variable is NAME=VALUE" in ran.err
    assert api.asked("POST", "/workloads/trainings") == []


def test_a_dry_run_leaves_to_assets_what_they_may_set(api: ShapeServer, muster: Muster) -> None:
    there_is(api, "template", row("nightly"))
    ran = muster("training", "submit", "hello", "--template", "nightly", "--dry-run=client")
    assert ran.code == 0, ran.err
    assert f"templateId: {ID}" in ran.out
    ran = muster("training", "submit", "hello", "--template", "nightly", "--runs", "0", "--dry-run=client")
    assert ran.code == 6, ran.err
    assert "spec.completions" in ran.err
