"""People who use a cluster without pause: they submit, suspend, resume and delete, and remember every 202."""

import dataclasses
import hashlib
import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import httpx

from development.kubernetes.stack import KubernetesStack, archive_of
from development.stack import training

MOST_AT_ONCE: Final = 40
"""Workloads that have not ended: a queue of hundreds would only have to be waited for."""
GIVE_UP_SECONDS: Final = 120.0
TAKEN: Final = frozenset({200, 202})
REFUSED: Final = frozenset({404, 409})
"""It has ended, or somebody was faster."""
_GPU: Final = {"gpuDevicesRequest": 1, "cpuCoreRequest": 0.1}
_HALF: Final = {"gpuRequestType": "portion", "gpuPortionRequest": 0.5, "gpuDevicesRequest": 1, "cpuCoreRequest": 0.1}


@dataclasses.dataclass(frozen=True)
class Kind:
    name: str
    weight: int
    runtime_seconds: Callable[[random.Random], float | None]
    spec: Mapping[str, Any]
    simulation: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])


def _short(chance: random.Random) -> float:
    return round(chance.uniform(0.3, 3.0), 1)


def _endless(_: random.Random) -> None:
    return None


CODE: Final = archive_of({"train.py": b"#" * 1_200_000})
"""Sent along by some of the workloads: three ConfigMaps, which the pods that live at the same time share."""
_CODED: Final = {"compute": {"cpuCoreRequest": 0.1}, "code": hashlib.sha256(CODE).hexdigest()}

KINDS: Final = (
    Kind("gpu", 4, _short, {"compute": _GPU}),
    Kind("half", 4, _short, {"compute": _HALF}),
    Kind("fails", 2, lambda _: 0.2, {"compute": _GPU, "backoffLimit": 1}, {"exit-code": "3"}),
    Kind("pair", 2, _short, {"compute": {"cpuCoreRequest": 0.2}, "completions": 2, "parallelism": 2}),
    Kind("coded", 3, _short, _CODED),
    Kind("codedpair", 1, _short, {**_CODED, "completions": 2, "parallelism": 2}),
    Kind("long", 3, _endless, {"compute": _GPU}),
    Kind("longhalf", 2, _endless, {"compute": _HALF}),
    Kind("deaf", 1, _endless, {"compute": _GPU, "terminationGracePeriodSeconds": 2}, {"ignore-term": "true"}),
)
PLANS: Final[tuple[tuple[str, ...], ...]] = (
    ("delete",),
    ("suspend", "delete"),
    ("suspend", "resume", "delete"),
    ("suspend", "resume", "suspend", "resume", "delete"),
)


class Load:
    """One person who submits and one who acts upon what runs without end, each in a thread. `per_second` 0:
    neither; `urls`: of further apis.
    """

    def __init__(
        self,
        stack: KubernetesStack,
        prefix: str,
        chance: random.Random,
        *,
        per_second: float = 3.0,
        urls: Sequence[str] = (),
    ) -> None:
        self.prefix = prefix
        self.acknowledged: dict[str, str] = {}
        """Workload id of every 202, by name."""
        self.problems: list[str] = []
        self.repeats = 0
        self.acts = 0
        self._stack = stack
        self._chance, self._chance_to_act = (random.Random(chance.random()) for _ in range(2))
        """Each thread draws of its own."""
        self._per_second = per_second
        self._api = stack.client()
        stack.send_code(CODE)
        self._in_turn = itertools.cycle([self._api, *(stack.client(url=url) for url in urls)])
        """Whoever is asked next: an api that is away is not asked again at once."""
        self._project_id, self._cluster_id = self._api.project(), stack.cluster_id
        self._stop = threading.Event()
        self._due: list[tuple[float, int, str, tuple[str, ...]]] = []
        """When, a number that breaks ties, workload id, what is still to be done with it."""
        self._lock = threading.Lock()
        self._number = 0
        self._held = 0
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._submit_all, self._act_all)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Submit no more; what runs without end is deleted."""
        self._stop.set()
        for thread in self._threads:
            thread.join(GIVE_UP_SECONDS + 30)
            assert not thread.is_alive(), "somebody still waits for an answer"
        assert self.problems == [], self.problems[:10]

    def unfinished(self) -> int:
        """How many have not ended, as far as the API knows."""
        return self._count("phase!=Completed", "phase!=Failed")

    def known(self) -> int:
        """How many the API knows of, deleted ones among them."""
        return self._count() + self._count(deleted=True)

    def waiting(self) -> list[list[str]]:
        """What has not ended, in words."""
        rows = self._api.get(
            "/workloads", search=self.prefix, filterBy=["phase!=Completed", "phase!=Failed"], limit=10
        )["workloads"]
        return [[row["name"], row["phase"], row["phaseReason"], row["phaseMessage"]] for row in rows]

    def submit(self, name: str, *, runtime_seconds: float | None, simulation: Mapping[str, str], **spec: Any) -> str:
        """Its id, when there was a definite answer; empty: there was none."""
        told = {**simulation, **({} if runtime_seconds is None else {"runtime-seconds": str(runtime_seconds)})}
        annotations = [{"name": f"simulation.muster.dev/{key}", "value": value} for key, value in told.items()]
        body = training(name, self._project_id, self._cluster_id, annotations=annotations, **spec)
        answer = self._until_answered("POST", "/workloads/trainings", body, key=name)
        if answer is None or answer.status_code != 202:
            self.problems.append(f"{name}: {answer and answer.text}")
            return ""
        self.acknowledged[name] = answer.json()["workloadId"]
        return self.acknowledged[name]

    def submit_endless(self, count: int, *, half: bool = False) -> list[str]:
        """Ids of workloads that run until `delete`, once all of them run."""
        compute = _HALF if half else _GPU
        self._held += count
        names = [f"{self.prefix}-held-{self._held - number}" for number in range(count)]
        ids = [self.submit(name, runtime_seconds=None, simulation={}, compute=compute) for name in names]
        for id_ in ids:
            self._api.wait(id_, "Running", timeout_seconds=60)
        return ids

    def delete(self, workload_id: str) -> None:
        self._act(workload_id, "delete")

    def _count(self, *filters: str, deleted: bool = False) -> int:
        query = {"search": self.prefix, "filterBy": list(filters), "deleted": deleted}
        answer = self._until_answered("GET", "/workloads/count", None, key="", params=query)
        assert answer is not None
        assert answer.status_code == 200, answer.text
        return int(answer.json()["count"])

    def _submit_all(self) -> None:
        while self._per_second and not self._stop.is_set():
            if self.unfinished() > MOST_AT_ONCE:
                self._stop.wait(0.5)
                continue
            for _ in range(5):
                self._submit_one()
                if self._stop.wait(self._chance.expovariate(self._per_second)):
                    return

    def _submit_one(self) -> None:
        kind = self._chance.choices(KINDS, [kind.weight for kind in KINDS])[0]
        self._number += 1
        runtime = kind.runtime_seconds(self._chance)
        name = f"{self.prefix}-{kind.name}-{self._number}"
        id_ = self.submit(name, runtime_seconds=runtime, simulation=kind.simulation, **kind.spec)
        if id_ and runtime is None:
            with self._lock:
                plan = self._chance.choice(PLANS)
                heapq.heappush(self._due, (_soon(self._chance, 0.3, 6), self._number, id_, plan))

    def _act_all(self) -> None:
        while True:
            stopping = self._stop.is_set() and not self._threads[0].is_alive()
            with self._lock:
                ready = bool(self._due) and (stopping or self._due[0][0] <= time.monotonic())
                due = heapq.heappop(self._due) if ready else None
            if due is None:
                if stopping:
                    return
                time.sleep(0.05)
                continue
            _, number, id_, plan = due
            verb, *later = ("delete",) if stopping else plan
            self._act(id_, verb)
            if later:
                with self._lock:
                    heapq.heappush(self._due, (_soon(self._chance_to_act, 0.1, 4), number, id_, tuple(later)))

    def _act(self, id_: str, verb: str) -> None:
        path = f"/workloads/trainings/{id_}"
        method, path = ("DELETE", path) if verb == "delete" else ("POST", f"{path}/{verb}")
        self.acts += 1
        answer = self._until_answered(method, path, None, key=f"{verb}-{id_}-{self.acts}")
        if answer is None or answer.status_code not in TAKEN | REFUSED:
            self.problems.append(f"{verb} {id_}: {answer and answer.text}")

    def _until_answered(
        self, method: str, path: str, body: Any, *, key: str, params: Mapping[str, Any] | None = None
    ) -> httpx.Response | None:
        headers = {"Idempotency-Key": key} if key else {}
        give_up = time.monotonic() + GIVE_UP_SECONDS
        while time.monotonic() < give_up:
            try:
                answer = next(self._in_turn).http.request(method, path, json=body, headers=headers, params=params)
            except httpx.TransportError:
                pass
            else:
                if answer.status_code not in {429, 503}:
                    return answer
            self.repeats += 1
            time.sleep(0.2)
        return None


def _soon(chance: random.Random, least: float, most: float) -> float:
    return time.monotonic() + chance.uniform(least, most)
