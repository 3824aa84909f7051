"""A training again: from its record, with what is to be otherwise; and a description that `submit -f` takes."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.cli.describe import write_request
from muster.cli.exits import ExitCode
from muster.cli.output import Format, Output, Style
from tests.support.draws import draws
from tests.support.shapes import WORKLOAD_ID, Reply, Request, ShapeServer, workload_row

SPEC = {
    "image": "python:3.13",
    "args": "train.py --lr 0.1",
    "compute": {"gpuDevicesRequest": 1, "cpuMemoryRequest": "1Gi"},
    "completions": 1,
    "labels": [{"name": "team", "value": "vision"}],
}


@pytest.fixture(autouse=True)
def workload(api: ShapeServer) -> None:
    row = workload_row(projectId="p-1", clusterId="c-1", spec=SPEC, phase="Failed", version=9)
    api.on("GET", f"/workloads/{WORKLOAD_ID}", Reply(body=row))


def sent(api: ShapeServer) -> Any:
    return api.asked("POST", "/workloads/trainings")[-1].body


def test_it_is_submitted_as_it_was_with_what_is_otherwise_and_that_is_told(api: ShapeServer, muster: Any) -> None:
    ran = muster(
        "training", "resubmit", "hello", "--name", "has space",
        "--set", "spec.compute.gpuDevicesRequest=2", "--set", "spec.args=train.py --lr=0.2 'a b'",
        "--set", "spec.terminationGracePeriodSeconds=2m", "--set", "spec.compute.cpuMemoryRequest=",
        "--set", "spec.nodePools=a100, h100", "--set", "spec.labels=team=nlp", "-o", "json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert sent(api) == {
        "name": "has space",
        "projectId": "p-1",
        "clusterId": "c-1",
        "spec": SPEC
        | {
            "args": "train.py --lr=0.2 'a b'",
            "compute": {"gpuDevicesRequest": 2},
            "terminationGracePeriodSeconds": 120,
            "nodePools": ["a100", "h100"],
            "labels": [{"name": "team", "value": "nlp"}],
        },
    }
    for told in (
        "name: hello → has space\n",
        "spec.compute.gpuDevicesRequest: 1 → 2\n",
        "spec.compute.cpuMemoryRequest: 1Gi → none\n",
        "spec.terminationGracePeriodSeconds: none → 120\n",
    ):
        assert told in ran.err
    assert "spec.image" not in ran.err


def test_what_may_be_several_is_set_to_all_that_are_given_and_told_as_it_is_typed(
    api: ShapeServer, muster: Any
) -> None:
    ran = muster(
        "training", "resubmit", "hello",
        "--set", "spec.environmentVariables=A=1", "--set", "spec.environmentVariables=B=x=y",
        "--set", "spec.nodePools=a", "--set", "spec.nodePools=b", "--set", "spec.labels=",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert sent(api)["spec"]["environmentVariables"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "x=y"}]
    assert sent(api)["spec"]["nodePools"] == ["a", "b"]
    assert "spec.environmentVariables: none → A=1, B=x=y\n" in ran.err
    assert "spec.labels: team=vision → none\n" in ran.err


@pytest.mark.parametrize(
    "changes",
    [("spec.image=a", "spec.image=b"), ("spec.args=", "spec.args=x"), ("spec.nodePools=a", "spec.nodePools=")],
)
def test_a_field_that_is_set_twice_to_different_things_sends_nothing(
    api: ShapeServer, muster: Any, changes: tuple[str, str]
) -> None:
    ran = muster("training", "resubmit", "hello", "--set", changes[0], "--set", changes[1])
    assert ran.code == ExitCode.USAGE
    assert f"--set {changes[0].partition('=')[0]} is given twice" in ran.err
    assert api.asked("POST", "/workloads/trainings") == []


def test_a_deleted_one_comes_again_under_its_name(api: ShapeServer, muster: Any) -> None:
    def listed(request: Request) -> Reply:
        rows = [workload_row()] if request.query.get("deleted") == ["true"] else []
        return Reply(body={"workloads": rows, "next": None})

    api.on("GET", "/workloads", listed)
    ran = muster("training", "resubmit", "hello", "--idempotency-key", "k")
    assert ran.code == 0, ran.err
    assert sent(api) == {"name": "hello", "projectId": "p-1", "clusterId": "c-1", "spec": SPEC}
    assert api.requests[-1].headers["idempotency-key"] == "k"
    assert ran.err == "next: muster training logs hello -f\n", "nothing is otherwise"


def test_a_name_that_is_taken_is_a_conflict_with_the_line_that_would_do(api: ShapeServer, muster: Any) -> None:
    taken = {"code": 400, "message": "the name is taken", "details": "name_taken"}
    api.on("POST", "/workloads/trainings", Reply(400, taken))
    ran = muster("training", "resubmit", "hello")
    assert ran.code == ExitCode.CONFLICT
    assert "→ give the new one another name: muster training resubmit hello --name hello-2" in ran.err
    ran = muster("training", "copy", "hello", "--name", "hello")
    assert "→ give the new one another name: muster training copy hello --name hello-2" in ran.err


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("spec.imgae=x", "did you mean 'spec.image'"),
        ("gpuDevicesRequest=1", "did you mean 'spec.compute.gpuDevicesRequest'?"),
        ("spec.completions=many", "--set spec.completions: 'many' is not a whole number"),
        ("spec.image", "'spec.image' is not FIELD=VALUE"),
        ("spec.gone=", "there is no field 'spec.gone'"),
        ('spec.environmentVariables=[{"name": "A", "value": "1"}]', "=NAME=VALUE, once for each"),
        ("spec.environmentVariables=[A=1]", "--set spec.environmentVariables takes no JSON"),
        ("spec.environmentVariables=A", "'A' has no '='; a variable is NAME=VALUE"),
        ('spec.nodePools=["a"]', "write --set spec.nodePools=A,B"),
        ('spec.tolerations=[{"key": "a"}]', "write --set spec.tolerations=FIELD=VALUE,FIELD=VALUE, once for each"),
    ],
)
def test_a_change_that_cannot_be_made_sends_nothing(api: ShapeServer, muster: Any, change: str, told: str) -> None:
    ran = muster("training", "resubmit", "hello", "--set", change)
    assert ran.code == ExitCode.USAGE
    assert told in ran.err
    assert api.asked("POST", "/workloads/trainings") == []


def test_a_description_in_yaml_is_a_request_that_says_in_comments_how_it_stands(muster: Any) -> None:
    text = muster("workload", "describe", "hello", "-o", "yaml").out
    assert text.startswith(
        f"# hello is Failed\n# id {WORKLOAD_ID}, version 9\nkind: Training\nname: hello\nprojectId: p-1\n"
    )
    assert muster("workload", "describe", "hello", "-o", "json").json()["phase"] == "Failed"


WORDS = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1, max_size=12).filter(
    lambda text: text == text.strip()
)
NAMES = st.from_regex(r"\A[a-z]([a-z0-9]{0,8}[a-z0-9])?\Z") | st.sampled_from(["yes", "null", "no", "on", "e1"])
LABELS = st.dictionaries(NAMES, NAMES | st.sampled_from(["1e3", "007", "true", "1.0"]), min_size=1, max_size=3)
PAIRS = st.dictionaries(NAMES, WORDS, min_size=1, max_size=3)


def _pairs(pairs: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in pairs.items()]


SPECS = st.fixed_dictionaries(
    {"image": NAMES},
    optional={
        "args": st.lists(WORDS, min_size=1, max_size=4).map(shlex.join),
        "command": st.lists(WORDS, min_size=1, max_size=4).map(shlex.join),
        "environmentVariables": PAIRS.map(_pairs),
        "labels": LABELS.map(_pairs),
        "annotations": PAIRS.map(_pairs),
        "completions": st.integers(1, 9),
        "backoffLimit": st.integers(0, 9),
        "terminationGracePeriodSeconds": st.integers(0, 99),
        "priorityClass": st.sampled_from(["low", "medium-high", "very-high"]),
        "category": WORDS,
        "nodePools": st.lists(NAMES, min_size=1, max_size=3, unique=True),
        "compute": st.fixed_dictionaries(
            {},
            optional={
                "gpuDevicesRequest": st.integers(0, 9),
                "cpuCoreRequest": st.sampled_from([0.1, 1.0, 2.5]),
                "cpuMemoryRequest": st.sampled_from(["1Gi", "500M", "1e3"]),
            },
        ),
    },
)


@settings(max_examples=draws(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=NAMES | WORDS, spec=SPECS, message=WORDS)
def test_what_is_described_can_be_submitted_whatever_was_asked_for(
    muster: Any, tmp_path: Path, name: str, spec: dict[str, Any], message: str
) -> None:
    request = {"name": name, "projectId": "p-1", "clusterId": "c-1", "spec": spec}
    file = tmp_path / "again.yaml"
    with file.open("w", encoding="utf-8") as stdout:
        write_request(
            Output(Style(format=Format.YAML), stdout=stdout),
            workload_row(**request, phaseMessage=f"{message}\nname: another\r"),
        )
    ran = muster("training", "submit", "-f", str(file), "--dry-run=client", "-o", "json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == {"kind": "Training", **request}


def test_a_name_with_a_space_is_quoted_in_the_next_line(api: ShapeServer, muster: Any) -> None:
    answer = {"name": "has space", "workloadId": WORKLOAD_ID, "actualPhase": "Creating"}
    api.on("POST", "/workloads/trainings", Reply(202, answer))
    assert "next: muster training logs 'has space' -f" in muster("training", "resubmit", "hello").err
    taken = {"code": 400, "message": "the name is taken", "details": "name_taken"}
    api.on("POST", "/workloads/trainings", Reply(400, taken))
    assert "--name 'has space-2'" in muster("training", "resubmit", "hello", "--name", "has space").err


@pytest.fixture
def clusters(api: ShapeServer) -> None:
    api.on("GET", "/clusters", Reply(body={"clusters": [{"id": "c-1", "name": "local", "kind": "local"}]}))
    api.on("GET", "/code", Reply(body={"maxBytes": 10**6, "partBytes": 1024, "kept": True}))


@pytest.mark.usefixtures("clusters")
def test_with_code_the_folder_is_sent_as_it_is_now_and_the_run_starts_there(
    api: ShapeServer, muster: Any, tmp_path: Path
) -> None:
    spec = SPEC | {"code": "a" * 64, "workingDir": "/home/ann"}
    row = workload_row(projectId="p-1", clusterId="c-1", spec=spec, phase="Failed", version=9)
    api.on("GET", f"/workloads/{WORKLOAD_ID}", Reply(body=row))
    (tmp_path / "train.py").write_text("print(1)")
    ran = muster("training", "resubmit", "hello", "--name", "again", "--code", str(tmp_path))
    assert ran.code == 0, ran.err
    code = sent(api)["spec"].pop("code")
    assert (len(code), code == spec["code"], sent(api)["spec"]) == (64, False, SPEC)
    assert {request.query["digest"][0] for request in api.asked("GET", "/code") if "digest" in request.query} == {code}
    assert f"spec.code: {spec['code']} → {code}\n" in ran.err
    assert "spec.workingDir: /home/ann → none\n" in ran.err


@pytest.mark.usefixtures("clusters")
def test_with_code_a_masters_folder_of_before_is_left_out_too(api: ShapeServer, muster: Any, tmp_path: Path) -> None:
    spec = SPEC | {"distributedFramework": "PyTorch", "workingDir": "/home/ann"}
    master = {"image": "m", "workingDir": "/home/ann"}
    row = workload_row(projectId="p-1", clusterId="c-1", type="Distributed", spec=spec, masterSpec=master)
    api.on("GET", f"/workloads/{WORKLOAD_ID}", Reply(body=row))
    api.on("POST", "/workloads/distributed", Reply(202, {"workloadId": WORKLOAD_ID, "name": "again"}))
    (tmp_path / "train.py").write_text("print(1)")
    ran = muster("training", "resubmit", "hello", "--name", "again", "--code", str(tmp_path))
    assert ran.code == 0, ran.err
    made = api.asked("POST", "/workloads/distributed")[-1].body
    assert ("workingDir" in made["spec"], "workingDir" in made["masterSpec"]) == (False, False)


@pytest.mark.parametrize(
    ("given", "code", "told"),
    [
        (("--set", "spec.code="), ExitCode.OK, "spec.code: aaaaaaaa"),
        (("--set", "spec.code=."), ExitCode.USAGE, "→ send a folder: --code FOLDER"),
        (("--code", __file__), ExitCode.USAGE, "is a file\n  → give its folder"),
    ],
)
@pytest.mark.usefixtures("clusters")
def test_code_is_left_out_with_set_and_replaced_with_a_folder_only(
    api: ShapeServer, muster: Any, given: tuple[str, ...], code: ExitCode, told: str
) -> None:
    row = workload_row(projectId="p-1", clusterId="c-1", spec=SPEC | {"code": "a" * 64}, phase="Failed", version=9)
    api.on("GET", f"/workloads/{WORKLOAD_ID}", Reply(body=row))
    ran = muster("training", "resubmit", "hello", "--name", "again", *given)
    assert (ran.code, told in ran.err) == (code, True), ran.err
    assert [request.body["spec"] for request in api.asked("POST", "/workloads/trainings")] == [SPEC][
        : code == ExitCode.OK
    ]
