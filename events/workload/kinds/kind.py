"""What makes a kind of workload, as data: nothing else in the program knows one kind from another."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from events.fields.declare import Section
from events.workload.fields.creation import Creation
from events.workload.fields.scheduling import PriorityClass
from events.workload.pod_sets import PodSet
from events.workload.spec import Beside, TrainingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of workload."""

    name: str
    """As the contract says it, such as `Training`; stored in the event of a creation."""
    kubernetes_name: str
    """What Run:ai calls it in a cluster, such as `TrainingWorkload` (S003)."""
    collection: str
    """The last word of the path at which it is submitted, such as `trainings`."""
    priority: PriorityClass
    """Of one that names none (S045)."""
    creation: type[Creation]
    """The body of the request that creates one."""
    shown: Callable[[TrainingSpec, Beside], Section]
    """The spec as answers give it, in the fields of the request."""
    with_defaults: Callable[[TrainingSpec], TrainingSpec]
    """The spec with every default of the kind written out: a later change of a default changes no stored spec."""
    pod_sets: Callable[[TrainingSpec, Beside], tuple[PodSet, ...]]
    """The pods that a spec, with its defaults, stands for; at least one set."""
    completed: Callable[[tuple[PodSet, ...], Mapping[str, int]], bool]
    """Whether the workload is completed, by how many pods of each set have succeeded."""
    backoff_limit: Callable[[TrainingSpec], int | None]
    """How many failed runs are run again before the workload has failed. None: whatever ends is run again, for ever,
    and it neither completes nor fails.
    """
