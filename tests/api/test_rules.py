"""Bad submissions and everything that is said about them, as a table. Pure: no server."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.cluster import Cluster, NodePool
from events.project import Project
from events.quantities import MAX_QUANTITY
from events.workload.fields.process import ConfigMapKey, EnvironmentVariable, PodFieldReference, SecretKey
from events.workload.kinds.training import template
from events.workload.spec import TrainingSpec, pod_request, with_defaults
from services.api.check import FaultyCreation, check_training
from services.api.issues import MAX_ISSUES
from services.api.rules import check_cluster, check_kind, check_within

JWT = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJlLW9mLWl0"


def request(**spec: Any) -> dict[str, Any]:
    return {"name": "n", "projectId": "p", "clusterId": "c", "spec": {"image": "python:3.13", **spec}}


def found(data: dict[str, Any]) -> set[tuple[str, str | None]]:
    checked = check_training(copy.deepcopy(data))
    assert isinstance(checked, FaultyCreation), f"taken: {checked}"
    return {(issue.field, issue.rule) for issue in checked.issues}


COMPUTE = "spec.compute"
BAD_COMPUTE: list[tuple[str, dict[str, Any], set[tuple[str, str | None]]]] = [
    ("R1 portion missing", {"gpuRequestType": "portion"}, {(f"{COMPUTE}.gpuPortionRequest", "required")}),
    ("R1 portion without type", {"gpuPortionRequest": 0.5}, {(f"{COMPUTE}.gpuPortionRequest", "canAdd")}),
    (
        "R1 portion with type memory",
        {"gpuRequestType": "memory", "gpuMemoryRequest": "1Gi", "gpuPortionRequest": 0.5},
        {(f"{COMPUTE}.gpuPortionRequest", "canAdd")},
    ),
    ("R2 memory missing", {"gpuRequestType": "memory"}, {(f"{COMPUTE}.gpuMemoryRequest", "required")}),
    ("R2 memory without type", {"gpuMemoryRequest": "1Gi"}, {(f"{COMPUTE}.gpuMemoryRequest", "canAdd")}),
    (
        "R3 portion above one",
        {"gpuRequestType": "portion", "gpuPortionRequest": 1.5},
        {(f"{COMPUTE}.gpuPortionRequest", "max")},
    ),
    (
        "R3 portion of nothing",
        {"gpuRequestType": "portion", "gpuPortionRequest": 0},
        {(f"{COMPUTE}.gpuPortionRequest", "min")},
    ),
    (
        "R4 limit below request",
        {"gpuRequestType": "portion", "gpuPortionRequest": 0.5, "gpuPortionLimit": 0.4},
        {(f"{COMPUTE}.gpuPortionLimit", "min")},
    ),
    (
        "R5 limit below request, as quantities and not as texts",
        {"gpuRequestType": "memory", "gpuMemoryRequest": "10Gi", "gpuMemoryLimit": "9Gi"},
        {(f"{COMPUTE}.gpuMemoryLimit", "min")},
    ),
    (
        "R6 C4 memory of two devices",
        {"gpuDevicesRequest": 2, "gpuRequestType": "memory", "gpuMemoryRequest": "1Gi"},
        {(f"{COMPUTE}.gpuRequestType", "options")},
    ),
    (
        "zero devices with a type",
        {"gpuDevicesRequest": 0, "gpuRequestType": "portion", "gpuPortionRequest": 0.5},
        {(f"{COMPUTE}.gpuDevicesRequest", "min")},
    ),
    ("negative devices", {"gpuDevicesRequest": -1}, {(f"{COMPUTE}.gpuDevicesRequest", "min")}),
    ("devices beyond int32", {"gpuDevicesRequest": 2**31}, {(f"{COMPUTE}.gpuDevicesRequest", "max")}),
    ("unknown type", {"gpuRequestType": "mig"}, {(f"{COMPUTE}.gpuRequestType", "options")}),
    ("S035 CPU below zero", {"cpuCoreRequest": -0.1}, {(f"{COMPUTE}.cpuCoreRequest", "min")}),
    ("CPU beyond all machines", {"cpuCoreRequest": 1e300}, {(f"{COMPUTE}.cpuCoreRequest", "max")}),
    ("CPU limit below request", {"cpuCoreRequest": 2, "cpuCoreLimit": 1}, {(f"{COMPUTE}.cpuCoreLimit", "min")}),
    ("C9 not a quantity", {"cpuMemoryRequest": "1.2.3"}, {(f"{COMPUTE}.cpuMemoryRequest", None)}),
    ("C9 a unit with B", {"cpuMemoryRequest": "1GB"}, {(f"{COMPUTE}.cpuMemoryRequest", None)}),
    (
        "memory limit below request",
        {"cpuMemoryRequest": "1Gi", "cpuMemoryLimit": "1G"},
        {(f"{COMPUTE}.cpuMemoryLimit", "min")},
    ),
    ("memory of a wrong type", {"cpuMemoryRequest": 5}, {(f"{COMPUTE}.cpuMemoryRequest", None)}),
]


@pytest.mark.parametrize(
    ("compute", "issues"), [case[1:] for case in BAD_COMPUTE], ids=[case[0] for case in BAD_COMPUTE]
)
def test_a_compute_request_that_breaks_a_rule_is_refused_with_its_field(
    compute: dict[str, Any], issues: set[tuple[str, str | None]]
) -> None:
    assert found(request(compute=compute)) == issues


NOT_BUILT: dict[str, Any] = {"path": "/a", "claimInfo": {"size": "1Gi"}, "dataSharing": True}
BAD_SPECS: list[tuple[str, dict[str, Any], set[tuple[str, str | None]]]] = [
    ("R7 no image", {"image": None}, {("spec.image", "required")}),
    ("an image with a space", {"image": "a b"}, {("spec.image", None)}),
    ("S016 too long", {"image": "x" * 254}, {("spec.image", "max")}),
    ("S019 a quote that does not close", {"command": "echo 'a"}, {("spec.command", None)}),
    ("S019 empty", {"args": ""}, {("spec.args", "min")}),
    ("R18 no such class", {"priorityClass": "urgent"}, {("spec.priorityClass", "options")}),
    ("R19 no such word", {"preemptibility": "no"}, {("spec.preemptibility", "options")}),
    (
        "R25 more at a time than runs",
        {"completions": 2, "parallelism": 3},
        {("spec.parallelism", "max")},
    ),
    ("R25 parallelism above the default of one run", {"parallelism": 2}, {("spec.parallelism", "max")}),
    (
        "sweep: a name that no variable has, one that is a variable already, and one twice",
        {
            "environmentVariables": [{"name": "seed", "value": "1"}],
            "sweep": {"parameters": [{"name": n, "values": ["1"]} for n in ("a=b", "seed", "lr", "lr")]},
        },
        {(f"spec.sweep.parameters[{n}].name", None) for n in (0, 1, 3)},
    ),
    (
        "sweep: rows that do not match",
        {
            "sweep": {
                "parameters": [{"name": "a", "values": ["1", "2"]}, {"name": "b", "values": ["1"]}],
                "combine": "Rows",
            }
        },
        {("spec.sweep.parameters", None)},
    ),
    (
        "sweep: more runs than are possible",
        {"sweep": {"parameters": [{"name": n, "values": ["1"] * 101} for n in ("a", "b")]}},
        {("spec.sweep.parameters", "max")},
    ),
    (
        "sweep: another number of runs",
        {"completions": 3, "sweep": {"parameters": [{"name": "a", "values": ["1", "2"]}]}},
        {("spec.completions", None)},
    ),
    (
        "sweep: another number of runs, which is what nothing says, too",
        {"completions": 1, "sweep": {"parameters": [{"name": "a", "values": ["1", "2"]}]}},
        {("spec.completions", None)},
    ),
    (
        "sweep: more at a time than it has runs",
        {"parallelism": 3, "sweep": {"parameters": [{"name": "a", "values": ["1", "2"]}]}},
        {("spec.parallelism", "max")},
    ),
    (
        "sweep: no values, and a combination that there is not",
        {"sweep": {"parameters": [{"name": "a", "values": []}], "combine": "Random"}},
        {("spec.sweep.parameters[0].values", "min"), ("spec.sweep.combine", "options")},
    ),
    (
        "sweep: a secret among its values",
        {"sweep": {"parameters": [{"name": "a", "values": ["1", "AKIA" + "A" * 16]}]}},
        {("spec.sweep.parameters[0].values[1]", None)},
    ),
    ("R25 no runs", {"completions": 0}, {("spec.completions", "min")}),
    ("R25 parallelism of none", {"parallelism": 0}, {("spec.parallelism", "min")}),
    ("C1 above 100", {"backoffLimit": 101}, {("spec.backoffLimit", "max")}),
    ("C1 below 0", {"backoffLimit": -1}, {("spec.backoffLimit", "min")}),
    ("a number beyond 64 bits", {"backoffLimit": 2**63}, {("spec.backoffLimit", "max")}),
    ("a whole number as a text", {"backoffLimit": "3"}, {("spec.backoffLimit", None)}),
    ("true is no number", {"backoffLimit": True}, {("spec.backoffLimit", None)}),
    ("C2 negative", {"terminationGracePeriodSeconds": -1}, {("spec.terminationGracePeriodSeconds", "min")}),
    (
        "C2 longer than others can wait for the place",
        {"terminationGracePeriodSeconds": 3_601},
        {("spec.terminationGracePeriodSeconds", "max")},
    ),
    (
        "R27 C3 negative",
        {"autoDeletionTimeAfterCompletionSeconds": -1},
        {("spec.autoDeletionTimeAfterCompletionSeconds", "min")},
    ),
    ("R36 label without name", {"labels": [{"value": "x"}]}, {("spec.labels[0].name", "required")}),
    ("R36 annotation without name", {"annotations": [{}]}, {("spec.annotations[0].name", "required")}),
    ("a label that Kubernetes has not", {"labels": [{"name": "a b"}]}, {("spec.labels[0].name", None)}),
    ("a label's name with a line's end", {"labels": [{"name": "a\n"}]}, {("spec.labels[0].name", None)}),
    (
        "a label's value with a line's end",
        {"labels": [{"name": "a", "value": "b\n"}]},
        {("spec.labels[0].value", None)},
    ),
    ("a label twice", {"labels": [{"name": "a"}, {"name": "a"}]}, {("spec.labels[1].name", None)}),
    ("a label's value", {"labels": [{"name": "a", "value": "b c"}]}, {("spec.labels[0].value", None)}),
    ("S074 too many", {"labels": [{"name": f"l{n}"} for n in range(1001)]}, {("spec.labels", "max")}),
    (
        "R8 variable without name",
        {"environmentVariables": [{"value": "x"}]},
        {("spec.environmentVariables[0].name", "required")},
    ),
    ("a variable's name", {"environmentVariables": [{"name": "A=B"}]}, {("spec.environmentVariables[0].name", None)}),
    (
        "a variable's name with a line's end",
        {"environmentVariables": [{"name": "A\n"}]},
        {("spec.environmentVariables[0].name", None)},
    ),
    (
        "R9 a credential without its key, beside a value (R8)",
        {"environmentVariables": [{"name": "A", "userCredential": {"name": "s"}, "value": "v"}]},
        {
            ("spec.environmentVariables[0].userCredential.key", "required"),
            ("spec.environmentVariables[0].userCredential", "canAdd"),
        },
    ),
    (
        "R8 two sources",
        {"environmentVariables": [{"name": "A", "value": "", "secret": {"name": "s", "key": "k"}}]},
        {("spec.environmentVariables[0].secret", "canAdd")},
    ),
    (
        "R8 three sources",
        {
            "environmentVariables": [
                {
                    "name": "A",
                    "secret": {"name": "s", "key": "k"},
                    "configMap": {"name": "s", "key": "k"},
                    "podFieldRef": {"path": "status.podIP"},
                }
            ]
        },
        {
            ("spec.environmentVariables[0].configMap", "canAdd"),
            ("spec.environmentVariables[0].podFieldRef", "canAdd"),
        },
    ),
    (
        "R9 neither name nor key",
        {"environmentVariables": [{"name": "A", "secret": {}}, {"name": "B", "configMap": {"name": "c"}}]},
        {
            ("spec.environmentVariables[0].secret.name", "required"),
            ("spec.environmentVariables[0].secret.key", "required"),
            ("spec.environmentVariables[1].configMap.key", "required"),
        },
    ),
    (
        "R9 no path",
        {"environmentVariables": [{"name": "A", "podFieldRef": {}}]},
        {("spec.environmentVariables[0].podFieldRef.path", "required")},
    ),
    (
        "S020 a name that no Secret has",
        {"environmentVariables": [{"name": "A", "secret": {"name": "Not One", "key": "k"}}]},
        {("spec.environmentVariables[0].secret.name", None)},
    ),
    (
        "a key that no ConfigMap has",
        {"environmentVariables": [{"name": "A", "configMap": {"name": "c", "key": "a/b"}}]},
        {("spec.environmentVariables[0].configMap.key", None)},
    ),
    (
        "S020 a field that Kubernetes does not give",
        {"environmentVariables": [{"name": "A", "podFieldRef": {"path": "spec.containers"}}]},
        {("spec.environmentVariables[0].podFieldRef.path", "options")},
    ),
    (
        "S020 a label's key that is none",
        {"environmentVariables": [{"name": "A", "podFieldRef": {"path": "metadata.labels['a b']"}}]},
        {("spec.environmentVariables[0].podFieldRef.path", None)},
    ),
    ("S025 a folder of nowhere", {"workingDir": "work"}, {("spec.workingDir", None)}),
    ("S025 a folder that a shell would know", {"workingDir": "~/work"}, {("spec.workingDir", None)}),
    (
        "S025 a folder beside code, which is one itself",
        {"workingDir": "/work", "code": "a" * 64},
        {("spec.workingDir", "canAdd")},
    ),
    ("S039 a pool twice", {"nodePools": ["a", "a"]}, {("spec.nodePools[1]", None)}),
    ("a pool of a wrong type", {"nodePools": [1]}, {("spec.nodePools[0]", None)}),
    ("a category that no index holds", {"category": "x" * 254}, {("spec.category", "max")}),
    ("not built", {"storage": {"pvc": [NOT_BUILT]}}, {("spec.storage.pvc[0].dataSharing", None)}),
    (
        "S023 a capability of nobody",
        {"security": {"capabilities": ["ALL"]}},
        {("spec.security.capabilities[0]", "options")},
    ),
    (
        "S023 a capability twice",
        {"security": {"capabilities": ["KILL", "KILL"]}},
        {("spec.security.capabilities[1]", None)},
    ),
    ("R20", {"tty": True}, {("spec.tty", "canAdd")}),
    ("R20 said", {"tty": True, "stdin": False}, {("spec.tty", "canAdd")}),
    (
        "R22",
        {"security": {"runAsUid": 1000, "runAsGid": 0, "supplementalGroups": "1,2"}},
        {(f"spec.security.{name}", "canAdd") for name in ("runAsUid", "runAsGid", "supplementalGroups")},
    ),
    ("R22 no user", {"security": {"uidGidSource": "custom", "runAsUid": -1}}, {("spec.security.runAsUid", "min")}),
    ("R22 no group", {"security": {"uidGidSource": "custom", "runAsGid": 2**31}}, {("spec.security.runAsGid", "max")}),
    (
        "R22 no groups",
        {"security": {"uidGidSource": "custom", "supplementalGroups": "1, wheel"}},
        {("spec.security.supplementalGroups", None)},
    ),
    (
        "R22 a group beyond all",
        {"security": {"uidGidSource": "custom", "supplementalGroups": "2147483648"}},
        {("spec.security.supplementalGroups", None)},
    ),
    (
        "R22 very many groups",
        {"security": {"uidGidSource": "custom", "supplementalGroups": "1," * 600 + "1"}},
        {("spec.security.supplementalGroups", "max")},
    ),
    (
        "R23",
        {"security": {"uidGidSource": "fromIdpToken", "runAsUid": 1000}},
        {("spec.security.runAsUid", "canAdd")},
    ),
    ("R24", {"security": {"seccompProfileType": "Localhost"}}, {("spec.security.seccompProfileType", "options")}),
    (
        "S023 root that is not",
        {"security": {"uidGidSource": "custom", "runAsUid": 0, "runAsNonRoot": True}},
        {("spec.security.runAsUid", "min")},
    ),
    ("S018 twice", {"imagePullSecrets": [{"name": "a"}, {"name": "a"}]}, {("spec.imagePullSecrets[1].name", None)}),
    (
        "S018 no name",
        {"imagePullSecrets": [{"name": "A_b"}, {"name": None}, {}]},
        {
            ("spec.imagePullSecrets[0].name", None),
            ("spec.imagePullSecrets[1].name", "required"),
            ("spec.imagePullSecrets[2].name", "required"),
        },
    ),
    (
        "R10 another's values",
        {
            "imagePullSecrets": [{"name": "muster-credentials-a"}],
            "environmentVariables": [{"name": "A", "secret": {"name": "muster-credentials-a", "key": "k"}}],
            "storage": {"secretVolume": [{"secret": "muster-credentials-a", "mountPath": "/a"}]},
        },
        {
            ("spec.imagePullSecrets[0].name", "options"),
            ("spec.environmentVariables[0].secret.name", "options"),
            ("spec.storage.secretVolume[0].secret", "options"),
        },
    ),
    (
        "S025 two homes",
        {"createHomeDir": True, "environmentVariables": [{"name": "HOME", "value": "/x"}]},
        {("spec.createHomeDir", "canAdd")},
    ),
    (
        "R13",
        {"relatedUrls": [{"url": "https://a.example"}, {"type": "wandb"}]},
        {("spec.relatedUrls[0].type", "required"), ("spec.relatedUrls[1].url", "required")},
    ),
    (
        "R13 no address",
        {
            "relatedUrls": [
                {"url": url, "type": "x"}
                for url in (
                    "a.example",
                    "javascript:alert(1)",
                    "https://",
                    "https://a.example:99999",
                    "https://a b",
                    "http://[x",
                    "https://ann:secret@a.example/",
                    "https://evil.example\\@a.example/",
                )
            ]
        },
        {(f"spec.relatedUrls[{index}].url", None) for index in range(8)},
    ),
    (
        "S032 R37 a name twice, and what shall be left out without its name",
        {
            "relatedUrls": [
                {"url": "https://a.example", "type": "wandb", "name": "a"},
                {"url": "https://b.example", "type": "wandb", "name": "a"},
                {"url": "https://b.example", "type": "wandb"},
                {"exclude": True},
            ]
        },
        {("spec.relatedUrls[1].name", None), ("spec.relatedUrls[3].name", "required")},
    ),
    (
        "S032 an address that is too long",
        {"relatedUrls": [{"url": "https://a.example/" + "a" * 2048, "type": "x"}]},
        {("spec.relatedUrls[0].url", "max")},
    ),
    (
        "S032 a type that is too long",
        {"relatedUrls": [{"url": "https://a.example", "type": "x" * 64}]},
        {("spec.relatedUrls[0].type", "max")},
    ),
    ("not built, deep", {"storage": {"pvc": [None, NOT_BUILT]}}, {("spec.storage.pvc[1].dataSharing", None)}),
    ("unknown", {"imagee": "x"}, {("spec.imagee", None)}),
    ("no object", {"compute": 5}, {("spec.compute", None)}),
]


@pytest.mark.parametrize(("spec", "issues"), [case[1:] for case in BAD_SPECS], ids=[case[0] for case in BAD_SPECS])
def test_a_spec_that_breaks_a_rule_is_refused_with_its_field(
    spec: dict[str, Any], issues: set[tuple[str, str | None]]
) -> None:
    assert found(request(**spec)) == issues


@pytest.mark.parametrize(
    "value",
    [JWT, "-----BEGIN RSA PRIVATE KEY-----\nMIIE", "AKIAIOSFODNN7EXAMPLE", "nvapi-" + "a" * 40],
    ids=["JWT", "PEM", "AKIA", "nvapi"],
)
def test_a_value_that_looks_like_a_secret_is_refused_without_being_repeated(value: str) -> None:
    """log.md section 6.6."""
    checked = check_training(request(environmentVariables=[{"name": "TOKEN", "value": value}]))
    assert isinstance(checked, FaultyCreation)
    (issue,) = checked.issues
    assert issue.field == "spec.environmentVariables[0].value"
    assert "credential" in issue.details
    assert value not in issue.details


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"command": f"train --token {JWT}"}, "spec.command"),
        ({"args": f"--token={JWT}"}, "spec.args"),
        ({"workingDir": f"/{JWT}"}, "spec.workingDir"),
        ({"category": JWT}, "spec.category"),
        ({"annotations": [{"name": "a", "value": JWT}]}, "spec.annotations[0].value"),
        (
            {"environmentVariables": [{"name": "A", "description": JWT}]},
            "spec.environmentVariables[0].description",
        ),
        (
            {"environmentVariables": [{"name": "A", "secret": {"name": "s", "key": "AKIAIOSFODNN7EXAMPLE"}}]},
            "spec.environmentVariables[0].secret.key",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_secret_is_refused_wherever_people_may_put_one(spec: dict[str, Any], field: str) -> None:
    """log.md section 6.6: the log keeps an argument as long as it keeps a variable."""
    assert found(request(**spec)) == {(field, None)}


SOURCES: list[tuple[dict[str, Any], EnvironmentVariable]] = [
    (
        {"secret": {"name": "wandb", "key": "api.token"}},
        EnvironmentVariable(name="A", secret=SecretKey(name="wandb", key="api.token")),
    ),
    (
        {"configMap": {"name": "settings", "key": "rate"}, "value": None},
        EnvironmentVariable(name="A", config_map=ConfigMapKey(name="settings", key="rate")),
    ),
    *(
        ({"podFieldRef": {"path": path}}, EnvironmentVariable(name="A", pod_field_ref=PodFieldReference(path=path)))
        for path in ("metadata.uid", "spec.nodeName", "status.podIPs", "metadata.annotations['example.com/team']")
    ),
]


@pytest.mark.parametrize(("source", "stored"), SOURCES, ids=[next(iter(source)) for source, _ in SOURCES])
def test_a_variable_takes_its_value_from_where_only_the_cluster_can_read(
    source: dict[str, Any], stored: EnvironmentVariable
) -> None:
    """S020, R8, R9."""
    checked = check_training(request(environmentVariables=[{"name": "A", **source}]))
    assert not isinstance(checked, FaultyCreation)
    assert checked.spec.environment_variables == (stored,)
    assert list(check_kind(checked.spec, "kubernetes")) == []
    for kind in ("local", "simulated"):
        (issue,) = check_kind(checked.spec, kind)
        assert (issue.field, issue.rule) == (f"spec.environmentVariables[0].{next(iter(source))}", "canAdd")


OF_CONTAINERS: dict[str, dict[str, Any]] = {
    "imagePullPolicy": {"imagePullPolicy": "Always"},
    "imagePullSecrets": {"imagePullSecrets": [{"name": "registry"}]},
    "stdin": {"stdin": True},
    "security": {"security": {"uidGidSource": "custom", "runAsUid": 1000, "capabilities": ["CHOWN"]}},
}


@pytest.mark.parametrize("field", OF_CONTAINERS)
def test_what_is_said_of_a_container_is_for_clusters_that_run_images(field: str) -> None:
    """S017, S018, S023, S024."""
    checked = check_training(request(**OF_CONTAINERS[field]))
    assert not isinstance(checked, FaultyCreation)
    assert list(check_kind(checked.spec, "kubernetes")) == []
    for kind in ("local", "simulated"):
        (issue,) = check_kind(checked.spec, kind)
        assert (issue.field, issue.rule) == (f"spec.{field}", "canAdd")


def test_what_asks_for_nothing_of_a_container_is_taken_everywhere() -> None:
    nothing = {"imagePullSecrets": [], "stdin": False, "tty": False, "security": {"runAsUid": None, "capabilities": []}}
    checked = check_training(request(**nothing, createHomeDir=True, compute={"largeShmRequest": True}))
    assert not isinstance(checked, FaultyCreation)
    for kind in ("local", "simulated", "kubernetes"):
        assert list(check_kind(checked.spec, kind)) == []


@pytest.mark.parametrize(
    ("security", "field"),
    [
        ({"allowPrivilegeEscalation": True}, "allowPrivilegeEscalation"),
        ({"capabilities": ["NET_BIND_SERVICE", "CHOWN"]}, "capabilities[1]"),
        ({"uidGidSource": "custom", "runAsUid": 0}, "runAsUid"),
    ],
)
def test_a_restricted_project_lets_a_container_have_less(security: dict[str, Any], field: str) -> None:
    """S023."""
    checked = check_training(request(security=security))
    assert not isinstance(checked, FaultyCreation)
    for level in (None, "baseline"):
        assert list(check_within(checked, Project(pod_security=level))) == []
    (issue,) = check_within(checked, Project(pod_security="restricted"))
    assert (issue.field, issue.rule) == (f"spec.security.{field}", "blocked")
    assert "podSecurity is restricted" in issue.details


def test_a_field_that_is_not_built_says_so_unless_it_is_null() -> None:
    checked = check_training(request(storage={"pvc": [NOT_BUILT | {"dataSharing": {"x": 1}}]}))
    assert isinstance(checked, FaultyCreation)
    assert "not built yet" in checked.issues[0].details
    assert not isinstance(check_training(request(storage={"pvc": [NOT_BUILT | {"dataSharing": None}]})), FaultyCreation)


def test_a_cluster_of_many_pools_is_told_by_some_of_them() -> None:
    """S039."""
    pools = {f"p{n:03}": NodePool(name=f"p{n:03}", label_key="k", label_value="v") for n in range(300)}
    spec = TrainingSpec(image="x", node_pools=("p007", "nope"))
    (issue,) = check_cluster(spec, Cluster(name="c", kind="kubernetes", node_pools=pools))
    assert issue.field == "spec.nodePools[1]"
    assert issue.details.endswith("it has " + ", ".join(["default", *sorted(pools)][:20]) + " and 281 more")


@pytest.mark.parametrize(
    ("name", "as_prefix", "fits"),
    [("n" * 253, False, True), ("n" * 254, False, False), ("n" * 246, True, True), ("n" * 247, True, False),
     ("", False, False), (" a", False, False), ("a\nb", False, False), ("größer 日本", False, True)],
)  # fmt: skip
def test_names_are_printable_and_fit_an_index(name: str, as_prefix: bool, fits: bool) -> None:
    data = request() | {"name": name, "useGivenNameAsPrefix": as_prefix}
    assert isinstance(check_training(data), FaultyCreation) is not fits


@pytest.mark.parametrize("spec", [5, "x", [], True, 0, ""])
def test_a_spec_that_is_no_object_is_the_only_fault_told_of_it(spec: object) -> None:
    assert found(request() | {"spec": spec}) == {("spec", None)}


def test_a_fault_behind_a_null_among_the_items_has_the_index_that_the_request_has() -> None:
    labels = [None, {"name": "a"}, None, {"name": "b c"}, {"name": 5}, {"name": "a"}]
    assert found(request(labels=labels)) == {
        ("spec.labels[3].name", None),
        ("spec.labels[4].name", None),
        ("spec.labels[5].name", None),
    }


def test_everything_wrong_comes_back_in_one_answer() -> None:
    data = {
        "name": 1,
        "clusterId": "c",
        "bogus": 1,
        "spec": {
            "tty": True,
            "backoffLimit": 500,
            "command": "'",
            "parallelism": "x",
            "compute": {"gpuRequestType": "portion", "cpuMemoryRequest": "1GB"},
            "labels": [{"name": "a"}, {"name": 5}, {}],
        },
    }
    assert found(data) == {
        ("name", None),
        ("projectId", "required"),
        ("bogus", None),
        ("spec.tty", "canAdd"),
        ("spec.image", "required"),
        ("spec.backoffLimit", "max"),
        ("spec.command", None),
        ("spec.parallelism", None),
        ("spec.compute.gpuPortionRequest", "required"),
        ("spec.compute.cpuMemoryRequest", None),
        ("spec.labels[1].name", None),
        ("spec.labels[2].name", "required"),
    }


def test_a_rule_is_silent_where_a_field_that_it_looks_at_is_faulty_itself() -> None:
    assert found(request(completions="many", parallelism=5)) == {("spec.completions", None)}
    compute = {"gpuRequestType": "portion", "gpuPortionRequest": "half"}
    assert found(request(compute=compute)) == {("spec.compute.gpuPortionRequest", None)}


def test_a_hostile_body_is_answered_with_a_bounded_number_of_issues() -> None:
    data = request(**{f"x{number}": number for number in range(50_000)}, labels=[5] * 1000)
    checked = check_training(data)
    assert isinstance(checked, FaultyCreation)
    assert len(checked.issues) <= MAX_ISSUES


def test_null_is_absent_and_a_null_in_a_list_is_no_item() -> None:
    data = request(command=None, compute=None, labels=[None, {"name": "a", "value": None}], nodePools=None)
    checked = check_training(data)
    assert not isinstance(checked, FaultyCreation)
    spec = checked.spec
    assert spec.command is None
    assert [label.name for label in spec.labels] == ["a"]


@pytest.mark.parametrize("said", [{}, {"completions": None}, {"completions": 2}])
def test_a_sweep_says_how_many_runs_there_are(said: dict[str, Any]) -> None:
    """S061: another number is refused, even that which a training without one has."""
    checked = check_training(request(sweep={"parameters": [{"name": "a", "values": ["1", "2"]}]}, **said))
    assert not isinstance(checked, FaultyCreation)
    assert with_defaults(checked.spec).completions == 2


optional_text = st.none() | st.text(max_size=20)
computes = st.fixed_dictionaries(
    {},
    optional={
        "cpuCoreRequest": st.floats(allow_nan=True) | st.integers(),
        "cpuMemoryRequest": st.sampled_from(["0", "1", "1Gi", "9E", "1e18", "999999999999Ei", "x"])
        | st.text(max_size=8),
        "gpuDevicesRequest": st.integers(),
        "gpuRequestType": st.sampled_from(["portion", "memory", "mig"]),
        "gpuPortionRequest": st.floats(),
        "gpuMemoryRequest": st.sampled_from(["0", "1Gi", "8Ei", "-1", "1GB"]),
    },
)
specs = st.fixed_dictionaries(
    {"image": optional_text},
    optional={
        "command": optional_text,
        "args": optional_text,
        "compute": st.none() | computes,
        "completions": st.none() | st.integers(),
        "parallelism": st.none() | st.integers(),
        "backoffLimit": st.none() | st.integers() | st.booleans(),
        "labels": st.lists(
            st.fixed_dictionaries({}, optional={"name": optional_text, "value": optional_text}), max_size=3
        ),
        "unknown": st.integers(),
    },
)


@given(specs)
def test_whatever_is_taken_can_be_counted_and_run_and_nothing_ever_breaks_the_check(spec: dict[str, Any]) -> None:
    checked = check_training({"name": "n", "projectId": "p", "clusterId": "c", "spec": spec})
    if isinstance(checked, FaultyCreation):
        assert checked.issues
        assert all(issue.field and issue.details for issue in checked.issues)
        return
    stored = checked.spec
    assert template(stored).arguments is not None
    asked, pods = pod_request(stored.compute), stored.parallelism
    assert max(asked.cpu_milli * pods, asked.memory_bytes * pods, asked.gpu_devices * 1000 * pods) <= MAX_QUANTITY
    assert (asked.gpu_devices > 0) == (asked.gpu_milli > 0 or asked.gpu_memory_bytes > 0)


@pytest.mark.parametrize(
    ("spec", "field", "told"),
    [
        ({"imgae": "a"}, "spec.imgae", "is unknown; did you mean 'image'?"),
        ({"computee": {}}, "spec.computee", "is unknown; did you mean 'compute'?"),
        ({"compute": {"gpuDevicesReqest": 1}}, "spec.compute.gpuDevicesReqest", "did you mean 'gpuDevicesRequest'"),
        ({"labels": [{"nam": "a", "value": "b"}]}, "spec.labels[0].nam", "is unknown; did you mean 'name'?"),
        ({"Image": "a"}, "spec.Image", "is unknown; did you mean 'image'?"),
        ({"zzz": 1}, "spec.zzz", "is unknown; check its spelling, or leave it out"),
        ({"x" * 10_000: 1}, f"spec.{'x' * 10_000}", "is unknown; check its spelling, or leave it out"),
        ({"priorityClass": "hihg"}, "spec.priorityClass", "'hihg' is none of "),
        ({"priorityClass": "hihg"}, "spec.priorityClass", "did you mean 'high'"),
        ({"priorityClass": "High"}, "spec.priorityClass", "did you mean 'high'?"),
        ({"preemptibility": "preemptable"}, "spec.preemptibility", "did you mean 'preemptible'"),
        ({"compute": {"gpuRequestType": "portions"}}, "spec.compute.gpuRequestType", "did you mean 'portion'?"),
    ],
)
def test_a_typing_error_leads_to_the_nearest(spec: dict[str, Any], field: str, told: str) -> None:
    checked = check_training(request(**spec))
    assert isinstance(checked, FaultyCreation)
    [details] = [issue.details for issue in checked.issues if issue.field == field]
    assert told in details


def test_of_what_is_wrong_beyond_what_is_told_no_nearest_word_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look costs some 100 µs, and a body has room for a hundred thousand names."""
    looks: list[str] = []
    monkeypatch.setattr("services.api.check.did_you_mean", lambda name, _known: looks.append(name))
    checked = check_training(request(**{f"x{number}": 1 for number in range(5 * MAX_ISSUES)}))
    assert isinstance(checked, FaultyCreation)
    assert len(checked.issues) == len(looks) == MAX_ISSUES
