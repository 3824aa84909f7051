"""The supervisor over small children: nothing stays down, nothing stays behind."""

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.embedded import processes
from muster.embedded.processes import Child, Family, Spec, StartError

SCRIPT = Path(__file__).with_name("small_supervisor.py")
SLEEP = "import time; time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def running(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Supervisor:
    def __init__(self, logs: Path, **codes: str) -> None:
        self.logs = logs
        arguments = [f"{name}={code}" for name, code in codes.items()]
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(logs), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": "."},
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def pids(self) -> dict[str, int]:
        return json.loads(self.line())

    def end(self) -> tuple[str, str]:
        """SIGTERM; what it still said, on stdout and stderr."""
        self.process.send_signal(signal.SIGTERM)
        return self.rest()

    def rest(self) -> tuple[str, str]:
        """What it says until it ends."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        said = self.process.stdout.read(), self.process.stderr.read()
        self.process.wait(60)
        return said


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervisor]]:
    started: list[Supervisor] = []

    def start(**codes: str) -> Supervisor:
        started.append(Supervisor(tmp_path, **codes))
        return started[-1]

    yield start
    for supervisor in started:
        with supervisor.process:
            supervisor.process.kill()


def test_a_child_that_is_killed_is_started_again_and_the_others_are_left_alone(
    supervise: Callable[..., Supervisor],
) -> None:
    supervisor = supervise(one=SLEEP, two=SLEEP)
    before = supervisor.pids()
    os.kill(before["one"], signal.SIGKILL)
    after = supervisor.pids()
    assert after["one"] != before["one"]
    assert after["two"] == before["two"]
    said = supervisor.end()[1]
    assert "one was ended by SIGKILL: starting it again in 0.2 s" in said
    assert not running(after["one"])
    assert not running(after["two"])


def test_a_child_that_fails_at_every_start_ends_the_start_and_shows_its_log(
    supervise: Callable[..., Supervisor],
) -> None:
    supervisor = supervise(broken="import sys; print('no such file: x.conf'); sys.exit(3)")
    assert "broken ended at every start" in supervisor.line()
    out, said = supervisor.rest()
    assert "no such file: x.conf" in out
    assert "broken ended with exit code 3" in said


def test_children_die_with_a_supervisor_that_is_killed(supervise: Callable[..., Supervisor]) -> None:
    supervisor = supervise(one=SLEEP, two=DEAF)
    pids = supervisor.pids()
    supervisor.process.kill()
    assert eventually(lambda: not any(running(pid) for pid in pids.values()))


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace_period(supervise: Callable[..., Supervisor]) -> None:
    supervisor = supervise(deaf=DEAF)
    pid = supervisor.pids()["deaf"]
    # Being ready comes before it ignores the signal: wait for what the kernel says of it (bit 14 = SIGTERM).
    assert eventually(lambda: bool(ignored_signals(pid) & 1 << (signal.SIGTERM - 1)))
    assert "deaf did not end within 0.5 s: killed" in supervisor.end()[1]
    assert not running(pid)


def ignored_signals(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn"))


def grandchild(tmp_path: Path, seconds: float) -> str:
    """Code that starts a process in a session of its own, as the shim of a pod is."""
    return (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep({seconds})'], start_new_session=True)\n"
        f"pathlib.Path({str(tmp_path / 'grandchild')!r}).write_text(str(p.pid))\n"
        "time.sleep(600)"
    )


def test_a_process_that_outlives_its_parent_is_found_and_ended_at_the_end(
    tmp_path: Path, supervise: Callable[..., Supervisor]
) -> None:
    supervisor = supervise(parent=grandchild(tmp_path, 600))
    supervisor.pids()
    assert eventually((tmp_path / "grandchild").exists)
    pid = int((tmp_path / "grandchild").read_text() or 0)
    assert running(pid)
    assert "left: 1" in supervisor.end()[0]
    assert not exists(pid)


def test_adopted_processes_that_end_leave_no_zombie(tmp_path: Path, supervise: Callable[..., Supervisor]) -> None:
    supervisor = supervise(parent=grandchild(tmp_path, 1.0))
    before = supervisor.pids()
    assert eventually((tmp_path / "grandchild").exists)
    orphan = int((tmp_path / "grandchild").read_text())
    os.kill(before["parent"], signal.SIGKILL)
    assert supervisor.pids()["parent"] != before["parent"]
    assert eventually(lambda: not exists(orphan))
    supervisor.end()


def test_a_one_shot_child_that_fails_says_so_with_its_log(tmp_path: Path) -> None:
    spec = Spec(name="setup", argv=[sys.executable, "-c", "import sys; print('stream is wrong'); sys.exit(1)"])
    with pytest.raises(StartError, match=r"(?s)setup ended with exit code 1.*stream is wrong"):
        asyncio.run(Family(tmp_path).run_once(spec))


def test_a_one_shot_child_that_hangs_is_ended(tmp_path: Path) -> None:
    spec = Spec(name="setup", argv=[sys.executable, "-c", SLEEP])
    with pytest.raises(StartError, match="setup took longer than 0 s"):
        asyncio.run(Family(tmp_path).run_once(spec, timeout_seconds=0.2))


PREPARED = """
import pathlib, sys, time
word = sys.stdin.readline()
with pathlib.Path(sys.argv[1]).open("a") as words: words.write(word)
if sys.argv[2:]: sys.exit(3)
while not pathlib.Path(sys.argv[1] + ".seen").exists(): time.sleep(0.01)
"""


def prepared(words: Path, *more: str) -> Spec:
    """A child that writes down what it is told, and then ends."""

    async def ready(pid: int) -> bool:
        if words.exists():
            Path(f"{words}.seen").touch()  # and it ends
        return words.exists()

    return Spec(
        name="prepared",
        argv=[sys.executable, "-c", PREPARED, str(words), *more],
        ready=None if more else ready,
        waits_for_go=True,
        first_word="set up",
        hopeless=3,
    )


def test_a_child_hears_the_first_word_until_it_was_ready_once(tmp_path: Path) -> None:
    words = tmp_path / "words"

    async def story() -> None:
        child = Child(prepared(words), Family(tmp_path), lambda _: None)
        child.start()
        child.go()
        await child.wait_ready(asyncio.Event())
        async with asyncio.timeout(60):
            while len(words.read_text().splitlines()) < 2:
                await asyncio.sleep(0.02)
        await child.stop(1)

    asyncio.run(story())
    assert words.read_text().splitlines()[:2] == ["set up", "go"]


def test_a_child_that_says_that_it_is_hopeless_is_not_started_again(tmp_path: Path) -> None:
    words = tmp_path / "words"

    async def never(_pid: int) -> bool:
        return False

    async def story() -> None:
        child = Child(dataclasses.replace(prepared(words, "fail"), ready=never), Family(tmp_path), lambda _: None)
        child.start()
        child.go()
        await child.wait_ready(asyncio.Event())

    with pytest.raises(StartError, match="prepared ended with exit code 3"):
        asyncio.run(story())
    assert words.read_text().splitlines() == ["set up"]


@pytest.mark.parametrize(("moves", "outcome"), [(True, "ready"), (False, "was not ready after 1 s")])
def test_a_child_that_takes_long_is_given_up_only_where_nothing_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, moves: bool, outcome: str
) -> None:
    monkeypatch.setattr(processes, "READY_SECONDS", 1.0)
    monkeypatch.setattr(processes, "PROGRESS_SECONDS", 0.1)
    until, said = time.monotonic() + 4.0, list[str]()

    async def ready(_pid: int) -> bool:
        return time.monotonic() > until

    async def progress() -> str:
        return f"reading: {time.monotonic()}" if moves else "" if int(time.monotonic() * 10) % 2 else "reading"

    async def story() -> None:
        spec = Spec(name="slow", argv=[sys.executable, "-c", SLEEP], ready=ready, progress=progress)
        child = Child(spec, Family(tmp_path), said.append)
        child.start()
        try:
            await child.wait_ready(asyncio.Event())
            said.append("ready")
        except StartError as error:
            said.append(str(error))
        finally:
            await child.stop(1)

    asyncio.run(story())
    assert outcome in said[-1]


def test_a_log_that_has_grown_is_put_aside_and_goes_on_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOG_BYTES", 1000)
    monkeypatch.setattr(processes, "LOG_CHECK_SECONDS", 0.01)
    log = tmp_path / "api.log"

    async def grow() -> None:
        rotating = asyncio.create_task(Family(tmp_path).rotate_logs())
        with log.open("ab", buffering=0) as file:
            file.write(b"x" * 2000)
            while log.stat().st_size:
                await asyncio.sleep(0.01)
            file.write(b"more")
        rotating.cancel()

    asyncio.run(grow())
    assert log.read_bytes() == b"more"
    assert (tmp_path / "api.log.1").read_bytes() == b"x" * 2000
