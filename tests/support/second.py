"""Second instances of services beside those of a running `muster up`: whoever is first wins, and no harm is done."""

import contextlib
import subprocess
from collections.abc import Generator

from muster.embedded.datadir import DataDir
from muster.embedded.environment import service_environment
from tests.support.stack import Stack


class Second:
    """One more instance of a service, restarted when it ends, as a supervisor would."""

    def __init__(self, stack: Stack, service: str) -> None:
        self.stack = stack
        self.service = service
        self.log = stack.folder / f"second-{service}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        data = DataDir(root=self.stack.data_dir)
        environment = self.stack.environment | service_environment(data, data.ports())
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.stack.python, "-m", f"services.{self.service}"], env=environment, stderr=log
            )

    def assert_alive(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, f"{self.service}: {self.log.read_text()[-3000:]}"

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(15)


@contextlib.contextmanager
def second(stack: Stack, *services: str) -> Generator[list[Second]]:
    """Run second instances; none may have ended when the block does."""
    seconds = [Second(stack, service) for service in services]
    for one in seconds:
        one.start()
    try:
        yield seconds
        for one in seconds:
            one.assert_alive()
    finally:
        for one in seconds:
            one.stop()
