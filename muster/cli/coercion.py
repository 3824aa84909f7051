"""Values of options and arguments, converted without pydantic.

typer builds a pydantic adapter for every parameter of a command that runs, also when a shell only asks for
completions. Importing that takes longer than a completion may; the few types used here need none of it.
"""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol

import typer

from events.nearest import did_you_mean
from muster.cli.values import ValueProblem, parse_integer, parse_number

_CONVERTED: Final[dict[Any, Callable[[str], object]]] = {
    str: str,
    int: parse_integer,
    float: parse_number,
    Path: Path,
}


class TyperParameter(Protocol):
    """What is used of typer's own class."""

    multiple: bool
    nargs: int
    get_runtime_param: Callable[[], Any]
    type_descriptor: Any


class LightCoercion:
    """Takes the place of typer's adapter for one parameter. Raises BadParameter, as that does."""

    def __init__(self, annotation: Any, least: float | None, most: float | None) -> None:
        self._annotation = annotation
        self._least = least
        self._most = most

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        try:
            return [self._one(each) for each in value] if many else self._one(value)
        except ValueProblem as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from error

    def _one(self, given: Any) -> object:
        """A text as the type that was declared; a default has it already."""
        if not isinstance(given, str):
            return given
        if self._annotation not in _CONVERTED:
            return _choice(self._annotation, given)
        value = _CONVERTED[self._annotation](given)
        if isinstance(value, int | float):
            if self._least is not None and value < self._least:
                raise ValueProblem(f"{given} is less than {self._least:g}")
            if self._most is not None and value > self._most:
                raise ValueProblem(f"{given} is more than {self._most:g}")
        return value


def convert_lightly(parameter: TyperParameter) -> None:
    """Has a parameter converted by LightCoercion. Raises TypeError for a type that it does not know."""
    descriptor = parameter.type_descriptor
    annotation = descriptor.annotation
    element = annotation.__args__[0] if getattr(annotation, "__origin__", None) is list else annotation
    if element not in _CONVERTED and element is not bool and not issubclass(element, StrEnum):
        raise TypeError(f"{element} is no type that the command line converts; add it to muster.cli.coercion")
    info = descriptor.parameter_info
    light = LightCoercion(element, info.min, info.max)
    parameter.get_runtime_param = lambda: light


def _choice(kind: type[StrEnum], given: str) -> StrEnum:
    words = [str(member) for member in kind]
    if given.lower() in words:
        return kind(given.lower())
    hint = did_you_mean(given, words)
    raise ValueProblem(f"{given!r} is none of {', '.join(words)}" + (f"; {hint}" if hint else ""))
