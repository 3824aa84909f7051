"""Tables as rich draws them; apart from `output`, so that rich is imported only where a table is shown."""

from collections.abc import Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from muster.cli.output import Column, Output
from muster.cli.values import Row

PHASE_STYLE: Final[dict[str, str]] = {
    "Running": "green",
    "Completed": "green",
    "Connected": "green",
    "Failed": "red",
    "Disconnected": "red",
    "Pending": "yellow",
    "Initializing": "yellow",
    "Creating": "yellow",
    "Resuming": "yellow",
    "WaitingToConnect": "yellow",
}
"""Colour beside the word, never instead of it."""


def table_of(out: Output, rows: Sequence[Row], columns: Sequence[Column], *, headers: bool = True) -> Table:
    """The rows without lines between them, as people and `awk` like them."""
    chosen = out.chosen(columns)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=headers, header_style="bold")
    lines = [[out.cell(row, column) for column in chosen] for row in rows]
    for index, column in enumerate(chosen):
        # Rows that are appended later stand under the ones before them.
        longest = max((len(line[index]) for line in lines), default=0)
        known = max(out.widths.get(column.key, 0), len(column.header) if headers else 0)
        width = out.widths[column.key] = max(known, longest)
        last = index == len(chosen) - 1
        table.add_column(column.header, no_wrap=True, overflow="ellipsis", min_width=0 if last else width)
    for line in lines:
        table.add_row(*(Text(cell, style=PHASE_STYLE.get(cell, "")) for cell in line))
    return table
