"""`muster up` itself: starts, refuses, and leaves nothing behind. tests/faults kills each of its children."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest

from development.stack import Api, Stack
from muster.embedded import check_settings
from muster.embedded.datadir import DataDir
from muster.embedded.environment import service_environment
from tests.support.namespaces import without_namespaces

pytestmark = pytest.mark.e2e

SLEEPER = "import time; time.sleep(600)"


@pytest.fixture
def stack(server_folder: Path) -> Iterator[Stack]:
    stack = Stack(server_folder / "up", "--gpus=1")
    yield stack
    stack.close()


def up(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "muster.embedded.up", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | environment,
    )


@pytest.mark.one_in(2)
@pytest.mark.timeout(400)
def test_one_data_folder_lives_through_stops_and_mishaps(stack: Stack) -> None:
    """One `muster up` after another on the same folder, each asked for several things: a start takes ten seconds of
    processor time. The last two meet tables of another log, and no log at all.
    """
    hidden, copy = _first_start(stack)
    asyncio.run(_make_the_tables_those_of_an_older_version(stack))
    api, running = stack.api(), _interrupted_by_ctrl_c(stack)
    subprocess.run(["cp", "-a", str(stack.data_dir), str(copy)], check=True)
    del stack.environment["MUSTER_LOG_MAX_BYTES"]

    stack.output.clear()
    stack.start()
    assert "of another version of Muster; made again from the log" in "".join(stack.output)
    assert not DataDir(root=stack.data_dir).other_tables.exists()
    _nothing_is_lost(api, running)
    _a_log_keeps_the_room_that_it_was_given(api)
    _pods_see_neither(api, hidden, copy)
    _nothing_is_verified_of_a_copy_that_is_stopped(stack, copy)
    asyncio.run(_make_the_tables_those_of_another_log(stack))
    stack.stop()

    stack.output.clear()
    stack.start()
    _a_service_that_has_halted_is_named(stack)
    stack.stop()

    (stack.data_dir / "nats").rename(stack.folder / "elsewhere")
    refused = up("--data-dir", str(stack.data_dir), "--port", "0", XDG_CONFIG_HOME=str(stack.folder / "config"))
    assert refused.returncode == 1
    assert "the event log is gone" in refused.stderr
    assert "put the folder `nats` back" in refused.stderr


def _first_start(stack: Stack) -> tuple[Path, Path]:
    """In a folder where files have names of Python's own (a user's, or written there by a pod), with more room for the
    log. Where a user's secrets are, and where a copy of the data folder will be.
    """
    stack.started_in = stack.folder / "scripts"
    stack.started_in.mkdir(parents=True)
    for name in ("json", "queue", "asyncio", "logging"):
        (stack.started_in / f"{name}.py").write_text(
            "raise SystemExit('a program of Muster ran what stood in the folder')"
        )
    hidden = stack.folder / "hidden"
    hidden.mkdir()
    (hidden / "backup").write_text("a copy elsewhere")
    stack.environment["MUSTER_LOCAL_HIDDEN_FOLDERS"] = str(hidden)
    stack.environment["MUSTER_LOG_MAX_BYTES"] = str(32 * 2**30)
    stack.start()
    return hidden, stack.folder / "data.monday"


def _interrupted_by_ctrl_c(stack: Stack) -> str:
    """Issue section 4: a stop leaves no process behind. A second one on the same data was refused before. The id of a
    workload that ran.
    """
    api = stack.api()
    api.wait(api.submit("finished", command="true")["workloadId"], "Completed")
    running = api.submit("running", command=f"{sys.executable} -c '{SLEEPER}'")["workloadId"]
    api.wait(running, "Running")
    everything = stack.tree()
    assert any(SLEEPER in " ".join(process.cmdline()) for process in everything)
    second = up("--data-dir", str(stack.data_dir), "--port", "0")
    assert second.returncode == 1
    assert f"is in use by process {everything[0].pid}" in second.stderr

    assert stack.process is not None
    stack.process.send_signal(signal.SIGINT)
    assert stack.process.wait(60) == 0
    assert not psutil.wait_procs(everything, timeout=30)[1]
    return running


def _nothing_is_lost(api: Api, running: str) -> None:
    finished = next(row for row in api.get("/workloads")["workloads"] if row["name"] == "finished")
    assert finished["phase"] == "Completed"
    api.wait(running, "Running")
    assert any("interrupted" in sentence for sentence in api.story(running))


def _a_log_keeps_the_room_that_it_was_given(api: Api) -> None:
    """Also where this start says nothing of it: the server must be allowed what the stream has."""
    log = next(one for one in api.get("/streams")["streams"] if one["name"] == "EVENTS")
    assert log["maxBytes"] == 32 * 2**30


def _pods_see_neither(api: Api, *folders: Path) -> None:
    """Given a backup as the operating page has it made: its signing key would make a pod's user an administrator."""
    tried = api.submit("tried", python=f"import os; print({', '.join(f'os.listdir("{one}")' for one in folders)})")
    api.wait(tried["workloadId"], "Completed")
    assert "[] []" in api.logs(tried["workloadId"])


def _nothing_is_verified_of_a_copy_that_is_stopped(stack: Stack, copy: Path) -> None:
    """Though the one that it was copied from answers at its ports."""
    assert (copy / "ports.json").read_text() == (stack.data_dir / "ports.json").read_text()
    for verb in (("log", "verify"), ("projections", "rebuild")):
        refused = stack.muster(*verb, "--data-dir", str(copy))
        assert (refused.returncode, f"no `muster up` runs on {copy}" in refused.stderr) == (9, True)
    assert stack.muster("log", "verify", "--data-dir", str(stack.data_dir)).returncode == 0


async def _make_the_tables_those_of_an_older_version(stack: Stack) -> None:
    data = DataDir(root=stack.data_dir)
    tables = await asyncpg.connect(service_environment(data, data.ports())["MUSTER_POSTGRES_URL"])
    await tables.execute("UPDATE muster.current_projection SET shape = 1")
    await tables.close()


async def _make_the_tables_those_of_another_log(stack: Stack) -> None:
    data = DataDir(root=stack.data_dir)
    tables = await asyncpg.connect(service_environment(data, data.ports())["MUSTER_POSTGRES_URL"])
    schema = await tables.fetchval("SELECT schema_name FROM muster.current_projection")
    await tables.execute(f"UPDATE \"{schema}\".checkpoint SET last_commit_id = 'of another'")
    await tables.close()


def _a_service_that_has_halted_is_named(stack: Stack) -> None:
    """At the start and by the doctor: it hung for a minute without a word, and was "ready"."""
    said = "".join(stack.output)
    assert "!! projector: halted at schema" in said
    assert "it is another log" in said
    assert "muster projections rebuild" in said
    doctor = stack.muster("doctor")
    assert doctor.returncode == 1, doctor.stderr
    assert "✗ services: projector: halted at schema" in doctor.stdout


@pytest.mark.parametrize(
    ("accept", "setting", "said"),
    [(False, "shared", "roles are given to nobody else"), (True, "shared-accepted", "accepted")],
)
def test_a_kernel_that_refuses_namespaces_is_told_before_anything_starts(accept: bool, setting: str, said: str) -> None:
    program = f"from muster.embedded.up import local_pods; print(local_pods(accept_shared={accept}))"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        preexec_fn=without_namespaces(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.strip() == setting
    assert "not shut off from Muster's keys: no namespaces" in ran.stderr
    assert said in ran.stderr


def test_a_port_that_is_taken_is_refused_with_what_would_do(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        refused = up("--data-dir", str(tmp_path / "data"), "--port", str(other.getsockname()[1]))
    assert refused.returncode == 1
    assert "pass another with --port" in refused.stderr


@pytest.mark.parametrize(("option", "said"), [("--port=70000", "0 to 65535"), ("--gpus=-1", "0 to 64")])
def test_options_out_of_range_are_refused(option: str, said: str) -> None:
    refused = up(option)
    assert refused.returncode == 2
    assert said in refused.stderr


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("MUSTER_REQUESTS_PER_SECOND", "abc", "MUSTER_REQUESTS_PER_SECOND: Input should be a valid number"),
        ("MUSTER_REQUESTS_PER_SECOND", "abc", "given: 'abc'"),
        ("MUSTER_LOCAL_GPUS", "65", "MUSTER_LOCAL_GPUS: Input should be less than or equal to 64"),
        ("MUSTER_ADMIN_SUBJECT", "n" * 257, "MUSTER_ADMIN_SUBJECT: "),
        ("MUSTER_REQUEST_BURST", "5", "MUSTER_REQUEST_BURST is no setting"),
        ("MUSTER_REQUEST_BURST", "5", "did you mean MUSTER_REQUESTS_BURST?"),
        ("muster_log_level", "info", "did you mean MUSTER_LOG_LEVEL?"),
    ],
)
def test_a_setting_that_cannot_be_taken_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, given: str, said: str
) -> None:
    monkeypatch.setenv(name, given)
    assert check_settings.main(dict(os.environ)) == check_settings.REFUSED
    assert said in capsys.readouterr().err


def test_nothing_is_started_where_a_setting_cannot_be_taken(tmp_path: Path) -> None:
    refused = up("--data-dir", str(tmp_path / "data"), "--port=0", MUSTER_REQUESTS_PER_SECOND="abc")
    assert refused.returncode == 2
    assert "MUSTER_REQUESTS_PER_SECOND: Input should be a valid number" in refused.stderr
    assert "nothing was started" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "data").exists()


def test_of_a_variable_that_is_not_taken_the_name_is_said_and_never_the_value(tmp_path: Path) -> None:
    """Given one that `muster up` sets itself, one that is misspelt, and the command line's own."""
    refused = up(
        "--data-dir",
        str(tmp_path / "data"),
        MUSTER_HTTP_PORT="8099",
        MUSTER_NATS_PASSWORD="hush-1",
        MUSTER_NATS_PASWORD="hush-2",
        MUSTER_TOKEN="hush-3",
    )
    assert "MUSTER_HTTP_PORT is not taken: it is set by `muster up` itself; give --port" in refused.stderr
    assert "MUSTER_NATS_PASSWORD is not taken" in refused.stderr
    assert "MUSTER_NATS_PASWORD is no setting" in refused.stderr
    assert "MUSTER_TOKEN" not in refused.stderr
    assert "hush" not in refused.stderr + refused.stdout
