"""Rules that ask for all items at once find what is wrong with one of them, wherever it stands."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.fields.at_once import Lines, each_once
from events.labels import KEY_PATTERN, LABEL_KEY, LABEL_VALUE, VALUE_PATTERN
from services.api.check import FaultyCreation, check_training

TEXTS = st.text("aA0-._/\n é", max_size=6) | st.text("a", min_size=60, max_size=66)
OLD_KEY = re.compile(r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
OLD_VALUE = re.compile(r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?\Z")
"""As Kubernetes writes them: these go back over what they took, and take twice as long."""


@given(texts=st.lists(TEXTS, max_size=4))
def test_many_texts_match_at_once_where_each_does(texts: list[str]) -> None:
    for pattern, alone in ((KEY_PATTERN, LABEL_KEY), (VALUE_PATTERN, LABEL_VALUE)):
        assert Lines(pattern).match(texts) == all(alone.match(text) for text in texts)


@given(text=TEXTS)
def test_label_keys_and_values_are_those_of_kubernetes(text: str) -> None:
    assert bool(LABEL_KEY.match(text)) == bool(OLD_KEY.match(text))
    assert bool(LABEL_VALUE.match(text)) == bool(OLD_VALUE.match(text))


def test_names_are_each_there_once_or_not() -> None:
    assert each_once([])
    assert each_once(["a", "b"])
    assert not each_once(["a", "b", "a"])


GOOD: dict[str, Any] = {
    "labels": [{"name": f"l{at}", "value": "v"} for at in range(3)],
    "annotations": [{"name": f"l{at}", "value": "any text"} for at in range(3)],
    "environmentVariables": [{"name": f"L{at}", "value": "v"} for at in range(3)],
    "relatedUrls": [{"url": f"https://x.example/{at}", "type": "wandb"} for at in range(3)],
    "imagePullSecrets": [{"name": f"s{at}"} for at in range(3)],
    "tolerations": [{"name": f"t{at}", "key": "k", "operator": "Exists", "effect": "Any"} for at in range(3)],
    "nodePools": ["a", "b", "c"],
    "compute": {"extendedResources": [{"resource": f"e.example/x{at}", "quantity": "1"} for at in range(3)]},
}
WRONG: tuple[tuple[str, Any, str], ...] = (
    ("labels", {"name": "l0"}, "name"),
    ("labels", {"name": "-"}, "name"),
    ("labels", {"name": "a\nb"}, "name"),
    ("labels", {"name": "l", "value": "-"}, "value"),
    ("annotations", {"name": "l0"}, "name"),
    ("annotations", {"name": "a b"}, "name"),
    ("annotations", {"name": "simulation.muster.dev/requests-per-second", "value": "x"}, "value"),
    ("annotations", {"name": "l", "value": "nvapi-" + "a" * 20}, "value"),
    ("environmentVariables", {"name": "L0"}, "name"),
    ("environmentVariables", {"name": "a=b"}, "name"),
    ("environmentVariables", {"name": "a\nb"}, "name"),
    ("environmentVariables", {"name": "L", "value": "v", "secret": {"name": "a", "key": "b"}}, "secret"),
    ("environmentVariables", {"name": "L", "value": "AKIA" + "A" * 16}, "value"),
    ("environmentVariables", {"name": "L", "description": "eyJ12345678.eyJ12345678.12345678"}, "description"),
    ("relatedUrls", {"url": "ftp://x.example", "type": "wandb"}, "url"),
    ("relatedUrls", {"url": "https://a@x.example", "type": "wandb"}, "url"),
    ("relatedUrls", {"url": "https://x.example:0", "type": "wandb"}, "url"),
    ("relatedUrls", {"url": "https://x.example\nhttps://y.example", "type": "wandb"}, "url"),
    ("relatedUrls", {"url": "https://x.example/-----BEGIN PRIVATE KEY-----", "type": "wandb"}, "url"),
    ("relatedUrls", {"url": "https://x.example", "type": " "}, "type"),
    ("imagePullSecrets", {"name": "s0"}, "name"),
    ("imagePullSecrets", {"name": "S"}, "name"),
    ("imagePullSecrets", {"name": ""}, "name"),
    ("imagePullSecrets", {"name": "a\na"}, "name"),
    ("imagePullSecrets", {"name": "muster-credentials-a"}, "name"),
    ("tolerations", {"name": "t0", "key": "k", "operator": "Exists", "effect": "Any"}, "name"),
    ("tolerations", {"key": "-", "operator": "Exists", "effect": "Any"}, "key"),
    ("tolerations", {"key": "k", "operator": "Exists", "effect": "Any", "value": "v"}, "value"),
    ("tolerations", {"key": "k", "operator": "Exists"}, "effect"),
    ("tolerations", {"key": "k", "operator": "Exists", "effect": "Any", "seconds": 1}, "seconds"),
    ("tolerations", {"exclude": True, "key": "k", "operator": "Exists", "effect": "Any"}, "name"),
    ("nodePools", "a", ""),
    ("nodePools", "", ""),
    ("compute.extendedResources", {"resource": "e.example/x0", "quantity": "1"}, "resource"),
    ("compute.extendedResources", {"resource": "nvidia.com/gpu", "quantity": "1"}, "resource"),
    ("compute.extendedResources", {"resource": "cpu", "quantity": "1"}, "resource"),
    ("compute.extendedResources", {"resource": "a.kubernetes.io/b", "quantity": "1"}, "resource"),
    ("compute.extendedResources", {"resource": "a.example/b"}, "quantity"),
    ("compute.extendedResources", {"resource": "a.example/b", "quantity": "0"}, "quantity"),
    ("compute.extendedResources", {"resource": "a.example/b", "quantity": "1.5"}, "quantity"),
)


def checked(spec: dict[str, Any]) -> list[str]:
    """The fields at fault."""
    found = check_training({"name": "a", "projectId": "p", "clusterId": "c", "spec": {"image": "i"} | spec})
    return [issue.field for issue in found.issues] if isinstance(found, FaultyCreation) else []


def test_of_good_items_none_is_at_fault() -> None:
    assert checked(GOOD) == []


@pytest.mark.parametrize(("path", "item", "field"), WRONG)
def test_what_is_wrong_with_the_last_of_many_items_is_found(path: str, item: Any, field: str) -> None:
    top, _, inner = path.partition(".")
    items = [*(GOOD[top][inner] if inner else GOOD[top]), item]
    wrong = f"spec.{path}[3].{field}" if field else f"spec.{path}[3]"
    assert wrong in checked(GOOD | {top: {inner: items} if inner else items})
