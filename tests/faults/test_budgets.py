"""Two measure budgets at once, and they and what decides are killed meanwhile: each thing is said once."""

import json
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from development.stack import Part, Stack, until
from tests.support.second import second

pytestmark = pytest.mark.faults

VICTIMS: tuple[Part, ...] = ("workers", "control")


def said(stack: Stack) -> Counter[str]:
    """The events of budgets in the log, by type."""
    found = stack.muster("log", "list", "--limit", "0", "-o", "json", timeout_seconds=120)
    assert found.returncode == 0, found.stderr
    types = [event["type"] for commit in json.loads(found.stdout) for event in commit["events"]]
    return Counter(type_ for type_ in types if type_.startswith("Budget"))


def test_each_budget_warns_once_and_is_exhausted_once(tmp_path: Path, rounds: int, chance: random.Random) -> None:
    stack = Stack(tmp_path, "--gpus", "1").start()
    try:
        with second(stack, "auto_deletion") as (other,):
            for number in range(rounds):
                name = f"p{number}"
                assert stack.muster("project", "create", name).returncode == 0
                assert stack.muster("budget", "set", name, "--gpu-hours", "0").returncode == 0
                time.sleep(chance.uniform(0, 5))
                stack.kill(chance.choice(VICTIMS))
                if chance.random() < 0.5:
                    other.kill()

                def exhausted(name: str = name) -> bool:
                    shown = stack.muster("budget", "show", name, "-o", "json")
                    return shown.returncode == 0 and json.loads(shown.stdout)["state"] == "exhausted"

                until(exhausted, 90, other.said)
            # Both measure once more.
            time.sleep(6)
        counted = said(stack)
        assert counted == {"BudgetSet": rounds, "BudgetWarned": rounds, "BudgetExhausted": rounds}
        stack.stop()
    finally:
        stack.close()
