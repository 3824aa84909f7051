"""The program of a reservation pod (`python -m services.agent.reservation`): says which device its node gave it, and
holds it until it is told to go.

It knows by the variable NVIDIA_VISIBLE_DEVICES, and writes that into an annotation of its own pod, or why it does not
know.
"""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path
from typing import Final

import structlog

from services.agent.backends.kubernetes.client import ApiError, KubeClient, Timeouts
from services.agent.backends.kubernetes.connect import SERVICE_ACCOUNT, ConnectError, connect
from services.agent.backends.kubernetes.names import DEVICE_PROBLEM, VISIBLE_DEVICES
from services.runtime.process.host import configure_logging

FIRST_PAUSE_SECONDS: Final = 1.0
LAST_PAUSE_SECONDS: Final = 30.0
"""Between tries to write; there is no last one, for a permission that is missing can still be given."""
GO: Final = {signal.SIGTERM, signal.SIGINT}
WAIT: Final = "import signal; signal.sigwait({signal.SIGTERM, signal.SIGINT})"
"""What the process becomes once all is said: 8 MiB in place of 90, on nodes where each shared device has one."""

log = structlog.get_logger(__name__)


def annotations(visible_devices: str) -> dict[str, str]:
    """What to write for this value of NVIDIA_VISIBLE_DEVICES."""
    devices = visible_devices.strip()
    if devices in {"", "none", "void", "all"} or devices.startswith("/"):
        said = f"is {devices!r}" if devices else "is not set"
        return {
            DEVICE_PROBLEM: f"the node did not say which device it gave: NVIDIA_VISIBLE_DEVICES {said}; "
            "portions of a GPU need NVIDIA's device plugin with the device list strategy `envvar`"
        }
    return {VISIBLE_DEVICES: devices}


async def report(client: KubeClient, *, namespace: str, pod: str, visible_devices: str) -> None:
    """Write it, however long that takes."""
    written = annotations(visible_devices)
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            # The status carries annotations, too; with the right to that alone nobody changes what a pod runs.
            path = f"/api/v1/namespaces/{namespace}/pods/{pod}/status"
            await client.patch(path, {"metadata": {"annotations": written}})
        except ApiError as error:
            log.warning("device_not_reported", pod=pod, reason=str(error))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)
            pause = min(pause * 2, LAST_PAUSE_SECONDS)
        else:
            log.info("device_reported", pod=pod, **written)
            return


async def _run(service_account: Path) -> None:
    # The variables are the pod's own: reservation_manifest names them.
    environment = os.environ
    client = await connect(None, None, timeouts=Timeouts(), service_account=service_account)
    try:
        await report(
            client,
            namespace=environment["MUSTER_POD_NAMESPACE"],
            pod=environment["MUSTER_POD_NAME"],
            visible_devices=environment.get("NVIDIA_VISIBLE_DEVICES", ""),
        )
    finally:
        await client.close()


def main(service_account: Path = SERVICE_ACCOUNT) -> None:
    configure_logging("info")
    for number in GO:
        # As the first process of its container it would not end by a signal that it does not handle.
        signal.signal(number, _go)
    try:
        asyncio.run(_run(service_account))
    except ConnectError as error:
        sys.exit(str(error))
    signal.pthread_sigmask(signal.SIG_BLOCK, GO)
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", WAIT])  # noqa: S606 (nobody's words are in it)


def _go(_number: int, _frame: object) -> None:
    os._exit(0)


if __name__ == "__main__":
    main()
