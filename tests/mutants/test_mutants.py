"""The mutation gate itself: a bug is in its place in every process, and one without a place fails loudly."""

import ast
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.__main__ import AsTheyAre, Ran, Verdict, judge, say
from tests.mutants.bugs import MUTANTS
from tests.mutants.caught import Caught, read_caught
from tests.mutants.listing import PAGE, page
from tests.mutants.mutant import INVARIANTS, ROOT, VARIABLE, Mutant, MutantError, checked, find, lacks
from tests.mutants.plugin import write_interpreter
from tests.mutants.suites import AFTER, OWN, Stage, alone, stages

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


def test_the_suites_of_a_module_are_asked_from_the_nearest_on() -> None:
    naming, own, *_ = stages("services.scheduler.room")
    assert "tests/scheduler/test_room.py" in naming.paths
    assert len(naming.paths) < 5, "those that name it, and no more"
    assert own.paths == ("tests/scheduler",)


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


def test_the_test_that_caught_a_mutant_the_last_time_is_asked_first_as_its_suite_runs_it() -> None:
    known = "tests/faults/test_kills.py::test_kill_9_of_one_part[two_of_each]"
    first, *others = stages("events.node", known)
    assert first.paths == (known,)
    assert (first.marker, first.options) == ("faults", others[-2].options)
    assert others == stages("events.node")


def test_what_is_remembered_is_of_mutants_that_are_there() -> None:
    assert read_caught().keys() <= {mutant.name for mutant in MUTANTS}


@pytest.mark.parametrize(
    ("line", "caught"),
    [
        ("FAILED tests/a.py::test_b - assert 1 == 0", Caught(test="tests/a.py::test_b", words="assert 1 == 0")),
        ("FAILED tests/a.py::test_b[x - y-1] - E: z", Caught(test="tests/a.py::test_b[x - y-1]", words="E: z")),
        ("FAILED tests/a.py::test_b[[1]-x] - E: z", Caught(test="tests/a.py::test_b[[1]-x]", words="E: z")),
        ("ERROR tests/a.py", Caught(test="tests/a.py", words="")),
        ("killed", Caught(test="", words="it did not even begin")),
    ],
)
def test_who_caught_it_and_in_what_words_is_read_from_what_pytest_says(line: str, caught: Caught) -> None:
    assert Ran(1, f"x\n{line}\n!!!!").caught == caught


def test_waiting_too_long_is_told_from_a_wrong_answer() -> None:
    assert Caught(test="t", words="Failed: Timeout (>120.0s) from pytest-timeout.").by_time
    assert not Caught(test="t", words="AssertionError: assert 1 == 0").by_time


LIGHT = ("-p", "no:schemathesis", "-p", "no:hypothesispytest", "-p", "no:_hypothesis_pytestplugin")
"""Without what takes long to import."""
TESTS = """
import os

def test_of_the_room():
    assert os.environ["MUTANT"] == "nothing"

def test_that_fails_anyway():
    assert False, "anyway"

def test_that_waits():
    if os.environ["MUTANT"] != "nothing":
        raise TimeoutError("not within 90 s")
"""


@pytest.mark.timeout(400)
def test_a_bug_is_caught_by_a_test_that_fails_with_it_and_passes_without(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(TESTS)
    whole = Stage((str(file),), options=LIGHT)
    of_room = alone(whole, f"{file}::test_of_the_room")
    waits = alone(whole, f"{file}::test_that_waits")
    anyway = alone(whole, f"{file}::test_that_fails_anyway")
    gone = alone(whole, f"{file}::test_that_is_gone")
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "room-for-everything")
    verdict = judge(mutant, [gone, waits, anyway, of_room], AsTheyAre())
    assert verdict.caught is not None
    assert "test_of_the_room" in verdict.caught.test
    assert "room-for-everything" in verdict.caught.words
    assert len(verdict.broken) == 1
    assert ["test_that_waits" in seen.test for seen in verdict.late] == [True]
    assert not say([verdict], 1.0), "a test that fails without a bug fails the gate"


def test_the_gate_fails_where_more_than_one_in_twenty_is_missed(capsys: pytest.CaptureFixture[str]) -> None:
    seen = Verdict(NOBODY, Caught(test="t", words="w"), (), (), 1.0)
    missed = replace(seen, caught=None)
    assert say([*[seen] * 38, missed, missed], 1.0)
    assert not say([*[seen] * 37, missed, missed, missed], 1.0)
    assert "not caught: x (events.node:_shortage): b" in capsys.readouterr().out
