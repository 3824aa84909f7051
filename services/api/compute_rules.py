"""Rules of what a pod asks for: CPU, memory, GPUs and extended resources. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from events.agent_bounds import MAX_PIECES
from events.fields.at_once import Lines, each_once
from events.labels import KEY_WITH_DOMAIN_PATTERN, LABEL_KEY
from events.quantities import MAX_QUANTITY, QuantityError, parse_bytes, parse_quantity
from events.workload.fields.compute import ComputeSpec, ExtendedResource
from events.workload.needs import GPU, OF_KUBERNETES, is_extended
from events.workload.spec import TrainingSpec
from services.api.issues import Issue, fault, shown

MAX_CPU_CORES: Final = 1_000_000
"""Of one pod: beyond every machine, and the sum over MAX_PARALLELISM pods still fits 64 bits."""
MAX_GPU_DEVICES: Final = 1_000_000
"""As MAX_CPU_CORES."""
_EXTENDED: Final = Lines(rf"(?!requests\.){KEY_WITH_DOMAIN_PATTERN}")
"""Keys of labels that `is_extended`, but for those of Kubernetes' own domains."""
_FEW_PIECES: Final = Lines(r"[1-9][0-9]{0,5}+")
"""Far less than MAX_PIECES."""


def check_compute(spec: TrainingSpec) -> Iterator[Issue]:
    compute = spec.compute
    yield from _cpu(compute, spec.parallelism)
    yield from _gpu(compute)
    yield from _gpu_portion(compute)
    yield from _gpu_memory(compute)


def _bytes(field: str, text: str | None, found: list[Issue]) -> int | None:
    if text is None:
        return None
    try:
        return parse_bytes(text)
    except QuantityError as error:
        found.append(fault(field, str(error)))
        return None


def _cpu(compute: ComputeSpec, parallelism: int) -> Iterator[Issue]:
    request, limit = compute.cpu_core_request, compute.cpu_core_limit
    for field, cores in (("cpuCoreRequest", request), ("cpuCoreLimit", limit)):
        if cores is not None and cores > MAX_CPU_CORES:
            yield fault(f"spec.compute.{field}", f"must be at most {MAX_CPU_CORES} cores, got {shown(cores)}", "max")
    if limit is not None and limit < request:
        yield fault(
            "spec.compute.cpuCoreLimit",
            f"{limit} is less than cpuCoreRequest {request}; a limit is not below its request",
            "min",
            "spec.compute.cpuCoreRequest",
        )
    found: list[Issue] = []
    memory = _bytes("spec.compute.cpuMemoryRequest", compute.cpu_memory_request, found)
    most = _bytes("spec.compute.cpuMemoryLimit", compute.cpu_memory_limit, found)
    yield from found
    if memory is not None and most is not None and most < memory:
        yield fault(
            "spec.compute.cpuMemoryLimit",
            f"{compute.cpu_memory_limit} is less than cpuMemoryRequest {compute.cpu_memory_request}",
            "min",
            "spec.compute.cpuMemoryRequest",
        )
    if memory is not None and memory * max(parallelism, 1) > MAX_QUANTITY:
        yield fault(
            "spec.compute.cpuMemoryRequest",
            f"times the parallelism is more than {MAX_QUANTITY} bytes, the largest quantity",
            "max",
            "spec.parallelism",
        )


def _gpu(compute: ComputeSpec) -> Iterator[Issue]:
    devices, kind = compute.gpu_devices_request, compute.gpu_request_type
    field = "spec.compute.gpuDevicesRequest"
    if devices > MAX_GPU_DEVICES:
        yield fault(field, f"must be at most {MAX_GPU_DEVICES}, got {devices}", "max")
    if devices > 1 and kind == "memory":
        yield fault(
            "spec.compute.gpuRequestType",
            f"memory is possible for one device only, and gpuDevicesRequest is {devices}: ask for portion, or for one",
            "options",
            field,
        )


def _gpu_portion(compute: ComputeSpec) -> Iterator[Issue]:
    kind, request, limit = compute.gpu_request_type, compute.gpu_portion_request, compute.gpu_portion_limit
    field, limit_field = "spec.compute.gpuPortionRequest", "spec.compute.gpuPortionLimit"
    kind_field = "spec.compute.gpuRequestType"
    if kind == "portion" and request is None:
        yield fault(field, "is required where gpuRequestType is portion", "required", kind_field)
    if kind != "portion":
        for name, value in ((field, request), (limit_field, limit)):
            if value is not None:
                yield fault(name, "is possible only where gpuRequestType is portion", "canAdd", kind_field)
        return
    if request is not None and not 0 < request <= 1:
        yield fault(
            field,
            f"must be a share of one device, more than 0 and at most 1, got {shown(request)}; whole devices are "
            "gpuDevicesRequest without a gpuRequestType",
            "max" if request > 1 else "min",
        )
    if limit is not None and limit > 1:
        yield fault(limit_field, f"must be a share of one device, at most 1, got {shown(limit)}", "max")
    if request is not None and limit is not None and limit < request:
        yield fault(limit_field, f"{limit} is less than gpuPortionRequest {request}", "min", field)


def _gpu_memory(compute: ComputeSpec) -> Iterator[Issue]:
    kind = compute.gpu_request_type
    field, limit_field = "spec.compute.gpuMemoryRequest", "spec.compute.gpuMemoryLimit"
    kind_field = "spec.compute.gpuRequestType"
    if kind == "memory" and compute.gpu_memory_request is None:
        yield fault(field, "is required where gpuRequestType is memory", "required", kind_field)
    if kind != "memory":
        for name, value in ((field, compute.gpu_memory_request), (limit_field, compute.gpu_memory_limit)):
            if value is not None:
                yield fault(name, "is possible only where gpuRequestType is memory", "canAdd", kind_field)
    found: list[Issue] = []
    memory = _bytes(field, compute.gpu_memory_request, found)
    most = _bytes(limit_field, compute.gpu_memory_limit, found)
    yield from found
    if memory == 0:
        yield fault(field, "is more than 0; leave the GPU fields out for no GPU", "min")
    if memory is not None and most is not None and most < memory:
        yield fault(
            limit_field,
            f"{compute.gpu_memory_limit} is less than gpuMemoryRequest {compute.gpu_memory_request}",
            "min",
            field,
        )


def check_extended_resources(spec: TrainingSpec) -> Iterator[Issue]:
    """R36, R37."""
    resources = spec.compute.extended_resources
    if _are_pieces(resources):
        return
    seen: set[str] = set()
    for index, item in enumerate(resources):
        path, name = f"spec.compute.extendedResources[{index}]", item.resource
        if name in seen:
            yield fault(f"{path}.resource", f"{shown(name)} is given twice; leave one out")
        else:
            yield from check_extended(f"{path}.resource", name)
        seen.add(name)
        if not item.exclude:
            yield from _pieces(f"{path}.quantity", item.quantity)


def _are_pieces(resources: Sequence[ExtendedResource]) -> bool:
    """Whether all ask for plain numbers of extended resources."""
    names = [item.resource for item in resources]
    return (
        each_once(names)
        and GPU not in names
        and OF_KUBERNETES not in "\n".join(names)
        and _EXTENDED.match(names)
        and _FEW_PIECES.match([item.quantity or "" for item in resources])
    )


def check_extended(field: str, name: str) -> Iterator[Issue]:
    """The name of an extended resource."""
    if name == GPU:
        yield fault(field, f"GPUs have fields of their own; leave {GPU} out of the extended resources")
    elif not LABEL_KEY.match(name) or not is_extended(name):
        details = f"{shown(name)} is no extended resource; those are named by a domain and a word, such as rdma/hca"
        yield fault(field, details)


def _pieces(field: str, text: str | None) -> Iterator[Issue]:
    if text is None:
        yield fault(field, "is required: a whole number, such as 1", "required")
        return
    try:
        amount = parse_quantity(text)
    except QuantityError as error:
        yield fault(field, str(error))
        return
    if amount < 1 or amount % 1:
        yield fault(field, f"is a whole number of at least 1, got {shown(text)}", "min" if amount < 1 else "step")
    elif amount > MAX_PIECES:
        yield fault(field, f"must be at most {MAX_PIECES}, got {shown(text)}", "max")
