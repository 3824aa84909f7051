"""Requests of any kind: `:evaluate` and submissions agree on them, and what is accepted is read as it was asked for."""

import random
import secrets
from collections.abc import Iterator
from typing import Any, cast

import httpx

from events.workload.kinds import KINDS
from tests.support.any_spec import changed, drawn_master, drawn_spec
from tests.support.api import Served

type Json = dict[str, Any]
ONE_IN = 2
"""Of the drawn specs, of which something is changed."""


def agree_on_any(admin: httpx.Client, served: Served, chance: random.Random, *, requests: int) -> None:
    """On a cluster of kind kubernetes, in a privileged project: where most fields can be asked for.

    Evaluate finds no issue where the submission is accepted, and the very same issues where it is not. Of what is
    accepted every field is read back as it was given.
    """
    place = {"projectId": served.made["other"], "clusterId": _prepared(admin, served.made["other"])}
    accepted = dict.fromkeys(KINDS, 0)
    for _ in range(requests):
        kind = chance.choice(sorted(KINDS))
        spec = drawn_spec(kind, chance)
        if chance.randrange(ONE_IN) == 0:
            spec = changed(spec, chance)
        master = drawn_master(chance) if kind == "Distributed" and chance.randrange(ONE_IN) == 0 else None
        if master is not None and chance.randrange(2 * ONE_IN) == 0:
            master = changed(master, chance)
        body = served.training() | place | {"spec": spec} | ({} if master is None else {"masterSpec": master})
        path = f"/api/v1/workloads/{KINDS[kind].collection}"
        evaluated, answer = admin.post(f"{path}:evaluate", json=body), admin.post(path, json=body)
        assert evaluated.status_code == 200, (body, evaluated.text)
        assert answer.status_code in {202, 400}, (body, answer.text)
        found, told = evaluated.json(), answer.json()
        assert found["accepted"] == (answer.status_code == 202), (body, found["issues"], answer.text)
        assert found["issues"] == told.get("complianceIssues", []), body
        if found["accepted"]:
            accepted[kind] += 1
            read = admin.get(f"{path}/{told['workloadId']}").json()
            assert read["spec"] == told["spec"], body
            assert list(_otherwise(spec, read["spec"], "spec")) == [], body
            if master is not None and not read["masterSpecSameAsWorker"]:
                assert list(_otherwise(master, read["masterSpec"], "masterSpec")) == [], body
    assert all(0 < accepted[kind] < requests for kind in KINDS), "some are good, and some are not"


def _prepared(admin: httpx.Client, project: str) -> str:
    """The id of a new cluster; the project is privileged now."""
    answer = admin.put(f"/api/v1/org-unit/projects/{project}", json={"privileged": True})
    assert answer.status_code == 202, answer.text
    body = {"name": f"any-{secrets.token_hex(4)}", "kind": "kubernetes"}
    answer = admin.post("/api/v1/clusters", json=body)
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


def _otherwise(given: Any, read: Any, path: str) -> Iterator[str]:
    """Paths of what is read otherwise than it was given. Null stands for a default, and what is excluded is not there;
    an item need not say what is nothing.
    """
    if not given and not read:
        return
    if given is None:
        return
    if isinstance(given, dict) and isinstance(read, dict):
        asked, told = cast("Json", given), cast("Json", read)
        for name, value in asked.items():
            if name != "exclude":
                yield from _otherwise(value, told.get(name), f"{path}.{name}")
    elif isinstance(given, list) and isinstance(read, list):
        items, others = cast("list[Any]", given), cast("list[Any]", read)
        kept = [one for one in items if one is not None and not (isinstance(one, dict) and one.get("exclude"))]
        if len(kept) != len(others):
            yield path
        for one, other in zip(kept, others, strict=False):
            yield from _otherwise(one, other, f"{path}[]")
    elif given != read:
        yield path
