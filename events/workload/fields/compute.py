"""What one pod asks for, and what it may not exceed. The GPU fields are per device (S036)."""

from typing import Annotated, ClassVar, Literal

from events.fields.declare import About, Section
from events.fields.values import NaturalInt32, NaturalNumber, Quantity

SHARE = "share of a device"


class ComputeSpec(Section, frozen=True, kw_only=True):
    """Requests and limits of one pod. Null: no limit, or no share of a GPU."""

    TITLE: ClassVar[str] = "Compute"

    cpu_core_request: Annotated[NaturalNumber, About(rows="S035", unit="cores", flag="--cpu-core-request")] = 0.0
    """Cores that are kept for the pod; fractions count to a thousandth, rounded up."""
    cpu_core_limit: Annotated[NaturalNumber | None, About(rows="S035", unit="cores", flag="--cpu-core-limit")] = None
    """Cores that the pod cannot exceed; not less than the request."""
    cpu_memory_request: Annotated[Quantity, About(rows="S035 C9", unit="bytes", flag="--cpu-memory-request")] = "0"
    """Memory that is kept for the pod, such as 512Mi, 1.5Gi or 2G."""
    cpu_memory_limit: Annotated[Quantity | None, About(rows="S035 C9", unit="bytes", flag="--cpu-memory-limit")] = None
    """Memory that the pod cannot exceed; not less than the request."""
    gpu_devices_request: Annotated[
        NaturalInt32, About(rows="S036 R6 C4", unit="devices", flag="--gpu-devices-request", aliases=("-g",))
    ] = 0
    """Devices per pod. Default: none, or one where a request type is given."""
    gpu_request_type: Annotated[
        Literal["portion", "memory"] | None, About(rows="S036 R1 R2", flag="--gpu-request-type")
    ] = None
    """Whether a share of each device is requested, and in which unit. Default: whole devices."""
    gpu_portion_request: Annotated[
        NaturalNumber | None, About(rows="S036 R1 R3", unit=SHARE, flag="--gpu-portion-request")
    ] = None
    """Share of each device, more than 0 and at most 1; only with request type portion."""
    gpu_portion_limit: Annotated[
        NaturalNumber | None, About(rows="S036 R4", unit=SHARE, flag="--gpu-portion-limit")
    ] = None
    """Share that it may grow to, at most 1; told in GPU_PORTION_LIMIT, not enforced. Default: the portion."""
    gpu_memory_request: Annotated[
        Quantity | None, About(rows="S036 R2 R6", unit="bytes", flag="--gpu-memory-request")
    ] = None
    """Memory of each device, such as 20Gi; only with request type memory, and for one device."""
    gpu_memory_limit: Annotated[Quantity | None, About(rows="S036 R5", unit="bytes", flag="--gpu-memory-limit")] = None
    """Memory that it may grow to; told in GPU_MEMORY_LIMIT_BYTES, not enforced. Default: the request."""


class Resources(Section, frozen=True, kw_only=True):
    """The object that holds what one pod asks for."""

    TITLE: ClassVar[str] = "Compute"

    compute: Annotated[ComputeSpec, About(rows="S035 S036")] = ComputeSpec()
    """Requests and limits of one pod."""
