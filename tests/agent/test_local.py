"""Pods on this machine: exit codes, signals, output, restarts of the agent, and shims that are killed."""

import asyncio
import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator
from pathlib import Path
from shutil import copytree
from typing import Any

import psutil
import pytest

from events.cluster_protocol import LogsRequest
from events.workload.pod import DeviceShare
from events.workload.pod_sets import Container
from services.agent.backends.interface import BackendError
from services.agent.backends.local import shim
from services.agent.backends.local.backend import LocalBackend
from services.agent.backends.local.files import Fences, delete_old_logs
from services.agent.backends.local.program import program_of
from services.agent.backends.local.run_folder import Isolation, RunFolder
from tests.agent.given import CLUSTER, KEY, PYTHON, WORKLOAD, NoCode, Watched, log_text, machine, open_local, run_pod

pytestmark = pytest.mark.anyio


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture(params=["isolated", "shared"])
async def local(data: Path, request: pytest.FixtureRequest) -> AsyncIterator[Watched]:
    shared = {"isolation": None} if request.param == "shared" else {}
    watched = await open_local(data, log_max_bytes=256 * 1024, **shared)
    yield watched
    await watched.close()


def shell(local: Watched, script: str, *, token: int = 1, **more: Any):
    return run_pod(token, node_name=local.node, arguments=("/bin/sh", "-c", script), **more)


def python(local: Watched, program: str, *, token: int = 1, **more: Any):
    return run_pod(token, node_name=local.node, arguments=(PYTHON, "-S", "-c", program), **more)


async def ended(local: Watched, pod: object, token: int = 1):
    await local.backend.apply(pod)  # pyright: ignore[reportArgumentType]
    return await local.until("succeeded", "failed", "stopped", "interrupted", "refused", token=token)


def alive(pid: int) -> bool:
    entry = shim.process(pid)
    return entry is not None and entry.state != b"Z"


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def written(*paths: Path) -> None:
    await eventually(lambda: all(path.exists() and path.read_text().strip() for path in paths))


async def wait_for(path: Path) -> None:
    await eventually(path.exists)


async def test_a_copy_of_the_data_folder_beside_it_is_hidden_too_and_nothing_else_there_is(tmp_path: Path) -> None:
    """Given a copy that was made while an agent ran, and given that the data folder itself is one."""
    data, copy, other = tmp_path / "muster", tmp_path / "muster.monday", tmp_path / "other"
    for folder in (data, copy):
        (folder / "keys").mkdir(parents=True)
        (folder / "keys" / "local.json").write_text("the signing key")
    other.mkdir()
    (other / "mine").write_text("kept")
    local = await open_local(data / "local" / "c1", isolation=Isolation(hidden=(str(data),)))
    late = tmp_path / "muster.tuesday"
    copytree(copy, late)
    end = await ended(local, shell(local, f"cat {copy}/keys/local.json {late}/keys/local.json {other}/mine"))
    said = await log_text(local.backend)
    await local.close()
    assert end.kind == "failed"
    assert "kept" in said
    assert "the signing key" not in said


@pytest.mark.parametrize(
    ("script", "kind", "code", "reason"),
    [
        ("exit 0", "succeeded", 0, ""),
        ("exit 1", "failed", 1, "exit_code"),
        ("exit 255", "failed", 255, "exit_code"),
        ("kill -9 $$", "failed", 137, "signal"),
        ("kill -SEGV $$", "failed", 139, "signal"),
        ("kill -TERM $$", "failed", 143, "signal"),
    ],
)
async def test_how_a_command_ends_is_told_as_a_shell_tells_it(
    local: Watched, script: str, kind: str, code: int, reason: str
) -> None:
    end = await ended(local, shell(local, script))
    assert (end.kind, end.exit_code, end.reason) == (kind, code, reason)


@pytest.mark.parametrize(
    ("arguments", "more", "code", "said"),
    [
        ((), {}, None, "entry point of 'python:3.13': give it a command, which stands behind the flags: -- program"),
        (("no-such-command-anywhere",), {}, 127, "command not found"),
        (("/etc/passwd",), {}, 126, "not executable"),
        (("/bin/true",), {"working_dir": "/no/such/folder"}, None, "working directory"),
        (("/bin/true",), {"environment": {"A": "x" * 3_000_000}}, None, "could not start"),
        (("/bin/true", "a\0b"), {}, None, "could not start"),
    ],
)
async def test_a_command_that_cannot_be_started_failed_and_says_why(
    local: Watched, arguments: tuple[str, ...], more: dict[str, Any], code: int | None, said: str
) -> None:
    end = await ended(local, run_pod(node_name=local.node, arguments=arguments, **more))
    assert (end.kind, end.exit_code) == ("failed", code)
    assert said in end.message


async def test_what_runs_in_the_place_of_the_image_is_named(local: Watched, tmp_path: Path) -> None:
    """Given a Python of another version than the image's, as the first of the workload's PATH."""
    other = tmp_path / "bin"
    other.mkdir()
    (other / "python9.9").symlink_to(PYTHON)
    real = Path(PYTHON).resolve().name
    run = run_pod(
        node_name=local.node,
        image="python:3.12",
        arguments=("python9.9", "-S", "-c", "pass"),
        environment={"PATH": str(other)},
    )
    await ended(local, run)
    [note] = {seen.note for seen in local.history[KEY, 1]}
    assert note == (
        f"image 'python:3.12' is recorded, not pulled: 'python9.9' is {other}/python9.9 ({real}) of this machine; "
        "CPU and memory limits are not enforced here"
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("x", "y"), "'x' is {folder}/x of this machine"),
        (("{folder}/x",), ""),
        (("{folder}/linked",), "'{folder}/linked' is {folder}/linked (x) of this machine"),
        (("./x",), ""),
        (("nowhere",), ""),
        (("x\0",), ""),
        ((), ""),
    ],
)
def test_a_program_is_looked_at_and_never_run(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    program = tmp_path / "x"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    (tmp_path / "linked").symlink_to(program)
    given = tuple(word.format(folder=tmp_path) for word in arguments)
    assert program_of(given, {"PATH": str(tmp_path)}) == told.format(folder=tmp_path)
    assert not (tmp_path / "ran").exists()


async def test_output_is_kept_by_stream_and_a_last_line_needs_no_newline(local: Watched) -> None:
    await ended(local, shell(local, "echo out; echo err >&2; printf 'no newline'"))
    lines = sorted(await log_text(local.backend))
    assert lines == ["err", "no newline", "out"]


async def test_bytes_that_are_no_text_do_no_harm(local: Watched) -> None:
    await ended(local, python(local, "import os; os.write(1, bytes(range(256)) + b'\\nend\\n')"))
    lines = await log_text(local.backend)
    assert lines[-1] == "end"
    assert "�" in lines[-2]


async def test_a_line_without_end_is_kept_in_pieces_and_loses_nothing(local: Watched) -> None:
    await ended(local, python(local, "import sys; sys.stdout.write('x' * 50_000)"))
    lines = await log_text(local.backend)
    assert len(lines) > 1
    assert sum(map(len, lines)) == 50_000


async def test_huge_output_keeps_the_newest_within_the_limit(local: Watched) -> None:
    await ended(local, python(local, "for i in range(200_000): print('line', i)"))
    lines = await log_text(local.backend)
    assert lines[-1] == "line 199999"
    numbers = [int(line.split()[1]) for line in lines]
    assert numbers == list(range(numbers[0], 200_000))
    assert await log_text(local.backend, tail_lines=3) == ["line 199997", "line 199998", "line 199999"]
    assert len(await log_text(local.backend, tail_lines=3000)) == 3000


async def test_a_followed_log_goes_on_over_rotations_to_the_very_end(local: Watched) -> None:
    program = (
        "import time\nfor i in range(20_000):\n  print('line', i, flush=(i % 1000 == 0))\n  i % 500 or time.sleep(.02)"
    )
    await local.backend.apply(python(local, program))
    await local.until("running")
    async with asyncio.timeout(60):
        lines = await log_text(local.backend, follow=True)
    assert lines[-1] == "line 19999"


async def test_a_log_is_read_whole_though_its_run_is_settled_in_that_very_moment(local: Watched) -> None:
    """Between the look for its folder and the first read."""
    for token in range(1, 6):
        await ended(local, shell(local, "seq 1 100", token=token), token)
        request = LogsRequest(workload_id=WORKLOAD, pod_key=KEY, tail_lines=100)

        async def read(request: LogsRequest = request) -> int:
            return sum([len(batch) async for batch in local.backend.logs(request)])

        lines, _ = await asyncio.gather(read(), local.backend.forget(KEY, token))
        assert lines == 100


async def test_since_leaves_out_what_is_older(local: Watched) -> None:
    await local.backend.apply(shell(local, "echo early; sleep 0.6; echo late"))
    end = await local.until("succeeded")
    middle = end.at.fromtimestamp(end.at.timestamp() - 0.3, end.at.tzinfo)
    assert await log_text(local.backend, since=middle) == ["late"]


async def test_the_environment_is_clean_and_says_who_the_pod_is(local: Watched, data: Path) -> None:
    os.environ["MUSTER_TEST_SECRET"] = "must not be seen"
    pod = shell(
        local,
        "env; pwd",
        environment={"MINE": "a b", "MUSTER_RUN": "forged", "HOME": "/tmp"},
        devices=(DeviceShare(device=1, milli=500),),
        gpu_limit_milli=750,
    )
    await ended(local, pod)
    del os.environ["MUSTER_TEST_SECRET"]
    text = "\n".join(await log_text(local.backend))
    for expected in (
        "MINE=a b",
        "HOME=/tmp",
        "LANG=C.UTF-8",
        "PYTHONUNBUFFERED=1",
        "MUSTER_WORKLOAD_ID=w-1",
        "MUSTER_RUN=2",  # counted from 1, as the history and the list of pods do
        "JOB_COMPLETION_INDEX=0",
        "CUDA_VISIBLE_DEVICES=1",
        "NVIDIA_VISIBLE_DEVICES=1",
        "GPU_PORTION=0.5",
        "GPU_PORTION_LIMIT=0.75",
        f"GPU_MEMORY_LIMIT_BYTES={60 * 1024**3}",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=75",
        f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={60 * 1024}M",
        f"{data}/pods/{KEY}/1/work",
    ):
        assert expected in text
    assert "MUSTER_TEST_SECRET" not in text


async def test_a_home_of_its_own_is_empty_named_and_gone_with_the_run(local: Watched, data: Path) -> None:
    """S025; also where the run sees nothing of other runs."""
    home = data / "pods" / KEY / "1" / "home"
    pod = shell(
        local, 'cd && pwd && ls -A | wc -l && echo kept > mine && cat "$HOME/mine"', container=Container(home=True)
    )
    await ended(local, pod)
    assert [line.strip() for line in await log_text(local.backend)] == [str(home), "0", "kept"]
    await local.backend.forget(KEY, 1)
    await eventually(lambda: not list(data.glob("**/home")))


@pytest.mark.parametrize(("environment", "at_once"), [({}, True), ({"PYTHONUNBUFFERED": ""}, False)])
async def test_a_python_program_that_is_killed_loses_nothing_that_it_wrote_unless_it_asked_for_a_buffer(
    local: Watched, environment: dict[str, str], *, at_once: bool
) -> None:
    """The last line without its end, too: the log is read out before the run is said to have ended."""
    program = "import os, signal; print('first'); print('last', end=''); os.kill(os.getpid(), signal.SIGKILL)"
    await local.backend.apply(shell(local, f'exec {sys.executable} -c "{program}"', environment=environment))
    await local.until("failed")
    assert await log_text(local.backend) == (["first", "last"] if at_once else [])


async def test_a_suspend_keeps_all_that_was_written_until_then(local: Watched) -> None:
    """More than a pipe holds at once, written while the program is being ended."""
    trap = f"seq -f {'x' * 90}-%04g 1 1000; printf last; exit 0"
    script = f"exec 2>/dev/null; trap '{trap}' TERM; echo ready; while :; do sleep 0.05; done"
    await local.backend.apply(shell(local, script))
    await local.until("running")
    while await log_text(local.backend) != ["ready"]:
        await asyncio.sleep(0.05)
    await local.backend.delete(KEY, 1, 30)
    await local.until("stopped")
    assert await log_text(local.backend) == ["ready", *(f"{'x' * 90}-{number:04}" for number in range(1, 1001)), "last"]


async def test_a_pod_without_devices_sees_none(local: Watched) -> None:
    await ended(local, shell(local, 'echo "[$CUDA_VISIBLE_DEVICES]"; env'))
    lines = await log_text(local.backend)
    assert lines[0] == "[]"
    assert not [line for line in lines if line.startswith("GPU_")]


async def test_a_stop_reaches_everything_that_the_command_started(local: Watched, data: Path, tmp_path: Path) -> None:
    """Also a grandchild in a session of its own, and one that ignores SIGTERM."""
    a, b = tmp_path / "a", tmp_path / "b"
    script = f"setsid sleep 1000 & echo $! > {a}; (trap '' TERM; echo $$; sleep 1000) & echo $! > {b}; wait"
    await local.backend.apply(shell(local, script))
    await written(a, b)
    await eventually(lambda: len(shim.below(_shim_pid(data))) >= 3)
    pids = shim.below(_shim_pid(data))
    await local.backend.delete(KEY, 1, 1)
    await local.until("stopped")
    assert not any(map(alive, pids))


async def test_what_a_finished_command_left_in_the_background_ends_with_its_pod(local: Watched, tmp_path: Path) -> None:
    end = await ended(local, shell(local, f"setsid sleep 1000 & echo $! > {tmp_path / 'a'}; exit 3"))
    assert end.exit_code == 3
    assert not _live_commands(KEY)


async def test_a_command_that_forks_all_the_time_is_killed_all_the_same(local: Watched, tmp_path: Path) -> None:
    program = (
        "import os, time\n"
        f"open({str(tmp_path / 'up')!r}, 'w').close()\n"
        "while True:\n"
        "  if os.fork() == 0:\n"
        "    time.sleep(.3)\n"
        "    os._exit(0) if os.fork() else time.sleep(1000)\n"
        "  time.sleep(.01)\n"
    )
    await local.backend.apply(python(local, program))
    await wait_for(tmp_path / "up")
    await asyncio.sleep(0.7)
    await local.backend.delete(KEY, 1, 0)
    await local.until("stopped")
    assert not _live_commands(KEY)


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


async def test_a_program_that_handles_sigterm_within_its_grace_period_is_stopped_with_its_own_exit_code(
    local: Watched, tmp_path: Path
) -> None:
    script = f"trap 'echo bye; exit 9' TERM; touch {tmp_path}/up; while :; do sleep 0.02; done"
    await local.backend.apply(shell(local, script))
    await wait_for(tmp_path / "up")
    await local.backend.delete(KEY, 1, 20)
    end = await local.until("stopped")
    assert end.exit_code == 9
    assert "bye" in await log_text(local.backend)


async def test_who_asks_first_decides_what_an_end_counts_as_and_whoever_asks_later_can_only_shorten_it(
    local: Watched, data: Path
) -> None:
    await local.backend.apply(shell(local, "trap '' TERM; sleep 1000 & wait; sleep 1000"))
    await local.until("running")
    asked = [(60, "stopped", 60.0), (600, "stopped", 60.0), (20, "stopped", 20.0)]
    for grace, kind, left in asked:
        await local.backend.delete(KEY, 1, grace)
        stop = RunFolder(data / "pods" / KEY / "1").read_stop()
        assert stop is not None
        assert (stop.kind, stop.grace_seconds) == (kind, left)
    await local.backend.interrupt(2.0)
    end = await local.until("stopped", "interrupted")
    assert (end.kind, end.reason) == ("stopped", "stopped")


async def test_a_stop_right_after_the_start_is_never_lost(local: Watched) -> None:
    for token in range(1, 8):
        key = f"k-main-{token}"
        await local.backend.apply(shell(local, "sleep 1000", token=token, pod_key=key))
        await asyncio.sleep(token * 0.008)
        await local.backend.delete(key, token, 3)
    for token in range(1, 8):
        await local.until("stopped", token=token, key=f"k-main-{token}")


async def test_a_run_whose_shim_was_killed_is_interrupted_and_nothing_of_it_lives(
    local: Watched, data: Path, tmp_path: Path
) -> None:
    """Never two live copies: what the run left is killed before its end is told."""
    a, b = tmp_path / "a", tmp_path / "b"
    await local.backend.apply(
        shell(local, f"setsid sleep 1000 & echo $! > {a}; env -i sleep 1000 & echo $! > {b}; wait")
    )
    await written(a, b)
    await local.until("running")
    await eventually(lambda: len(shim.below(_shim_pid(data))) >= 3)
    pids = shim.below(_shim_pid(data))
    os.kill(_shim_pid(data), signal.SIGKILL)
    end = await local.until("interrupted", "failed")
    assert (end.kind, end.reason) == ("interrupted", "lost")
    assert not any(map(alive, pids))


def _shim_pid(root: Path, token: int = 1, key: str = KEY) -> int:
    record = shim.read_record(str(root / "pods" / key / str(token)), "shim.json")
    assert record is not None
    pid = record["pid"]
    assert isinstance(pid, int)
    return pid


async def test_a_shim_that_somebody_terminates_ends_its_pod_as_interrupted(local: Watched, data: Path) -> None:
    await local.backend.apply(shell(local, "sleep 1000"))
    await local.until("running")
    os.kill(_shim_pid(data), signal.SIGTERM)
    end = await local.until("interrupted", "failed")
    assert (end.kind, end.reason) == ("interrupted", "shutdown")


async def test_an_agent_that_comes_back_finds_its_pods_and_what_ended_meanwhile(data: Path) -> None:
    first = await open_local(data)
    await first.backend.apply(shell(first, "sleep 1000", pod_key="stays-main-0"))
    await first.backend.apply(shell(first, "sleep 0.3; exit 4", pod_key="ends-main-0"))
    await first.backend.apply(shell(first, "sleep 1000", pod_key="killed-main-0"))
    for key in ("stays-main-0", "ends-main-0", "killed-main-0"):
        await first.until("running", key=key)
    before = first.newest(key="stays-main-0")
    first._task.cancel()
    await first.backend.close()
    os.kill(_shim_pid(data, key="killed-main-0"), signal.SIGKILL)
    await eventually((data / "pods/ends-main-0/1/exit.json").exists)

    second = await open_local(data)
    pods = {pod.pod_key: pod for pod in (await second.backend.list_all()).pods}
    assert before is not None
    assert pods["stays-main-0"].kind == "running"
    assert pods["stays-main-0"].started_at == before.started_at
    assert (pods["ends-main-0"].kind, pods["ends-main-0"].exit_code) == ("failed", 4)
    assert (pods["killed-main-0"].kind, pods["killed-main-0"].reason) == ("interrupted", "lost")
    assert second.backend.fences()["stays-main-0"] == 1
    await second.backend.delete("stays-main-0", 1, 5)
    assert (await second.until("stopped", key="stays-main-0")).exit_code == 143
    await second.close()


async def test_an_agent_that_comes_back_while_a_pod_starts_sees_it_running(data: Path) -> None:
    for attempt in range(6):
        first = await open_local(data)
        key = f"k{attempt}-main-0"
        await first.backend.apply(shell(first, "sleep 1000", pod_key=key))
        await asyncio.sleep(attempt * 0.01)
        first._task.cancel()
        await first.backend.close()
        second = await open_local(data)
        newest = next(pod for pod in (await second.backend.list_all()).pods if pod.pod_key == key)
        if newest.kind == "starting":
            newest = await second.until("running", "interrupted", key=key)
        # A shim that was not yet there is told that it came too late, and its run may start again elsewhere.
        assert newest.kind in ("running", "interrupted")
        async with asyncio.timeout(60):
            while (newest.kind == "running") != bool(_live_commands(key)):
                await asyncio.sleep(0.02)
        await second.close()


@pytest.mark.parametrize("watcher", ["lives", "was killed"])
async def test_a_run_whose_file_the_disk_lost_is_ended_and_its_log_kept(data: Path, watcher: str) -> None:
    first = await open_local(data)
    await first.backend.apply(shell(first, "echo here; sleep 1000"))
    await first.until("running")
    await eventually(lambda: bool((data / "pods" / KEY / "1" / "log").read_text()))
    if watcher == "was killed":
        os.kill(_shim_pid(data), signal.SIGKILL)
    first._task.cancel()
    await first.backend.close()
    (data / "pods" / KEY / "1" / "run.json").write_bytes(b"\0" * 300)
    second = await open_local(data)
    assert not _live_commands(KEY)
    assert (await second.backend.list_all()).pods == ()
    assert "here" in (data / "settled" / KEY / "1" / "log").read_text()
    await second.close()


def _live_commands(key: str) -> list[int]:
    mark = f"MUSTER_RUN_ID={CLUSTER}/{key}/1".encode()
    return [pid for pid in shim.process_table() if mark in _environ(pid)]


async def test_a_shutdown_interrupts_all_pods_in_time_also_those_that_will_not_go(data: Path) -> None:
    local = await open_local(data)
    for index in range(3):
        await local.backend.apply(local.pod(pod_key=f"k{index}-main-0", stubborn=index == 1, grace_seconds=600))
    for index in range(3):
        await local.until("running", key=f"k{index}-main-0")
    async with asyncio.timeout(60):  # and not the ten minutes that each may take
        assert await local.backend.interrupt(3) == 3
    for index in range(3):
        end = await local.until("interrupted", key=f"k{index}-main-0")
        assert end.reason == "shutdown"
    await local.close()


async def test_a_second_agent_on_the_same_folder_is_refused(
    local: Watched, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.agent.backends.local.backend.LOCK_SECONDS", 0.2)
    with pytest.raises(BackendError, match="another agent holds"):
        await LocalBackend(machine(data), NoCode()).open()


def _processor_seconds(key: str) -> list[float]:
    times = [psutil.Process(pid).cpu_times() for pid in _live_commands(key)]
    return [each.user + each.system for each in times]


async def test_processor_time_and_memory_are_measured_over_the_whole_tree(local: Watched) -> None:
    program = "import os\nos.fork()\nx = bytearray(50_000_000)\nwhile True: x[0] = 1"
    await local.backend.apply(python(local, program))
    running = await local.until("running")
    # More than the shortest time that is measured, and a good part of it by each.
    await eventually(lambda: sum(seconds > 0.6 for seconds in _processor_seconds(KEY)) == 2)
    at_least = sum(_processor_seconds(KEY))

    (sample,) = await local.backend.usage()

    assert running.started_at is not None
    measured = sample.cpu_milli / 1000 * (sample.at - running.started_at).total_seconds()
    assert measured > at_least - 0.05
    assert sample.memory_bytes > 90_000_000


def test_fences_outlive_their_process_and_a_torn_last_line(tmp_path: Path) -> None:
    fences = Fences(tmp_path / "fences")
    fences.raise_to("a", 3)
    fences.raise_to("a", 2)
    fences.raise_to("b", 1)
    fences.close()
    with (tmp_path / "fences").open("a") as file:
        file.write("b 7")
    again = Fences(tmp_path / "fences")
    assert again.tokens == {"a": 3, "b": 1}
    again.close()


def test_fences_outlive_what_a_disk_made_of_one_of_their_lines(tmp_path: Path) -> None:
    (tmp_path / "fences").write_bytes(b"a 3 4000000000\n\xff\xfe 2 4000000000\n\0\0\0\nb 1 4000000000\n")
    fences = Fences(tmp_path / "fences")
    assert fences.tokens == {"a": 3, "b": 1}
    fences.close()


@contextlib.contextmanager
def no_file_grows_beyond(size: int) -> Generator[None]:
    """As where the disk is full: what is written is cut short, then refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 3, len("b 2 17"), len("b 2 1700000000")])
def test_a_fence_that_the_disk_did_not_take_is_not_raised_and_takes_no_other_with_it(tmp_path: Path, room: int) -> None:
    fences = Fences(tmp_path / "fences")
    fences.raise_to("a", 1)
    with no_file_grows_beyond((tmp_path / "fences").stat().st_size + room), pytest.raises(OSError):
        fences.raise_to("b", 2)
    assert fences.tokens == {"a": 1}
    fences.raise_to("c", 3)
    fences.raise_to("b", 2)
    fences.close()
    again = Fences(tmp_path / "fences")
    assert again.tokens == {"a": 1, "b": 2, "c": 3}
    again.close()


async def test_a_full_disk_lets_pods_be_ended_later_not_never(local: Watched, data: Path) -> None:
    with no_file_grows_beyond((data / "fences").stat().st_size):
        with pytest.raises(BackendError, match=r"too large|No space"):
            await local.backend.delete(KEY, 1, 0)
        with pytest.raises(BackendError, match=r"too large|No space"):
            await local.backend.forget(KEY, 1)
    await local.backend.delete(KEY, 1, 0)
    assert local.backend.fences()[KEY] == 2


def test_old_logs_go_first_and_by_age_and_by_size(tmp_path: Path) -> None:
    for number in range(4):
        folder = tmp_path / f"k{number}" / "1"
        folder.mkdir(parents=True)
        (folder / "log").write_bytes(b"x" * 1000)
        os.utime(folder / "log", (time.time() - number * 100, time.time() - number * 100))
    assert delete_old_logs(tmp_path, 250, 10_000) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k0", "k1", "k2"]
    assert delete_old_logs(tmp_path, 250, 1500) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k0"]
