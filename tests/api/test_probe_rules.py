"""Readiness probes that are refused and that are taken (R21), and restartPolicy (S026), as tables. Pure."""

from typing import Any

import pytest

from events.project import Project
from events.workload.kinds.training import template
from events.workload.readiness import Readiness
from events.workload.spec import with_defaults
from services.api.check import FaultyCreation, check_training
from services.api.rules import check_kind, check_within

HANDLER = "spec.probes.readiness.handler"


def checked(**spec: Any) -> Any:
    return check_training({"name": "n", "projectId": "p", "clusterId": "c", "spec": {"image": "i", **spec}})


def probed(handler: Any = None, **more: Any) -> Any:
    return checked(probes={"readiness": {"handler": handler, **more}})


BAD: list[tuple[str, dict[str, Any], set[tuple[str, str | None]]]] = [
    ("no handler", {}, {(HANDLER, "required")}),
    ("a handler of nothing", {"handler": {}}, {(f"{HANDLER}.httpGet", "required")}),
    ("no port", {"handler": {"httpGet": {"path": "/a"}}}, {(f"{HANDLER}.httpGet.port", "required")}),
    ("a port beyond all", {"handler": {"httpGet": {"port": 65536}}}, {(f"{HANDLER}.httpGet.port", "max")}),
    ("a path with a query", {"handler": {"httpGet": {"port": 1, "path": "/a?b"}}}, {(f"{HANDLER}.httpGet.path", None)}),
    (
        "a path with a line's end",
        {"handler": {"httpGet": {"port": 1, "path": "/a\n"}}},
        {(f"{HANDLER}.httpGet.path", None)},
    ),
    ("a host that is none", {"handler": {"httpGet": {"port": 1, "host": "a b"}}}, {(f"{HANDLER}.httpGet.host", None)}),
    (
        "a scheme that is none",
        {"handler": {"httpGet": {"port": 1, "scheme": "FTP"}}},
        {(f"{HANDLER}.httpGet.scheme", "options")},
    ),
    (
        "a period of nothing, and a delay of years",
        {"handler": {"httpGet": {"port": 1}}, "periodSeconds": 0, "initialDelaySeconds": 10**8},
        {("spec.probes.readiness.periodSeconds", "min"), ("spec.probes.readiness.initialDelaySeconds", "max")},
    ),
]


@pytest.mark.parametrize(("probe", "issues"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_probe_that_breaks_a_rule_is_refused_with_its_field(
    probe: dict[str, Any], issues: set[tuple[str, str | None]]
) -> None:
    refused = checked(probes={"readiness": probe})
    assert isinstance(refused, FaultyCreation)
    assert {(issue.field, issue.rule) for issue in refused.issues} == issues


def test_what_is_left_out_of_a_probe_is_as_kubernetes_has_it() -> None:
    assert template(probed({"httpGet": {"port": 80}}).spec).readiness == Readiness(port=80)
    asked = {"httpGet": {"port": 443, "path": "/healthz", "scheme": "HTTPS"}}
    made = template(probed(asked, periodSeconds=5, initialDelaySeconds=0, failureThreshold=1).spec).readiness
    assert made == Readiness(port=443, path="/healthz", https=True, period_seconds=5, failures=1)
    for nothing in ({}, {"readiness": None}, None):
        assert template(checked(probes=nothing).spec).readiness is None


def test_another_host_than_the_pod_needs_a_privileged_project_and_is_none_of_this_machines() -> None:
    taken = probed({"httpGet": {"port": 80, "host": "db.example.com"}})
    (issue,) = check_within(taken, Project(name="vision"))
    assert (issue.field, issue.rule) == (f"{HANDLER}.httpGet.host", "blocked")
    assert list(check_within(taken, Project(privileged=True))) == []
    (issue,) = check_kind(taken.spec, "local")
    assert issue.field == f"{HANDLER}.httpGet.host"
    assert list(check_kind(taken.spec, "kubernetes")) == []


@pytest.mark.parametrize(
    ("given", "limit"), [({}, 6), ({"restartPolicy": "OnFailure"}, 6), ({"restartPolicy": "Never"}, 0)]
)
def test_a_restart_policy_says_whether_failed_pods_are_run_again(given: dict[str, Any], limit: int) -> None:
    """S026."""
    assert with_defaults(checked(**given).spec).backoff_limit == limit
    assert with_defaults(checked(**given, backoffLimit=0).spec).backoff_limit == 0


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"restartPolicy": "Always"}, "spec.restartPolicy"),
        ({"restartPolicy": "Sometimes"}, "spec.restartPolicy"),
        ({"restartPolicy": "Never", "backoffLimit": 3}, "spec.backoffLimit"),
    ],
)
def test_a_restart_policy_that_cannot_act_is_refused_by_name(given: dict[str, Any], field: str) -> None:
    refused = checked(**given)
    assert isinstance(refused, FaultyCreation)
    assert [issue.field for issue in refused.issues] == [field]
