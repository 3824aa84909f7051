"""Section "Compute": what one pod asks for, and what it may not exceed. The GPU fields are per device."""

from typing import Annotated, Literal

from services.api.fields.about import About, FieldsModel, NaturalInt32, NaturalNumber, Quantity

SECTION = "Compute"


class ComputeFields(FieldsModel):
    """Requests and limits of one pod."""

    cpu_core_request: Annotated[
        NaturalNumber | None,
        About(
            label="CPU request",
            help="Cores that are kept for the pod; fractions count to a thousandth, rounded up.",
            section=SECTION,
            row="S035",
            unit="cores",
            flag="--cpu-core-request",
        ),
    ] = None
    cpu_core_limit: Annotated[
        NaturalNumber | None,
        About(
            label="CPU limit",
            help="Cores that the pod cannot exceed; not less than the request.",
            section=SECTION,
            row="S035",
            unit="cores",
            flag="--cpu-core-limit",
        ),
    ] = None
    cpu_memory_request: Annotated[
        Quantity | None,
        About(
            label="Memory request",
            help="Memory that is kept for the pod, such as 512Mi, 1.5Gi or 2G.",
            section=SECTION,
            row="S035 C9",
            unit="bytes",
            flag="--cpu-memory-request",
        ),
    ] = None
    cpu_memory_limit: Annotated[
        Quantity | None,
        About(
            label="Memory limit",
            help="Memory that the pod cannot exceed; not less than the request.",
            section=SECTION,
            row="S035 C9",
            unit="bytes",
            flag="--cpu-memory-limit",
        ),
    ] = None
    gpu_devices_request: Annotated[
        NaturalInt32 | None,
        About(
            label="GPU devices",
            help="Devices per pod. Default: none, or one where a request type is given.",
            section=SECTION,
            row="S036 R6 C4",
            unit="devices",
            flag="--gpu-devices-request",
        ),
    ] = None
    gpu_request_type: Annotated[
        Literal["portion", "memory"] | None,
        About(
            label="GPU request type",
            help="Whether a share of each device is asked for, and by what. Default: whole devices.",
            section=SECTION,
            row="S036 R1 R2",
            flag="--gpu-request-type",
        ),
    ] = None
    gpu_portion_request: Annotated[
        NaturalNumber | None,
        About(
            label="GPU portion",
            help="Share of each device, more than 0 and at most 1; only with request type portion.",
            section=SECTION,
            row="S036 R1 R3",
            unit="share of a device",
            flag="--gpu-portion-request",
        ),
    ] = None
    gpu_portion_limit: Annotated[
        NaturalNumber | None,
        About(
            label="GPU portion limit",
            help="Share that it may grow to, at most 1; told in GPU_PORTION_LIMIT, not enforced. Default: the portion.",
            section=SECTION,
            row="S036 R4",
            unit="share of a device",
            flag="--gpu-portion-limit",
        ),
    ] = None
    gpu_memory_request: Annotated[
        Quantity | None,
        About(
            label="GPU memory",
            help="Memory of each device, such as 20Gi; only with request type memory, and for one device.",
            section=SECTION,
            row="S036 R2 R6",
            unit="bytes",
            flag="--gpu-memory-request",
        ),
    ] = None
    gpu_memory_limit: Annotated[
        Quantity | None,
        About(
            label="GPU memory limit",
            help="Memory that it may grow to; told in GPU_MEMORY_LIMIT_BYTES, not enforced. Default: the request.",
            section=SECTION,
            row="S036 R5",
            unit="bytes",
            flag="--gpu-memory-limit",
        ),
    ] = None
