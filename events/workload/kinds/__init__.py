"""The kinds of workloads: one module and one line each."""

from typing import Final

from events.workload.kinds.distributed import DISTRIBUTED
from events.workload.kinds.inference import INFERENCE
from events.workload.kinds.kind import Kind
from events.workload.kinds.training import TRAINING
from events.workload.kinds.workspace import WORKSPACE

KINDS: Final[dict[str, Kind]] = {kind.name: kind for kind in (TRAINING, DISTRIBUTED, WORKSPACE, INFERENCE)}
"""The registry, by name."""
