"""`resubmit` and `copy`: the same workload again, with what is to be otherwise."""

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from events.nearest import did_you_mean
from muster.cli.command import Session, command
from muster.cli.conditions import Condition, WaitForOption, awaited
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.names import check_new_name, find_cluster, workload_id
from muster.cli.options import (
    CodeOption,
    IdempotencyOption,
    ProjectOption,
    TimeoutOption,
    WorkloadArgument,
    timeout_seconds,
)
from muster.cli.output import plain_text
from muster.cli.spec_lines import as_typed
from muster.cli.submission import SUBMITTED_COLUMNS, request_of, send
from muster.cli.values import Json, Row, ValueProblem, row_of, set_field, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_TEXTS: Final = ("spec.command", "spec.args")
"""Fields without a flag of their own: the words after `--` are in one of them."""
_CODE: Final = "spec.code"
"""Holds a digest: `--code` sends the folder."""
_SEVERAL: Final = {
    "list": "A,B",
    "names": "A,B",
    "pairs": "NAME=VALUE, once for each",
    "values": "NAME=A,B or NAME=1..5, once for each",
    "items": "FIELD=VALUE,FIELD=VALUE, once for each",
}
"""How what may be given more than once is written, by the kind of its flag."""
_PARTS: Final = ("spec", "masterSpec")
"""Of a request: what its pods run."""


_SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Change a field; FIELD= with no value removes it."),
]
_WaitOption = Annotated[
    bool,
    typer.Option(
        "--wait", help="Wait until it ends; an inference, until it runs. Exit 0 if so, 8 if it failed, 7 on timeout."
    ),
]


def add_resubmit(app: typer.Typer, noun: str) -> None:
    """Declares resubmit and copy."""
    _add_resubmit(app, noun)
    _add_copy(app, noun)


def _add_resubmit(app: typer.Typer, noun: str) -> None:
    @command(
        app,
        "resubmit",
        examples=f"""
        muster {noun} resubmit hello --name hello-2
        muster {noun} resubmit hello --set spec.compute.gpuDevicesRequest=2 --set spec.args='train.py --lr 0.1'
        muster {noun} resubmit mine --name mine-2 --code .  # with what the folder holds now
        muster {noun} resubmit hello --wait --timeout 2h    # a deleted one has its name again
        """,
        columns=SUBMITTED_COLUMNS,
    )
    def resubmit(
        session: Session,
        workload: WorkloadArgument,
        *,
        project: ProjectOption = None,
        name: Annotated[
            str | None, typer.Option("--name", metavar="NAME", help="Name of the new workload. Default: the same name.")
        ] = None,
        changes: _SetOption = None,
        code: CodeOption = None,
        wait: _WaitOption = False,
        wait_for: WaitForOption = None,
        timeout: TimeoutOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> int | None:
        """Submit a workload again, with changes if you like. It may have failed or been deleted.

        A folder that was sent with it is used again as it was then. --code sends it anew.
        """
        condition = awaited(wait_for, wait=wait)
        again = _Again(
            noun=noun,
            verb="resubmit",
            name=name,
            changes=changes or [],
            code=code,
            condition=condition,
            timeout=timeout,
        )
        return again.submit(session, workload, project, idempotency_key)


def _add_copy(app: typer.Typer, noun: str) -> None:
    @command(
        app,
        "copy",
        examples=f"""
        muster {noun} copy hello --name hello-2
        muster {noun} copy hello --name wide --set spec.compute.gpuDevicesRequest=4
        """,
        columns=SUBMITTED_COLUMNS,
    )
    def copy(
        session: Session,
        workload: WorkloadArgument,
        *,
        name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the copy.")],
        project: ProjectOption = None,
        changes: _SetOption = None,
        code: CodeOption = None,
        wait: _WaitOption = False,
        wait_for: WaitForOption = None,
        timeout: TimeoutOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> int | None:
        """Submit a workload like this one under another name, with changes if you like."""
        condition = awaited(wait_for, wait=wait)
        again = _Again(
            noun=noun,
            verb="copy",
            name=name,
            changes=changes or [],
            code=code,
            condition=condition,
            timeout=timeout,
        )
        return again.submit(session, workload, project, idempotency_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Again:
    """A workload that is submitted like another, and how."""

    noun: str
    verb: Literal["resubmit", "copy"]
    name: str | None
    """None: the same name."""
    changes: list[str]
    code: str | None
    condition: Condition | None
    """What is waited for."""
    timeout: str | None

    def submit(self, session: Session, workload: str, project: str | None, key: str | None) -> int | None:
        """Raises Problem."""
        seconds = timeout_seconds(self.timeout, waits=self.condition is not None)
        if self.name is not None:
            check_new_name(self.name)
        found = session.api.get(f"/workloads/{workload_id(session, workload, project, deleted=True)}")
        kind, before = text_of(found, "type") or "Training", request_of(found)
        request: Row = json.loads(json.dumps(before))
        request["name"] = self.name or text_of(before, "name")
        set_changes(request, self.changes, kind)
        if self.code is not None:
            _send_anew(session, request, before, self.code)
        for told in difference(before, request):
            session.out.talk(told)
        try:
            return send(session, request, kind, idempotency_key=key, condition=self.condition, timeout_seconds=seconds)
        except Problem as problem:
            raise _name_taken(problem, [self.noun, self.verb], workload, text_of(request, "name")) from problem


def _send_anew(session: Session, request: Row, before: Row, folder: str) -> None:
    """The folder as it is now. The working directories of the one before are of no use then. Raises Problem."""
    from muster.cli.code import send_code

    for part in _PARTS:
        if row_of(request, part).get("workingDir") == row_of(before, part).get("workingDir"):
            _take_out(request, f"{part}.workingDir")
    cluster = find_cluster(session.api, text_of(request, "clusterId"))
    set_field(request, _CODE, send_code(session, request, cluster, folder, dry_run=False))


def set_changes(request: Row, changes: list[str], kind: str = "Training") -> None:
    """Writes each FIELD=VALUE into a request for a workload of this kind. Raises Problem (usage)."""
    from events.workload.kinds import KINDS
    from muster.cli.training_flags import flags_of, value_of

    flags = {flag.field: flag for flag in flags_of(KINDS[kind].creation)}
    given: dict[str, list[str]] = {}
    for change in changes:
        path, separator, text = change.partition("=")
        if not separator:
            raise usage(f"--set: {change!r} is not FIELD=VALUE", todo="as in --set spec.compute.gpuDevicesRequest=2")
        if path == _CODE:
            if text:
                raise usage(f"--set {path} cannot be given a value", todo="send a folder: --code FOLDER")
            _take_out(request, path)
            continue
        if path not in flags and path not in _TEXTS:
            known = sorted({*flags, *_TEXTS})
            by_end = [one for one in known if one.endswith(f".{path}")]
            hint = f"did you mean {by_end[0]!r}?" if by_end else did_you_mean(path, known)
            raise _no_field(path, kind, hint or f"fields: {', '.join(known)}")
        given.setdefault(path, []).append(text)
    for path, texts in given.items():
        several = path not in _TEXTS and flags[path].kind in _SEVERAL
        if len(texts) > 1 and (not several or not all(texts)):
            raise usage(f"--set {path} is given twice", todo="leave one of them out")
        if not texts[0]:
            _take_out(request, path)
            continue
        if several and any(text.startswith(("[", "{")) for text in texts):
            form = _SEVERAL[flags[path].kind]
            raise usage(f"--set {path} takes no JSON", todo=f"write --set {path}={form}")
        try:
            value: Json = texts[0] if path in _TEXTS else value_of(flags[path], texts)
        except ValueProblem as error:
            raise usage(f"--set {path}: {error}") from error
        set_field(request, path, value)


_MANY: Final = {
    "Training": "trainings",
    "Distributed": "distributed trainings",
    "Workspace": "workspaces",
    "Inference": "inferences",
}


def _no_field(path: str, kind: str, todo: str) -> Problem:
    """Of a path that no field of this kind has. Args: todo, where no other kind has it, either."""
    from events.workload.kinds import KINDS
    from muster.cli.training_flags import flags_of

    having = [one for one in KINDS if any(flag.field == path for flag in flags_of(KINDS[one].creation))]
    if not having:
        return usage(f"--set: there is no field {path!r}", todo=todo)
    others = " and ".join(_MANY[one] for one in having)
    other = "; `muster training pytorch submit` and its sisters take it" if having == ["Distributed"] else ""
    return usage(f"--set: {path!r} is a field of {others}, and this is of kind {kind}", todo=f"leave it out{other}")


def _take_out(request: Row, path: str) -> None:
    *parents, last = path.split(".")
    place = request
    for parent in parents:
        below = place.get(parent)
        if not isinstance(below, dict):
            return
        place = below
    place.pop(last, None)


def difference(before: Row, after: Row) -> list[str]:
    """`field: old → new` of each leaf that differs."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    return [
        f"{path}: {_shown(old.get(path))} → {_shown(new.get(path))}"
        for path in dict.fromkeys([*old, *new])
        if old.get(path) != new.get(path)
    ]


def _leaves(row: Row, prefix: str = "") -> "Iterator[tuple[str, Json]]":
    for key, value in row.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _shown(value: Json) -> str:
    if isinstance(value, list):
        pairs = [one for one in value if isinstance(one, dict) and one.keys() == {"name", "value"}]
        if len(pairs) == len(value):
            return ", ".join(f"{text_of(one, 'name')}={text_of(one, 'value')}" for one in pairs) or "none"
        items = [as_typed(one) for one in value if isinstance(one, dict)]
        if len(items) == len(value) and all(items):
            return " and ".join(items)
    return plain_text(value) or "none"


def _name_taken(problem: Problem, verb: list[str], workload: str, name: str) -> Problem:
    """The name is the first thing that stands in the way of doing something again."""
    if problem.code is not ExitCode.CONFLICT or problem.refusal != "name_taken":
        return problem
    line = shlex.join(["muster", *verb, workload, "--name", f"{name}-2"])
    return Problem(
        problem.what,
        why=problem.why,
        todo=f"give the new one another name: {line}",
        code=problem.code,
        request_id=problem.request_id,
        refusal=problem.refusal,
    )
