"""`GET /workloads/{id}/logs`: what pods wrote, passed on as text while it comes."""

import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack
from typing import Any, Final

from starlette.responses import Response

from events.authorize import Permission
from events.workload.pod import PodId
from events.workload.state import SetProgress, Workload
from services.api.context import Call
from services.api.errors import ApiError, bad_request, unavailable
from services.api.follows import STALLED, followed_answer
from services.api.issues import Issue, shown
from services.api.kinds import load_workload
from services.api.log_lines import CUT_MARK, SINCE, AgentError, Asked, Place, told
from services.api.logs_followed import followed, started_pods
from services.api.operations import Query, reads
from services.api.paths import WORKLOAD
from services.api.places import Removal, removal_of
from services.api.streamed import Streamed

TEXT: Final = "text/plain; charset=utf-8"
MAX_TAIL_LINES: Final = 1_000_000
LOGS: Final = (
    Query(name="follow", type="boolean", default=False, help="Go on until the workload's pods have ended."),
    Query(name="tail", type="integer", most=MAX_TAIL_LINES, help="Only the last lines of each pod."),
    SINCE,
    Query(
        name="pod",
        help="Only lines of this pod, such as main-0. Default: all pods; each line then begins with the pod's name.",
    ),
    Query(name="timestamps", type="boolean", default=False, help="Print the time before each line."),
    Query(name="previous", type="boolean", default=False, help="The run before the newest one of each pod."),
    Query(name="attempt", type="integer", least=1, help="The newest run of each pod in this attempt."),
    Query(name="run", type="integer", least=1, help="With attempt: this run of it, from 1."),
)

_POD: Final = re.compile(r"^(?:.*-)?([a-z]{1,20})-([0-9]{1,9})$")


def run_rules(values: Mapping[str, Any], _: AbstractSet[str]) -> Iterator[Issue]:
    """Where the parameters that choose a run do not go together."""
    chosen = [name for name in ("previous", "attempt", "run") if values[name] not in {None, False}]
    if values["follow"] and chosen:
        yield Issue(field=chosen[0], details="does not go with follow, which tells of every run from now on")
    if values["run"] is not None and values["attempt"] is None:
        details = "needs attempt: each attempt counts its runs from 1"
        yield Issue(field="run", details=details, involves=frozenset({"attempt"}))
    if values["previous"] and values["attempt"] is not None:
        yield Issue(field="previous", details="does not go with attempt; leave one of them out")


@reads(
    f"{WORKLOAD}/logs",
    tag="Workloads",
    summary="Get the output of a workload's pods",
    media=("text/plain",),
    query=LOGS,
    rules=run_rules,
    headers=((CUT_MARK, "How a line begins that says why not all is told; another one each time."),),
    errors=(404, 410),
)
async def workload_logs(call: Call) -> Response:
    chain = await load_workload(call, call.id)
    state = chain.state
    wanted = wanted_pod(call, state)
    if removal := await removal_of(call, state.cluster_id):
        raise _gone(removal)
    asked = Asked(call, state, name_pods=wanted is None and sum(s.count for s in state.pod_sets) > 1)
    if call.values["follow"]:
        return followed_answer(
            call,
            followed(asked, chain, wanted),
            media_type=TEXT,
            permission=Permission.READ,
            project_id=state.project_id,
            last_line=asked.cut,
            headers=asked.headers,
        )
    pods = [wanted] if wanted is not None else started_pods(state)
    pieces = _kept(asked, pods)
    try:
        # The first piece is awaited here, so that an agent that is away is an error and no empty text.
        head = await anext(pieces, b"")
    except AgentError as error:
        if error.no_such_run:
            raise ApiError(404, str(error), details="no_such_run") from None
        raise unavailable(str(error), details="logs_unavailable") from None

    async def body() -> AsyncGenerator[bytes]:
        yield head
        async for piece in told(asked, pieces):
            yield piece

    held = AsyncExitStack()
    held.push_async_callback(pieces.aclose)
    return Streamed(body(), media_type=TEXT, held=held, last_words=asked.cut(STALLED), headers=asked.headers)


def _gone(removal: Removal) -> ApiError:
    """No answer can come any more: no agent is asked."""
    return ApiError(
        410,
        f"cluster {removal.name!r} was removed on {removal.at:%Y-%m-%d at %H:%M:%S} UTC by {removal.by}: Muster no "
        "longer reaches the logs of its pods. What is left of them is where it was: in MUSTER_DATA_DIR of the agent of "
        "that cluster, and on Kubernetes, as long as a pod is there, behind `kubectl logs`",
        details="cluster_removed",
    )


async def _kept(asked: Asked, pods: list[PodId]) -> AsyncGenerator[bytes]:
    """Pods without such a run are passed over, unless none has one. Raises AgentError."""
    missing: list[AgentError] = []
    for pod in pods:
        try:
            async for piece in asked.lines(asked.request(pod, None, follow=False), pod, Place()):
                yield piece
        except AgentError as error:
            if not error.no_such_run:
                raise
            missing.append(error)
    if missing and len(missing) == len(pods):
        raise missing[0]


def wanted_pod(call: Call, state: Workload) -> PodId | None:
    given: str | None = call.values["pod"]
    if given is None:
        return None
    match = _POD.match(given)
    # Of those whose number changes, a pod that is added has a new index.
    counts = {
        pod_set.name: max(pod_set.count, state.progress.get(pod_set.name, SetProgress()).next_index)
        for pod_set in state.pod_sets
    }
    if match is None or int(match[2]) >= counts.get(match[1], 0):
        sets = ", ".join(
            f"{name}-0" + (f" to {name}-{count - 1}" if count > 1 else "") for name, count in counts.items()
        )
        raise bad_request(
            [Issue(field="pod", details=f"{shown(given)} is not a pod of this workload; its pods are {sets}")]
        )
    return match[1], int(match[2])
