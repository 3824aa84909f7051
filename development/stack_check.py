"""The checker over a running stack: its log, every answer it gave, its tables, WANTED, and what its pods did."""

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path

from development.checker.calls import check_calls
from development.checker.effects import check_effects, read_lines
from development.checker.log import LogChecker, Report, check_log
from development.checker.reading import Tables, read_log, tables_at
from development.checker.records import RawMessage
from development.checker.tables import check_tables
from development.checker.wanted import check_wanted
from development.recording import History
from development.stack import Stack
from muster.cli.operator_settings import operator_settings
from services.runtime.log.latest import read_latest
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from services.runtime.process.settings import Settings

SHOWN = 800
"""Characters of one violation."""


def check_stack(stack: Stack, acknowledged: Mapping[str, str], *, complete: bool = False) -> Report:
    """Assert that nothing in the log, in the answers or in the tables is wrong.

    Args:
        stack: It may be working.
        acknowledged: Workload id of every 202, by name.
        complete: Nobody but the stack's own clients commanded workloads.
    """
    settings = operator_settings(stack.data_dir)
    log, wrong = asyncio.run(_check(settings, "operator", stack.history, complete=complete))
    return _judge(log, wrong, acknowledged)


def check_at_rest(stack: Stack, acknowledged: Mapping[str, str], effects: Path, real: Collection[str]) -> Report:
    """The same where everything has ended: nothing is held, wanted or left, and pods did what the log says, once.

    Args:
        stack: It has nothing to do any more.
        acknowledged: Workload id of every 202, by name.
        effects: File with the lines of pods.
        real: Ids of the workloads whose pods write there.
    """
    settings = operator_settings(stack.data_dir)
    log, wrong = asyncio.run(_check(settings, "operator", stack.history, complete=True))
    wrong += asyncio.run(wanted_of(settings, log))
    wrong += check_effects(read_lines(effects), log, set(real))
    report = log.report
    wrong += [f"over: {name} {id_} never ended" for name, id_ in acknowledged.items() if id_ not in report.over]
    if report.left_reserved or report.left_live:
        wrong.append(f"left: {report.left_reserved} reservations and {report.left_live} live pods")
    return _judge(log, wrong, acknowledged)


def _judge(log: LogChecker, wrong: list[str], acknowledged: Mapping[str, str]) -> Report:
    log.acknowledged(acknowledged)
    wrong = [*log.report.violations, *wrong]
    assert wrong == [], f"{len(wrong)} violations:\n" + "\n".join(text[:SHOWN] for text in wrong[:20])
    return log.report


async def _check(settings: Settings, user: str, history: History, *, complete: bool) -> tuple[LogChecker, list[str]]:
    # First what people were told: what is read of the log after that must hold all of it.
    calls, setbacks = history.calls(), list(history.setbacks)
    messages, tables = await read_both(settings, user)
    log = check_log(messages)
    return log, [*check_calls(calls, log, complete=complete, setbacks=setbacks), *check_rows(messages, tables, log)]


async def read_both(settings: Settings, user: str) -> tuple[list[RawMessage], Tables]:
    """The log, and tables of a place in it."""
    nc = await connect(settings, user)
    try:
        messages = await read_log(nc)
        tables = await tables_at(settings.postgres_url or "", len(messages))
        return (await read_log(nc) if tables.seq > len(messages) else messages), tables
    finally:
        await nc.close()


def check_rows(messages: list[RawMessage], tables: Tables, log: LogChecker) -> list[str]:
    """The tables against the log up to their own place."""
    return check_tables(tables, log if tables.seq == log.seq else check_log(messages[: tables.seq]))


async def wanted_of(settings: Settings, log: LogChecker, user: str = "cluster_sync") -> list[str]:
    """WANTED against what the log wants."""
    nc = await connect(settings, user, suffix="check")
    try:
        found = await read_latest(nc, Requests(nc), "WANTED", "want.>")
    finally:
        await nc.close()
    return check_wanted([RawMessage(0, subject, payload) for subject, payload in found.items()], log)
