"""Somebody who works without pause, while something else is tried."""

import random
import threading
from collections.abc import Sequence
from typing import Self

from tests.support.api import Served


class BusyUsers:
    """Submit, act and delete in a thread.

    Args:
        projects: where; the fixture's own where none is named.
        pause_seconds: between two requests, on average.
        living: about so many workloads live at once.
    """

    def __init__(
        self, served: Served, *, seed: int, pause_seconds: float, projects: Sequence[str] = (), living: int = 3
    ) -> None:
        self._served = served
        self._projects = projects or (served.project,)
        self._pause = pause_seconds
        self._living = living
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        path, ids = "/api/v1/workloads/trainings", list[str]()
        with self._served.client() as client:
            while not self._stopping.wait(self._chance.uniform(0.0, 2 * self._pause)):
                if len(ids) < self._living or self._chance.random() < 0.5:
                    body = self._served.training(projectId=self._chance.choice(self._projects))
                    made = client.post(path, json=body)
                    ids += [made.json()["workloadId"]] if made.status_code == 202 else []
                else:
                    act = self._chance.choice(("suspend", "resume", "delete"))
                    target = f"{path}/{self._chance.choice(ids[-2 * self._living :])}"
                    client.delete(target) if act == "delete" else client.post(f"{target}/{act}")
