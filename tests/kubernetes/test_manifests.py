"""A real API server takes every manifest as it stands, and refuses in the words by which refusals are known."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from development.kubernetes.control_plane import ControlPlane
from development.kubernetes.simulated.admin import AdminError
from events.cluster_protocol import RunPod
from events.quantities import QuantityError, parse_quantity
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.manifests import Manifest
from services.agent.backends.kubernetes.act.security import Security
from services.agent.backends.kubernetes.read.observe import creation_refused
from tests.agent.kubernetes.cases import (
    CASES,
    HOST,
    NAMESPACE,
    OF_NODES,
    RELAXED,
    STRICT,
    SYSTEM,
    full,
    golden,
    pod,
    run,
)

pytestmark = pytest.mark.kubernetes

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PATHS = {
    "Namespace": "namespaces",
    "PersistentVolume": "persistentvolumes",
    "Pod": "pods",
    "Secret": "secrets",
    "Service": "services",
    "ConfigMap": "configmaps",
    "PersistentVolumeClaim": "persistentvolumeclaims",
}
LIMITED = "muster-golden-limited"


@pytest.fixture(scope="module")
def spaces(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    relaxed = golden("namespace")
    relaxed["metadata"]["name"] = RELAXED
    relaxed["metadata"]["labels"][names.ENFORCE] = "privileged"
    strict = golden("namespace")
    strict["metadata"]["name"] = STRICT
    strict["metadata"]["labels"][names.ENFORCE] = "restricted"
    limited = golden("namespace")
    limited["metadata"]["name"] = LIMITED
    control_plane.apply(
        [golden("namespace"), relaxed, strict, limited, {**golden("namespace"), "metadata": {"name": SYSTEM}}]
    )
    yield control_plane
    for name in (NAMESPACE, RELAXED, STRICT, LIMITED, SYSTEM):
        control_plane.admin("DELETE", f"/api/v1/namespaces/{name}")


def create(control_plane: ControlPlane, made: Manifest) -> Manifest:
    """What the server would keep, where it takes it; an unknown or misspelt field is an error."""
    space = made["metadata"].get("namespace")
    path = f"/api/v1/namespaces/{space}/{PATHS[made['kind']]}" if space else f"/api/v1/{PATHS[made['kind']]}"
    return control_plane.admin("POST", path, made, dryRun="All", fieldValidation="Strict")


def assert_kept(sent: Any, kept: Any, path: str = "") -> None:
    """The server may add to what it was sent, and drops and changes nothing."""
    match sent:
        case dict():
            for key, value in sent.items():
                # An empty text is the same as none to the server.
                assert key in kept or value == "", f"{path}.{key} was dropped"
                assert_kept(value, kept.get(key, ""), f"{path}.{key}")
        case list():
            assert len(kept) >= len(sent), path
            for number, (value, other) in enumerate(zip(sent, kept, strict=False)):
                assert_kept(value, other, f"{path}[{number}]")
        case _:
            assert kept == sent or same_quantity(sent, kept), path


def same_quantity(sent: Any, kept: Any) -> bool:
    """The server writes bytes in the largest unit that fits."""
    try:
        return parse_quantity(sent) == parse_quantity(kept)
    except (QuantityError, TypeError):
        return False


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"namespace"}))
def test_every_golden_is_taken_as_it_stands(spaces: ControlPlane, name: str) -> None:
    assert_kept(golden(name), create(spaces, golden(name)))


def test_the_namespace_is_taken_as_it_stands(control_plane: ControlPlane) -> None:
    made = golden("namespace")
    made["metadata"]["name"] = "muster-not-yet-there"
    assert_kept(made, create(control_plane, made))


def refusal(
    control_plane: ControlPlane, made: RunPod, *, namespace: str = NAMESPACE, security: Security = "baseline"
) -> tuple[tuple[str, str] | None, str]:
    """What is made of the server's refusal, kind and reason, and its words."""
    with pytest.raises(AdminError) as error:
        create(control_plane, pod(made, namespace=namespace, security=security))
    body = error.value.body
    assert isinstance(body, dict)
    seen = creation_refused(made, namespace=namespace, status=error.value.status, message=body["message"], at=NOW)
    return (None if seen is None else (seen.kind, seen.reason)), body["message"] if seen is None else seen.message


def test_a_pod_that_pod_security_forbids_is_a_failed_run(spaces: ControlPlane) -> None:
    found, message = refusal(spaces, run(), namespace=STRICT, security="baseline")
    assert found == ("failed", "invalid_pod"), message
    assert f"namespace {STRICT} {names.ENFORCE}=baseline" in message


@pytest.mark.parametrize(
    "wrong",
    [
        {"image": ""},
        {"image": " spaces "},
        {"cpu_milli": 2000, "cpu_limit_milli": 1000},
        {"environment": {"a=b": "c"}},
    ],
)
def test_a_pod_that_kubernetes_does_not_know_is_a_failed_run(spaces: ControlPlane, wrong: dict[str, Any]) -> None:
    found, message = refusal(spaces, run(**wrong))
    assert found == ("failed", "invalid_pod"), message


def test_what_baseline_forbids_is_refused_where_the_namespace_keeps_to_it(spaces: ControlPlane) -> None:
    """S059: the project's setting loosens no namespace."""
    made = run(volumes=OF_NODES, container=HOST)
    found, message = refusal(spaces, made)
    assert found == ("failed", "invalid_pod"), message
    assert f"namespace {NAMESPACE} {names.ENFORCE}=privileged" in message


def test_a_namespace_that_is_missing_is_no_fault_of_the_run(spaces: ControlPlane) -> None:
    assert refusal(spaces, run(), namespace="muster-nobody-made-it")[0] is None


def test_limits_and_quotas_of_the_namespace_are_told_in_words(spaces: ControlPlane) -> None:
    limits = {"limits": [{"type": "Container", "max": {"memory": "1Gi"}}]}
    spaces.admin("POST", f"/api/v1/namespaces/{LIMITED}/limitranges", {"metadata": {"name": "l"}, "spec": limits})
    found, message = refusal(spaces, full(), namespace=LIMITED)
    assert found == ("failed", "invalid_pod"), message
    spaces.admin("DELETE", f"/api/v1/namespaces/{LIMITED}/limitranges/l")

    # What is used is written here, as the controller would after a while: admission goes by it.
    quotas = f"/api/v1/namespaces/{LIMITED}/resourcequotas"
    hard = {"pods": "0"}
    spaces.admin("POST", quotas, {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    spaces.admin("PATCH", f"{quotas}/q/status", {"status": {"hard": hard, "used": {"pods": "0"}}})
    found, message = refusal(spaces, run(), namespace=LIMITED)
    assert found == ("refused", "quota_of_namespace"), message
    spaces.admin("DELETE", f"{quotas}/q")
