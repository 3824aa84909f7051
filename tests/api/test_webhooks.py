"""Webhooks over HTTP: the answer that creates one shows its secret once, and what is wrong is said by name."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook as PublicLibrary

from tests.support.api import Served

WEBHOOKS = "/api/v1/webhooks"
URL = "https://example.com/muster"


@pytest.fixture(scope="module")
def admin(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


def made(client: httpx.Client, project: str, headers: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    answer = client.post(WEBHOOKS, json={"projectId": project, "url": URL, **more}, headers=headers)
    assert answer.status_code == 202, answer.text
    return answer.json()


def test_the_secret_is_shown_in_the_answer_that_creates_it_and_nowhere_else(
    served: Served, admin: httpx.Client
) -> None:
    answer = made(admin, served.project, {"Idempotency-Key": "secret"}, types=["WorkloadFailed", "Pod*"])
    assert PublicLibrary(answer["secret"])
    shown = admin.get(f"{WEBHOOKS}/{answer['id']}").json()
    assert (shown["types"], shown["enabled"], shown["url"]) == (["WorkloadFailed", "Pod*"], True, URL)
    everything = [admin.get(path).text for path in (WEBHOOKS, f"{WEBHOOKS}/{answer['id']}", "/api/v1/events?limit=500")]
    assert not [text for text in everything if "whsec_" in text or answer["secret"][10:] in text]
    # The same request again is answered the same.
    assert made(admin, served.project, {"Idempotency-Key": "secret"}, types=["WorkloadFailed", "Pod*"]) == answer

    rotated = admin.post(f"{WEBHOOKS}/{answer['id']}/rotate-key").json()
    assert rotated["secret"] not in (None, answer["secret"])
    repeated = made(admin, served.project, {"Idempotency-Key": "secret"}, types=["WorkloadFailed", "Pod*"])
    assert repeated["secret"] is None


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"url": "http://example.com/"}, "url", "https://"),
        ({"url": "https://127.0.0.1/"}, "url", "public"),
        ({"url": "https://me:word@example.com/"}, "url", "password"),
        ({"types": ["WorkloadComplete"]}, "types[0]", "'WorkloadCompleted'"),
        ({"types": ["Pod*", "Nothing*"]}, "types[1]", "matches none"),
        ({"types": []}, "types", "empty"),
        ({"name": "Not A Name"}, "name", "lower-case"),
        ({"typs": ["Pod*"]}, "typs", "types"),
    ],
)
def test_what_is_wrong_is_said_by_name(
    served: Served, admin: httpx.Client, body: dict[str, Any], field: str, words: str
) -> None:
    answer = admin.post(WEBHOOKS, json={"projectId": served.project, "url": URL, **body})
    assert answer.status_code == 400, answer.text
    (issue,) = answer.json()["complianceIssues"]
    assert issue["field"] == field
    assert words in issue["details"]


def test_it_is_changed_disabled_and_enabled(served: Served, admin: httpx.Client) -> None:
    where = f"{WEBHOOKS}/{made(admin, served.project)['id']}"
    assert admin.patch(where, json={}).status_code == 400
    assert admin.patch(where, json={"enabled": False, "types": ["Node*"]}).status_code == 202
    shown = admin.get(where).json()
    assert (shown["enabled"], shown["disabledBecause"], shown["types"]) == (False, "by_request", ["Node*"])
    refused = admin.post(f"{where}/redeliver", json={})
    assert (refused.status_code, refused.json()["details"]) == (409, "webhook_disabled")
    assert admin.patch(where, json={"enabled": True}).status_code == 202
    assert admin.get(where).json()["disabledBecause"] is None
    assert admin.post(f"{where}/redeliver", json={"deliveries": [4711]}).status_code == 404
    assert admin.delete(where).status_code == 202
    assert admin.get(where).status_code == 404


def test_a_test_to_where_nobody_may_post_says_so_and_stands_among_the_deliveries(
    served: Served, admin: httpx.Client
) -> None:
    where = f"{WEBHOOKS}/{made(admin, served.project, url='https://localhost:8443/')['id']}"
    tested = admin.post(f"{where}/test").json()
    assert tested["state"] == "failed"
    assert "public" in tested["tries"][0]["error"]
    (delivery,) = admin.get(f"{where}/deliveries").json()["deliveries"]
    assert delivery == tested
    assert admin.get(f"{where}/deliveries", params={"state": "parked"}).json()["deliveries"] == []
