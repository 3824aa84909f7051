"""`python -m tests.mutants`: whether the suites see every seeded bug, and which of them sees it first.

    python -m tests.mutants                       # all; fails where fewer than 38 of 40 are caught
    python -m tests.mutants room-for-everything   # these
    python -m tests.mutants --docs                # write the list in docs/mutants.md again

Suites are first run as they are: one that fails without a bug would catch everything.
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.bugs import MUTANTS
from tests.mutants.listing import write_docs
from tests.mutants.mutant import NOTHING, ROOT, VARIABLE, Mutant, checked, lacks
from tests.mutants.suites import Stage, stages

LEAST_CAUGHT = 0.95
"""38 of 40."""
AT_LEAST = 40
AT_ONCE = 2
OUT = ROOT / "out" / "mutants"
PASSED, FAILED, INTERRUPTED = 0, 1, 2
"""pytest's exit codes; interrupted also where a module cannot be imported."""
SAID = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
FIRST_LINES = threading.Lock()


@dataclass(frozen=True)
class Ran:
    code: int | None
    """None: it took too long."""
    output: str

    @property
    def first(self) -> str:
        """The test that failed first."""
        found = SAID.search(self.output)
        return found[1] if found else "all of it took too long" if self.code is None else "it did not even begin"


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    caught_by: str
    """Empty: nobody."""
    seconds: float


def run(stage: Stage, mutant: str, log: Path) -> Ran:
    """The stage with this mutant, up to its first failure."""
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.plugin"]
        command += ["-m", stage.marker, "--basetemp", f"{folder}/tests", *stage.options, *stage.paths]
        environment = {**os.environ, VARIABLE: mutant, "HYPOTHESIS_STORAGE_DIRECTORY": f"{folder}/hypothesis"}
        started = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
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
        file.write(f"== {stage.name}: {code}\n{output}\n")
    return Ran(code, output)


def judge(mutant: Mutant) -> Verdict:
    """Go from stage to stage until one fails."""
    log, began = OUT / f"{mutant.name}.log", time.monotonic()
    log.unlink(missing_ok=True)
    caught = ""
    for stage in stages(mutant.module):
        ran = run(stage, mutant.name, log)
        if ran.code in {FAILED, INTERRUPTED, None}:
            caught = ran.first
            break
        if ran.code != PASSED:
            raise SystemExit(f"{mutant.name}: pytest ended with {ran.code} in {stage.name}; see {log}")
    verdict = Verdict(mutant, caught, time.monotonic() - began)
    with FIRST_LINES:
        print(f"{verdict.seconds:5.0f} s  {mutant.name:<40} {caught or 'NOT CAUGHT'}", flush=True)
    return verdict


def check_suites(mutants: Sequence[Mutant]) -> None:
    """Every stage as it is, side by side. Raises SystemExit where one fails."""
    needed = list(dict.fromkeys(stage for mutant in mutants for stage in stages(mutant.module)))
    log = OUT / "as-it-is.log"
    log.unlink(missing_ok=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(lambda stage: run(stage, NOTHING, log), needed))
    for stage, ran in zip(needed, results, strict=True):
        if ran.code != PASSED:
            raise SystemExit(f"{stage.name} fails without a mutant: {ran.first}; see {log}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.mutants")
    parser.add_argument("names", nargs="*", help="these only; all of them where none is named")
    parser.add_argument("--docs", action="store_true", help="write the list in docs/mutants.md, and run nothing")
    parser.add_argument("--unchecked", action="store_true", help="do not run the suites as they are first")
    given = parser.parse_args(arguments)
    by_name = checked(MUTANTS)
    if given.docs:
        write_docs(MUTANTS)
        return 0
    chosen = [by_name[name] for name in given.names] or MUTANTS
    began = time.monotonic()
    if not given.unchecked:
        check_suites(chosen)
        print(f"{time.monotonic() - began:5.0f} s  all suites pass as they are", flush=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        verdicts = list(pool.map(judge, chosen))
    missed = [verdict for verdict in verdicts if not verdict.caught_by]
    for verdict in missed:
        print(f"not caught: {verdict.mutant.name} ({verdict.mutant.function}): {verdict.mutant.bug}")
    caught = len(verdicts) - len(missed)
    print(f"{caught} of {len(verdicts)} caught in {time.monotonic() - began:.0f} s")
    short = [] if given.names else lacks(MUTANTS, AT_LEAST)
    for words in short:
        print(f"the list is short: {words}")
    return 1 if short or caught < LEAST_CAUGHT * len(verdicts) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
