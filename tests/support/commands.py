"""Commands of the command line that go on: started in processes of their own, and read while they run."""

import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import IO


class GoingOn:
    """One command, and what it has said so far."""

    def __init__(self, environment: Mapping[str, str], *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "muster.cli.main", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        streams = ((self.process.stdout, self.out), (self.process.stderr, self.err))
        self._readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in streams]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str], lines: list[str]) -> None:
        with stream:
            lines.extend(line.rstrip("\n") for line in stream)

    def end(self) -> None:
        self.process.terminate()
        self.wait()

    def wait(self, seconds: float = 60) -> int:
        """Its exit code, once all that it said is read."""
        code = self.process.wait(seconds)
        for reader in self._readers:
            reader.join(60)
        return code

    @property
    def outage(self) -> list[bool]:
        """Of each line about a connection that was lost or is back: whether it is back."""
        return ["answers again" in line for line in self.err if "asking again" in line or "answers again" in line]


@contextmanager
def going_on(environment: Mapping[str, str], *commands: tuple[str, ...]) -> Generator[list[GoingOn]]:
    """Started together; what still runs at the end is ended."""
    started = [GoingOn(environment, *command) for command in commands]
    try:
        yield started
    finally:
        for command in started:
            command.end()
