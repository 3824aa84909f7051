"""Data sources over HTTP, and workloads that take volumes from them.

Requirement rows: S013, S052, S053, S054, S055, S075, R37, R39.
"""

import asyncio
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from development.servers import EVERYTHING
from events.aggregate import ASSET, draft
from events.asset import MarkDataSource
from events.commit import service_actor
from events.decision import Context
from events.ids import key_of_id
from events.refusal import Refusal
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.store import Committed
from services.runtime.nats.connection import connect
from tests.api.test_assets import fresh, id_of, issues, made
from tests.support.api import Served

V1 = "/api/v1"
TRAININGS, TEMPLATES = f"{V1}/workloads/trainings", f"{V1}/workload-templates"
GIT: dict[str, Any] = {"repository": "https://git.example.com/code", "branch": "main", "path": "/code"}
SPECS: dict[str, dict[str, Any]] = {
    "pvc": {"existingPvc": True, "claimName": "c", "path": "/data", "readOnly": True},
    "git": GIT,
    "nfs": {"server": "nfs", "path": "/exports", "mountPath": "/data"},
    "s3": {"bucket": "sets", "path": "/data", "accessKeySecret": "a"},
    "host-path": {"path": "/mnt", "mountPath": "/data", "readOnly": None},
    "config-map": {"configMap": "c", "mountPath": "/data"},
    "secret": {"secret": "s", "mountPath": "/data"},
}


@pytest.fixture(scope="module")
def admin(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


def path_of(kind: str) -> str:
    return f"{V1}/asset/datasource/{kind}"


def request(served: Served, *sources: dict[str, Any], **more: Any) -> dict[str, Any]:
    body = served.training(**more)
    return body | {"spec": {"image": "i"} | more.get("spec", {}), "assets": {"datasourceIds": [*map(id_of, sources)]}}


@pytest.mark.parametrize("kind", SPECS)
def test_one_is_made_listed_read_changed_and_deleted(admin: httpx.Client, served: Served, kind: str) -> None:
    path, spec = path_of(kind), SPECS[kind]
    name = fresh("source")
    source = made(admin, path, spec, name=name, scope="project", projectId=served.project)
    one = f"{path}/{id_of(source)}"
    assert source["spec"] == spec
    assert admin.get(one).json() == source
    seq = admin.get(one).headers["x-log-sequence"]
    listed = admin.get(path, params={"search": name.upper(), "min_seq": seq}).json()
    assert listed == {"dataSources": [source], "next": None}
    mount = "path" if "mountPath" not in spec else "mountPath"
    changed = admin.put(one, json={"spec": spec | {mount: "/other"}})
    assert changed.status_code == 202, changed.text
    assert admin.get(one).json()["spec"] == spec | {mount: "/other"}
    other = next(each for each in SPECS if each != kind)
    assert admin.get(f"{path_of(other)}/{id_of(source)}").status_code == 404, "an id is of its kind"
    assert admin.delete(one).status_code == 202
    assert admin.get(one).status_code == 404


@pytest.mark.parametrize(
    ("kind", "meta", "spec", "fields"),
    [
        ("git", {}, {}, {"spec.repository", "spec.path"}),
        ("git", {}, GIT | {"repository": "ftp://x", "path": "code"}, {"spec.repository", "spec.path"}),
        ("git", {}, GIT | {"server": "x"}, {"spec.server"}),
        ("git", {}, GIT | {"name": "x", "exclude": True}, {"spec.name", "spec.exclude"}),
        ("git", {"name": "n" * 64}, GIT, {"meta.name"}),
        ("git", {"scope": "project"}, GIT, {"meta.projectId"}),
        ("pvc", {}, {"path": "/data", "claimName": "c"}, {"spec.existingPvc"}),
        ("pvc", {}, {"path": "/data", "existingPvc": True}, {"spec.claimName"}),
        ("pvc", {}, {"path": "/d", "claimName": "c", "existingPvc": True, "ephemeral": True}, {"spec.ephemeral"}),
        ("nfs", {}, {"server": "a b", "path": "x", "mountPath": "/d"}, {"spec.server", "spec.path"}),
        ("s3", {}, {}, {"spec.bucket", "spec.path"}),
        ("s3", {}, {"bucket": "sets", "path": "/d", "userCredential": True}, {"spec.userCredential"}),
        ("secret", {}, {"secret": "a_b", "mountPath": "/d"}, {"spec.secret"}),
    ],
)
def test_all_that_is_wrong_with_one_is_told_by_its_own_fields(
    admin: httpx.Client, kind: str, meta: dict[str, Any], spec: dict[str, Any], fields: set[str]
) -> None:
    body = {"meta": {"name": fresh(), "scope": "tenant", **meta}, "spec": spec}
    assert issues(admin.post(path_of(kind), json=body)).keys() == fields


def test_their_volumes_stand_in_the_workload_which_says_who_set_them(admin: httpx.Client, served: Served) -> None:
    git, claim = made(admin, path_of("git"), GIT), made(admin, path_of("pvc"), SPECS["pvc"])
    own = {"storage": {"git": [{"path": "/own", "repository": "https://git.example.com/own"}]}}
    answer = admin.post(TRAININGS, json=request(served, git, claim, spec=own))
    assert answer.status_code == 202, answer.text
    read = admin.get(f"{TRAININGS}/{answer.json()['workloadId']}", params={"explain": "true"}).json()
    storage, set_by = read["spec"]["storage"], read["setBy"]
    assert [one.get("name") for one in storage["git"]] == [git["meta"]["name"], None]
    assert (storage["pvc"][0]["claimName"], storage["pvc"][0].get("readOnly")) == ("c", True)
    assert set_by["spec.storage.git[0]"] == f"data source {git['meta']['name']}"
    assert set_by["spec.storage.git[1]"] == "request"
    assert set_by["spec.storage.pvc[0]"] == f"data source {claim['meta']['name']}"
    history = admin.get(f"{V1}/workloads/{answer.json()['workloadId']}/history").json()["records"]
    assert [one["id"] for one in history[0]["details"]["madeFrom"]["dataSources"]] == [id_of(git), id_of(claim)]


def test_a_request_goes_before_a_data_source_and_can_drop_its_volume(admin: httpx.Client, served: Served) -> None:
    git = made(admin, path_of("git"), GIT)
    for item, left in (
        ({"path": "/code", "repository": "https://git.example.com/other"}, ["https://git.example.com/other"]),
        ({"path": "/code", "exclude": True}, []),
        ({"name": git["meta"]["name"], "exclude": True}, []),
        ({"name": "nobodys", "exclude": True}, [GIT["repository"]]),
    ):
        answer = admin.post(TRAININGS, json=request(served, git, spec={"storage": {"git": [item]}}))
        assert answer.status_code == 202, answer.text
        assert [one["repository"] for one in answer.json()["spec"]["storage"]["git"]] == left


def test_a_templates_data_sources_are_taken_unless_the_request_names_others(
    admin: httpx.Client, served: Served
) -> None:
    git, other = made(admin, path_of("git"), GIT), made(admin, path_of("git"), GIT | {"branch": "next"})
    template = made(admin, TEMPLATES, {"image": "i", "assets": {"datasourceIds": [id_of(git)]}})
    for assets, branches in (
        (None, ["main"]),
        ({"datasourceIds": [id_of(other)]}, ["next"]),
        ({"datasourceIds": []}, []),
    ):
        body = served.training() | {"spec": {}, "templateId": id_of(template), "assets": assets}
        answer = admin.post(TRAININGS, json=body)
        assert answer.status_code == 202, answer.text
        assert [one.get("branch") for one in answer.json()["spec"]["storage"]["git"]] == branches
    meta = {"name": fresh(), "scope": "tenant", "workloadType": "Training"}
    body = {"meta": meta, "spec": {"assets": {"datasourceIds": [id_of(template)]}}}
    assert issues(admin.post(TEMPLATES, json=body)).keys() == {"spec.assets.datasourceIds[0]"}


def test_what_cannot_be_used_is_refused_at_its_place(admin: httpx.Client, served: Served) -> None:
    git, twice = made(admin, path_of("git"), GIT), made(admin, path_of("git"), GIT)
    gone = made(admin, path_of("nfs"), SPECS["nfs"])
    assert admin.delete(f"{path_of('nfs')}/{id_of(gone)}").status_code == 202
    told = issues(admin.post(TRAININGS, json=request(served, git, twice, gone)))
    assert "choose one of them" in told["assets.datasourceIds[1]"]
    assert "was deleted" in told["assets.datasourceIds[2]"]
    project = admin.post(f"{V1}/org-unit/projects", json={"name": f"p-{secrets.token_hex(4)}"}).json()["id"]
    elsewhere = made(admin, path_of("git"), GIT, scope="project", projectId=project)
    assert (
        "of another project"
        in issues(admin.post(TRAININGS, json=request(served, elsewhere)))["assets.datasourceIds[0]"]
    )


def test_what_a_rule_forbids_is_told_with_the_data_source(admin: httpx.Client, served: Served) -> None:
    folder = made(admin, path_of("host-path"), SPECS["host-path"])
    told = issues(admin.post(TRAININGS, json=request(served, folder)))
    (details,) = told.values()
    assert f"data source {folder['meta']['name']} sets it" in details
    assert "privileged" in details


def test_an_inference_takes_claims_repositories_and_configmaps_only(admin: httpx.Client, served: Served) -> None:
    git, folder = made(admin, path_of("git"), GIT), made(admin, path_of("nfs"), SPECS["nfs"])
    meta = {"scope": "tenant", "workloadType": "Inference"}
    body = {"meta": {"name": fresh(), **meta}, "spec": {"assets": {"datasourceIds": [id_of(git), id_of(folder)]}}}
    told = issues(admin.post(TEMPLATES, json=body))
    assert told.keys() == {"spec.assets.datasourceIds[1]"}
    assert "an inference takes" in told["spec.assets.datasourceIds[1]"]


def mark(served: Served, source: dict[str, Any], issue: str, *, cluster: str = "") -> None:
    """As cluster_sync does, of what the agent of the cluster found."""

    async def append() -> None:
        nc = await connect(served.settings, EVERYTHING)
        try:
            store, key = JetStreamEventStore(nc), key_of_id(id_of(source)) or ""
            chain = await store.load(ASSET, key)
            assert chain.state.spec_at is not None
            command = MarkDataSource(
                asset_id=id_of(source), cluster_id=cluster or served.cluster, spec_at=chain.state.spec_at, issue=issue
            )
            now, actor = datetime.now(UTC), service_actor("cluster_sync")
            context = Context(now=now, actor=actor, command_id=fresh(), version=chain.version)
            decision = ASSET.decide(command, chain.state, context)
            assert not isinstance(decision, Refusal)
            made_of = draft(ASSET, key, chain, decision, command_id=context.command_id, actor=actor, now=now)
            assert isinstance(await store.append(made_of), Committed)
        finally:
            await nc.close()

    asyncio.run(append())


def test_one_that_a_cluster_cannot_use_is_marked_and_refused_there(admin: httpx.Client, served: Served) -> None:
    """S053."""
    path, name = path_of("git"), fresh("source")
    git = made(admin, path, GIT, name=name)
    assert (git["status"], git["issues"]) == ("ready", [])
    template = made(admin, TEMPLATES, {"image": "i", "assets": {"datasourceIds": [id_of(git)]}})
    words = "git.example.com does not answer on port 443"
    mark(served, git, words)
    one = admin.get(f"{path}/{id_of(git)}")
    (issue,) = one.json()["issues"]
    assert (one.json()["status"], issue["clusterId"], issue["issue"]) == ("issuesFound", served.cluster, words)
    listed = admin.get(path, params={"name": name, "min_seq": one.headers["x-log-sequence"]}).json()
    assert listed["dataSources"] == [one.json()]
    refused = issues(admin.post(TRAININGS, json=request(served, git)))
    assert refused.keys() == {"assets.datasourceIds[0]"}
    assert f"data source {name!r} cannot be used on this cluster: {words}" in refused["assets.datasourceIds[0]"]
    of_template = issues(admin.post(TRAININGS, json=served.training() | {"spec": {}, "templateId": id_of(template)}))
    assert of_template.keys() == {"templateId"}
    told = admin.post(f"{TRAININGS}:evaluate", json=request(served, git)).json()
    assert words in str(told)
    mark(served, git, "")
    assert admin.get(f"{path}/{id_of(git)}").json()["status"] == "ready"
    assert admin.post(TRAININGS, json=request(served, git)).status_code == 202
    mark(served, git, words)
    assert admin.put(f"{path}/{id_of(git)}", json={"spec": GIT | {"branch": "next"}}).json()["status"] == "ready"


def test_what_a_policy_imposes_is_refused_where_it_cannot_be_used(admin: httpx.Client, served: Served) -> None:
    project = admin.post(f"{V1}/org-unit/projects", json={"name": f"p-{secrets.token_hex(4)}"}).json()["id"]
    git = made(admin, path_of("git"), GIT)
    policy = {"imposedAssets": [id_of(git)]}
    where = {"scope": "project", "projectId": project}
    assert admin.put(f"{V1}/policies/trainings", json=policy, params=where).status_code in {200, 202}
    mark(served, git, "it is gone")
    told = issues(admin.post(TRAININGS, json=served.training() | {"projectId": project}))
    assert "cannot be used on this cluster: it is gone" in told["clusterId"]
