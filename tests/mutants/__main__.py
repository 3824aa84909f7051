"""`python -m tests.mutants`: whether the suites see every seeded bug, and which of them sees it first.

    python -m tests.mutants                       # all; fails where fewer than 38 of 40 are caught
    python -m tests.mutants room-for-everything   # these
    python -m tests.mutants --docs                # write the list in docs/mutants.md again

The test that caught a mutant the last time is asked first (caught.json), then the suites from the nearest on. A test
that fails has caught the mutant if it passes without: one that fails as it is would catch everything.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

from tests.mutants.bugs import MUTANTS
from tests.mutants.caught import Caught, read_caught, write_caught
from tests.mutants.listing import write_docs
from tests.mutants.mutant import NOTHING, ROOT, VARIABLE, Mutant, checked, lacks
from tests.mutants.suites import Stage, alone, stages
from tests.support.draws import ALL

LEAST_CAUGHT = 0.95
"""38 of 40."""
AT_LEAST = 40
AT_ONCE = 2
OUT = ROOT / "out" / "mutants"
PASSED, FAILED, INTERRUPTED, NOT_FOUND, NONE_CHOSEN = 0, 1, 2, 4, 5
"""pytest's exit codes; interrupted also where a module cannot be imported."""
SAID = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py\S*?(?:\[.*?\])?)(?: - (.*))?$", re.MULTILINE)
"""A line of pytest's summary: the test, and in what words it failed."""
MOST_WORDS = 120
FIRST_LINES = threading.Lock()
WIDE = "500"
"""Columns, so that pytest does not cut these words."""


@dataclass(frozen=True)
class Ran:
    code: int | None
    """None: it took too long."""
    output: str

    @property
    def caught(self) -> Caught | None:
        """The first failure; None where there was none."""
        if self.code == PASSED:
            return None
        # An error is mostly the end of a test that failed: what that one says comes first.
        if found := max(SAID.finditer(self.output), key=lambda line: line[0].startswith("FAILED"), default=None):
            return Caught(test=found[1], words=found[2] or "")
        return Caught(test="", words="all of it took too long" if self.code is None else "it did not even begin")


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    caught: Caught | None
    """None: by nobody."""
    late: tuple[Caught, ...]
    """Tests that only waited too long, which a busy machine may do as well: they have caught nothing."""
    broken: tuple[str, ...]
    """Tests that failed with the mutant, and fail without."""
    seconds: float

    @property
    def line(self) -> str:
        """Who caught it, and in what words."""
        if self.caught is None:
            return f"{self.seconds:5.0f} s  {self.mutant.name:<40} NOT CAUGHT"
        return f"{self.seconds:5.0f} s  {self.mutant.name:<40} {self.caught.test}: {self.caught.words[:MOST_WORDS]}"


def run(stage: Stage, mutant: str, log: Path) -> Ran:
    """The stage with this mutant, up to its first failure."""
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.plugin"]
        command += ["-m", stage.marker, "--basetemp", f"{folder}/tests", *stage.options, *stage.paths]
        own = {VARIABLE: mutant, "HYPOTHESIS_STORAGE_DIRECTORY": f"{folder}/hypothesis", "COLUMNS": WIDE, ALL: "all"}
        started = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        code: int | None
        try:
            output, _ = started.communicate(timeout=stage.seconds)
            code = started.returncode
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, 9)
            output, code = started.communicate()[0], None
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        file.write(f"== {mutant}: {stage.name}: {code}\n{output}\n")
    return Ran(code, output)


@dataclass
class AsTheyAre:
    """Whether tests pass without a mutant. Each is run once, whoever asks."""

    _ran: dict[str, Future[bool]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def passes(self, stage: Stage) -> bool:
        with self._lock:
            mine = Future[bool]()
            known = self._ran.setdefault(stage.name, mine)
        if known is not mine:
            return known.result()
        mine.set_result(run(stage, NOTHING, OUT / "as-they-are.log").code == PASSED)
        return mine.result()


def judge(mutant: Mutant, asked: Sequence[Stage], as_they_are: AsTheyAre) -> Verdict:
    """Go from stage to stage until a test fails that passes without the mutant, and not because it waited too long."""
    log, began, set_aside = OUT / f"{mutant.name}.log", time.monotonic(), dict[str, Caught]()
    log.unlink(missing_ok=True)
    broken, caught = list[str](), None
    for stage in asked:
        while caught is None:
            ran = run(stage.without(set_aside), mutant.name, log)
            if ran.code == NONE_CHOSEN and set_aside:
                break
            if ran.code in {NOT_FOUND, NONE_CHOSEN}:
                if stage.may_be_gone:
                    break
                raise SystemExit(f"{mutant.name}: pytest ended with {ran.code} in {stage.name}; see {log}")
            seen = ran.caught
            if seen is None or seen.test in set_aside:
                break
            only = alone(stage, seen.test) if seen.test else stage
            if not as_they_are.passes(only):
                broken.append(only.name)
            elif not seen.by_time and (stage.may_be_gone or fails_again(only, mutant, log)):
                caught = seen
                break
            if not seen.test:
                break
            set_aside[seen.test] = seen
    late = tuple(seen for seen in set_aside.values() if seen.by_time)
    verdict = Verdict(mutant, caught, late, tuple(broken), time.monotonic() - began)
    with FIRST_LINES:
        print(verdict.line, flush=True)
    return verdict


def fails_again(stage: Stage, mutant: Mutant, log: Path) -> bool:
    """Whether the test that failed does so a second time: one that fails now and then has seen no bug."""
    seen = run(stage, mutant.name, log).caught
    return seen is not None and not seen.by_time


def say(verdicts: Sequence[Verdict], seconds: float) -> bool:
    """The end of it. Whether enough were caught, by tests that pass as they are."""
    missed = [verdict for verdict in verdicts if verdict.caught is None]
    broken = sorted({test for verdict in verdicts for test in verdict.broken})
    for verdict in verdicts:
        for seen in verdict.late:
            print(f"waited too long: {verdict.mutant.name}: {seen.test}: {seen.words[:MOST_WORDS]}")
    for verdict in missed:
        print(f"not caught: {verdict.mutant.name} ({verdict.mutant.function}): {verdict.mutant.bug}")
    for test in broken:
        print(f"fails without a mutant: {test}; see {OUT / 'as-they-are.log'}")
    caught = len(verdicts) - len(missed)
    print(f"{caught} of {len(verdicts)} caught in {seconds:.0f} s")
    return not broken and caught >= LEAST_CAUGHT * len(verdicts)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.mutants")
    parser.add_argument("names", nargs="*", help="these only; all of them where none is named")
    parser.add_argument("--docs", action="store_true", help="write the list in docs/mutants.md, and run nothing")
    parser.add_argument("--remember", action="store_true", help="from now on ask first the tests that caught them now")
    given = parser.parse_args(arguments)
    by_name = checked(MUTANTS)
    if given.docs:
        write_docs(MUTANTS)
        return 0
    for name in given.names:
        if name not in by_name:
            raise SystemExit(f"there is no mutant {name!r}; docs/mutants.md lists them")
    chosen = [by_name[name] for name in given.names] or MUTANTS
    known, as_they_are, began = read_caught(), AsTheyAre(), time.monotonic()
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "as-they-are.log").unlink(missing_ok=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = [stages(mutant.module, known.get(mutant.name, "")) for mutant in chosen]
        verdicts = list(pool.map(judge, chosen, asked, repeat(as_they_are)))
    if given.remember:
        now = {verdict.mutant.name: verdict.caught.test for verdict in verdicts if verdict.caught is not None}
        write_caught({name: test for name, test in {**known, **now}.items() if test and name in by_name})
    enough = say(verdicts, time.monotonic() - began)
    short = [] if given.names else lacks(MUTANTS, AT_LEAST)
    for words in short:
        print(f"the list is short: {words}")
    return 0 if enough and not short else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
