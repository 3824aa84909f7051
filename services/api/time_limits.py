"""Limits of a project on the time of its workloads: how long they run, wait, or keep GPUs that do nothing."""

from collections.abc import Iterator
from typing import Annotated

from events.fields.declare import Body, Limits
from events.project import Project
from events.time_limits import LONGEST_SECONDS, SetTimeLimits, TimeLimit
from events.workload.kinds import KINDS
from services.api import answers
from services.api.context import MIN_SEQ, Call, Look, read_answer, version_header
from services.api.issues import Issue, shown
from services.api.operations import Answer, changes, reads
from services.api.paths import TIME_LIMITS
from services.api.places import directory_caught_up, directory_fresh, readable_project

SHORTEST_IDLE_SECONDS = 300
"""Of a limit on idle GPUs: between two measurements a GPU may do nothing for a moment."""
Seconds = Annotated[int, Limits(least=1, most=LONGEST_SECONDS)]


class TimeLimitFields(Body, frozen=True, kw_only=True):
    """Limits of one kind of workloads."""

    kind: str
    """Kind of the workloads, such as Training."""
    runtime_seconds: Seconds | None = None
    """How long one may run, in all its attempts together. Null: no limit."""
    idle_gpu_seconds: Annotated[int, Limits(least=SHORTEST_IDLE_SECONDS, most=LONGEST_SECONDS)] | None = None
    """For how long all its GPUs may do nothing, by what its cluster measures. Null: no limit."""
    pending_seconds: Seconds | None = None
    """How long one may wait at a time. Null: no limit."""


class TimeLimitsSetting(Body, frozen=True, kw_only=True):
    time_limits: Annotated[tuple[TimeLimitFields, ...], Limits(longest=len(KINDS))] = ()
    """At most one for each kind of workloads. A kind without one has no limits."""


@reads(
    TIME_LIMITS,
    tag="Organisation",
    summary="Get the limits of a project on the time of its workloads",
    query=(MIN_SEQ,),
    errors=(404,),
)
async def get_time_limits(call: Look) -> Answer[answers.TimeLimits]:
    headers = await directory_fresh(call)
    chain = await readable_project(call)
    headers = version_header(chain.version) | headers
    return read_answer(_answer(chain.state), call.api.directory.seq, headers)


@changes(
    "PUT",
    TIME_LIMITS,
    tag="Organisation",
    summary="Set how long workloads of a project may run, wait, or keep GPUs that do nothing",
    body=TimeLimitsSetting,
    example={"timeLimits": [{"kind": "Training", "runtimeSeconds": 604800, "idleGpuSeconds": 3600}]},
    errors=(403, 404),
)
async def set_time_limits(call: Call) -> Answer[answers.HttpResponse]:
    given = call.fields(TimeLimitsSetting, _issues)
    limits = tuple(
        TimeLimit(
            kind=each.kind,
            runtime_seconds=each.runtime_seconds,
            idle_gpu_seconds=each.idle_gpu_seconds,
            pending_seconds=each.pending_seconds,
        )
        for each in sorted(given.time_limits, key=lambda each: each.kind)
        if (each.runtime_seconds, each.idle_gpu_seconds, each.pending_seconds) != (None, None, None)
    )
    reply = await call.send(SetTimeLimits(project_id=call.id, limits=limits))
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"project {call.id} {'has now' if reply.changed else 'has already'} these limits")


def _issues(setting: TimeLimitsSetting) -> Iterator[Issue]:
    kinds = [each.kind for each in setting.time_limits]
    for index, kind in enumerate(kinds):
        field = f"timeLimits[{index}].kind"
        if kind not in KINDS:
            details = f"no kind of workload is called {shown(kind)}; possible: {', '.join(sorted(KINDS))}"
            yield Issue(field=field, details=details, rule="options")
        elif kind in kinds[:index]:
            yield Issue(field=field, details=f"{kind} is given twice; leave one out")


def _answer(project: Project) -> answers.TimeLimits:
    return answers.TimeLimits(
        project_id=project.project_id,
        project_name=project.name,
        time_limits=[
            answers.TimeLimit(
                kind=each.kind,
                runtime_seconds=each.runtime_seconds,
                idle_gpu_seconds=each.idle_gpu_seconds,
                pending_seconds=each.pending_seconds,
            )
            for each in project.time_limits
        ],
    )
