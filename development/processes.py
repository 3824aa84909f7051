"""One service as a process of its own, as docker-compose runs it."""

import os
import subprocess
import sys
from typing import Final

from development.servers import NatsServer

STOP_SECONDS: Final = 15


class ServiceProcess:
    """`python -m services.NAME`, started at once.

    Args:
        environment: settings beside those with which it reaches NATS.
    """

    def __init__(self, server: NatsServer, name: str, **environment: str) -> None:
        settings = server.settings(name)
        reaching = {"MUSTER_NATS_URL": settings.nats_url, "MUSTER_NATS_PASSWORD": settings.nats_password}
        others = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"services.{name}"],
            env=others | reaching | environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        """With SIGTERM; SIGKILL where that takes long."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
