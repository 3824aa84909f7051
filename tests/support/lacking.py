"""What a test needs and this machine lacks: a person's machine may, CI's may not."""

import os
from typing import NoReturn

import pytest


def lacking(reason: str, *, runs_where: str = "CI") -> NoReturn:
    """Skip the test, or fail it where it must run.

    Args:
        reason: what is lacking, for a person who wonders why it was skipped.
        runs_where: the environment variable that is set wherever it must run.
    """
    if os.environ.get(runs_where):
        pytest.fail(f"{runs_where} is set, so this test must run: {reason}")
    pytest.skip(reason)
