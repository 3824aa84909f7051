"""What is done to workloads: suspend, resume, delete, set. Each on several at once, each with its own result."""

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from muster.cli.command import Session, command
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.names import workload_for_change
from muster.cli.options import (
    IdempotencyOption,
    ProjectOption,
    TimeoutOption,
    WaitOption,
    WorkloadArgument,
    WorkloadsArgument,
    YesOption,
    confirm,
    duration_option,
    timeout_seconds,
)
from muster.cli.report import report
from muster.cli.values import Row
from muster.cli.watch import wait_for_phase


@dataclass(frozen=True, slots=True, kw_only=True)
class _Act:
    """One verb and how it was asked for."""

    verb: Literal["suspend", "resume", "delete"]
    there: frozenset[str]
    """Phases that --wait waits for."""
    wait: bool
    timeout: str | None
    key: str | None
    yes: bool = True
    """False: ask before it is done."""

    def on_each(self, session: Session, workloads: list[str], project: str | None) -> int:
        """Does it to each; the exit code is that of the first that failed."""
        if self.key and len(workloads) > 1:
            raise usage("--idempotency-key goes with one workload", todo="give one at a time")
        seconds = timeout_seconds(self.timeout, waits=self.wait)
        # Looked up once, before anybody is asked: what `@latest` means may change while a person thinks.
        found = [_named(session, workload, project, self.key) for workload in workloads]
        there = [one for one in found if isinstance(one, _Named)]
        if there:
            confirm(f"{self.verb} {', '.join(one.told for one in there)}?", yes=self.yes)
        codes = [self._on(session, one, seconds) if isinstance(one, _Named) else one for one in found]
        return next((code for code in codes if code), ExitCode.OK)

    def _on(self, session: Session, workload: "_Named", seconds: float | None) -> ExitCode:
        path = f"/workloads/trainings/{workload.identifier}"
        try:
            if self.verb == "delete":
                session.api.mutate("DELETE", path, idempotency_key=self.key)
            else:
                session.api.mutate("POST", f"{path}/{self.verb}", idempotency_key=self.key)
            session.out.talk(f"{self.verb} of {workload.told} accepted")
            if not self.wait:
                return ExitCode.OK
            return wait_for_phase(session.api, workload.identifier, session.out, self.there, timeout_seconds=seconds)
        except Problem as problem:
            return _failed(session, problem)


@dataclass(frozen=True, slots=True)
class _Named:
    identifier: str
    told: str


def _named(session: Session, given: str, project: str | None, key: str | None) -> _Named | ExitCode:
    try:
        return _Named(*workload_for_change(session, given, project, key))
    except Problem as problem:
        return _failed(session, problem)


def _failed(session: Session, problem: Problem) -> ExitCode:
    report(problem, session.out.stderr, debug=session.connection.debug)
    return problem.code


def add_acts(app: typer.Typer, noun: str) -> None:
    """Declares suspend, resume and delete."""
    _add_suspend(app, noun)
    _add_resume(app, noun)
    _add_delete(app, noun)


def _add_suspend(app: typer.Typer, noun: str) -> None:
    @command(
        app,
        "suspend",
        output=False,
        examples=f"""
        muster {noun} suspend hello
        muster {noun} suspend hello --wait --timeout 2m
        """,
    )
    def suspend(
        session: Session,
        workloads: WorkloadsArgument,
        *,
        project: ProjectOption = None,
        wait: WaitOption = False,
        timeout: TimeoutOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> int:
        """Stop a workload and release its resources. Its spec and its finished runs are kept."""
        act = _Act(verb="suspend", there=frozenset({"Stopped"}), wait=wait, timeout=timeout, key=idempotency_key)
        return act.on_each(session, workloads, project)


def _add_resume(app: typer.Typer, noun: str) -> None:
    @command(
        app,
        "resume",
        output=False,
        examples=f"""
        muster {noun} resume hello
        muster {noun} resume hello --wait
        """,
    )
    def resume(
        session: Session,
        workloads: WorkloadsArgument,
        *,
        project: ProjectOption = None,
        wait: WaitOption = False,
        timeout: TimeoutOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> int:
        """Run a suspended workload again."""
        there = frozenset({"Running", "Completed"})
        act = _Act(verb="resume", there=there, wait=wait, timeout=timeout, key=idempotency_key)
        return act.on_each(session, workloads, project)


def _add_delete(app: typer.Typer, noun: str) -> None:
    @command(
        app,
        "delete",
        output=False,
        examples=f"""
        muster {noun} delete hello
        muster {noun} delete hello other -y --wait
        """,
    )
    def delete(
        session: Session,
        workloads: WorkloadsArgument,
        *,
        project: ProjectOption = None,
        yes: YesOption = False,
        wait: WaitOption = False,
        timeout: TimeoutOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> int:
        """Delete a workload for good. Its record stays readable, and its name is free again."""
        gone = frozenset({"Deleted"})
        act = _Act(verb="delete", there=gone, wait=wait, timeout=timeout, key=idempotency_key, yes=yes)
        return act.on_each(session, workloads, project)


def add_set(app: typer.Typer) -> None:
    @command(
        app,
        "set",
        output=False,
        examples="""
        muster workload set hello --priority high
        muster workload set hello --auto-deletion-time-after-completion 2h
        """,
    )
    def set_(
        session: Session,
        workload: WorkloadArgument,
        *,
        project: ProjectOption = None,
        priority: Annotated[str | None, typer.Option("--priority", metavar="CLASS", help="New priority class.")] = None,
        auto_deletion_time_after_completion: Annotated[
            str | None,
            typer.Option(
                "--auto-deletion-time-after-completion",
                metavar="DURATION",
                help="Time from its end until it is deleted, such as 2h; 0 deletes it at once.",
            ),
        ] = None,
        if_match: Annotated[
            int | None,
            typer.Option(
                "--if-match", metavar="VERSION", help="Change it only if it still has this version; otherwise exit 5."
            ),
        ] = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Change the priority of a workload, or when it is deleted automatically."""
        changes: Row = {}
        if priority is not None:
            changes["priorityClass"] = priority
        if auto_deletion_time_after_completion is not None:
            flag = "--auto-deletion-time-after-completion"
            seconds = duration_option(flag, auto_deletion_time_after_completion)
            changes["autoDeletionTimeAfterCompletionSeconds"] = seconds
        if not changes:
            raise usage("nothing to set", todo="give --priority or --auto-deletion-time-after-completion")
        identifier, told = workload_for_change(session, workload, project, idempotency_key)
        path = f"/workloads/{identifier}"
        session.api.mutate("PATCH", path, changes, idempotency_key=idempotency_key, if_match=if_match)
        session.out.talk(f"change of {told} accepted")
