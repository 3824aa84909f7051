"""`muster training submit`: flags and files become the request, by the API's own field registry."""

import io
import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from events.fields.node import tree
from events.workload.fields.creation import TrainingCreation
from muster.cli.training_flags import FLAG_OF_FIELD, FLAGS
from services.api.check import FaultyCreation, check_training
from tests.support.shapes import WORKLOAD_ID, Reply, ShapeServer


def sent(api: ShapeServer) -> Any:
    return api.asked("POST", "/workloads/trainings")[-1].body


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        (("--image", "a"), "image", "a"),
        (("-i", "a"), "image", "a"),
        (("--working-dir", "/w"), "workingDir", "/w"),
        (
            ("-e", "A=1", "--env", "B=x=y", "--environment", "C="),
            "environmentVariables",
            [{"name": "A", "value": "1"}, {"name": "B", "value": "x=y"}, {"name": "C", "value": ""}],
        ),
        (("-g", "2"), "compute.gpuDevicesRequest", 2),
        (("--gpu-request-type", "portion"), "compute.gpuRequestType", "portion"),
        (("--gpu-portion-request", "0.5"), "compute.gpuPortionRequest", 0.5),
        (("--gpu-portion-limit", "1"), "compute.gpuPortionLimit", 1.0),
        (("--gpu-memory-request", "20Gi"), "compute.gpuMemoryRequest", "20Gi"),
        (("--gpu-memory-limit", "30Gi"), "compute.gpuMemoryLimit", "30Gi"),
        (("--cpu-core-request", "0.1"), "compute.cpuCoreRequest", 0.1),
        (("--cpu-core-limit", "2"), "compute.cpuCoreLimit", 2.0),
        (("--cpu-memory-request", "512Mi"), "compute.cpuMemoryRequest", "512Mi"),
        (("--cpu-memory-limit", "1G"), "compute.cpuMemoryLimit", "1G"),
        (("--node-pools", "a, b", "--node-pools", "c"), "nodePools", ["a", "b", "c"]),
        (("--priority", "high"), "priorityClass", "high"),
        (("--preemptibility", "preemptible"), "preemptibility", "preemptible"),
        (
            ("--related-url", "url=https://wandb.example.com/a?b=c,type=wandb,name=run"),
            "relatedUrls",
            [{"url": "https://wandb.example.com/a?b=c", "type": "wandb", "name": "run"}],
        ),
        (("-t",), "tty", True),
        (
            (
                *("--environment-pod-field", "IP=status.podIP", "-e", "A=1", "--environment-secret", "S=s/k"),
                *("--environment-config-map", "C=c/a.yaml", "--env-pod-field-ref", "T=metadata.labels['team']"),
            ),
            "environmentVariables",
            [
                {"name": "A", "value": "1"},
                {"name": "S", "secret": {"name": "s", "key": "k"}},
                {"name": "C", "configMap": {"name": "c", "key": "a.yaml"}},
                {"name": "IP", "podFieldRef": {"path": "status.podIP"}},
                {"name": "T", "podFieldRef": {"path": "metadata.labels['team']"}},
            ],
        ),
        (("--runs", "5"), "completions", 5),
        (("--completions", "5"), "completions", 5),
        (("--parallelism", "2"), "parallelism", 2),
        (
            ("--sweep", "lr=0.1,0.01", "--sweep", "seed=1..3"),
            "sweep",
            {
                "parameters": [
                    {"name": "lr", "values": ["0.1", "0.01"]},
                    {"name": "seed", "values": ["1", "2", "3"]},
                ]
            },
        ),
        (("--sweep-combine", "Rows"), "sweep.combine", "Rows"),
        (("--backoff-limit", "0"), "backoffLimit", 0),
        (("--termination-grace-period", "2m"), "terminationGracePeriodSeconds", 120),
        (("--pre-stop-signal", "SIGUSR1"), "preStop.signal", "SIGUSR1"),
        (("--pre-stop-command", "python save.py"), "preStop.command", "python save.py"),
        (("--checkpoint-size", "50Gi"), "checkpoint.size", "50Gi"),
        (("--checkpoint-path", "/saves"), "checkpoint.path", "/saves"),
        (("--checkpoint-storage-class", "fast"), "checkpoint.storageClass", "fast"),
        (("--auto-deletion-time-after-completion", "7d"), "autoDeletionTimeAfterCompletionSeconds", 604_800),
        (("--auto-deletion-time-after-completion", "0"), "autoDeletionTimeAfterCompletionSeconds", 0),
        (("--label", "a=b"), "labels", [{"name": "a", "value": "b"}]),
        (("--annotation", "a=b"), "annotations", [{"name": "a", "value": "b"}]),
        (("--category", "Train"), "category", "Train"),
    ],
)
def test_a_flag_sets_its_field(
    api: ShapeServer, muster: Any, flags: tuple[str, ...], field: str, value: object
) -> None:
    ran = muster("training", "submit", "hello", *flags, "--", "x")
    assert ran.code == 0, ran.err
    found = sent(api)["spec"]
    for part in field.split("."):
        found = found[part]
    assert found == value
    assert (sent(api)["name"], sent(api)["projectId"], sent(api)["clusterId"]) == ("hello", "p-1", "c-1")


@pytest.mark.parametrize(
    ("arguments", "spec"),
    [
        (("--", "python", "-c", "print(6 * 7)"), {"args": "python -c 'print(6 * 7)'"}),
        (("--command", "--", "python", "x.py", "--flag"), {"command": "python x.py --flag"}),
        (("-c", "--", "python x.py --flag"), {"command": "python x.py --flag"}),
        ((), {}),
    ],
)
def test_words_after_the_dashes_are_args_or_with_command_the_entry_point(
    api: ShapeServer, muster: Any, arguments: tuple[str, ...], spec: dict[str, str]
) -> None:
    assert muster("training", "submit", "hello", "-i", "a", *arguments).code == 0
    assert sent(api)["spec"] == {"image": "a", **spec}


@pytest.mark.parametrize(
    ("flags", "folder"),
    [((), "."), (("--working-dir", "sub"), "sub"), (("--working-dir", "."), "."), (("--working-dir", "/w"), "/w")],
)
def test_on_this_machine_pods_start_in_the_callers_folder_and_a_relative_one_is_meant_from_there(
    api: ShapeServer,
    muster: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    flags: tuple[str, ...],
    folder: str,
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    api.on("GET", "/nodes", Reply(body={"nodes": [{"name": socket.gethostname()}]}))
    ran = muster("training", "submit", "mine", "-i", "a", *flags, "--", "python3", "train.py")
    assert ran.code == 0, ran.err
    assert sent(api)["spec"]["workingDir"] == str((tmp_path / folder).resolve())


def test_a_folder_of_this_machine_that_is_not_there_is_refused(
    api: ShapeServer, muster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    api.on("GET", "/nodes", Reply(body={"nodes": [{"name": socket.gethostname()}]}))
    ran = muster("training", "submit", "mine", "-i", "a", "--working-dir", "nowhere", "--", "x")
    assert (ran.code, f"there is no folder '{tmp_path.resolve() / 'nowhere'}'" in ran.err) == (2, True), ran.err
    assert api.asked("POST", "/workloads/trainings") == []


@pytest.mark.parametrize("kind", ["local", "simulated", "kubernetes"])
def test_pods_that_run_elsewhere_start_where_their_image_says_and_a_relative_folder_is_refused(
    api: ShapeServer, muster: Any, kind: str
) -> None:
    """A local cluster of another machine, too: its node has another name."""
    api.on("GET", "/clusters", Reply(body={"clusters": [{"id": "c-1", "name": "far", "kind": kind}]}))
    assert muster("training", "submit", "mine", "-i", "a", "--", "x").code == 0
    assert "workingDir" not in sent(api)["spec"]
    ran = muster("training", "submit", "mine", "-i", "a", "--working-dir", "src", "--", "x")
    assert ran.code == 2
    assert "'src' is relative, and the pods of cluster 'far' do not run in a folder of this machine" in ran.err
    assert "give the path of a folder in the image, from `/`" in ran.err
    assert len(api.asked("POST", "/workloads/trainings")) == 1


@pytest.mark.parametrize("name", ["Bad Name", ">", "$(date)", "it's", "-f"])
def test_what_comes_next_is_a_command_that_a_shell_takes_as_it_is(
    api: ShapeServer, muster: Any, tmp_path: Path, name: str
) -> None:
    answer = {"name": name, "workloadId": WORKLOAD_ID, "actualPhase": "Creating"}
    api.on("POST", "/workloads/trainings", Reply(202, answer))
    ran = muster("training", "submit", "hello", "-i", "x")
    line = "printf '%s\\n' " + ran.err.splitlines()[-1].removeprefix("next: ")
    said = subprocess.run(["sh", "-c", line], check=True, cwd=tmp_path, capture_output=True, text=True).stdout
    words = said.splitlines()
    assert words == ["muster", "training", "logs", WORKLOAD_ID if name.startswith("-") else name, "-f"]


@pytest.mark.parametrize("name", ["@latest", WORKLOAD_ID, WORKLOAD_ID.upper()])
def test_a_name_that_could_never_be_asked_for_is_refused(
    api: ShapeServer, muster: Any, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "training.yaml"
    file.write_text(f"name: '{name}'\n")
    for given in ((name,), ("-f", str(file))):
        ran = muster("training", "submit", *given, "-i", "x")
        assert (ran.code, "another name" in ran.err) == (2, True)
    assert api.requests == []
    assert muster("training", "submit", "--name-prefix", name, "-i", "x").code == 0, "its suffix makes it another"


def test_a_name_prefix_leaves_the_words_alone(api: ShapeServer, muster: Any) -> None:
    muster("training", "standard", "submit", "--name-prefix", "nightly", "-i", "a", "--", "run")
    assert sent(api)["name"] == "nightly"
    assert sent(api)["useGivenNameAsPrefix"] is True
    assert sent(api)["spec"]["args"] == "run"


def test_a_file_is_the_request_and_flags_win_over_it(
    api: ShapeServer, muster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = {"name": "from-file", "clusterId": "c-1", "spec": {"image": "a", "compute": {"gpuDevicesRequest": 1}}}
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump(request))
    assert muster("training", "submit", "-f", str(file)).code == 0
    assert sent(api) == request | {"projectId": "p-1"}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request)))
    assert muster("training", "submit", "given", "-f", "-", "-g", "4", "--cluster", "local").code == 0
    assert (sent(api)["name"], sent(api)["clusterId"]) == ("given", "c-1")
    assert sent(api)["spec"] == {"image": "a", "compute": {"gpuDevicesRequest": 4}}


@pytest.mark.parametrize(
    ("text", "told"), [("- a", "not hold a request"), ("a: [", "neither YAML"), ("nmae: x", "'name'")]
)
def test_a_file_that_is_no_request_is_refused(muster: Any, tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(text)
    ran = muster("training", "submit", "-f", str(file))
    assert ran.code == 2
    assert told in ran.err


def test_a_dry_run_sends_nothing_and_prints_what_would_be_sent(api: ShapeServer, muster: Any) -> None:
    cluster = {"id": "0a1b2c3d-4e5f-8a6b-9c7d-0123456789ac", "name": "local", "kind": "local"}
    api.on("GET", "/clusters", Reply(body={"clusters": [cluster]}))
    ran = muster("training", "submit", "hello", "-i", "a", "--dry-run=client", "--", "x")
    assert ran.code == 0, ran.err
    assert yaml.safe_load(ran.out)["spec"] == {"image": "a", "args": "x"}
    assert json.loads(muster("training", "submit", "hello", "-i", "a", "--dry-run=client", "-o", "json").out)
    ran = muster("training", "submit", "Hello_", "-i", "a", "--runs", "1", "--parallelism", "2", "--dry-run=client")
    assert ran.code == 6
    assert "--parallelism" in ran.err
    assert not api.asked("POST", "/workloads/trainings")


def test_fields_that_place_have_run_ais_flags(api: ShapeServer, muster: Any) -> None:
    muster(
        "training", "submit", "hello", "-i", "a", "--node-type", "a100", "--preferred-pod-topology-key", "zone",
        "--toleration", "Operator=Equal,key=a,value=b,EFFECT=NoExecute,seconds=5", "--toleration",
        "key=b,operator=Exists,effect=Any", "--toleration", "name=c,exclude=true", "--extended-resource", "rdma/hca=2",
        "--extended-resource", "a/b=1", "--terminate-after-preemption", "--", "x",
    )  # fmt: skip
    spec = sent(api)["spec"]
    assert spec["nodeType"] == "a100"
    assert spec["podAffinity"] == {"type": "Preferred", "key": "zone"}
    assert spec["tolerations"] == [
        {"operator": "Equal", "key": "a", "value": "b", "effect": "NoExecute", "seconds": 5},
        {"key": "b", "operator": "Exists", "effect": "Any"},
        {"name": "c", "exclude": True},
    ]
    assert spec["compute"]["extendedResources"] == [
        {"resource": "rdma/hca", "quantity": "2"},
        {"resource": "a/b", "quantity": "1"},
    ]
    assert spec["terminateAfterPreemption"] is True


@pytest.mark.usefixtures("api")
def test_variables_of_credentials_stand_beside_the_others(muster: Any) -> None:
    ran = muster(
        "training", "submit", "hello", "-i", "a", "-e", "A=1", "--environment-credential", "TOKEN=wandb/WANDB_API_KEY",
        "--dry-run=client", "-o", "json", "--", "x",
    )  # fmt: skip
    assert ran.json()["spec"]["environmentVariables"] == [
        {"name": "A", "value": "1"},
        {"name": "TOKEN", "userCredential": {"name": "wandb", "key": "WANDB_API_KEY"}},
    ]


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("--environment-credential", "T=wandb", "'T=wandb' names no key of a credential"),
        ("--toleration", "a", "'a' is no FIELD=VALUE; the fields are name, operator, key, value"),
        ("--toleration", "kee=a", "'kee' is no field; those are name, operator, key, value, effect, seconds, exclude"),
        ("--toleration", "key=a,key=b", "'key' is given twice in 'key=a,key=b'"),
        ("--toleration", "seconds=soon", "seconds: 'soon' is not a whole number"),
        ("--toleration", "exclude=yes", "exclude is true or false, not 'yes'"),
        ("--extended-resource", "rdma/hca", "'rdma/hca' is no extended-resource; write NAME=VALUE"),
    ],
)
def test_a_value_in_small_language_that_will_not_do_is_told(muster: Any, flag: str, value: str, told: str) -> None:
    ran = muster("training", "submit", "hello", "-i", "a", flag, value, "--", "x")
    assert ran.code == 2
    assert f"{flag}: {told}" in ran.err


def test_the_two_topology_keys_exclude_each_other(muster: Any) -> None:
    ran = muster(
        "training", "submit", "hello", "-i", "a", "--required-pod-topology-key", "a",
        "--preferred-pod-topology-key", "b", "--", "x",
    )  # fmt: skip
    assert ran.code == 2
    assert "exclude each other" in ran.err


def test_every_flag_of_the_registry_is_there() -> None:
    of_field = {node.path: node.about.flag for node in tree(TrainingCreation).walk() if node.about and node.about.flag}
    assert set(of_field.values()) - {name for flag in FLAGS for name in flag.names} <= {
        "--name", "--name-prefix", "--project", "--cluster", "--command", "--args", "--template", "--compute",
        "--datasource",
    }  # fmt: skip
    assert of_field.keys() <= FLAG_OF_FIELD.keys()


def test_the_values_of_the_flags_have_the_types_that_the_api_checks(api: ShapeServer, muster: Any) -> None:
    muster(
        "training", "submit", "hello", "-i", "a", "-g", "1", "--gpu-request-type", "portion", "--gpu-portion-request",
        "0.5", "--cpu-core-request", "1", "--cpu-memory-request", "1Gi", "--node-pools", "a", "--priority", "low",
        "--runs", "2", "--parallelism", "1", "--backoff-limit", "1", "--termination-grace-period", "5s", "-e", "A=1",
        "--auto-deletion-time-after-completion", "1h", "--label", "a=b", "--annotation", "c=d", "--category", "x",
        "--working-dir", "/w", "--preemptibility", "preemptible", "--node-type", "a100", "--toleration",
        "operator=Equal,key=a,value=b,effect=NoExecute,seconds=5", "--extended-resource", "rdma/hca=2",
        "--required-pod-topology-key", "zone", "--terminate-after-preemption", "--", "x",
    )  # fmt: skip
    checked = check_training(sent(api) | {"clusterId": "0a1b2c3d-4e5f-8a6b-9c7d-0123456789ab"})
    assert not isinstance(checked, FaultyCreation), checked


def test_the_runs_of_a_sweep_come_from_a_csv_file(api: ShapeServer, muster: Any, tmp_path: Path) -> None:
    """Issue 13 section 3: a CSV of values."""
    table = tmp_path / "runs.csv"
    submit = ("training", "submit", "s", "-i", "a", "--sweep-csv", str(table))
    table.write_text('lr,note\n0.1,"a, b"\n\n0.2,\n')
    assert muster(*submit).code == 0
    assert sent(api)["spec"]["sweep"] == {
        "parameters": [{"name": "lr", "values": ["0.1", "0.2"]}, {"name": "note", "values": ["a, b", ""]}],
        "combine": "Rows",
    }
    for text, told in (("", "no runs"), ("lr\n", "no runs"), ("lr,seed\n1\n", "row 1"), ('lr\n"1', "cannot be read")):
        table.write_text(text)
        ran = muster(*submit)
        assert (ran.code, told in ran.err) == (2, True), ran.err
    table.unlink()
    assert muster(*submit).code == 2
    table.write_text("lr\n1\n")
    assert muster(*submit, "--sweep", "seed=1").code == 2
    assert muster("workspace", "submit", "s", "-i", "a", "--sweep-csv", str(table)).code == 2
