"""What kwok (0.8) does not do by itself where it comes back, or where what it speaks to did.

A kubelet takes its nodes up at once, sees every pod of theirs, and repeats what it could not report. kwok waits until
the leases of an earlier kwok have run out; skips for ever the pods that it reads before its own watch has told it of
their node's lease; and never repeats what met an error of etcd, or a connection that broke.

As a program, for `make up-kubernetes`: `start FOLDER COMMAND…` becomes kwok once the API server serves; `show
FOLDER` has it look at the pods that were there before it.
"""

import contextlib
import http.client
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from development.kubernetes.simulated import programs
from development.kubernetes.simulated.admin import LEASES, Admin, AdminError
from development.kubernetes.simulated.fill import admin_of

WAIT_SECONDS: Final = 60.0
"""For the API server, and for kwok: three are usual on a machine that is not busy."""
POLL_SECONDS: Final = 0.1
NOT_YET: Final = (OSError, AdminError, http.client.HTTPException, json.JSONDecodeError)
SHOWN: Final = "simulation.muster.dev/shown-to-kwok"
"""Annotation of pods: when kwok was made to look at it."""


def let_go_of_nodes(admin: Admin) -> None:
    """Have no earlier kwok hold a node any more. Raises AdminError, OSError."""
    admin.call("DELETE", LEASES)


def show_pods(admin: Admin, wait: Callable[[Callable[[], bool]], None]) -> None:
    """Have kwok see the pods that were there before it. `wait` returns once it is told True, or raises.

    kwok renews a lease from what its watch told it: a pod that is changed after that is seen.
    """
    pods = [pod for pod in admin.call("GET", "/api/v1/pods")["items"] if _waits_for_kubelet(pod)]
    nodes = {node["metadata"]["name"] for node in admin.call("GET", "/api/v1/nodes")["items"]} if pods else set[str]()
    missing, first = nodes & {pod["spec"].get("nodeName") for pod in pods}, dict[str, str]()

    def renewed() -> bool:
        for lease in admin.call("GET", LEASES)["items"]:
            name, at = lease["metadata"]["name"], lease["spec"]["renewTime"]
            if first.setdefault(name, at) != at:
                missing.discard(name)
        return not missing

    wait(renewed)
    for pod in pods:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        with contextlib.suppress(AdminError, OSError):  # it is gone; or the API server is, and starts with this again
            admin.call("PATCH", path, {"metadata": {"annotations": {SHOWN: str(time.time_ns())}}})


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _waits_for_kubelet(pod: Mapping[str, Any]) -> bool:
    """Whether a kubelet may have something to do with it."""
    return pod["status"].get("phase") not in {"Succeeded", "Failed"} or "deletionTimestamp" in pod["metadata"]


def _wait(so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        with contextlib.suppress(*NOT_YET):
            if so():
                return
        if time.monotonic() > deadline:
            sys.exit(f"the API server or kwok did not serve within {WAIT_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


def _start(admin: Admin, command: list[str]) -> None:
    def free() -> bool:
        let_go_of_nodes(admin)
        return True

    _wait(lambda: admin.call("GET", "/readyz") == "ok")
    _wait(free)
    os.execv(command[0], command)


def _show(admin: Admin, folder: Path) -> None:
    _wait(lambda: listens(programs.ports_of(folder).kubelet))
    _wait(lambda: admin.call("GET", "/readyz") == "ok")
    show_pods(admin, _wait)


def main(arguments: list[str]) -> None:
    what, folder, *command = arguments
    admin = admin_of(Path(folder))
    if what == "start":
        _start(admin, command)
    else:
        _show(admin, Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
