"""Inferences as they are asked for: what is refused, and what is stored. Pure. S054, S067 to S069, R26, R28."""

from typing import Any

import msgspec
import pytest

from events.fields.node import tree
from events.workload.fields.creation import InferenceCreation
from events.workload.kinds import KINDS
from events.workload.made_from import MadeFrom
from events.workload.spec import beside_with_defaults
from services.api.check import FaultyCreation, check_creation
from services.api.explain import explained

KIND = KINDS["Inference"]


def body(*, port: int | None = 8000, **spec: Any) -> dict[str, Any]:
    serving = {} if port is None else {"servingPort": {"container": port}}
    return {"name": "n", "projectId": "p", "clusterId": "c", "spec": {"image": "i", **serving, **spec}}


def scaled(**autoscaling: Any) -> dict[str, Any]:
    return body(autoscaling=autoscaling)


def taken(data: dict[str, Any]) -> InferenceCreation:
    checked = check_creation(InferenceCreation, data)
    assert isinstance(checked, InferenceCreation), f"refused: {checked.issues}"
    return checked


PVC = {"path": "/p", "claimInfo": {"size": "1Gi"}, "ephemeral": True}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (body(port=None), [("spec.servingPort", "required")]),
        (body(servingPort={}), [("spec.servingPort.container", "required")]),
        (body(port=0), [("spec.servingPort.container", "min")]),
        (body(port=65_536), [("spec.servingPort.container", "max")]),
        (scaled(minReplicas=-1), [("spec.autoscaling.minReplicas", "min")]),
        (scaled(minReplicas=1001), [("spec.autoscaling.minReplicas", "max")]),
        (scaled(minReplicas=0), [("spec.autoscaling.minReplicas", "min")]),
        (scaled(minReplicas=1, scaleToZeroRetentionSeconds=60), [("spec.autoscaling.minReplicas", "max")]),
        (scaled(minReplicas=3, maxReplicas=2), [("spec.autoscaling.maxReplicas", "min")]),
        (scaled(maxReplicas=0, scaleToZeroRetentionSeconds=60), [("spec.autoscaling.maxReplicas", "min")]),
        (scaled(maxReplicas=1001), [("spec.autoscaling.maxReplicas", "max")]),
        (scaled(metric="cpu"), [("spec.autoscaling.metric", "options")]),
        (scaled(metricThreshold=0), [("spec.autoscaling.metricThreshold", "min")]),
        (scaled(metricThreshold=10**9 + 1), [("spec.autoscaling.metricThreshold", "max")]),
        (scaled(scaleToZeroRetentionSeconds=61), [("spec.autoscaling.scaleToZeroRetentionSeconds", "options")]),
        (scaled(concurrencyHardLimit=1), [("spec.autoscaling.concurrencyHardLimit", None)]),
        (body(model={"catalog": "HuggingFace"}), [("spec.model.name", "required")]),
        (body(model={"catalog": "runai", "name": "m"}), [("spec.model.catalog", "options")]),
        (body(model={"catalog": "HuggingFace", "name": "a b"}), [("spec.model.name", None)]),
        (body(model={"name": "m", "credential": "token"}), [("spec.model.credential", None)]),
        (body(model={"name": "m", "credential": {"key": "k"}}), [("spec.model.credential.name", "required")]),
        (
            body(
                model={"name": "m", "credential": {"name": "hf"}},
                environmentVariables=[{"name": "HF_TOKEN", "value": "a"}],
            ),
            [("spec.environmentVariables[0].name", "locked")],
        ),
        (
            body(servingPort={"container": 80, "authorizationType": "public"}),
            [("spec.servingPort.authorizationType", "options")],
        ),
        (
            body(servingPort={"container": 80, "authorizedUsers": ["a"], "authorizedGroups": ["b"]}),
            [("spec.servingPort.authorizedGroups", "canAdd")],
        ),
        (
            body(servingPort={"container": 80, "authorizationType": "authorizedGroups"}),
            [("spec.servingPort.authorizedGroups", "required")],
        ),
        (body(exposedUrls=[{"container": 8000}]), [("spec.exposedUrls", None)]),
        (body(ports=[{"container": 8000, "serviceType": "NodePort"}]), [("spec.ports", None)]),
        # It does not end by itself.
        (body(backoffLimit=1), [("spec.backoffLimit", None)]),
        (body(restartPolicy="Never"), [("spec.restartPolicy", None)]),
        (body(completions=2), [("spec.completions", None)]),
        (
            body(autoDeletionTimeAfterCompletionSeconds=0),
            [("spec.autoDeletionTimeAfterCompletionSeconds", None)],
        ),
        (body(storage={"hostPath": [{"path": "/a", "mountPath": "/b"}]}), [("spec.storage.hostPath", "canAdd")]),
        (
            body(storage={"nfs": [{"path": "/a", "server": "s", "mountPath": "/b"}]}),
            [("spec.storage.nfs", "canAdd")],
        ),
        (
            body(storage={"secretVolume": [{"secret": "s", "mountPath": "/b"}]}),
            [("spec.storage.secretVolume", "canAdd")],
        ),
        (body(storage={"pvc": [PVC]}), [("spec.storage.pvc[0].ephemeral", "canAdd")]),
        (
            body(environmentVariables=[{"name": "PORT", "value": "1"}]),
            [("spec.environmentVariables[0].name", "locked")],
        ),
        (
            body(
                environmentVariables=[{"name": "MODEL_ID", "value": "x"}],
                model={"catalog": "HuggingFace", "name": "m"},
            ),
            [("spec.environmentVariables[0].name", "locked")],
        ),
    ],
)
def test_an_inference_that_cannot_be_is_refused_by_field_and_rule(
    data: dict[str, Any], expected: list[tuple[str, str | None]]
) -> None:
    checked = check_creation(InferenceCreation, data)
    assert isinstance(checked, FaultyCreation), f"taken: {checked}"
    assert [(issue.field, issue.rule) for issue in checked.issues] == expected


def test_volumes_that_are_declared_to_be_for_no_inference_are_those_that_it_refuses() -> None:
    """S054: so neither flags nor pages show them."""
    needed = {"id": "6f1f9a2e-8c1e-4b7e-9a54-0c9f0a3d1e11", "path": "/p", "mountPath": "/m", "server": "s"}
    needed |= {"repository": "https://git.example.com/a", "bucket": "bbb", "secret": "s", "configMap": "c"}
    root = tree(InferenceCreation)
    storage = next(node for node in root.walk() if node.path == "spec.storage")
    for node in storage.fields:
        assert node.item is not None
        assert node.about is not None
        item = {one.name: needed[one.name] for one in node.item.fields if one.name in needed}
        item |= {"existingPvc": True, "claimName": "c"} if node.name == "pvc" else {}
        checked = check_creation(InferenceCreation, body(storage={node.name: [item]}))
        refused = isinstance(checked, FaultyCreation)
        told = [issue.field for issue in checked.issues] if refused else []
        assert told == ([node.path] if "Inference" in node.about.not_for else []), node.path


@pytest.mark.parametrize(
    "data",
    [
        body(),
        body(port=1, environmentVariables=[{"name": "MODEL_ID", "value": "x"}]),
        scaled(minReplicas=1000),
        scaled(minReplicas=0, maxReplicas=1000, metric="latency", metricThreshold=1, scaleToZeroRetentionSeconds=1800),
        body(
            storage={
                "pvc": [PVC | {"ephemeral": False}],
                "git": [{"repository": "https://git.example.com/a", "path": "/g"}],
                "configMapVolume": [{"configMap": "m", "mountPath": "/m"}],
                "emptyDirVolume": [{"path": "/e"}],
            }
        ),
        body(nodePools=["b", "a"], model={"catalog": "HuggingFace", "name": "org/model", "credential": None}),
    ],
)
def test_what_is_shown_of_an_inference_is_what_was_asked_for(data: dict[str, Any]) -> None:
    creation = taken(data)
    spec, beside = creation.order()
    assert KIND.shown(spec, beside) == creation.spec
    again = taken(body() | {"spec": msgspec.to_builtins(KIND.shown(spec, beside_with_defaults(beside)))})
    spec, beside = again.order()
    assert beside_with_defaults(beside) == beside, "with all defaults written out it is another time the same"


def test_its_priority_is_the_highest_and_it_is_not_preempted_by_default() -> None:
    """S045, S046."""
    spec, beside = taken(body()).order()
    shown = msgspec.to_builtins(KIND.shown(KIND.with_defaults(spec), beside))
    assert (shown["priorityClass"], shown["preemptibility"]) == ("very-high", "non-preemptible")
    assert shown["autoscaling"]["metricThreshold"] == 100


@pytest.mark.parametrize(
    ("autoscaling", "by_request"),
    [
        ({}, set[str]()),
        ({"minReplicas": 2}, {"minReplicas"}),
        ({"maxReplicas": 2}, {"maxReplicas"}),
        ({"minReplicas": 2, "maxReplicas": 4}, {"minReplicas", "maxReplicas"}),
        ({"scaleToZeroRetentionSeconds": 60}, {"scaleToZeroRetentionSeconds"}),
    ],
)
def test_bounds_that_follow_from_others_are_told_as_defaults(autoscaling: dict[str, Any], by_request: set[str]) -> None:
    spec, beside = taken(scaled(**autoscaling)).order()
    told = explained(KIND, KIND.with_defaults(spec), beside_with_defaults(beside), MadeFrom())
    prefix = "spec.autoscaling."
    given = {path.removeprefix(prefix) for path, who in told.items() if path.startswith(prefix) and who == "request"}
    assert given == by_request
