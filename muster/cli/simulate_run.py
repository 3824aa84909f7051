"""Simulations in processes of their own, side by side; they end with this one."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Final

import services
from muster.cli.exits import ExitCode, Problem
from services.scheduler.simulation.frames import Broken, Far, Outcome, encode_job, read
from services.scheduler.simulation.script import Job

if TYPE_CHECKING:
    from muster.cli.progress import Progress

PROGRAM: Final = "services.scheduler.simulation"
KILL_SECONDS: Final = 5.0
"""After which one that was told to end is killed."""


def run_all(jobs: Sequence[Job], report: "Progress") -> list[Outcome]:
    """One outcome for each. Raises Problem."""
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(_started()) for _ in jobs]
        for process, job in zip(running, jobs, strict=True):
            _give(process, encode_job(job))
        return _outcomes(running, report)


@contextlib.contextmanager
def _started() -> Generator[subprocess.Popen[bytes]]:
    """With a fixed order of sets, and out of the way of Ctrl-C, which this process hears."""
    root = str(Path(services.__file__).parent.parent)
    # A Ctrl-C while it starts could be lost, or leave it behind.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # what waits in a buffer of ours, nobody would be told of
            env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": root},
            start_new_session=True,
        )
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _give(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(data)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it has ended: what it says, or does not say, is read below


def _outcomes(running: Sequence[subprocess.Popen[bytes]], report: "Progress") -> list[Outcome]:
    found: list[Outcome | None] = [None] * len(running)
    far = [(0.0, 0.0)] * len(running)
    with selectors.DefaultSelector() as selector:
        for number, process in enumerate(running):
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ, number)
        while selector.get_map():
            for key, _ in selector.select():
                number: int = key.data
                pipe = running[number].stdout
                assert isinstance(pipe, RawIOBase)
                message = read(pipe)
                if isinstance(message, Far):
                    far[number] = message.done, message.total
                    report(int(sum(done for done, _ in far)), int(sum(total for _, total in far)))
                    continue
                selector.unregister(pipe)
                if not isinstance(message, Outcome):
                    why = message.message if isinstance(message, Broken) else "its process ended early"
                    raise Problem("the simulation could not be finished", why=(why,), code=ExitCode.FAILURE)
                found[number] = message
    return [each for each in found if each is not None]
