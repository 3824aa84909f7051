"""Second instances of services beside those of a running `muster up`: whoever is first wins, and no harm is done."""

import contextlib
import signal
import subprocess
from collections.abc import Generator
from typing import Final

import httpx

from development.ports import free_port
from development.recording import NO_TLS
from development.stack import Stack, until
from muster.embedded.datadir import DataDir
from muster.embedded.environment import service_environment

EACH: Final = (
    "api",
    "ownership",
    "commands",
    "scheduler",
    "cluster_sync",
    "auto_deletion",
    "autoscaler",
    "projector",
    "proxy",
    "subscriptions",
    "feed",
    "webhooks",
)
"""All services that may be there twice: the agent of a cluster is one."""
READY_SECONDS: Final = 180


def serves(health_port: int) -> bool:
    """Whether what reports its health there is ready."""
    with contextlib.suppress(httpx.TransportError):
        answer = httpx.get(f"http://127.0.0.1:{health_port}/readyz", trust_env=False, verify=NO_TLS)
        return answer.status_code == 200
    return False


class Second:
    """One more instance of a service, restarted when it ends, as a supervisor would."""

    def __init__(self, stack: Stack, service: str) -> None:
        self.stack = stack
        self.service = service
        self.log = stack.folder / f"second-{service}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.http_port = free_port()
        """Where it listens, if it is an api."""
        self.health_port = free_port()
        self.proxy_port = free_port()
        """Where it listens, if it is a proxy."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def start(self) -> None:
        data = DataDir(root=self.stack.data_dir)
        environment = {
            **self.stack.environment,
            **service_environment(data, data.ports()),
            "MUSTER_HTTP_PORT": str(self.http_port),
            "MUSTER_HEALTH_PORT": str(self.health_port),
            "MUSTER_PROXY_PORT": str(self.proxy_port),
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.stack.python, "-m", f"services.{self.service}"], env=environment, stderr=log
            )

    def kill(self) -> None:
        """SIGKILL, and a new one at once."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.start()

    def wait_ready(self) -> None:
        def ready() -> bool:
            self.assert_alive()
            return serves(self.health_port)

        until(ready, READY_SECONDS, lambda: f"{self.service} does not serve: {self.said()}")

    def said(self) -> str:
        return self.log.read_text()[-3000:]

    def assert_alive(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, f"{self.service}: {self.said()}"

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGKILL)
                self.process.wait()
                raise


@contextlib.contextmanager
def second(stack: Stack, *services: str) -> Generator[list[Second]]:
    """Run second instances, from when they serve; none may have ended when the block does."""
    seconds = [Second(stack, service) for service in services]
    try:
        for one in seconds:
            one.start()
        for one in seconds:
            one.wait_ready()
        yield seconds
        for one in seconds:
            one.assert_alive()
    finally:
        for one in seconds:
            one.stop()
