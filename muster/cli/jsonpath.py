r"""Templates of `-o jsonpath=…`, in kubectl's grammar. Pure; loaded only where one is given.

A template is text with actions in braces: `{.name}`, `{range [*]}{.name}{"\n"}{end}`. A path is made of `.field`,
`['field']`, `[0]`, `[-1]`, `[0:2]`, `[0,1]`, `.*`, `[*]`, `..field` and `[?(@.phase=="Running")]`; it begins at the
document, `$`, or at what a range or a filter looks at, `@`. What a path does not find is left out. What the grammar has
beyond that is refused, with its place.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Final

from muster.cli.values import Json

LONGEST: Final = 4096
"""Characters of a template."""
DEEPEST: Final = 8
"""Ranges within each other, and filters within filters."""

_FIELD: Final = re.compile(r"(?:\\.|[^\s.\[\]$@{}()\\'\"=<>!,|&?*:])+")
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WHOLE: Final = re.compile(r"-?\d+")
_COMPARED: Final[dict[str, Callable[[str | float, str | float], bool]]] = {
    "==": eq,
    "!=": ne,
    "<=": le,
    ">=": ge,
    "<": lt,
    ">": gt,
}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "/": "/"}
_WORDS: Final[dict[str, Json]] = {"true": True, "false": False, "null": None}


class TemplateError(ValueError):
    """A template is not in the grammar; the message says where and what."""


@dataclass(frozen=True, slots=True)
class _Fields:
    """Members by name, of objects."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _All:
    """Every member of an object, every item of a list."""


@dataclass(frozen=True, slots=True)
class _Below:
    """The value itself and all that is in it, at any depth."""


@dataclass(frozen=True, slots=True)
class _Items:
    """Items of a list by number, from the end where it is negative."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Slice:
    first: int | None
    end: int | None
    step: int | None


@dataclass(frozen=True, slots=True)
class _Filter:
    """Items of a list of which this holds. Without an operator: that have what `left` looks for."""

    left: "_Path | _Value"
    operator: str = ""
    right: "_Path | _Value | None" = None


type _Step = _Fields | _All | _Below | _Items | _Slice | _Filter


@dataclass(frozen=True, slots=True)
class _Path:
    steps: tuple[_Step, ...]
    from_document: bool = False
    """Whether it begins at the document, and not at what is looked at."""


@dataclass(frozen=True, slots=True)
class _Value:
    value: Json


@dataclass(frozen=True, slots=True)
class _Range:
    over: _Path
    body: "tuple[_Part, ...]"


type _Part = str | _Path | _Range


@dataclass(frozen=True, slots=True)
class Template:
    """What is written for each document."""

    parts: tuple[_Part, ...]

    def text(self, document: Json, clean: Callable[[str], str] = str) -> str:
        """As kubectl writes it: texts as they are, other values as JSON, several with a space between.

        Args:
            clean: makes each value fit to be shown.
        """
        return "".join(_written(self.parts, document, document, clean))


def parse_template(text: str) -> Template:
    """Raises TemplateError."""
    if len(text) > LONGEST:
        raise TemplateError(f"{len(text)} characters are too many; at most {LONGEST} are read")
    if "{" not in text:
        path = text if text.startswith((".", "[", "$", "@")) else f".{text}"
        raise TemplateError(f"{text!r} has no {{…}}" + (f"; write '{{{path}}}'" if text else "; write '{.name}'"))
    parser = _Parser(text)
    return Template(tuple(parser.parts(0)))


class _Parser:
    """Reads a template from left to right. Every method raises TemplateError."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def parts(self, depth: int) -> Iterator[_Part]:
        """Up to the end, or within a range up to its `{end}`."""
        while self._at < len(self._text):
            start = self._text.find("{", self._at)
            if start != self._at:
                end = len(self._text) if start < 0 else start
                yield self._text[self._at : end]
                self._at = end
                continue
            self._at += 1
            self._skip()
            if self._word("end"):
                if not depth:
                    raise self._error("{end} without a {range …} before it", at=start)
                self._close()
                return
            if self._word("range"):
                if depth == DEEPEST:
                    raise self._error(f"more than {DEEPEST} ranges within each other", at=start)
                over = self._path()
                self._close()
                yield _Range(over, tuple(self.parts(depth + 1)))
            elif self._peek() in {"'", '"'}:
                yield self._quoted()
                self._close()
            else:
                yield self._path()
                self._close()
        if depth:
            raise self._error("a {range …} has no {end}")

    def _path(self, depth: int = 0) -> _Path:
        self._skip()
        start, from_document = self._at, self._peek() == "$"
        if self._peek() in {"$", "@"}:
            self._at += 1
        steps: list[_Step] = []
        while (step := self._step(depth)) is not None:
            steps += step
        if self._at == start:
            named = _FIELD.match(self._text, self._at)
            hint = f": write {{.{named.group()}}}" if named else ""
            raise self._error(f"a path begins with . or [ or $ or @{hint}")
        return _Path(tuple(steps), from_document)

    def _step(self, depth: int) -> list[_Step] | None:
        """None where the path ends."""
        below: list[_Step] = []
        if self._take(".."):
            below = [_Below()]
            if self._peek() == "[":
                return [*below, self._brackets(depth)]
        elif self._take("."):
            if self._peek() in {"", "}", " ", ")"}:
                return []  # `{.}` is the whole
            if self._peek() == "[":
                return [self._brackets(depth)]
        elif self._peek() == "[":
            return [self._brackets(depth)]
        else:
            return None
        if self._take("*"):
            return [*below, _All()]
        if (match := _FIELD.match(self._text, self._at)) is None:
            raise self._error("no name of a field after '.'")
        self._at = match.end()
        return [*below, _Fields((re.sub(r"\\(.)", r"\1", match.group()),))]

    def _brackets(self, depth: int) -> _Step:
        start = self._at
        self._at += 1
        self._skip()
        step: _Step
        if self._take("*"):
            step = _All()
        elif self._take("?"):
            step = self._filter(depth, start)
        elif self._peek() in {"'", '"'}:
            step = _Fields(tuple(self._names()))
        else:
            step = self._numbers(start)
        self._skip()
        if not self._take("]"):
            raise self._error(f"no ']' for the '[' at {start + 1}")
        return step

    def _numbers(self, start: int) -> _Step:
        first = self._number()
        if self._peek() == ":":
            return self._slice(first, start)
        if first is None:
            raise self._error("in [ ] stands a number, a slice, '*', a filter ?(…) or a name in quotes", at=start)
        numbers = [first]
        while self._take(","):
            if (number := self._number()) is None:
                raise self._error("a number is missing after ','")
            numbers.append(number)
        return _Items(tuple(numbers))

    def _slice(self, first: int | None, start: int) -> _Step:
        self._at += 1
        end = self._number()
        step = self._number() if self._take(":") else None
        if step is not None and step <= 0:
            raise self._error("the step of a slice must be 1 or more", at=start)
        return _Slice(first, end, step)

    def _filter(self, depth: int, start: int) -> _Filter:
        if depth == DEEPEST:
            raise self._error(f"more than {DEEPEST} filters within each other", at=start)
        if not self._take("("):
            raise self._error("a filter is written [?(@.field==…)]", at=start)
        left = self._operand(depth + 1)
        self._skip()
        operator = next((sign for sign in _COMPARED if self._take(sign)), "")
        found = _Filter(left, operator, self._operand(depth + 1) if operator else None)
        self._skip()
        if not self._take(")"):
            raise self._error("a filter compares once, with == != < <= > >=: ')' is missing")
        return found

    def _operand(self, depth: int) -> _Path | _Value:
        self._skip()
        if self._peek() in {"'", '"'}:
            return _Value(self._quoted())
        for word, value in _WORDS.items():
            if self._word(word):
                return _Value(value)
        if match := _NUMBER.match(self._text, self._at):
            self._at = match.end()
            return _Value(float(match.group()))
        if self._peek() in {"@", "$", ".", "["}:
            return self._path(depth)
        raise self._error("a path, a number, true, false, null or a text in quotes is missing")

    def _names(self) -> Iterator[str]:
        yield self._quoted()
        self._skip()
        while self._take(","):
            self._skip()
            if self._peek() not in {"'", '"'}:
                raise self._error("a name in quotes is missing after ','")
            yield self._quoted()
            self._skip()

    def _number(self) -> int | None:
        self._skip()
        match = _WHOLE.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        self._skip()
        return int(match.group())

    def _quoted(self) -> str:
        quote, start = self._peek(), self._at
        self._at += 1
        text = ""
        while (sign := self._peek()) != quote:
            if not sign:
                raise self._error(f"the quote {quote} does not end", at=start)
            self._at += 1
            if sign == "\\":
                escaped = self._peek()
                if escaped not in _ESCAPES:
                    raise self._error(
                        f"'\\{escaped}' is not understood in quotes; write one of \\n \\t \\r \\\\ \\\" \\'"
                    )
                sign = _ESCAPES[escaped]
                self._at += 1
            text += sign
        self._at += 1
        return text

    def _close(self) -> None:
        self._skip()
        if not self._take("}"):
            what = f"{self._peek()!r} is not understood here; " if self._peek() else ""
            raise self._error(f"{what}'}}' is missing")

    def _word(self, word: str) -> bool:
        """Whether this whole word comes next; it is taken then."""
        end = self._at + len(word)
        if self._text.startswith(word, self._at) and not self._text[end : end + 1].isalnum():
            self._at = end
            return True
        return False

    def _take(self, sign: str) -> bool:
        if self._text.startswith(sign, self._at):
            self._at += len(sign)
            return True
        return False

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self) -> None:
        """Over spaces."""
        while self._peek().isspace():
            self._at += 1

    def _error(self, what: str, at: int | None = None) -> TemplateError:
        return TemplateError(f"at character {(self._at if at is None else at) + 1}: {what}")


def _written(parts: Sequence[_Part], here: Json, document: Json, clean: Callable[[str], str]) -> Iterator[str]:
    for part in parts:
        match part:
            case str():
                yield part
            case _Path():
                yield " ".join(clean(_text(value)) for value in _found(part, here, document))
            case _Range():
                for value in _found(part.over, here, document):
                    yield from _written(part.body, value, document, clean)


def _text(value: Json) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _found(path: _Path, here: Json, document: Json) -> Iterable[Json]:
    start = document if path.from_document else here
    steps = path.steps
    if isinstance(start, list) and start is document and steps[:1] == (_Fields(("items",)),):
        steps = steps[1:]  # kubectl's lists are objects with `items`; ours are the lists themselves
    values: Iterable[Json] = [start]
    for step in steps:
        values = [found for value in values for found in _step(step, value, document)]
    return values


def _step(step: _Step, value: Json, document: Json) -> Iterable[Json]:
    match step:
        case _Fields(names):
            return [value[name] for name in names if name in value] if isinstance(value, dict) else ()
        case _All():
            return value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
        case _Below():
            return _below(value)
        case _Items(numbers):
            if not isinstance(value, list):
                return ()
            return [value[number] for number in numbers if -len(value) <= number < len(value)]
        case _Slice(first, end, by):
            return value[first:end:by] if isinstance(value, list) else ()
        case _Filter():
            return [one for one in value if _holds(step, one, document)] if isinstance(value, list) else ()


def _below(value: Json) -> Iterator[Json]:
    yield value
    inner = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    for one in inner:
        yield from _below(one)


def _holds(asked: _Filter, here: Json, document: Json) -> bool:
    left = _values(asked.left, here, document)
    if asked.right is None:
        return bool(left)
    return any(_compares(asked.operator, one, other) for one in left for other in _values(asked.right, here, document))


def _values(operand: _Path | _Value, here: Json, document: Json) -> list[Json]:
    return [operand.value] if isinstance(operand, _Value) else list(_found(operand, here, document))


def _compares(operator: str, left: Json, right: Json) -> bool:
    """Texts with texts, numbers with numbers; what is of two kinds is not equal, and neither is greater."""
    if isinstance(left, bool) or isinstance(right, bool) or left is None or right is None:
        return {"==": left is right, "!=": left is not right}.get(operator, False)
    if isinstance(left, str) and isinstance(right, str):
        return _COMPARED[operator](left, right)
    if isinstance(left, int | float) and isinstance(right, int | float):
        return _COMPARED[operator](left, right)
    return {"==": left == right, "!=": left != right}.get(operator, False)
