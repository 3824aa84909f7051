"""Many creations in one request, as people meet them: every problem with its item, and an answer for each."""

import json
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from events.envelope import BatchReply, BatchRequest
from services.api.batches import BATCHES_EACH, MOST_PROJECTS, PART_ITEMS, PARTS_UNDER_WAY
from services.api.body import MAX_BODY_BYTES, MAX_LARGE_BODY_BYTES
from services.api.limits import Slots
from services.runtime.nats.bus import CommandClient
from tests.support.api import Served

PATH = "/api/v1/workloads:batch"
NOWHERE = "7d1c2b3a-0000-8000-8000-000000000000"


@pytest.fixture(scope="module")
def alice(served: Served) -> Iterator[httpx.Client]:
    with served.client("alice", timeout=60) as client:
        yield client


def item(served: Served, kind: str = "Training", **more: Any) -> dict[str, Any]:
    own = {"Distributed": {"distributedFramework": "JAX"}, "Inference": {"servingPort": {"container": 8000}}}
    spec: dict[str, Any] = own.get(kind, {})
    return {"kind": kind, **served.training(spec=spec | more.pop("spec", {}), **more)}


def post(client: httpx.Client, *items: Any, key: str | None = None, **around: Any) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post(PATH, json={"items": [*items], **around}, headers=headers)


def issues(answer: httpx.Response) -> dict[str, str]:
    assert answer.status_code == 400, answer.text
    return {issue["field"]: issue["details"] for issue in answer.json()["complianceIssues"]}


def test_workloads_of_all_kinds_are_created_at_once_and_are_read_as_those_created_alone(
    served: Served, alice: httpx.Client
) -> None:
    kinds = {
        "Training": "trainings",
        "Distributed": "distributed",
        "Workspace": "workspaces",
        "Inference": "inferences",
    }
    answer = post(alice, *(item(served, kind, spec={"labels": [{"name": "a", "value": "b"}]}) for kind in kinds))

    assert answer.status_code == 202, answer.text
    told = answer.json()
    assert (told["created"], told["refused"], [one["code"] for one in told["items"]]) == (4, 0, [202] * 4)
    for one, collection in zip(told["items"], kinds.values(), strict=True):
        found = alice.get(f"/api/v1/workloads/{collection}/{one['id']}").json()
        assert (found["name"], found["createdBy"]) == (one["name"], "alice")
        assert found["spec"]["labels"] == [{"name": "a", "value": "b"}]
    listed = alice.get("/api/v1/workloads", params={"min_seq": answer.headers["X-Log-Sequence"], "limit": 500}).json()
    assert {one["id"] for one in told["items"]} <= {row["id"] for row in listed["workloads"]}


def test_the_same_request_with_the_same_key_has_the_same_answer_and_another_is_refused(
    served: Served, alice: httpx.Client
) -> None:
    key, items = secrets.token_hex(8), [item(served, useGivenNameAsPrefix=True), item(served)]
    first = post(alice, *items, key=key)
    assert first.status_code == 202, first.text
    assert first.json()["items"][0]["name"].startswith(items[0]["name"] + "-")

    assert post(alice, *items, key=key).json() == first.json()
    assert post(alice, items[0], key=key).json()["details"] == "idempotency_key_reused"
    ids = [one["id"] for one in first.json()["items"]]
    alice.delete(f"/api/v1/workloads/trainings/{ids[1]}")
    assert [one["id"] for one in post(alice, *items, key=key).json()["items"]] == ids


def test_everything_that_is_wrong_is_told_with_its_item_and_nothing_is_created(
    served: Served, alice: httpx.Client
) -> None:
    good = item(served)
    told = issues(
        post(
            alice,
            good,
            item(served, name="x" * 254, spec={"imagePullPolicy": "Sometimes"}),
            {"kind": "Trainings", **served.training()},
            served.training(),
            item(served, clusterId=NOWHERE, spec={"completions": 0}),
            item(served, masterSpec={}),
        )
    )

    assert set(told) == {
        "items[1].name",
        "items[1].spec.imagePullPolicy",
        "items[2].kind",
        "items[3].kind",
        "items[4].clusterId",
        "items[4].spec.completions",
        "items[5].masterSpec",
    }
    assert "did you mean 'Training'" in told["items[2].kind"]
    assert post(alice, good).json()["created"] == 1, "its name was free"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param("{}", "items", id="none"),
        pytest.param('{"items": []}', "items", id="empty"),
        pytest.param('{"items": {}}', "items", id="no list"),
        pytest.param('{"items": [1]}', "items[0]", id="no object"),
        pytest.param('{"items": [{}], "allOrNothing": "yes"}', "allOrNothing", id="no boolean"),
        pytest.param('{"items": [{}], "item": 1}', "item", id="unknown"),
        pytest.param('{"items": [{"kind": "Training"', "body", id="no JSON"),
        pytest.param('{"items": [{"kind": "Train\\u0000ing"}]}', "items[0].kind", id="NUL"),
        pytest.param("[]", "body", id="no request"),
        pytest.param("", "body", id="nothing"),
        pytest.param('{"items": [' + "{}," * 1000 + "{}]}", "items", id="too many"),
        pytest.param('{"items": [' + "{}," * 1_000_001 + "{}]}", "body", id="very many"),
        pytest.param('{"items": [' + '{"a":' * 40 + "1" + "}" * 40 + "]}", "items[0]", id="deep"),
        pytest.param('{"items": [{"kind": "Training"}], "items": [{}]}', "items", id="items twice"),
        pytest.param('{"items": [{}, {"spec": {"a": 1, "a": 2}}]}', "items[1].spec.a", id="a field of an item twice"),
    ],
)
def test_what_is_no_batch_is_refused_by_name(alice: httpx.Client, body: str, field: str) -> None:
    answer = alice.post(PATH, content=body, headers={"Content-Type": "application/json"})
    assert field in issues(answer), answer.text


def test_what_only_the_newest_state_tells_is_answered_for_each_item(served: Served, alice: httpx.Client) -> None:
    taken = item(served)
    assert post(alice, taken).json()["created"] == 1

    told = post(
        alice,
        item(served),
        taken,
        item(served, projectId=served.made["other"]),
        item(served, clusterId=NOWHERE),
        twice := item(served),
        twice,
    ).json()

    assert [one["code"] for one in told["items"]] == [202, 400, 403, 400, 202, 400]
    assert (told["created"], told["refused"]) == (2, 4)
    assert [one.get("details") for one in told["items"]][1:3] == ["name_taken", "not_in_project"]
    assert told["items"][3]["complianceIssues"][0]["field"] == "clusterId"
    assert told["items"][5]["details"] == "name_taken"


def test_items_that_differ_in_their_names_only_are_still_checked_each(served: Served, alice: httpx.Client) -> None:
    """They are checked together (`_Alike`)."""
    first = item(served)
    told = issues(post(alice, first, *(first | {"name": name} for name in ("", "a\x00b", 5, None, "x" * 254, "good"))))
    assert set(told) == {f"items[{index}].name" for index in range(1, 6)}
    different = first | {"spec": first["spec"] | {"completions": 0}, "name": "other"}
    assert set(issues(post(alice, first, different))) == {"items[1].spec.completions"}
    assert post(alice, first, first | {"name": first["name"] + "-2"}).json()["created"] == 2


def test_a_field_that_stands_twice_in_one_of_many_alike_is_found(served: Served, alice: httpx.Client) -> None:
    alike = [json.dumps(item(served)) for _ in range(3)]
    alike[2] = alike[2][:-1] + ', "projectId": "' + served.project + '"}'
    answer = alice.post(PATH, content=f'{{"items": [{",".join(alike)}]}}', headers={"Content-Type": "application/json"})
    assert issues(answer) == {"items[2].projectId": "stands there twice; leave one of them out"}


def test_all_or_nothing_is_nothing_where_one_is_refused_and_says_which(served: Served, alice: httpx.Client) -> None:
    taken, good = item(served), item(served)
    assert post(alice, taken).json()["created"] == 1

    told = issues(post(alice, good, taken, allOrNothing=True))
    assert set(told) == {"items[1].name"}
    told = issues(post(alice, item(served, clusterId=NOWHERE), good, allOrNothing=True))
    assert set(told) == {"items[0].clusterId"}
    refused = post(alice, good, item(served, projectId=served.made["other"]), allOrNothing=True)
    assert (refused.status_code, refused.json()["details"]) == (403, "not_in_project")
    assert "items[1]" in refused.json()["message"]
    assert post(alice, good, allOrNothing=True).json()["created"] == 1, "its name was free all the time"


def test_a_thousand_are_created_in_one_request_all_or_none(served: Served, alice: httpx.Client) -> None:
    prefix = secrets.token_hex(4)
    items = [item(served, name=f"{prefix}-{number}") for number in range(1_000)]

    answer = post(alice, *items, allOrNothing=True)

    assert answer.status_code == 202, answer.text
    assert answer.json()["created"] == 1_000
    seen = {"min_seq": answer.headers["X-Log-Sequence"], "search": prefix}
    counted = alice.get("/api/v1/workloads/count", params=seen)
    while "X-Log-Stale" in counted.headers:  # a busy machine shows what the tables had before
        counted = alice.get("/api/v1/workloads/count", params=seen)
    assert counted.json()["count"] == 1_000


def test_a_part_is_decided_while_another_is_stored(
    served: Served, alice: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one alone: what refuses it may refuse all, and then nothing else was tried."""
    send, prefix = CommandClient.send_batch, secrets.token_hex(4)
    under_way, seen = 0, list[int]()

    async def counted(self: CommandClient, request: BatchRequest) -> BatchReply:
        nonlocal under_way
        under_way += 1
        seen.append(under_way)
        try:
            return await send(self, request)
        finally:
            under_way -= 1

    monkeypatch.setattr(CommandClient, "send_batch", counted)
    names = [f"{prefix}-{number}" for number in range(4 * PART_ITEMS)]
    answer = post(alice, *(item(served, name=name) for name in names))

    assert answer.status_code == 202, answer.text
    assert [(one["index"], one["name"], one["code"]) for one in answer.json()["items"]] == [
        (index, name, 202) for index, name in enumerate(names)
    ]
    assert (seen[:3], len(seen), max(seen)) == ([1, 1, 2], 4, PARTS_UNDER_WAY)


def test_sizes_are_bounded(served: Served, alice: httpx.Client) -> None:
    text = "x" * (MAX_BODY_BYTES // 2)
    large = item(served, spec={"annotations": [{"name": f"n{n}", "value": "x" * 9_000} for n in range(50)]})
    assert (
        post(alice, large, *(item(served) for _ in range(3)), large | {"name": large["name"] + "-2"}).json()["created"]
        == 5
    )
    told = issues(post(alice, item(served), item(served, spec={"args": text + text})))
    assert f"at most {MAX_BODY_BYTES} bytes" in told["items[1]"]
    body = json.dumps({"items": [item(served)]}).encode() + b" " * MAX_LARGE_BODY_BYTES
    answer = alice.post(PATH, content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["details"]) == (413, "body_too_large")
    small = alice.post("/api/v1/workloads/trainings", content=b" " * (MAX_BODY_BYTES + 1),
                       headers={"Content-Type": "application/json"})  # fmt: skip
    assert small.status_code == 413, "other bodies are as small as ever"


def test_code_of_a_project_that_cannot_be_is_no_error_of_ours(served: Served) -> None:
    """Also of one creation alone."""
    odd = served.training(projectId="w&", spec={"code": "0" * 64})
    with served.client() as admin:
        assert set(issues(post(admin, {"kind": "Training", **odd}, allOrNothing=True))) == {"items[0].projectId"}
        assert set(issues(admin.post("/api/v1/workloads/trainings", json=odd))) == {"projectId"}


def test_a_batch_is_for_so_many_projects(served: Served, alice: httpx.Client) -> None:
    items = [item(served, projectId=f"p-{number}") for number in range(MOST_PROJECTS + 1)]
    assert f"items[{MOST_PROJECTS}].projectId" in issues(post(alice, *items))


def test_if_match_and_a_batch_have_nothing_to_do_with_each_other(served: Served, alice: httpx.Client) -> None:
    answer = alice.post(PATH, json={"items": [item(served)]}, headers={"If-Match": "5"})
    assert set(issues(answer)) == {"If-Match"}


def test_one_user_holds_so_many_large_bodies_at_a_time_and_no_more(
    served: Served, alice: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, take = threading.Semaphore(0), Slots.take

    def seen(slots: Slots, principal: tuple[str, str]) -> Callable[[], None]:
        give_back = take(slots, principal)
        if slots.each == BATCHES_EACH:
            taken.release()
        return give_back

    monkeypatch.setattr(Slots, "take", seen)
    begun, go_on = threading.Barrier(BATCHES_EACH + 1), threading.Event()
    body = json.dumps({"items": [item(served)]}).encode()

    def slowly() -> Iterator[bytes]:
        yield body[:10]
        begun.wait(60)
        go_on.wait(60)
        yield body[10:]

    def send(answers: list[int]) -> None:
        with served.client("alice", timeout=60) as client:
            headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
            answers.append(client.post(PATH, content=slowly(), headers=headers).status_code)

    answers: list[int] = []
    threads = [threading.Thread(target=send, args=(answers,)) for _ in range(BATCHES_EACH)]
    for thread in threads:
        thread.start()
    begun.wait(60)
    try:
        # Both are on their way, and must be seen before this one, which would take the place of the last of them.
        assert taken.acquire(timeout=60)
        assert taken.acquire(timeout=60)
        refused = post(alice, item(served))
        assert refused.status_code == 429, refused.text
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
        with served.client("bob") as bob:
            assert post(bob, item(served)).status_code == 202
    finally:
        go_on.set()
        for thread in threads:
            thread.join()
    assert min(answers) == 202
    assert post(alice, item(served)).status_code == 202


def test_items_are_made_from_templates_assets_and_the_token_as_a_creation_alone_is(
    served: Served, alice: httpx.Client
) -> None:
    name = f"b-{secrets.token_hex(4)}"
    with served.client() as admin:
        template = admin.post(
            "/api/v1/workload-templates",
            json={
                "meta": {"name": name, "scope": "tenant", "workloadType": "Training"},
                "spec": {"labels": [{"name": "from", "value": "template"}], "backoffLimit": 3},
            },
        )
    assert template.status_code == 202, template.text
    templated = {"templateId": template.json()["meta"]["id"]}
    answer = post(alice, *(item(served, spec={"backoffLimit": 4}) | templated for _ in range(3)))
    assert answer.json()["created"] == 3, answer.text
    for one in answer.json()["items"]:
        path = f"/api/v1/workloads/trainings/{one['id']}"
        found = alice.get(path, params={"explain": "true", "min_seq": answer.headers["X-Log-Sequence"]}).json()
        assert found["spec"]["labels"] == [{"name": "from", "value": "template"}]
        assert found["spec"]["backoffLimit"] == 4
        assert found["setBy"]["spec.labels[0]"] == f"template {name}"
    mixed = post(alice, item(served), item(served) | {"templateId": NOWHERE}, item(served) | templated)
    assert [one["code"] for one in mixed.json()["items"]] == [202, 400, 202], mixed.text
    assert mixed.json()["items"][1]["complianceIssues"][0]["field"] == "templateId"
    of_token = post(alice, item(served, spec={"security": {"uidGidSource": "fromIdpToken"}}))
    (refused,) = of_token.json()["items"]
    assert refused["code"] == 400
    assert {issue["field"] for issue in refused["complianceIssues"]} >= {"spec.security.uidGidSource"}


def test_items_are_held_to_policies(served: Served, alice: httpx.Client) -> None:
    with served.client() as admin:
        place = {"scope": "project", "projectId": served.project}
        path = "/api/v1/policies/trainings"
        rules = {"rules": {"backoffLimit": {"max": 8}}}
        assert admin.put(path, params=place, json=rules).status_code == 202
        try:
            answer = post(alice, item(served), item(served, spec={"backoffLimit": 9}))
        finally:
            assert admin.delete(path, params=place).status_code == 202
    fine, refused = answer.json()["items"]
    assert (fine["code"], refused["code"]) == (202, 400), answer.text
    assert [(one["field"], one["rule"]) for one in refused["complianceIssues"]] == [("spec.backoffLimit", "max")]
