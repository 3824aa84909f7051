"""A person who submits without pause, and remembers every 202: what was acknowledged must never be lost."""

import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.stack import Api, training

GIVE_UP_SECONDS = 240
"""A part that is killed again before it serves is away for as long as the killing goes on."""


@dataclass
class Submitter:
    """Submits in a thread until told to stop; repeats with the same key until there is a definite answer."""

    api: Api
    cluster_id: str
    project_id: str
    per_second: float
    prefix: str
    spec: dict[str, Any] = field(default_factory=dict[str, Any])
    acknowledged: dict[str, str] = field(default_factory=dict[str, str])
    """Workload id of every 202, by name."""
    problems: list[str] = field(default_factory=list[str])
    repeats: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self, timeout_seconds: float = 60) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join(timeout_seconds)
        assert not self._thread.is_alive(), "the last submit never got an answer"

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            self._submit(f"{self.prefix}-{number}")
            time.sleep(random.expovariate(self.per_second))

    def _submit(self, name: str) -> None:
        body = training(name, self.project_id, self.cluster_id, **self.spec)
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while time.monotonic() < deadline:
            try:
                answer = self.api.http.post(
                    "/workloads/trainings", json=body, headers={"Idempotency-Key": f"key-{name}"}
                )
            except httpx.TransportError:
                self.repeats += 1
                time.sleep(0.2)
                continue
            if answer.status_code == 202:
                self.acknowledged[name] = answer.json()["workloadId"]
                return
            if answer.status_code not in {429, 503}:
                self.problems.append(f"{name}: {answer.status_code} {answer.text}")
                return
            self.repeats += 1
            time.sleep(0.2)
        self.problems.append(f"{name}: no answer within {GIVE_UP_SECONDS} s")
