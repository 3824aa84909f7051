"""A Problem in words: what, why, and what to do next; on stderr, for people."""

from typing import TextIO

from muster.cli.exits import Problem
from muster.cli.values import printable


def report(problem: Problem, stderr: TextIO, *, debug: bool) -> None:
    """Writes the lines of a Problem. With `debug` also the request's id, which the server's log knows, too."""
    stderr.write(f"muster: {printable(problem.what)}\n")
    stderr.writelines(f"  {printable(line)}\n" for line in problem.why)
    if problem.todo:
        stderr.write(f"  → {printable(problem.todo)}\n")
    if debug and problem.request_id:
        stderr.write(f"  request id: {printable(problem.request_id)}\n")
