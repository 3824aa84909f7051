"""What people asked and were answered, held against the log: every request, also those whose outcome nobody knows.

A call is known by its request id, which stands in the commit that it led to. Times are of one clock, the machine's, by
which the services also say when they decided.
"""

import bisect
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from development.checker.log import CommitSeen, LogChecker
from development.checker.workloads import Moment, Workload

CLOCK_SECONDS: Final = 0.05
"""How far the clocks of two processes of one machine may be apart."""
ACCEPTED: Final = 202
UNKNOWN_FROM: Final = 500
"""An answer from here on, or none at all, says nothing about what was stored."""
TAKEN: Final = "already has a workload named"
WANTED: Final = {"suspend": "Stopped", "resume": "Running", "delete": "Deleted"}

type Verb = Literal["create", "suspend", "resume", "delete", "change", "read", "list", "other"]

_ID: Final = r"/workloads(?:/trainings)?/([0-9a-f]{8}-[0-9a-f-]{27})"
_VERBS: Final[tuple[tuple[str, str, Verb], ...]] = (
    ("POST", r"/workloads/trainings", "create"),
    ("POST", _ID + "/suspend", "suspend"),
    ("POST", _ID + "/resume", "resume"),
    ("DELETE", _ID, "delete"),
    ("PATCH", _ID, "change"),
    ("GET", _ID, "read"),
    ("GET", r"/workloads", "list"),
)


@dataclass(frozen=True)
class Call:
    """One request and what came of it. `status` 0: there was no answer."""

    user: str
    method: str
    path: str
    """Below the version of the API."""
    began: float
    ended: float
    status: int
    request_id: str = ""
    key: str = ""
    """Of the Idempotency-Key; empty: none."""
    query: str = ""
    body: Any = None
    answer: Any = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the answer, by their small names."""

    @property
    def known(self) -> bool:
        return 0 < self.status < UNKNOWN_FROM

    @property
    def verb(self) -> tuple[Verb, str]:
        """What was asked, and the workload's id where the path names it."""
        for method, pattern, verb in _VERBS:
            found = re.fullmatch(pattern, self.path) if method == self.method else None
            if found:
                return verb, found[1] if found.groups() else ""
        return "other", ""

    @property
    def seq(self) -> int:
        return int(self.headers.get("x-log-sequence", 0))

    def __str__(self) -> str:
        name = self.body.get("name", "") if isinstance(self.body, dict) else ""
        return f"{self.method} {self.path} {name} ({self.user} {self.key or self.request_id}): {self.status}"


def check_calls(
    calls: Iterable[Call], log: LogChecker, *, complete: bool = True, setbacks: Iterable[float] = ()
) -> list[str]:
    """What is wrong with the answers.

    `complete`: nobody asked anything that is not among these calls. `setbacks`: when the tables may have gone back, as
    they do where their server is killed; what was promised of lists before is not promised after.
    """
    checker = _Calls(sorted(calls, key=lambda call: call.began), log, sorted(setbacks))
    return list(checker.check(complete=complete))


class _Calls:
    def __init__(self, calls: list[Call], log: LogChecker, setbacks: list[float]) -> None:
        self._calls = calls
        self._setbacks = setbacks
        self._log = log
        self._by_request: defaultdict[str, list[CommitSeen]] = defaultdict(list)
        for commit in log.commits.values():
            if commit.kind == "workload" and commit.author == "user":
                self._by_request[commit.correlation_id].append(commit)

    def check(self, *, complete: bool) -> Iterator[str]:
        for call in self._calls:
            yield from self._outcome(call)
        yield from self._keys()
        yield from self._in_time()
        if complete:
            asked = {call.request_id for call in self._calls}
            for request_id in self._by_request.keys() - asked:
                seqs = [commit.seq for commit in self._by_request[request_id]]
                yield f"unasked: {seqs} in the log come from a request {request_id!r} that nobody sent"

    def _made(self, call: Call) -> list[CommitSeen]:
        """Commits that this very request led to."""
        return self._by_request.get(call.request_id, []) if call.request_id else []

    # -- each answer alone ---------------------------------------------------------------------------------------------

    def _outcome(self, call: Call) -> Iterator[str]:
        verb, id_ = call.verb
        made = self._made(call)
        if len(made) > 1:
            yield f"once: {call} made {[commit.seq for commit in made]}"
        if made and call.known and call.status != ACCEPTED:
            yield f"refusal: {call}, and it is in the log at {made[0].seq}"
        if call.status == ACCEPTED and verb == "create":
            yield from self._created(call)
        elif call.status == ACCEPTED and verb in WANTED:
            yield from self._done(call, verb, id_)

    def _created(self, call: Call) -> Iterator[str]:
        id_ = (call.answer or {}).get("workloadId")
        commit, workload = self._log.commits.get(call.seq), self._log.workloads.get(str(id_))
        if workload is None or commit is None or commit.workload_id != id_:
            yield f"acknowledged: {call} as {id_} at {call.seq}, and the log has {commit}"
            return
        if "WorkloadCreated" not in commit.types:
            yield f"acknowledged: {call} at {call.seq}, where it was not made"
        name = call.body["name"]
        prefix = bool(call.body.get("useGivenNameAsPrefix"))
        right = workload.name.startswith(f"{name}-") if prefix else workload.name == name
        if not right or call.answer.get("name") != workload.name:
            yield f"acknowledged: {call}, and its name is {workload.name}"

    def _done(self, call: Call, verb: Verb, id_: str) -> Iterator[str]:
        workload = self._log.workloads.get(id_)
        moment = workload.at_seq(call.seq) if workload else None
        if moment is None:
            yield f"acknowledged: {call} at {call.seq}, and the log has no such workload then"
        elif moment.desired != WANTED[verb] and not (verb == "delete" and moment.deleted):
            yield f"acknowledged: {call} at {call.seq}, and then it should be {moment.desired}"

    # -- the same key again --------------------------------------------------------------------------------------------

    def _keys(self) -> Iterator[str]:
        groups: defaultdict[tuple[str, str, str, str], list[Call]] = defaultdict(list)
        for call in self._calls:
            if call.key:
                groups[call.user, call.method, call.path, call.key].append(call)
        for group in groups.values():
            made = {commit.seq for call in group for commit in self._made(call)}
            if len(made) > 1:
                yield f"once: {group[0]}, asked {len(group)} times under one key, made {sorted(made)}"
            accepted = [call for call in group if call.status == ACCEPTED]
            for one, other in itertools.pairwise(accepted):
                yield from _same(one, other)

    # -- answers after answers -----------------------------------------------------------------------------------------

    def _in_time(self) -> Iterator[str]:
        """Each answer against all that was known to be answered before it was asked for."""
        ends = sorted(self._calls, key=lambda call: call.ended)
        floors: defaultdict[str, int] = defaultdict(int)
        """The newest version of a workload that somebody was told of; of the tables, by how often they went back."""
        done = 0
        for call in self._calls:
            while ends[done].ended < call.began:
                self._raise(floors, ends[done])
                done += 1
            yield from self._after(call, floors)

    def _raise(self, floors: dict[str, int], call: Call) -> None:
        verb, id_ = call.verb
        if call.status == ACCEPTED and verb == "create":
            id_ = str((call.answer or {}).get("workloadId"))
        if call.known and call.status in {ACCEPTED, 200} and id_ and verb != "other":
            floors[id_] = max(floors[id_], call.seq)
        elif call.status == 200 and verb == "list" and "x-log-stale" not in call.headers:
            epoch = self._epoch(call.began)
            floors[epoch] = max(floors[epoch], call.seq)

    def _epoch(self, moment: float) -> str:
        return f"#{bisect.bisect(self._setbacks, moment)}"

    def _after(self, call: Call, floors: Mapping[str, int]) -> Iterator[str]:
        verb, id_ = call.verb
        workload, floor = self._log.workloads.get(id_), floors[id_]
        if verb == "list" and call.status == 200:
            yield from self._list(call, floors[self._epoch(call.ended)])
        if verb == "create" and call.status == 400 and TAKEN in str(call.answer):
            yield from self._taken(call, floors)
        if not id_ or not call.known:
            return
        if call.status == 404 and floor:
            yield f"lost: {call}, and it was told of at {floor} before"
        elif workload is None:
            return
        elif verb == "read" and call.status == 200:
            if call.seq < floor:
                yield f"stale: {call} is of {call.seq}, and {floor} was told before"
            yield from _read(call, workload)
        elif call.status == ACCEPTED:
            made = self._made(call)
            if made and made[0].seq <= floor:
                yield f"order: {call} was stored at {made[0].seq}, and {floor} was told before"
        elif call.status == 409 and verb in {"suspend", "resume"}:
            seen = _seen(workload, floor, call.ended)
            if seen and not any(moment.ended or moment.desired == "Deleted" for moment in seen):
                yield f"refusal: {call}, and it was {[moment.phase for moment in seen]}"

    def _taken(self, call: Call, floors: Mapping[str, int]) -> Iterator[str]:
        """Somebody must have had the name, and nobody may have been told that it was free again."""
        for workload in self._log.workloads.values():
            if (workload.name, workload.project_id) == (call.body["name"], call.body.get("projectId")):
                newest = workload.at_seq(floors.get(workload.id, 0))
                in_time = workload.created_at.timestamp() <= call.ended + CLOCK_SECONDS
                if in_time and (newest is None or not newest.deleted):
                    return
        yield f"refusal: {call}, and the name was free"

    def _list(self, call: Call, floor: int) -> Iterator[str]:
        least = int(dict(_pairs(call.query)).get("min_seq", 0))
        if "x-log-stale" not in call.headers and call.seq < max(floor, least):
            yield f"stale: {call} ?{call.query} is of {call.seq}, and {max(floor, least)} was told or asked before"
        for row in (call.answer or {}).get("workloads", []):
            workload = self._log.workloads.get(row["id"])
            moment = workload.at_seq(call.seq) if workload else None
            if moment is None:
                yield f"row: {call} at {call.seq} shows {row['id']}, which is not there then"
            else:
                yield from _shown(call, row, moment)


def _same(one: Call, other: Call) -> Iterator[str]:
    if one.body != other.body:
        yield f"repeat: {one}, and the same key was taken with another body"
        return
    for what, first, second in (
        ("status", one.status, other.status),
        ("answer", one.answer, other.answer),
        ("version", one.headers.get("x-version"), other.headers.get("x-version")),
        ("sequence", one.seq, other.seq),
    ):
        if first != second:
            yield f"repeat: {one}, answered with {what} {first}, and then with {second}"


def _read(call: Call, workload: Workload) -> Iterator[str]:
    version = int(call.headers.get("x-version", 0))
    moment = workload.at_seq(version)
    if moment is None or moment.seq != version:
        yield f"read: {call} is of version {version}, which it never had"
        return
    yield from _shown(call, call.answer, moment)


def _shown(call: Call, shown: Mapping[str, Any], moment: Moment) -> Iterator[str]:
    """Whether all that is shown is of that one moment."""
    told = {
        "version": moment.seq,
        "phase": moment.phase,
        "actualPhase": moment.phase,
        "desiredPhase": moment.desired,
        "attempt": moment.attempt,
        "failedRuns": moment.failed_runs,
        "succeededPods": moment.succeeded,
        "runningPods": moment.running,
        "gpuAllocated": moment.gpu_milli / 1000,
        "exitCode": moment.exit_code,
    }
    for name, expected in told.items():
        if name in shown and shown[name] != expected:
            yield f"read: {call} shows {name} {shown[name]} at {moment.seq}, where it is {expected}"
    if "deletedAt" in shown and bool(shown["deletedAt"]) != moment.deleted:
        yield f"read: {call} shows deletedAt {shown['deletedAt']} at {moment.seq}"


def _seen(workload: Workload, floor: int, ended: float) -> list[Moment]:
    """All that could be seen by somebody who knows `floor` and is answered at `ended`."""
    newest = workload.at_seq(floor)
    later = [
        moment for moment in workload.moments if moment.seq > floor and moment.at.timestamp() <= ended + CLOCK_SECONDS
    ]
    return [newest, *later] if newest else later


def _pairs(query: str) -> Iterator[tuple[str, str]]:
    for part in query.split("&"):
        name, _, value = part.partition("=")
        yield name, value
