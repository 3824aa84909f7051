"""The seeded bugs, by area. Whoever adds one has not read the suites that shall see it."""

from typing import Final

from tests.mutants.bugs.access import ACCESS
from tests.mutants.bugs.agents import AGENTS
from tests.mutants.bugs.commands import COMMANDS
from tests.mutants.bugs.kubernetes import KUBERNETES
from tests.mutants.bugs.log import LOG
from tests.mutants.bugs.scheduling import SCHEDULING
from tests.mutants.bugs.serving import SERVING
from tests.mutants.bugs.sync import SYNC
from tests.mutants.bugs.tables import TABLES
from tests.mutants.bugs.workloads import WORKLOADS
from tests.mutants.mutant import Mutant

MUTANTS: Final[list[Mutant]] = [
    *WORKLOADS,
    *SCHEDULING,
    *LOG,
    *COMMANDS,
    *SYNC,
    *AGENTS,
    *KUBERNETES,
    *TABLES,
    *ACCESS,
    *SERVING,
]
