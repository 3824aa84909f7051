"""Which run of a pod a request for logs means, of those whose logs there are. Pure."""

from collections.abc import Mapping
from typing import Final

from events.cluster_protocol import LogsRequest
from events.workload.pod import PodRef
from services.agent.backends.interface import LogsUnavailableError

MAX_NAMED_RUNS: Final = 20
"""Of those that an answer names, the newest first."""


def which_run(request: LogsRequest, runs: Mapping[int, PodRef]) -> int:
    """The token of the run. Raises LogsUnavailableError.

    Args:
        runs: by token, those of this pod and workload; the higher token is the newer run.
    """
    tokens = sorted(runs)
    if request.previous:
        tokens = tokens[:-1]
    meant = [token for token in tokens if _is_meant(request, runs[token])]
    if meant:
        return meant[-1]
    named = request.previous or request.attempt is not None or request.pod is not None
    raise LogsUnavailableError(_none(request, runs), no_such_run=named)


def _is_meant(request: LogsRequest, run: PodRef) -> bool:
    return (
        request.pod in {None, run}
        and request.attempt in {None, run.attempt}
        and (request.try_ is None or request.try_ == run.try_)
    )


def _none(request: LogsRequest, runs: Mapping[int, PodRef]) -> str:
    if not runs:
        return (
            "no log of that pod is kept: it does not run yet, never ran, its cluster could not give its log, or it is "
            "too long ago"
        )
    newest = [runs[token] for token in sorted(runs)[-MAX_NAMED_RUNS:]]
    kept = ", ".join(_named(run.attempt, run.try_) for run in newest)
    if request.pod is not None:
        what = _named(request.pod.attempt, request.pod.try_)
    elif request.attempt is not None:
        what = _named(request.attempt, request.try_)
    else:
        what = "a run before the newest"
    pod = runs[max(runs)]
    return f"no log of {what} of pod {pod.pod_set}-{pod.index} is kept; kept are those of {kept}"


def _named(attempt: int, try_: int | None) -> str:
    """As people count: runs from 1."""
    return f"attempt {attempt}" if try_ is None else f"attempt {attempt} run {try_ + 1}"
