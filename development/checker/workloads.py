"""A small sequential model of a workload: which event may follow which, and what follows from all of them.

Written from the documents, not from the deciders. A model answers each event with what is wrong about it, and goes on
as well as it can: one fault shall not hide the next.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from development.checker.records import Asked, Fields, Place, Record, asked, moment, run_name

THIRTY_DAYS: Final = 30 * 24 * 3600
DEFAULT_BACKOFF_LIMIT: Final = 6
LONGEST_WAIT: Final = timedelta(minutes=5)
"""Of a run before it begins again."""
COUNTED: Final = frozenset({"bound", "starting", "running", "unknown", "stopping"})
FACTS: Final = {
    # What a run must be in for it to be said.
    "PodStarting": frozenset({"bound", "unknown"}),
    "PodRunning": frozenset({"bound", "starting", "unknown"}),
    "PodUnreachable": frozenset({"bound", "starting", "running"}),
    "PodWarned": COUNTED,
    "CheckpointSaved": COUNTED,
    "PodSucceeded": COUNTED,
    "PodFailed": COUNTED - {"stopping"},
    "PodInterrupted": COUNTED - {"stopping"},
    "PodStopped": frozenset({"stopping"}),
}

_OPPOSITES: Final = {
    "WorkloadSuspended": "WorkloadResumed",
    "WorkloadResumed": "WorkloadSuspended",
    "WorkloadChanged": "WorkloadChanged",
}
"""What follows from the undoing of an act."""

type Wrong = tuple[str, str]
"""(name of the invariant, what was seen)."""


SIGNALLED = 128
"""Exit codes from here on say that a signal ended the process."""
INCARNATION: Final = 2**40
ANY_CLUSTER: Final = "00000000-0000-0000-0000-000000000000"
"""That a workload has in tables and answers while none is chosen."""
LEFT_ENDS: Final = {
    "succeeded": "PodSucceeded",
    "failed": "PodFailed",
    "interrupted": "PodInterrupted",
    "refused": "PodInterrupted",
    "stopped": "PodStopped",
}
"""As what else a run ends that was left on a lost cluster and ended so."""
LIMITS: Final = frozenset({"runtime_limit", "idle_gpu_limit", "pending_limit"})
"""What a restore of the log adds to every run token after it."""


@dataclass
class Run:
    """A pod that holds a node."""

    name: str
    attempt: int
    try_: int
    token: int
    node_key: str
    node_name: str
    devices: list[Fields]
    phase: str = "bound"
    ran: bool = False
    may_start: bool = False
    """Of an MPI launcher that waits: whether all workers have run, or were over, since it was bound."""


@dataclass
class Waiting:
    """A pod that is to be run again, as this run and not earlier."""

    attempt: int
    try_: int
    not_before: datetime | None = None


@dataclass(frozen=True)
class Moment:
    """What a reader may see at one version."""

    seq: int
    at: datetime
    phase: str
    desired: str
    deleted: bool
    attempt: int
    failed_runs: int
    succeeded: int
    live: int
    running: int
    gpu_milli: int
    """Held by what lives."""
    ended: str
    exit_code: int | None


@dataclass
class Workload:
    """One incarnation of a name."""

    id: str
    key: str
    name: str
    project_id: str
    cluster_id: str
    """Empty where the scheduler chooses it, and has not yet."""
    created_by: str
    owner: str
    """At first who made it; a transfer gives it to another."""
    spec: Fields
    created_at: datetime
    made_seq: int
    among: tuple[str, ...] = ()
    """Ids of clusters among which the scheduler chooses."""
    desired: str = "Running"
    ended: str = ""
    """`Completed` or `Failed`."""
    deleted: bool = False
    halted: bool = False
    """Whether it is Stopped, not only told to stop."""
    phase: str = "Creating"
    queued: bool = False
    attempt: int = 1
    failed_runs: int = 0
    succeeded: set[Place] = field(default_factory=set[Place])
    sessions: dict[str, datetime] = field(default_factory=dict[str, datetime])
    """Those that are open, and when each is over at the latest."""
    saved_at: datetime | None = None
    """When the newest file of its checkpoint folder was changed."""
    left: dict[str, tuple[str, Run]] = field(default_factory=dict[str, tuple[str, Run]])
    """Runs by name that were left on a lost cluster, and nobody has seen end; with the id of the cluster."""
    removed: set[Place] = field(default_factory=set[Place])
    """Replicas and elastic workers that were too many: their places are not used again."""
    pods: dict[Place, Run | Waiting] = field(default_factory=dict[Place, Run | Waiting])
    limit: str = ""
    """The limit on its time that ends it."""
    spent: bool = False
    """A run failed for which there is no further try."""
    delete_at: datetime | None = None
    generation: int = 0
    exit_code: int | None = None
    ends: dict[str, str] = field(default_factory=dict[str, str])
    """How each run ended, by its name."""
    exits: dict[str, int] = field(default_factory=dict[str, int])
    """Exit code of each failed run whose process ended of itself, not by a signal."""
    tokens: dict[str, int] = field(default_factory=dict[str, int])
    """Of every run; likewise the two below."""
    nodes: dict[str, str] = field(default_factory=dict[str, str])
    """Name of the node that it was given."""
    devices: dict[str, list[Fields]] = field(default_factory=dict[str, list[Fields]])
    """Shares of devices that it was given."""
    moments: list[Moment] = field(default_factory=list[Moment])
    told: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    """Every event: sequence and place of it in the commit, and its type."""

    distributed: Fields = field(default_factory=dict[str, Any])
    """What a distributed training has beside its spec; empty for every other kind."""
    inference: Fields = field(default_factory=dict[str, Any])
    """What an inference has beside its spec; empty for every other kind."""
    replicas: int = 0
    """How many an inference is to have now."""

    def asked_of(self, pod_set: str) -> Asked:
        """What a pod of this set asks for."""
        return asked(self.distributed["master"] if pod_set == "master" and self.distributed else self.spec)

    @property
    def sizes(self) -> dict[str, int]:
        """How many pods each of its sets has, of elastic workers those that it needs; the end of the first set's is its
        own end.
        """
        if self.inference:
            return {"replica": self.replicas}
        if not self.distributed:
            return {"main": self.completions}
        distribution = self.distributed["distribution"]
        workers = {"worker": int(distribution["minReplicas"] or distribution["numWorkers"])}
        return {"master": 1, **workers} if self.distributed["master"] else workers

    @property
    def growth(self) -> int:
        """How many workers it may have beyond those that it needs."""
        if not self.distributed:
            return 0
        distribution = self.distributed["distribution"]
        return int(distribution.get("maxReplicas") or distribution["numWorkers"]) - self.sizes["worker"]

    def meets_at(self, place: Place) -> bool:
        """Whether the pods of an elastic one meet there."""
        return self.growth > 0 and place == (next(iter(self.sizes)), 0)

    @property
    def all_done(self) -> bool:
        if self.inference:
            return False
        decides, count = next(iter(self.sizes.items()))
        if self.growth > 0 and decides == "worker" and any(pod_set == decides for pod_set, _ in self.live):
            return False
        return sum(pod_set == decides for pod_set, _ in self.succeeded) >= count

    @property
    def most_at_once(self) -> int:
        if self.inference:
            # Those that were told to go count until they have.
            return self.replicas + sum(run.phase == "stopping" for run in self.live.values())
        if not self.distributed:
            return int(self.spec.get("parallelism", 1))
        return sum(self.sizes.values()) + self.growth

    @property
    def launcher_waits(self) -> bool:
        policy = self.distributed.get("distribution", {}).get("mpiLauncherCreationPolicy")
        return policy == "WaitForWorkersReady"

    @property
    def completions(self) -> int:
        return int(self.spec.get("completions", 1))

    @property
    def backoff_limit(self) -> int:
        return int(self.spec.get("backoffLimit", DEFAULT_BACKOFF_LIMIT))

    @property
    def auto_deletion_seconds(self) -> int:
        return int(self.spec.get("autoDeletionTimeAfterCompletionSeconds", THIRTY_DAYS))

    @property
    def live(self) -> dict[Place, Run]:
        return {place: pod for place, pod in self.pods.items() if isinstance(pod, Run)}

    @property
    def version(self) -> int:
        return self.moments[-1].seq if self.moments else self.made_seq

    def at_seq(self, seq: int) -> Moment | None:
        """What holds after everything up to `seq`."""
        return next((each for each in reversed(self.moments) if each.seq <= seq), None)


def created(record: Record, data: Fields, before: Workload | None) -> tuple[Workload, Iterator[Wrong]]:
    made = Workload(
        id=data["workload_id"],
        key=record.key,
        name=data["name"],
        project_id=data["project_id"],
        cluster_id=data["cluster_id"],
        created_by=data["owner"],
        owner=data["owner"],
        spec=data["spec"],
        distributed=data.get("distributed") or {},
        inference=data.get("inference") or {},
        replicas=(data.get("inference") or {}).get("replicas", 0),
        created_at=moment(data["at"]),
        made_seq=record.seq,
        among=tuple(data.get("among", ())),
    )
    return made, _wrong_birth(made, before)


def _wrong_birth(made: Workload, before: Workload | None) -> Iterator[Wrong]:
    if bool(made.cluster_id) == bool(made.among):
        yield "cluster", f"{made.name} is for cluster {made.cluster_id!r}, and for any of {made.among}"
    if before is None:
        return
    if not before.deleted:
        yield "name", f"{made.name} was made anew while {before.id} has its name"
    if before.live or before.left:
        names = [*(run.name for run in before.live.values()), *before.left]
        yield "name", f"{made.name} was made anew while {names} live"
    if before.name != made.name or before.project_id != made.project_id:
        yield "name", f"{made.name} stands on the subject of {before.name}"


class Model:
    """Takes the events of one commit on one workload."""

    def __init__(
        self, workload: Workload, record: Record, *, stand_ins: bool, last_token: int, incarnation: int
    ) -> None:
        self.workload = workload
        self.record = record
        self._stand_ins = stand_ins
        self._last_token = last_token
        """The highest token of the name so far."""
        self._incarnation = incarnation
        """How often the log had been restored."""
        self._evicted = False
        """Whether this commit took its place."""

    def take(self, type_: str, data: Fields) -> Iterator[Wrong]:
        """Take one event over; what is wrong about it."""
        if self.workload.deleted and type_ != "SessionClosed":
            yield "deleted", f"{type_} after {self.workload.name} was deleted"
        if type_ in FACTS:
            yield from self._fact(type_, data)
            return
        handler = getattr(self, "_" + "".join(f"_{c.lower()}" if c.isupper() else c for c in type_).lstrip("_"), None)
        if handler is None:
            yield "unknown", f"the checker does not know {type_}"
            return
        yield from handler(data)

    def settle(self) -> Iterator[Wrong]:
        """After the whole commit: what must not be left open."""
        workload = self.workload
        if workload.all_done and not workload.ended and workload.desired != "Deleted":
            yield "completed", f"{workload.name}: {workload.sizes} succeeded, and it is not Completed"
        if workload.spent and not workload.ended:
            yield "failed", f"{workload.name}: a run failed for good, and it is not Failed"
        if workload.limit and not workload.live and not workload.ended and workload.desired != "Deleted":
            yield "limit", f"{workload.name}: nothing of it lives, {workload.limit} ends it, and it is not Failed"
        if self._evicted and workload.spec.get("terminateAfterPreemption") and not workload.ended:
            yield "failed", f"{workload.name} was evicted, is to end then, and is not Failed"
        if workload.desired == "Stopped" and not workload.live and not workload.halted and not workload.ended:
            yield "stopped", f"{workload.name}: nothing of it lives, it should stop, and it is not Stopped"
        if workload.desired == "Deleted" and not workload.live and not workload.left and not workload.deleted:
            yield "deleted", f"{workload.name}: nothing of it lives, it should go, and it is not deleted"
        self._note_phase()
        self._note_launcher()
        live = workload.live.values()
        workload.moments.append(
            Moment(
                seq=self.record.seq,
                at=self.record.at,
                phase=workload.phase,
                desired=workload.desired,
                deleted=workload.deleted,
                attempt=workload.attempt,
                failed_runs=workload.failed_runs,
                succeeded=len(workload.succeeded),
                live=len(live),
                running=sum(run.phase == "running" for run in live),
                gpu_milli=sum(share["milli"] for run in live for share in run.devices),
                ended=workload.ended,
                exit_code=workload.exit_code,
            )
        )

    def _note_phase(self) -> None:
        workload = self.workload
        phases = {run.phase for run in workload.live.values()}
        if workload.desired == "Deleted":
            # What was over or had no pods keeps the phase that it had.
            return
        if workload.ended:
            workload.phase = workload.ended
        elif workload.limit:
            workload.phase = "Terminating"
        elif workload.desired == "Stopped":
            workload.phase = "Stopping" if workload.live else "Stopped"
        elif "unknown" in phases:
            workload.phase = "Unknown"
        elif "running" in phases:
            behind = any(
                pod.try_ and (isinstance(pod, Waiting) or pod.phase in {"bound", "starting"})
                for pod in workload.pods.values()
            )
            workload.phase = "Degraded" if behind else "Running"
        elif phases & {"bound", "starting"}:
            workload.phase = "Initializing"
        elif workload.queued and workload.inference and not workload.replicas:
            workload.phase = "Running"
        elif workload.queued:
            workload.phase = "Pending"
        else:
            workload.phase = "Resuming" if workload.attempt > 1 else "Creating"

    def _note_launcher(self) -> None:
        workload, launcher = self.workload, self.workload.pods.get(("master", 0))
        if not workload.launcher_waits or not isinstance(launcher, Run):
            return
        running = sum(place[0] == "worker" and run.phase == "running" for place, run in workload.live.items())
        over = sum(pod_set == "worker" for pod_set, _ in workload.succeeded)
        launcher.may_start = launcher.may_start or running + over >= workload.sizes["worker"]

    # -- what its people and the scheduler do --------------------------------------------------------------------------

    def _workload_queued(self, _: Fields) -> Iterator[Wrong]:
        if self.workload.queued:
            yield "queue", f"{self.workload.name} was taken into the queue twice"
        yield from self._may_run("was taken into the queue")
        self.workload.queued = True

    def _workload_waiting(self, data: Fields) -> Iterator[Wrong]:
        yield from self._may_run("is told that it waits")
        if not data["reason"]:
            yield "queue", f"{self.workload.name} waits, and nobody says why"

    def _cluster_chosen(self, data: Fields) -> Iterator[Wrong]:
        workload, types = self.workload, [event["type"] for event in self.record.fields["events"]]
        if workload.cluster_id:
            yield "cluster", f"{workload.name} runs on {workload.cluster_id}, and another cluster was chosen"
        if data["cluster_id"] not in workload.among:
            yield "cluster", f"{workload.name} was put on {data['cluster_id']}, and may run on {workload.among}"
        if any(cluster_id == data["cluster_id"] for cluster_id, _ in workload.left.values()):
            yield "cluster", f"{workload.name} goes back to {data['cluster_id']}, where its old pods may live"
        if types[types.index("ClusterChosen") + 1 :][:1] != ["PodsBound"]:
            yield "cluster", f"a cluster was chosen for {workload.name}, and nothing bound there"
        workload.cluster_id = data["cluster_id"]

    def _pods_bound(self, data: Fields) -> Iterator[Wrong]:
        yield from self._may_run("was given nodes")
        if not self.workload.cluster_id:
            yield "cluster", f"{self.workload.name} was given nodes, and has no cluster"
        token = self._incarnation * INCARNATION + self.record.fields["parent_seq"]
        if data["token"] != token or token <= self._last_token:
            yield "token", f"{self.workload.name}: token {data['token']} after {self._last_token}"
        for placement in data["placements"]:
            yield from self._bind(placement, data["token"])
        open_, most = len(self.workload.pods), self.workload.most_at_once
        if open_ > most:
            yield "parallel", f"{self.workload.name} has {open_} pods at once, and may have {most}"
        if self.workload.distributed:
            placed = sum(run.phase != "stopping" for run in self.workload.live.values()) + len(self.workload.succeeded)
            together = sum(self.workload.sizes.values())
            if placed < together:
                yield "gang", f"{self.workload.name} has {placed} of the {together} pods that are bound together"

    def _bind(self, placement: Fields, token: int) -> Iterator[Wrong]:
        workload, pod = self.workload, placement["pod"]
        place, name = (pod["pod_set"], pod["index"]), run_name(self.workload.id, pod)
        before = workload.pods.get(place)
        # The index of a replica, or an elastic worker, is never used again: it says nothing of how many there are.
        in_set = (
            pod["pod_set"] in workload.sizes
            if workload.inference or (workload.growth > 0 and pod["pod_set"] == "worker")
            else pod["index"] < workload.sizes.get(pod["pod_set"], 0)
        )
        if pod["index"] < 0 or not in_set:
            yield "bound", f"{name} is no pod of {workload.sizes}"
        if place in workload.succeeded:
            yield "bound", f"{name} is bound, and that pod has succeeded before"
        if place in workload.removed:
            yield "bound", f"{name} is bound, and that replica was removed before"
        if isinstance(before, Run):
            yield "bound", f"{name} is bound while {before.name} lives"
        expected = before or Waiting(workload.attempt, 0)
        if (pod["attempt"], pod["try"]) != (expected.attempt, expected.try_):
            yield "bound", f"{name} is bound, and the next run is {expected.attempt}.{expected.try_}"
        not_before = before.not_before if isinstance(before, Waiting) else None
        # A wait beyond the longest was begun by a clock that was ahead, and set right since.
        if not_before is not None and timedelta() < not_before - self.record.at <= LONGEST_WAIT:
            yield "backoff", f"{name} is bound before {not_before}"
        workload.pods[place] = Run(
            name=name,
            attempt=pod["attempt"],
            try_=pod["try"],
            token=token,
            node_key=placement["node_key"],
            node_name=placement["node_name"],
            devices=placement.get("devices", []),
        )
        workload.tokens[name] = token
        workload.nodes[name] = placement["node_name"]
        workload.devices[name] = placement.get("devices", [])

    def _may_run(self, what: str) -> Iterator[Wrong]:
        workload = self.workload
        if workload.ended or workload.limit:
            yield "ended", f"{workload.name} {what} after it was {workload.ended or workload.limit}"
        if workload.desired != "Running":
            yield "desired", f"{workload.name} {what}, and should be {workload.desired}"

    def _pods_evicted(self, data: Fields) -> Iterator[Wrong]:
        # What lies in the node spares no non-preemptible workload, and is none of terminateAfterPreemption.
        of_node, shrinks = data["reason"] in {"tainted", "drained"}, data["reason"] == "shrunk"
        closes = data["reason"] in {
            "window_closed",
            "reserved",
        }  # it spares them, and is none of terminateAfterPreemption either
        workload, self._evicted = self.workload, not (of_node or shrinks or closes)
        yield from self._may_run("was evicted")
        if not (of_node or shrinks) and workload.spec.get("preemptibility") == "non-preemptible":
            yield "evicted", f"{workload.name} is non-preemptible, and was evicted"
        for pod in data["pods"]:
            run = workload.pods.get((pod["pod_set"], pod["index"]))
            name = run_name(workload.id, pod)
            if not isinstance(run, Run) or run.name != name or run.phase not in {"bound", "starting", "running"}:
                yield "evicted", f"{name} was evicted, and holds no node that it could give up"
            else:
                run.phase = "stopping"
        staying = sum(run.phase != "stopping" for run in workload.live.values())
        if data["attempt"] != workload.attempt + (not staying):
            yield "token", f"{workload.name}: attempt {data['attempt']} follows {workload.attempt}, {staying} pods stay"
        workload.attempt = data["attempt"]
        together = sum(workload.sizes.values())
        if workload.distributed and staying > 0 and staying + len(workload.succeeded) < together:
            yield "gang", f"{workload.name} was evicted, and {staying} pods of {together} stay"
        if staying > 0 and any(workload.meets_at((pod["pod_set"], pod["index"])) for pod in data["pods"]):
            yield "gang", f"{workload.name} goes on without the pod at which the others meet"
        if shrinks and not (staying > 0 and workload.growth > 0):
            yield "evicted", f"{workload.name} shrank, and {staying} pods of it go on"
        for place, waiting in workload.pods.items():
            if isinstance(waiting, Waiting) and not staying:
                workload.pods[place] = Waiting(workload.attempt, 0, waiting.not_before)

    def _cluster_left(self, data: Fields) -> Iterator[Wrong]:
        workload = self.workload
        yield from self._may_run("left its cluster")
        if not workload.among:
            yield "cluster", f"{workload.name} left the cluster that was named for it"
        if workload.spec.get("preemptibility") == "non-preemptible":
            yield "cluster", f"{workload.name} is non-preemptible, and left its cluster"
        if not workload.cluster_id or data["cluster_id"] != workload.cluster_id:
            yield "cluster", f"{workload.name} left {data['cluster_id']}, and was on {workload.cluster_id!r}"
        elsewhere = {*data["among"]} - {data["cluster_id"], *(cluster_id for cluster_id, _ in workload.left.values())}
        if not elsewhere or not {*data["among"]} <= {*workload.among}:
            yield "cluster", f"{workload.name} left its cluster for one of {data['among']}, and may {workload.among}"
        if data["attempt"] != workload.attempt + 1:
            yield "token", f"{workload.name}: attempt {data['attempt']} follows {workload.attempt}"
        if data["pods"] != len(workload.live):
            yield "cluster", f"{workload.name} left {data['pods']} pods behind, and {len(workload.live)} lived"
        behind = sorted(workload.live.items(), reverse=True)
        workload.left |= {run.name: (workload.cluster_id, run) for _, run in behind}
        for _, run in behind:
            run.phase = "stopping"
        workload.attempt, workload.cluster_id, workload.among = data["attempt"], "", tuple(data["among"])
        workload.saved_at = None
        for place, pod in workload.pods.items():
            workload.pods[place] = Waiting(workload.attempt, 0, pod.not_before if isinstance(pod, Waiting) else None)
        for place, _ in behind:
            if self._is_surplus(place):
                self._remove(place)

    def _left_pod_ended(self, data: Fields) -> Iterator[Wrong]:
        workload, name = self.workload, run_name(self.workload.id, data["pod"])
        cluster_id, _ = workload.left.pop(name, ("", None))
        if cluster_id != data["cluster_id"]:
            yield "fact", f"{name} ended on {data['cluster_id']}, and was left on {cluster_id!r}"
        workload.ends[name] = LEFT_ENDS[data["how"]]

    def _workload_limit_reached(self, data: Fields) -> Iterator[Wrong]:
        workload = self.workload
        yield from self._may_run("reached a limit")
        if data["reason"] not in LIMITS:
            yield "limit", f"{workload.name} is ended by {data['reason']}, which is no limit"
        if not workload.live:
            yield "limit", f"{workload.name} is terminating, and nothing of it lives"
        workload.limit = data["reason"]
        self._all_stop()
        workload.pods = {place: pod for place, pod in workload.pods.items() if isinstance(pod, Run)}

    def _workload_suspended(self, _: Fields) -> Iterator[Wrong]:
        yield from self._may_run("was suspended")
        self.workload.desired = "Stopped"
        self._all_stop()

    def _workload_stopped(self, _: Fields) -> Iterator[Wrong]:
        workload = self.workload
        if workload.desired != "Stopped" or workload.ended or workload.halted:
            yield "stopped", f"{workload.name} is Stopped, and was {workload.phase}, to be {workload.desired}"
        if workload.live:
            yield "stopped", f"{workload.name} is Stopped while {[run.name for run in workload.live.values()]} live"
        workload.halted = True

    def _workload_resumed(self, data: Fields) -> Iterator[Wrong]:
        workload = self.workload
        if workload.desired != "Stopped" or workload.ended:
            yield "desired", f"{workload.name} was resumed, and was {workload.ended or workload.desired}"
        if data["attempt"] != workload.attempt + 1:
            yield "token", f"{workload.name}: attempt {data['attempt']} follows {workload.attempt}"
        workload.desired, workload.halted, workload.queued = "Running", False, False
        workload.attempt, workload.failed_runs = data["attempt"], 0
        for place, pod in workload.pods.items():
            if isinstance(pod, Waiting):
                workload.pods[place] = Waiting(workload.attempt, 0)
        if workload.inference:
            self._have_replicas(max(self._bounds[0], 1))

    @property
    def _bounds(self) -> tuple[int, int]:
        given = self.workload.inference["serving"]["autoscaling"]
        return int(given["minReplicas"]), int(given["maxReplicas"])

    def _workload_scaled(self, data: Fields) -> Iterator[Wrong]:
        workload = self.workload
        yield from self._may_run("was scaled")
        if not workload.inference:
            yield "scaled", f"{workload.name} has no replicas, and was scaled"
            return
        least, most = self._bounds
        if not least <= data["replicas"] <= most:
            yield "scaled", f"{workload.name} is to have {data['replicas']} replicas, and may have {least} to {most}"
        if data["was"] != workload.replicas or data["replicas"] == workload.replicas:
            yield "scaled", f"{workload.name} has {workload.replicas} replicas, scaled from {data['was']}"
        if not workload.queued:
            yield "scaled", f"{workload.name} was scaled before the scheduler had it"
        self._have_replicas(data["replicas"])

    def _have_replicas(self, replicas: int) -> None:
        """Of those that are too many, those without a node are gone, and the newest of the others are told to go."""
        workload = self.workload
        workload.replicas = replicas
        waiting = sorted(place for place, pod in workload.pods.items() if isinstance(pod, Waiting))
        staying = sorted(place for place, run in workload.live.items() if run.phase != "stopping")
        for _ in range(len(waiting) + len(staying) - replicas):
            if waiting:
                self._remove(waiting.pop())
            else:
                workload.live[staying.pop()].phase = "stopping"

    def _remove(self, place: Place) -> None:
        del self.workload.pods[place]
        self.workload.removed.add(place)

    def _workload_changed(self, data: Fields) -> Iterator[Wrong]:
        workload = self.workload
        if workload.desired == "Deleted":
            yield "deleted", f"{workload.name} was changed while it goes"
        if "priority_class" in data:
            workload.spec = workload.spec | {"priorityClass": data["priority_class"]}
        seconds = data.get("auto_deletion_time_after_completion_seconds")
        if seconds is not None:
            workload.spec = workload.spec | {"autoDeletionTimeAfterCompletionSeconds": seconds}
        for marks in ("labels", "annotations", "storage"):
            if marks in data:
                workload.spec = workload.spec | {marks: data[marks]}
        if (data.get("delete_at") is not None) != (seconds is not None and bool(workload.ended)):
            yield "due", f"{workload.name}: a due time is given where none belongs, or is missing"
        if data.get("delete_at") is not None:
            workload.delete_at = moment(data["delete_at"])
            workload.generation += 1

    def _workload_transferred(self, data: Fields) -> Iterator[Wrong]:
        workload = self.workload
        if workload.desired == "Deleted":
            yield "deleted", f"{workload.name} was given to another owner while it goes"
        if data["owner"] == workload.owner:
            yield "owner", f"{workload.name} was given to who has it"
        workload.owner = data["owner"]

    def _act_undone(self, data: Fields) -> Iterator[Wrong]:
        workload = self.workload
        follows = _OPPOSITES.get(data["act"])
        told = [event["type"] for event in self.record.fields["events"]]
        if follows not in told:
            yield "undone", f"{workload.name}: {data['act']} was undone, and {told} follows"
        if not any((seq, type_) == (data["sequence"], data["act"]) for seq, _, type_ in workload.told):
            yield "undone", f"{workload.name}: there was no {data['act']} at {data['sequence']} that could be undone"

    def _session_opened(self, data: Fields) -> Iterator[Wrong]:
        workload, pod = self.workload, data["pod"]
        run = workload.pods.get((pod["pod_set"], pod["index"]))
        name = run_name(workload.id, pod)
        if not isinstance(run, Run) or run.name != name or run.phase != "running":
            yield "session", f"somebody was let into {name}, which does not run"
        if data["session_id"] in workload.sessions:
            yield "session", f"session {data['session_id']} was opened twice"
        if moment(data["ends_at"]) <= self.record.at:
            yield "session", f"session {data['session_id']} was over before it began"
        workload.sessions[data["session_id"]] = moment(data["ends_at"])

    def _session_closed(self, data: Fields) -> Iterator[Wrong]:
        if self.record.author not in {"api", "cluster_sync"}:
            yield "author", f"{self.record.author} said that a session is over"
        if self.workload.sessions.pop(data["session_id"], None) is None:
            yield "session", f"session {data['session_id']} was closed, and was not open"

    def _workload_deletion_requested(self, data: Fields) -> Iterator[Wrong]:
        workload = self.workload
        if workload.desired == "Deleted":
            yield "deleted", f"the deletion of {workload.name} was asked for twice"
        if data["reason"] == "auto_deletion" and (workload.delete_at is None or self.record.at < workload.delete_at):
            yield "due", f"{workload.name} is deleted by itself, and was due at {workload.delete_at}"
        itself = data["reason"] in {"auto_deletion", "project_deleted", "cluster_removed"}
        if not self._stand_ins and (self.record.author == "auto_deletion") != itself:
            yield "author", f"{self.record.author} deleted {workload.name} for {data['reason']}"
        if workload.live or workload.left:
            workload.phase = "Deleting"
        workload.desired, workload.delete_at = "Deleted", None
        workload.generation += 1
        self._all_stop()

    def _workload_deleted(self, _: Fields) -> Iterator[Wrong]:
        workload = self.workload
        if workload.desired != "Deleted":
            yield "deleted", f"{workload.name} was deleted, and nobody asked for it"
        if workload.left:
            yield "deleted", f"{workload.name} was deleted while {[*workload.left]} may live on a lost cluster"
        if workload.live:
            yield "deleted", f"{workload.name} was deleted while {[run.name for run in workload.live.values()]} live"
        workload.deleted = True
        workload.pods = {place: pod for place, pod in workload.pods.items() if isinstance(pod, Run)}

    def _all_stop(self) -> None:
        for run in self.workload.live.values():
            run.phase = "stopping"

    # -- what clusters say ---------------------------------------------------------------------------------------------

    def _fact(self, type_: str, data: Fields) -> Iterator[Wrong]:
        workload, pod = self.workload, data["pod"]
        place, name = (pod["pod_set"], pod["index"]), run_name(workload.id, pod)
        run = workload.pods.get(place)
        if not isinstance(run, Run) or run.name != name:
            there = run.name if isinstance(run, Run) else "nothing"
            yield "fact", f"{type_} of {name}, and what lives there is {there}"
            return
        # A pod that outlives its workload ends by itself.
        if run.phase not in FACTS[type_] and not (type_ == "PodStopped" and workload.ended):
            yield "fact", f"{type_} of {name}, which is {run.phase}"
        waits = workload.launcher_waits and pod["pod_set"] == "master" and not self._stand_ins
        if waits and not run.may_start and type_ in {"PodStarting", "PodRunning"}:
            yield "launcher", f"{type_} of {name}, and not all workers run"
        match type_:
            case "PodStarting":
                run.phase = "starting"
            case "PodRunning":
                run.phase, run.ran = "running", True
            case "PodUnreachable":
                run.phase = "unknown"
            case "PodWarned":
                pass
            case "CheckpointSaved":
                at = moment(data["at"])
                if not workload.spec.get("checkpoint"):
                    yield "saved", f"a file of {name}, which has no checkpoint folder"
                if workload.saved_at is not None and at <= workload.saved_at:
                    yield "saved", f"a file of {name} that is no newer than the one told before"
                workload.saved_at = at
            case _:
                yield from self._end(type_, data, place, run)

    def _end(self, type_: str, data: Fields, place: Place, run: Run) -> Iterator[Wrong]:
        workload = self.workload
        workload.ends[run.name] = type_
        retry_at = moment(data["retry_at"]) if data.get("retry_at") else None
        again = Waiting(run.attempt, run.try_ + 1, retry_at)
        if type_ == "PodSucceeded":
            if not run.ran and run.phase in {"bound", "starting"} and not self._stand_ins:
                yield "ran", f"{run.name} succeeded, and never ran"
            workload.succeeded.add(place)
            del workload.pods[place]
        elif type_ == "PodStopped":
            over = bool(workload.ended) or workload.desired == "Deleted"
            if over:
                del workload.pods[place]
            else:
                old = run.attempt != workload.attempt
                workload.pods[place] = Waiting(workload.attempt, 0) if old else Waiting(run.attempt, run.try_ + 1)
                if workload.desired == "Running" and self._is_surplus(place):
                    self._remove(place)
        else:
            workload.pods[place] = again
            if type_ == "PodFailed":
                code = data.get("exit_code")
                if code is not None and code < SIGNALLED and data.get("reason", "exit_code") == "exit_code":
                    workload.exits[run.name] = code
                yield from self._failed_run(run, data, retry_at)

    def _is_surplus(self, place: Place) -> bool:
        """Whether there are as many without one that was told to end and has."""
        workload = self.workload
        if workload.inference:
            return len(workload.pods) > workload.replicas
        if not workload.growth > 0 or place[0] != "worker" or workload.meets_at(place):
            return False
        workers = sum(pod_set == "worker" for pod_set, _ in (*workload.pods, *workload.succeeded))
        return workers > workload.sizes["worker"]

    def _failed_run(self, run: Run, data: Fields, retry_at: datetime | None) -> Iterator[Wrong]:
        workload = self.workload
        workload.failed_runs += 1
        workload.spent = retry_at is None
        # Whoever has its node port may keep it for ever (S030), and no more runs make a claim.
        never = data.get("reason") in {"node_port_taken", "no_claim"}
        if data.get("reason") in {"no_command", "no_volume"}:
            never = retry_at is None  # older logs have further runs, which change nothing either
        if workload.inference:
            if retry_at is None:  # its replicas are tried for ever, whatever they fail of
                yield "failed", f"{run.name} of an inference is not run again"
        elif (retry_at is None) != (never or workload.failed_runs > workload.backoff_limit):
            yield (
                "failed",
                f"{run.name}: {workload.failed_runs} failed runs of {workload.backoff_limit} + 1, again at {retry_at}",
            )
        if retry_at is not None and retry_at < self.record.at + timedelta(seconds=1):
            yield "backoff", f"{run.name} failed, and is tried again at once"

    def _workload_completed(self, data: Fields) -> Iterator[Wrong]:
        workload = self.workload
        done = len(workload.succeeded)
        too_many = not workload.distributed and done > workload.completions
        if not workload.all_done or too_many or data["succeeded"] != done:
            yield (
                "completed",
                f"{workload.name} is Completed with {done} of {workload.sizes}; it says {data['succeeded']}",
            )
        workload.exit_code = 0
        yield from self._over("Completed", data)

    def _workload_failed(self, data: Fields) -> Iterator[Wrong]:
        workload = self.workload
        at_limit = data["reason"] in LIMITS and (workload.limit == data["reason"] or not workload.live)
        evicted = self._evicted and workload.spec.get("terminateAfterPreemption")
        if not workload.spent and not evicted and not at_limit:
            yield "failed", f"{workload.name} is Failed after {workload.failed_runs} failed runs, and may go on"
        workload.exit_code = data.get("exit_code")
        yield from self._over("Failed", data)

    def _over(self, how: str, data: Fields) -> Iterator[Wrong]:
        workload = self.workload
        if workload.ended:
            yield "ended", f"{workload.name} is {how} after it was {workload.ended}"
        if workload.desired == "Deleted":
            yield "deleted", f"{workload.name} is {how} while it is deleted"
        workload.ended, workload.delete_at = how, moment(data["delete_at"])
        workload.generation += 1
        due = moment(data["at"]) + timedelta(seconds=workload.auto_deletion_seconds)
        if workload.delete_at != due:
            yield "due", f"{workload.name} is to be deleted at {workload.delete_at}, {due} was asked for"
        if workload.distributed.get("distribution", {}).get("cleanPodPolicy") != "None":
            self._all_stop()
        workload.pods = {place: pod for place, pod in workload.pods.items() if isinstance(pod, Run)}
