"""What is wrong with a request, field by field. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from events.nearest import did_you_mean

PolicyRule = Literal["min", "max", "step", "options", "required", "canEdit", "canAdd", "locked", "blocked"]

PATH_STEPS: Final = re.compile(r"\[(\d+)\]|(\w+)")
"""Of the path of a field: indexes and names."""
MAX_ISSUES: Final = 200
"""Told in one answer: more than a person reads, and a bound on what a hostile body makes us write."""
MAX_SHOWN_CHARACTERS: Final = 80
"""Of a value that is given back in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """One fault of a request."""

    field: str
    """JSON path, such as `spec.labels[0].name`."""
    details: str
    """What is wrong, what was given, what would do."""
    rule: PolicyRule | None = None
    involves: frozenset[str] = frozenset()
    """Fields that the rule looked at: where one of them is faulty itself, the rule says nothing."""


def fault(field: str, details: str, rule: PolicyRule | None = None, *beside: str) -> Issue:
    """What a rule finds, with the fields that it looked at beside this one."""
    return Issue(field=field, details=details, rule=rule, involves=frozenset({field, *beside}))


class BadValueError(Exception):
    """A text that is no value of what it is given for; the message says what would be."""

    def __init__(self, details: str, rule: PolicyRule | None = None) -> None:
        super().__init__(details)
        self.rule: PolicyRule | None = rule


def none_of(given: str, options: Iterable[str]) -> str:
    """Of a value that is none of the few that would do: which those are, and which was probably meant."""
    known = tuple(options)
    hint = did_you_mean(given, known)
    return f"{shown(given)} is none of {', '.join(known)}" + (f"; {hint}" if hint else "")


def shown(value: Any) -> str:
    """A given value for a message: short, on one line, and plain ASCII where it is no text of ours."""
    text = ascii(value) if isinstance(value, str) else str(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[:MAX_SHOWN_CHARACTERS] + "…"
