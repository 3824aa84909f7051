"""`muster doctor` and `muster version`: what is there, whether it works, and what to do where it does not."""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Final, Literal

import typer

from muster.cli.command import Session, command
from muster.cli.contexts import config_file
from muster.cli.exits import ExitCode, Problem
from muster.cli.names import project_names
from muster.cli.output import Column, plain_text
from muster.cli.values import Json, Row, format_span, number_of, row_of, rows_of, text_of

API_VERSION: Final = "1"
"""What this client speaks: `info.version` of the served OpenAPI document."""
PYTHON_WANTED: Final = (3, 12)
SKEW_SECONDS: Final = 5.0
"""Tokens are checked against the server's clock with a little leeway; Date headers have whole seconds."""
LAG_COMMITS: Final = 1000
"""More than a busy second writes: further behind, lists are noticeably old."""
REPAIR: Final = "docs/concepts/operating.md says what to do, by reason"
HEALTH_SECONDS: Final = 2.0
DISK_BYTES: Final = 2 * 1024**3
DISK_SHARE: Final = 0.1
"""At a tenth left, the log refuses creations (architecture.md section 3)."""

Verdict = Literal["ok", "warning", "problem"]

_MARK: Final[dict[Verdict, str]] = {"ok": "✓", "warning": "!", "problem": "✗"}
_COLUMNS: Final = (
    Column("CHECK", "check"),
    Column("VERDICT", "verdict"),
    Column("FOUND", "found"),
    Column("DO", "todo"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    verdict: Verdict
    found: str
    todo: str = ""
    """What to do; empty where all is well."""

    def row(self) -> Row:
        return {"check": self.check, "verdict": self.verdict, "found": self.found, "todo": self.todo}


def add_doctor(root: typer.Typer) -> None:
    @command(root, "doctor", examples="muster doctor\nmuster doctor -o json")
    def doctor(session: Session) -> int:
        """Check this installation, the server, your token, clusters, projections and the disk. Exit 1 on a problem."""
        findings = list(examine(session))
        session.out.one(
            {"findings": [dict(finding.row()) for finding in findings]},
            lambda: session.out.write("".join(_line(finding) for finding in findings)),
            columns=_COLUMNS,
        )
        return ExitCode.FAILURE if any(finding.verdict == "problem" for finding in findings) else ExitCode.OK


def add_version(root: typer.Typer) -> None:
    @command(root, "version", examples="muster version\nmuster version -o json")
    def version(session: Session) -> None:
        """Print the version of this program, and of the API if a server answers."""
        row: Row = {"client": client_version(), "api": _api_version(session) if session.target.url else None}
        session.out.one(row, lambda: session.out.pairs([(key, plain_text(value)) for key, value in row.items()]))


def client_version() -> str:
    from importlib.metadata import version

    return version("muster")


def examine(session: Session) -> Iterator[Finding]:
    """Every check that makes sense after the ones before it."""
    yield _program()
    yield _context(session)
    if session.target.data_dir:
        yield _disk(Path(session.target.data_dir))
        yield _services(Path(session.target.data_dir))
    if not session.target.url:
        return
    asked = datetime.now(UTC)
    try:
        answer = session.api.plain("/openapi.json")
    except Problem as problem:
        yield Finding(check="server", verdict="problem", found=_told(problem), todo=problem.todo or "")
        return
    yield _versions(text_of(row_of(answer.body, "info"), "version"), session.target.url)
    yield clock_finding(answer.date, asked, datetime.now(UTC))
    yield _log(session)
    allowed = _token(session)
    yield allowed
    if allowed.verdict == "problem":
        return
    for check, examined in (("clusters", _clusters), ("projections", _projections), ("streams", _streams)):
        yield _asked(check, session, examined)


def _program() -> Finding:
    found = f"muster {client_version()}, Python {'.'.join(map(str, sys.version_info[:3]))}"
    if sys.version_info[:2] < PYTHON_WANTED:
        return Finding(check="program", verdict="problem", found=found, todo="install Python 3.12 or later")
    return Finding(check="program", verdict="ok", found=found)


def _context(session: Session) -> Finding:
    path = config_file(os.environ)
    name = session.target.name or "environment and flags"
    if path.exists() and path.stat().st_mode & 0o077:
        found = f"{path} can be read by others, and holds tokens"
        return Finding(check="context", verdict="warning", found=found, todo=f"chmod 600 {quote(str(path))}")
    if not session.target.url:
        todo = "start one with `muster up`, or set one with `muster context add NAME --url URL`"
        return Finding(check="context", verdict="problem", found="no server is set", todo=todo)
    project = f", project {session.target.project}" if session.target.project else ""
    return Finding(check="context", verdict="ok", found=f"{name}: {session.target.url}{project}")


def _disk(folder: Path) -> Finding:
    import shutil

    from events.quantities import format_bytes

    if not folder.exists():
        todo = "`muster up` makes it; or correct MUSTER_DATA_DIR, or the context"
        return Finding(check="disk", verdict="warning", found=f"{folder} is not there", todo=todo)
    usage = shutil.disk_usage(folder)
    found = f"{format_bytes(usage.free)} of {format_bytes(usage.total)} free for {folder}"
    if usage.free < DISK_BYTES or usage.free < usage.total * DISK_SHARE:
        todo = "make room: a log that cannot be written refuses everything"
        return Finding(check="disk", verdict="problem", found=found, todo=todo)
    return Finding(check="disk", verdict="ok", found=found)


def _services(folder: Path) -> Finding:
    """What each service of the `muster up` with this data folder says of itself."""
    import json
    from http.client import HTTPConnection, HTTPException

    from muster.embedded.datadir import DataDir, DataDirError

    told: dict[str, str] = {}
    try:
        ports = DataDir(root=folder).ports()
        for process, port in (("control", ports.control_health), ("workers", ports.workers_health)):
            connection = HTTPConnection("127.0.0.1", port, timeout=HEALTH_SECONDS)
            try:
                connection.request("GET", "/readyz")
                said: dict[str, dict[str, str]] = json.loads(connection.getresponse().read())
                told |= said["waiting"] | said["alarms"]
            except (OSError, HTTPException, ValueError, KeyError, TypeError):
                told[process] = f"does not answer on port {port}"
            finally:
                connection.close()
    except DataDirError as error:
        told["muster up"] = str(error)
    if not told:
        return Finding(check="services", verdict="ok", found="all serve")
    found = "; ".join(f"{name}: {plain_text(what)}" for name, what in told.items())
    return Finding(check="services", verdict="problem", found=found, todo=f"{REPAIR}; logs are in {folder / 'logs'}")


def _versions(served: str, url: str) -> Finding:
    if served and served.split(".", maxsplit=1)[0] != API_VERSION:
        todo = "install the version of this program that belongs to the server"
        found = f"{url} speaks version {served} of the API, this program {API_VERSION}"
        return Finding(check="server", verdict="warning", found=found, todo=todo)
    return Finding(check="server", verdict="ok", found=f"{url} answers")


def clock_finding(date: str | None, asked: datetime, answered: datetime) -> Finding:
    """Whether the clocks agree. The server told its time at some moment from the question to the answer, and a busy
    one takes long.
    """
    from email.utils import parsedate_to_datetime

    try:
        told = parsedate_to_datetime(date or "")
    except ValueError:
        return Finding(check="clock", verdict="ok", found="the server tells no time")
    skew = max((asked - told).total_seconds(), (told - answered).total_seconds())
    if skew > SKEW_SECONDS:
        found = f"this clock and the server's differ by {format_span(skew)}"
        return Finding(
            check="clock",
            verdict="problem",
            found=found,
            todo="synchronize the clocks with NTP; wrong clocks make tokens expire",
        )
    return Finding(check="clock", verdict="ok", found="agrees with the server's")


def _log(session: Session) -> Finding:
    """Whether the API can read all of the log that it needs."""
    try:
        alarms = row_of(session.api.plain("/readyz").body, "alarms")
    except Problem as problem:
        return Finding(check="log", verdict="problem", found=_told(problem), todo=problem.todo or "")
    if alarms:
        found = "; ".join(f"{name}: {plain_text(alarm)}" for name, alarm in alarms.items())
        return Finding(check="log", verdict="problem", found=found, todo=REPAIR)
    return Finding(check="log", verdict="ok", found="read by the API to its end")


def _token(session: Session) -> Finding:
    if not (session.target.token or session.target.in_keyring):
        todo = "set MUSTER_TOKEN, or `muster login`"
        return Finding(check="token", verdict="problem", found="none", todo=todo)
    try:
        me = session.api.get("/me")
    except Problem as problem:
        return Finding(check="token", verdict="problem", found=_told(problem), todo=problem.todo or "")
    held = [f"{role} everywhere" for role in _texts(me.get("tenantRoles"))]
    names = _project_names(session)
    for project, roles in row_of(me, "projectRoles").items():
        held += [f"{role} in {names.get(project, project)}" for role in _texts(roles)]
    if not held:
        todo = f"muster token create --user {quote(text_of(me, 'subject'))} --role researcher"
        return Finding(check="token", verdict="warning", found=f"{text_of(me, 'subject')} has no role", todo=todo)
    return Finding(check="token", verdict="ok", found=f"{text_of(me, 'subject')}: {', '.join(held)}")


def _project_names(session: Session) -> dict[str, str]:
    try:
        return project_names(session.api)
    except Problem:
        return {}


def _clusters(session: Session) -> Finding:
    rows = rows_of(session.api.get("/clusters"), "clusters")
    if not rows:
        todo = "muster cluster add demo --simulated 4x8"
        return Finding(check="clusters", verdict="warning", found="there is none", todo=todo)
    away = [text_of(row, "name") for row in rows if text_of(row, "status") != "Connected"]
    if away:
        found = f"not connected: {', '.join(away)}"
        todo = "look whether the agent runs, and at its log; nothing new is placed there until it does"
        return Finding(check="clusters", verdict="problem", found=found, todo=todo)
    if refusing := [text_of(row, "name") for row in rows if rows_of(row, "refusedReports")]:
        found = f"not all that its agent says is taken: {', '.join(refusing)}"
        todo = f"muster cluster describe {quote(refusing[0])}"
        return Finding(check="clusters", verdict="warning", found=found, todo=todo)
    return Finding(check="clusters", verdict="ok", found=f"{len(rows)} connected")


def _projections(session: Session) -> Finding:
    status = session.api.get("/projections")
    lag = int(number_of(status, "lag"))
    if status.get("halted"):
        found = f"halted at {plain_text(status.get('sequence'))}: {plain_text(status.get('halted'))}"
        return Finding(check="projections", verdict="problem", found=found, todo=REPAIR)
    if lag > LAG_COMMITS:
        todo = "look whether the projector runs, and at its log"
        return Finding(check="projections", verdict="problem", found=f"{lag} commits behind the log", todo=todo)
    return Finding(
        check="projections", verdict="ok", found=f"at {plain_text(status.get('sequence'))}, {lag} behind the log"
    )


def _streams(session: Session) -> Finding:
    rows = rows_of(session.api.get("/streams"), "streams")
    full = [f"{text_of(row, 'name')} {number_of(row, 'fullness'):.0%}" for row in rows if row.get("nearlyFull")]
    if full:
        found = f"nearly full: {', '.join(full)}"
        todo = "of EVENTS raise MUSTER_LOG_MAX_BYTES; of others see docs/concepts/operating.md"
        return Finding(check="streams", verdict="problem", found=found, todo=todo)
    fullest = max((number_of(row, "fullness") for row in rows), default=0.0)
    return Finding(check="streams", verdict="ok", found=f"the fullest of {len(rows)} uses {fullest:.0%} of its limit")


def _asked(check: str, session: Session, examined: Callable[[Session], Finding]) -> Finding:
    """What is not ours to ask is no problem."""
    try:
        return examined(session)
    except Problem as problem:
        if problem.code is ExitCode.DENIED:
            return Finding(check=check, verdict="ok", found="not yours to see")
        return Finding(check=check, verdict="problem", found=_told(problem), todo=problem.todo or "")


def _told(problem: Problem) -> str:
    return "; ".join((problem.what, *problem.why))


def _texts(value: Json) -> list[str]:
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []


def _line(finding: Finding) -> str:
    advice = f"\n    → {finding.todo}" if finding.todo else ""
    return f"{_MARK[finding.verdict]} {finding.check}: {finding.found}{advice}\n"


def _api_version(session: Session) -> str | None:
    try:
        return text_of(row_of(session.api.plain("/openapi.json").body, "info"), "version") or None
    except Problem as problem:
        session.out.talk(f"the API does not say its version: {_told(problem)}")
        return None
