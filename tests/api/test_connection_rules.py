"""What ports and exposed URLs may be: R11, R12, R37, S028 to S031."""

from typing import Any

import pytest

from events.workload.exposure import asked_labels, label_of, proxy_address
from events.workload.fields.connections import ExposedUrl, Port
from events.workload.spec import TrainingSpec
from services.api.check import FaultyCreation, check_training
from services.api.connection_rules import check_connections_kind, check_exposed
from services.runtime.identity.member import Member, MemberClaims

PROXY = proxy_address("https://Apps.example.com:443/")
ALICE = Member(names=("alice", "alice@example.com"), groups=("research", "ops"))


def issues(**spec: Any) -> set[tuple[str, str | None]]:
    checked = check_training({"name": "n", "projectId": "p", "clusterId": "c", "spec": {"image": "i", **spec}})
    return {(issue.field, issue.rule) for issue in checked.issues} if isinstance(checked, FaultyCreation) else set()


def port(**more: Any) -> dict[str, Any]:
    return {"container": 8888, "serviceType": "ClusterIP", **more}


@pytest.mark.parametrize(
    ("urls", "expected"),
    [
        ([{"container": 1}, {"container": 65_535}], set()),
        ([{"container": 80, "toolType": "jupyter", "toolName": "Notebook", "name": "a"}], set()),
        ([{}], {(".container", "required")}),
        ([{"container": None}], {(".container", "required")}),
        ([{"container": 0}], {(".container", "min")}),
        ([{"container": 65_536}], {(".container", "max")}),
        ([{"container": 80, "authorizedUsers": ["a"]}], set()),
        ([{"container": 80, "authorizedGroups": ["a"]}], set()),
        ([{"container": 80, "authorizedUsers": ["a"], "authorizedGroups": ["a"]}], {(".authorizedGroups", "canAdd")}),
        (
            [
                {
                    "container": 80,
                    "authorizationType": "authorizedUsers",
                    "authorizedUsers": ["a"],
                    "authorizedGroups": ["b"],
                }
            ],
            set(),
        ),
        ([{"container": 80, "authorizationType": "authenticatedUsers", "authorizedUsers": ["a"]}], set()),
        ([{"container": 80, "authorizationType": "authorizedUsers"}], {(".authorizedUsers", "required")}),
        (
            [{"container": 80, "authorizationType": "authorizedGroups", "authorizedUsers": ["a"]}],
            {(".authorizedGroups", "required")},
        ),
        ([{"container": 80, "authorizedUsers": [" "]}], {(".authorizedUsers[0]", "min")}),
        ([{"container": 80, "toolType": "x" * 64}], {(".toolType", "max")}),
        ([{"name": "a", "exclude": True}], set()),
        ([{"exclude": True}], {(".name", "required")}),
    ],
    ids=str,
)
def test_r11_a_url_names_its_port_and_at_most_one_kind_of_people(
    urls: list[dict[str, Any]], expected: set[tuple[str, str]]
) -> None:
    """S029, R11, R37."""
    assert issues(exposedUrls=urls) == {(f"spec.exposedUrls[0]{field}", rule) for field, rule in expected}


@pytest.mark.parametrize(
    ("second", "fault"),
    [
        ({"container": 81}, None),
        ({"container": 80, "url": "https://b.example.com"}, None),
        ({"container": 80}, ""),
        ({"container": 81, "name": "a"}, ".name"),
    ],
    ids=str,
)
def test_two_urls_are_of_different_places(second: dict[str, Any], fault: str | None) -> None:
    found = issues(exposedUrls=[{"container": 80, "name": "a"}, second])
    assert found == (set() if fault is None else {(f"spec.exposedUrls[1]{fault}", None)})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (port(), set()),
        (port(external=1), set()),
        (port(serviceType="LoadBalancer", external=65_535), set()),
        (port(serviceType="NodePort"), set()),
        (port(serviceType="NodePort", external=30_000), set()),
        (port(serviceType="NodePort", external=32_767), set()),
        (port(serviceType="NodePort", external=29_999), {(".external", "min")}),
        (port(serviceType="NodePort", external=32_768), {(".external", "max")}),
        (port(external=0), {(".external", "min")}),
        (port(external=65_536), {(".external", "max")}),
        ({"container": 80}, {(".serviceType", "required")}),
        ({"serviceType": "NodePort"}, {(".container", "required")}),
        ({"name": "a", "exclude": True}, set()),
        ({"exclude": True}, {(".name", "required")}),
    ],
    ids=str,
)
def test_r12_a_port_names_its_container_and_how_it_is_reached(
    given: dict[str, Any], expected: set[tuple[str, str]]
) -> None:
    """S030, S031, R12."""
    assert issues(ports=[given]) == {(f"spec.ports[0]{field}", rule) for field, rule in expected}


@pytest.mark.parametrize(
    ("second", "fault"),
    [
        (port(container=80), None),
        (port(), "container"),
        (port(container=80, external=30_001), "external"),
        (port(container=80, name="a"), "name"),
    ],
    ids=str,
)
def test_two_ports_are_different(second: dict[str, Any], fault: str | None) -> None:
    found = issues(ports=[port(serviceType="NodePort", external=30_001, name="a"), second])
    assert found == (set() if fault is None else {(f"spec.ports[1].{fault}", None)})


@pytest.mark.parametrize(
    ("url", "fits"),
    [
        ("https://tool.apps.example.com", True),
        ("https://Tool.APPS.example.com/", True),
        ("http://tool.apps.example.com", False),
        ("https://tool.apps.example.com:443", True),
        ("https://tool.apps.example.com:8443", False),
        ("https://tool.apps.example.com/path", False),
        ("https://tool.apps.example.com/?q=1", False),
        ("https://a.b.apps.example.com", False),
        ("https://apps.example.com", False),
        ("https://tool.evil.example", False),
        ("https://user:password@tool.apps.example.com", False),
        ("https://tool.apps.example.com\\@evil.example", False),
        ("https://-tool.apps.example.com", False),
        ("https://tööl.apps.example.com", False),
        ("javascript:alert(1)", False),
        ("https://[bad", False),
        ("", False),
        (f"https://{'x' * 64}.apps.example.com", False),
    ],
)
def test_s028_a_url_is_a_name_before_the_domain_of_the_proxy(url: str, fits: bool) -> None:
    given = ExposedUrl(container=80, url=url)
    found = [issue.field for issue in check_exposed(TrainingSpec(image="i", exposed_urls=(given,)), PROXY, ALICE)]
    assert found == ([] if fits else ["spec.exposedUrls[0].url"])
    if fits:
        assert asked_labels((given,)) == ("tool",)


@pytest.mark.parametrize(
    ("groups", "member", "fits"),
    [
        (("research",), ALICE, True),
        (("else", "ops"), ALICE, True),
        (("else",), ALICE, False),
        (("research",), Member(names=("account",)), False),
    ],
    ids=str,
)
def test_s028_who_submits_is_in_one_of_the_groups(groups: tuple[str, ...], member: Member, fits: bool) -> None:
    spec = TrainingSpec(image="i", exposed_urls=(ExposedUrl(container=80, authorized_groups=groups),))
    found = list(check_exposed(spec, PROXY, member))
    assert [issue.field for issue in found] == ([] if fits else ["spec.exposedUrls[0].authorizedGroups"])
    if not fits:
        assert ("research" in found[0].details) is bool(member.groups)


def test_without_a_proxy_no_url_can_be_exposed() -> None:
    (issue,) = check_exposed(TrainingSpec(image="i", exposed_urls=(ExposedUrl(container=80),)), None, ALICE)
    assert "MUSTER_PROXY_URL" in issue.details


@pytest.mark.parametrize(
    ("claims", "member"),
    [
        ({}, Member(names=("s",))),
        ({"email": "a@b.c", "groups": ["x", 1, " y ", ""]}, Member(names=("s", "a@b.c"), groups=("x", "y"))),
        ({"email": "a@b.c", "email_verified": False, "groups": "x, y"}, Member(names=("s",), groups=("x", "y"))),
        ({"email": "a@b.c", "email_verified": "true"}, Member(names=("s",))),
        ({"email": 5, "groups": {"x": 1}}, Member(names=("s",))),
    ],
    ids=str,
)
def test_s028_names_and_groups_come_from_the_claims_of_the_token(claims: dict[str, Any], member: Member) -> None:
    assert MemberClaims().read({"sub": "s", **claims}) == member


def test_the_names_of_claims_are_settings() -> None:
    read = MemberClaims(name="upn", groups="roles").read({"sub": "s", "upn": "u", "roles": ["r"], "groups": ["g"]})
    assert read == Member(names=("s", "u"), groups=("r",))


@pytest.mark.parametrize(
    ("spec", "kind", "fields"),
    [
        ({"ports": (Port(container=1, service_type="LoadBalancer"),)}, "local", {"spec.ports[0].serviceType"}),
        ({"ports": (Port(container=1, service_type="LoadBalancer"),)}, "kubernetes", set()),
        ({"ports": (Port(container=1, service_type="LoadBalancer"),)}, "simulated", set()),
        ({"ports": (Port(container=1, service_type="ClusterIP", external=80),)}, "local", set()),
    ],
    ids=str,
)
def test_what_a_kind_of_cluster_has_not_is_refused(spec: dict[str, Any], kind: Any, fields: set[str]) -> None:
    assert {issue.field for issue in check_connections_kind(TrainingSpec(image="i", **spec), kind)} == fields


def test_a_generated_name_fits_a_domain_whatever_the_workload_is_called() -> None:
    for name in ("a", "Größe & Co", "-" * 60, "x" * 253, "日本", "a.b_c"):
        label = label_of(ExposedUrl(container=65_535), name, "01234567-89ab-cdef-0123-456789abcdef")
        assert PROXY is not None
        assert PROXY.label(PROXY.url(label)) == label
        assert label.endswith("65535-0123456789ab")
