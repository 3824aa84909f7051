"""`muster explain-field`: every field that may be submitted, from its declaration."""

from typing import Any

import pytest

from events.workload.kinds import KINDS
from muster.cli.explain_field import explained, field_paths
from muster.cli.training_flags import flags_of, value_of
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
        ("tolerations", "spec.tolerations", "choice: Equal, Exists"),
        ("tolerations", "spec.tolerations", "--toleration operator=Exists,key=dedicated,effect=Any"),
        ("spec.security", "spec.security", "choice: "),
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


def test_what_a_rule_asks_for_is_mandatory_and_null_is_no_value_of_it() -> None:
    """S060, R16: the contract lets it be null, since a template or a data source may set it."""
    for path in ("storage.dataVolume[].id", "storage.nfs[].server", "podAffinity.key", "distributedFramework"):
        assert explained(path)["mandatory"] is True, path
    assert explained("storage.pvc[].claimName")["mandatory"] is False, "only with existingPvc"


def test_what_a_kind_refuses_is_no_field_of_it() -> None:
    """S054: an inference takes PVCs, Git, ConfigMaps and empty folders."""
    for name in ("dataVolume", "hostPath", "nfs", "s3", "secretVolume", "dataVolume[].id", "pvc[].ephemeral"):
        kinds: Any = explained(f"storage.{name}")["kinds"]
        assert kinds == ["Training", "Distributed", "Workspace"], name
    for name in ("configMapVolume", "emptyDirVolume", "git", "pvc"):
        assert explained(f"storage.{name}")["kinds"] == [*KINDS]


def test_an_example_of_a_list_is_taken_by_its_flag() -> None:
    for kind in KINDS.values():
        for flag in flags_of(kind.creation):
            example: Any = explained(flag.field)["example"]
            if flag.node.item is not None and example:
                assert value_of(flag, [example.removeprefix(f"{flag.names[0]} ")])


def test_programs_read_it_too(api: ShapeServer, muster: Any) -> None:
    assert muster("explain-field", "restartPolicy", "-o", "jsonpath={.options[*]}").out == "Always Never OnFailure"
    assert api.requests == []
