"""What is done to workloads: suspend, resume, delete, transfer, set. Most on several, each with its own result."""

from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal

import typer

from muster.cli.command import Session, command
from muster.cli.exits import ExitCode, Problem, exit_code_of, usage
from muster.cli.names import default_project, workload_filters, workload_for_change, workload_told
from muster.cli.options import (
    AllOption,
    DryRunOption,
    FilterOption,
    IdempotencyOption,
    ProjectOption,
    SearchOption,
    SelectorOption,
    SomeWorkloadsArgument,
    StatusOption,
    TimeoutOption,
    WaitOption,
    WorkloadArgument,
    YesOption,
    confirm,
    duration_option,
    phase_filters,
    timeout_seconds,
)
from muster.cli.output import Column, Format
from muster.cli.report import report
from muster.cli.unmoved import again_where_moved
from muster.cli.values import Json, Row, number_of, row_of, rows_of, text_of
from muster.cli.watch import wait_for_phase


@dataclass(frozen=True, slots=True, kw_only=True)
class _Act:
    """One verb and how it was asked for."""

    verb: Literal["suspend", "resume", "delete", "transfer"]
    there: frozenset[str] = frozenset()
    """Phases that --wait waits for."""
    wait: bool = False
    timeout: str | None = None
    key: str | None
    yes: bool = True
    """False: ask before it is done."""
    owner: str | None = None
    """To whom they are transferred."""

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
                of_kind = f"/workloads/{workload.identifier}" if self.owner else path
                body: Row | None = {"owner": self.owner} if self.owner else None
                session.api.mutate("POST", f"{of_kind}/{self.verb}", body, idempotency_key=self.key)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Workloads that are chosen by what they are, and not by name."""

    all: bool
    status: str | None
    conditions: list[str] | None
    selector: str | None
    search: str | None
    dry_run: bool
    kind: str | None
    """Of the noun: `muster training` acts on trainings only."""
    framework: str
    """Likewise; empty: any."""

    @property
    def given(self) -> bool:
        return self.all or any((self.status, self.conditions, self.selector, self.search))


_LEFT_OUT: Final = {
    "delete": ("Deleting",),
    "suspend": ("Stopped", "Stopping", "Completed", "Failed", "Deleting"),
    "resume": (
        "Creating",
        "Pending",
        "Initializing",
        "Running",
        "Degraded",
        "Resuming",
        "Completed",
        "Failed",
        "Deleting",
    ),
    "transfer": ("Deleting",),
    "undo": (),
}
"""Phases of which there is nothing to do, or nothing can be done, where no phase is asked for."""
_AT_ONCE: Final = 100
"""Ids of one request."""
ACT_COLUMNS: Final = (
    Column("NAME", "name"),
    Column("RESULT", "result"),
    Column("ID", "id", wide=True),
    Column("WHY", "why", rest=True, wraps=True),
)


def _on(act: _Act, session: Session, workloads: list[str] | None, project: str | None, chosen: Chosen) -> int:
    """Does it to those that are named, or to those that are chosen. Raises Problem."""
    if chosen.given and workloads:
        raise usage("name workloads, or choose them with --all and filters", todo="leave one of them out")
    if not chosen.given and not workloads:
        raise usage(
            f"which workloads to {act.verb}?",
            todo="name them, or choose them with --all, --status, --filter, -l, --search",
        )
    if not (chosen.given or chosen.dry_run or session.out.style.format is not Format.TABLE):
        return act.on_each(session, workloads or [], project)
    if act.wait or act.key:
        flag = "--wait" if act.wait else "--idempotency-key"
        raise usage(f"{flag} goes with workloads that are named, without -o and --dry-run", todo="leave it out")
    if chosen.given:
        rows = chosen_rows(session, act.verb, project, chosen)
    else:
        named = [workload_told(session, one, project) for one in workloads or []]
        rows: list[Row] = [{"id": identifier, "name": told} for identifier, told in named]
    if not rows:
        session.out.talk("no such workloads; nothing was done")
        return ExitCode.OK
    if not chosen.dry_run:
        count = f"{len(rows)} workload" + ("" if len(rows) == 1 else "s")
        shown = ", ".join(text_of(row, "name") for row in rows[:_SHOWN])
        more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
        confirm(f"{act.verb} {count}: {shown}{more}?", yes=act.yes)
    return _on_all(session, act, rows, dry_run=chosen.dry_run)


_SHOWN: Final = 5
"""Names in a question."""


def chosen_rows(session: Session, verb: str, project: str | None, chosen: Chosen) -> list[Row]:
    """Raises Problem: of which project must be clear, so that --all is never more than somebody means."""
    where = default_project(session, project)
    parameters = workload_filters(text_of(where, "id"))
    parameters += [("filterBy", f"type=={chosen.kind}")] if chosen.kind else []
    parameters += [("filterBy", f"distributedFramework=={chosen.framework}")] if chosen.framework else []
    if chosen.status:
        parameters += phase_filters(chosen.status)
    else:
        parameters += [("filterBy", f"phase!={phase}") for phase in _LEFT_OUT[verb]]
    parameters += [("filterBy", condition) for condition in chosen.conditions or ()]
    parameters += [("labelSelector", chosen.selector)] if chosen.selector else []
    parameters += [("search", chosen.search)] if chosen.search else []
    # By what never changes, so that no page misses one.
    parameters += [("sortBy", "createdAt"), ("sortOrder", "asc")]
    return session.api.pages("/workloads", "workloads", parameters)[0]


def _on_all(session: Session, act: _Act, rows: list[Row], *, dry_run: bool) -> int:
    """Each with its own result; the exit code is that of the first that was refused."""
    results: list[Row] = []
    code = ExitCode.OK
    for start in range(0, len(rows), _AT_ONCE):
        part = rows[start : start + _AT_ONCE]
        body: Row = {"action": act.verb, "ids": [text_of(row, "id") for row in part]}
        if act.owner:
            body["owner"] = act.owner
        if dry_run:
            body["dryRun"] = True
        try:
            answer = session.api.mutate("POST", "/workloads/batch", body).body
        except Problem as problem:
            raise _cut_short(session, problem, results, rows) from problem
        for row, outcome in zip(part, rows_of(answer, "items"), strict=True):
            status = int(number_of(outcome, "code"))
            accepted = status == _ACCEPTED
            result = (_WOULD if dry_run else _DONE)[act.verb] if outcome.get("changed") else "unchanged"
            results.append(
                {
                    "name": text_of(row, "name"),
                    "result": result if accepted else "refused",
                    "id": text_of(row, "id"),
                    "why": None if accepted else text_of(outcome, "message"),
                }
            )
            if not accepted:
                code = code or exit_code_of(status)
    session.out.rows(results, ACT_COLUMNS)
    if dry_run:
        session.out.talk("dry run: nothing was done")
    return code


def _cut_short(session: Session, problem: Problem, results: list[Row], rows: list[Row]) -> Problem:
    """Shows what is known where an answer is missing: a part before it was carried out."""
    if not results:
        return problem
    tried = len(results) + _AT_ONCE
    for number, row in enumerate(rows[len(results) :], start=len(results)):
        result = "unknown" if number < tried else "not asked"
        results.append({"name": text_of(row, "name"), "result": result, "id": text_of(row, "id"), "why": None})
    session.out.rows(results, ACT_COLUMNS)
    return Problem(
        problem.what,
        why=problem.why,
        todo="the same command again does what is left",
        code=problem.code,
        request_id=problem.request_id,
        refusal=problem.refusal,
    )


_ACCEPTED: Final = 202
_DONE: Final = {"delete": "deleting", "suspend": "suspending", "resume": "resuming", "transfer": "transferred"}
_WOULD: Final = {verb: f"would {verb}" for verb in _DONE}


def add_acts(app: typer.Typer, noun: str, *, kind: str | None = None, framework: str = "") -> None:
    """Declares suspend, resume, delete and transfer; `kind` keeps what they choose to one kind of workload, `framework`
    to one of distributed trainings.
    """
    _add_suspend(app, noun, kind, framework)
    _add_resume(app, noun, kind, framework)
    _add_delete(app, noun, kind, framework)
    _add_transfer(app, noun, kind, framework)


def _add_suspend(app: typer.Typer, noun: str, kind: str | None, framework: str) -> None:
    @command(
        app,
        "suspend",
        examples=f"""
        muster {noun} suspend hello
        muster {noun} suspend hello --wait --timeout 2m
        muster {noun} suspend --all -p vision --dry-run
        """,
        columns=ACT_COLUMNS,
    )
    def suspend(
        session: Session,
        workloads: SomeWorkloadsArgument = None,
        *,
        project: ProjectOption = None,
        everything: AllOption = False,
        status: StatusOption = None,
        conditions: FilterOption = None,
        selector: SelectorOption = None,
        search: SearchOption = None,
        dry_run: DryRunOption = False,
        yes: YesOption = False,
        wait: WaitOption = False,
        timeout: TimeoutOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> int:
        """Stop workloads and release their resources. Their specs and their finished runs are kept."""
        there = frozenset({"Stopped"})
        named = _Act(verb="suspend", there=there, wait=wait, timeout=timeout, key=idempotency_key)
        chosen = Chosen(
            all=everything,
            status=status,
            conditions=conditions,
            selector=selector,
            search=search,
            dry_run=dry_run,
            kind=kind,
            framework=framework,
        )
        return _on(replace(named, yes=yes) if chosen.given else named, session, workloads, project, chosen)


def _add_resume(app: typer.Typer, noun: str, kind: str | None, framework: str) -> None:
    @command(
        app,
        "resume",
        examples=f"""
        muster {noun} resume hello
        muster {noun} resume hello --wait
        muster {noun} resume -l team=vision
        """,
        columns=ACT_COLUMNS,
    )
    def resume(
        session: Session,
        workloads: SomeWorkloadsArgument = None,
        *,
        project: ProjectOption = None,
        everything: AllOption = False,
        status: StatusOption = None,
        conditions: FilterOption = None,
        selector: SelectorOption = None,
        search: SearchOption = None,
        dry_run: DryRunOption = False,
        yes: YesOption = False,
        wait: WaitOption = False,
        timeout: TimeoutOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> int:
        """Run suspended workloads again."""
        there = frozenset({"Running", "Degraded", "Completed"})
        named = _Act(verb="resume", there=there, wait=wait, timeout=timeout, key=idempotency_key)
        chosen = Chosen(
            all=everything,
            status=status,
            conditions=conditions,
            selector=selector,
            search=search,
            dry_run=dry_run,
            kind=kind,
            framework=framework,
        )
        return _on(replace(named, yes=yes) if chosen.given else named, session, workloads, project, chosen)


def _add_delete(app: typer.Typer, noun: str, kind: str | None, framework: str) -> None:
    @command(
        app,
        "delete",
        examples=f"""
        muster {noun} delete hello
        muster {noun} delete hello other -y --wait
        muster {noun} delete --status Failed -p vision
        """,
        columns=ACT_COLUMNS,
    )
    def delete(
        session: Session,
        workloads: SomeWorkloadsArgument = None,
        *,
        project: ProjectOption = None,
        everything: AllOption = False,
        status: StatusOption = None,
        conditions: FilterOption = None,
        selector: SelectorOption = None,
        search: SearchOption = None,
        dry_run: DryRunOption = False,
        yes: YesOption = False,
        wait: WaitOption = False,
        timeout: TimeoutOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> int:
        """Delete workloads for good. Their records stay readable, and their names are free again."""
        gone = frozenset({"Deleted"})
        act = _Act(verb="delete", there=gone, wait=wait, timeout=timeout, key=idempotency_key, yes=yes)
        chosen = Chosen(
            all=everything,
            status=status,
            conditions=conditions,
            selector=selector,
            search=search,
            dry_run=dry_run,
            kind=kind,
            framework=framework,
        )
        return _on(act, session, workloads, project, chosen)


def _add_transfer(app: typer.Typer, noun: str, kind: str | None, framework: str) -> None:
    @command(
        app,
        "transfer",
        examples=f"""
        muster {noun} transfer hello --to bob
        muster {noun} transfer --filter submittedBy==ann -p vision --to bob --dry-run
        """,
        columns=ACT_COLUMNS,
    )
    def transfer(
        session: Session,
        workloads: SomeWorkloadsArgument = None,
        *,
        to: Annotated[
            str, typer.Option("--to", metavar="USER", help="Who is to own them: may submit in their project.")
        ],
        project: ProjectOption = None,
        everything: AllOption = False,
        status: StatusOption = None,
        conditions: FilterOption = None,
        selector: SelectorOption = None,
        search: SearchOption = None,
        dry_run: DryRunOption = False,
        yes: YesOption = False,
        idempotency_key: IdempotencyOption = None,
    ) -> int:
        """Give workloads to another owner. You must own them, or be an administrator."""
        if not to:
            raise usage("--to names nobody", todo="give the subject of the new owner's tokens: --to bob")
        act = _Act(verb="transfer", key=idempotency_key, yes=yes, owner=to)
        chosen = Chosen(
            all=everything,
            status=status,
            conditions=conditions,
            selector=selector,
            search=search,
            dry_run=dry_run,
            kind=kind,
            framework=framework,
        )
        return _on(act, session, workloads, project, chosen)


MountPathOption = Annotated[
    list[str] | None,
    typer.Option(
        "--mount-path",
        metavar="PATH=PATH",
        help="Where runs that begin later find the claim or Secret that is at the first path. Repeatable.",
    ),
]
DefaultModeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--default-mode",
        metavar="PATH=MODE",
        help="Rights of the files of the Secret at this path, in four octal digits, likewise. Repeatable.",
    ),
]
MasterMountPathOption = Annotated[
    list[str] | None,
    typer.Option(
        "--master-mount-path",
        metavar="PATH=PATH",
        help="As --mount-path, in a master with volumes of its own. Repeatable.",
    ),
]
MasterDefaultModeOption = Annotated[
    list[str] | None,
    typer.Option("--master-default-mode", metavar="PATH=MODE", help="As --default-mode, in such a master. Repeatable."),
]


def add_set(app: typer.Typer) -> None:
    @command(
        app,
        "set",
        output=False,
        examples="""
        muster workload set hello --priority high
        muster workload set hello --auto-deletion-time-after-completion 2h
        muster workload set hello --mount-path /data=/sets --default-mode /etc/certificates=0400
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
        mount_path: MountPathOption = None,
        default_mode: DefaultModeOption = None,
        master_mount_path: MasterMountPathOption = None,
        master_default_mode: MasterDefaultModeOption = None,
        if_match: Annotated[
            int | None,
            typer.Option(
                "--if-match", metavar="VERSION", help="Change it only if it still has this version; otherwise exit 5."
            ),
        ] = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Change the priority of a workload, where it finds claims and Secrets, or when it is deleted automatically."""
        changes: Row = {}
        if priority is not None:
            changes["priorityClass"] = priority
        if auto_deletion_time_after_completion is not None:
            flag = "--auto-deletion-time-after-completion"
            seconds = duration_option(flag, auto_deletion_time_after_completion)
            changes["autoDeletionTimeAfterCompletionSeconds"] = seconds
        places = _pairs("--mount-path", mount_path), _pairs("--default-mode", default_mode)
        of_master = (
            _pairs("--master-mount-path", master_mount_path),
            _pairs("--master-default-mode", master_default_mode),
        )
        if not changes and not any((*places, *of_master)):
            raise usage("nothing to set", todo="give --priority, --mount-path or --auto-deletion-time-after-completion")
        identifier, told = workload_for_change(session, workload, project, idempotency_key)
        path = f"/workloads/{identifier}"
        if any((*places, *of_master)):
            found = session.api.read(path)
            if any(places):
                changes["storage"] = _mounts(row_of(row_of(found.body, "spec"), "storage"), *places)
            if any(of_master):
                own = row_of(row_of(found.body, "masterSpec"), "storage")
                changes["masterSpec"] = {"storage": _mounts(own, *of_master)}
            # Not over what somebody else sets meanwhile.
            if_match = if_match or found.version
        session.api.mutate("PATCH", path, changes, idempotency_key=idempotency_key, if_match=if_match)
        session.out.talk(f"change of {told} accepted")


def _pairs(flag: str, given: list[str] | None) -> dict[str, str]:
    """What is given for each path. Raises Problem (usage)."""
    found: dict[str, str] = {}
    for text in given or ():
        path, separator, value = text.partition("=")
        if not (separator and path.startswith("/") and value) or path in found:
            raise usage(f"{flag} {text!r} is no PATH=VALUE, or names a path twice", todo="as in /data=/sets")
        found[path] = value
    return found


def _mounts(storage: Row, paths: dict[str, str], modes: dict[str, str]) -> Row:
    """The change that these ask for. Where nothing is at a path, the API says what is where."""
    secrets = {text_of(one, "mountPath") for one in rows_of(storage, "secretVolume")}
    of_secrets = [path for path in {**paths, **modes} if path in secrets or path in modes]
    claims: list[Json] = [{"mountedAt": at, "path": to} for at, to in paths.items() if at not in of_secrets]
    files: list[Json] = [
        {
            "mountedAt": at,
            **({"mountPath": paths[at]} if at in paths else {}),
            **({"defaultMode": modes[at]} if at in modes else {}),
        }
        for at in of_secrets
    ]
    return {**({"pvc": claims} if claims else {}), **({"secretVolume": files} if files else {})}


def add_marks(app: typer.Typer) -> None:
    """Declares label and annotate."""
    for verb, field, example in (
        ("label", "labels", "team=vision stage-"),
        ("annotate", "annotations", "note='second try'"),
    ):
        _add_mark(app, verb, field, example)


def _add_mark(app: typer.Typer, verb: str, field: str, example: str) -> None:
    def mark(
        session: Session,
        workload: WorkloadArgument,
        marks: Annotated[
            list[str], typer.Argument(metavar="KEY=VALUE|KEY-...", help="What to set; KEY- takes it off.")
        ],
        *,
        project: ProjectOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        identifier, told = workload_for_change(session, workload, project, idempotency_key)
        path = f"/workloads/{identifier}"

        def change() -> None:
            found = session.api.read(path)
            before = {text_of(one, "name"): text_of(one, "value") for one in rows_of(row_of(found.body, "spec"), field)}
            after = _marked(before, marks)
            if after == before:
                session.out.talk(f"{told} has these {field} already")
                return
            changes: Row = {field: [{"name": name, "value": value} for name, value in after.items()]}
            # Not over what somebody else sets meanwhile.
            session.api.mutate("PATCH", path, changes, idempotency_key=idempotency_key, if_match=found.version)
            session.out.talk(f"change of {told} accepted")

        again_where_moved(change)

    mark.__name__ = verb
    mark.__doc__ = f"Set {field} of a workload, or take them off. Runs that begin later carry them."
    command(app, verb, output=False, examples=f"muster workload {verb} hello {example}")(mark)


def _marked(before: dict[str, str], marks: list[str]) -> dict[str, str]:
    """Raises Problem (usage)."""
    after = dict(before)
    for given in marks:
        name, separator, value = given.partition("=")
        if separator and name:
            after[name] = value
        elif given.endswith("-") and len(given) > 1:
            after.pop(given.removesuffix("-"), None)
        else:
            raise usage(f"{given!r} is neither KEY=VALUE nor KEY-", todo="as in team=vision, or team- to take it off")
    return after
