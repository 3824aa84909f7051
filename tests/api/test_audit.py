"""The audit, searched: newest first, by time, by who, by what they asked for."""

import secrets
from typing import Any

import httpx
import pytest

from services.api import operation_log
from tests.support.api import Served

V1 = "/api/v1"


def audited(admin: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    answer = admin.get(f"{V1}/audit", params=query)
    assert answer.status_code == 200, answer.text
    assert answer.json()["searchedBackTo"] is None
    return answer.json()["records"]


def test_the_audit_is_searched_by_time_by_who_and_by_what(served: Served) -> None:
    name = f"p-{secrets.token_hex(4)}"
    with served.client() as admin, served.client("alice") as alice:
        made = admin.post(f"{V1}/org-unit/projects", json={"name": name})
        for _ in range(3):
            assert alice.post(f"{V1}/org-unit/projects", json={"name": f"{name}-2"}).status_code == 403
        assert admin.put(f"{V1}/org-unit/projects/{made.json()['id']}", json={"gpuQuota": 1}).status_code == 202
        hers = audited(admin, actor="alice", type="CreateProject")
        assert {(one["actor"]["sub"], one["command"], one["outcome"]) for one in hers} == {
            ("alice", "CreateProject", "refused")
        }
        assert [one["at"] for one in hers] == sorted((one["at"] for one in hers), reverse=True)
        assert len(audited(admin, actor="alice", limit=2)) == 2, "two of hers, whatever others did"
        assert audited(admin, actor="nobody") == []
        assert {one["command"] for one in audited(admin, actor="admin", type="ChangeProject")} == {"ChangeProject"}
        assert len(audited(admin, since="1h")) >= 5
        assert audited(admin, since="2100-01-01T00:00:00Z") == []
        wrong = admin.get(f"{V1}/audit", params={"type": "CreateProjects", "since": "soon"})
        assert wrong.status_code == 400
        assert "CreateProject," in wrong.text
        soon = admin.get(f"{V1}/audit", params={"since": "soon"}).json()["message"]
        assert soon == "since: 'soon' is not a time; write it like 2026-11-21T09:30:00Z, or as a time ago such as 10m"


def test_an_audit_that_is_too_long_to_be_searched_says_how_far_it_was(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served.client() as admin, served.client("alice") as alice:
        for _ in range(8):
            assert alice.post(f"{V1}/org-unit/projects", json={"name": "hers"}).status_code == 403
        monkeypatch.setattr(operation_log, "MOST_SEARCHED", 3)
        monkeypatch.setattr(operation_log, "AUDIT_AT_ONCE", 2)
        told = admin.get(f"{V1}/audit", params={"actor": "alice", "outcome": "refused"}).json()
        assert len(told["records"]) == 3
        assert told["searchedBackTo"] is not None
        assert len(audited(admin, actor="alice", outcome="refused", limit=3)) == 3, "all that was asked for is there"
