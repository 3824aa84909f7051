"""Many people at once, who change their minds: random acts on many workloads, a process killed in between."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Literal

import pytest

from development.stack import Api, running, until
from development.stack_check import check_stack

pytestmark = pytest.mark.faults

AT_ONCE: Final = 8
RESTING: Final = {"Completed", "Failed", "Stopped"}
MOVES: Final[tuple[Literal["suspend", "resume"], ...]] = ("suspend", "resume")


def act(api: Api, seed: int) -> tuple[str, str]:
    """One person's way with one workload, at times under a name that was used before; its name and last id."""
    chance = random.Random(seed)
    name = f"restless-{seed}"
    id_ = ""
    for _ in range(chance.randint(1, 2)):
        gpus = {"gpuDevicesRequest": 1, "gpuRequestType": "portion", "gpuPortionRequest": 0.5}
        made = api.submit(
            name,
            python="import time; time.sleep(0.5)" if chance.random() < 0.8 else "raise SystemExit(3)",
            compute=gpus if chance.random() < 0.5 else {},
            backoffLimit=chance.randint(0, 1),
            completions=chance.randint(1, 2),
            terminationGracePeriodSeconds=1,
        )
        if id_:
            assert made["workloadId"] != id_
        id_ = made["workloadId"]
        for _ in range(chance.randint(0, 6)):
            time.sleep(chance.choice((0, 0, 0.05, 0.3)))
            assert api.act(chance.choice(MOVES), id_).status_code in {202, 409}
        if chance.random() < 0.5:
            assert api.act("delete", id_).status_code == 202
            until(lambda id_=id_: api.training(id_).get("deletedAt"), 180)
        else:
            break
    return name, id_


def test_whatever_people_do_at_once_the_log_stays_whole_and_every_row_follows_from_it(
    tmp_path: Path, rounds: int
) -> None:
    """S004, S086: also where process B dies among them; in the end nothing is held and nothing runs."""
    workloads = 20 * rounds
    with running(tmp_path, "--gpus", "2") as stack:
        api = stack.api()
        with ThreadPoolExecutor(AT_ONCE) as people:
            going = [people.submit(act, stack.api(), seed) for seed in range(workloads)]
            time.sleep(2)
            stack.kill("workers")
            made = dict(one.result() for one in going)
        for id_ in made.values():
            until(lambda id_=id_: _rests(api, id_), 60, lambda id_=id_: str(api.training(id_)))
        report = check_stack(stack, made)
        until(lambda: check_stack(stack, made).left_reserved == 0, 10)
        assert report.left_live == 0
        verified = stack.muster("log", "verify")
        assert verified.returncode == 0, verified.stderr


def _rests(api: Api, workload_id: str) -> bool | None:
    training = api.training(workload_id)
    return bool(training.get("deletedAt")) or training["actualPhase"] in RESTING or None
