"""Which test caught which mutant: it is asked first the next time. caught.json keeps it; `--remember` writes it."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("caught.json")
TIME: Final = re.compile(r"Timeout|took too long|not within")


@dataclass(frozen=True)
class Caught:
    test: str
    """pytest's id of it; empty where none had begun."""
    words: str
    """In which it failed."""

    @property
    def by_time(self) -> bool:
        """Whether it only waited too long, which a busy machine may do as well."""
        return TIME.search(self.words) is not None


def read_caught() -> dict[str, str]:
    """The test by the name of the mutant."""
    known: dict[str, str] = json.loads(FILE.read_text())
    return known


def write_caught(tests: dict[str, str]) -> None:
    FILE.write_text(json.dumps(tests, indent=2, sort_keys=True) + "\n")
