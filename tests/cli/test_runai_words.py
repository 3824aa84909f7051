"""What who comes from Run:ai types to submit: every flag of its `submit`, and its words within the values of flags.

Issue section 5; experience.md section 1.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.shapes import Ran, ShapeServer

STANDARD = """
allow-privilege-escalation annotation attach auto-deletion-time-after-completion backoff-limit capability command
configmap-map-volume cpu-core-limit cpu-core-request cpu-memory-limit cpu-memory-request create-home-dir environment
existing-pvc extended-resource external-url git-sync gpu-devices-request gpu-memory-limit gpu-memory-request
gpu-portion-limit gpu-portion-request gpu-request-type host-ipc host-network host-path image image-pull-policy label
large-shm name-prefix new-pvc nfs node-pools node-type parallelism port preferred-pod-topology-key project
required-pod-topology-key run-as-gid run-as-uid run-as-user runs s3 seccomp-profile secret-volume stdin
supplemental-groups termination-grace-period toleration tty user-group-source working-dir
"""
PYTORCH = """
workers master-args master-command master-environment master-extended-resource master-gpu-devices-request
master-gpu-portion-request master-gpu-portion-limit no-master min-replicas max-replicas
"""
type Muster = Callable[..., Ran]
type Json = dict[str, Any]


def storage(api: ShapeServer, muster: Muster, *flags: str) -> Json:
    """What a submission with these flags asks for."""
    ran = muster("training", "submit", "hello", "-i", "i", *flags)
    assert ran.code == 0, ran.err
    return api.asked("POST", "/workloads/trainings")[-1].body["spec"]["storage"]


def test_every_flag_of_its_submit_is_there(api: ShapeServer, muster: Muster) -> None:
    told = muster("training", "standard", "submit", "--help").out
    assert [flag for flag in STANDARD.split() if f"--{flag} " not in told.replace(",", " ")] == []
    told = muster("training", "pytorch", "submit", "--help").out
    assert [flag for flag in PYTORCH.split() if f"--{flag} " not in told.replace(",", " ")] == []


@pytest.mark.parametrize("flag", ["--wait-for-submit", "--pod-running-timeout"])
def test_what_there_is_no_need_for_here_leads_to_what_does(api: ShapeServer, muster: Muster, flag: str) -> None:
    ran = muster("training", "submit", "hello", "-i", "i", flag, "1m")
    assert (ran.code, "--timeout" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize(
    ("flag", "value", "field", "item"),
    [
        (
            "--new-pvc",
            "claimname=a,storageclass=fast,size=1Gi,path=/x,accessmode-rwm,ro,ephemeral",
            "pvc",
            {
                "claimName": "a",
                "path": "/x",
                "readOnly": True,
                "ephemeral": True,
                "claimInfo": {
                    "storageClass": "fast",
                    "size": "1Gi",
                    "accessModes": {"readWriteMany": True, "readWriteOnce": False},
                },
            },
        ),
        (
            "--new-pvc",
            "size=1Gi,path=/x,accessmode-rom,accessmode-rwo",
            "pvc",
            {
                "path": "/x",
                "claimInfo": {"size": "1Gi", "accessModes": {"readOnlyMany": True, "readWriteOnce": True}},
            },
        ),
        ("--existing-pvc", "claimname=a,path=/x", "pvc", {"claimName": "a", "path": "/x", "existingPvc": True}),
        (
            "--nfs",
            "path=/a,server=s,mountpath=/b,readwrite",
            "nfs",
            {"path": "/a", "server": "s", "mountPath": "/b", "readOnly": False},
        ),
        (
            "--host-path",
            "path=/a,mount=/b,mount-propagation=HostToContainer,readwrite",
            "hostPath",
            {"path": "/a", "mountPath": "/b", "mountPropagation": "HostToContainer", "readOnly": False},
        ),
        (
            "--git-sync",
            "name=g,repository=https://git.example.com/a,path=/g,secret=login,rev=v1",
            "git",
            {
                "name": "g",
                "repository": "https://git.example.com/a",
                "path": "/g",
                "revision": "v1",
                "secretRef": {"name": "login", "authenticationMethod": "password"},
            },
        ),
        (
            "--s3",
            "name=n,bucket=bbb,path=/s,accesskey=keys,url=https://s3.example.com",
            "s3",
            {
                "name": "n",
                "bucket": "bbb",
                "path": "/s",
                "accessKeySecret": "keys",
                "url": "https://s3.example.com",
            },
        ),
        ("--secret-volume", "path=/s,name=keys", "secretVolume", {"secret": "keys", "mountPath": "/s"}),
        ("--configmap-map-volume", "name=cm,path=/s", "configMapVolume", {"configMap": "cm", "mountPath": "/s"}),
        (
            "--configmap-volume",
            "name=item,configMap=cm,mountPath=/s",
            "configMapVolume",
            {"name": "item", "configMap": "cm", "mountPath": "/s"},
        ),
    ],
)
def test_its_words_for_a_volume_mean_our_fields(  # noqa: PLR0917 (fixtures and cases)
    api: ShapeServer, muster: Muster, flag: str, value: str, field: str, item: Json
) -> None:
    assert storage(api, muster, flag, value) == {field: [item]}


def test_claims_that_are_there_come_beside_new_ones(api: ShapeServer, muster: Muster) -> None:
    flags = (
        "--existing-pvc",
        "claimname=a,path=/a",
        "--pvc",
        "path=/b,size=1Gi",
        "--existing-pvc",
        "claimname=c,path=/c",
    )
    paths = [one["path"] for one in storage(api, muster, *flags)["pvc"]]
    assert paths == ["/b", "/a", "/c"]


def test_a_word_that_means_nothing_is_refused_with_those_that_do(api: ShapeServer, muster: Muster) -> None:
    ran = muster("training", "submit", "hello", "-i", "i", "--nfs", "path=/a,server=s,mountpath=/b,writeable")
    assert (ran.code, "readwrite" in ran.err, "'writeable'" in ran.err) == (2, True, True), ran.err


def test_it_runs_as_the_user_of_the_token_and_under_a_filter_of_calls(api: ShapeServer, muster: Muster) -> None:
    """S022, S023."""
    line = ("training", "submit", "hello", "-i", "i", "--run-as-user", "--seccomp-profile", "RuntimeDefault")
    assert muster(*line).code == 0
    security = api.asked("POST", "/workloads/trainings")[-1].body["spec"]["security"]
    assert security == {"uidGidSource": "fromIdpToken", "seccompProfileType": "RuntimeDefault"}
    ran = muster(*line, "--user-group-source", "custom")
    assert (ran.code, "exclude each other" in ran.err) == (2, True), ran.err


def test_attach_goes_with_nothing_else_that_waits(api: ShapeServer, muster: Muster) -> None:
    for more in (("--wait",), ("--watch",), ("--wait-for", "Running")):
        ran = muster("training", "submit", "hello", "-i", "i", "--attach", *more)
        assert (ran.code, "--attach" in ran.err) == (2, True), ran.err
    assert api.requests == []
