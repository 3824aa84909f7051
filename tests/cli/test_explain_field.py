"""`muster explain-field`: every field that may be submitted, from its declaration."""

from typing import Any

import pytest

from events.workload.kinds import KINDS
from muster.cli.explain_field import explained, field_paths
from tests.support.shapes import ShapeServer


@pytest.mark.parametrize(
    ("given", "field", "told"),
    [
        ("compute.gpuPortionRequest", "spec.compute.gpuPortionRequest", "--gpu-portion-request 0.5"),
        ("spec.compute.gpuPortionRequest", "spec.compute.gpuPortionRequest", "more than 0 and at most 1"),
        ("GPUPORTIONREQUEST", "spec.compute.gpuPortionRequest", "number (share of a device)"),
        ("gpu-portion-request", "spec.compute.gpuPortionRequest", "Bounds:  more than 0 and at most 1"),
        ("g", "spec.compute.gpuDevicesRequest", "0 or more"),
        ("master-gpu-portion-request", "masterSpec.compute.gpuPortionRequest", "Distributed"),
        ("masterSpec.image", "masterSpec.image", "--master-image"),
        ("masterSpec.image", "masterSpec.image", "Mandatory: yes, where masterSpec is given"),
        ("spec.model.name", "spec.model.name", "Mandatory: yes, where spec.model is given"),
        ("environmentVariables.name", "spec.environmentVariables[].name", "1 to 63 characters"),
        ("spec.environmentVariables[3].name", "spec.environmentVariables[].name", "Mandatory: yes"),
        ("spec.image", "spec.image", "Mandatory: yes"),
        ("restartPolicy", "spec.restartPolicy", "Always, Never, OnFailure"),
        ("priorityClass", "spec.priorityClass", "may be changed while the workload lives"),
        ("allowOverQuota", "spec.allowOverQuota", "Workspace"),
        ("storage", "spec.storage", "hostPath:"),
        ("image", "spec.image", "--image python:3.13"),
        ("dataSharing", "spec.storage.pvc[].dataSharing", "not built yet"),
        ("dataVolume", "spec.storage.dataVolume", "--data-volume"),
        ("projectId", "projectId", "--project"),
    ],
)
def test_a_field_is_found_by_its_path_its_end_or_its_flag(muster: Any, given: str, field: str, told: str) -> None:
    ran = muster("explain-field", given)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[0].split() == ["Field:", field]
    assert told in ran.out
    assert "Requirements" not in ran.out, "numbers of a document that users do not have"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("gpuPortionReqest", "did you mean 'gpuPortionRequest'"),
        ("compute.gpuPortionReqest", "did you mean 'compute.gpuPortionRequest'"),
        ("exclude", "'exclude' is the end of several fields"),
        ("path", "one of environmentVariables[].podFieldRef.path, storage.emptyDir"),
        ("xyzzy", "`muster explain-field spec` lists the fields"),
        ("", "there is no field ''"),
    ],
)
def test_a_word_that_is_no_field_leads_to_one(muster: Any, given: str, told: str) -> None:
    ran = muster("explain-field", given)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err


def test_every_field_of_every_kind_is_explained() -> None:
    paths = field_paths("")
    assert len(paths) > 150
    for path in paths:
        row: Any = explained(path)
        assert row["field"].removeprefix("spec.") == path
        assert set(row["kinds"]) <= set(KINDS)
        assert row["description"].endswith((".", ")")), path


def test_programs_read_it_too(api: ShapeServer, muster: Any) -> None:
    assert muster("explain-field", "restartPolicy", "-o", "jsonpath={.options[*]}").out == "Always Never OnFailure"
    assert api.requests == []
