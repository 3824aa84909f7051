"""The kinds of workloads: one module and one line each."""

from typing import Final

from events.workload.kinds.kind import Kind
from events.workload.kinds.training import TRAINING

KINDS: Final[dict[str, Kind]] = {kind.name: kind for kind in (TRAINING,)}
"""The registry, by name."""
