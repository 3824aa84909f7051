"""Whether nothing is wrong with any of many items, found without a step of Python for each. Pure.

A list has up to a thousand items, and a body several such lists. Rules ask here first, and walk a list, to say what is
wrong with which item, only where something is. A doubt is a no: the walk has the word.
"""

import re
from collections.abc import Collection
from typing import Final


class Lines:
    """A pattern of texts of one line, looked for in many of them at once."""

    def __init__(self, pattern: str) -> None:
        """Args: pattern, of a whole text; it matches none with a line feed, and gives back nothing that it took."""
        self._pattern: Final = re.compile(rf"(?:(?:{pattern})\n)*+\Z")

    def match(self, texts: Collection[str]) -> bool:
        """Whether each text as a whole is one of the pattern."""
        lines = "\n".join([*texts, ""])
        return lines.count("\n") == len(texts) and self._pattern.match(lines) is not None


def each_once(names: Collection[str]) -> bool:
    return len(set(names)) == len(names)
