"""What a mutant is: a seeded bug, as a function that replaces a named one.

Read `bugs/` for the list and docs/mutants.md for how to add one.
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
VARIABLE: Final = "MUTANT"
"""Environment variable that names the mutant; set by the runner alone, read by nothing that is shipped."""
NOTHING: Final = "nothing"
"""Stands for no bug: all is as with a mutant, but for the mutant."""


INVARIANTS: Final = {
    "whole log": "Every commit is guarded by the one before it. Batches are complete. Nothing is skipped or read "
    "twice.",
    "once": "A command, or a request with one key, is carried out once. A repetition gets the first answer.",
    "true answers": "A 202 is stored and a refusal is not. No read is older than what the caller was told before.",
    "life": "A workload moves between phases only as the table allows. What has ended or must not run does not run.",
    "completions": "A workload is Completed or Failed exactly when its runs say so. Retries are counted, and they "
    "wait.",
    "one run": "A pod has at most one live run, of the newest attempt and try. Tokens rise.",
    "room": "CPU, memory, pods and devices of a node are never given twice. Other programs' and dead pods count.",
    "asked": "A pod gets what its spec requests, on a node where it may run.",
    "released": "What a run holds is held until the run has ended, and then released.",
    "facts": "Facts are accepted once, in order, for the run that they name, from the cluster that has it.",
    "due": "Auto-deletion deletes a workload when it is due: not earlier, and not after the due time was changed.",
    "wanted": "WANTED says what the log says. Agents do exactly that, once, and touch nothing of others.",
    "tables": "Rows follow from the log exactly once, in whole commits and batches.",
    "who may": "Only users who may do or see something can do or see it.",
}
"""What mutants break; each has at least TWO_EACH."""
TWO_EACH: Final = 2


class MutantError(Exception):
    """The list is wrong: a function that is not there, a name that is there twice."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    name: str
    """Short, in lower case with dashes."""
    function: str
    """`package.module:function` or `package.module:Class.method`: what is replaced."""
    invariant: str
    """Which one it breaks: one of INVARIANTS."""
    bug: str
    """What it does wrong, in a sentence."""
    make: Callable[[Any], Any]
    """From the original function to its replacement, which may call the original. Imports of the product
    belong inside it."""

    @property
    def module(self) -> str:
        return self.function.partition(":")[0]

    @property
    def qualname(self) -> str:
        return self.function.partition(":")[2]

    @property
    def file(self) -> Path:
        """Of the module. Raises MutantError."""
        path = ROOT / self.module.replace(".", "/")
        found = next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)
        if found is None:
            raise MutantError(f"{self.name}: there is no module {self.module}")
        return found


type Function = ast.FunctionDef | ast.AsyncFunctionDef


def find(tree: ast.Module, qualname: str) -> Function:
    """The definition in a module's source. Raises MutantError where it is not there, or more than once."""
    *classes, name = qualname.split(".")
    body: list[ast.stmt] = tree.body
    for each in classes:
        body = next((node.body for node in body if isinstance(node, ast.ClassDef) and node.name == each), [])
    found = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name]
    if len(found) != 1:
        raise MutantError(f"{qualname} is defined {len(found)} times")
    return found[0]


def checked(mutants: list[Mutant]) -> dict[str, Mutant]:
    """By name. Raises MutantError on the first that names no function, or has another's name."""
    by_name: dict[str, Mutant] = {}
    for mutant in mutants:
        if mutant.name in by_name:
            raise MutantError(f"{mutant.name} is there twice")
        if mutant.invariant not in INVARIANTS:
            raise MutantError(f"{mutant.name}: {mutant.invariant!r} is no invariant; there are {', '.join(INVARIANTS)}")
        try:
            find(ast.parse(mutant.file.read_text()), mutant.qualname)
        except MutantError as error:
            raise MutantError(f"{mutant.name}: {mutant.function}: {error}") from None
        by_name[mutant.name] = mutant
    return by_name


def lacks(mutants: list[Mutant], at_least: int) -> list[str]:
    """What the whole list is short of, in words."""
    short = [f"{len(mutants)} mutants, and {at_least} are wanted"] if len(mutants) < at_least else []
    for invariant in INVARIANTS:
        count = sum(mutant.invariant == invariant for mutant in mutants)
        if count < TWO_EACH:
            short.append(f"{count} mutants of {invariant!r}, and {TWO_EACH} are wanted")
    return short
