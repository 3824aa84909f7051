"""The flags of `muster training submit`, and the request that they make.

The list itself, `training_fields_data`, is written by `muster.cli.reference` from the API's field registry: to import
the registry takes longer than a shell's completion may. What is the command line's own stands here: short names,
durations, NAME=VALUE. Rules are the API's; here a value only gets its field's type.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import typer

from muster.cli.complete import node_pools
from muster.cli.exits import usage
from muster.cli.training_fields_data import FIELDS, FieldData
from muster.cli.values import Json, Row, ValueProblem, parse_duration, parse_integer, parse_number, parse_pair

_NOT_FROM_TABLE: Final = frozenset(
    {"name", "useGivenNameAsPrefix", "projectId", "clusterId", "spec.command", "spec.args", "spec.code"}
)
"""Told by arguments and flags that `submit` declares itself."""

_OTHER_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "--image": ("-i",),
    "--gpu-devices-request": ("-g",),
    "--environment": ("-e", "--env"),
    "--runs": ("--completions",),
}
"""Short and second names beside the registry's."""

_SPELLED_OUT: Final = 3
"""So many options stand in the flag's line; more only in its help."""

FlagKind = Literal["text", "integer", "number", "duration", "list", "pairs"]
"""How a flag's text becomes the field's value. list: comma separated; pairs: NAME=VALUE; both repeatable."""

_METAVAR: Final[dict[FlagKind, str]] = {
    "text": "TEXT",
    "integer": "N",
    "number": "X",
    "duration": "DURATION",
    "list": "A,B",
    "pairs": "NAME=VALUE",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    names: tuple[str, ...]
    field: str
    """Path of the request's field."""
    kind: FlagKind
    help: str
    metavar: str
    options: tuple[str, ...]
    """Values that completion offers; which are valid, the API says."""
    panel: str

    @property
    def parameter(self) -> str:
        """Name of the function's parameter."""
        return self.names[0].removeprefix("--").replace("-", "_")


def _flag(entry: FieldData) -> Flag:
    kind = _kind(entry)
    metavar = "|".join(entry.options) if 0 < len(entry.options) <= _SPELLED_OUT else _METAVAR[kind]
    more = {"list": " Comma separated.", "pairs": " Repeatable.", "duration": " Such as 30s, 5m, 2h or 7d."}
    return Flag(
        names=(entry.flag, *_OTHER_NAMES.get(entry.flag, ())),
        field=entry.path,
        kind=kind,
        help=entry.help + more.get(kind, ""),
        metavar="SIZE" if entry.type == "quantity" else metavar,
        options=entry.options,
        panel=entry.section,
    )


def _kind(entry: FieldData) -> FlagKind:
    if entry.unit == "seconds":
        return "duration"
    if entry.type == "list":
        named = any(other.path == f"{entry.path}[].name" for other in FIELDS)
        return "pairs" if named else "list"
    known: dict[str, FlagKind] = {"integer": "integer", "number": "number"}
    return known.get(entry.type, "text")


_LIVE: Final[dict[str, Callable[..., Any]]] = {"spec.nodePools": node_pools}
"""Where a shell completes what there is."""

FLAGS: Final = tuple(_flag(entry) for entry in FIELDS if entry.flag and entry.path not in _NOT_FROM_TABLE)

FLAG_OF_FIELD: Final[dict[str, str]] = {
    **{flag.field: flag.names[0] for flag in FLAGS},
    "spec.command": "--command",
    "spec.args": "words after --",
    "spec.code": "--code",
    "useGivenNameAsPrefix": "--name-prefix",
    "projectId": "--project",
    "clusterId": "--cluster",
    "name": "NAME",
}
"""What to correct on the command line when the API names a field."""


def flag_parameters() -> list[inspect.Parameter]:
    """The flags as parameters for typer."""
    parameters: list[inspect.Parameter] = []
    for flag in FLAGS:
        option = typer.Option(
            *flag.names,
            help=flag.help,
            metavar=flag.metavar,
            rich_help_panel=flag.panel,
            autocompletion=_LIVE.get(flag.field) or (_offer(flag.options) if flag.options else None),
        )
        wanted: Any = list[str] | None if flag.kind in {"list", "pairs"} else str | None
        annotation = Annotated[wanted, option]
        parameters.append(
            inspect.Parameter(flag.parameter, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )
    return parameters


def set_fields(request: Row, given: Mapping[str, str | Sequence[str] | None]) -> None:
    """Writes what the flags say into a request; flags win over what a file said. Raises Problem (usage)."""
    for flag in FLAGS:
        value = given.get(flag.parameter)
        texts = [value] if isinstance(value, str) else list(value or ())
        if not texts:
            continue
        try:
            set_field(request, flag.field, value_of(flag, texts))
        except ValueProblem as error:
            raise usage(f"{flag.names[0]}: {error}") from error


def set_field(request: Row, path: str, value: Json) -> None:
    """Sets a field at a dotted path, making the objects on the way."""
    *parents, last = path.split(".")
    place = request
    for parent in parents:
        below = place.get(parent)
        if not isinstance(below, dict):
            below = dict[str, Json]()
            place[parent] = below
        place = below
    place[last] = value


def value_of(flag: Flag, texts: list[str]) -> Json:
    """The field's value. Raises ValueProblem."""
    text = texts[-1]
    match flag.kind:
        case "text":
            return text
        case "integer":
            return parse_integer(text)
        case "number":
            return parse_number(text)
        case "duration":
            return parse_duration(text)
        case "list":
            return [part.strip() for entry in texts for part in entry.split(",") if part.strip()]
        case "pairs":
            return [_pair(flag, entry) for entry in texts]


def _pair(flag: Flag, text: str) -> Row:
    if "=" not in text and "--environment" in flag.names:
        # Newer versions of Run:ai's tool mean a stored environment by the same flag (experience.md section 1).
        raise ValueProblem(
            f"{text!r} has no '='. Here --environment sets a variable: NAME=VALUE. Where you mean a stored "
            "environment: those do not exist here, give --image"
        )
    name, value = parse_pair(text, flag.names[0].removeprefix("--"))
    return {"name": name, "value": value}


def _offer(options: tuple[str, ...]) -> Callable[[str], list[str]]:
    def offer(incomplete: str) -> list[str]:
        return [option for option in options if option.startswith(incomplete)]

    return offer
