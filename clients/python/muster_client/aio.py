"""The client with `await`. `make docs` makes `sync.py` from it, so what stands here must make sense without, too."""

import asyncio
import os
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Self

import httpx

from muster_client import models, operations
from muster_client.errors import EventsLost, NotFound, TooManyRequests, Unavailable, error_of
from muster_client.request import (
    Frames,
    Lines,
    Request,
    StreamEndedError,
    Told,
    authorization,
    is_beyond_the_log,
    not_in_time,
    pause_seconds,
    poll_seconds,
    reached,
    sequence_of,
)

DEFAULT_URL: Final = "http://127.0.0.1:8080"
SILENCE_SECONDS: Final = 60.0
"""A stream of events that says nothing for so long is dead: the server says every 15 s that it lives."""
PAGE: Final = 500
"""The most that the API gives in one answer."""


class AsyncMuster:
    """A connection to Muster: `async with AsyncMuster() as muster: …`.

    What cannot be reached is tried again with growing pauses; changes have an Idempotency-Key, so that a repetition
    changes nothing. No answer is older than what an earlier one said. Errors are those of `muster_client.errors`.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | Callable[[], str] | None = None,
        *,
        retry_seconds: float = 30.0,
        timeout_seconds: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """
        Args:
            url: of the server. Default: MUSTER_URL, or http://127.0.0.1:8080.
            token: sent with each request; a function is asked each time. Default: MUSTER_TOKEN.
            retry_seconds: how long one request is tried while the server is away.
            timeout_seconds: how long one try may wait for the server.
            transport: of httpx, for a certificate authority or a proxy of your own.
        """
        url = url or os.environ.get("MUSTER_URL") or DEFAULT_URL
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"the url must begin with http:// or https://, got {url!r}")
        self._token = os.environ.get("MUSTER_TOKEN", "") if token is None else token
        self._retry_seconds = retry_seconds
        self._timeout_seconds = timeout_seconds
        self._sequence = 0
        self._http = httpx.AsyncClient(base_url=url, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    # -- Any request ---------------------------------------------------------------------------------------------------

    async def send[T](self, request: Request[T]) -> T:
        """Carry out a request of `muster_client.operations`. Raises RequestError."""
        return (await self._sent(request))[0]

    async def _sent[T](self, request: Request[T]) -> tuple[T, int]:
        """The answer, and the sequence of the log of which it speaks."""
        key = uuid.uuid4().hex
        ends, tries = time.monotonic() + self._retry_seconds, 0
        while True:
            try:
                async with self._answered(request, key, read_seconds=self._timeout_seconds) as answer:
                    return request.read(await answer.aread()), sequence_of(answer.headers)
            except (Unavailable, TooManyRequests) as error:
                pause = pause_seconds(tries, error.retry_after_seconds)
                if not request.may_be_repeated or time.monotonic() + pause > ends:
                    raise
            tries += 1
            await asyncio.sleep(pause)

    def lines(self, request: Request[str]) -> AsyncGenerator[str]:
        """Lines of an answer of text, as they come, with no end to the wait for the next one.

        Raises Unavailable where the connection breaks before the end, LogsCut where the server ends logs early.
        """
        return self._lines(request, None)

    async def _lines(self, request: Request[str], silence_seconds: float | None) -> AsyncGenerator[str]:
        async with self._answered(request, read_seconds=silence_seconds) as answer:
            lines = Lines(answer.headers.get("x-cut-mark"))
            async for piece in answer.aiter_bytes():
                for line in lines.feed(piece):
                    yield line
        for line in lines.rest():
            yield line

    @asynccontextmanager
    async def _answered[T](
        self, request: Request[T], key: str = "", *, read_seconds: float | None
    ) -> AsyncGenerator[httpx.Response]:
        """A good answer, whose body is still to be read."""
        try:
            answer = await self._opened(request, key, httpx.Timeout(self._timeout_seconds, read=read_seconds))
            try:
                self._sequence = max(self._sequence, sequence_of(answer.headers))
                yield answer
            finally:
                await answer.aclose()
        except (httpx.TransportError, httpx.DecodingError) as error:
            at = self._http.base_url  # but not with a password that stands in it
            told = f"{at.scheme}://{at.netloc.decode()}{at.path}".rstrip("/")
            raise Unavailable(f"{told}: {error or type(error).__name__}") from error

    async def _opened[T](self, request: Request[T], key: str, timeout: httpx.Timeout) -> httpx.Response:
        while True:
            sent = self._http.build_request(
                request.method,
                request.path,
                params=request.parameters(),
                content=request.content(),
                headers=self._headers(request, key),
                timeout=timeout,
            )
            answer = await self._http.send(sent, stream=True)
            if answer.is_success:
                return answer
            try:
                error = error_of(answer.status_code, await answer.aread(), answer.headers)
            finally:
                await answer.aclose()
            if not self._sequence or not is_beyond_the_log(error):
                raise error
            # The log was restored without what was seen last.
            self._sequence = 0

    def _headers[T](self, request: Request[T], key: str) -> dict[str, str]:
        token = self._token() if callable(self._token) else self._token
        headers = {"Authorization": authorization(token)} if token else {}
        if self._sequence:
            headers["X-Log-Sequence"] = str(self._sequence)
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        if request.keyed:
            headers["Idempotency-Key"] = key
        return headers | {name: value for name, value in request.headers if value is not None}

    # -- Workloads -----------------------------------------------------------------------------------------------------

    async def submit(
        self,
        workload: models.TrainingCreation
        | models.DistributedCreation
        | models.WorkspaceCreation
        | models.InferenceCreation,
    ) -> models.Workload:
        """Submit a workload of any kind. Once this returns, it is stored."""
        match workload:
            case models.TrainingCreation():
                made = await self.send(operations.create_training1(workload))
            case models.DistributedCreation():
                made = await self.send(operations.create_distributed(workload))
            case models.WorkspaceCreation():
                made = await self.send(operations.create_workspace(workload))
            case models.InferenceCreation():
                made = await self.send(operations.create_inference(workload))
        return await self.get(made.workload_id)

    async def get(self, workload_id: str) -> models.Workload:
        """A workload as it is now."""
        return await self.send(operations.get_workload(workload_id))

    async def suspend(self, workload_id: str) -> None:
        """Stop its pods and keep it."""
        await self.send(operations.suspend_training(workload_id))

    async def resume(self, workload_id: str) -> None:
        """Run it again."""
        await self.send(operations.resume_training(workload_id))

    async def delete(self, workload_id: str) -> None:
        """Delete it. Its record stays."""
        await self.send(operations.delete_training(workload_id))

    async def wait(
        self, workload_id: str, *phases: models.Phase | str, timeout_seconds: float = 3_600.0
    ) -> models.Workload:
        """Wait until it is in one of the phases, by default Completed; an inference, which never completes, Running.
        `Deleted` counts as one, too.

        What has completed has been Running, too. Raises WorkloadEnded where it ends otherwise, with the reason, and
        WaitTimeoutError, with what it waits for.
        """
        began = time.monotonic()
        while True:
            workload = await self.get(workload_id)
            if reached(workload, phases):
                return workload
            spent = time.monotonic() - began
            if spent >= timeout_seconds:
                raise not_in_time(workload, timeout_seconds)
            await asyncio.sleep(min(poll_seconds(spent), timeout_seconds - spent))

    def logs(
        self,
        workload_id: str,
        *,
        follow: bool = False,
        tail: int | None = None,
        since: str | None = None,
        pod: str | None = None,
        timestamps: bool = False,
        previous: bool = False,
    ) -> AsyncGenerator[str]:
        """Lines that its pods have written; with `follow` until they have ended. Those of several begin with names.

        Raises what `lines` raises; `since` goes on from a time.
        """
        return self.lines(
            operations.workload_logs(
                workload_id, follow=follow, tail=tail, since=since, pod=pod, timestamps=timestamps, previous=previous
            )
        )

    # -- Lists: every page, one after the other ------------------------------------------------------------------------

    async def workloads(
        self,
        *filters: str,
        labels: str | None = None,
        search: str | None = None,
        sort_by: str = "createdAt",
        descending: bool = True,
        deleted: bool = False,
        as_of: str | None = None,
    ) -> AsyncGenerator[models.WorkloadRow]:
        """Workloads, all as of one moment: that of the first page.

        Args:
            filters: such as `phase==Running` or `projectName==vision`; all must be met.
            labels: as Kubernetes selects by them: `team=vision,!old`.
            as_of: a time (RFC 3339) or a sequence of the log; default: now.
        """
        offset: int | None = 0
        while offset is not None:
            page, sequence = await self._sent(
                operations.list_workloads(
                    offset=offset,
                    limit=PAGE,
                    sort_by=sort_by,
                    sort_order="desc" if descending else "asc",
                    filter_by=list(filters),
                    label_selector=labels,
                    search=search,
                    deleted=deleted,
                    as_of=as_of,
                )
            )
            as_of, offset = as_of or str(sequence), page.next
            for row in page.workloads:
                yield row

    async def history(self, workload_id: str, *, as_of: str | None = None) -> AsyncGenerator[models.Record]:
        """What happened to a workload, oldest first."""
        offset: int | None = 0
        while offset is not None:
            page, sequence = await self._sent(
                operations.workload_history(workload_id, offset=offset, limit=PAGE, as_of=as_of)
            )
            as_of, offset = as_of or str(sequence), page.next
            for record in page.records:
                yield record

    async def pods(self, workload_id: str, *, as_of: str | None = None) -> list[models.Pod]:
        """Every run of every pod of a workload."""
        return (await self.send(operations.workload_pods(workload_id, as_of=as_of))).pods

    async def projects(self) -> list[models.Project]:
        """The projects that you may read."""
        return (await self.send(operations.list_projects())).projects

    async def clusters(self) -> list[models.Cluster]:
        """The clusters."""
        return (await self.send(operations.list_clusters())).clusters

    async def nodes(self, cluster_id: str | None = None) -> list[models.Node]:
        """Nodes, their capacity and what is reserved."""
        return (await self.send(operations.list_nodes(cluster_id=cluster_id))).nodes

    async def project(self, name: str) -> models.Project:
        """The project of this name. Raises NotFound."""
        for project in await self.projects():
            if project.name == name:
                return project
        raise NotFound(f"there is no project {name!r}, or you may not see it", status=404)

    async def cluster(self, name: str) -> models.Cluster:
        """The cluster of this name. Raises NotFound."""
        for cluster in await self.clusters():
            if cluster.name == name:
                return cluster
        raise NotFound(f"there is no cluster {name!r}, or you may not see it", status=404)

    # -- Public events -------------------------------------------------------------------------------------------------

    async def events(
        self,
        *,
        project_id: str | None = None,
        workload_id: str | None = None,
        types: Sequence[str] = (),
        actor: str | None = None,
        from_: str | None = None,
        to: str | None = None,
    ) -> AsyncGenerator[models.EventRow]:
        """Public events that have been, newest first, with the names of what they are about. They are kept for 30 days.

        Args:
            types: such as `WorkloadFailed`; default: all.
            from_: a time (RFC 3339) or a sequence of the log, as is `to`.
        """
        before: str | None = None
        while True:
            page = await self.send(
                operations.list_public_events(
                    project_id=project_id,
                    workload_id=workload_id,
                    type_=list(types),
                    actor=actor,
                    from_=from_,
                    to=to,
                    before=before,
                    limit=PAGE,
                )
            )
            for row in page.events:
                yield row
            if page.next is None:
                return
            before = page.next

    async def listen(
        self, *, project_id: str | None = None, workload_id: str | None = None, types: Sequence[str] = ()
    ) -> AsyncGenerator[models.PublicEvent]:
        """What happens from now on, each event once, across restarts of the server. It never ends by itself.

        Raises EventsLost where some may be missing, and what `follow_events` raises.
        """
        async for told in self.follow_events(project_id=project_id, workload_id=workload_id, types=types):
            if told.lost is not None:
                raise EventsLost(told.lost)
            if told.event is not None:
                yield told.event

    async def follow_events(
        self,
        *,
        project_id: str | None = None,
        workload_id: str | None = None,
        types: Sequence[str] = (),
        last_event_id: str | None = None,
        from_: str | None = None,
        away_seconds: float = 600.0,
    ) -> AsyncGenerator[Told]:
        """Public events with their places, for who stores how far it has come.

        A connection that breaks is made again, with growing pauses, and goes on exactly behind the last place. Raises
        Unavailable where the server is away for `away_seconds`, and other RequestErrors where it refuses.

        Args:
            last_event_id: a place; begin behind it. Default: with what is new.
            from_: begin with the events from this time (RFC 3339) or sequence of the log on.
        """
        frames, heard, tries = Frames(last_event_id), time.monotonic(), 0
        while True:
            place, pause = frames.place, 0.0
            request = operations.stream_events(
                project_id=project_id,
                workload_id=workload_id,
                type_=list(types),
                from_=from_ if place is None else None,
                last_event_id=place,
            )
            frames.connected()
            try:
                async for line in self._lines(request, SILENCE_SECONDS):
                    heard, tries = time.monotonic(), 0
                    if (told := frames.take(line)) is not None:
                        yield told
            except StreamEndedError as ended:
                if not ended.may_go_on:
                    raise ended.error from None
            except (Unavailable, TooManyRequests) as error:
                # A server that asks for a longer pause is away for that long.
                if time.monotonic() - heard + error.retry_after_seconds > away_seconds:
                    raise
                pause = error.retry_after_seconds
            await asyncio.sleep(pause_seconds(tries, pause))
            tries += 1
