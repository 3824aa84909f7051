"""The mutation gate itself: a bug is in its place in every process, and one without a place fails loudly."""

import ast
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.bugs import MUTANTS
from tests.mutants.listing import PAGE, page
from tests.mutants.mutant import INVARIANTS, ROOT, VARIABLE, Mutant, MutantError, checked, find, lacks
from tests.mutants.plugin import write_interpreter
from tests.mutants.suites import AFTER, OWN, stages

NOBODY = Mutant(name="x", function="events.node:_shortage", invariant="room", bug="b", make=lambda original: original)


def test_every_mutant_has_a_function_to_replace() -> None:
    assert checked(MUTANTS).keys() == {mutant.name for mutant in MUTANTS}


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("events.node:_no_such_function", "_no_such_function is defined 0 times"),
        ("events.no_such_module:decide", "there is no module events.no_such_module"),
        ("events.node:Node.no_such_method", "defined 0 times"),
        ("events.node:NoSuchClass.free_pods", "defined 0 times"),
    ],
)
def test_a_mutant_whose_function_is_gone_fails_loudly(function: str, words: str) -> None:
    gone = Mutant(name="gone", function=function, invariant="room", bug="b", make=lambda original: original)
    with pytest.raises(MutantError, match=words):
        checked([gone])


def test_two_mutants_of_one_name_are_refused() -> None:
    with pytest.raises(MutantError, match="twice"):
        checked([NOBODY, NOBODY])


def test_a_mutant_that_breaks_no_invariant_is_refused() -> None:
    with pytest.raises(MutantError, match="'luck' is no invariant"):
        checked([replace(NOBODY, invariant="luck")])


def test_a_list_that_is_too_short_or_leaves_an_invariant_out_says_so() -> None:
    each = [replace(NOBODY, invariant=invariant) for invariant in INVARIANTS]
    assert lacks([*each, *each], 2 * len(each)) == []
    assert lacks([*each, *each], 1000) == [f"{2 * len(each)} mutants, and 1000 are wanted"]
    assert len(lacks([*each, *each[1:]], 1)) == 1


def test_methods_are_found_in_their_class() -> None:
    tree = ast.parse("class A:\n    def f(self): pass\nclass B:\n    async def f(self): pass\n")
    assert isinstance(find(tree, "B.f"), ast.AsyncFunctionDef)


def test_the_list_in_the_docs_is_that_of_the_code() -> None:
    assert PAGE.read_text() == page(MUTANTS), "run `make mutants ARGS=--docs`"


def test_every_module_of_the_product_has_suites_that_exist() -> None:
    for prefix, own in OWN:
        assert (ROOT / prefix.rstrip(".").replace(".", "/")).is_dir(), prefix
        for stage in (*own, *AFTER):
            assert all((ROOT / path).exists() for path in stage.paths), stage
    assert stages("services.scheduler.plan")[0].paths == ("tests/scheduler",)
    assert stages("events.node")[0].paths == ("tests/events",)


def said_by(interpreter: Path | str, *arguments: str, mutant: str) -> str:
    ran = subprocess.run(
        [str(interpreter), *arguments],
        cwd=ROOT,
        env={**os.environ, VARIABLE: mutant},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return ran.stdout + ran.stderr


def test_a_started_python_has_the_bug_and_so_have_those_that_it_starts(tmp_path: Path) -> None:
    interpreter = write_interpreter(tmp_path)
    for mutant, expected in (("room-for-everything", "_room_for_everything"), ("nothing", "_shortage")):
        said = said_by(interpreter, "-m", "tests.mutants.show", "events.node", "_shortage", mutant=mutant)
        assert expected in said.splitlines()[0], said
        assert said.splitlines()[0] == said.splitlines()[1], said


def test_a_program_in_words_is_run_by_the_real_python(tmp_path: Path) -> None:
    interpreter = write_interpreter(tmp_path)
    said = said_by(interpreter, "-c", "import sys; print(sys.executable)", mutant="room-for-everything")
    assert said.strip() == sys.executable


def test_a_name_that_no_mutant_has_ends_the_run(tmp_path: Path) -> None:
    said = said_by(write_interpreter(tmp_path), "-m", "tests.mutants.show", "events.node", "decide", mutant="nobody")
    assert "there is no mutant nobody" in said
