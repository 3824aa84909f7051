"""The table of commands, and a command that is registered there and nowhere else."""

import subprocess
import sys
from pathlib import Path
from typing import get_args

from events.aggregate import AGGREGATES
from events.commands import COMMANDS, Scope, UserCommand

SECONDS = 120


def test_every_command_that_a_person_can_give_is_in_the_table() -> None:
    assert set(COMMANDS) == set(get_args(UserCommand))


def test_every_line_has_an_aggregate_and_the_fields_that_its_scope_reads() -> None:
    fields = {Scope.TENANT: set[str](), Scope.PROJECT: {"project_id"}, Scope.WORKLOAD: {"workload_id"}}
    for line in COMMANDS.values():
        named = set(line.type.__struct_fields__)
        assert line.aggregate in AGGREGATES
        assert fields[line.scope] <= named
        assert not line.gives_role or "role" in named


def test_a_decider_a_line_and_an_operation_are_all_that_a_new_command_takes(server_folder: Path) -> None:
    """From a request over HTTP through the gate to the log, and to the audit; refused where the permission is missing.

    In a process of its own: what travels between services is made from the table when they are imported.
    """
    folder = server_folder / "registered"
    ended = subprocess.run(
        [sys.executable, "-m", "tests.commands.registered", str(folder)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (folder / "seen").read_text().splitlines() == [
        "OpenAPI lists lift_quota",
        "admin: 202 lifted",
        "admin again: 202 there was none",
        "alice: 403 you have no role here that lets you create, change or delete departments and projects",
        "quota: None",
        "audit: admitted, admitted, refused",
    ]
