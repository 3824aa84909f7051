"""Selectors of labels, in Kubernetes' grammar: parsed, and as conditions on the table of workloads. Runs no query.

`a=b`, `a==b`, `a!=b`, `a in (b, c)`, `a notin (b, c)`, `a`, `!a`; with commas between them all must hold. As in
Kubernetes `!=` and `notin` also hold where there is no such label.
"""

import re
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import ColumnElement, Select, Text, and_, any_, func, literal, not_, select
from sqlalchemy.dialects.postgresql import ARRAY

from events.labels import LABEL_KEY, LABEL_VALUE
from projections.tables import workloads

MOST_REQUIREMENTS: Final = 32
MOST_VALUES: Final = 100
"""Of one requirement."""
GRAMMAR: Final = "write KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B), KEY or !KEY, with commas between them"

_REQUIREMENT: Final = re.compile(
    r"""\s*(?:
        (?P<absent>!)\s*(?P<gone>[^\s,=!()]+)
      | (?P<key>[^\s,=!()]+)\s*(?:
            (?P<op>==|=|!=)\s*(?P<value>[^\s,=!()]*)
          | (?P<set>(?:not)?in)\s*\((?P<values>[^()=!]*)\)
        )?
    )\s*(?:,|\Z)""",
    re.VERBOSE,
)


class BadSelectorError(Exception):
    """A text is no selector; the message says what is wrong, and what would do."""


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    op: Literal["in", "notin", "exists", "absent"]
    values: tuple[str, ...] = ()
    """Of `in` and `notin`; an equality has one."""

    @property
    def terms(self) -> list[str]:
        """As the column `labels` has them."""
        return [f"{self.key}={value}" for value in self.values]


def parse_selector(text: str) -> tuple[Requirement, ...]:
    """Raises BadSelectorError."""
    found: list[Requirement] = []
    at = 0
    while at < len(text):
        match = _REQUIREMENT.match(text, at)
        if match is None:
            raise BadSelectorError(f"{text[at:][:80]!r} is no selector of labels; {GRAMMAR}")
        found.append(_checked(_requirement(match)))
        at = match.end()
    if text.rstrip().endswith(",") or not found:
        raise BadSelectorError(f"{text[-80:]!r} lacks a requirement; {GRAMMAR}")
    if len(found) > MOST_REQUIREMENTS:
        raise BadSelectorError(f"{len(found)} requirements are too many; give at most {MOST_REQUIREMENTS}")
    return tuple(found)


def _requirement(match: re.Match[str]) -> Requirement:
    if match["absent"]:
        return Requirement(key=match["gone"], op="absent")
    if match["set"]:
        values = tuple(value.strip() for value in match["values"].split(","))
        return Requirement(key=match["key"], op="in" if match["set"] == "in" else "notin", values=values)
    if match["op"]:
        return Requirement(key=match["key"], op="notin" if match["op"] == "!=" else "in", values=(match["value"],))
    return Requirement(key=match["key"], op="exists")


def _checked(given: Requirement) -> Requirement:
    if not LABEL_KEY.match(given.key):
        raise BadSelectorError(f"{given.key[:80]!r} is no key of a label; {GRAMMAR}")
    if len(given.values) > MOST_VALUES:
        raise BadSelectorError(f"{given.key}: {len(given.values)} values are too many; give at most {MOST_VALUES}")
    for value in given.values:
        if not LABEL_VALUE.match(value):
            raise BadSelectorError(
                f"{value[:80]!r} is no value of a label: at most 63 letters, digits, `-`, `_` and `.`, beginning and "
                "ending with a letter or digit"
            )
    return given


def selected(requirements: tuple[Requirement, ...], *, by_function: bool) -> ColumnElement[bool]:
    """All hold.

    Args:
        by_function: whether the asker may read some projects only. Postgres then looks at no row for a condition of
            ours before it knows that the row may be read, so the index would not be used: the function
            `muster.labelled` reads it, within the same projects (docs/adr/0055).
    """
    positive = [one for one in requirements if one.op in {"in", "exists"}]
    if not by_function or not positive:
        return and_(*map(_holds, requirements))
    negative = [_holds(one) for one in requirements if one not in positive]
    # As an array it is worked out once, and the primary key read by it, whatever Postgres knows of the table.
    return and_(workloads.c.id == any_(func.array(_found(positive).scalar_subquery())), *negative)


def _holds(one: Requirement) -> ColumnElement[bool]:
    match one.op:
        case "in":
            return workloads.c.labels.overlap(_texts(one.terms))
        case "notin":
            return not_(workloads.c.labels.overlap(_texts(one.terms)))
        case "exists":
            return workloads.c.label_keys.overlap(_texts([one.key]))
        case "absent":
            return not_(workloads.c.label_keys.overlap(_texts([one.key])))


def _texts(values: list[str]) -> ColumnElement[Any]:
    return literal(values, ARRAY(Text))


def _found(positive: list[Requirement]) -> Select[Any]:
    """Ids of the workloads for which all of these hold, by the index."""
    wanted = [{"keys": [one.key]} if one.op == "exists" else {"labels": one.terms} for one in positive]
    # Of functions in a schema `func` knows no better.
    return select(func.muster.labelled(msgspec.json.encode(wanted).decode()).column_valued("labelled"))
