"""Where a mutant is looked for: first where its module is tested, then ever farther away, last under the checker."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from tests.mutants.mutant import ROOT

QUICK: Final = "not faults and not kubernetes and not kubernetes_faults and not slow"


@dataclass(frozen=True)
class Stage:
    paths: tuple[str, ...]
    marker: str = QUICK
    options: tuple[str, ...] = ()
    seconds: int = 420
    """At most so long: beyond it, it has seen nothing."""
    may_be_gone: bool = False
    """Whether it may name a test that is there no more."""

    def without(self, tests: Iterable[str]) -> "Stage":
        """The same, but for these tests."""
        return replace(self, options=(*self.options, *(f"--deselect={test}" for test in tests)))

    @property
    def name(self) -> str:
        return " ".join(path.removeprefix("tests/") for path in self.paths)


CHECKER: Final = Stage(("tests/checker",))
TOGETHER: Final = Stage(("tests/scheduler/test_with_cluster_sync.py", "tests/cluster_sync", "tests/commands"))
EDGE: Final = Stage(("tests/api", "tests/ownership"))
ALL_OF_IT: Final = Stage(
    ("tests/faults/test_random_acts.py", "tests/e2e/test_training.py"),
    marker="not kubernetes",
    options=("--rounds", "2", "--timeout", "600"),
)
SCENARIO: Final = Stage(
    ("tests/faults/test_kills.py",), marker="faults", options=("-k", "two_of_each", "--rounds", "4", "--timeout", "600")
)
KUBERNETES: Final = Stage(
    tuple(f"tests/kubernetes/test_{name}.py" for name in ("lease", "fences", "stood_still", "backend", "reservations")),
    marker="kubernetes",
)
KUBERNETES_SCENARIO: Final = Stage(
    ("tests/kubernetes/faults/test_kills.py", "tests/kubernetes/faults/test_two_agents.py"),
    marker="kubernetes_faults",
    options=("--percent", "4", "--timeout", "600"),
)

OWN: Final[tuple[tuple[str, tuple[Stage, ...]], ...]] = (
    # The first that a module's name begins with.
    ("events.", (Stage(("tests/events",)), CHECKER, Stage(("tests/scheduler", "tests/projections", "tests/runtime")))),
    ("projections.", (Stage(("tests/projections",)), Stage(("tests/projector", "tests/api")))),
    ("services.agent.backends.kubernetes", (Stage(("tests/agent/kubernetes",)), KUBERNETES, KUBERNETES_SCENARIO)),
    ("services.agent.", (Stage(("tests/agent",)),)),
    ("services.api.", (Stage(("tests/api",)), Stage(("tests/contract", "tests/cli")))),
    ("services.ownership.", (Stage(("tests/ownership",)), EDGE)),
    ("services.commands.", (Stage(("tests/commands",)),)),
    ("services.scheduler.", (Stage(("tests/scheduler",)),)),
    ("services.cluster_sync.", (Stage(("tests/cluster_sync",)),)),
    ("services.auto_deletion.", (Stage(("tests/auto_deletion",)),)),
    ("services.autoscaler.", (Stage(("tests/autoscaler",)),)),
    ("services.proxy.", (Stage(("tests/proxy",)),)),
    ("services.projector.", (Stage(("tests/projector",)),)),
    ("services.runtime.", (Stage(("tests/runtime",)),)),
    ("services.setup.", (Stage(("tests/setup", "tests/runtime/test_streams.py")),)),
    ("muster.embedded", (Stage(("tests/embedded",)),)),
    ("muster.cli", (Stage(("tests/cli",)),)),
)
AFTER: Final = (TOGETHER, EDGE, SCENARIO, ALL_OF_IT)


def alone(stage: Stage, test: str) -> Stage:
    """One test of a stage."""
    return replace(stage, paths=(test,), may_be_gone=True)


def stages(module: str, known: str = "") -> list[Stage]:
    """For mutants of this module, the nearest first; each once.

    `known`, the test that caught the mutant the last time, stands before them, as its stage runs it.
    """
    own = next((stages for prefix, stages in OWN if f"{module}.".startswith(prefix)), ())
    wide = list(dict.fromkeys((*_naming_first(module, own), *AFTER)))
    of_known = [stage for stage in wide if known and any(known.startswith(path) for path in stage.paths)]
    return [*(alone(stage, known) for stage in of_known[:1]), *wide]


def _naming_first(module: str, own: tuple[Stage, ...]) -> Iterator[Stage]:
    """Each stage, and before it those of its test modules alone that name the module."""
    word = re.compile(rf"\b{re.escape(module)}\b")
    for stage in own:
        files = [file for path in stage.paths for file in sorted([*(ROOT / path).rglob("test_*.py"), ROOT / path])]
        naming = [file for file in files if file.is_file() and word.search(file.read_text())]
        if naming and len(naming) < len(files):
            yield replace(stage, paths=tuple(str(file.relative_to(ROOT)) for file in naming))
        yield stage
