"""`muster workspace`, `muster training pytorch` and its sisters: flags and files become the request of their kind."""

import socket
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from events.workload.kinds import KINDS
from muster.cli.distributed import FRAMEWORKS
from muster.cli.exits import ExitCode
from tests.support.shapes import WORKLOAD_ID, Reply, ShapeServer, workload_row

MADE = Reply(202, {"workloadId": WORKLOAD_ID, "name": "hello", "actualPhase": "Creating"})


@pytest.fixture
def distributed(api: ShapeServer) -> ShapeServer:
    api.on("POST", "/workloads/distributed", MADE)
    return api


def sent(api: ShapeServer, collection: str) -> Any:
    return api.asked("POST", f"/workloads/{collection}")[-1].body


@pytest.mark.parametrize(("word", "framework"), FRAMEWORKS.items())
def test_each_framework_has_a_submit_of_its_own(
    distributed: ShapeServer, muster: Any, *, word: str, framework: str
) -> None:
    ran = muster("training", word, "submit", "hello", "-i", "a", "--workers", "3", "--command", "--", "run", "me")
    assert ran.code == 0, ran.err
    spec = sent(distributed, "distributed")["spec"]
    assert (spec["distributedFramework"], spec["numWorkers"], spec["command"]) == (framework, 3, "run me")
    assert "masterSpec" not in sent(distributed, "distributed")


def test_an_mpi_launcher_is_given_by_the_masters_flags_and_workers_need_no_command(
    distributed: ShapeServer, muster: Any
) -> None:
    flags = ("--workers", "2", "--slots-per-worker", "4", "--mpi-launcher-creation-policy", "WaitForWorkersReady")
    launcher = ("--master-command", "mpirun -n 8 train", "--master-gpu-devices-request", "0")
    ran = muster("training", "mpi", "submit", "hello", "-i", "a", "-g", "4", *flags, *launcher)
    assert ran.code == 0, ran.err
    request = sent(distributed, "distributed")
    spec = {name: value for name, value in request["spec"].items() if name != "compute"}
    assert spec == {
        "image": "a",
        "distributedFramework": "MPI",
        "numWorkers": 2,
        "slotsPerWorker": 4,
        "mpiLauncherCreationPolicy": "WaitForWorkersReady",
    }
    compute = {"gpuDevicesRequest": 0}
    assert request["masterSpec"] == {"image": "a", "command": "mpirun -n 8 train", "compute": compute}


def test_a_masters_flags_say_only_what_is_otherwise(distributed: ShapeServer, muster: Any) -> None:
    flags = ("--master-gpu-devices-request", "0", "--master-image", "m", "--master-environment", "A=1")
    ran = muster("training", "pytorch", "submit", "hello", "-i", "a", "-g", "8", *flags, "--", "x")
    assert ran.code == 0, ran.err
    assert sent(distributed, "distributed")["masterSpec"] == {
        "image": "m",
        "args": "x",
        "compute": {"gpuDevicesRequest": 0},
        "environmentVariables": [{"name": "A", "value": "1"}],
    }


@pytest.mark.parametrize(
    ("flags", "storage"),
    [
        (("--pvc", "path=/a,claimInfo.size=1Gi"), {"pvc": None}),
        (("--pvc", "path=/a,claimInfo.size=1Gi", "--nfs", "server=s,path=/e,mountPath=/n"), {"pvc": None, "nfs": True}),
        ((), {"pvc": None}),
    ],
)
def test_a_master_mounts_no_claims_where_one_says_so(
    distributed: ShapeServer, muster: Any, flags: tuple[str, ...], storage: dict[str, Any]
) -> None:
    """S066: --master-no-pvcs; what else the workers mount, it mounts, too."""
    ran = muster("training", "pytorch", "submit", "hello", "-i", "a", *flags, "--master-no-pvcs")
    assert ran.code == 0, ran.err
    request = sent(distributed, "distributed")
    nfs = {"nfs": request["spec"]["storage"]["nfs"]} if "nfs" in storage else {}
    assert request["masterSpec"] == {"image": "a", "storage": {"pvc": None, **nfs}, "compute": {}}


def test_a_master_that_names_no_volumes_is_sent_without_any(distributed: ShapeServer, muster: Any) -> None:
    """So it has those of the workers, with what data sources add to them."""
    flags = ("--pvc", "path=/a,claimInfo.size=1Gi", "--master-image", "m")
    ran = muster("training", "pytorch", "submit", "hello", "-i", "a", *flags)
    assert ran.code == 0, ran.err
    assert "storage" not in sent(distributed, "distributed")["masterSpec"]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--datasource", "sets"), "--master-no-pvcs goes with no --datasource and no --template"),
        (("--template", "usual"), "--master-no-pvcs goes with no --datasource and no --template"),
        (("--no-master",), "--no-master goes with no other flag or field of a master"),
    ],
)
def test_no_claims_of_a_master_are_refused_where_nobody_knows_its_volumes(
    muster: Any, flags: tuple[str, ...], told: str
) -> None:
    ran = muster("training", "pytorch", "submit", "hello", "-i", "a", "--master-no-pvcs", *flags)
    assert ran.code == 2
    assert told in ran.err


WANDB = {"name": "T", "userCredential": {"name": "wandb", "key": "key"}}


@pytest.mark.parametrize(
    ("flags", "workers", "master"),
    [
        (("--environment-credential", "T=wandb/key", "--master-image", "m"), [WANDB], [WANDB]),
        (("--master-environment-credential", "T=wandb/key"), None, [WANDB]),
        (
            ("-e", "A=1", "--master-environment", "B=2", "--master-environment-credential", "T=wandb/key"),
            [{"name": "A", "value": "1"}],
            [{"name": "B", "value": "2"}, WANDB],
        ),
    ],
    ids=["as the workers", "of the master alone", "beside its other variables"],
)
def test_a_master_may_have_variables_of_credentials_of_its_own(
    distributed: ShapeServer, muster: Any, flags: tuple[str, ...], workers: Any, master: Any
) -> None:
    """S020: as the workers by their flag."""
    assert muster("training", "pytorch", "submit", "hello", "-i", "a", *flags, "--", "x").code == 0
    made = sent(distributed, "distributed")
    assert [made[part].get("environmentVariables") for part in ("spec", "masterSpec")] == [workers, master]


def test_a_variable_of_a_masters_credential_that_will_not_do_is_told_by_its_flag(muster: Any) -> None:
    ran = muster("training", "mpi", "submit", "hello", "-i", "a", "--master-environment-credential", "T=wandb")
    assert ran.code == 2
    assert "--master-environment-credential: 'T=wandb' names no key of a credential" in ran.err


@pytest.mark.parametrize(
    ("flags", "workers", "master"),
    [
        (("--master-image", "m"), ".", "."),
        (("--master-image", "m", "--working-dir", "sub"), "sub", "sub"),
        (("--master-working-dir", "sub"), ".", "sub"),
        (("--master-working-dir", "/w"), ".", "/w"),
    ],
)
def test_on_this_machine_a_master_of_its_own_starts_in_the_callers_folder_too(
    distributed: ShapeServer,
    muster: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    flags: tuple[str, ...],
    workers: str,
    master: str,
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    distributed.on("GET", "/nodes", Reply(body={"nodes": [{"name": socket.gethostname()}]}))
    ran = muster("training", "pytorch", "submit", "hello", "-i", "a", *flags, "--", "python3", "train.py")
    assert ran.code == 0, ran.err
    made = sent(distributed, "distributed")
    folders = [made[part]["workingDir"] for part in ("spec", "masterSpec")]
    assert folders == [str((tmp_path / folder).resolve()) for folder in (workers, master)]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--master-working-dir", "nowhere"), "--master-working-dir 'nowhere': there is no folder"),
        (("--master-working-dir", "/w", "--code", "."), "--master-working-dir '/w': with code each run starts in"),
    ],
)
def test_a_masters_folder_that_cannot_be_is_refused_by_its_own_flag(
    distributed: ShapeServer,
    muster: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    flags: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    distributed.on("GET", "/nodes", Reply(body={"nodes": [{"name": socket.gethostname()}]}))
    ran = muster("training", "pytorch", "submit", "hello", "-i", "a", *flags, "--", "x")
    assert (ran.code, told in ran.err) == (ExitCode.USAGE, True), ran.err
    assert not distributed.asked("POST", "/workloads/distributed")


def test_no_master_means_workers_only_and_goes_with_no_masters_flag(distributed: ShapeServer, muster: Any) -> None:
    assert muster("training", "jax", "submit", "hello", "-i", "a", "--no-master").code == 0
    assert sent(distributed, "distributed")["masterSpecSameAsWorker"] is False
    ran = muster("training", "jax", "submit", "hello", "-i", "a", "--no-master", "--master-image", "m")
    assert ran.code == ExitCode.USAGE
    assert "--no-master goes with no other flag" in ran.err


def test_a_file_of_a_distributed_training_may_have_a_master(
    distributed: ShapeServer, muster: Any, tmp_path: Path
) -> None:
    file = tmp_path / "request.yaml"
    file.write_text("name: hello\nspec: {image: w}\nmasterSpec: {image: m}\n")
    ran = muster("training", "pytorch", "submit", "-f", str(file))
    assert ran.code == 0, ran.err
    assert sent(distributed, "distributed")["masterSpec"]["image"] == "m"
    ran = muster("training", "submit", "-f", str(file))
    assert (ran.code, "holds a Distributed, and this submits a Training" in ran.err) == (ExitCode.USAGE, True)


def test_a_dry_run_names_the_flag_of_what_is_wrong(muster: Any, distributed: ShapeServer) -> None:
    words = ("submit", "hello", "-i", "a", "--workers", "0", "--dry-run=client")
    ran = muster("training", "pytorch", *words)
    assert ran.code == ExitCode.REJECTED
    assert "spec.numWorkers (--workers): must be between 1 and 499, got 0" in ran.err
    assert not distributed.asked("POST", "/workloads/distributed")


def test_a_framework_has_the_verbs_of_its_trainings(api: ShapeServer, muster: Any) -> None:
    api.on("GET", "/workloads", Reply(body={"workloads": [workload_row(type="Distributed")], "next": None}))
    api.on("POST", "/workloads/batch", Reply(202, {"items": [{"id": WORKLOAD_ID, "code": 202, "changed": True}]}))
    ran = muster("training", "pytorch", "delete", "--all", "-p", "default", "-y")
    assert ran.code == 0, ran.err
    asked = api.asked("GET", "/workloads")[-1].query["filterBy"]
    assert {"type==Distributed", "distributedFramework==PyTorch"} <= set(asked)
    for verb in ("describe", "logs", "suspend", "resume"):
        assert muster("training", "jax", verb, "--help").code == 0


def test_lists_are_of_one_kind_and_one_framework(api: ShapeServer, muster: Any) -> None:
    muster("training", "xgboost", "list")
    asked = api.asked("GET", "/workloads")[-1].query["filterBy"]
    assert asked[-2:] == ["type==Distributed", "distributedFramework==XGBoost"]
    muster("workspace", "list")
    assert api.asked("GET", "/workloads")[-1].query["filterBy"][-1] == "type==Workspace"


def test_a_workspace_has_its_flags_and_says_what_comes_next(api: ShapeServer, muster: Any) -> None:
    api.on("POST", "/workloads/workspaces", MADE)
    ran = muster("workspace", "submit", "hello", "-i", "a", "--allow-over-quota", "--command", "--", "jupyter", "lab")
    assert ran.code == 0, ran.err
    assert sent(api, "workspaces")["spec"] == {
        "image": "a",
        "allowOverQuota": True,
        "command": "jupyter lab",
    }
    assert "next: muster workspace logs hello -f" in ran.err
    assert muster("workspace", "submit", "hello", "-i", "a", "--runs", "2").code == ExitCode.USAGE


def test_an_inference_has_its_flags_and_says_what_comes_next(api: ShapeServer, muster: Any) -> None:
    """S067 to S069."""
    api.on("POST", "/workloads/inferences", MADE)
    scaling = ("--max-replicas", "4", "--metric", "latency", "--metric-threshold", "250")
    zero = ("--scale-to-zero-retention", "5m", "--model", "org/model")
    users = ("--serving-users", "ann,bob")
    ran = muster(*("inference", "submit", "hello", "-i", "a", "--serving-port", "8000"), *scaling, *zero, *users)
    assert ran.code == 0, ran.err
    assert sent(api, "inferences")["spec"] == {
        "image": "a",
        "model": {"name": "org/model"},
        "servingPort": {"container": 8000, "authorizedUsers": ["ann", "bob"]},
        "autoscaling": {
            "maxReplicas": 4,
            "metric": "latency",
            "metricThreshold": 250,
            "scaleToZeroRetentionSeconds": 300,
        },
    }
    assert "next: muster inference logs hello -f" in ran.err
    assert muster("inference", "submit", "hello", "-i", "a", "--backoff-limit", "2").code == ExitCode.USAGE
    muster("inference", "list")
    assert api.asked("GET", "/workloads")[-1].query["filterBy"][-1] == "type==Inference"


def test_an_inference_has_no_flags_for_volumes_that_it_refuses(api: ShapeServer, muster: Any) -> None:
    """S054."""
    others = ("--data-volume", "--host-path", "--nfs", "--s3", "--secret-volume")
    told = muster("inference", "submit", "--help").out
    assert not [flag for flag in others if f"{flag} " in told]
    assert "--git-sync " in told
    for flag in others:
        assert f"{flag} " in muster("workspace", "submit", "--help").out, flag
    ran = muster("inference", "submit", "hello", "-i", "a", "--serving-port", "8000", "--nfs", "path=/a")
    assert (ran.code, "there is no flag --nfs" in ran.err) == (2, True), ran.err
    assert api.requests == []


def test_describe_shows_the_kind_by_both_names_and_the_master(api: ShapeServer, muster: Any) -> None:
    row = workload_row(
        type="Distributed",
        kubernetesType="DistributedWorkload",
        spec={"image": "w"},
        masterSpec={"image": "m"},
    )
    api.on("GET", f"/workloads/{WORKLOAD_ID}", Reply(body=row))
    api.on("GET", f"/workloads/{WORKLOAD_ID}/history", Reply(body={"records": [], "next": None}))
    api.on("GET", f"/workloads/{WORKLOAD_ID}/pods", Reply(body={"pods": []}))
    ran = muster("workload", "describe", "hello")
    assert ran.code == 0, ran.err
    assert "Distributed (DistributedWorkload)" in ran.out
    assert "Spec of the master" in ran.out


def test_describe_shows_what_repeats_in_the_history_once_with_how_often_and_the_newest_time(
    api: ShapeServer, muster: Any
) -> None:
    def record(seq: int, kind: str, message: str, phase: str = "Running") -> dict[str, Any]:
        at = f"2026-01-02T03:{seq:02}:00Z"
        by = {"kind": "agent", "sub": "agent"}
        return {"sequence": seq, "index": 0, "at": at, "type": kind, "phase": phase, "message": message, "actor": by}

    saved = [
        record(n, "CheckpointSaved", f"its work was saved at 03:{n:02}:00 UTC: its newest file") for n in range(3, 40)
    ]
    began = [record(1, "PodStarted", "pod main-0 started", "Pending"), record(2, "PodStarted", "pod main-1 started")]
    saved.insert(20, record(22, "WorkloadChanged", "label a=b was set"))
    evicted = record(41, "PodsEvicted", "preempted: it needs its place", "Pending")
    again = record(42, "CheckpointSaved", "its work was saved at 03:42:00 UTC: its newest file")
    records = [*began, *saved, evicted, again]
    api.on("GET", f"/workloads/{WORKLOAD_ID}", Reply(body=workload_row()))
    api.on("GET", f"/workloads/{WORKLOAD_ID}/history", Reply(body={"records": records, "next": None}))
    api.on("GET", f"/workloads/{WORKLOAD_ID}/pods", Reply(body={"pods": []}))
    ran = muster("workload", "describe", "hello", "--utc", "--section", "history")
    assert ran.code == 0, ran.err
    title, _, *lines = ran.out.strip().splitlines()
    assert title == "History (6 lines, repeats together; all 42: muster workload history)"
    told = [" ".join(line.split()) for line in lines]
    assert [words.split()[0][14:16] for words in told] == ["01", "02", "22", "39", "41", "42"]
    assert "saved at 03:39:00 UTC: its newest file (37 times; the first 2026-01-02T03:03:00Z)" in told[3]
    whole = muster("workload", "history", "hello", "-o", "json").json()
    assert len(whole) == 42


def test_a_distributed_training_is_submitted_again_with_its_master(distributed: ShapeServer, muster: Any) -> None:
    row = workload_row(
        type="Distributed",
        spec={"image": "w", "distributedFramework": "JAX", "numWorkers": 2},
        masterSpec={"image": "m"},
        masterSpecSameAsWorker=False,
    )
    distributed.on("GET", f"/workloads/{WORKLOAD_ID}", Reply(body=row))
    ran = muster("training", "resubmit", "hello", "--name", "again", "--set", "spec.numWorkers=4")
    assert ran.code == 0, ran.err
    request = sent(distributed, "distributed")
    assert (request["spec"]["numWorkers"], request["masterSpec"]) == (4, {"image": "m"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("training list", "List standard trainings."),
        ("training jax list", "List distributed trainings with JAX."),
        ("workspace list", "List workspaces."),
        ("inference list", "List inferences."),
        ("workload list", "List workloads."),
    ],
)
def test_a_list_says_what_it_lists(muster: Any, words: str, said: str) -> None:
    assert said in muster(*words.split(), "--help").out


@pytest.mark.parametrize(
    ("noun", "file", "kind", "line"),
    [
        ("training", "mpi.yaml", "Distributed", "muster training mpi submit -f examples/mpi.yaml\n"),
        (
            "training",
            "distributed.yaml",
            "Distributed",
            "muster training pytorch submit -f examples/distributed.yaml\n",
        ),
        ("training", "inference.yaml", "Inference", "muster inference submit -f examples/inference.yaml\n"),
        ("workspace", "sweep.yaml", "Training", "muster training submit -f examples/sweep.yaml\n"),
    ],
)
def test_a_file_of_another_kind_leads_to_the_command_that_submits_it(  # noqa: PLR0917 (fixtures and cases)
    muster: Any, monkeypatch: pytest.MonkeyPatch, noun: str, file: str, kind: str, line: str
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    ran = muster(noun, "submit", "-f", f"examples/{file}", "--dry-run=client")
    assert (ran.code, f"is of kind '{kind}'" in ran.err, f"  → {line}" in ran.err) == (ExitCode.USAGE, True, True), (
        ran.err
    )


def test_a_file_of_no_kind_with_fields_of_another_leads_to_the_command_that_submits_it(
    muster: Any, tmp_path: Path
) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("name: a\nspec: {image: i, numWorkers: 2}\nmasterSpec: {image: i}\n")
    ran = muster("training", "submit", "-f", str(file), "--dry-run=client")
    line = f"muster training pytorch submit -f {file} (or tensorflow, xgboost, mpi, jax)\n"
    assert (ran.code, f"  → {line}" in ran.err) == (ExitCode.USAGE, True), ran.err


def test_a_file_of_another_framework_leads_to_the_command_that_submits_it(muster: Any, tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("name: a\nspec: {image: i, distributedFramework: TensorFlow}\n")
    ran = muster("training", "pytorch", "submit", "-f", str(file), "--dry-run=client")
    assert (ran.code, "is of the framework 'TensorFlow'" in ran.err) == (ExitCode.USAGE, True), ran.err
    assert f"  → muster training tensorflow submit -f {file}\n" in ran.err


def test_a_field_of_another_kind_is_refused_with_the_kind_that_has_it(muster: Any) -> None:
    line = ("submit", "a", "-i", "i", "--dry-run=client", "--set")
    ran = muster("training", *line, "masterSpec.image=x")
    said = "--set: 'masterSpec.image' is a field of distributed trainings, and this is of kind Training\n"
    todo = "  → leave it out; `muster training pytorch submit` and its sisters take it\n"
    assert (ran.code, said + todo in ran.err) == (ExitCode.USAGE, True), ran.err
    ran = muster("workspace", *line, "spec.parallelism=2")
    assert (ran.code, "is a field of trainings, and this is of kind Workspace\n" in ran.err) == (2, True), ran.err
    ran = muster("training", *line, "spec.imag=x")
    assert (ran.code, "there is no field 'spec.imag'" in ran.err) == (ExitCode.USAGE, True), ran.err


_EACH_KIND: Final = (
    ("training", "Training", ()),
    ("workspace", "Workspace", ()),
    ("inference", "Inference", ("--serving-port", "8000")),
    ("training jax", "Distributed", ("--workers", "2")),
)


@pytest.mark.parametrize("form", ["yaml", "json"])
@pytest.mark.parametrize(("noun", "kind", "flags"), _EACH_KIND)
def test_what_a_dry_run_prints_says_its_kind_and_every_command_that_reads_it_takes_it_for_that(  # noqa: PLR0917
    api: ShapeServer, muster: Any, tmp_path: Path, noun: str, kind: str, flags: tuple[str, ...], form: str
) -> None:
    line = (*noun.split(), "submit", "a", "-i", "i", *flags, "--dry-run=client", "-o", form)
    ran = muster(*line)
    assert ran.code == 0, ran.err
    file = tmp_path / f"one.{form}"
    file.write_text(ran.out)
    assert yaml.safe_load(ran.out)["kind"] == kind
    again = muster(*noun.split(), "submit", "-f", str(file), "--dry-run=client", "-o", form)
    assert (again.code, again.out) == (0, ran.out), again.err
    other = "workspace" if noun == "training" else "training"
    refused = muster(other, "submit", "-f", str(file), "--dry-run=client")
    assert (refused.code, f"is of kind '{kind}'" in refused.err) == (ExitCode.USAGE, True), refused.err
    answer = {"accepted": True, "fields": [], "issues": [], "notYetInForce": [], "placement": {"outcome": "runs"}}
    api.on("POST", f"/workloads/{KINDS[kind].collection}:evaluate", Reply(body=answer))
    (planned,) = muster("plan", "-f", str(file), "-o", "json").json()
    assert planned["kind"] == kind
    assert "kind" not in api.asked("POST", f"/workloads/{KINDS[kind].collection}:evaluate")[0].body
    api.on("POST", "/workloads:batch", Reply(202, {"items": [{"code": 202, "id": WORKLOAD_ID}]}))
    (applied,) = muster("apply", "-f", str(file), "-o", "json").json()
    assert (applied["kind"], applied["result"]) == (kind, "created")


def test_a_file_that_is_not_there_is_refused_in_words(muster: Any, tmp_path: Path, api: ShapeServer) -> None:
    ran = muster("training", "submit", "-f", str(tmp_path / "no.yaml"))
    assert (ran.code, "no.yaml cannot be read: there is no such file\n" in ran.err) == (ExitCode.USAGE, True), ran.err
    assert "Errno" not in ran.err
    (tmp_path / "odd.yaml").write_bytes(b"\xff\xfe")
    ran = muster("training", "submit", "-f", str(tmp_path / "odd.yaml"))
    assert (ran.code, "write YAML or JSON, in UTF-8" in ran.err) == (ExitCode.USAGE, True), ran.err
