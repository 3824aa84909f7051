"""Requests to make workloads, drawn at random: good ones, and many that break a rule, of the fields or of a policy."""

import random
from typing import Any

import httpx

from tests.support.api import Served

TRAININGS = "/api/v1/workloads/trainings"
POLICY = "/api/v1/policies/trainings"
type Json = dict[str, Any]
LABELS = (
    {"name": "a", "value": "1"},
    {"name": "a", "exclude": True},
    {"name": "b", "value": "2"},
    {"name": ""},
    5,
    None,
)
CHOICES: dict[str, tuple[Any, ...]] = {
    "image": ("i", "i", "i", "a b", None, 5, ""),
    "category": ("", "x", "y", None),
    "priorityClass": ("low", "high", "very-low", "hig", None),
    "preemptibility": ("preemptible", "non-preemptible", None),
    "completions": (1, 2, 3, 0, -1, "1", None),
    "parallelism": (1, 2, 9, None),
    "backoffLimit": (0, 6, 101, None),
    "nodePools": ([], ["default"], ["a", "b"], None, [None]),
    "tty": (True, False, None),
    "stdin": (True, False),
    "tolerations": ([], [{"key": "k", "operator": "Exists", "effect": "Any"}], None),
    "podAffinity": (None, {"type": "Preferred", "key": "zone"}, {}),
    "security": (None, {}, {"runAsNonRoot": True}, {"runAsUid": 5}),
    "imag": ("x",),
}
COMPUTE: dict[str, tuple[Any, ...]] = {
    "gpuDevicesRequest": (0, 1, 2, 3, None),
    "gpuRequestType": ("portion", None),
    "gpuPortionRequest": (0.5, 1.5, None),
    "cpuCoreRequest": (0.5, 1, -1),
    "cpuMemoryRequest": ("256Mi", "1Gi", "1024Mi", "100Gi", "1.2.3"),
}


def drawn_spec(chance: random.Random) -> Json:
    """Few fields, so that some are good."""
    spec: Json = {"image": "i"}
    for name in chance.sample(sorted(CHOICES), chance.randint(0, 3)):
        spec[name] = chance.choice(CHOICES[name])
    if chance.random() < 0.4:
        spec["compute"] = {name: chance.choice(COMPUTE[name]) for name in chance.sample(sorted(COMPUTE), 2)}
    if chance.random() < 0.3:
        spec["labels"] = chance.sample(LABELS, chance.randint(0, 3))
    return spec


def drawn_rules(chance: random.Random) -> Json:
    """Of a policy that can be set: for some of those fields."""
    possible: Json = {
        "category": {"canEdit": False},
        "priorityClass": {"options": ["low", "high"]},
        "completions": {"min": 1, "max": 2},
        "nodePools": {"canAdd": False},
        "tolerations": {"blocked": True},
        "podAffinity": {"blocked": True},
        "security": {"locked": True},
        "labels": {"lockedItems": ["a"], "canAdd": False},
        "compute": {"cpuMemoryRequest": {"max": "1Gi"}, "gpuDevicesRequest": {"max": 1}},
        "tty": {"blocked": True},
    }
    return {name: possible[name] for name in chance.sample(sorted(possible), 4)}


POLICY_DEFAULTS: Json = {"category": "x", "labels": [{"name": "a", "value": "1"}], "nodePools": ["default"]}
"""Beside the rules above."""


def evaluated(client: httpx.Client, body: Json, path: str = TRAININGS) -> Json:
    answer = client.post(f"{path}:evaluate", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def agree(admin: httpx.Client, served: Served, chance: random.Random, *, policies: int, requests: int) -> None:
    """Evaluate finds no issue where the submission is accepted, and the very same issues where it is not."""
    accepted = 0
    try:
        for _ in range(policies):
            body = {"defaults": POLICY_DEFAULTS, "rules": drawn_rules(chance)}
            assert admin.put(POLICY, params={"scope": "tenant"}, json=body).status_code == 202
            for _ in range(requests):
                request = served.training() | {"spec": drawn_spec(chance)}
                found, answer = evaluated(admin, request), admin.post(TRAININGS, json=request)
                assert found["accepted"] == (answer.status_code == 202), (request, found["issues"], answer.text)
                assert found["issues"] == answer.json().get("complianceIssues", []), request
                accepted += found["accepted"]
                if found["accepted"]:
                    spec = answer.json()["spec"]
                    fields = {one["field"]: one["value"] for one in found["fields"]}
                    assert (fields["spec.image"], fields["spec.category"]) == (spec["image"], spec["category"])
    finally:
        admin.delete(POLICY, params={"scope": "tenant"})
    assert 0 < accepted < policies * requests, "some are good, and some are not"
