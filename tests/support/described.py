"""Requests made from the served OpenAPI document, good and bad, and what must hold of every answer: never a 5xx, and
always what the document says (log.md section 6.8).
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final

import schemathesis
from hypothesis import HealthCheck, Phase, assume, settings
from schemathesis.checks import CHECKS
from schemathesis.config import SchemathesisConfig
from schemathesis.core.result import Ok
from schemathesis.generation.hypothesis.builder import HypothesisTestConfig, HypothesisTestMode, create_test
from schemathesis.schemas import BaseSchema

from services.api.application import OPERATIONS
from services.api.body import MAX_BODY_BYTES
from services.api.openapi import document
from tests.support.api import Served
from tests.support.operations import OPERATION_IDS
from tests.support.sample import some_of

CHECKED: Final = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "ignored_auth",
]


def described(of: Sequence[str] = OPERATION_IDS, *, edges: bool, one_in: int = 1) -> BaseSchema:
    """The document.

    Args:
        of: with these operations.
        edges: also ask systematically for what lies at and beyond the edge of every field, some hundred requests for
            each operation. Making these takes a second for each.
        one_in: of how many operations there is one, in a short form.
    """
    return _whole(edges=edges).include(operation_id=some_of(of, one_in))


def made_for(of: Sequence[str], asked: Callable[[Any], None]) -> Iterator[tuple[str, Callable[[], None]]]:
    """For each of these operations the test that `parametrize` makes, when it is its turn: to make those of all takes
    seconds, and each process of a run would do so when it collects tests.
    """
    schema = described(of, edges=False)
    modes = [HypothesisTestMode.EXAMPLES, HypothesisTestMode.FUZZING]
    config = HypothesisTestConfig(project=schema.config, modes=modes)
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        yield operation.label, create_test(operation=operation, test_func=asked, config=config)


@cache
def _whole(*, edges: bool) -> BaseSchema:
    config = SchemathesisConfig.from_dict({"phases": {"coverage": {"enabled": edges}}})
    return schemathesis.openapi.from_dict(_document(), config=config)


@cache
def _document() -> Any:
    return _with_null(json.loads(json.dumps(document(OPERATIONS))))


def drawn(examples: int) -> settings:
    """So many requests for each operation, the same in every run."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=tuple(HealthCheck),  # pyright: ignore[reportArgumentType] - its members, by its metaclass
    )


def ask(case: Any, served: Served) -> None:
    """Send it and check the answer."""
    # One would be listened to for ever, the others wait for what is not there: all have tests of their own.
    if case.query and str(case.query.get("follow")).lower() == "true":
        case.query["follow"] = False
    # Any request may carry headers that nobody knows: that is HTTP, and no fault of the request.
    assume("x-schemathesis-unknown-property" not in (case.headers or {}))
    # It is refused for its size, whatever is in it (tests/api/test_endpoints.py).
    assume(not isinstance(case.body, dict) or len(json.dumps(case.body)) <= MAX_BODY_BYTES)
    for where, name in ((case.query, "min_seq"), (case.headers, "X-Log-Sequence")):
        wanted = str(where.get(name)) if where else ""
        if wanted.isdigit() and int(wanted) < 2**63:
            where[name] = "0"
    if case.meta.generation.mode.is_positive:
        _aim(case, served)
    headers = {"Authorization": f"Bearer {served.token('admin')}"}
    # Those of OpenAPI are known once a document was read.
    # What is evaluated may be wrong: the answer says what is.
    evaluates = case.operation.path.endswith(":evaluate")
    checks = CHECKS.get_by_names([name for name in CHECKED if not (evaluates and name == "negative_data_rejection")])
    case.call_and_validate(base_url=served.url, headers=headers, checks=checks, timeout=60)


def _with_null(part: Any) -> Any:
    """Where a word may be null, null among the words: the contract writes it without, and means it."""
    if isinstance(part, list):
        return [_with_null(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    said = {name: _with_null(inner) for name, inner in part.items()}
    return said | {"enum": [*said["enum"], None]} if said.get("nullable") is True and "enum" in said else said


def _aim(case: Any, served: Served) -> None:
    """Let a good request name things that are there, so that it comes further than to a 404."""
    if isinstance(case.body, dict) and "clusterId" in case.body and "projectId" in case.body:
        case.body |= {"projectId": served.project, "clusterId": served.cluster}
    if case.path_parameters and "workloadId" in case.path_parameters:
        case.path_parameters["workloadId"] = _workload(served)


def _workload(served: Served) -> str:
    if "workload" not in served.made:
        with served.client() as admin:
            made = admin.post("/api/v1/workloads/trainings", json=served.training())
            served.made["workload"] = made.json()["workloadId"]
    return served.made["workload"]
