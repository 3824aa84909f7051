"""What marks on a pod say of its code. Whoever may change pods of the namespace may change them."""

from typing import Any

import msgspec
import pytest

from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.code_maps import MOST_MAPS, count_of, set_of
from services.agent.backends.kubernetes.act.objects import Pod
from tests.agent.kubernetes.cases import NAMESPACE, coded, pod

DIGEST = coded().code


def marked(annotations: dict[str, str], labels: dict[str, str]) -> Pod:
    made: dict[str, Any] = pod(coded(), code_maps=3)
    made["metadata"]["annotations"] |= annotations
    made["metadata"]["labels"] |= labels
    return msgspec.convert(made, Pod)


def test_a_pods_own_marks_name_its_code() -> None:
    assert set_of(marked({}, {})) == (NAMESPACE, DIGEST)
    assert count_of(marked({}, {})) == 3


@pytest.mark.parametrize(
    "digest", ["", "x", "../../secrets/s", DIGEST[:-1], DIGEST + "\n", DIGEST.upper(), f"{DIGEST}/x"]
)
def test_what_is_no_digest_names_no_code(digest: str) -> None:
    """It becomes a part of a path."""
    assert set_of(marked({names.CODE: digest}, {})) is None


def test_what_is_no_project_has_no_code() -> None:
    """It becomes a part of a subject."""
    assert set_of(marked({}, {names.PROJECT: "a.b"})) is None


@pytest.mark.parametrize(
    ("count", "expected"), [("", 0), ("-1", 0), ("1e9", 0), ("٣", 0), ("999", MOST_MAPS), ("9" * 5000, 0)]
)
def test_a_count_is_bounded_whatever_is_written(count: str, expected: int) -> None:
    """So many requests are sent when the pod is let go."""
    assert count_of(marked({names.CODE_MAPS: count}, {})) == expected
