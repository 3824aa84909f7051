"""The words that were probably meant by one that is not there. Pure, and light: the command line reads it."""

from collections.abc import Iterable
from typing import Final

MOST_WORDS: Final = 3
"""In one hint."""
LONGEST_WORD: Final = 100
"""Characters; what is longer is no typing error."""


def did_you_mean(given: str, known: Iterable[str]) -> str | None:
    """A hint with the nearest known words, or None where none is near. Capitals do not matter."""
    if len(given) > LONGEST_WORD:
        return None
    from difflib import get_close_matches  # of some weight, and needed only where something is wrong

    by_lower = {word.lower(): word for word in map(str, known)}
    if exact := by_lower.get(given.lower()):
        near = [exact]
    else:
        near = [by_lower[word] for word in get_close_matches(given.lower(), by_lower, n=MOST_WORDS)]
    return "did you mean " + " or ".join(repr(word) for word in near) + "?" if near else None
