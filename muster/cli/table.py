"""Tables as rich draws them; apart from `output`, so that rich is imported only where a table is shown."""

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from muster.cli.layout import GAP, Wish, widths
from muster.cli.output import Column, Output
from muster.cli.values import Row, printable

PHASE_STYLE: Final[dict[str, str]] = {
    "Running": "green",
    "Completed": "green",
    "Connected": "green",
    "Failed": "red",
    "Disconnected": "red",
    "Degraded": "yellow",
    "Pending": "yellow",
    "Initializing": "yellow",
    "Creating": "yellow",
    "Resuming": "yellow",
    "WaitingToConnect": "yellow",
}
"""Colour beside the word, never instead of it."""


def table_of(
    out: Output, rows: Sequence[Row], columns: Sequence[Column], terminal: int, *, headers: bool = True
) -> Table:
    """The rows without lines between them, as people and `awk` like them.

    Args:
        terminal: cells of the terminal that it is shown in, where there is one.
    """
    chosen = out.chosen(columns)
    cells = {column.key: [out.cell(row, column) for row in rows] for column in chosen}
    for column in chosen:
        # Rows that are appended later stand under the ones before them.
        longest = max(map(cell_len, cells[column.key]), default=0)
        known = max(out.widths.get(column.key, 0), len(column.header) if headers else 0)
        out.widths[column.key] = max(known, longest)
    shown = widths(_wishes(out, chosen, headers=headers), terminal if out.fits_terminal else None)
    table = Table(
        box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=headers, header_style="bold",
        width=sum(shown.values()) + GAP * (len(shown) - 1),
    )  # fmt: skip
    for place, width in shown.items():
        wraps = chosen[place].wraps
        overflow = "fold" if wraps else "ellipsis"
        table.add_column(chosen[place].header, no_wrap=not wraps, overflow=overflow, width=width)
    for number, row in enumerate(rows):
        table.add_row(*(_text(row, chosen[place], cells[chosen[place].key][number], shown[place]) for place in shown))
    return table


def _wishes(out: Output, chosen: Sequence[Column], *, headers: bool) -> list[Wish]:
    """Who asks for a column by name gets it."""
    declared, asked = any(column.rest for column in chosen), bool(out.style.columns or out.style.usual)
    return [
        Wish(
            width=out.widths[column.key],
            heading=len(column.header) if headers else 1,
            rest=column.rest or (not (declared or asked) and column is chosen[-1] and not column.time),
            yields=0 if asked else column.yields,
            stays_from=column.stays_from,
        )
        for column in chosen
    ]


def _text(row: Row, column: Column, cell: str, width: int) -> Text:
    if column.short is not None and cell_len(cell) > width:
        cell = printable(column.short(row))
    text = Text(cell, style=PHASE_STYLE.get(cell, ""))
    if not column.wraps:
        text.truncate(width, overflow="ellipsis")
    return text
