"""The list of mutants in docs/mutants.md, between two marks."""

from collections.abc import Sequence
from typing import Final

from tests.mutants.mutant import INVARIANTS, ROOT, Mutant

PAGE: Final = ROOT / "docs" / "mutants.md"
BEGIN: Final = "<!-- the list: make mutants ARGS=--docs -->"


def listing(mutants: Sequence[Mutant]) -> str:
    rows = [
        f"| `{mutant.name}` | `{mutant.function}` | {mutant.invariant} | {mutant.bug} |"
        for mutant in sorted(mutants, key=lambda mutant: (mutant.invariant, mutant.name))
    ]
    invariants = [f"| {name} | {words} |" for name, words in INVARIANTS.items()]
    head = ["| invariant | meaning |", "|---|---|", *invariants, ""]
    return "\n".join([*head, "| mutant | replaces | invariant | the bug |", "|---|---|---|---|", *rows])


def page(mutants: Sequence[Mutant]) -> str:
    """The whole page, with this list in it."""
    head, _, _ = PAGE.read_text().partition(BEGIN)
    return f"{head}{BEGIN}\n\n{listing(mutants)}\n"


def write_docs(mutants: Sequence[Mutant]) -> None:
    PAGE.write_text(page(mutants))
