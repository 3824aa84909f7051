"""What a workload asks for, as it is stored, and what follows from it for pods.

Its fields are declared in `fields`, by section. Names and meanings are the contract's (camelCase on the wire);
quantities stay the text that the person wrote.
What a kind makes of it stands in `kinds`, what the pods are made of in `pod_sets`.
"""

import shlex
from typing import TYPE_CHECKING, Final, get_args

import msgspec
from msgspec.structs import replace

from events.fields.declare import joined
from events.quantities import cores_to_milli, parse_bytes
from events.workload.fields.compute import ComputeSpec, Resources
from events.workload.fields.lifetime import Lifetime
from events.workload.fields.metadata import Metadata
from events.workload.fields.process import Process
from events.workload.fields.scheduling import PriorityClass, Scheduling

MAX_AUTO_DELETION_SECONDS: Final = 100 * 365 * 24 * 3600
"""A hundred years: longer cannot be a wish, and a larger number would leave the calendar."""
PRIORITY_RANK: Final[dict[str, int]] = {name: rank for rank, name in enumerate(get_args(PriorityClass))}
"""The seven priority classes (R18), least first."""
FIRST_NON_PREEMPTIBLE_RANK: Final = PRIORITY_RANK["high"]
"""From this class on, an unset preemptibility means non-preemptible (R19)."""

WHOLE_GPU_MILLI: Final = 1000


if TYPE_CHECKING:

    class TrainingSpec(Process, Resources, Scheduling, Lifetime, Metadata, frozen=True, kw_only=True):
        """The effective spec of a standard training: every field has its value."""
else:
    TrainingSpec = joined("TrainingSpec", __name__, Process, Resources, Scheduling, Lifetime, Metadata)

NO_SPEC: Final = TrainingSpec(image="")
"""Of a workload that never was."""


MOST_ASKED: Final = 2**62
MOST_DEVICES_ASKED: Final = 2**20
"""Of one pod."""


class PodRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one pod takes from its node. Everything in whole units, so sums are exact."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpu_devices: int = 0
    gpu_milli: int = 0
    """Share of each device, in thousandths; WHOLE_GPU_MILLI for whole ones; 0 where memory decides."""
    gpu_memory_bytes: int = 0
    """Share of each device by memory; the node's device size turns it into thousandths."""


def with_defaults(spec: TrainingSpec) -> TrainingSpec:
    """The spec with the defaults that depend on other fields (R19, C4); every other is the field's own.

    Done once, when the creation is decided: a later change of a default changes no stored workload.
    """
    compute = spec.compute
    if compute.gpu_request_type is not None and not compute.gpu_devices_request:
        compute = replace(compute, gpu_devices_request=1)
    derived = "non-preemptible" if PRIORITY_RANK[spec.priority_class] >= FIRST_NON_PREEMPTIBLE_RANK else "preemptible"
    return replace(spec, compute=compute, preemptibility=spec.preemptibility or derived)


def pod_request(compute: ComputeSpec) -> PodRequest:
    """Requests in whole units; without a GPU request a pod takes no GPU (S036)."""
    # A spec that was stored before the devices of a share were written out has none.
    devices = compute.gpu_devices_request or (1 if compute.gpu_request_type is not None else 0)
    milli, memory = WHOLE_GPU_MILLI if devices else 0, 0
    if compute.gpu_request_type == "portion":
        milli = cores_to_milli(compute.gpu_portion_request or 0.0)
    elif compute.gpu_request_type == "memory":
        milli, memory = 0, parse_bytes(compute.gpu_memory_request or "0")
    return PodRequest(
        cpu_milli=_at_most(MOST_ASKED, cores_to_milli(compute.cpu_core_request)),
        memory_bytes=_at_most(MOST_ASKED, parse_bytes(compute.cpu_memory_request)),
        gpu_devices=_at_most(MOST_DEVICES_ASKED, devices),
        gpu_milli=_at_most(WHOLE_GPU_MILLI, milli),
        gpu_memory_bytes=_at_most(MOST_ASKED, memory),
    )


def check_quantities(spec: TrainingSpec) -> None:
    """Raises ValueError where a quantity of the spec is none, or quotes of its command do not close."""
    compute = spec.compute
    parse_bytes(compute.cpu_memory_request)
    for quantity in (compute.cpu_memory_limit, compute.gpu_memory_request, compute.gpu_memory_limit):
        if quantity is not None:
            parse_bytes(quantity)
    if any(character in text for text in (spec.command, spec.args) if text for character in "'\"\\"):
        shlex.split(spec.command or "")
        shlex.split(spec.args or "")


def _at_most(most: int, number: int) -> int:
    """What is beyond fits nowhere either; sums and differences of two still fit 64 bits."""
    return max(0, min(number, most))
