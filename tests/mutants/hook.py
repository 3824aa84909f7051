"""Puts a mutant's function in its place, while the module is being imported: whoever takes it from there has the bug.

The source is compiled with one more decorator on the function, so tables and closures made of it in its own module have
the bug, too.
"""

import ast
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from typing import Any

from tests.mutants.bugs import MUTANTS
from tests.mutants.mutant import NOTHING, VARIABLE, Mutant, MutantError, find

DECORATOR = "__import__('tests.mutants.hook', fromlist=['replaced']).replaced"


class _Active:
    mutant: Mutant | None = None


def activate() -> None:
    """Install the mutant that the environment names; nothing where it names none. Raises MutantError."""
    name = os.environ.get(VARIABLE)
    if not name or name == NOTHING:
        return
    mutant = next((each for each in MUTANTS if each.name == name), None)
    if mutant is None:
        raise MutantError(f"there is no mutant {name}")
    if mutant.module in sys.modules:
        raise MutantError(f"{mutant.module} was imported before its mutant {name}")
    _Active.mutant = mutant
    sys.meta_path.insert(0, _Finder(mutant))


def replaced(original: Any) -> Any:
    """The decorator that the hook writes above the function."""
    mutant = _Active.mutant
    assert mutant is not None
    made = mutant.make(original)
    return functools.wraps(original)(made)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        loader = _Loader(fullname, spec.origin, self._mutant)
        return importlib.util.spec_from_file_location(
            fullname, spec.origin, loader=loader, submodule_search_locations=spec.submodule_search_locations
        )


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles from source, never from a cache and never into one."""

    def __init__(self, fullname: str, path: str, mutant: Mutant) -> None:
        super().__init__(fullname, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> types.CodeType:
        tree = ast.parse(self.get_data(self.path), self.path)
        function = find(tree, self._mutant.qualname)
        # The last decorator is the first to be applied: to the bare function.
        function.decorator_list.append(ast.parse(DECORATOR, mode="eval").body)
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)
