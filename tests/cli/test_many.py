"""Many workloads from the command line: applied from files, chosen by filters, marked with labels. On the real API."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from development.servers import NatsServer, PostgresServer
from development.stack import until
from muster.cli.apply import Wanted, _differing, set_by_policies
from muster.cli.values import Row
from services.api.policy_rules import SOURCE_OF
from tests.support.api import Served, serving

MANY = """
kind: Training
name: {0}-train
spec: {{image: "python:3.13", args: train.py, labels: [{{name: set, value: {0}}}]}}
---
kind: Workspace
name: {0}-work
spec: {{image: jupyter, labels: [{{name: set, value: {0}}}]}}
---
kind: Distributed
name: {0}-gang
spec: {{image: jax, distributedFramework: JAX, numWorkers: 2, labels: [{{name: set, value: {0}}}]}}
"""


@pytest.fixture(scope="module")
def served(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with serving(nats_server, postgres_server, tmp_path_factory.mktemp("many")) as running:
        yield running


@pytest.fixture
def alice(served: Served, home: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setenv("MUSTER_URL", served.url)
    monkeypatch.setenv("MUSTER_TOKEN", served.token("alice"))
    return served


@pytest.fixture
def prefix() -> str:
    return f"x{secrets.token_hex(3)}"


def results(ran: Any) -> dict[str, str]:
    return {row["name"].partition("-")[2]: row["result"] for row in ran.json()}


def test_files_are_applied_again_and_again(alice: Served, muster: Any, tmp_path: Path, prefix: str) -> None:
    file = tmp_path / "many.yaml"
    file.write_text(MANY.format(prefix))
    apply = ("apply", "-f", str(tmp_path), "-o", "json")

    assert results(muster(*apply, "--dry-run")) == dict.fromkeys(("train", "work", "gang"), "created")
    assert results(first := muster(*apply)) == dict.fromkeys(("train", "work", "gang"), "created"), first.err
    assert until(
        lambda: len(muster("workload", "list", "-l", f"set={prefix}", "-o", "name").out.split()) == 3 or None, 20
    )
    assert results(again := muster(*apply)) == dict.fromkeys(("train", "work", "gang"), "unchanged")
    assert [row["id"] for row in again.json()] == [row["id"] for row in first.json()]

    text = file.read_text().replace("args: train.py", "args: train.py, priorityClass: high")
    file.write_text(
        text.replace("image: jupyter", "image: jupyter-2").replace(
            "numWorkers: 2", "numWorkers: 2, annotations: [{name: a, value: b}]"
        )
    )
    dry = muster(*apply, "--dry-run")
    ran = muster(*apply)
    assert results(dry) == results(ran) == {"train": "changed", "work": "refused", "gang": "changed"}, ran.err
    assert ran.code == dry.code == 5
    whys = {row["name"]: row["why"] for row in ran.json()}
    assert "jupyter → jupyter-2: cannot be changed" in whys[f"{prefix}-work"]
    shown = muster("workload", "describe", f"{prefix}-train", "-o", "json").json()
    assert shown["spec"]["priorityClass"] == "high"
    assert results(muster(*apply))["train"] == "unchanged"


def test_a_masters_volumes_are_compared_and_their_paths_changed(
    alice: Served, muster: Any, tmp_path: Path, prefix: str
) -> None:
    """S066, R30: the same changes nothing, other paths are a change, and all else is refused by name."""
    volume = "{path: %s, claimInfo: {size: %s}}"
    text = (
        f"kind: Distributed\nname: {prefix}-gang\n"
        f"spec: {{image: a, distributedFramework: PyTorch, storage: {{pvc: [{volume % ('/w', '1Gi')}]}}}}\n"
        "masterSpec: {image: m, storage: {pvc: [%s]}}"
    )
    file = tmp_path / "gang.yaml"

    def applied(path: str, size: str = "2Gi") -> Any:
        file.write_text(text % (volume % (path, size)))
        (row,) = muster("apply", "-f", str(file), "-o", "json").json()
        return row

    assert applied("/out")["result"] == "created"
    assert applied("/out")["result"] == "unchanged"
    changed = applied("/results")
    assert changed["result"] == "changed", changed
    assert applied("/results")["result"] == "unchanged"
    refused = applied("/results", "3Gi")
    assert refused["result"] == "refused"
    assert "masterSpec" in refused["why"]
    assert "cannot be changed" in refused["why"]
    words = ("workload", "set", f"{prefix}-gang", "--master-mount-path")
    assert muster(*words, "/results=/other").code == 0
    shown = muster("workload", "describe", f"{prefix}-gang", "-o", "json").json()
    assert [one["path"] for one in shown["masterSpec"]["storage"]["pvc"]] == ["/other"]
    assert [one["path"] for one in shown["spec"]["storage"]["pvc"]] == ["/w"]


def test_a_sweep_that_is_applied_again_is_unchanged(alice: Served, muster: Any, tmp_path: Path, prefix: str) -> None:
    values = '{parameters: [{name: lr, values: ["0.1", "0.2"]}]}'
    file = tmp_path / "sweep.yaml"
    file.write_text(f"kind: Training\nname: {prefix}-sweep\nspec: {{image: a, parallelism: 2, sweep: {values}}}")
    assert results(muster("apply", "-f", str(file), "-o", "json")) == {"sweep": "created"}
    assert results(muster("apply", "-f", str(file), "-o", "json")) == {"sweep": "unchanged"}
    assert muster("workload", "describe", f"{prefix}-sweep", "-o", "json").json()["spec"]["completions"] == 2


@pytest.mark.parametrize("source", SOURCE_OF.values())
def test_what_a_policy_of_any_scope_set_stands_below_a_file(source: str) -> None:
    there: Row = {"spec": {"image": "i", "tty": True}, "setBy": {"spec.image": source, "spec.tty": "request"}}
    assert set_by_policies(there) == {"image": "i"}


def test_what_policies_set_is_no_difference(
    alice: Served, muster: Any, tmp_path: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_TOKEN", alice.token("admin"))
    policy = tmp_path / "policy.json"
    policy.write_text(
        json.dumps(
            {
                "defaults": {
                    "image": "python:3.13",
                    "priorityClass": "medium",
                    "labels": [{"name": "team", "value": "all"}, {"name": "set", "value": "policy"}],
                    "compute": {"cpuMemoryRequest": "1Gi"},
                },
                "rules": {"labels": {"lockedItems": ["team"]}},
            }
        )
    )
    file = tmp_path / "many.yaml"
    text = MANY.format(prefix).replace('image: "python:3.13", ', "").partition("---")[0]
    file.write_text(text)
    apply = ("apply", "-f", str(file), "-p", "default", "-o", "json")
    listed = ("workload", "list", "-p", "default", "-l", f"set={prefix}", "-o", "name")
    assert (ran := muster("policy", "set", "trainings", "-f", str(policy), "-p", "default")).code == 0, ran.err
    try:
        assert results(muster(*apply, "--dry-run")) == {"train": "created"}, "the policy has an image"
        assert results(first := muster(*apply)) == {"train": "created"}, first.err
        assert until(lambda: len(muster(*listed).out.split()) or None, 60)
        for _ in ("as it is", "after it was applied again"):
            assert results(ran := muster(*apply)) == {"train": "unchanged"}, ran.out

        file.write_text(text.replace("labels: [", "labels: [{name: stage, value: dev}, "))
        assert results(ran := muster(*apply)) == {"train": "changed"}, ran.out
        shown = muster("workload", "describe", f"{prefix}-train", "-p", "default", "-o", "json").json()["spec"]
        assert {label["name"]: label["value"] for label in shown["labels"]} == {
            "team": "all",
            "set": prefix,
            "stage": "dev",
        }
        assert (shown["image"], shown["priorityClass"]) == ("python:3.13", "medium")

        file.write_text(text.replace("args: train.py", "args: train.py, image: other").replace("train\n", "train-2\n"))
        policy.write_text(json.dumps({"rules": {"image": {"options": ["python:3.13"]}}}))
        assert muster("policy", "set", "trainings", "-f", str(policy), "-p", "default").code == 0
        assert results(dry := muster(*apply, "--dry-run")) == {"train-2": "refused"}, dry.out
        assert "which the project's policy allows" in dry.json()[0]["why"]
    finally:
        muster("policy", "delete", "trainings", "-p", "default", "-y")


@pytest.mark.parametrize(
    ("text", "told", "code"),
    [
        pytest.param("name: a\nspec: {image: b}", "has no kind", 2, id="no kind"),
        pytest.param("kind: training\nname: a", "did you mean 'Training'", 2, id="another kind"),
        pytest.param("kind: Training\nnames: a", "unknown field 'names'", 2, id="unknown field"),
        pytest.param("kind: Training\nspec: {image: b}", "has no name", 2, id="no name"),
        pytest.param("kind: Training\nname: a\n---\nkind: Workspace\nname: a", "have one name", 2, id="one name"),
        pytest.param("- 1", "is no workload", 2, id="no object"),
        pytest.param("", "hold no workload", 2, id="nothing"),
        pytest.param(
            "kind: Training\nname: a-{0}\nspec: {{completions: 0}}", "file.yaml: spec.image: is required", 6, id="wrong"
        ),
    ],
)
def test_what_is_wrong_is_said_of_the_file(  # noqa: PLR0917 - fixtures and cases
    alice: Served, muster: Any, tmp_path: Path, prefix: str, text: str, told: str, code: int
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(text.format(prefix) if "{0}" in text else text)
    ran = muster("apply", "-f", str(file))
    assert (ran.code, told in ran.err) == (code, True), ran.err


def test_user_and_groups_of_a_token_are_no_difference() -> None:
    spec: Any = {"image": "a", "security": {"uidGidSource": "fromIdpToken"}}
    one = Wanted(file="f", kind="Training", request={"name": "a", "projectId": "p", "clusterId": "c", "spec": spec})
    want: Any = {
        "clusterId": "c",
        "spec": {"image": "a", "security": {"uidGidSource": "fromIdpToken", "runAsUid": None}},
    }
    there: Any = {
        "clusterId": "c",
        "spec": {"image": "a", "security": {"uidGidSource": "fromIdpToken", "runAsUid": 1000}},
    }

    assert _differing(one, want, there, {}) == []
    there["spec"]["security"]["uidGidSource"] = "custom"
    assert _differing(one, want, there, {}) == ["spec.security"]
    assert not one.merged
    assert Wanted(file="f", kind="Training", request={"templateId": "t"}).merged


def test_a_file_for_apply_is_one_for_submit_and_several_documents_are_not(
    alice: Served, muster: Any, tmp_path: Path, prefix: str
) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(f"kind: Training\nname: {prefix}\nspec: {{image: a}}")
    assert muster("training", "submit", "-f", str(file)).code == 0
    ran = muster("workspace", "submit", "-f", str(file))
    assert (ran.code, "is of kind 'Training'" in ran.err) == (2, True)
    file.write_text(MANY.format(prefix))
    ran = muster("training", "submit", "-f", str(file))
    assert (ran.code, f"muster apply -f {file}" in ran.err) == (2, True)


def test_filters_choose_what_is_acted_on_and_a_dry_run_shows_it(
    alice: Served, muster: Any, tmp_path: Path, prefix: str
) -> None:
    (tmp_path / "many.yaml").write_text(MANY.format(prefix))
    assert muster("apply", "-f", str(tmp_path)).code == 0
    chosen = ("-l", f"set={prefix}")
    assert until(lambda: len(muster("workload", "list", *chosen, "-o", "name").out.split()) == 3 or None, 60)

    assert results(muster("training", "suspend", *chosen, "--dry-run", "-o", "json")) == {"train": "would suspend"}
    assert results(muster("workload", "suspend", *chosen, "-o", "json")) == dict.fromkeys(
        ("train", "work", "gang"), "suspending"
    )
    stopped = ("--status", "Stopped", *chosen)
    assert until(lambda: len(muster("workload", "list", *stopped, "-o", "name").out.split()) == 3 or None, 60)
    assert "nothing was done" in muster("workload", "suspend", *chosen).err
    assert results(muster("workload", "delete", *chosen, "-o", "json", "-y"))["gang"] == "deleting"
    for words in (("suspend",), ("suspend", "a", "--all"), ("delete", *chosen, "--wait")):
        assert muster("workload", *words).code == 2


def test_labels_are_set_and_taken_off(alice: Served, muster: Any, prefix: str) -> None:
    submit = ("training", "submit", prefix, "-i", "a", "--label", "stage=dev", "--label", "keep=1")
    assert muster(*submit).code == 0
    assert muster("workload", "label", prefix, "team=vision", "stage-").code == 0
    assert "already" in muster("workload", "label", prefix, "team=vision").err
    assert muster("workload", "annotate", prefix, "note=second try").code == 0
    spec = muster("workload", "describe", prefix, "-o", "json").json()["spec"]
    assert spec["labels"] == [{"name": "keep", "value": "1"}, {"name": "team", "value": "vision"}]
    assert spec["annotations"] == [{"name": "note", "value": "second try"}]
    assert muster("workload", "label", prefix, "team").code == 2
    assert muster("workload", "label", prefix, "te am=x").code == 6


def test_workloads_are_transferred_by_name_and_by_filter(
    alice: Served, muster: Any, tmp_path: Path, prefix: str
) -> None:
    (tmp_path / "many.yaml").write_text(MANY.format(prefix))
    assert muster("apply", "-f", str(tmp_path)).code == 0
    chosen = ("-l", f"set={prefix}")
    assert until(lambda: len(muster("workload", "list", *chosen, "-o", "name").out.split()) == 3 or None, 60)

    ran = muster("training", "transfer", f"{prefix}-train", "--to", "bob")
    assert (ran.code, "transfer of" in ran.err) == (0, True), ran.err
    assert muster("workload", "describe", f"{prefix}-train", "-o", "json").json()["submittedBy"] == "bob"
    dry = muster("workload", "transfer", *chosen, "--to", "bob", "--dry-run", "-o", "json")
    assert results(dry) == {"train": "unchanged", "work": "would transfer", "gang": "would transfer"}
    done = muster("workload", "transfer", *chosen, "--to", "bob", "-o", "json")
    assert results(done) == {"train": "unchanged", "work": "transferred", "gang": "transferred"}
    ran = muster("workspace", "transfer", f"{prefix}-work", "--to", "alice")
    assert (ran.code, "only the workload's owner 'bob'" in ran.err) == (4, True), ran.err
    assert muster("workload", "transfer", f"{prefix}-train").code == 2


def test_acts_are_undone_and_what_was_deleted_is_submitted_again(alice: Served, muster: Any, prefix: str) -> None:
    assert muster("training", "submit", prefix, "-i", "a", "--priority", "low").code == 0
    assert muster("workload", "set", prefix, "--priority", "high").code == 0
    assert muster("training", "suspend", prefix).code == 0

    (plan,) = muster("undo", prefix, "--dry-run", "-o", "json").json()
    assert (plan["result"], plan["undoes"]["type"]) == ("would resume", "WorkloadSuspended")
    (done,) = muster("undo", prefix, "-o", "json").json()
    assert done["result"] == "undone"
    ran = muster("undo", prefix, "--sequence", str(done["undoes"]["sequence"]), "-o", "json")
    assert (ran.code, ran.json()[0]["result"]) == (0, "unchanged")
    (plan,) = muster("undo", prefix, "--dry-run", "-o", "json").json()
    assert plan["result"] == "would change back to priorityClass low"
    assert muster("undo", prefix).code == 0
    assert muster("workload", "describe", prefix, "-o", "json").json()["spec"]["priorityClass"] == "low"
    ran = muster("undo", prefix)
    assert (ran.code, "all of it was undone" in ran.out) == (5, True), ran.out

    assert muster("workload", "delete", prefix, "-y").code == 0
    (plan,) = muster("undo", prefix, "--dry-run", "-o", "json").json()
    assert plan["result"] == "would submit again"
    (done,) = muster("undo", prefix, "-o", "json").json()
    assert done["result"] == "submitted again"
    again = muster("workload", "describe", done["id"], "-o", "json").json()
    assert (again["name"], again["spec"]["priorityClass"]) == (prefix, "low")
    for words in ((), ("a", "--all"), ("--all", "--sequence", "1")):
        assert muster("undo", *words).code == 2
