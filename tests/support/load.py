"""People who use a stack without pause, each in a thread: they submit, act, look, and remember every 202."""

import random
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from development.checker.effects import PROGRAM
from development.stack import Api, training

GIVE_UP_SECONDS: Final = 240
"""A part that is killed again before it serves is away for as long as the killing goes on."""
AGAIN_SECONDS: Final = 0.2
REPEATED: Final = 0.15
"""Of all creations: asked once more after the answer, which must be the same."""
FINAL: Final = frozenset({200, 202, 400, 404, 409})
"""Statuses that end the asking; 400: the name is taken still; 404 and 409: somebody was faster."""
PLANS: Final[tuple[tuple[str, ...], ...]] = (
    ("delete",),
    ("suspend", "delete"),
    ("suspend", "resume", "delete"),
    ("suspend", "suspend", "resume", "resume", "delete"),
)


@dataclass
class Person(ABC):
    """Asks until told to stop; repeats with the same key until there is a definite answer."""

    apis: Sequence[Api]
    """Any of them is asked."""
    chance: random.Random
    prefix: str
    problems: list[str] = field(default_factory=list[str])
    repeats: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def start(self) -> None:
        self.thread = threading.Thread(target=self._run, name=self.prefix, daemon=True)
        self.thread.start()

    def stop(self, timeout_seconds: float = GIVE_UP_SECONDS) -> None:
        self.stopping.set()
        assert self.thread is not None
        self.thread.join(timeout_seconds)
        assert not self.thread.is_alive(), f"{self.prefix} never got the last answer"

    @abstractmethod
    def act(self) -> None:
        """One thing after the other, and a pause."""

    def leave(self) -> None:  # noqa: B027 (most have nothing left to do)
        """What is still to be done when it is over."""

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.act()
            self.leave()
        except Exception as error:  # noqa: BLE001 - the test's own thread tells of it
            self.problems.append(f"{self.prefix}: {error!r}")

    def ask(self, method: str, path: str, *, key: str = "", body: Any = None, **query: Any) -> httpx.Response | None:
        """The definite answer; None where there was none in time."""
        headers = {"Idempotency-Key": key} if key else {}
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while time.monotonic() < deadline:
            api = self.chance.choice(self.apis)
            try:
                answer = api.http.request(method, path, json=body, headers=headers, params=query)
            except httpx.TransportError:
                pass
            else:
                if answer.status_code in FINAL:
                    return answer
                if answer.status_code not in {429, 503}:
                    self.problems.append(f"{method} {path} {key}: {answer.status_code} {answer.text}")
                    return None
            self.repeats += 1
            time.sleep(AGAIN_SECONDS)
        self.problems.append(f"{method} {path} {key}: no answer within {GIVE_UP_SECONDS} s")
        return None

    def pause(self, per_second: float) -> None:
        self.stopping.wait(self.chance.expovariate(per_second))


@dataclass
class Submitter(Person):
    """Submits, and now and then asks for the same once more."""

    cluster_id: str = ""
    project_id: str = ""
    per_second: float = 1.0
    spec: Callable[[random.Random], Mapping[str, Any]] = field(default=lambda _: {})
    acknowledged: dict[str, str] = field(default_factory=dict[str, str])
    """Workload id of every 202, by name."""
    number: int = 0

    def act(self) -> None:
        self.number += 1
        if not self.submit(f"{self.prefix}-{self.number}"):
            self.problems.append(f"{self.prefix}-{self.number} was not taken")
        self.pause(self.per_second)

    def submit(self, name: str) -> str:
        """Its id; empty where it was not taken."""
        body = training(name, self.project_id, self.cluster_id, **self.spec(self.chance))
        key = f"key-{name}-{self.number}"
        answer = self.ask("POST", "/workloads/trainings", key=key, body=body)
        if answer is None or answer.status_code != 202:
            return ""
        if self.chance.random() < REPEATED:
            self.ask("POST", "/workloads/trainings", key=key, body=body)
        self.acknowledged[name] = answer.json()["workloadId"]
        return self.acknowledged[name]


@dataclass
class Restless(Submitter):
    """Submits what runs for long, suspends, resumes and deletes it, and then often takes the name again."""

    name: str = ""

    def act(self) -> None:
        self.number += 1
        if not self.name or self.chance.random() < 0.5:
            self.name = f"{self.prefix}-{self.number}"
        id_ = self.submit(self.name)  # not taken while the one before still goes
        for number, verb in enumerate(self.chance.choice(PLANS)):
            if not id_:
                return
            self.pause(2)
            method, path = ("DELETE", "") if verb == "delete" else ("POST", f"/{verb}")
            key = f"{verb}-{number}-{id_}"
            for _ in range(1 + (self.chance.random() < REPEATED)):
                self.ask(method, f"/workloads/trainings/{id_}{path}", key=key)


@dataclass
class Onlooker(Person):
    """Reads what others made, one by one and in lists, and asks lists for what it has seen."""

    made: Callable[[], Sequence[str]] = field(default=lambda: ())
    """Ids of all that were acknowledged so far."""
    seen_seq: int = 0

    def act(self) -> None:
        ids = self.made()
        if ids and self.chance.random() < 0.7:
            # Most often of the newest: there something happens.
            id_ = ids[-1 - min(int(self.chance.expovariate(0.1)), len(ids) - 1)]
            path = self.chance.choice(("/workloads", "/workloads/trainings"))
            self.look(f"{path}/{id_}")
        else:
            self.look("/workloads", **({"min_seq": self.seen_seq} if self.chance.random() < 0.5 else {}))
        self.pause(8)

    def look(self, path: str, **query: Any) -> None:
        """Once: what is away is no answer, and no problem."""
        try:
            answer = self.chance.choice(self.apis).http.get(path, params=query)
        except httpx.TransportError:
            return
        if answer.status_code == 200:
            self.seen_seq = max(self.seen_seq, int(answer.headers.get("X-Log-Sequence", 0)))
        elif answer.status_code not in {429, 503}:
            self.problems.append(f"{path}: {answer.status_code} {answer.text}")


@dataclass(frozen=True)
class Effects:
    """Where pods on this machine write down what they do."""

    folder: Path

    def prepare(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.folder.chmod(0o777)
        self.program.write_text(PROGRAM)

    @property
    def program(self) -> Path:
        return self.folder / "program.py"

    @property
    def lines(self) -> Path:
        return self.folder / "effects"

    def spec(self, chance: random.Random) -> dict[str, Any]:
        """Of a pod that runs a moment; some fail, some are two."""
        seconds, fails = round(chance.uniform(0.1, 1.0), 2), chance.random() < 0.2
        pods = chance.choice((1, 1, 2))
        return {
            "command": sys.executable,
            "args": f"{self.program} {self.folder} {seconds} {3 if fails else 0}",
            "completions": pods,
            "parallelism": chance.randint(1, pods),
            "backoffLimit": 1,
        }
