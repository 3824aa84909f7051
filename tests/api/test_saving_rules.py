"""What may be asked for before the end of a pod, and for the folder that outlives it (S049). Pure: no server."""

from typing import Any

import pytest

from events.cluster import Cluster, StorageClass
from events.workload.fields.creation import InferenceCreation
from events.workload.fields.saving import CheckpointSpec, PreStop
from services.api.check import FaultyCreation, check_creation, check_training
from services.api.saving_rules import check_checkpoint_class

type Issues = set[tuple[str, str | None]]
CLASH: dict[str, Any] = {"emptyDirVolume": [{"path": "/saves"}]}
NAMED: dict[str, Any] = {"environmentVariables": [{"name": "MUSTER_CHECKPOINT_DIR", "value": "/a"}]}


def checked(**spec: Any) -> Any:
    return check_training({"name": "n", "projectId": "p", "clusterId": "c", "spec": {"image": "i", **spec}})


BAD: list[tuple[str, dict[str, Any], Issues]] = [
    ("neither", {"preStop": {}}, {("preStop", "required")}),
    ("both", {"preStop": {"signal": "SIGUSR1", "command": "a"}}, {("preStop.command", "canAdd")}),
    ("quotes that do not close", {"preStop": {"command": "a 'b"}}, {("preStop.command", None)}),
    ("no words", {"preStop": {"command": "''"}}, {("preStop.command", "required")}),
    ("a zero", {"preStop": {"command": "a\0b"}}, {("preStop.command", None)}),
    ("no such signal", {"preStop": {"signal": "SIGKILL"}}, {("preStop.signal", "options")}),
    (
        "no grace",
        {"preStop": {"signal": "SIGUSR1"}, "terminationGracePeriodSeconds": 0},
        {("preStop", "canAdd")},
    ),
    ("a secret", {"preStop": {"command": "save --key AKIA" + "A1" * 8}}, {("preStop.command", None)}),
    ("a relative path", {"checkpoint": {"path": "saves"}}, {("checkpoint.path", None)}),
    ("a path of the system", {"checkpoint": {"path": "/proc/1"}}, {("checkpoint.path", None)}),
    ("a path of Muster's", {"checkpoint": {"path": "/muster/home"}}, {("checkpoint.path", None)}),
    ("a path of a volume", {"checkpoint": {"path": "/saves"}, "storage": CLASH}, {("checkpoint.path", None)}),
    ("no size", {"checkpoint": {"size": "0"}}, {("checkpoint.size", "min")}),
    ("a size with a B", {"checkpoint": {"size": "5GB"}}, {("checkpoint.size", None)}),
    ("no class", {"checkpoint": {"storageClass": "My_Class"}}, {("checkpoint.storageClass", None)}),
    ("its variable", {"checkpoint": {}, **NAMED}, {("environmentVariables[0].name", "locked")}),
]


@pytest.mark.parametrize(("spec", "issues"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_what_breaks_a_rule_is_refused_with_its_field(spec: dict[str, Any], issues: Issues) -> None:
    refused = checked(**spec)
    assert isinstance(refused, FaultyCreation), f"taken: {refused}"
    assert {(issue.field.removeprefix("spec."), issue.rule) for issue in refused.issues} == issues


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("SIGTERM", "; a pod gets SIGTERM anyway: leave it out"),
        ("term", "; a pod gets SIGTERM anyway: leave it out"),
        ("SIGKILL", "; a pod is killed when its grace period is over: leave it out"),
        ("usr1", "; write SIGUSR1"),
        ("SIGUSR3", "; did you mean 'SIGUSR2' or 'SIGUSR1' or 'SIGHUP'?"),
    ],
)
def test_a_signal_that_is_none_of_ours_is_told_what_would_do(given: str, told: str) -> None:
    refused = checked(preStop={"signal": given})
    assert isinstance(refused, FaultyCreation)
    [issue] = refused.issues
    assert issue.details.endswith(told)


def test_what_is_asked_for_stands_in_the_spec_with_its_defaults() -> None:
    taken = checked(preStop={"command": "python save.py"}, checkpoint={}, terminationGracePeriodSeconds=300)
    assert not isinstance(taken, FaultyCreation), taken.issues
    assert taken.spec.pre_stop == PreStop(command="python save.py")
    assert taken.spec.checkpoint == CheckpointSpec(path="/muster/checkpoint", size="10Gi", storage_class=None)
    assert not isinstance(checked(**NAMED), FaultyCreation), "without a folder it is a variable like others"


def test_an_inference_has_no_work_to_save_and_may_be_told_to_end() -> None:
    body: dict[str, Any] = {"name": "n", "projectId": "p", "clusterId": "c"}
    spec: dict[str, Any] = {"image": "i", "servingPort": {"container": 80}}
    taken = check_creation(InferenceCreation, body | {"spec": spec | {"preStop": {"signal": "SIGINT"}}})
    assert not isinstance(taken, FaultyCreation), taken.issues
    refused = check_creation(InferenceCreation, body | {"spec": spec | {"checkpoint": {}}})
    assert isinstance(refused, FaultyCreation)
    assert [issue.field for issue in refused.issues] == ["spec.checkpoint"]


@pytest.mark.parametrize(
    ("kind", "name", "known", "refused"),
    [
        ("kubernetes", "fast", ("fast",), False),
        ("kubernetes", "fast", ("slow",), True),
        ("kubernetes", "fast", None, False),
        ("kubernetes", None, ("slow",), False),
        ("local", "local", ("local",), False),
        ("local", "fast", ("local",), True),
        ("simulated", "fast", (), False),
    ],
)
def test_a_cluster_must_have_its_storage_class(
    kind: Any, name: str | None, known: tuple[str, ...] | None, refused: bool
) -> None:
    """R29."""
    classes = None if known is None else tuple(StorageClass(name=each) for each in known)
    cluster = Cluster(cluster_id="c", name="c", kind=kind, storage_classes=classes)
    taken = checked(checkpoint={} if name is None else {"storageClass": name})
    found = [issue.field for issue in check_checkpoint_class(taken.spec, cluster)]
    assert found == (["spec.checkpoint.storageClass"] if refused else [])
