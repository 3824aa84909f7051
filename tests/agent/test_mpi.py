"""MPI trainings on this machine: a launcher starts processes in its workers, as `mpirun` does with ssh."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from events.cluster_protocol import ObservedPod
from events.workload.mpi import Mpi
from events.workload.pod import PodRef
from services.agent.backends.local.mpi import Meetings
from services.agent.backends.local.rsh import UsageError, understood
from tests.agent.given import PYTHON, WORKLOAD, Watched, log_text, open_local, run_pod

pytestmark = pytest.mark.anyio

KEY = "bcdefghijklm"
WORKERS = 2
MASTER = f"{KEY}-master-0"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Its path is longer than that of a socket may be."""
    return tmp_path / ("data" * 20)


@pytest.fixture
async def local(data: Path, request: pytest.FixtureRequest) -> AsyncIterator[Watched]:
    watched = await open_local(data, **getattr(request, "param", {}))
    for index in range(WORKERS):
        await apply(watched, "worker", index=index)
    yield watched
    await watched.close()


async def apply(local: Watched, name: str, token: int = 1, index: int = 0, **more: Any) -> None:
    mpi = Mpi(role="launcher" if name == "master" else "worker", workers=WORKERS, slots=2)
    ref = PodRef(pod_set=name, index=index, attempt=1, try_=token)
    fields = {"pod_key": f"{KEY}-{name}-{index}", "pod": ref, "mpi": mpi, "node_name": local.node} | more
    await local.backend.apply(run_pod(token, **fields))


async def launch(local: Watched, script: str, token: int = 1) -> None:
    """Start a launcher that runs this, with the agent that Open MPI would use."""
    script = script.replace("rsh ", '"$OMPI_MCA_plm_rsh_agent" ')
    await apply(local, "master", token, arguments=("/bin/sh", "-c", script))


async def ended(local: Watched, token: int = 1, *, seconds: float = 60) -> ObservedPod:
    return await local.until("succeeded", "failed", "stopped", token=token, key=MASTER, seconds=seconds)


async def said(local: Watched) -> list[str]:
    return await log_text(local.backend, pod_key=MASTER)


AS_WITH_SSH = (
    ("rsh worker-1 'echo $MUSTER_POD_SET-$MUSTER_POD_INDEX'", ["worker-1", "= 0"]),
    # As Open MPI, MPICH and people call it: words are joined, and the worker's shell reads them.
    ("rsh -x -o ConnectionAttempts=10 -l me worker-0 echo one '\"two  three\"'", ["one two  three", "= 0"]),
    ("echo given | rsh me@worker-0 cat", ["given", "= 0"]),
    ("echo 'echo a script' | rsh worker-0", ["a script", "= 0"]),
    ("rsh worker-0 'echo out; echo err >&2' 2>/dev/null", ["out", "= 0"]),
    ("rsh worker-0 exit 7", ["= 7"]),
    ("rsh worker-0 'kill -KILL $$'", ["= 137"]),
    (
        "rsh worker-0 'trap \"echo asked; exit 3\" TERM; kill -TERM $PPID; while :; do :; done'",
        ["asked", "= 3"],
    ),
    ("rsh worker-0 'kill -KILL $PPID' 2>&1", ["worker-0 is gone, and nobody knows how its command ended", "= 255"]),
    # A daemon that leaves its caller, as Open MPI's does, lives on.
    ("rsh worker-0 'setsid sleep 60 </dev/null >/dev/null 2>&1 & echo $!' >pid; rsh worker-0 kill $(cat pid)", ["= 0"]),
    (
        "rsh ../worker-0 true 2>&1",
        ["no worker is called '../worker-0'; they are called worker-0, worker-1 and so on", "= 255"],
    ),
)


async def test_a_command_runs_in_a_worker_as_with_ssh(local: Watched) -> None:
    await launch(local, "\n".join(f"{line}; echo = $?" for line, _ in AS_WITH_SSH))
    # Fifteen programs one after the other: each takes seconds on a machine that is busy.
    assert (await ended(local, seconds=90)).kind == "succeeded"
    assert await said(local) == [line for _, lines in AS_WITH_SSH for line in lines]


@pytest.mark.parametrize("local", [{}, {"isolation": None}], ids=["isolated", "shared"], indirect=True)
async def test_the_launcher_finds_its_workers_by_the_files_of_each_mpi_and_itself_at_the_same_path(
    local: Watched, data: Path
) -> None:
    script = (
        'cat "$OMPI_MCA_orte_default_hostfile" "$PRTE_MCA_prte_default_hostfile" "$HYDRA_HOST_FILE"; '
        'echo $K_MPI_JOB_ROLE; rsh worker-0 "echo \\$K_MPI_JOB_ROLE; cd $PWD && echo there"'
    )
    await launch(local, script)
    assert (await ended(local)).kind == "succeeded"
    lines = ["worker-0 slots=2", "worker-1 slots=2"]
    assert await said(local) == [*lines, *lines, "worker-0:2", "worker-1:2", "launcher", "worker", "there"]


async def test_what_a_launcher_started_ends_with_it_and_with_its_worker(local: Watched) -> None:
    await launch(local, "rsh worker-0 'echo $$ >pid; while :; do echo lives; sleep 0.05; done'")
    while not await said(local):
        await asyncio.sleep(0.05)
    await local.backend.delete(MASTER, 1, 1)
    assert (await ended(local)).kind == "stopped"
    await launch(
        local, "rsh worker-0 'kill -0 $(cat pid) 2>&1 || echo none'; rsh worker-1 'echo here; sleep 60'", token=2
    )
    while (lines := await said(local))[-1:] != ["here"]:
        await asyncio.sleep(0.05)
    assert "none" in lines
    await local.backend.delete(f"{KEY}-worker-1", 1, 5)
    end = await ended(local, token=2)
    assert (end.kind, end.exit_code) == ("failed", 143)


async def test_the_folder_where_they_meet_goes_with_the_last_of_them(local: Watched, data: Path) -> None:
    await launch(local, "true")
    await ended(local)
    assert (data / "mpi" / WORKLOAD / "hostfile").exists()
    await local.backend.forget(MASTER, 1)
    assert (data / "mpi" / WORKLOAD).exists()
    for index in range(WORKERS):
        key = f"{KEY}-worker-{index}"
        await local.backend.delete(key, 1, 1)
        await local.until("stopped", key=key)
        await local.backend.forget(key, 1)
    async with asyncio.timeout(60):
        while list((data / "mpi").iterdir()):
            await asyncio.sleep(0.02)


def test_an_agent_that_comes_back_clears_away_what_no_run_needs(tmp_path: Path) -> None:
    for name in ("living", "over", ".left-over-1"):
        (tmp_path / name).mkdir()
    Meetings(tmp_path).clear({"living"})
    assert [path.name for path in tmp_path.iterdir()] == ["living"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["h", "a b"], ("h", "a b")),
        (["-x", "h", "a", "b"], ("h", "a b")),
        (["-oA=b", "-o", "A=b", "-p22", "-vp", "22", "h", "ls", "-l"], ("h", "ls -l")),
        (["-q", "--", "u@h", "c"], ("h", "c")),
        (["h", "-n", "c", "-n"], ("h", "c -n")),
        (["h"], ("h", "")),
    ],
)
def test_options_of_ssh_are_told_from_the_host_and_the_command(words: list[str], expected: tuple[str, str]) -> None:
    assert understood(words) == expected


@pytest.mark.parametrize("words", [[], ["-x"], ["-l", "me"]])
def test_without_a_host_nothing_is_run(words: list[str]) -> None:
    with pytest.raises(UsageError):
        understood(words)


async def test_a_worker_that_says_what_it_runs_runs_that(data: Path) -> None:
    local = await open_local(data)
    await apply(local, "worker", arguments=(PYTHON, "-c", "print('mine')"))
    assert (await local.until("succeeded", "failed", key=f"{KEY}-worker-0")).kind == "succeeded"
    await local.close()


async def test_a_link_that_a_pod_lays_there_leads_the_agent_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods write in that folder, too, and the agent writes as the same user."""
    pod = run_pod(1, pod_key=MASTER, mpi=Mpi(role="launcher", workers=1, slots=1))
    meetings = Meetings(tmp_path)
    meetings.prepare(pod)
    victim = tmp_path / "key"
    victim.write_text("secret")
    victim.chmod(0o640)
    monkeypatch.setattr("os.urandom", bytes)
    (meetings.folder(pod) / ".hostfile-00000000").symlink_to(victim)
    with pytest.raises(FileExistsError):
        meetings.prepare(pod)
    assert (victim.read_text(), victim.stat().st_mode & 0o777) == ("secret", 0o640)
