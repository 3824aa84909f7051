"""`muster explain-field`: what one field of a submission is, from its declaration. Asks no server."""

import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from events.nearest import did_you_mean
from muster.cli.command import Session, command
from muster.cli.exits import usage
from muster.cli.values import Json, Row, format_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from events.fields.node import Node
    from services.api.unbuilt import Default

_MANDATORY: Final = re.compile(r"Mandatory( within \w+)?\.")
"""In the help of what a rule asks for, once all that may set it is merged. Until then it may be null."""
_MOST_NAMED: Final = 12
"""Candidates in one sentence."""
_LARGEST: Final = 1e300
_OF_32_BITS: Final = (-(2**31), 2**31 - 1)
_INDEX: Final = re.compile(r"\[\d*\]")


@dataclass(slots=True, kw_only=True)
class _Known:
    """A field, as all kinds that have it declare it."""

    node: "Node"
    kinds: list[str] = field(default_factory=list[str])


def field_paths(incomplete: str) -> list[str]:
    """What a shell offers: paths, without `spec.`."""
    return [short for path in _fields() if (short := path.removeprefix("spec.")).startswith(incomplete)]


def add_explain_field(root: typer.Typer) -> None:
    """Declares `muster explain-field`."""

    @command(
        root,
        "explain-field",
        examples="""
        muster explain-field compute.gpuPortionRequest
        muster explain-field environmentVariables.name
        muster explain-field gpu-portion-request             # the field of a flag
        muster explain-field storage                         # the fields below it
        muster explain-field restartPolicy -o jsonpath='{.options}'
        """,
    )
    def explain_field(
        session: Session,
        path: Annotated[
            str,
            typer.Argument(
                metavar="FIELD",
                help="Path of a field, its last words, or its flag without dashes.",
                autocompletion=field_paths,
            ),
        ],
    ) -> None:
        """Show what a field of a submission is: type, bounds, default, flag, example, and which kinds have it.

        It is read from this program, and asks no server: `submit --dry-run=server` shows what policies say of it.
        """
        row = explained(path)
        session.out.one(row, lambda: _show(session, row), name="field")


def explained(path: str) -> Row:
    """Everything of the field that is meant. Raises Problem (usage)."""
    return _explained(*_found(path))


@cache
def _fields() -> "dict[str, _Known]":
    """By path, in the order of the declarations."""
    from events.fields.node import tree
    from events.workload.kinds import KINDS

    known: dict[str, _Known] = {}
    for kind in KINDS.values():
        for node in tree(kind.creation).walk():
            if node.name:
                one = known.setdefault(node.path, _Known(node=node))
                if not _is_refused(known, node.path, kind.name):
                    one.kinds.append(kind.name)
    return known


def _is_refused(known: "dict[str, _Known]", path: str, kind: str) -> bool:
    """Whether this kind takes neither this field nor what it is in, which comes before it."""
    holders = [path[:end] for end, sign in enumerate(path) if sign in ".["]
    abouts = [known[one].node.about for one in (*holders, path) if one in known]
    return any(about is not None and kind in about.not_for for about in abouts)


@cache
def _unbuilt() -> "dict[str, Default]":
    """Fields of the contract that nothing acts on yet, each with the value that may be given."""
    from services.api.unbuilt import UNBUILT_FIELDS

    return {
        f"{holder}.{name}": default for holder, fields in UNBUILT_FIELDS.items() for name, default in fields.items()
    }


def _found(given: str) -> "tuple[str, _Known | None]":
    """The field that is meant, by its path; None where it is not built. Raises Problem (usage)."""
    known = _fields()
    paths = [*known, *_unbuilt()]
    wanted = _plain(given)
    by_flag = [
        path for path, one in known.items() if wanted in {_plain(name.lstrip("-")) for name in _flags(path, one.node)}
    ]
    exact = [path for path in paths if _plain(path) in {wanted, f"spec.{wanted}"}]
    ends = [path for path in paths if _plain(path).endswith(f".{wanted}")]
    # A master's fields are those of a spec: asked for by name only.
    found = exact or by_flag or [path for path in ends if not path.startswith("masterSpec")] or ends
    if not found:
        last = {path.rpartition(".")[2]: path for path in reversed(paths)}
        hint = did_you_mean(given, [*last, *(path.removeprefix("spec.") for path in paths)])
        raise usage(
            f"there is no field {given!r}", todo=hint or "`muster explain-field spec` lists the fields of a spec"
        )
    if len(found) > 1:
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        listed = ", ".join(path.removeprefix("spec.") for path in found[:_MOST_NAMED])
        raise usage(f"{given!r} is the end of several fields", todo=f"one of {listed}{more}")
    return found[0], known.get(found[0])


def _plain(path: str) -> str:
    """Without what tells items of a list from each other, and capitals."""
    return _INDEX.sub("", path).lower()


def _flags(path: str, node: "Node") -> list[str]:
    """How the command line takes it, and that flag's other names."""
    from muster.cli.training_flags import FLAG_OF_FIELD

    flag = FLAG_OF_FIELD.get(path)
    if flag is None:
        return []
    return [flag, *(node.about.aliases if node.about is not None and node.about.flag == flag else ())]


def _explained(path: str, known: _Known | None) -> Row:
    """Everything of it; what it has not is null."""
    if known is None:
        default = _unbuilt()[path]
        told = "It is in the contract and not built yet: only null and its default are accepted."
        return {"field": path, "built": False, "default": _builtin(default), "description": told}
    from events.fields.node import bounds
    from events.fields.texts import help_of

    node = known.node
    told, about, limits = help_of(node), node.about, node.limits
    least, most = bounds(node.kind, limits)
    above = None
    if about is not None and about.between is not None:
        (above, most), least = about.between, None
    flags = _flags(path, node)
    return {
        "field": path,
        "built": True,
        "kinds": [*known.kinds],
        "description": told,
        "type": _type(node),
        "unit": about.unit or None if about else None,
        "options": [*node.options] or None,
        "above": above,
        "least": _bound(least),
        "most": _bound(most),
        "shortest": limits.shortest,
        "longest": limits.longest,
        "rule": limits.words or None,
        "pattern": limits.pattern or None,
        "mandatory": node.mandatory or bool(_MANDATORY.search(told)),
        "nullable": node.nullable,
        "default": _builtin(node.default),
        "flag": flags[0] if flags else None,
        "aliases": [*flags[1:]] or None,
        "example": _example(node, flags),
        "changeable": about.later if about else False,
        "inForce": about.in_force if about else True,
        "requirements": [*about.rows.split()] if about else None,
        "fields": [{"field": one.name, "type": _type(one), "options": [*one.options] or None} for one in _below(node)]
        or None,
    }


def _bound(value: float | None) -> float | None:
    """None where it says no more than that JSON has no infinity, or that the number is kept in 32 bits."""
    return value if value is not None and abs(value) < _LARGEST and value not in _OF_32_BITS else None


def _below(node: "Node") -> "Iterator[Node]":
    yield from node.fields
    if node.item is not None:
        yield from node.item.fields


def _type(node: "Node") -> str:
    if node.about is not None and node.about.unit == "bytes":
        return "quantity"
    return f"list of {_type(node.item)}s" if node.item is not None else node.kind


def _builtin(value: Any) -> Json:
    import msgspec

    return msgspec.to_builtins(value)


def _example(node: "Node", flags: list[str]) -> str | None:
    """A flag with a value that the field takes; None where the declaration says nothing that would make one."""
    if node.about is not None and node.about.example:
        value = node.about.example
    elif node.options:
        value = node.default if node.default in node.options else node.options[-1]
    elif node.about is not None and node.about.unit in _OF_UNIT:
        value = _OF_UNIT[node.about.unit]
    elif node.kind == "boolean":
        return flags[0] if flags and flags[0].startswith("--") else None
    else:
        return None
    return f"{flags[0]} {value}" if flags and flags[0].startswith("-") else value


_OF_UNIT: Final = {"bytes": "512Mi", "seconds": "30m", "cores": "0.5", "devices": "1", "share of a device": "0.5"}
"""Values that every field of a unit takes."""


def _show(session: Session, row: Row) -> None:
    def listed(key: str, joint: str = ", ") -> str:
        value = row.get(key)
        return joint.join(str(one) for one in value) if isinstance(value, list) else ""

    def between(low: str, high: str, what: str) -> str:
        least, most = (
            format_number(end) if isinstance(end := row.get(key), int | float) else "" for key in (low, high)
        )
        if (above := row.get("above")) is not None and low == "least":
            return f"more than {above} and at most {most}"
        if least and most:
            return f"{least} to {most}{what}"
        return f"{least} or more{what}" if least else f"at most {most}{what}" if most else ""

    default = row.get("default")
    out = session.out
    out.pairs(
        [
            ("Field", str(row["field"])),
            ("Kinds", listed("kinds")),
            ("What", str(row["description"])),
            ("Type", str(row.get("type") or "") + (f" ({row['unit']})" if row.get("unit") else "")),
            ("Options", listed("options")),
            ("Bounds", between("least", "most", "")),
            ("Length", between("shortest", "longest", _counted(row))),
            ("Rule", str(row.get("rule") or "")),
            ("Pattern", str(row.get("pattern") or "")),
            ("Mandatory", _mandatory(row)),
            ("Default", "" if default in (None, [], {}) or isinstance(default, dict) else _as_json(default)),
            ("Null", "accepted, and means the default" if row.get("nullable") and not row.get("mandatory") else ""),
            ("Flag", " ".join([str(row["flag"]), *listed("aliases", " ").split()]) if row.get("flag") else ""),
            ("Example", str(row.get("example") or "")),
            ("Later", "may be changed while the workload lives" if row.get("changeable") else ""),
            ("In force", "" if row.get("inForce", True) else "not yet: it is accepted and listed in notYetInForce"),
        ]
    )
    below = row.get("fields")
    if isinstance(below, list):
        out.heading("Fields")
        out.pairs([(f"  {one['field']}", _with_options(one)) for one in below if isinstance(one, dict)])


def _with_options(row: Row) -> str:
    options = row.get("options")
    return f"{row['type']}: {', '.join(map(str, options))}" if isinstance(options, list) else str(row["type"])


def _mandatory(row: Row) -> str:
    """In an object that may be left out, it is so only where that is given."""
    if not row.get("mandatory"):
        return ""
    within = _optional_holder(str(row["field"]))
    return f"yes, where {within} is given" if within else "yes"


def _optional_holder(path: str) -> str:
    """The nearest object around it that may be left out; empty where there is none. Each item of a list is given."""
    above, known = path.rpartition(".")[0], _fields()
    while above and not above.endswith("[]"):
        if above in known and not known[above].node.mandatory and known[above].node.default is None:
            return above
        above = above.rpartition(".")[0]
    return ""


def _counted(row: Row) -> str:
    return " items" if str(row.get("type")).startswith("list") else " characters"


def _as_json(value: Json) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
