"""What happens on this machine before a pod is ended: its own signal, or its own command, within its grace period."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from events.workload.pod_sets import StopBy
from events.workload.volumes import ClaimedFolder, NewClaim
from services.agent.backends.local.backend import LocalBackend
from tests.agent.given import KEY, NoCode, Watched, log_text, machine, open_local, run_pod
from tests.agent.test_local import wait_for

pytestmark = pytest.mark.anyio

SAVES = ClaimedFolder(
    mount_path="/muster/checkpoint", new=NewClaim(size_bytes=1, modes=("ReadWriteOnce",)), checkpoint=True
)


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Watched]:
    watched = await open_local(tmp_path / "data")
    yield watched
    await watched.close()


async def running(local: Watched, script: str, up: Path, **more: Any) -> None:
    """A pod of this script, which has come to where it makes this file."""
    fields: dict[str, Any] = {"node_name": local.node, "arguments": ("/bin/bash", "-c", script), "volumes": (SAVES,)}
    await local.backend.apply(run_pod(1, **(fields | more)))
    await local.until("running")
    await wait_for(up)


def turns(up: Path) -> str:
    """A shell that does nothing but heed signals, without a process that dies of them beside it."""
    return f"touch {up}; while :; do read -t 0.02 nothing <> <(:); done"


async def test_a_pod_gets_the_signal_that_it_asked_for_and_no_sigterm(local: Watched, tmp_path: Path) -> None:
    """S049, issue 14 section 2: a signal that the submitter chose."""
    up = tmp_path / "up"
    traps = "trap 'echo saved > $MUSTER_CHECKPOINT_DIR/state; echo bye; exit 7' USR1; trap 'echo TERM' TERM"
    await running(local, f"{traps}; {turns(up)}", up, stop_by=StopBy(signal="SIGUSR1"))
    await local.backend.delete(KEY, 1, 20)
    end = await local.until("stopped")
    assert (end.exit_code, end.reason) == (7, "stopped")
    assert await log_text(local.backend) == [
        "muster: told to end: SIGUSR1 sent; killed in 20 s unless it ends before",
        "bye",
    ]
    assert end.checkpoint_at is not None, "what it saved at the very end counts"


async def test_a_signal_does_not_end_what_the_program_started(local: Watched, tmp_path: Path) -> None:
    """Given a process of it that would die of SIGUSR1: as a data loader's, without which the program cannot save."""
    up = tmp_path / "up"
    traps = "sleep 1000 & child=$!; trap 'kill -0 $child && echo lives; exit 7' USR1"
    await running(local, f"{traps}; {turns(up)}", up, stop_by=StopBy(signal="SIGUSR1"))
    await local.backend.delete(KEY, 1, 20)
    await local.until("stopped")
    assert (await log_text(local.backend))[-1] == "lives"


async def test_a_pod_that_does_not_heed_its_signal_is_killed_when_its_grace_is_over(
    local: Watched, tmp_path: Path
) -> None:
    up = tmp_path / "up"
    script = f"trap '' USR1 TERM; {turns(up)}"
    await running(local, script, up, stop_by=StopBy(signal="SIGUSR1"))
    await local.backend.delete(KEY, 1, 1)
    end = await local.until("stopped")
    assert end.exit_code == 128 + signal.SIGKILL
    assert (await log_text(local.backend))[-1] == "muster: the grace period is over: killed"


async def test_a_command_runs_as_the_pod_does_before_it_gets_sigterm(local: Watched, tmp_path: Path) -> None:
    """Given one that needs the pod's folder, its environment and its working folder."""
    up = tmp_path / "up"
    command = ("/bin/sh", "-c", "pwd > $MUSTER_CHECKPOINT_DIR/at; echo $COLOUR to stderr >&2; exit 4")
    script = f"trap 'echo terminated; cat $MUSTER_CHECKPOINT_DIR/at; exit 0' TERM; pwd; {turns(up)}"
    await running(local, script, up, stop_by=StopBy(arguments=command), environment={"COLOUR": "red"})
    await local.backend.delete(KEY, 1, 20)
    end = await local.until("stopped")
    assert end.exit_code == 0
    folder, told, said, sent, terminated, seen = await log_text(local.backend)
    assert seen == folder
    assert told == "muster: told to end: its preStop command runs; killed in 20 s unless it ends before"
    assert (said, sent) == ("red to stderr", "muster: its preStop command ended with exit code 4; SIGTERM sent")
    assert terminated == "terminated"


async def test_a_command_that_takes_too_long_ends_with_its_pod(local: Watched, tmp_path: Path) -> None:
    up = tmp_path / "up"
    command = ("/bin/sh", "-c", "trap '' TERM; echo $$; sleep 1000 & wait; sleep 1000")
    await running(local, f"touch {up}; sleep 1000", up, stop_by=StopBy(arguments=command))
    await local.backend.delete(KEY, 1, 1)
    end = await local.until("stopped")
    assert end.exit_code == 128 + signal.SIGKILL
    lines = await log_text(local.backend)
    assert lines[-1] == "muster: the grace period is over: killed"
    assert not any("SIGTERM" in line for line in lines)


async def test_a_command_that_is_not_there_does_not_keep_the_pod_from_ending(local: Watched, tmp_path: Path) -> None:
    up = tmp_path / "up"
    await running(local, f"trap 'exit 3' TERM; {turns(up)}", up, stop_by=StopBy(arguments=("no-such",)))
    await local.backend.delete(KEY, 1, 20)
    assert (await local.until("stopped")).exit_code == 3
    told = "its preStop command could not be started: command not found on this machine: 'no-such'; SIGTERM sent"
    assert (await log_text(local.backend))[-1] == f"muster: {told}"


async def test_a_pod_whose_program_ends_meanwhile_does_not_wait_for_its_command(local: Watched, tmp_path: Path) -> None:
    up, done = tmp_path / "up", tmp_path / "done"
    command = ("/bin/sh", "-c", f"touch {done}; sleep 1000")
    script = f"touch {up}; while [ ! -e {done} ]; do sleep 0.02; done; exit 5"
    await running(local, script, up, stop_by=StopBy(arguments=command))
    await local.backend.delete(KEY, 1, 60)
    assert (await local.until("stopped")).exit_code == 5


async def test_without_any_grace_nothing_runs_before_the_end(local: Watched, tmp_path: Path) -> None:
    up, done = tmp_path / "up", tmp_path / "done"
    await running(local, f"touch {up}; sleep 1000", up, stop_by=StopBy(arguments=("/bin/touch", str(done))))
    await local.backend.delete(KEY, 1, 0)
    await local.until("stopped")
    assert not done.exists()


async def test_a_later_request_shortens_the_grace_and_runs_nothing_again(local: Watched, tmp_path: Path) -> None:
    up, runs = tmp_path / "up", tmp_path / "runs"
    command = ("/bin/sh", "-c", f"echo run >> {runs}; sleep 1000")
    await running(local, f"touch {up}; sleep 1000", up, stop_by=StopBy(arguments=command))
    await local.backend.delete(KEY, 1, 600)
    await wait_for(runs)
    await local.backend.delete(KEY, 1, 1)
    await local.until("stopped")
    assert runs.read_text() == "run\n"


async def test_what_comes_before_the_program_is_ended_as_ever(local: Watched) -> None:
    """A pod that is told to end before its program runs has saved nothing yet: its command would find nothing."""
    await local.backend.apply(
        run_pod(1, node_name=local.node, arguments=("/bin/sleep", "1000"), stop_by=StopBy(signal="SIGUSR1"))
    )
    await local.backend.delete(KEY, 1, 5)
    assert (await local.until("stopped")).kind == "stopped"


async def test_an_agent_that_is_killed_during_the_grace_period_changes_nothing(tmp_path: Path) -> None:
    """The one that comes back finds the end that was asked for, and what was saved."""
    data, up, saves, go = tmp_path / "data", tmp_path / "up", tmp_path / "saves", tmp_path / "go"
    local = await open_local(data)
    command = (
        "/bin/sh",
        "-c",
        f"touch {saves}; while [ ! -e {go} ]; do sleep 0.02; done; echo done > $MUSTER_CHECKPOINT_DIR/last",
    )
    await running(local, f"trap 'exit 9' TERM; {turns(up)}", up, stop_by=StopBy(arguments=command))
    await local.backend.delete(KEY, 1, 60)
    await wait_for(saves)
    await local.look_away()
    await local.backend.close()  # as a killed one, it leaves its pods alone
    again = Watched(await LocalBackend(machine(data), NoCode()).open(), "local", local.node)
    try:
        go.touch()
        end = await again.until("stopped")
        assert (end.exit_code, end.reason) == (9, "stopped")
        assert end.checkpoint_at is not None
        assert "SIGTERM sent" in (await log_text(again.backend))[-1]
    finally:
        await again.close()


async def test_a_shutdown_of_the_machine_gives_what_time_there_is(local: Watched, tmp_path: Path) -> None:
    up, done = tmp_path / "up", tmp_path / "done"
    await running(local, f"touch {up}; sleep 1000", up, stop_by=StopBy(arguments=("/bin/touch", str(done))))
    await local.backend.interrupt(4)
    assert (await local.until("interrupted")).reason == "shutdown"
    assert done.exists()


async def test_the_folder_outlives_runs_is_told_of_and_goes_with_its_workload(local: Watched, tmp_path: Path) -> None:
    """Issue 14, section 2: a folder that outlives attempts."""
    script = "echo $MUSTER_CHECKPOINT_DIR; ls $MUSTER_CHECKPOINT_DIR; touch $MUSTER_CHECKPOINT_DIR/$MUSTER_RUN"
    told: list[list[str]] = []
    for token in (1, 2):
        pod = run_pod(token, node_name=local.node, arguments=("/bin/sh", "-c", script), volumes=(SAVES,))
        await local.backend.apply(pod)
        end = await local.until("succeeded", "failed", token=token)
        assert end.kind == "succeeded"
        assert end.checkpoint_at is not None
        told.append(await log_text(local.backend))
    assert told == [["/muster/checkpoint"], ["/muster/checkpoint", "2"]]
    held = list(await local.backend.claims())
    assert [one.ephemeral for one in held] == [False]
    await local.backend.remove_claims(held[0].workload_id, ephemeral_only=False)
    assert list((tmp_path / "data" / "claims" / "p1").iterdir()) == []


async def test_a_file_is_found_while_the_pod_runs_and_told_once(tmp_path: Path) -> None:
    """Given one that says a time that is still to come: it was changed by now."""
    local = await open_local(tmp_path / "data", look_at_checkpoints_seconds=0.05)
    up = tmp_path / "up"
    try:
        await running(local, f"touch -d 2100-01-01 $MUSTER_CHECKPOINT_DIR/a; touch {up}; sleep 1000", up)
        async with asyncio.timeout(60):
            while (seen := local.newest()) is None or seen.checkpoint_at is None:
                await asyncio.sleep(0.02)
        assert seen.kind == "running"
        assert seen.checkpoint_at.year < 2100
        os.utime(next((tmp_path / "data" / "claims" / "p1").glob("*/a")), (1_000_000_000, 1_000_000_000))
        async with asyncio.timeout(60):
            while (seen := local.newest()) is None or seen.checkpoint_at is None or seen.checkpoint_at.year != 2001:
                await asyncio.sleep(0.02)
        count = len(local.history[KEY, 1])
        await asyncio.sleep(0.5)
        assert len(local.history[KEY, 1]) == count
    finally:
        await local.close()
