"""A real Kubernetes control plane in child processes: etcd, API server, controller manager, on wish the scheduler, and
kwok, which plays the kubelets. For tests; synchronous, every wait with a deadline.

The programs are built by `make kube-tools` (kubernetes.programs.find_tools). How simulated pods behave, and which
annotations steer that, is said at the top of kubernetes/stages.yaml.
"""

import base64
import contextlib
import hashlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Unpack

from development.kubernetes.simulated import credentials, programs
from development.kubernetes.simulated.admin import Admin
from development.kubernetes.simulated.kubelets import NOT_YET, let_go_of_nodes, listens, show_pods
from development.kubernetes.simulated.nodes import Shape, node
from muster.embedded.datadir import write_private

START_SECONDS: Final = 60.0
"""Three are usual; a machine whose cores are all taken needs many times that."""
STOP_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.05
LOG_TAIL_BYTES: Final = 4000


class ControlPlaneError(Exception):
    """A program ended, or did not serve in time; the message shows the end of its log."""


class ControlPlane:
    """One simulated cluster whose data is in `folder`; a folder that was used before goes on where it stopped.

    `node_monitor_grace_seconds`: after that long without a sign of life a node is Unknown. Nodes send four in that
    time: let it be 40 for a thousand nodes. `port`: the API server's, a free one by default. `audit`: the API server
    notes down in `cluster.audit_log` when it made which pod. `ways`: commands in pods run, on this machine; for tests.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tools: Path | None = None,
        scheduler: bool = False,
        node_monitor_grace_seconds: int = 8,
        port: int | None = None,
        fsync: bool = False,
        audit: bool = False,
        ways: bool = False,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder.resolve()
        self.cluster = programs.Cluster(
            folder=self.folder,
            tools=programs.find_tools(tools),
            ports=programs.Ports(api=port or free_port(), etcd=free_port(), etcd_peer=free_port(), kubelet=free_port()),
            node_monitor_grace_seconds=node_monitor_grace_seconds,
            fsync=fsync,
            audit=audit,
        )
        self.url = self.cluster.url
        self.ca_file = self.cluster.credentials / "ca.crt"
        self.container_log = self.cluster.container_log
        self._with_scheduler = scheduler
        self._with_ways = ways
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # The kernel ends a child when the thread that started it ends, and callers may come from short-lived threads.
        self._spawner = ThreadPoolExecutor(1, thread_name_prefix="control-plane")
        credentials.make(self.cluster.credentials)
        self.admin_token = credentials.admin_token(self.cluster.credentials)
        self._admin = Admin(url=self.url, ca_file=self.ca_file, token=self.admin_token)

    def start(self) -> None:
        """Start everything and wait until it serves. Raises ControlPlaneError; nothing runs then."""
        programs.write_configuration(self.folder, self.cluster.ports, self.admin_token, ways=self._with_ways)
        try:
            self.start_etcd()
            self.start_api_server()
            self._spawn("kube-controller-manager", programs.controller_manager(self.cluster))
            if self._with_scheduler:
                self.start_scheduler()
            self.start_kwok()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all of it at once; what etcd has written is kept."""
        for name in ("kwok", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
            self._kill(name)
        self._spawner.shutdown()

    def start_etcd(self) -> None:
        """Start etcd and wait until it serves."""
        self._spawn("etcd", programs.etcd(self.cluster))
        self._wait("etcd", lambda: self._etcd("GET", "/health").get("health") == "true")

    def restart_etcd(self) -> None:
        """Kill etcd and start it again."""
        self._kill("etcd")
        self.start_etcd()
        self._wake_kubelets()

    def compact(self) -> None:
        """Drop the history of all objects up to now.

        Watches from before it get a real 410 after `restart_api_server()`: until then its cache answers them.
        """
        revision = self._etcd("POST", "/v3/kv/range", {"key": base64.b64encode(b"none").decode()})["header"]["revision"]
        self._etcd("POST", "/v3/kv/compaction", {"revision": revision, "physical": True})

    def start_api_server(self) -> None:
        """Start the API server and wait until it serves."""
        self._spawn("kube-apiserver", programs.api_server(self.cluster))
        self._wait("kube-apiserver", lambda: self.admin("GET", "/readyz") == "ok")
        self._wake_kubelets()

    def kill_api_server(self) -> None:
        """As kill -9: connections break at once."""
        self._kill("kube-apiserver")

    def restart_api_server(self) -> None:
        """Kill the API server and start it again, on the same port."""
        self.kill_api_server()
        self.start_api_server()

    def start_kwok(self) -> None:
        """Have the kubelets come back: they speak for their nodes at once."""
        self._wait("kube-apiserver", self._nodes_are_free)
        self._spawn("kwok", programs.kwok(self.cluster))
        self._wait("kwok", lambda: listens(self.cluster.ports.kubelet))
        show_pods(self._admin, lambda so: self._wait("kwok", so))

    def _nodes_are_free(self) -> bool:
        let_go_of_nodes(self._admin)
        return True

    def stop_kwok(self) -> None:
        """Have all kubelets fall silent: nothing happens to pods, and nodes become Unknown after their grace period."""
        self._kill("kwok")

    def _wake_kubelets(self) -> None:
        """Have kwok, where it runs, look at all pods anew, as soon as the API server is there (kubelets.py)."""
        if self._processes.keys() >= {"kube-apiserver", "kwok"}:
            self.stop_kwok()
            self.start_kwok()

    def start_scheduler(self) -> None:
        """Start Kubernetes' own scheduler."""
        self._spawn("kube-scheduler", programs.scheduler(self.cluster))

    def stop_scheduler(self) -> None:
        """End it."""
        self._kill("kube-scheduler")

    def kubeconfig(self, token: str | None = None, *, url: str | None = None) -> Path:
        """Write a kubeconfig for a token, the administrator's where none is given; through a proxy at `url`."""
        token, url = token or self.admin_token, url or self.url
        path = self.folder / f"{hashlib.sha256(f'{token} {url}'.encode()).hexdigest()[:12]}.kubeconfig"
        write_private(path, programs.kubeconfig(url=url, ca_file=self.ca_file, token=token))
        return path

    def service_account_token(self, namespace: str, name: str, seconds: int = 3600) -> str:
        """A token of a service account that exists; 10 minutes is the shortest life that the API server gives."""
        return self._admin.token_of(namespace, name, seconds)

    def add_nodes(self, names: Iterable[str], **shape: Unpack[Shape]) -> None:
        """Add nodes that are ready at once; one that exists is left as it is."""
        nodes = (node(name, kubelet_port=self.cluster.ports.kubelet, **shape) for name in names)
        self._admin.create_all("/api/v1/nodes", nodes)

    def admin(self, method: str, path: str, body: Any = None, **query: str | int | bool) -> Any:
        """A call as administrator; PATCH is a merge patch, APPLY a server-side apply. Raises AdminError, OSError."""
        return self._admin.call(method, path, body, **query)

    def apply(self, manifests: Iterable[Mapping[str, Any]]) -> None:
        """Server-side apply of objects of any kind, in that order."""
        self._admin.apply(manifests)

    def logs(self, name: str) -> str:
        """The end of what a program has said: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok."""
        try:
            with (self.folder / f"{name}.log").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
                return file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return "(it was never started)"

    def _spawn(self, name: str, argv: list[str]) -> None:
        assert name not in self._processes, f"{name} runs already"
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = self._spawner.submit(
                subprocess.Popen[bytes],
                [sys.executable, "-m", "muster.embedded.leash", str(os.getpid()), *argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder)},
                cwd=self.folder,
                start_new_session=True,
            ).result()

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait(STOP_SECONDS)

    def _wait(self, name: str, serves: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(*NOT_YET):
                if serves():
                    return
            if (code := self._processes[name].poll()) is not None:
                raise ControlPlaneError(f"{name} ended with exit code {code}; the end of its log:\n{self.logs(name)}")
            if time.monotonic() > deadline:
                raise ControlPlaneError(
                    f"{name} did not serve within {START_SECONDS:.0f} s; the end of its log:\n{self.logs(name)}"
                )
            time.sleep(POLL_SECONDS)

    def _etcd(self, method: str, path: str, body: Any = None) -> Any:
        keys = self.cluster.credentials
        tls = ssl.create_default_context(cafile=str(self.ca_file))
        tls.load_cert_chain(keys / "server.crt", keys / "server.key")
        port = self.cluster.ports.etcd
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=STOP_SECONDS, context=tls)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
