"""Muster with a Kubernetes cluster, all of it real processes that a test may kill, pause and start again one by one.

    with running_stack(nodes=3, gpus=4) as stack:
        agent = stack.agent(kubernetes_not_ready_seconds=1).start()   # or stack.agents[0], which runs already
        made = stack.submit("hello", runtime_seconds=2, compute={"gpuDevicesRequest": 1})
        stack.api.wait(made["workloadId"], "Completed")
        stack.pods(made["workloadId"])                                # what the API server has of it
        stack.cluster_sync.kill(); stack.cluster_sync.start(MUSTER_FAILPOINT="facts_committed")

Parts: `stack.plane` (etcd, API server, controller manager, kwok), `stack.nats`, `stack.postgres`, `stack.control` (api,
ownership, commands), `stack.workers` (scheduler, auto_deletion, autoscaler, projector), `stack.cluster_sync`, and
agents: each a process of its own, with the rights of deploy/kubernetes on the API server and those of its cluster's
user on NATS.
"""

import asyncio
import base64
import contextlib
import hashlib
import http
import io
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, cast

import asyncpg
import psutil
import yaml

from development.checker.reading import read_log
from development.checker.records import RawMessage
from development.kubernetes.control_plane import ControlPlane
from development.kubernetes.pod_network import PodNetwork
from development.kubernetes.proxy import Proxy, proxied
from development.kubernetes.simulated.fill import OF_THE_AGENT
from development.limits import UNLIMITED_ENVIRONMENT
from development.recording import History
from development.servers import EVERYTHING, NatsServer, PostgresServer
from development.stack import ENDED, Api, until
from services.runtime.code.archive import write_archive
from services.runtime.credentials.keys import new_ring, read_ring, write_public, write_ring
from services.runtime.identity.local_keys import load_or_create_key, sign_token
from services.runtime.nats.connection import connect
from services.runtime.nats.inboxes import agent_user

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "kubernetes"
AGENT_NAMESPACE = "muster-system"
AGENT_ACCOUNT = "muster-agent"
SIMULATION = "simulation.muster.dev"
TOKEN_SECONDS = 4 * 3600
LASTING_PORTS = range(20_000, 32_000)
"""Below those that the kernel gives to outgoing connections: free now, and still free after minutes or a restart."""
PROJECT = "default"


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """Code as the command line packs it."""
    out = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        write_archive(Path(folder), list(files), out)
    return out.getvalue()


class Program:
    """One process, started as often as a test likes; what it says is added to `log`."""

    def __init__(
        self, name: str, argv: list[str], environment: Mapping[str, str], folder: Path, spawner: ThreadPoolExecutor
    ) -> None:
        self.name = name
        self.health_port = lasting_port()
        self.log = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.within: PodNetwork | None = None
        """Where it runs, if not beside us."""
        self._argv = argv
        self._environment = {**environment, "MUSTER_HEALTH_PORT": str(self.health_port)}
        self._spawner = spawner

    def start(self, *, wait: bool = True, **environment: str) -> Self:
        """Start it, with these variables for this life alone (`MUSTER_FAILPOINT="pod_created:3"`). With `wait` until it
        serves; one with a failpoint may end before that, and is better not waited for.
        """
        assert not self.alive, f"{self.name} runs already"
        argv = self._argv if self.within is None else self.within.argv(self._argv)
        with self.log.open("ab") as log:
            # The kernel ends a child when the thread that started it ends, and callers may come from any thread.
            self.process = self._spawner.submit(
                subprocess.Popen[bytes],
                [sys.executable, "-m", "muster.embedded.leash", str(os.getpid()), *argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self._environment, **environment},
                cwd=ROOT,
            ).result()
        if wait:
            self.wait_ready()
        return self

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was never started"
        return self.process.pid

    def kill(self) -> bool:
        """SIGKILL; False where it is down already."""
        if not self.alive:
            return False
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)
        return True

    def pause(self) -> None:
        """SIGSTOP: it does nothing, and does not know that time passes, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self, timeout_seconds: float = 15) -> None:
        """SIGTERM, and SIGKILL where that is not enough."""
        if not self.alive:
            return
        assert self.process is not None
        self.process.terminate()
        try:
            self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def wait_ended(self, timeout_seconds: float = 60) -> int:
        """Its exit code, -9 where a failpoint ended it."""
        assert self.process is not None
        return self.process.wait(timeout_seconds)

    def wait_ready(self, timeout_seconds: float = 90) -> None:
        def ready() -> bool:
            assert self.alive, f"{self.name} ended:\n{self.said()}"
            return _answers_ok(f"http://127.0.0.1:{self.health_port}/readyz")

        until(ready, timeout_seconds, lambda: f"{self.name} does not serve:\n{self.said()}")

    def said(self, characters: int = 4000) -> str:
        """The end of what it said."""
        return self.log.read_text()[-characters:]


class ProxyThread:
    """The misbehaving proxy before the API server, in a thread of its own: set `.proxy.mode` at any time."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self.proxy: Proxy
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        assert self._ready.wait(10), "the proxy does not listen"

    @property
    def url(self) -> str:
        return self.proxy.url

    def break_connections(self) -> None:
        """All that are there, watches included; new ones are taken at once."""
        asyncio.run_coroutine_threadsafe(self._break_connections(), self._loop).result(10)

    async def _break_connections(self) -> None:
        await self.proxy.close()
        await self.proxy.listen()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        async with proxied(self._plane) as self.proxy:
            self._ready.set()
            await self._stop.wait()


class KubernetesStack:
    """`nodes` × `gpus` are there from the start, named `node-0`…; `node_monitor_grace_seconds`: see ControlPlane."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 3,
        gpus: int = 4,
        cluster: str = "kube",
        node_monitor_grace_seconds: int = 8,
        scheduler: bool = False,
        fsync: bool = False,
        audit: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.cluster = cluster
        self.cluster_id = ""
        self.node_names = [f"node-{number}" for number in range(nodes)]
        self.gpus = gpus
        self.plane = ControlPlane(
            folder / "plane",
            node_monitor_grace_seconds=node_monitor_grace_seconds,
            scheduler=scheduler,
            fsync=fsync,
            audit=audit,
        )
        self.nats = NatsServer(folder / "nats")
        self.postgres = PostgresServer(folder / "postgres")
        self.http_port = lasting_port()
        self.agents: list[Program] = []
        self.seconds: list[Program] = []
        self.proxies: list[ProxyThread] = []
        self.apis: list[Api] = []
        self.history = History()
        """Every request of every `client` of this stack."""
        self._spawner = ThreadPoolExecutor(1, thread_name_prefix="stack")
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")},
            "OPENBLAS_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "2",
            "MUSTER_NATS_URL": self.nats.url,
            **UNLIMITED_ENVIRONMENT,
            **(environment or {}),
        }
        webhook_key = folder / "webhook-key"
        webhook_key.write_text("0" * 64)
        private, public = folder / "credentials", folder / "credentials.public"
        write_ring(private, new_ring())
        write_public(public, read_ring(private))
        self._services = {
            "MUSTER_CREDENTIAL_KEY_FILE": str(private),
            "MUSTER_CREDENTIAL_PUBLIC_KEY_FILE": str(public),
            "MUSTER_NATS_PASSWORD_DIR": str(self.nats.password_dir()),
            "MUSTER_CALLOUT_KEY_DIR": str(self.nats.callout_key_dir()),
            "MUSTER_POSTGRES_URL": self.postgres.url(),
            "MUSTER_WEBHOOK_KEY_FILE": str(webhook_key),
            "MUSTER_KEY_FILE": str(folder / "key.json"),
            "MUSTER_JWKS_FILE": str(folder / "jwks.json"),
            "MUSTER_HTTP_PORT": str(self.http_port),
        }
        self.control = self._service("control", "api", "ownership", "commands")
        self.workers = self._service("workers", "scheduler", "auto_deletion", "autoscaler", "projector")
        self.cluster_sync = self._service("cluster_sync", "cluster_sync")
        self.api: Api
        self.acknowledged: dict[str, str] = {}
        """Id of every workload that `submit` made, by name."""

    def _service(self, name: str, *services: str, **settings: object) -> Program:
        argv = [sys.executable, "-m", "tests.kubernetes.services", *services]
        environment = {**self._environment, **self._services, **_variables(settings)}
        return Program(name, argv, environment, self.folder, self._spawner)

    def second(self, *services: str, **settings: object) -> Program:
        """One more process with these services, beside those that run; not started. Settings: as with `agent`."""
        program = self._service(f"second-{len(self.seconds)}-{'-'.join(services)}", *services, **settings)
        self.seconds.append(program)
        return program

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    # -- start and end -------------------------------------------------------------------------------------------------

    def start(self, *, agents: int = 1) -> Self:
        """Everything, with nodes and a cluster of kind kubernetes, and so many agents of it."""
        with ThreadPoolExecutor(3) as threads:
            for started in [threads.submit(part.start) for part in (self.plane, self.nats, self.postgres)]:
                started.result()
        setup = subprocess.run(
            [sys.executable, "-m", "services.setup"],
            env={**self._environment, **self._services},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert setup.returncode == 0, setup.stderr
        programs = (self.control, self.workers, self.cluster_sync)
        for program in programs:
            program.start(wait=False)
        self.plane.add_nodes(self.node_names, gpus=self.gpus)
        self.plane.apply(deployed(*OF_THE_AGENT))
        for program in programs:
            program.wait_ready()
        self.api = self.client()
        self._post("/org-unit/projects", {"name": PROJECT})
        self._post("/clusters", {"name": self.cluster, "kind": "kubernetes"})
        self.cluster_id = self.api.cluster(self.cluster)
        self.nats.add_agent(self.cluster_id)
        for _ in range(agents):
            self.agent().start()
        if agents:
            self.wait_connected()
        return self

    def close(self) -> None:
        """End whatever still runs; a paused process, too."""
        for program in (*self.agents, *self.seconds, self.cluster_sync, self.workers, self.control):
            program.kill()
        for api in self.apis:
            api.http.close()
        for proxy in self.proxies:
            proxy.close()
        for part in (self.nats, self.postgres, self.plane):
            part.stop()
        self._spawner.shutdown()

    def _post(self, path: str, body: Mapping[str, Any]) -> None:
        answer = self.api.http.post(path, json=body)
        assert answer.status_code == 202, answer.text

    # -- agents --------------------------------------------------------------------------------------------------------

    def agent(self, *, url: str | None = None, **settings: object) -> Program:
        """An agent of the cluster, not started; by a proxy at `url`. Settings by their names in Settings:
        `kubernetes_node_lost_seconds=2`, `failpoint="pod_created:3"` (kept over restarts; for one life: `start`).
        """
        number = len(self.agents)
        token = self.plane.service_account_token(AGENT_NAMESPACE, AGENT_ACCOUNT, TOKEN_SECONDS)
        environment = {
            **self._environment,
            "MUSTER_AGENT_CLUSTER": self.cluster_id,
            "MUSTER_NATS_PASSWORD": self.nats.passwords[agent_user(self.cluster_id)],
            "MUSTER_KUBECONFIG": str(self.plane.kubeconfig(token, url=url)),
            "MUSTER_DATA_DIR": str(self.folder / f"agent-{number}"),
            **_variables(settings),
        }
        argv = [sys.executable, "-m", "services.agent"]
        program = Program(f"agent-{number}", argv, environment, self.folder, self._spawner)
        self.agents.append(program)
        return program

    @contextlib.contextmanager
    def api_server_away(self) -> Generator[None]:
        """SIGKILL to the API server and its etcd; both are back when the block is left."""
        self._kill_api_server()
        try:
            yield
        finally:
            self.plane.restart_etcd()
            self.plane.start_api_server()

    def _kill_api_server(self) -> None:
        self.plane.kill_api_server()
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name() == "etcd" and str(self.plane.folder) in " ".join(child.cmdline()):
                    child.kill()

    def proxy(self) -> ProxyThread:
        """A proxy before the API server; closed with the stack."""
        thread = ProxyThread(self.plane)
        self.proxies.append(thread)
        return thread

    @contextlib.contextmanager
    def instead(self, *programs: Program) -> Generator[None]:
        """Only these agents as long as the block runs; then the first one alone, as at the start."""
        self.agents[0].stop()
        for program in programs:
            program.start()
        try:
            yield
        finally:
            for program in programs:
                program.kill()
            self.agents[0].start()
            self.wait_connected()

    # -- what people do ------------------------------------------------------------------------------------------------

    def client(self, user: str = "admin", *, url: str | None = None) -> Api:
        """The API as this user; `admin` may do everything. `url`: of another api than that of `control`."""
        key = load_or_create_key(self.folder / "key.json")
        token = sign_token(key, subject=user, issuer="muster", audience="muster", ttl_seconds=TOKEN_SECONDS)
        api = Api(url or self.url, token, self.history)
        self.apis.append(api)
        return api

    def grant(self, user: str, role: str = "researcher") -> Api:
        """The API as this user, who has a role in the project."""
        rule = {"subjectId": user, "roleName": role, "scopeType": "project", "scopeId": self.api.project()}
        self._post("/authorization/access-rules", rule)
        return self.client(user)

    def submit(
        self,
        name: str,
        *,
        runtime_seconds: float | None = 1.0,
        api: Api | None = None,
        simulation: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> dict[str, Any]:
        """A training, 202; its pods run so long (None: until they are ended), and do what `simulation` says:
        `{"exit-code": "3"}` (development/kubernetes/simulated/stages.yaml).
        """
        told = simulated(runtime_seconds, simulation, **spec)
        made = (api or self.api).submit(name, cluster=self.cluster, **told)
        self.acknowledged[name] = made["workloadId"]
        return made

    def end_all(self, timeout_seconds: float = 60, *, after: int = 0) -> None:
        """Delete what still runs of the acknowledged (`after` so many), and wait until nothing of ours is left on the
        API server.
        """
        for id_ in list(self.acknowledged.values())[after:]:
            seen = self.api.training(id_)
            if seen["actualPhase"] not in ENDED and not seen.get("deletedAt"):
                self.api.act("delete", id_)

        def left() -> list[str]:
            there = (*self.pods(), *self.reservations(), *self.shared())
            return [each["metadata"]["name"] for each in there]

        until(lambda: not left(), timeout_seconds, lambda: f"left: {left()}: {self.agents[0].said()}")

    def send_code(self, archive: bytes) -> str:
        """Its digest, once the API keeps it for the project and this cluster."""
        digest = hashlib.sha256(archive).hexdigest()
        place = {"projectId": self.api.project(), "clusterId": self.cluster_id, "digest": digest}
        limits = self.api.get("/code", **place)
        parts = [archive[at : at + limits["partBytes"]] for at in range(0, len(archive), limits["partBytes"])]
        for number, part in enumerate(() if limits["kept"] else parts):
            data = base64.b64encode(part).decode()
            answer = self.api.http.post("/code", json={**place, "part": number, "parts": len(parts), "data": data})
            assert answer.status_code == http.HTTPStatus.ACCEPTED, answer.text
        return digest

    def muster(self, *arguments: str) -> str:
        """What the command line answers to an administrator."""
        key = load_or_create_key(self.folder / "key.json")
        token = sign_token(key, subject="admin", issuer="muster", audience="muster", ttl_seconds=TOKEN_SECONDS)
        where = {"MUSTER_URL": self.url, "MUSTER_TOKEN": token, "MUSTER_PROJECT": PROJECT, "NO_COLOR": "1"}
        ran = subprocess.run(
            [sys.executable, "-m", "muster.cli.main", *arguments],
            env={**self._environment, **where, "XDG_CONFIG_HOME": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    # -- what is there -------------------------------------------------------------------------------------------------

    @property
    def namespace(self) -> str:
        """Of the project's pods."""
        return f"muster-{PROJECT}"

    def pods(self, workload_id: str | None = None) -> list[dict[str, Any]]:
        """Objects of our pods (of one workload) on the API server, by name."""
        chosen = {"labelSelector": f"muster.dev/workload={workload_id}"} if workload_id else {}
        pods = self.plane.admin("GET", f"/api/v1/namespaces/{self.namespace}/pods", **chosen)["items"]
        ours = [pod for pod in pods if "muster.dev/pod-key" in pod["metadata"].get("labels", {})]
        return sorted(ours, key=lambda pod: pod["metadata"]["name"])

    def reservations(self) -> list[dict[str, Any]]:
        """Pods that hold devices for those who share them."""
        path = f"/api/v1/namespaces/{AGENT_NAMESPACE}/pods"
        return self.plane.admin("GET", path, labelSelector="muster.dev/gpu-reservation")["items"]

    def services(self) -> list[dict[str, Any]]:
        """Headless Services in the project's namespace."""
        return self.plane.admin("GET", f"/api/v1/namespaces/{self.namespace}/services")["items"]

    def code_maps(self) -> list[dict[str, Any]]:
        """ConfigMaps with code in the project's namespace."""
        path = f"/api/v1/namespaces/{self.namespace}/configmaps"
        return self.plane.admin("GET", path, labelSelector="muster.dev/cluster")["items"]

    def secrets(self) -> list[dict[str, Any]]:
        """Those with values of credentials."""
        of_muster = "app.kubernetes.io/managed-by=muster"
        return self.plane.admin("GET", "/api/v1/secrets", labelSelector=of_muster)["items"]

    def shared(self) -> list[dict[str, Any]]:
        """What is there for pods, and is to go with the last of them."""
        return [*self.services(), *self.code_maps(), *self.secrets()]

    def cluster_row(self) -> dict[str, Any]:
        """The cluster as the API shows it: `status`, `problem`…"""
        return self.api.get(f"/clusters/{self.cluster_id}")

    def wait_connected(self, timeout_seconds: float = 60) -> None:
        """Until the cluster is connected and all nodes are known and ready."""

        def connected() -> bool:
            if self.cluster_row()["status"] != "Connected":
                return False
            nodes = self.api.get("/nodes", clusterId=self.cluster_id)["nodes"]
            return {node["name"] for node in nodes if node["ready"]} >= set(self.node_names)

        until(connected, timeout_seconds, lambda: f"{self.cluster_row()}: {self.agents[0].said()}")

    def read_log(self) -> list[RawMessage]:
        """Every message of the log, raw."""

        async def read() -> list[RawMessage]:
            nc = await connect(self.nats.settings(EVERYTHING), EVERYTHING)
            try:
                return await read_log(nc)
            finally:
                await nc.close()

        return asyncio.run(read())

    async def query(self, sql: str) -> list[asyncpg.Record]:
        """Rows of the projections, for what the API is too slow for."""
        connection = await asyncpg.connect(self.postgres.url())
        try:
            return await connection.fetch(sql)
        finally:
            await connection.close()


def deployed(*names: str) -> list[dict[str, Any]]:
    """Objects of these files of deploy/kubernetes."""
    documents = (document for name in names for document in yaml.safe_load_all((DEPLOY / name).read_text()))
    return [cast("dict[str, Any]", document) for document in documents]


def simulated(
    runtime_seconds: float | None, simulation: Mapping[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """A spec whose pods do as told on simulated nodes; other annotations may be given in it."""
    told = dict(simulation or {})
    if runtime_seconds is not None:
        told["runtime-seconds"] = str(runtime_seconds)
    annotations = [{"name": f"{SIMULATION}/{key}", "value": value} for key, value in told.items()]
    given: Iterable[Any] = spec.pop("annotations", ())
    return {**spec, "annotations": [*given, *annotations]}


def lasting_port() -> int:
    """A port of loopback that a program may be given long before it listens there."""
    while True:
        port = random.choice(LASTING_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _variables(settings: Mapping[str, object]) -> dict[str, str]:
    return {f"MUSTER_{name.upper()}": str(value) for name, value in settings.items()}


def _answers_ok(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False


@contextlib.contextmanager
def running_stack(*, agents: int = 1, **options: Any) -> Generator[KubernetesStack]:
    """A stack in a folder of its own, gone afterwards. A short path that others may enter: Postgres never runs as
    root.
    """
    with tempfile.TemporaryDirectory(prefix="muster-kube-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        stack = KubernetesStack(Path(folder), **options)
        try:
            yield stack.start(agents=agents)
        finally:
            stack.close()
