"""Credentials over HTTP: what is taken, what is told, who may what. Their values come out nowhere.

Requirement rows: S018, S020, S057, R9, R10, R34.
"""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from development.servers import EVERYTHING, NatsServer
from events.aggregate import ASSET
from events.ids import key_of_id
from events.subjects import credential_value_id
from services.api import asset_core, credentials
from services.api.credentials import remove_unused
from services.runtime.credentials.kept import KeptCredentials
from services.runtime.credentials.keys import new_ring, write_public
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from tests.api.test_assets import fresh, id_of, issues
from tests.support.api import Served

V1 = "/api/v1"
CREDENTIALS, TRAININGS = f"{V1}/asset/credentials", f"{V1}/workloads/trainings"
ACCOUNTS = f"{V1}/service-accounts"
MARK = "marker-4f1c9e"
DATA: dict[str, dict[str, str]] = {
    "password": {"username": "ann", "password": MARK},
    "access-key": {"accessKeyId": "a", "accessKeySecret": MARK},
    "docker-registry": {"url": "https://registry.example.com", "username": "ann", "password": MARK},
    "ngc-key": {"ngcApiKey": MARK},
    "generic-secret": {"ANY_KEY": MARK, "other.key": "x"},
}


@pytest.fixture(scope="module")
def admin(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


def person(served: Served, admin: httpx.Client, role: str = "researcher") -> httpx.Client:
    name = fresh("person")
    rule = {"subjectId": name, "roleName": role, "scopeType": "project", "scopeId": served.project}
    assert admin.post(f"{V1}/authorization/access-rules", json=rule).status_code == 202
    return served.client(name)


def program(served: Served, admin: httpx.Client, account: str) -> httpx.Client:
    """With the token of a new service account."""
    body = {"projectId": served.project, "name": account, "roleName": "researcher"}
    token = admin.post(ACCOUNTS, json=body).json()["token"]
    client = served.client(None)
    client.headers["Authorization"] = f"Bearer {token}"
    return client


def body_of(served: Served, data: dict[str, str] | None = None, kind: str = "generic-secret", **meta: Any) -> Any:
    place = {"name": fresh("cred"), "scope": "project", "projectId": served.project}
    return {"meta": place | meta, "spec": {"kind": kind, "data": DATA[kind] if data is None else data}}


def made(client: httpx.Client, served: Served, **more: Any) -> dict[str, Any]:
    answer = client.post(CREDENTIALS, json=body_of(served, **more))
    assert answer.status_code == 202, answer.text
    return answer.json()


def request(served: Served, name: str, key: str = "ANY_KEY", **more: Any) -> dict[str, Any]:
    variable = {"name": "TOKEN", "userCredential": {"name": name, "key": key}}
    return served.training(**more) | {"spec": {"image": "i", "environmentVariables": [variable]}}


@pytest.mark.parametrize("kind", DATA)
def test_one_is_made_read_changed_and_deleted_and_its_value_is_never_told(
    admin: httpx.Client, served: Served, kind: str
) -> None:
    with person(served, admin) as ann:
        answer = ann.post(CREDENTIALS, json=body_of(served, kind=kind))
        assert answer.status_code == 202, answer.text
        one = f"{CREDENTIALS}/{answer.json()['meta']['id']}"
        assert answer.json()["spec"] == {"kind": kind, "keys": sorted(DATA[kind])}
        assert ann.get(one).json() == answer.json()
        listed = ann.get(CREDENTIALS, params={"min_seq": answer.headers["x-log-sequence"]})
        assert listed.json()["credentials"] == [answer.json()]
        changed = ann.put(one, json={"spec": {"kind": kind, "data": DATA[kind]}})
        assert changed.status_code == 202, changed.text
        assert changed.json()["meta"]["changedAt"] is not None
        deleted = ann.delete(one)
        assert deleted.status_code == 202, deleted.text
        assert "none that needs it starts any more" in deleted.json()["message"]
        assert ann.get(one).status_code == 404
        for said in (answer, listed, changed, deleted, admin.get(f"{V1}/events", params={"order": "desc"})):
            assert MARK not in said.text


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({"kind": "password", "data": {"username": "x"}}, {"spec.data.password"}),
        ({"kind": "password", "data": {"username": "x", "password": MARK, "pin": MARK}}, {"spec.data"}),
        ({"kind": "password", "data": {"username": "x", "password": 5551234}}, {"spec.data.password"}),
        ({"kind": "password", "data": {"username": "x", "password": {"a": MARK}}}, {"spec.data.password"}),
        ({"kind": "password", "data": f"password={MARK}"}, {"spec.data"}),
        ({"kind": "password", "data": [MARK]}, {"spec.data"}),
        ({"kind": MARK.upper(), "data": {"a": MARK}}, {"spec.kind"}),
        ({"kind": "generic-secret", "data": {}}, {"spec.data"}),
        ({"kind": "generic-secret", "data": {"a b": MARK}}, {"spec.data"}),
        ({"kind": "generic-secret", "data": {"a": ""}}, {"spec.data.a"}),
        ({"kind": "generic-secret", "data": {"a": MARK * 2000}}, {"spec.data.a"}),
        ({"kind": "generic-secret", "data": {f"k{n}": "x" for n in range(33)}}, {"spec.data"}),
        ({"kind": "generic-secret", "data": {f"k{n}": "x" * 16_000 for n in range(3)}}, {"spec.data"}),
        ({"kind": "generic-secret"}, {"spec.data"}),
    ],
)
def test_what_is_wrong_is_told_without_a_word_of_the_values(
    admin: httpx.Client, served: Served, spec: dict[str, Any], fields: set[str]
) -> None:
    answer = admin.post(CREDENTIALS, json=body_of(served) | {"spec": spec})
    assert issues(answer).keys() == fields
    assert MARK not in answer.text
    assert "5551234" not in answer.text


def pulls(name: str) -> dict[str, Any]:
    return {"imagePullSecrets": [{"name": name, "userCredential": True}]}


def clones(name: str, **more: Any) -> dict[str, Any]:
    login = {"name": name, "userCredential": True, "authenticationMethod": "password", **more}
    return {"storage": {"git": [{"repository": "https://git.example.com/a", "path": "/src", "secretRef": login}]}}


def clones_by_ssh(name: str, **more: Any) -> dict[str, Any]:
    spec = clones(name, authenticationMethod="ssh-key", **more)
    spec["storage"]["git"][0]["repository"] = "git@git.example.com:team/code"
    return spec


def test_images_are_pulled_and_repositories_cloned_with_what_is_ones_own_and_fits(
    admin: httpx.Client, served: Served
) -> None:
    """S018, S057, R10, R34."""
    cluster = admin.post(f"{V1}/clusters", json={"name": fresh("k"), "kind": "kubernetes"}).json()["id"]
    with person(served, admin) as ann, person(served, admin) as bob:
        own = {
            kind: made(ann, served, kind=kind)["meta"]["name"]
            for kind in ("docker-registry", "password", "generic-secret")
        }
        registry, login, other = own.values()
        key = made(ann, served, data={"ssh-privatekey": MARK, "mine": MARK, "known_hosts": MARK})["meta"]["name"]
        no_hosts = made(ann, served, data={"ssh-privatekey": MARK})["meta"]["name"]
        pull, git = "spec.imagePullSecrets[0].name", "spec.storage.git[0].secretRef"
        cases: list[tuple[httpx.Client, dict[str, Any], dict[str, str]]] = [
            (ann, clones(login), {}),
            (ann, clones(other, secretKeyOfPassword="ANY_KEY"), {}),
            (ann, clones(login) | {"imagePullSecrets": [{"name": registry}]}, {}),
            (ann, clones(other), {f"{git}.secretKeyOfPassword": "has no key 'password'"}),
            (ann, clones(login, secretKeyOfUser="who"), {f"{git}.secretKeyOfUser": "has no key 'who'"}),
            (bob, clones(login), {f"{git}.name": "of somebody else"}),
            (ann, clones_by_ssh(key), {}),
            (ann, clones_by_ssh(key, secretKeyOfPassword="mine"), {}),
            (ann, clones_by_ssh(key, secretKeyOfPassword="no"), {f"{git}.secretKeyOfPassword": "has no key 'no'"}),
            (ann, clones_by_ssh(no_hosts), {f"{git}.name": "has no key 'known_hosts'"}),
            (bob, clones_by_ssh(key), {f"{git}.name": "of somebody else"}),
            (ann, pulls(registry), {}),
            (ann, pulls(login), {pull: "docker-registry"}),
            (ann, pulls("never"), {pull: "create it first"}),
            (bob, pulls(registry), {pull: "of somebody else"}),
        ]
        for client, spec, wanted in cases:
            body = served.training() | {"clusterId": cluster, "spec": {"image": "i", **spec}}
            answer = client.post(TRAININGS, json=body)
            told = {} if answer.status_code == 202 else issues(answer)
            assert told.keys() == wanted.keys(), (spec, answer.text)
            assert all(words in told[field] for field, words in wanted.items()), told


def test_a_credential_is_its_owners_and_others_neither_see_nor_use_nor_change_it(
    admin: httpx.Client, served: Served
) -> None:
    with person(served, admin) as ann, person(served, admin) as bob, person(served, admin, "viewer") as eve:
        one = made(ann, served)
        name, path = one["meta"]["name"], f"{CREDENTIALS}/{id_of(one)}"
        assert ann.post(TRAININGS, json=request(served, name)).status_code == 202
        told = issues(bob.post(TRAININGS, json=request(served, name)))
        assert "of somebody else" in told["spec.environmentVariables[0].userCredential.name"]
        told = issues(ann.post(TRAININGS, json=request(served, name, key="nothing")))
        assert "ANY_KEY" in told["spec.environmentVariables[0].userCredential.key"]
        assert "create it first" in "".join(issues(bob.post(TRAININGS, json=request(served, "never"))).values())
        for other in (bob, eve):
            assert other.get(path).status_code == 404
            assert other.put(path, json={"spec": body_of(served)["spec"]}).status_code == 404
            assert other.delete(path).status_code == 404
            assert other.get(CREDENTIALS).json()["credentials"] == []
        assert eve.post(CREDENTIALS, json=body_of(served)).status_code == 403
        assert bob.post(CREDENTIALS, json=body_of(served, scope="tenant", projectId=None)).status_code == 403
        # An administrator may delete it, and not give it another value.
        assert admin.put(path, json={"spec": body_of(served)["spec"]}).status_code == 403
        assert admin.delete(path).status_code == 202


def test_the_nearest_place_counts_and_a_name_is_taken_there(admin: httpx.Client, served: Served) -> None:
    name = fresh("cred")
    made(admin, served, name=name, scope="tenant", projectId=None, data={"everywhere": "x"})
    assert admin.post(TRAININGS, json=request(served, name, key="everywhere")).status_code == 202
    made(admin, served, name=name, data={"here": "x"})
    assert admin.post(TRAININGS, json=request(served, name, key="here")).status_code == 202
    assert issues(admin.post(TRAININGS, json=request(served, name, key="everywhere")))
    assert f"{name}-2" in issues(admin.post(CREDENTIALS, json=body_of(served, name=name)))["meta.name"]


def test_a_repeated_request_is_answered_as_the_first_and_another_body_is_refused(
    admin: httpx.Client, served: Served
) -> None:
    body, key = body_of(served), {"Idempotency-Key": secrets.token_hex(8)}
    first = admin.post(CREDENTIALS, json=body, headers=key)
    again = admin.post(CREDENTIALS, json=body, headers=key)
    assert (again.status_code, again.json()["meta"]["id"]) == (202, first.json()["meta"]["id"])
    other = admin.post(CREDENTIALS, json=body | {"spec": {"kind": "generic-secret", "data": {"a": "b"}}}, headers=key)
    assert other.status_code in {400, 409, 422}, other.text
    body = request(served, body["meta"]["name"])
    workload = admin.post(TRAININGS, json=body, headers=key)
    assert admin.delete(f"{CREDENTIALS}/{id_of(first.json())}").status_code == 202
    repeated = admin.post(TRAININGS, json=body, headers=key)
    assert repeated.json() == workload.json(), "what was accepted is answered as then"


def test_the_hash_of_a_body_in_the_log_is_of_no_use_without_the_key(admin: httpx.Client, served: Served) -> None:
    import hashlib

    import msgspec

    raw = msgspec.json.encode(body_of(served))
    headers = {"Idempotency-Key": secrets.token_hex(8), "Content-Type": "application/json"}
    assert admin.post(CREDENTIALS, content=raw, headers=headers).status_code == 202
    events = admin.get(f"{V1}/events", params={"order": "desc", "limit": 5}).text
    assert hashlib.sha256(raw).hexdigest() not in events


def test_a_service_account_has_credentials_of_its_own(admin: httpx.Client, served: Served) -> None:
    account = {"name": fresh("robot"), "projectId": served.project, "roleName": "researcher"}
    token = admin.post(f"{V1}/service-accounts", json=account).json()["token"]
    with served.client(None) as robot:
        robot.headers["Authorization"] = f"Bearer {token}"
        one = made(robot, served)
        assert robot.post(TRAININGS, json=request(served, one["meta"]["name"])).status_code == 202
        assert robot.delete(f"{CREDENTIALS}/{id_of(one)}").status_code == 202
    assert issues(admin.post(TRAININGS, json=request(served, one["meta"]["name"])))


def test_a_person_has_a_hundred_in_one_place_and_no_more(
    admin: httpx.Client, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asset_core, "MAX_OWN_CREDENTIALS", 2)
    with person(served, admin) as ann, person(served, admin) as bob:
        for _ in range(2):
            answer = ann.post(CREDENTIALS, json=body_of(served))
            seq = answer.headers["x-log-sequence"]
            assert ann.get(CREDENTIALS, params={"min_seq": seq}).status_code == 200
        refused = ann.post(CREDENTIALS, json=body_of(served))
        assert (refused.status_code, refused.json()["details"]) == (403, "too_many_assets")
        assert "at most 2 are possible: delete some" in refused.json()["message"]
        made(bob, served)


def test_who_replaces_values_again_and_again_waits_until_old_ones_are_gone(
    admin: httpx.Client, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one person could fill the store for everybody."""
    monkeypatch.setattr(credentials, "MOST_VALUES", 3)
    with person(served, admin) as ann, person(served, admin) as bob:
        path = f"{CREDENTIALS}/{made(ann, served)['meta']['id']}"
        for number in range(2):
            change = {"spec": {"kind": "generic-secret", "data": {"token": f"v{number}"}}}
            assert ann.put(path, json=change).status_code == 202
        refused = ann.put(path, json={"spec": {"kind": "generic-secret", "data": {"token": "v9"}}})
        assert (refused.status_code, refused.json()["details"]) == (429, "too_many_values")
        assert int(refused.headers["retry-after"]) > 0
        made(bob, served)


def test_where_the_store_is_more_than_half_full_a_person_keeps_fewer(
    admin: httpx.Client, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a dozen people could fill it for all others."""
    monkeypatch.setattr(credentials, "MOST_WHERE_SCARCE", 1)
    with person(served, admin) as ann:
        made(ann, served)
        made(ann, served)
        monkeypatch.setattr(credentials, "SCARCE", 0.0)
        refused = ann.post(CREDENTIALS, json=body_of(served))
        assert (refused.status_code, refused.json()["details"]) == (429, "too_many_values")
        assert "at most 1 are possible while the store is more than half full" in refused.json()["message"]


def test_all_accounts_of_a_project_keep_as_many_values_as_one_person(
    admin: httpx.Client, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever makes accounts of a project, and deletes them again, could fill the store for everybody."""
    monkeypatch.setattr(credentials, "MOST_VALUES", 3)

    def told_of(account: str) -> tuple[int, str]:
        with program(served, admin, account) as client:
            answer = client.post(CREDENTIALS, json=body_of(served))
        assert admin.delete(f"{ACCOUNTS}/{served.project}/{account}").status_code == 202
        return answer.status_code, answer.json().get("details", "")

    told = [told_of(fresh("account")) for _ in range(4)]
    assert told == [(202, "")] * 3 + [(429, "too_many_values")]


def test_a_place_has_so_many_assets_of_a_kind_and_no_more(
    admin: httpx.Client, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(asset_core.MAX_ASSETS, "project", 0)
    place = {"name": fresh(), "scope": "project", "projectId": served.project}
    refused = admin.post(f"{V1}/asset/compute", json={"meta": place, "spec": {}})
    assert (refused.status_code, refused.json()["details"]) == (403, "too_many_assets")
    assert "choose another scope" in refused.json()["message"]
    meta = {"name": fresh(), "scope": "tenant"}
    assert admin.post(f"{V1}/asset/compute", json={"meta": meta, "spec": {}}).status_code == 202


def test_a_department_has_its_own_room(admin: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(asset_core.MAX_ASSETS, "department", 1)

    def one_of(department: str) -> httpx.Response:
        meta = {"name": fresh(), "scope": "department", "departmentId": department}
        answer = admin.post(f"{V1}/asset/compute", json={"meta": meta, "spec": {}})
        if seq := answer.headers.get("x-log-sequence"):
            assert admin.get(f"{V1}/asset/compute", params={"min_seq": seq}).status_code == 200
        return answer

    ids = [admin.post(f"{V1}/org-unit/departments", json={"name": fresh()}).json()["id"] for _ in range(2)]
    assert [one_of(id_).status_code for id_ in ids] == [202, 202]
    refused = one_of(ids[0])
    assert (refused.status_code, refused.json()["details"]) == (403, "too_many_assets")


@pytest.mark.anyio
async def test_values_that_no_credential_has_any_more_are_removed_the_second_time(
    nats_server: NatsServer, served: Served, admin: httpx.Client
) -> None:
    kept_one, gone = made(admin, served), made(admin, served)
    path = f"{CREDENTIALS}/{id_of(kept_one)}"
    changed = {"spec": {"kind": "generic-secret", "data": {"new": "x"}}}
    assert admin.put(path, json=changed).status_code == 202  # noqa: ASYNC212 (the API runs in a thread of its own)
    assert admin.delete(f"{CREDENTIALS}/{id_of(gone)}").status_code == 202  # noqa: ASYNC212
    nc = await connect(nats_server.settings(EVERYTHING), EVERYTHING)
    try:
        requests, store = Requests(nc), JetStreamEventStore(nc)
        kept = KeptCredentials(requests)

        async def of(asset: dict[str, Any]) -> list[str]:
            key = key_of_id(id_of(asset))
            return [one for one in await kept.subjects() if key_of_id(credential_value_id(one)) == key]

        assert (len(await of(kept_one)), len(await of(gone))) == (2, 0), "a deleted one's value is gone at once"
        unused = await remove_unused(requests, store, frozenset())
        assert len(await of(kept_one)) == 2
        await remove_unused(requests, store, unused)
        (left,) = await of(kept_one)
        state = (await store.load(ASSET, key_of_id(id_of(kept_one)) or "")).state
        assert state.spec["credential"]["value"] == credential_value_id(left)
    finally:
        await nc.close()


@pytest.mark.anyio
async def test_a_value_that_is_stored_while_the_key_is_replaced_is_sealed_to_the_new_one(
    nats_server: NatsServer, served: Served, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the API stood still between reading the key and storing the value."""
    file, after = served.settings.credential_public_key_file, new_ring()
    assert file is not None

    class Replaced(KeptCredentials):
        async def put(self, owner: str, value_id: str, data: dict[str, str], public: bytes) -> None:
            write_public(file, after)
            await super().put(owner, value_id, data, public)

    monkeypatch.setattr(credentials, "KeptCredentials", Replaced)
    before = file.read_bytes()
    try:
        asset = made(admin, served)
    finally:
        file.write_bytes(before)
    nc = await connect(nats_server.settings(EVERYTHING), EVERYTHING)
    try:
        key = key_of_id(id_of(asset)) or ""
        state = (await JetStreamEventStore(nc).load(ASSET, key)).state
        kept = KeptCredentials(Requests(nc))
        assert await kept.get(state.created_by, state.spec["credential"]["value"], after) == DATA["generic-secret"]
    finally:
        await nc.close()


def test_the_examples_are_taken(admin: httpx.Client, served: Served) -> None:
    import yaml

    folder = Path(__file__).parents[2] / "examples"
    credential, training = (
        yaml.safe_load((folder / f"{name}.yaml").read_text()) for name in ("credential", "with-credential")
    )
    place = {"scope": "project", "projectId": served.project}
    answer = admin.post(CREDENTIALS, json=credential | {"meta": credential["meta"] | place})
    assert answer.status_code == 202, answer.text
    answer = admin.post(TRAININGS, json=served.training() | {"spec": training["spec"]})
    assert answer.status_code == 202, answer.text
    for name, kind in (("registry", "docker-registry"), ("code", "password")):
        assert admin.post(CREDENTIALS, json=body_of(served, kind=kind, name=name)).status_code == 202
    cluster = admin.post(f"{V1}/clusters", json={"name": fresh("k"), "kind": "kubernetes"}).json()["id"]
    private = yaml.safe_load((folder / "private.yaml").read_text())["spec"]
    answer = admin.post(TRAININGS, json=served.training() | {"clusterId": cluster, "spec": private})
    assert answer.status_code == 202, answer.text
    source = yaml.safe_load((folder / "datasource.yaml").read_text())
    answer = admin.post(f"{V1}/asset/datasource/git", json=source)
    assert answer.status_code == 202, answer.text
