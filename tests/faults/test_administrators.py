"""A `muster up` whose administrator gave the role away."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from development.stack import Stack

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]


@pytest.fixture
def stack(server_folder: Path) -> Iterator[Stack]:
    stack = Stack(server_folder / "up", "--gpus=1")
    yield stack
    stack.close()


def test_it_starts_where_its_administrator_is_none_any_more_and_another_can_be_named(stack: Stack) -> None:
    """Given the one that it acts as gave the role to somebody else, and then away, when it starts, then it says so."""
    stack.start()
    assert stack.muster("role", "grant", "root", "administrator").returncode == 0
    assert stack.muster("role", "revoke", "admin", "administrator", "--yes").returncode == 0
    refused = stack.muster("token", "create", "--user", "ann", "--role", "administrator")
    assert (refused.returncode, "MUSTER_ADMIN_SUBJECT" in refused.stderr) == (4, True)
    stack.stop()
    stack.start()
    assert any(
        "'admin', as whom it is done, is no administrator any more" in line and "MUSTER_ADMIN_SUBJECT=NAME" in line
        for line in stack.output
    )
    stack.stop()
    stack.environment["MUSTER_ADMIN_SUBJECT"] = "root"
    stack.start()
    assert stack.muster("role", "grant", "admin", "administrator").returncode == 0
    assert stack.api().cluster("local")
    stack.stop()
