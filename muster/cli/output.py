"""Data to stdout in the format that was asked for; talk to stderr. Knows nothing of what the data means.

rich, yaml and csv are imported where they are used, so that `muster --help` stays quick.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TextIO

from events.nearest import did_you_mean
from muster.cli.exits import Problem, usage
from muster.cli.values import (
    Json,
    Row,
    format_age,
    format_number,
    format_time,
    parse_time,
    printable,
)

if TYPE_CHECKING:
    from rich.console import Console

    from muster.cli.jsonpath import Template

_UNBOUNDED_COLUMNS: Final = 1_000_000
"""Width of a table that goes to a file or a pipe: nothing is cut there."""
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a cell that begins so for a formula."""


class Format(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    JSONL = "jsonl"
    CSV = "csv"
    JSONPATH = "jsonpath"
    """What a template takes from the JSON (muster.cli.jsonpath)."""
    PNG = "png"
    """A picture, of the few commands that draw one."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    header: str
    key: str
    """Field of the row, also what --columns calls it; `a.b` looks into an object."""
    show: Callable[[Row], str] | None = None
    """Text for people, where the plain value would not do."""
    wide: bool = False
    """Only with -o wide or csv, or by name in --columns."""
    rare: bool = False
    """Only with -o csv, or by name in --columns."""
    time: bool = False
    exact: bool = False
    """Of a time: shown as the time that it is, and not as an age."""
    clock: bool = False
    """Its value moves as time goes by, though nothing happens."""
    rest: bool = False
    """Takes what the others leave of a terminal's width, and is cut there; without any, the last column does."""
    wraps: bool = False
    """With `rest`: goes on in further lines instead of being cut."""
    short: Callable[[Row], str] | None = None
    """Text in place of the whole one, where that would be cut."""
    yields: int = 0
    """Left out where a terminal is narrow, the highest first; 0: never."""
    stays_from: int = 0
    """Cells of a terminal from which it is not left out, where it yields at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a command's output was asked for."""

    format: Format = Format.TABLE
    template: "Template | None" = None
    """Of -o jsonpath=…"""
    columns: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    """Columns of a table where none are asked for: what --set-default-columns kept."""
    sort: tuple[str, ...] = ()
    """Columns to put rows in order by; after a '-' the greatest first."""
    headers: bool = True
    clock: Callable[[datetime], datetime] | None = None
    """Brings a time into the zone in which exact times are shown; None: ages are."""
    quiet: bool = False
    color: bool = True


class Output:
    """Writes what a command has to say."""

    def __init__(self, style: Style, *, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self.style = style
        self.stdout = stdout or sys.stdout
        self.stderr = stderr or sys.stderr
        self.now: Callable[[], datetime] = lambda: datetime.now(UTC)
        """Up to when ages are counted."""
        self.widths: dict[str, int] = {}
        """Of the columns of the table that was shown last, by key."""

    @property
    def interactive(self) -> bool:
        """Whether somebody sees stderr live and its terminal can redraw a line."""
        return self.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def talk(self, text: str) -> None:
        """A sentence for the person; not data, so on stderr and not with --quiet."""
        if not self.style.quiet:
            self.stderr.write(text + "\n")
            self.stderr.flush()

    def write(self, text: str) -> None:
        """Data as it is."""
        self.stdout.write(text)
        self.stdout.flush()

    def picture(self, data: bytes) -> None:
        """A picture as it is. Raises Problem (usage) where it would go to a terminal."""
        if self.stdout.isatty():
            raise usage("a picture cannot be shown in a terminal", todo="write it into a file: … -o png > usage.png")
        self.stdout.flush()
        self.stdout.buffer.write(data)
        self.stdout.buffer.flush()

    def console(self) -> "Console":
        """Rich's console on stdout; without colour where there is no terminal, with NO_COLOR or --no-color."""
        from rich.console import Console

        plain = not self.stdout.isatty()
        return Console(
            file=self.stdout,
            width=_UNBOUNDED_COLUMNS if plain else None,
            no_color=not self.style.color or None,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def rows(
        self,
        rows: Sequence[Row],
        columns: Sequence[Column],
        *,
        name: str = "name",
        empty: str = "",
        headers: bool | None = None,
    ) -> None:
        """A list of things.

        Args:
            name: field that -o name prints; `a.b` looks into an object.
            empty: said on stderr where a table has no rows.
            headers: False where they are to stand under the rows before them.
        """
        rows = self.sorted(rows, columns)
        match self.style.format:
            case Format.JSONPATH:
                self._template(list(rows))
            case Format.JSON:
                self.write(json.dumps(list(rows), indent=2, ensure_ascii=False) + "\n")
            case Format.YAML:
                self._yaml(list(rows))
            case Format.JSONL:
                for row in rows:
                    self.line(row)
            case Format.NAME:
                self.write("".join(f"{printable(plain_text(value_at(row, name)))}\n" for row in rows))
            case Format.CSV:
                self._csv(rows, self.chosen(columns), headers=self.style.headers and headers is not False)
            case Format.TABLE | Format.WIDE:
                self.table(rows, columns, headers=None if headers is None else self.style.headers and headers)
                if not rows and empty:
                    self.talk(empty)
            case Format.PNG:
                raise AssertionError("a command that draws does so itself")

    def one(self, row: Row, text: Callable[[], None], *, name: str = "name", columns: Sequence[Column] = ()) -> None:
        """One thing: `text` writes it for people; every other format gets the row itself."""
        match self.style.format:
            case Format.JSONPATH:
                self._template(row)
            case Format.TABLE | Format.WIDE:
                text()
            case Format.JSON:
                self.write(json.dumps(row, indent=2, ensure_ascii=False) + "\n")
            case Format.YAML:
                self._yaml(row)
            case Format.JSONL | Format.NAME | Format.CSV | Format.PNG:
                self.rows([row], columns or [Column(key, key) for key in row], name=name)

    def each(self, rows: Sequence[Row], columns: Sequence[Column], *, name: str = "name", headers: bool) -> None:
        """What is new in something that goes on, as `rows`; programs get a document per row. Raises Problem (usage)."""
        if self.style.sort:
            raise usage("--sort does not go with what is printed while it comes", todo="leave one of them out")
        for row in rows if self.style.format in {Format.JSON, Format.JSONL, Format.JSONPATH} else ():
            if self.style.format is Format.JSONPATH:
                self._template(row, ends_line=True)
            else:
                self.line(row)
        if self.style.format not in {Format.JSON, Format.JSONL, Format.JSONPATH}:
            self.rows(rows, columns, name=name, headers=headers)

    def sorted(self, rows: Sequence[Row], columns: Sequence[Column]) -> Sequence[Row]:
        """The rows in the order of --sort: by each column's value, and without one last. Raises Problem (usage)."""
        for given in reversed(self.style.sort):
            key = find_column(columns, given.removeprefix("-")).key
            known = [row for row in rows if value_at(row, key) is not None]
            known.sort(key=lambda row: _rank(value_at(row, key)), reverse=given.startswith("-"))
            rows = [*known, *(row for row in rows if value_at(row, key) is None)]
        return rows

    def line(self, row: Row) -> None:
        """One row of JSON lines."""
        self.write(json.dumps(row, ensure_ascii=False) + "\n")

    def table(self, rows: Sequence[Row], columns: Sequence[Column], *, headers: bool | None = None) -> None:
        """Rows under headings, laid out for the terminal where there is one (muster.cli.layout).

        Args:
            headers: False where they are to stand under the rows before them.
        """
        from muster.cli.table import table_of

        shown = self.style.headers if headers is None else headers
        if headers is not False:
            self.widths.clear()
        if not rows and not shown:
            return
        console = self.console()
        with console.capture() as capture:
            console.print(table_of(self, rows, columns, console.width, headers=shown), crop=False)
        self.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))

    def pairs(self, pairs: Sequence[tuple[str, str]]) -> None:
        """A thing's properties, one per line; those without a value are left out."""
        shown = [(label, value) for label, value in pairs if value]
        width = max((len(label) for label, _ in shown), default=0) + 2
        for label, value in shown:
            self.write(f"{label + ':':<{width}}{printable(value)}\n")

    def heading(self, text: str) -> None:
        """Title of a section of a description."""
        self.write(f"\n{text}\n")

    def chosen(self, columns: Sequence[Column]) -> list[Column]:
        """The columns to show: those of --columns, or those that the format has."""
        if self.style.columns:
            return [find_column(columns, given) for given in self.style.columns]
        if self.style.format is Format.CSV:
            return list(columns)
        if self.style.format is Format.TABLE and (usual := _known(columns, self.style.usual)):
            return usual
        wide = self.style.format is Format.WIDE
        return [column for column in columns if not column.rare and (wide or not column.wide)]

    def cell(self, row: Row, column: Column) -> str:
        """A cell's text for people."""
        value = value_at(row, column.key)
        if column.time:
            return self.time(value)
        if column.exact:
            moment = parse_time(value) if isinstance(value, str) else None
            return "-" if moment is None else self.moment(moment)
        if column.show is not None:
            return printable(column.show(row))
        return printable(plain_text(value))

    @property
    def fits_terminal(self) -> bool:
        """Whether a table is made to fit: in a pipe nothing is cut, and -o wide shows all that there is."""
        return self.stdout.isatty() and self.style.format is not Format.WIDE

    def time(self, value: Json) -> str:
        """A time as an age, or with --utc, --local or --tz as RFC 3339."""
        moment = parse_time(value) if isinstance(value, str) else None
        if moment is None:
            return ""
        return format_age(moment, self.now()) if self.style.clock is None else format_time(self.style.clock(moment))

    def moment(self, at: datetime) -> str:
        """A moment to come, as the time that it is then; of UTC unless --local or --tz says another one."""
        return format_time(at.astimezone(UTC) if self.style.clock is None else self.style.clock(at))

    def _template(self, document: Json, *, ends_line: bool = False) -> None:
        """What -o jsonpath asks for of it: exactly, but for what would move a terminal's cursor."""
        assert self.style.template is not None
        shown = self.stdout.isatty()
        text = self.style.template.text(document, printable if shown else str)
        self.write(text + ("\n" if (shown or ends_line) and text and not text.endswith("\n") else ""))

    def _yaml(self, value: object) -> None:
        import yaml

        self.write(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))

    def _csv(self, rows: Sequence[Row], columns: Sequence[Column], *, headers: bool) -> None:
        import csv
        import io

        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if headers:
            writer.writerow(column.key for column in columns)
        for row in rows:
            writer.writerow(_csv_cell(value_at(row, column.key)) for column in columns)
        self.write(text.getvalue())


def plain_text(value: Json) -> str:
    """A decoded value as a table shows it."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return format_number(value)
        case str():
            return value
        case list():
            return ",".join(plain_text(entry) for entry in value)
        case dict():
            return json.dumps(value, ensure_ascii=False)


def value_at(row: Row, key: str) -> Json:
    """The value of a column's key, null where there is none."""
    value: Json = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _rank(value: Json) -> tuple[int, float, str]:
    """Numbers by their size, then texts; times of the API are texts that are in order."""
    if isinstance(value, int | float):
        return 0, value, ""
    return 1, 0, value if isinstance(value, str) else plain_text(value)


def _known(columns: Sequence[Column], names: Sequence[str]) -> list[Column]:
    """Those that this table has: what was kept may be of an earlier version."""
    by_key = {column.key: column for column in columns}
    return [by_key[name] for name in names if name in by_key]


def _csv_cell(value: Json) -> str | int | float:
    """Numbers stay numbers; a text that a spreadsheet would run is defused by an apostrophe."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = value if isinstance(value, str) else plain_text(value)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def find_column(columns: Sequence[Column], given: str) -> Column:
    """By its heading or its field, whatever the capitals. Raises Problem (usage)."""
    wanted = given.strip().lower()
    for column in columns:
        if wanted in {column.key.lower(), column.header.lower()}:
            return column
    raise _unknown_column(given, columns)


def _unknown_column(given: str, columns: Sequence[Column]) -> Problem:
    keys, headings = [column.key for column in columns], [column.header for column in columns]
    nearest = did_you_mean(given, [*headings, *keys])
    return usage(f"there is no column {given!r}", todo=nearest or "columns: " + ", ".join(keys))
