"""What a pod needs of its node's labels, taints and other resources, as the scheduler compares it. Pure.

Names of items, and what only matters once a pod runs, are left out: pods that need the same are placed alike.
"""

import re
from typing import Final

import msgspec

from events.workload.fields.scheduling import Toleration

NODE_TYPE_LABEL: Final = "run.ai/type"
"""Label of nodes that `nodeType` names. Run:ai's own: whoever comes from there has labelled the nodes already."""

GPU: Final = "nvidia.com/gpu"
"""By which Kubernetes counts whole GPUs. Workloads ask for them by fields of their own, never by this name."""
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,40}\Z")
OF_KUBERNETES: Final = "kubernetes.io/"


def is_extended(resource: str) -> bool:
    """Whether Kubernetes counts it as an extended resource: one of a domain that is not Kubernetes' own."""
    return "/" in resource and OF_KUBERNETES not in resource and not resource.startswith("requests.")


def whole_number(text: str) -> int | None:
    """A whole number of 64 bits, as the operators Gt and Lt compare them; None where it is none."""
    if not _NUMBER.match(text):
        return None
    found = int(text)
    return found if -(2**63) <= found < 2**63 else None


class ExtendedAmount(msgspec.Struct, frozen=True, kw_only=True):
    """So much of an extended resource."""

    resource: str
    """Name of the resource, such as `rdma/hca`."""
    amount: int
    """Number of pieces."""


class Tolerated(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Taints that a pod tolerates."""

    key: str
    value: str | None = None
    """None: any."""
    effect: str = ""
    """Empty: every one."""
    seconds: int | None = None
    """For how long, once a node gets the taint; None: for ever. New pods go to no node that has it already."""


def tolerated(tolerations: tuple[Toleration, ...]) -> tuple[Tolerated, ...]:
    """Each once, for the longest time that is named, in an order of their own."""
    found: dict[tuple[str, str | None, str], int | None] = {}
    for toleration in tolerations:
        taint = (
            toleration.key or "",
            (toleration.value or "") if toleration.operator == "Equal" else None,
            "" if toleration.effect in {None, "Any"} else toleration.effect or "",
        )
        seconds, before = toleration.seconds, found.get(taint, 0)
        found[taint] = None if seconds is None or before is None else max(seconds, before)
    ordered = sorted(found.items(), key=lambda each: (each[0][0], each[0][1] is None, each[0][1] or "", each[0][2]))
    return tuple(
        Tolerated(key=key, value=value, effect=effect, seconds=seconds) for (key, value, effect), seconds in ordered
    )
