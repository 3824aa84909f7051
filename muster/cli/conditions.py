"""What a workload can be waited for: `muster workload wait --for=…` and `submit --wait=…`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from events.nearest import did_you_mean
from events.phases import FINISHED, UNBUILT_PHASES, Phase
from muster.cli.exits import ExitCode, usage
from muster.cli.values import Row, text_of
from muster.cli.watch import ended, phase_of, wait_until

if TYPE_CHECKING:
    from muster.cli.client import Api
    from muster.cli.output import Output

type Reached = Callable[["Api", Row], ExitCode | None]
"""0 where it is reached, 8 where it can be reached no more, else None."""

COMPLETED: Final = "completed"
_ENDED: Final = "ended"
_STARTED: Final = "started"
_DELETED: Final = "deleted"
_PATH: Final = "jsonpath="
_NEVER_COMPLETES: Final = "Inference"
_PHASES: Final = {phase.lower(): phase.value for phase in Phase}
WORDS: Final = (_STARTED, _ENDED, _DELETED, *(phase.lower() for phase in Phase if phase not in UNBUILT_PHASES))
_OTHER_WORDS: Final = {"delete": _DELETED, "complete": COMPLETED, "succeeded": COMPLETED, "suspended": "stopped"}
"""As kubectl's and Run:ai's users say it."""


def conditions(incomplete: str) -> list[str]:
    """What a shell offers."""
    return [word for word in WORDS if word.startswith(incomplete.lower())]


WaitForOption = Annotated[
    str | None,
    typer.Option(
        "--wait-for",
        metavar="CONDITION",
        help="Also written --wait=CONDITION: wait for this instead, such as running, ended or deleted.",
        autocompletion=conditions,
    ),
]


@dataclass(frozen=True, slots=True)
class Condition:
    """What is waited for."""

    told: str
    reached: Reached


def condition_of(given: str, flag: str) -> Condition:
    """Raises Problem (usage)."""
    if given.startswith(_PATH):
        return _of_path(given, flag)
    word = given.lower().removeprefix("condition=")
    word = _OTHER_WORDS.get(word, word)
    known: dict[str, Reached] = {
        _STARTED: _started,
        _ENDED: _over,
        _DELETED: _deleted,
        COMPLETED: _completed,
    }
    if word in known:
        return Condition(word, known[word])
    if word in _PHASES and (phase := Phase(_PHASES[word])) in UNBUILT_PHASES:
        raise usage(f"{flag}: no workload enters {phase} yet", todo=f"conditions: {', '.join(WORDS)}")
    if word in _PHASES:
        return Condition(word, lambda _, row: _in_phase(row, _PHASES[word]))
    hint = did_you_mean(word, WORDS)
    raise usage(
        f"{flag}: there is no condition {given!r}",
        todo=hint or f"conditions: {', '.join(WORDS)}, or jsonpath='{{.phase}}'=Running",
    )


def awaited(given: str | None, *, wait: bool) -> Condition | None:
    """Of --wait-for and --wait; None where nothing is waited for. Raises Problem (usage)."""
    if given is not None:
        return condition_of(given, "--wait")
    return USUAL if wait else None


def wait_for(
    api: "Api", identifier: str, out: "Output", condition: Condition, *, timeout_seconds: float | None
) -> ExitCode:
    """Waits until it is so, and tells each step on stderr. 8 where it can be so no more; 7 on timeout."""
    return wait_until(api, identifier, out, lambda row: condition.reached(api, row), timeout_seconds=timeout_seconds)


def _usual(api: "Api", row: Row) -> ExitCode | None:
    """An inference serves until it is deleted: of one, that it runs is what a person waits for."""
    if text_of(row, "type") != _NEVER_COMPLETES:
        return ended(api, row)
    return ExitCode.WORKLOAD_FAILED if phase_of(row) == Phase.STOPPED else _in_phase(row, Phase.RUNNING)


USUAL: Final = Condition(COMPLETED, _usual)
"""What is waited for where nothing is said: completion, and of an inference that it runs."""


def _completed(api: "Api", row: Row) -> ExitCode | None:
    """Raises Problem (usage) of an inference, for which the wait would have no end."""
    if text_of(row, "type") == _NEVER_COMPLETES:
        raise usage(
            f"{text_of(row, 'name')} is an inference, which never completes",
            todo="wait for running, or for deleted",
        )
    return ended(api, row)


def _is_deleted(row: Row) -> bool:
    return bool(text_of(row, "deletedAt"))


def _started(_: "Api", row: Row) -> ExitCode | None:
    """Whether its pods have run: also where they have ended since."""
    if text_of(row, "startedAt"):
        return ExitCode.OK
    return ExitCode.WORKLOAD_FAILED if _is_deleted(row) or phase_of(row) in FINISHED else None


def _over(_: "Api", row: Row) -> ExitCode | None:
    return ExitCode.OK if _is_deleted(row) or phase_of(row) in FINISHED else None


def _deleted(_: "Api", row: Row) -> ExitCode | None:
    return ExitCode.OK if _is_deleted(row) else None


def _in_phase(row: Row, phase: str) -> ExitCode | None:
    """What is deleted is in no phase, and what has ended goes into no other but the last."""
    now = phase_of(row)
    if not _is_deleted(row) and now == phase:
        return ExitCode.OK
    astray = _is_deleted(row) or (now in FINISHED and phase != Phase.DELETING) or now == Phase.DELETING
    return ExitCode.WORKLOAD_FAILED if astray else None


def _of_path(given: str, flag: str) -> Condition:
    from muster.cli.jsonpath import TemplateError, parse_template

    text, separator, value = given.removeprefix(_PATH).rpartition("}=")
    if not separator:
        raise usage(f"{flag}: {given!r} compares nothing", todo=f"write {_PATH}'{{.phase}}'=Running")
    try:
        template = parse_template(text + "}")
    except TemplateError as error:
        raise usage(f"{flag}: jsonpath: {error}") from error

    def reached(_: "Api", row: Row) -> ExitCode | None:
        if template.text(row) == value:
            return ExitCode.OK
        return ExitCode.WORKLOAD_FAILED if _is_deleted(row) else None

    return Condition(given, reached)
