"""The runs of a sweep from a CSV file: a column for each variable, a row for each run."""

import csv
from pathlib import Path

from muster.cli.exits import usage
from muster.cli.unreadable import unreadable
from muster.cli.values import MOST_VALUES, Json, Row, set_field


def set_sweep(request: Row, file: str, *, given: bool) -> None:
    """Writes the sweep into a request. Raises Problem (usage).

    Args:
        given: whether flags say of a sweep, too.
    """
    if given:
        raise usage("--sweep-csv and --sweep cannot be used together", todo="give one of them")
    try:
        with Path(file).open(newline="", encoding="utf-8-sig") as lines:
            rows = csv.reader(lines, strict=True)
            names: list[str] = next(rows, list[str]())
            found: list[list[Json]] = [[] for _ in names]
            for number, row in enumerate((row for row in rows if row), start=1):
                if len(row) != len(names) or number > MOST_VALUES:
                    why = f"row {number} has {len(row)} values, and the first line {len(names)} names"
                    if number > MOST_VALUES:
                        why = f"it has more than {MOST_VALUES} rows"
                    raise usage(f"--sweep-csv: {file}: {why}", todo="one value for each name, one row for each run")
                for values, value in zip(found, row, strict=True):
                    values.append(value)
    except (OSError, ValueError, csv.Error) as error:
        raise unreadable(f"--sweep-csv: {file}", error, todo="give a CSV file in UTF-8") from error
    if not names or not found[0]:
        raise usage(f"--sweep-csv: {file} has no runs", todo="a line of names, and a row for each run")
    parameters: list[Json] = [{"name": name, "values": values} for name, values in zip(names, found, strict=True)]
    set_field(request, "spec.sweep", {"parameters": parameters, "combine": "Rows"})
