"""A refusal names the flag that was typed, where a field can be given by several. Requirement row: S005."""

from typing import Any

import pytest

from muster.cli.exits import ExitCode
from muster.cli.typed import flag_of, taken_over
from tests.support.shapes import Reply, ShapeServer

CLAIM = "claimname=a,path=/x"
NEW = "path=/b,size=1Gi"


@pytest.mark.parametrize(
    ("noun", "flags", "field", "flag"),
    [
        ("training", ("--existing-pvc", CLAIM), "spec.storage.pvc[0].path", "--existing-pvc"),
        ("training", ("--existing-pvc", CLAIM, "--pvc", NEW), "spec.storage.pvc[0].path", "--pvc"),
        ("training", ("--existing-pvc", CLAIM, "--pvc", NEW), "spec.storage.pvc[1].claimName", "--existing-pvc"),
        ("training", ("--new-pvc", NEW), "spec.storage.pvc[0].claimInfo.size", "--new-pvc"),
        ("training", (f"--new-pvc={NEW}",), "spec.storage.pvc[0].claimInfo.size", "--new-pvc"),
        (
            "training",
            ("--configmap-map-volume", "path=/c,name=c"),
            "spec.storage.configMapVolume[0]",
            "--configmap-map-volume",
        ),
        ("training", ("--env", "A=1"), "spec.environmentVariables[0].name", "--env"),
        ("training", ("-e", "A=1"), "spec.environmentVariables[0].name", "--environment"),
        (
            "training",
            ("-e", "A=1", "--environment-credential", "B=c/k"),
            "spec.environmentVariables[1].name",
            "--environment-credential",
        ),
        (
            "training",
            ("--environment-secret", "B=c/k"),
            "spec.environmentVariables[0].secret.name",
            "--environment-secret",
        ),
        (
            "training",
            ("--env-pod-field-ref", "B=c"),
            "spec.environmentVariables[0].podFieldRef.path",
            "--env-pod-field-ref",
        ),
        ("training", (), "spec.environmentVariables[0].configMap", "--environment-config-map"),
        (
            "training pytorch",
            ("--master-environment-secret", "B=c/k"),
            "masterSpec.environmentVariables[0]",
            "--master-environment-secret",
        ),
        ("training", ("--completions", "0"), "spec.completions", "--completions"),
        ("training", ("-g", "2"), "spec.compute.gpuDevicesRequest", "--gpu-devices-request"),
        ("training", ("--run-as-user",), "spec.security.uidGidSource", "--run-as-user"),
        ("training", ("--required-pod-topology-key", "zone"), "spec.podAffinity.key", "--required-pod-topology-key"),
        ("training", ("--name-prefix", "p"), "name", "--name-prefix"),
        ("training", (), "name", "NAME"),
        ("training", (), "spec.storage.pvc[0].path", "--pvc"),
        ("training pytorch", ("--master-gpu-devices-request", "0"), "masterSpec.image", "--image"),
        ("training pytorch", ("--master-image", "m"), "masterSpec.image", "--master-image"),
        ("training pytorch", ("--master-image", "m"), "masterSpec.environmentVariables", "--master-environment"),
        ("training pytorch", ("--master-image", "m", "--new-pvc", NEW), "spec.storage.pvc[0].path", "--new-pvc"),
        ("workspace", ("--existing-pvc", CLAIM), "spec.storage.pvc[0].path", "--existing-pvc"),
        ("inference", ("--serving-port", "80", "--new-pvc", NEW), "spec.storage.pvc[0].ephemeral", "--new-pvc"),
    ],
)
def test_what_the_api_refuses_is_told_with_the_flag_that_gave_it(  # noqa: PLR0917 (fixtures and cases)
    api: ShapeServer, muster: Any, noun: str, flags: tuple[str, ...], field: str, flag: str
) -> None:
    kind = {"training": "trainings", "workspace": "workspaces", "inference": "inferences"}.get(noun, "distributed")
    issues = [{"field": field, "details": "is wrong"}, {"field": "spec.category", "details": "is wrong, too"}]
    api.on("POST", f"/workloads/{kind}", Reply(400, {"code": 400, "message": "no", "complianceIssues": issues}))
    named = () if "--name-prefix" in flags else ("hello",)
    ran = muster(*noun.split(), "submit", *named, "-i", "a", *flags)
    assert ran.code == ExitCode.REJECTED, ran.err
    assert f"{field} ({flag}): is wrong\n" in ran.err
    assert "spec.category (--category): is wrong, too" in ran.err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--existing-pvc", "claimname=a,path=x"), "spec.storage.pvc[0].path (--existing-pvc)"),
        (("--new-pvc", "path=/b"), "spec.storage.pvc[0].claimInfo.size (--new-pvc)"),
        (("--run-as-user", "--run-as-uid", "5"), "spec.security.runAsUid (--run-as-uid)"),
        (("--sweep", "seed=1..3", "--completions", "2"), "spec.completions (--completions)"),
    ],
)
def test_what_needs_no_server_is_told_so_too(api: ShapeServer, muster: Any, flags: tuple[str, ...], told: str) -> None:
    ran = muster("training", "submit", "hello", "-i", "a", *flags, "--dry-run=client")
    assert (ran.code, told in ran.err) == (ExitCode.REJECTED, True), ran.err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--existing-pvc", "a=1"), "--existing-pvc: 'a' is no field"),
        (("--existing-pvc", "=1"), "--existing-pvc: "),
        (("--new-pvc", "path=/a,path=/b"), "--new-pvc: 'path' is given twice"),
        (("--completions", "x"), "--completions: "),
        (
            ("--environment-secret", "A=s"),
            "--environment-secret: 'A=s' names no key of a secret; write NAME=SECRET/KEY",
        ),
        (("--environment-config-map", "A=/k"), "--environment-config-map: 'A=/k' names no key of a configmap"),
        (("--env-pod-field-ref", "A"), "--env-pod-field-ref: "),
    ],
)
def test_a_value_that_cannot_be_read_is_told_by_the_flag_that_was_typed(
    api: ShapeServer, muster: Any, flags: tuple[str, ...], told: str
) -> None:
    ran = muster("training", "submit", "hello", "-i", "a", *flags)
    assert (ran.code, told in ran.err, "--pvc" in ran.err) == (ExitCode.USAGE, True, False), ran.err


def test_the_nearest_flag_around_a_field_gave_it() -> None:
    flags = {"spec.storage.pvc": "--pvc", "spec.storage.pvc[1]": "--existing-pvc", "spec.image": "--image"}
    assert flag_of("spec.storage.pvc[1].path", flags) == "--existing-pvc"
    assert flag_of("spec.storage.pvc[10].path", flags) == "--pvc"
    assert flag_of("spec.storage.nfs[0]", flags) == ""
    assert flag_of("", flags) == ""


def test_what_a_master_takes_over_was_given_by_the_workers_flags() -> None:
    flags = {
        "spec.image": "--image",
        "spec.environmentVariables": "--env",
        "spec.compute.gpuDevicesRequest": "--gpu-devices-request",
        "spec.compute.cpuCoreRequest": "--cpu-core-request",
        "masterSpec.environmentVariables[0]": "--master-environment-credential",
        "masterSpec.compute.gpuDevicesRequest": "--master-gpu-devices-request",
    }
    taken_over(flags)
    assert flags["masterSpec.image"] == "--image"
    assert flags["masterSpec.compute.gpuDevicesRequest"] == "--master-gpu-devices-request"
    assert flags["masterSpec.compute.cpuCoreRequest"] == "--cpu-core-request"
    assert "masterSpec.environmentVariables" not in flags
