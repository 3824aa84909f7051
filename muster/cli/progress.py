"""Progress of long work on stderr: a bar where somebody watches, else a plain line now and then."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from muster.cli.output import Output
from muster.cli.values import format_span

LINE_EVERY_SECONDS: Final = 5.0
"""Of plain lines: a log of a job stays readable."""
BAR_AFTER_SECONDS: Final = 0.3
"""Quicker work needs no bar: it would only flicker."""

type Progress = Callable[[int, int], None]
"""Called with what is done and what there is to do."""


@contextmanager
def progress_bar(out: Output, what: str) -> Generator[Progress]:
    """Shows progress while the block runs."""
    if out.style.quiet:
        yield lambda _done, _total: None
    elif out.interactive:
        with _bar(out, what) as report:
            yield report
    else:
        yield _lines(out, what)


def _lines(out: Output, what: str) -> Progress:
    started = told = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= LINE_EVERY_SECONDS:
            told = now
            share = f" ({100 * done // total} %)" if total else ""
            rate = done / max(now - started, 0.001)
            left = f", {format_span((total - done) / rate)} left" if rate and total > done else ""
            out.talk(f"{what}: {done:,} of {total:,}{share}{left}")

    return report


@contextmanager
def _bar(out: Output, what: str) -> Generator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(file=out.stderr, no_color=not out.style.color or None)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Bar(*columns, console=console, transient=True)
    task = bar.add_task(what, total=None)
    started = time.monotonic()
    shown = False

    def report(done: int, total: int) -> None:
        nonlocal shown
        if not shown and time.monotonic() - started > BAR_AFTER_SECONDS:
            bar.start()
            shown = True
        bar.update(task, completed=done, total=total)

    try:
        yield report
    finally:
        bar.stop()
