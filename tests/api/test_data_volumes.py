"""Data volumes over HTTP: claims that projects share with others, and workloads that name them.

Requirement rows: S055, S060, R35; issue section 3.
"""

import secrets
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from events.ids import ANY_CLUSTER
from services.api import asset_core, data_volumes
from tests.api.test_assets import NEVER, fresh, id_of, issues, made
from tests.api.test_data_sources import mark, request
from tests.support.api import Served

V1 = "/api/v1"
PATH, TRAININGS = f"{V1}/asset/datasource/data-volume", f"{V1}/workloads/trainings"


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """A project of pia's with claims on a cluster of kind kubernetes, and who else there is."""

    served: Served
    admin: httpx.Client
    pia: httpx.Client
    """Administers the owning project alone."""
    alice: httpx.Client
    """A researcher of the served project alone."""
    owner: str
    cluster: str

    def spec(self, **more: Any) -> dict[str, Any]:
        offered = {"projectId": self.owner, "clusterId": self.cluster, "claimName": "imagenet"}
        return {**offered, "mountPath": "/data", **more}

    def body(self, *volumes: dict[str, Any], **more: Any) -> dict[str, Any]:
        named = [{"id": id_of(one), "mountPath": f"/sets/{index}"} for index, one in enumerate(volumes)]
        return self.served.training(clusterId=self.cluster, spec={"storage": {"dataVolume": named}}) | more


def project(admin: httpx.Client, **more: Any) -> str:
    answer = admin.post(f"{V1}/org-unit/projects", json={"name": f"p-{secrets.token_hex(4)}", **more})
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


def cluster(admin: httpx.Client, kind: str) -> str:
    body: dict[str, Any] = {"name": f"c-{secrets.token_hex(4)}", "kind": kind}
    if kind == "simulated":
        body["simulatedNodes"] = [{"names": ["n"], "cpuCores": 1, "memoryBytes": 1}]
    answer = admin.post(f"{V1}/clusters", json=body)
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


@pytest.fixture(scope="module")
def sharing(served: Served) -> Iterator[Sharing]:
    with served.client() as admin, served.client("pia") as pia, served.client("alice") as alice:
        owner = project(admin)
        rule = {"subjectId": "pia", "roleName": "project-admin", "scopeType": "project", "scopeId": owner}
        assert admin.post(f"{V1}/authorization/access-rules", json=rule).status_code == 202
        where = cluster(admin, "kubernetes")
        yield Sharing(served=served, admin=admin, pia=pia, alice=alice, owner=owner, cluster=where)


def test_who_administers_a_project_shares_its_claims_with_everybody_and_takes_them_back(sharing: Sharing) -> None:
    """S060: what a workload holds is the id, and which claim that is stands in the data volume."""
    volume = made(sharing.pia, PATH, sharing.spec())
    assert (volume["spec"], volume["meta"]["scope"], volume["meta"]["clusterId"]) == (sharing.spec(), "tenant", None)
    one = f"{PATH}/{id_of(volume)}"
    assert sharing.alice.get(one).json() == volume
    answer = sharing.alice.post(TRAININGS, json=sharing.body(volume))
    assert answer.status_code == 202, answer.text
    assert answer.json()["spec"]["storage"]["dataVolume"] == [{"id": id_of(volume), "mountPath": "/sets/0"}]
    for refused in (sharing.alice.delete(one), sharing.alice.put(one, json={"spec": sharing.spec(mountPath="/b")})):
        assert refused.status_code == 403, "she sees it"
        assert f"of project {volume['ownerProject']!r}, whose claim it is" in refused.json()["message"]
        assert "blocks storage.dataVolume in its policies" in refused.json()["message"], "what a reader can do"
    assert sharing.pia.delete(one).status_code == 202
    told = issues(sharing.alice.post(TRAININGS, json=sharing.body(volume)))
    assert "was deleted" in told["spec.storage.dataVolume[0].id"]
    kept = sharing.alice.get(f"{TRAININGS}/{answer.json()['workloadId']}").json()
    assert kept["spec"]["storage"]["dataVolume"] == [{"id": id_of(volume), "mountPath": "/sets/0"}]


def test_as_a_data_source_it_is_found_at_its_own_path_and_says_who_set_it(sharing: Sharing) -> None:
    volume = made(sharing.pia, PATH, sharing.spec())
    answer = sharing.alice.post(TRAININGS, json=request(sharing.served, volume, clusterId=sharing.cluster))
    assert answer.status_code == 202, answer.text
    read = sharing.alice.get(f"{TRAININGS}/{answer.json()['workloadId']}", params={"explain": "true"}).json()
    assert read["spec"]["storage"]["dataVolume"] == [{"id": id_of(volume), "mountPath": "/data"}]
    assert read["setBy"]["spec.storage.dataVolume[0]"] == f"data source {volume['meta']['name']}"
    without = {"storage": {"dataVolume": [{"mountPath": "/data", "exclude": True}]}}
    answer = sharing.alice.post(
        TRAININGS, json=request(sharing.served, volume, clusterId=sharing.cluster, spec=without)
    )
    assert answer.json()["spec"]["storage"].get("dataVolume", []) == []


def test_a_claim_that_kubernetes_can_have_by_no_such_name_is_refused_at_once(sharing: Sharing) -> None:
    for name in ("a..b", "a.-b", "A"):
        told = issues(sharing.pia.post(PATH, json={"meta": {"name": fresh()}, "spec": sharing.spec(claimName=name)}))
        assert f"'{name}' is no name of a claim" in told["spec.claimName"]
    assert made(sharing.pia, PATH, sharing.spec(claimName="a.b-c.d"))["spec"]["claimName"] == "a.b-c.d"


def test_the_claim_of_another_project_is_nobodys_to_share(sharing: Sharing) -> None:
    """Who administers the project that it is for has no say, and neither has who only submits."""
    theirs = sharing.spec(projectId=sharing.served.project)
    for client, spec in ((sharing.pia, theirs), (sharing.alice, theirs), (sharing.alice, sharing.spec())):
        for meta in ({"scope": "tenant"}, {"scope": "project", "projectId": sharing.owner}):
            answer = client.post(PATH, json={"meta": {"name": fresh(), **meta}, "spec": spec})
            assert answer.status_code == 403, answer.text


def test_one_that_is_for_one_project_is_that_projects_alone_and_its_owners_see_it(sharing: Sharing) -> None:
    other, place = project(sharing.admin), {"scope": "project", "projectId": sharing.served.project}
    ours, theirs = (made(sharing.pia, PATH, sharing.spec(), **meta) for meta in (place, place | {"projectId": other}))
    assert sharing.alice.post(TRAININGS, json=sharing.body(ours)).status_code == 202
    told = issues(sharing.alice.post(TRAININGS, json=sharing.body(ours, theirs)))
    assert "there is no data volume" in told["spec.storage.dataVolume[1].id"]
    assert told.keys() == {"spec.storage.dataVolume[1].id"}
    (by_admin,) = issues(sharing.admin.post(TRAININGS, json=sharing.body(theirs))).values()
    named = sharing.admin.get(f"{V1}/org-unit/projects/{other}").json()["name"]
    assert f"of another project ({named})" in by_admin
    seq = sharing.pia.get(f"{PATH}/{id_of(theirs)}").headers["x-log-sequence"]
    for client, there in ((sharing.pia, [ours, theirs]), (sharing.alice, [ours]), (sharing.admin, [ours, theirs])):
        listed = client.get(PATH, params={"min_seq": seq, "scope": "project", "limit": 100}).json()["dataSources"]
        assert [one for one in listed if one in (ours, theirs)] == sorted(there, key=lambda one: one["meta"]["name"])


def test_one_that_is_for_a_department_is_for_its_projects(sharing: Sharing) -> None:
    department = sharing.admin.post(f"{V1}/org-unit/departments", json={"name": fresh()}).json()["id"]
    inside = project(sharing.admin, departmentId=department)
    volume = made(sharing.pia, PATH, sharing.spec(), scope="department", departmentId=department)
    answer = sharing.admin.post(TRAININGS, json=sharing.body(volume, projectId=inside))
    assert answer.status_code == 202, answer.text
    (told,) = issues(sharing.admin.post(TRAININGS, json=sharing.body(volume))).values()
    assert "of another department" in told


@contextmanager
def administering(sharing: Sharing) -> Generator[tuple[httpx.Client, str]]:
    """Whoever administers a new project alone, and this project."""
    name, own = f"adm-{secrets.token_hex(4)}", project(sharing.admin)
    rule = {"subjectId": name, "roleName": "project-admin", "scopeType": "project", "scopeId": own}
    assert sharing.admin.post(f"{V1}/authorization/access-rules", json=rule).status_code == 202
    with sharing.served.client(name) as client:
        yield client, own


def offered(client: httpx.Client, spec: dict[str, Any], name: str = "", **meta: Any) -> httpx.Response:
    """The answer, once lists tell of it."""
    answer = client.post(PATH, json={"meta": {"name": name or fresh(), "scope": "tenant", **meta}, "spec": spec})
    if answer.status_code == 202:
        assert client.get(PATH, params={"min_seq": answer.headers["x-log-sequence"]}).status_code == 200
    return answer


def test_a_project_offers_so_many_and_takes_the_room_of_nobody(
    sharing: Sharing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R35: whomever they are for, they count for the project whose claims they are."""
    monkeypatch.setattr(data_volumes, "MAX_OFFERS", 2)
    monkeypatch.setitem(asset_core.MAX_ASSETS, "project", 0)
    with administering(sharing) as (mal, own), administering(sharing) as (vic, victim):
        spec, at_victim = sharing.spec(projectId=own), {"scope": "project", "projectId": victim}
        first = offered(mal, spec, **at_victim)
        assert (first.status_code, offered(mal, spec).status_code) == (202, 202)
        for place in (at_victim, {"scope": "tenant"}):
            refused = offered(mal, spec, **place)
            assert (refused.status_code, refused.json()["details"]) == (403, "too_many_assets")
            assert "offers 2 data volumes already" in refused.json()["message"]
            assert "choose another scope" not in refused.json()["message"]
        for _ in range(2):
            answer = offered(vic, sharing.spec(projectId=victim), **at_victim)
            assert answer.status_code == 202, answer.text
        gone = mal.delete(f"{PATH}/{id_of(first.json())}")
        assert mal.get(PATH, params={"min_seq": gone.headers["x-log-sequence"]}).status_code == 200
        assert offered(mal, spec).status_code == 202


def test_who_administers_the_project_that_one_is_for_alone_can_decline_it_and_not_change_it(sharing: Sharing) -> None:
    with administering(sharing) as (vic, victim):
        volume = made(sharing.pia, PATH, sharing.spec(), scope="project", projectId=victim)
        one = f"{PATH}/{id_of(volume)}"
        changed = vic.put(one, json={"spec": sharing.spec(mountPath="/other")})
        assert (changed.status_code, changed.json()["details"]) == (403, "not_permitted")
        assert "can only delete it" in changed.json()["message"]
        assert vic.delete(one).status_code == 202
        assert vic.get(one).status_code == 404
        for_all = made(sharing.pia, PATH, sharing.spec())
        refused = vic.delete(f"{PATH}/{id_of(for_all)}")
        assert (refused.status_code, refused.json()["details"]) == (403, "not_permitted")


def test_its_owner_can_delete_one_whose_reader_is_gone(sharing: Sharing) -> None:
    """Else it would take its room for ever."""
    reader = project(sharing.admin)
    volume = made(sharing.pia, PATH, sharing.spec(), scope="project", projectId=reader)
    assert sharing.admin.delete(f"{V1}/org-unit/projects/{reader}").status_code == 202
    assert sharing.pia.delete(f"{PATH}/{id_of(volume)}").status_code == 202


def test_names_are_the_owning_projects_and_tell_nobody_else_what_there_is(sharing: Sharing) -> None:
    """Nobody learns by a name that is taken, nor takes one that others would like."""
    with administering(sharing) as (mal, own), administering(sharing) as (vic, victim):
        at_victim = {"scope": "project", "projectId": victim}
        theirs = offered(vic, sharing.spec(projectId=victim), "secret", **at_victim).json()
        answer = offered(mal, sharing.spec(projectId=own), "secret", **at_victim)
        assert answer.status_code == 202, answer.text
        again = offered(mal, sharing.spec(projectId=own), "secret", **at_victim)
        assert (again.status_code, again.json()["details"]) == (400, "name_taken")
        listed = vic.get(PATH, params={"name": "secret", "scope": "project", "projectId": victim}).json()["dataSources"]
        names = {id_: sharing.admin.get(f"{V1}/org-unit/projects/{id_}").json()["name"] for id_ in (own, victim)}
        told = {id_of(one): (one["spec"]["projectId"], one["ownerProject"]) for one in listed}
        assert told == {id_of(theirs): (victim, names[victim]), id_of(answer.json()): (own, names[own])}


def test_its_path_can_change_and_its_claim_cannot(sharing: Sharing) -> None:
    volume = made(sharing.pia, PATH, sharing.spec())
    one = f"{PATH}/{id_of(volume)}"
    changed = sharing.pia.put(one, json={"spec": sharing.spec(mountPath="/other")})
    assert changed.status_code == 202, changed.text
    assert sharing.pia.get(one).json()["spec"]["mountPath"] == "/other"
    told = issues(sharing.pia.put(one, json={"spec": sharing.spec(claimName="c", projectId=NEVER)}))
    assert told.keys() == {"spec.claimName", "spec.projectId"}
    assert "create another data volume" in told["spec.claimName"]


@pytest.mark.parametrize(
    ("meta", "spec", "fields"),
    [
        ({"scope": "cluster", "clusterId": "CLUSTER"}, {}, {"meta.scope"}),
        ({"scope": "project"}, {}, {"meta.projectId"}),
        ({"scope": "project", "projectId": NEVER}, {}, {"meta.projectId"}),
        ({"scope": "department", "departmentId": NEVER}, {}, {"meta.departmentId"}),
        ({}, {"claimName": "A_b"}, {"spec.claimName"}),
        ({}, {"claimName": "muster-shared-a"}, {"spec.claimName"}),
        ({}, {"claimName": None, "mountPath": None}, {"spec.claimName", "spec.mountPath"}),
        ({}, {"mountPath": "data"}, {"spec.mountPath"}),
        ({}, {"clusterId": NEVER}, {"spec.clusterId"}),
        ({}, {"clusterId": "LOCAL"}, {"spec.clusterId"}),
        ({}, {"id": NEVER}, {"spec.id"}),
    ],
)
def test_all_that_is_wrong_with_one_is_told_by_its_own_fields(
    sharing: Sharing, meta: dict[str, Any], spec: dict[str, Any], fields: set[str]
) -> None:
    """R35."""
    words = {"CLUSTER": sharing.cluster, "LOCAL": sharing.served.cluster}
    given = {name: words.get(value, value) for name, value in spec.items()}
    body: dict[str, Any] = {"meta": {"name": fresh(), "scope": "tenant"}, "spec": sharing.spec(**given)}
    body["meta"] |= {name: words.get(value, value) for name, value in meta.items()}
    assert issues(sharing.admin.post(PATH, json=body)).keys() == fields


def test_it_is_refused_where_its_claim_is_not(sharing: Sharing) -> None:
    """S060: on the cluster local by name; and an evaluation says the same."""
    volume = made(sharing.pia, PATH, sharing.spec())
    others = (
        (sharing.served.cluster, "is for clusters of kind kubernetes"),
        (cluster(sharing.admin, "simulated"), "of another cluster"),
        (ANY_CLUSTER, "found on one cluster alone"),
    )
    for where, words in others:
        body = sharing.body(volume, clusterId=where)
        assert words in str(issues(sharing.alice.post(TRAININGS, json=body))), where
        told = sharing.alice.post(f"{TRAININGS}:evaluate", json=body).json()
        assert not told["accepted"]
        assert words in str(told["issues"])
        body = request(sharing.served, volume, clusterId=where)
        assert issues(sharing.alice.post(TRAININGS, json=body)).keys() == {"assets.datasourceIds[0]"}


def test_a_refusal_names_the_cluster_that_has_the_claim_and_not_its_id(sharing: Sharing) -> None:
    volume = made(sharing.pia, PATH, sharing.spec())
    name = sharing.admin.get(f"{V1}/clusters/{sharing.cluster}").json()["name"]
    elsewhere = cluster(sharing.admin, "simulated")
    (told,) = issues(sharing.alice.post(TRAININGS, json=sharing.body(volume, clusterId=elsewhere))).values()
    assert f"of another cluster ({name})" in told


def test_a_name_in_place_of_its_id_is_refused_with_what_shows_the_id(sharing: Sharing) -> None:
    given = {"storage": {"dataVolume": [{"id": "imagenet", "mountPath": "/data"}]}}
    body = sharing.served.training(clusterId=sharing.cluster, spec=given)
    (told,) = issues(sharing.alice.post(TRAININGS, json=body)).values()
    assert "give its id, which `muster datasource data-volume list -o wide` shows" in told


def test_one_on_a_simulated_cluster_is_taken_as_other_data_sources_are(sharing: Sharing) -> None:
    where = cluster(sharing.admin, "simulated")
    volume = made(sharing.pia, PATH, sharing.spec(clusterId=where))
    answer = sharing.alice.post(TRAININGS, json=sharing.body(volume, clusterId=where))
    assert answer.status_code == 202, answer.text


def test_one_that_its_cluster_cannot_share_is_marked_and_refused(sharing: Sharing) -> None:
    volume = made(sharing.pia, PATH, sharing.spec())
    words = "there is no claim imagenet"
    mark(sharing.served, volume, words, cluster=sharing.cluster)
    (issue,) = sharing.alice.get(f"{PATH}/{id_of(volume)}").json()["issues"]
    assert (issue["clusterId"], issue["issue"]) == (sharing.cluster, words)
    told = issues(sharing.alice.post(TRAININGS, json=sharing.body(volume)))
    assert words in told["spec.storage.dataVolume[0].id"]
    by_asset = sharing.alice.post(TRAININGS, json=request(sharing.served, volume, clusterId=sharing.cluster))
    assert issues(by_asset).keys() == {"assets.datasourceIds[0]"}


def test_it_goes_with_the_project_whose_claim_it_is(sharing: Sharing) -> None:
    owner = project(sharing.admin)
    volume = made(sharing.admin, PATH, sharing.spec(projectId=owner))
    assert sharing.admin.post(TRAININGS, json=sharing.body(volume)).status_code == 202
    gone = sharing.admin.delete(f"{V1}/org-unit/projects/{owner}")
    assert gone.status_code == 202, gone.text
    (told,) = issues(sharing.admin.post(TRAININGS, json=sharing.body(volume))).values()
    assert "the project or the cluster of its claim was deleted" in told
    assert sharing.admin.get(f"{PATH}/{id_of(volume)}").status_code == 404
    seq = gone.headers["x-log-sequence"]
    listed = sharing.admin.get(PATH, params={"min_seq": seq, "name": volume["meta"]["name"]}).json()
    assert listed["dataSources"] == []


def test_a_policy_imposes_one_on_the_cluster_that_has_it(sharing: Sharing) -> None:
    inside = project(sharing.admin)
    volume = made(sharing.pia, PATH, sharing.spec())
    where = {"scope": "project", "projectId": inside}
    answer = sharing.admin.put(f"{V1}/policies/trainings", json={"imposedAssets": [id_of(volume)]}, params=where)
    assert answer.status_code in {200, 202}, answer.text
    answer = sharing.admin.post(TRAININGS, json=sharing.body(projectId=inside))
    assert answer.status_code == 202, answer.text
    assert answer.json()["spec"]["storage"]["dataVolume"] == [{"id": id_of(volume), "mountPath": "/data"}]


def test_an_inference_takes_none(sharing: Sharing) -> None:
    volume = made(sharing.pia, PATH, sharing.spec())
    meta = {"name": fresh(), "scope": "tenant", "workloadType": "Inference"}
    body = {"meta": meta, "spec": {"assets": {"datasourceIds": [id_of(volume)]}}}
    told = issues(sharing.admin.post(f"{V1}/workload-templates", json=body))
    assert "an inference takes those of PVC, Git and ConfigMap" in told["spec.assets.datasourceIds[0]"]
