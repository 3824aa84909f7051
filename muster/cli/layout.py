"""How wide the columns of a table are in a terminal, and which of them are left out. Pure: widths in, widths out.

What a person looks for first stays: a column that does not yield is never left out or cut. One column takes what the
others leave, and is cut there. Where even that does not fit, lines are longer than the terminal: nothing that matters
is lost for the sake of looks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

GAP: Final = 2
"""Cells between two columns."""
LEAST_REST: Final = 24
"""Cells of the column that takes what is left: with fewer, others are left out for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One column, as it would like to be."""

    width: int
    """Cells of its longest text, heading included."""
    heading: int = 0
    """Cells of its heading: it is never narrower."""
    rest: bool = False
    yields: int = 0
    """Left out of a narrow table, the highest first; 0: never."""
    stays_from: int = 0
    """Cells of the terminal from which it is not left out either, where it yields at all; 0: no such width."""


def widths(wishes: Sequence[Wish], terminal: int | None) -> dict[int, int]:
    """Cells of each column that is shown, by its place; `terminal`: its width, None where there is none."""
    shown = dict(enumerate(wishes))
    if terminal is None:
        return {place: wish.width for place, wish in shown.items()}
    while _least(shown) > terminal:
        yielding = [place for place, wish in shown.items() if wish.yields and not 0 < wish.stays_from <= terminal]
        if not yielding:
            break
        del shown[max(yielding, key=lambda place: shown[place].yields)]
    spare = terminal - _least(shown)
    return {
        place: min(wish.width, max(_floor(wish) + spare, wish.heading)) if wish.rest else wish.width
        for place, wish in shown.items()
    }


def _least(shown: dict[int, Wish]) -> int:
    return sum(_floor(wish) for wish in shown.values()) + GAP * (len(shown) - 1)


def _floor(wish: Wish) -> int:
    return min(wish.width, LEAST_REST) if wish.rest else wish.width
