"""Where a mutant is looked for: first where its module is tested, then ever farther away, last under the checker."""

from dataclasses import dataclass
from typing import Final

QUICK: Final = "not faults and not kubernetes and not kubernetes_faults and not slow"


@dataclass(frozen=True)
class Stage:
    paths: tuple[str, ...]
    marker: str = QUICK
    options: tuple[str, ...] = ()
    seconds: int = 420
    """At most so long: beyond it, it has caught the mutant, if it passes in time without."""

    @property
    def name(self) -> str:
        return " ".join(path.removeprefix("tests/") for path in self.paths)


CHECKER: Final = Stage(("tests/checker",))
TOGETHER: Final = Stage(("tests/scheduler/test_with_cluster_sync.py", "tests/cluster_sync", "tests/commands"))
EDGE: Final = Stage(("tests/api", "tests/ownership"))
ALL_OF_IT: Final = Stage(("tests/e2e/test_random_acts.py", "tests/e2e/test_training.py"), marker="not faults")
SCENARIO: Final = Stage(
    ("tests/faults/test_kills.py",), marker="faults", options=("-k", "two_of_each", "--rounds", "4", "--timeout", "600")
)
KUBERNETES: Final = Stage(
    ("tests/kubernetes/test_backend.py", "tests/kubernetes/test_fences.py", "tests/kubernetes/test_reservations.py"),
    marker="kubernetes",
)
KUBERNETES_SCENARIO: Final = Stage(
    ("tests/kubernetes/faults/test_kills.py", "tests/kubernetes/faults/test_two_agents.py"),
    marker="kubernetes_faults",
    options=("--percent", "4", "--timeout", "600"),
)

OWN: Final[tuple[tuple[str, tuple[Stage, ...]], ...]] = (
    # The first that a module's name begins with.
    ("events.", (Stage(("tests/events",)), CHECKER, Stage(("tests/scheduler", "tests/projections")))),
    ("projections.", (Stage(("tests/projections",)), Stage(("tests/projector", "tests/api")))),
    ("services.agent.backends.kubernetes", (Stage(("tests/agent/kubernetes",)), KUBERNETES, KUBERNETES_SCENARIO)),
    ("services.agent.", (Stage(("tests/agent",)),)),
    ("services.api.", (Stage(("tests/api",)), Stage(("tests/contract", "tests/cli")))),
    ("services.ownership.", (Stage(("tests/ownership",)), EDGE)),
    ("services.commands.", (Stage(("tests/commands",)),)),
    ("services.scheduler.", (Stage(("tests/scheduler",)),)),
    ("services.cluster_sync.", (Stage(("tests/cluster_sync",)),)),
    ("services.auto_deletion.", (Stage(("tests/auto_deletion",)),)),
    ("services.projector.", (Stage(("tests/projector",)),)),
    ("services.runtime.", (Stage(("tests/runtime",)),)),
    ("services.setup.", (Stage(("tests/setup", "tests/runtime/test_streams.py")),)),
    ("muster.embedded", (Stage(("tests/embedded",)),)),
    ("muster.cli", (Stage(("tests/cli",)),)),
)
AFTER: Final = (TOGETHER, EDGE, SCENARIO, ALL_OF_IT)


def stages(module: str) -> list[Stage]:
    """For mutants of this module, the nearest first; each once."""
    own = next((stages for prefix, stages in OWN if f"{module}.".startswith(prefix)), ())
    return list(dict.fromkeys((*own, *AFTER)))
