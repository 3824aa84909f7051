"""The agent service: which kinds of clusters it serves, and what they are made of on this machine."""

import asyncio
import os
import pwd
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import msgspec
import psutil
from nats.aio.client import Client

from events.cluster import ClusterKind
from events.cluster_protocol import WantedCluster
from events.simulated import unpacked
from services.agent.backends.interface import Backend, BackendError
from services.agent.backends.local.backend import LocalBackend
from services.agent.backends.local.environment import LocalMachine
from services.agent.backends.local.run_folder import Isolation
from services.agent.backends.local.shims import PACKAGES
from services.agent.backends.simulated import SimulatedBackend
from services.agent.clock import RealClock
from services.agent.code import KeptSource
from services.agent.host import AgentHost, OpenBackend
from services.runtime.code.kept import KeptCode
from services.runtime.nats.connection import connect
from services.runtime.nats.inboxes import agent_user
from services.runtime.nats.requests import Requests
from services.runtime.nats.streams import assert_streams
from services.runtime.process.host import Health
from services.runtime.process.settings import Settings

DAY_SECONDS: Final = 24 * 3600.0


async def run(settings: Settings, health: Health, stop: asyncio.Event) -> None:
    """Serve one cluster, or every cluster of the configured kinds, until `stop` is set."""
    if settings.agent_cluster:
        await _serve_one(settings, settings.agent_cluster, health, stop)
        return
    nc = await connect(settings, "agent")
    try:
        await assert_streams(nc, replicas=settings.replicas)
        await AgentHost(nc, _backends(settings, nc), version=_version()).run(stop, health.ready)
    finally:
        await nc.close()


async def _serve_one(settings: Settings, cluster_id: str, health: Health, stop: asyncio.Event) -> None:
    """As a service of its own. Servers and streams are not looked at: what they say of themselves names other clusters'
    pods, too, and nothing of what this agent reads or writes must outlive them.
    """
    nc = await connect(settings, agent_user(cluster_id))
    try:
        host = AgentHost(
            nc,
            _backends(settings, nc),
            version=_version(),
            cluster_id=cluster_id,
            list_again_seconds=settings.kubernetes_list_again_seconds,
        )
        await host.run(stop, health.ready)
    finally:
        await nc.close()


def _backends(settings: Settings, nc: Client) -> dict[ClusterKind, OpenBackend]:
    code = KeptSource(KeptCode(Requests(nc)))

    async def simulated(cluster: WantedCluster) -> Backend:
        try:
            return SimulatedBackend(unpacked(cluster.packed_nodes), RealClock())
        except (ValueError, msgspec.DecodeError) as error:
            raise BackendError(str(error)) from error

    async def local(cluster: WantedCluster) -> Backend:
        return await LocalBackend(_this_machine(settings, cluster), code).open()

    async def kubernetes(cluster: WantedCluster) -> Backend:
        # Its library costs memory and time at the start, which processes that serve no such cluster do not spend.
        from services.agent.backends.kubernetes.backend import open_backend

        return await open_backend(settings, cluster, code)

    known: dict[ClusterKind, OpenBackend] = {"local": local, "simulated": simulated, "kubernetes": kubernetes}
    if settings.agent_cluster:
        return known
    served = settings.agent_kinds.split(",")
    return {kind: opened for kind, opened in known.items() if kind in served}


def _this_machine(settings: Settings, cluster: WantedCluster) -> LocalMachine:
    """Raises BackendError where there is no data folder."""
    if settings.data_dir is None:
        raise BackendError("the local cluster needs a folder for its pods: set MUSTER_DATA_DIR")
    return LocalMachine(
        data_dir=Path(settings.data_dir).absolute() / "local" / cluster.cluster_id,
        cluster_id=cluster.cluster_id,
        cpu_milli=len(os.sched_getaffinity(0)) * 1000,
        memory_bytes=psutil.virtual_memory().total,
        stand_in_gpus=settings.local_gpus,
        # Not a setting of ours but a fact about the machine, like its number of processors.
        path=os.environ.get("PATH", os.defpath),
        home=pwd.getpwuid(os.getuid()).pw_dir,
        log_max_bytes=settings.pod_log_max_bytes,
        log_retention_seconds=settings.pod_log_retention_days * DAY_SECONDS,
        logs_total_max_bytes=settings.pod_logs_total_max_bytes,
        isolation=_isolation(settings, Path(settings.data_dir)) if settings.local_pods == "isolated" else None,
        own_ports=settings.own_ports,
    )


def _isolation(settings: Settings, data_dir: Path) -> Isolation:
    """Muster's data is hidden from pods; the program itself, and the Python that runs it, they cannot change."""
    hidden = [data_dir, *map(Path, filter(None, settings.local_hidden_folders.split(os.pathsep)))]
    root, prefix = Path(PACKAGES), Path(sys.prefix)
    packages = (root / name for name in ("deploy", "events", "muster", "projections", "services"))
    ours = {*packages, prefix, Path(sys.base_prefix)}
    return Isolation(
        hidden=tuple(str(folder.absolute()) for folder in hidden),
        read_only=tuple(str(folder) for folder in sorted(ours) if folder.is_dir()),
        # A checkout stands on Python's path: Muster would run a new `sitecustomize.py` there.
        closed=() if root.is_relative_to(prefix) else (str(root),),
    )


def _version() -> str:
    try:
        return version("muster")
    except PackageNotFoundError:
        return "0"
