"""When pods saved their work last: the newest file of their checkpoint folder, as a command in the pod says.

Only a pod can look at its claim. So the agent runs a command there, through the same way as `muster exec`, where the
cluster's administrator allows ways into pods. It is the pod's own programs that answer, with the pod's own rights: they
may say anything, and what they say is bounded.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Final, NamedTuple

import structlog
from aiohttp import ClientError

from events.channels import STDOUT
from events.cluster_protocol import SessionOpen
from events.workload.commands import PodWarning
from services.agent.backends.interface import NoWayError
from services.agent.backends.kubernetes.act.objects import Pod
from services.agent.backends.kubernetes.client import ApiError, KubeClient
from services.agent.backends.kubernetes.read.turns import ONE_SECONDS, Asks, Folder, Turns
from services.agent.backends.kubernetes.read.view import View, token_of
from services.agent.backends.kubernetes.ways import Place, open_streams
from services.agent.backends.local.checkpoints import MOST_DEPTH, MOST_ENTRIES, NOT_WHOLE

NOT_ALLOWED_SECONDS: Final = 300.0
MOST_BYTES: Final = 4096
"""Of all that a command writes: an answer has two short lines."""
NOT_SEEN: Final = "checkpoints_not_seen"
"""Reason of the warning that the image has no programs to look with."""

SCRIPT: Final = f"""LC_ALL=C; export LC_ALL
for each in find head sed xargs stat sort; do
  command -v $each > /dev/null || {{ echo "lacks $each"; exit 0; }}
done
find "$1" -xdev -maxdepth {MOST_DEPTH} -type f 2> /dev/null | head -n {MOST_ENTRIES + 1} | sed 's/./\\\\&/g' |
  xargs stat -c %Y 2> /dev/null | sort -rn | sed -n '1p;{MOST_ENTRIES + 1}p'
"""
"""The time of the newest plain file, in Unix seconds, and another line where there are more than are looked at. Each
character of a name is quoted, since anything may stand in one. GNU's and busybox's programs understand it.
"""

log = structlog.get_logger(__name__)


class Answer(NamedTuple):
    at: float | None = None
    """Unix seconds; None where there is no file."""
    whole: bool = True
    lacks: str = ""
    """A program that the image has not got."""


class Checkpoints:
    """Of one cluster. Belongs to one event loop."""

    def __init__(self, client: KubeClient, view: View, *, acts: Callable[[], bool], other: Callable[[], str]) -> None:
        """`acts`: whether this agent is the one that acts. `other`: which one acts in its place."""
        self._client = client
        self._view = view
        self._acts = acts
        self._other = other
        self._turns = Turns()
        self._blind: set[str] = set()
        """Uids of pods whose image cannot look."""
        self._rests_until = 0.0

    async def look(self) -> bool:
        """Look at some of those that are due: first where a pod ends, then where it is longest ago. Whether there is
        news.
        """
        now = time.monotonic()
        if not self._acts() or now < self._rests_until:
            return False
        self._blind &= {pod.metadata.uid for pod in self._view.pods.values()}
        folders = self._folders()
        there = {folder: Asks(pods[0].metadata.namespace, _ends(pods)) for folder, pods in folders.items()}
        news = await asyncio.gather(*(self._look_at(each, folders[each]) for each in self._turns.next(there, now)))
        return any(news)

    def _folders(self) -> dict[Folder, list[Pod]]:
        """Pods that run, have a folder and can look, by workload and pod set: those of one share theirs."""
        found: dict[Folder, list[Pod]] = {}
        for key, pod in self._view.pods.items():
            if pod.metadata.annotations.checkpoint_dir and self._place(key, pod).live:
                labels = pod.metadata.labels
                found.setdefault((labels.workload, labels.pod_set), []).append(pod)
        return {folder: pods for folder, pods in found.items() if self._seeing(pods)}

    def _seeing(self, pods: list[Pod]) -> list[Pod]:
        return [pod for pod in pods if pod.metadata.uid not in self._blind]

    def _place(self, key: str, pod: Pod) -> Place:
        return Place(self._client, pod, now=partial(self._view.pods.get, key), other=self._other)

    async def _look_at(self, folder: Folder, pods: list[Pod]) -> bool:
        # One that ends has the newest word, and is not asked for long.
        pod = min(self._seeing(pods), key=lambda each: (each.metadata.deletion_timestamp is None, each.metadata.name))
        began = time.monotonic()
        answer: Answer | None = None
        try:
            async with asyncio.timeout(ONE_SECONDS):
                answer = await self._ask(pod)
        except TimeoutError:
            self._turns.hung(folder, pod.metadata.namespace, time.monotonic())
            log.info("checkpoints_not_looked_at", pod=pod.metadata.name, reason=f"not done in {ONE_SECONDS:.0f} s")
            return False
        except NoWayError as error:
            log.info("checkpoints_not_looked_at", pod=pod.metadata.name, reason=str(error))
            if error.code == "not_allowed":
                self._rests_until = began + NOT_ALLOWED_SECONDS
            elif error.code == "command_not_found":
                answer = Answer(lacks="/bin/sh")
        except (ApiError, ClientError, OSError) as error:
            log.info("checkpoints_not_looked_at", pod=pod.metadata.name, reason=str(error) or type(error).__name__)
        ended = time.monotonic()
        if answer is None:
            self._turns.failed(folder, ended)
            return False
        self._turns.looked(folder, pod.metadata.namespace, took=ended - began, now=ended)
        return self._take(answer, pod, pods)

    async def _ask(self, pod: Pod) -> Answer:
        """Raises NoWayError, also with `command_not_found` where there is no shell."""
        labels = pod.metadata.labels
        request = SessionOpen(
            session_id="checkpoints",
            kind="exec",
            workload_id=labels.workload,
            pod_key=labels.pod_key,
            token=token_of(pod),
            command=("/bin/sh", "-c", SCRIPT, "sh", pod.metadata.annotations.checkpoint_dir),
        )
        way, out, written = await open_streams(request, self._place(labels.pod_key, pod)), b"", 0
        try:
            async with contextlib.aclosing(way.frames()) as frames:
                async for frame in frames:
                    written += len(frame)
                    if frame[0] == STDOUT:
                        out += frame[1:]
                    if written > MOST_BYTES:
                        break
        finally:
            await way.close()
        if not out and (end := way.end()).reason in {"command_not_found", "not_executable"}:
            raise NoWayError("command_not_found", end.message)
        return answer_of(out)

    def _take(self, answer: Answer, asked: Pod, pods: list[Pod]) -> bool:
        for warning in _warnings(answer):
            self._view.warn(asked.metadata.uid, warning)
        if answer.lacks:
            self._blind.add(asked.metadata.uid)
            return True
        if answer.at is None:
            return not answer.whole
        # A file may say any time; one that is still to come was changed by now.
        at = datetime.fromtimestamp(min(answer.at, time.time()), UTC)
        told = [self._view.saved(pod.metadata.uid, at) for pod in pods]
        return any(told) or not answer.whole


def _ends(pods: list[Pod]) -> bool:
    """Whether one of them was told to end."""
    return any(pod.metadata.deletion_timestamp is not None for pod in pods)


def answer_of(said: bytes) -> Answer:
    """What the command in a pod said; nothing where it is no answer. Pure."""
    lines = said[:MOST_BYTES].decode("utf-8", "replace").split("\n")
    if lines[0].startswith("lacks "):
        return Answer(lacks=lines[0].removeprefix("lacks ")[:20])
    times = [line.strip() for line in lines if line.strip()]
    if not times or not all(each.isdecimal() and each.isascii() and len(each) <= len("9999999999") for each in times):
        return Answer()
    return Answer(at=float(times[0]), whole=len(times) == 1)


def _warnings(answer: Answer) -> Iterator[PodWarning]:
    now = datetime.now(UTC)
    if answer.lacks:
        message = (
            f"its image lacks {answer.lacks}, so nobody sees when its checkpoint folder was written to: all of its "
            "running time counts as work at risk"
        )
        yield PodWarning(reason=NOT_SEEN, message=message, at=now)
    if not answer.whole:
        message = (
            f"its checkpoint folder holds more than {MOST_ENTRIES:,} files: newer ones may have been overlooked, so "
            "its work at risk may be less than is shown"
        )
        yield PodWarning(reason=NOT_WHOLE, message=message, at=now)
