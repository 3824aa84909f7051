"""What one pod asks for, and what it may not exceed. The GPU fields are per device (S036)."""

from typing import Annotated, ClassVar, Literal

from events.fields.declare import About, Item, Section
from events.fields.values import Items, LongName, NaturalInt32, NaturalNumber, Quantity, SomeQuantity

SHARE = "share of a device"


class ExtendedResource(Item, frozen=True, kw_only=True, omit_defaults=True):
    """An amount of what a node offers beside CPU, memory and GPUs."""

    resource: Annotated[LongName, About(rows="S037 R36")]
    """Name of the resource, such as rdma/hca. Mandatory."""
    quantity: Annotated[SomeQuantity | None, About(rows="S037")] = None
    """How many each pod gets: a whole number. Mandatory."""
    exclude: Annotated[bool, About(rows="S037 R37")] = False
    """Whether to drop the item of this resource that a default sets."""


class ComputeSpec(Section, frozen=True, kw_only=True):
    """Requests and limits of one pod. Null: no limit, or no share of a GPU."""

    TITLE: ClassVar[str] = "Compute"

    cpu_core_request: Annotated[NaturalNumber, About(rows="S035", unit="cores", flag="--cpu-core-request")] = 0.0
    """CPU cores reserved for the pod. Fractions are rounded up to a thousandth."""
    cpu_core_limit: Annotated[NaturalNumber | None, About(rows="S035", unit="cores", flag="--cpu-core-limit")] = None
    """CPU cores that the pod cannot exceed. At least the request."""
    cpu_memory_request: Annotated[Quantity, About(rows="S035 C9", unit="bytes", flag="--cpu-memory-request")] = "0"
    """Memory reserved for the pod, such as 512Mi, 1.5Gi or 2G."""
    cpu_memory_limit: Annotated[Quantity | None, About(rows="S035 C9", unit="bytes", flag="--cpu-memory-limit")] = None
    """Memory that the pod cannot exceed. At least the request."""
    gpu_devices_request: Annotated[
        NaturalInt32, About(rows="S036 R6 C4", unit="devices", flag="--gpu-devices-request", aliases=("-g",))
    ] = 0
    """GPUs per pod. Default: none, or one if a request type is given."""
    gpu_request_type: Annotated[
        Literal["portion", "memory"] | None, About(rows="S036 R1 R2", flag="--gpu-request-type")
    ] = None
    """Unit in which a share of each GPU is requested. Default: whole GPUs."""
    gpu_portion_request: Annotated[
        NaturalNumber | None,
        About(rows="S036 R1 R3", unit=SHARE, flag="--gpu-portion-request", between=(0, 1)),
    ] = None
    """Share of each GPU, more than 0 and at most 1. Only with request type portion."""
    gpu_portion_limit: Annotated[
        NaturalNumber | None, About(rows="S036 R4", unit=SHARE, flag="--gpu-portion-limit")
    ] = None
    """Share that the pod may grow to, at most 1. Where CUDA MPS runs on the node, it keeps programs to the limit unless
    they remove it themselves; elsewhere they only read it in GPU_PORTION_LIMIT. Default: the portion.
    """
    gpu_memory_request: Annotated[
        Quantity | None, About(rows="S036 R2 R6", unit="bytes", flag="--gpu-memory-request")
    ] = None
    """Memory of the GPU, such as 20Gi. Only with request type memory and one GPU."""
    gpu_memory_limit: Annotated[Quantity | None, About(rows="S036 R5", unit="bytes", flag="--gpu-memory-limit")] = None
    """GPU memory that the pod may grow to. Where CUDA MPS runs on the node, it keeps programs to the limit unless they
    remove it themselves; elsewhere they only read it in GPU_MEMORY_LIMIT_BYTES. Default: the request.
    """
    large_shm_request: Annotated[bool, About(rows="S038", flag="--large-shm")] = False
    """Give each pod a /dev/shm as large as its memory allows. On the cluster local, pods share that of the machine."""
    extended_resources: Annotated[
        Items[ExtendedResource], About(rows="S037 R36", flag="--extended-resource", key="resource")
    ] = ()
    """Other resources of nodes that each pod gets; at most 1000, each once."""


class Resources(Section, frozen=True, kw_only=True):
    """The object that holds what one pod asks for."""

    TITLE: ClassVar[str] = "Compute"

    compute: Annotated[ComputeSpec, About(rows="S035 S036")] = ComputeSpec()
    """Requests and limits of one pod."""
