"""The Kubernetes backend: makes the pods that it is told to, and says what the API server says of them.

One agent of a cluster acts at a time (lease.py). Three things keep it safe where that fails, and whenever it dies. A
rank has one object name, so the API server itself refuses a second live pod of it. A finalizer keeps every object of
ours until its end stands in the log, so no run is lost from sight or started twice. And what may no longer be started
stands in the cluster (fences.py) before anything is deleted.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, assert_never

import structlog

from events.cluster_protocol import (
    LogLine,
    LogsRequest,
    ObservedPod,
    RunPod,
    SealedValues,
    SessionOpen,
    SourceToLookAt,
    UsageSample,
    WantedCluster,
)
from events.workload.volumes import ClaimedFolder, SharedFolder
from services.agent.backends.interface import (
    NO_VALUES,
    BackendError,
    ClusterSettings,
    HeldClaims,
    NoWayError,
    Observation,
    Picture,
    WatchBrokenError,
    Way,
)
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.claims import Claims
from services.agent.backends.kubernetes.act.code_maps import CodeMaps
from services.agent.backends.kubernetes.act.fences import Fences
from services.agent.backends.kubernetes.act.headless import HeadlessServices
from services.agent.backends.kubernetes.act.lease import Identity, Lease
from services.agent.backends.kubernetes.act.namespaces import Namespaces
from services.agent.backends.kubernetes.act.objects import Event, Node, Pod
from services.agent.backends.kubernetes.act.reservations import Reservations
from services.agent.backends.kubernetes.act.runs import Runs, logged_run
from services.agent.backends.kubernetes.act.secrets import Secrets
from services.agent.backends.kubernetes.act.shared import SharedVolumes
from services.agent.backends.kubernetes.breaker import Breaker
from services.agent.backends.kubernetes.client import ApiError, KubeClient, Timeouts
from services.agent.backends.kubernetes.configuration import Configuration, configuration_of
from services.agent.backends.kubernetes.connect import ConnectError, connect
from services.agent.backends.kubernetes.read.checkpoints import Checkpoints
from services.agent.backends.kubernetes.read.gpu_usage import Exporter, GpuMetrics, exporters_of
from services.agent.backends.kubernetes.read.informer import Change, Informer
from services.agent.backends.kubernetes.read.logs import PodLogs
from services.agent.backends.kubernetes.read.nodes import Readiness
from services.agent.backends.kubernetes.read.observe import missing_code, missing_secret, warning_of
from services.agent.backends.kubernetes.read.usage import pod_usage
from services.agent.backends.kubernetes.read.view import View, token_of
from services.agent.backends.kubernetes.ways import ClusterConnections, Place, PortForward, open_streams
from services.agent.backends.reach import server_of, unreachable
from services.agent.code import CodeArchives
from services.runtime.process.settings import Settings

CLOCK_SECONDS: Final = 1.0
"""How late what falls due by time may be: lost nodes, unused reservations."""
AWAY_SECONDS: Final = 5.0
"""How long the API server may be away before the cluster is said to have a problem."""
SETTINGS_SECONDS: Final = 2.0
CLASSES_SECONDS: Final = 30.0
"""Between looks at the storage classes: administrators change them seldom."""
"""A heartbeat waits for them, and must not come late because the API server is slow."""
PROBLEM_CHARACTERS: Final = 500
"""It stands in the log for ever."""
STALLED_SECONDS: Final = 1.5
"""How late the clock may be until this process is taken to have stood still, paused or starved: what others did
meanwhile may be unheard of, and nothing is started before everything was listed again."""
LOST_AT_ONCE: Final = 5
"""Lost pods given up per second, where the settings say so."""
DAY_SECONDS: Final = 24 * 3600.0

log = structlog.get_logger(__name__)


class KubernetesBackend:
    def __init__(
        self,
        client: KubeClient,
        logs: PodLogs,
        cluster_id: str,
        configuration: Configuration,
        *,
        identity: Identity,
        archives: CodeArchives,
    ) -> None:
        self._client = client
        self._identity = identity
        # Where thousands of pods are to be made, it must be renewed in time all the same.
        self._lease = Lease(
            client.aside(), namespace=configuration.namespace, cluster_id=cluster_id, identity=identity.name
        )
        self._listed_in_term = 0
        """Of the lease: what was listed before we had it may have changed by whoever acted then."""
        self._logs = logs
        self._cluster_id = cluster_id
        self._configuration = configuration
        self._namespaces = Namespaces(client, cluster_id, configuration)
        self._fences = Fences(client, namespace=configuration.namespace, cluster_id=cluster_id)
        self._view = View(
            cluster_id,
            fence=lambda key: self._fences.tokens.get(key, 0),
            readiness=Readiness(
                not_ready_seconds=configuration.not_ready_seconds, lost_seconds=configuration.node_lost_seconds
            ),
            is_place=self._namespaces.has,
        )
        silence = configuration.watch_silence_seconds
        self._pods = Informer(client, "/api/v1/pods", Pod, silence_seconds=silence)
        self._nodes = Informer(client, "/api/v1/nodes", Node, silence_seconds=silence)
        self._warnings = Informer(
            client,
            "/api/v1/events",
            Event,
            silence_seconds=silence,
            fieldSelector="type=Warning,involvedObject.kind=Pod",
        )
        self._services = HeadlessServices(client, self._view, cluster_id, self._be_the_one)
        self._code = CodeMaps(
            client, self._view, cluster_id, archives, self._be_the_one, project_of=self._namespaces.project_of
        )
        self._secrets = Secrets(
            client, self._view, cluster_id, self._be_the_one, project_of=self._namespaces.project_of
        )
        self._shared = SharedVolumes(
            client,
            self._view,
            cluster_id,
            self._be_the_one,
            project_of=self._namespaces.project_of,
            namespace_of=partial(names.namespace_of, configuration.project_namespace),
            unused_seconds=configuration.unused_shared_seconds,
        )
        self._breaker = Breaker(client, configuration.namespace)
        self._claims = Claims(
            client,
            self._view,
            cluster_id,
            self._be_the_one,
            is_place=self._namespaces.has,
            is_read=self._shared.reads,
            usual_class=self._breaker.usual_class,
        )
        self._reservations = Reservations(
            client,
            namespace=configuration.namespace,
            cluster_id=cluster_id,
            image=configuration.reservation_image,
            service_account=configuration.reservation_account,
            acts=self._is_current,
        )
        self._looked_at: set[str] = set()
        """Namespaces with pods that have the marks of runs, and are not ours."""
        self._connections = ClusterConnections()
        self._gpu_metrics = GpuMetrics(self._gpu_exporters)
        self._checkpoints = Checkpoints(client, self._view, acts=self._is_current, other=lambda: self._lease.other)
        self._classes_due = 0.0
        """When the storage classes are looked at again (monotonic)."""
        self._news = asyncio.Event()
        self._away_since: float | None = time.monotonic()
        self._away_because = "it was not listed yet"
        self._ticked_at = 0.0
        """Of the clock, or of the last whole list (monotonic)."""
        self._runs = Runs(
            client,
            self._view,
            cluster_id,
            configuration=configuration,
            fences=self._fences,
            namespaces=self._namespaces,
            services=self._services,
            code=self._code,
            secrets=self._secrets,
            claims=self._claims,
            shared=self._shared,
            reservations=self._reservations,
            logs=logs,
            is_current=self._is_current,
            on_news=self._news.set,
        )

    # -- what is there -----------------------------------------------------------------------------------------------

    def follow(self, cluster: WantedCluster) -> bool:  # noqa: ARG002 (what it is stands in its settings)
        return False

    async def list_all(self) -> Picture:
        await self._lease.start()
        term = self._lease.term
        try:
            await self._breaker.read_settings()
            pods, nodes, warnings = await asyncio.gather(self._pods.list(), self._nodes.list(), self._warnings.list())
            # After the pods: whoever ends one raises its fence before, so what is listed as ended is explained by it.
            # And whoever makes one makes its namespace before.
            await asyncio.gather(self._fences.load(), self._namespaces.load(), self._claims.load(), self._shared.load())
            await self._breaker.check(
                ours=self._view.pods.values(),
                is_let_go=lambda pod: token_of(pod) < self._fences.tokens.get(pod.metadata.labels.pod_key, 0),
                listed_pods=pods,
                nodes=self._view.nodes.keys(),
                used_nodes=self._view.used_nodes(),
                listed_nodes=nodes,
            )
        except ApiError as error:
            self._away(f"its API server: {error}")
            raise BackendError(str(error)) from error
        except BackendError as error:
            self._away(str(error))
            raise
        self._pods.accept(pods)
        self._nodes.accept(nodes)
        self._warnings.accept(warnings)
        gone = {name: pod.metadata.uid for (_, name), pod in self._view.reservations.items()}
        self._view.relist(
            pods.objects.values(), nodes.objects.values(), version=int(pods.resource_version), tick=time.monotonic()
        )
        self._looked_at = {namespace for namespace, _ in self._view.unplaced}
        self._see_reservations(gone)
        for event in warnings.objects.values():
            self._warn(event)
        self._services.doubt()
        self._code.doubt()
        self._away_since = None
        self._listed_in_term = term
        self._ticked_at = time.monotonic()
        picture = self._view.picture(datetime.now(UTC), time.monotonic())
        self._follow_logs(picture.pods)
        return picture

    def _see_reservations(self, gone: dict[str, str]) -> None:
        for pod in self._view.reservations.values():
            gone.pop(pod.metadata.name, None)
            self._reservations.see(pod)
        for name, uid in gone.items():
            self._reservations.see_gone(name, uid)

    async def watch(self) -> AsyncIterator[Sequence[Observation]]:
        async with contextlib.aclosing(self._watch()) as batches:
            async for batch in batches:
                yield batch

    async def _watch(self) -> AsyncGenerator[Sequence[Observation]]:
        jobs = [
            asyncio.create_task(job)
            for job in (
                self._watch_pods(),
                self._watch_nodes(),
                self._watch_warnings(),
                self._clock(),
                self._tidy(),
                self._look_at_checkpoints(),
            )
        ]
        try:
            while True:
                news = asyncio.create_task(self._news.wait())
                done, _ = await asyncio.wait([*jobs, news], return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                for job in jobs:
                    if job in done:
                        job.result()
                self._news.clear()
                if batch := self._view.news(datetime.now(UTC), time.monotonic()):
                    self._follow_logs(batch)
                    yield batch
        except WatchBrokenError as error:
            self._view.view_broke()
            self._away(f"its API server: {error}")
            raise
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    async def _watch_pods(self) -> None:
        async for changes in self._pods.watch():
            for change in changes:
                self._take_pod(change)
            await self._look_at_places()
            self._news.set()

    async def _look_at_places(self) -> None:
        """Look once whether a namespace that was not known is ours: another agent may have made it a moment ago."""
        unknown = {namespace for namespace, _ in self._view.unplaced} - self._looked_at
        if not unknown:
            return
        try:
            await self._namespaces.load()
        except ApiError as error:
            raise WatchBrokenError(f"its namespaces cannot be read: {error}") from error
        self._looked_at |= unknown
        self._view.places_found()

    def _take_pod(self, change: Change[Pod]) -> None:
        pod = change.object
        if change.kind == "deleted":
            self._view.pod_gone(pod, datetime.now(UTC))
        else:
            self._view.see_pod(pod)
        if pod.holds_gpu(self._cluster_id):
            if change.kind == "deleted":
                self._reservations.see_gone(pod.metadata.name, pod.metadata.uid)
            else:
                self._reservations.see(pod)

    async def _watch_nodes(self) -> None:
        async for changes in self._nodes.watch():
            for change in changes:
                if change.kind == "deleted":
                    self._view.node_gone(change.object.metadata.name)
                else:
                    self._view.see_node(change.object, time.monotonic())
            self._news.set()

    async def _watch_warnings(self) -> None:
        async for changes in self._warnings.follow():
            for change in changes:
                if change.kind != "deleted":
                    self._warn(change.object)
            self._news.set()

    def _warn(self, event: Event) -> None:
        if missing := missing_code(event):
            self._code.doubt_one(*missing)
        elif secret := missing_secret(event):
            self._secrets.miss(*secret)
        elif found := warning_of(event):
            self._view.warn(*found)

    async def _clock(self) -> None:
        while True:
            await asyncio.sleep(CLOCK_SECONDS)
            if self._lease.held() and self._lease.term != self._listed_in_term:
                raise WatchBrokenError("this agent is the one that acts from now on: everything is listed again")
            if not self._knows_now():
                seconds = time.monotonic() - self._ticked_at
                raise WatchBrokenError(f"this process stood still: its clock ticked {seconds:.1f} s ago")
            self._ticked_at = time.monotonic()
            self._view.advance(self._ticked_at)
            self._news.set()

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(CLOCK_SECONDS)
            if not self._is_current():
                continue
            await self._reservations.tidy(self._view.pods.values())
            await self._services.tidy()
            await self._code.tidy()
            await self._secrets.tidy()
            await self._shared.tidy()
            if self._configuration.replace_lost_pods:
                await self._give_up_lost()

    async def _look_at_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(CLOCK_SECONDS)
            if await self._checkpoints.look():
                self._news.set()

    async def _give_up_lost(self) -> None:
        for pod in self._view.lost_pods()[:LOST_AT_ONCE]:
            try:
                await self._runs.give_up(pod, "it has not answered for too long, and its pods are given up")
            except (ApiError, BackendError) as error:
                log.warning("lost_pod_not_given_up", pod=pod.metadata.name, reason=str(error))

    def _away(self, because: str) -> None:
        self._away_because = because
        if self._away_since is None:
            self._away_since = time.monotonic()

    def _is_current(self) -> bool:
        """Whether this agent is the one that acts, and all that it knows of the cluster is of now."""
        return self._acts() and self._knows_now()

    def _acts(self) -> bool:
        return self._lease.held() and self._lease.term == self._listed_in_term

    def _be_the_one(self) -> None:
        """Raises BackendError where another agent acts, or may have acted since this one listed."""
        if not self._acts():
            raise BackendError("another agent of this cluster acts: nothing is made or deleted beside its pods")

    def _knows_now(self) -> bool:
        return self._away_since is None and time.monotonic() - self._ticked_at < CLOCK_SECONDS + STALLED_SECONDS

    def problem(self) -> str:
        if self._away_since is None or time.monotonic() - self._away_since < AWAY_SECONDS:
            return ""
        return self._away_because[:PROBLEM_CHARACTERS]

    def standby(self) -> str:
        return self._lease.other

    def may_start(self) -> bool:
        return self._is_current()

    # -- what is done ------------------------------------------------------------------------------------------------

    async def apply(self, pod: RunPod, values: SealedValues = NO_VALUES) -> None:
        with _kubernetes_errors():
            await self._runs.apply(pod, values)

    def lacking(self) -> Sequence[tuple[str, int]]:
        return self._secrets.lacking() if self._is_current() else ()

    async def delete(self, pod_key: str, token: int, grace_seconds: int) -> None:
        with _kubernetes_errors():
            await self._runs.delete(pod_key, token, grace_seconds)

    async def forget(self, pod_key: str, token: int) -> None:
        with _kubernetes_errors():
            await self._runs.forget(pod_key, token)

    async def is_there(self, pod_key: str, token: int) -> bool:
        with _kubernetes_errors():
            return await self._runs.is_there(pod_key, token)

    async def claims(self) -> Sequence[HeldClaims]:
        return self._claims.held() if self._is_current() else ()

    async def look(self, source: SourceToLookAt) -> str:
        """At claims of projects that have a namespace here, and at servers. The agent may not read ConfigMaps and
        Secrets of projects, and knows nothing of paths of nodes.
        """
        volume, server = source.volume, server_of(source.volume)
        if server is not None:
            looks = server[1] in self._configuration.data_source_ports
            return await unreachable(*server, own=False) if looks else ""
        if isinstance(volume, SharedFolder):
            with _kubernetes_errors():
                return await self._shared.look(volume)
        if not (isinstance(volume, ClaimedFolder) and volume.new is None and source.project_id):
            return ""
        namespace = names.namespace_of(self._configuration.project_namespace, source.project_name)
        if self._namespaces.project_of(namespace) != source.project_id:
            return ""
        with _kubernetes_errors():
            there = await self._client.has(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{volume.claim}")
        return "" if there else f"there is no claim {volume.claim} in namespace {namespace}"

    async def remove_claims(self, workload_id: str, *, ephemeral_only: bool) -> None:
        with _kubernetes_errors():
            await self._claims.remove(workload_id, ephemeral_only=ephemeral_only)

    def fences(self) -> Mapping[str, int]:
        return _AllFences(self._fences.tokens, self._view)

    # -- the rest ----------------------------------------------------------------------------------------------------

    def _follow_logs(self, seen: Sequence[Observation]) -> None:
        if not self._lease.held():
            return  # who acts does
        for one in seen:
            pod = self._view.pods.get(one.pod_key) if isinstance(one, ObservedPod) else None
            if pod is None or not isinstance(one, ObservedPod):
                continue
            if pod.ended:
                self._runs.finish_log(pod)
            elif one.kind == "running":
                self._logs.running(logged_run(pod))

    def logs(self, request: LogsRequest) -> AsyncIterator[Sequence[LogLine]]:
        return self._logs.logs(request)

    async def open_way(self, request: SessionOpen) -> Way:
        pod = self._view.pods.get(request.pod_key)
        if pod is None or token_of(pod) != request.token or pod.metadata.labels.workload != request.workload_id:
            raise NoWayError("pod_not_running", "this run of the pod is not there, or not any more")
        place = Place(
            self._client, pod, now=lambda: self._view.pods.get(request.pod_key), other=lambda: self._lease.other
        )
        if not place.live:
            raise NoWayError("pod_not_running", "the container of this pod does not run yet, or not any more")
        match request.kind:
            case "exec" | "attach":
                return await open_streams(request, place)
            case "port-forward":
                return await PortForward.start(request, place, self._connections)
            case _:
                assert_never(request.kind)

    async def usage(self) -> Sequence[UsageSample]:
        try:
            return await pod_usage(self._client, self._cluster_id, self._view.pods, self._gpu_metrics)
        except ApiError as error:
            raise BackendError(str(error)) from error

    async def _gpu_exporters(self) -> Sequence[Exporter]:
        where = self._configuration
        if not where.gpu_metrics_namespace:
            return ()
        return await exporters_of(
            self._client, where.gpu_metrics_namespace, where.gpu_metrics_selector, where.gpu_metrics_port
        )

    async def settings(self) -> ClusterSettings:
        if self._away_since is None:
            with contextlib.suppress(ApiError, TimeoutError):
                async with asyncio.timeout(SETTINGS_SECONDS):
                    await self._breaker.read_settings()
                    if time.monotonic() >= self._classes_due:
                        await self._breaker.read_classes()
                        self._classes_due = time.monotonic() + CLASSES_SECONDS
        return ClusterSettings(
            ownership_protection=self._breaker.ownership_protection, storage_classes=self._breaker.storage_classes
        )

    async def interrupt(self, seconds: float) -> int:  # noqa: ARG002 (pods live on)
        return 0

    async def close(self) -> None:
        await self._lease.close()
        await self._fences.close()
        await self._runs.close()
        await self._logs.close()
        await self._gpu_metrics.close()
        await self._client.close()
        self._identity.close()


class _AllFences(Mapping[str, int]):
    """What is persisted, and what the objects themselves say."""

    def __init__(self, persisted: Mapping[str, int], view: View) -> None:
        self._persisted = persisted
        self._view = view

    def __getitem__(self, key: str) -> int:
        if key not in self._persisted and key not in self._view.pods and self._view.end_of(key) is None:
            raise KeyError(key)
        pod, ended = self._view.pods.get(key), self._view.end_of(key)
        return max(
            self._persisted.get(key, 0),
            token_of(pod) if pod is not None else 0,
            ended.token if ended is not None else 0,
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._persisted.keys() | self._view.pods.keys())

    def __len__(self) -> int:
        return len(self._persisted.keys() | self._view.pods.keys())


@contextlib.contextmanager
def _kubernetes_errors() -> Generator[None]:
    try:
        yield
    except ApiError as error:
        raise BackendError(str(error), again_seconds=error.retry_after_seconds) from error


async def open_backend(settings: Settings, cluster: WantedCluster, archives: CodeArchives) -> KubernetesBackend:
    """Raises BackendError where the settings do not say how the cluster is reached. Asks the API server nothing yet."""
    configuration = configuration_of(settings)
    timeouts = Timeouts(call_seconds=settings.kubernetes_call_seconds)
    try:
        client = await connect(settings.kubeconfig, settings.kube_context or None, timeouts=timeouts)
    except ConnectError as error:
        raise BackendError(str(error)) from error
    folder = Path(settings.data_dir or tempfile.gettempdir()).absolute() / "kubernetes" / cluster.cluster_id
    logs = PodLogs(
        client,
        folder,
        max_bytes=settings.pod_log_max_bytes,
        retention_seconds=settings.pod_log_retention_days * DAY_SECONDS,
        total_max_bytes=settings.pod_logs_total_max_bytes,
        followers=settings.pod_log_followers,
    )
    return KubernetesBackend(
        client, await logs.open(), cluster.cluster_id, configuration, identity=Identity(folder), archives=archives
    )
