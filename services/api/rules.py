"""Rules of a workload's spec that a schema cannot say (requirements.md section 16), as decided there. Pure.

Every rule names the field at fault, and the fields it looked at.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from events.agent_bounds import MAX_PIECES
from events.cluster import Cluster, ClusterKind, pool_names
from events.department import NEVER_CHANGED, Department
from events.labels import LABEL_KEY, LABEL_VALUE
from events.project import Project
from events.quantities import MAX_QUANTITY, QuantityError, parse_bytes, parse_quantity
from events.workload import rendezvous
from events.workload.exposure import PORT_VARIABLE
from events.workload.fields.compute import ComputeSpec
from events.workload.fields.creation import Creation, DistributedCreation, InferenceCreation, WorkspaceCreation
from events.workload.fields.distribution import MOST_WORKERS, DistributedFramework, Distribution
from events.workload.fields.process import EnvironmentVariable
from events.workload.fields.scheduling import MatchExpression, Toleration
from events.workload.fields.sweep import MOST_RUNS, SweepParameter
from events.workload.needs import GPU, is_extended, whole_number
from events.workload.spec import (
    MAX_AUTO_DELETION_SECONDS,
    Distributed,
    Inference,
    MasterSpec,
    TrainingSpec,
    WorkspaceSpec,
)
from events.workload.sweeps import runs_of
from services.api.connection_rules import check_connections, check_connections_kind
from services.api.container_rules import (
    check_container,
    check_home,
    check_privileged,
    check_pull_secrets,
    check_related_urls,
    check_restricted,
    check_security,
    check_terminal,
)
from services.api.inference_rules import check_inference, check_stated_load
from services.api.issues import Issue, fault, shown
from services.api.probe_rules import check_probe_kind, check_probes
from services.api.storage_rules import check_storage, check_storage_kind

MAX_NAME_CHARACTERS: Final = 253
"""What Kubernetes takes for a name; the contract sets no limit, an index of names needs one."""
SUFFIX_CHARACTERS: Final = 7
"""What useGivenNameAsPrefix adds: a hyphen and six more."""
MAX_PROPOSALS: Final = 1_000
"""Names that are tried before one is proposed."""
MAX_CATEGORY_CHARACTERS: Final = 253
"""As a name: it is filtered and sorted by."""
MAX_BACKOFF_LIMIT: Final = 100
"""C1."""
MAX_COMPLETIONS: Final = 1_000_000
"""Runs of one workload; the log tells of each."""
MAX_PARALLELISM: Final = 10_000
"""Pods of one workload at a time: Kubernetes' own limit for large indexed jobs, and what its record can hold."""
MAX_CPU_CORES: Final = 1_000_000
"""Of one pod: beyond every machine, and the sum over MAX_PARALLELISM pods still fits 64 bits."""
MAX_GPU_DEVICES: Final = 1_000_000
"""As MAX_CPU_CORES."""
MAX_GRACE_SECONDS: Final = MAX_AUTO_DELETION_SECONDS
"""A longer one cannot be a wish; timers and calendars overflow beyond it."""
MAX_EXPRESSIONS: Final = 1_000
"""Of all terms together: the scheduler compares each with the labels of every node."""
MAX_SHOWN_POOLS: Final = 20
"""In one sentence."""

_ENVIRONMENT_NAME: Final = re.compile(r"^[ -<>-~]+\Z")
"""Kubernetes since 1.34: printable ASCII but `=`."""
_OBJECT_KEY: Final = re.compile(r"^[A-Za-z0-9._-]+\Z")
"""Of a Secret or ConfigMap, as Kubernetes has them."""
_POD_FIELDS: Final = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
"""What Kubernetes' downward API gives to variables, beside single labels and annotations."""
_STEP: Final = re.compile(r"[.\[]")
_POD_LABEL_OR_ANNOTATION: Final = re.compile(r"^metadata\.(?:labels|annotations)\['([^']{1,317})'\]\Z")
SECRETS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    ("a signed token (JWT)", re.compile(r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}")),
    ("a private key (PEM)", re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----")),
    ("an AWS access key", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("an NVIDIA API key", re.compile(r"\bnvapi-[A-Za-z0-9_-]{20,}")),
)
"""Named patterns only (log.md section 6.6): plain values stay legal, nothing is guessed from entropy."""


def check_name(name: str, *, as_prefix: bool) -> Iterator[Issue]:
    longest = MAX_NAME_CHARACTERS - (SUFFIX_CHARACTERS if as_prefix else 0)
    if len(name) > longest:
        yield fault("name", f"has {len(name)} characters; at most {longest} are possible here", "max")
    if not name.isprintable() or name != name.strip():
        yield fault("name", f"{shown(name)} has control characters, or spaces at an end; leave them out")


def free_name(name: str, is_taken: Callable[[str], bool]) -> str:
    """Another name that says whose sister it is, and that is free."""
    tried = (f"{name}-{number}" for number in range(2, MAX_PROPOSALS))
    return next((other for other in tried if not is_taken(other)), f"{name}-{MAX_PROPOSALS}")


def check_given(spec: Mapping[str, Any], path: str = "spec") -> Iterator[Issue]:
    """What only the spec as it was given shows: no devices at all, beside a share of each."""
    compute: Mapping[str, Any] = spec.get("compute") or {}
    kind = compute.get("gpuRequestType")
    if compute.get("gpuDevicesRequest") == 0 and kind is not None:
        yield fault(
            f"{path}.compute.gpuDevicesRequest",
            f"0 devices and gpuRequestType {kind!r} contradict each other: give at least 1, or no gpuRequestType",
            "min",
            f"{path}.compute.gpuRequestType",
        )
    if spec.get("restartPolicy") == "Never" and spec.get("backoffLimit"):
        details = f"{shown(spec['backoffLimit'])} retries contradict restartPolicy Never; leave one of them out"
        yield fault(f"{path}.backoffLimit", details, "max", f"{path}.restartPolicy")


def check_spec(spec: TrainingSpec) -> Iterator[Issue]:
    """Everything wrong with a well-formed spec."""
    for check in _CHECKS:
        yield from check(spec)


def check_order(creation: Creation) -> Iterator[Issue]:
    """Everything wrong with what a well-formed creation orders."""
    spec, beside = creation.order()
    yield from check_spec(spec)
    match creation:
        case WorkspaceCreation():
            yield from _over_quota(creation.spec)
        case DistributedCreation() if isinstance(beside, Distributed):
            yield from _distribution(beside.distribution)
            yield from _master(creation, beside.master)
        case InferenceCreation() if isinstance(beside, Inference):
            yield from check_inference(spec, beside.serving)
        case _:
            pass


def _over_quota(spec: WorkspaceSpec) -> Iterator[Issue]:
    if spec.allow_over_quota and spec.preemptibility == "non-preemptible":
        details = "contradicts preemptibility non-preemptible: only what may be preempted goes beyond the quota"
        yield fault("spec.allowOverQuota", details, "options", "spec.preemptibility")


def _distribution(distribution: Distribution) -> Iterator[Issue]:
    workers, least, most = distribution.num_workers, distribution.min_replicas, distribution.max_replicas
    if not 1 <= workers <= MOST_WORKERS:
        details = f"lies between 1 and {MOST_WORKERS}, got {workers}"
        yield fault("spec.numWorkers", details, "min" if workers < 1 else "max")
    framework = "spec.distributedFramework"
    for name, count in (("minReplicas", least), ("maxReplicas", most)):
        if count is not None and distribution.distributed_framework != "PyTorch":
            details = f"is for elastic PyTorch; {distribution.distributed_framework} has as many workers as numWorkers"
            yield fault(f"spec.{name}", details, "canAdd", framework)
    if least is not None and not 1 <= least <= workers:
        details = f"lies between 1 and numWorkers, {workers}, got {least}"
        yield fault("spec.minReplicas", details, "min" if least < 1 else "max", "spec.numWorkers", framework)
    if most is not None and not workers <= most <= MOST_WORKERS:
        details = f"lies between numWorkers, {workers}, and {MOST_WORKERS}, got {most}"
        yield fault("spec.maxReplicas", details, "min" if most < workers else "max", "spec.numWorkers", framework)


def _master(creation: DistributedCreation, master: TrainingSpec | None) -> Iterator[Issue]:
    if creation.master_spec is None or master is None:
        return
    if creation.master_spec_same_as_worker:
        details = "is given beside masterSpecSameAsWorker true; leave one of them out"
        yield fault("masterSpec", details, "canAdd", "masterSpecSameAsWorker")
    yield from _of_master(check_spec(master))


def _of_master(issues: Iterable[Issue]) -> Iterator[Issue]:
    """What is wrong with a spec, said of the master's; nothing of what it has from the workers."""
    for issue in issues:
        if _STEP.split(issue.field.removeprefix("spec."), maxsplit=1)[0] not in MasterSpec.__struct_encode_fields__:
            continue
        fields = {field: _master_field(field) for field in issue.involves | {issue.field}}
        yield replace(issue, field=fields[issue.field], involves=frozenset(fields.values()))


def _master_field(field: str) -> str:
    return f"masterSpec{field.removeprefix('spec')}" if field.startswith("spec.") and field != "spec.code" else field


def _image(spec: TrainingSpec) -> Iterator[Issue]:
    if not spec.image.isprintable() or " " in spec.image:
        yield fault("spec.image", f"{shown(spec.image)} has spaces or control characters; an image name has none")


def _words(spec: TrainingSpec) -> Iterator[Issue]:
    for field, text in (("spec.command", spec.command), ("spec.args", spec.args)):
        try:
            shlex.split(text or "")
        except ValueError as error:
            reason = str(error).lower()
            yield fault(field, f"cannot be split into words as a shell does: {reason}; close or escape it")


def _working_dir(spec: TrainingSpec) -> Iterator[Issue]:
    given = spec.working_dir
    if given is not None and not given.startswith("/"):
        details = f"{shown(given)} is relative; write it from `/`"
        yield fault("spec.workingDir", details)
    elif given is not None and spec.code is not None:
        details = "with code each run starts in the folder that was sent; leave workingDir out"
        yield fault("spec.workingDir", details, "canAdd", "spec.code")


def _environment(spec: TrainingSpec) -> Iterator[Issue]:
    seen: set[str] = set()
    for index, variable in enumerate(spec.environment_variables):
        path = f"spec.environmentVariables[{index}]"
        name = variable.name
        if not _ENVIRONMENT_NAME.match(name):
            yield fault(f"{path}.name", f"{shown(name)} is not possible: use printable ASCII without `=`")
        elif name in seen:
            yield fault(f"{path}.name", f"{shown(name)} is given twice; leave one out")
        seen.add(name)
        yield from _sources(path, variable)


def _sources(path: str, variable: EnvironmentVariable) -> Iterator[Issue]:
    """R8: at most one source; R9: each whole."""
    sources = {
        "value": variable.value,
        "secret": variable.secret,
        "configMap": variable.config_map,
        "podFieldRef": variable.pod_field_ref,
        "userCredential": variable.user_credential,
    }
    given = [name for name, source in sources.items() if source is not None]
    for name in given[1:]:
        details = f"is given beside {given[0]}; a variable has at most one of {', '.join(sources)}"
        yield fault(f"{path}.{name}", details, "canAdd", f"{path}.{given[0]}")
    for kind, source in (("secret", variable.secret), ("configMap", variable.config_map)):
        if source is None:
            continue
        if not _OBJECT_KEY.match(source.key):
            details = f"{shown(source.key)} is no key of a {kind}: use letters, digits, `-`, `_` and `.`"
            yield fault(f"{path}.{kind}.key", details)
    if variable.pod_field_ref is not None:
        yield from _pod_field(f"{path}.podFieldRef.path", variable.pod_field_ref.path)


def _pod_field(field: str, path: str) -> Iterator[Issue]:
    named = _POD_LABEL_OR_ANNOTATION.match(path)
    if named is not None:
        yield from check_label_key(field, named[1])
    elif path not in _POD_FIELDS:
        known = ", ".join((*_POD_FIELDS, "metadata.labels['KEY']", "metadata.annotations['KEY']"))
        yield fault(field, f"{shown(path)} is no field that a pod gives to its variables; those are {known}", "options")


SET_BY_MUSTER: Final = frozenset(
    {
        "JOB_COMPLETION_INDEX",
        "MUSTER_ATTEMPT",
        "MUSTER_NODE_NAME",
        "MUSTER_POD_INDEX",
        "MUSTER_POD_SET",
        "MUSTER_PROJECT_ID",
        "MUSTER_RUN",
        "MUSTER_RUN_ID",
        "MUSTER_WORKLOAD_ID",
        "MUSTER_WORKLOAD_NAME",
        "NVIDIA_VISIBLE_DEVICES",
    }
)
"""Environment variables that every agent that runs programs sets, whatever a workload says."""
SET_WITH_DEVICES: Final = frozenset({"GPU_MEMORY_LIMIT_BYTES", "GPU_PORTION", "GPU_PORTION_LIMIT"})
"""Those of a workload with devices."""


def check_placed(creation: Creation, cluster: Cluster) -> Iterator[Issue]:
    """What this cluster does not have of what a creation orders."""
    spec, distributed = creation.order()
    yield from check_cluster(spec, cluster)
    if not isinstance(distributed, Distributed):
        return
    framework = distributed.distribution.distributed_framework
    yield from _set_by_framework(spec, framework, cluster.kind)
    if isinstance(creation, DistributedCreation) and creation.master_spec is not None and distributed.master:
        yield from _of_master(check_cluster(distributed.master, cluster))
        yield from _of_master(_set_by_framework(distributed.master, framework, cluster.kind))


def check_within(creation: Creation, project: Project, department: Department = NEVER_CHANGED) -> Iterator[Issue]:
    """What its project does not let a creation have, and its department does not."""
    spec, distributed = creation.order()
    yield from _within(spec, project)
    for place, types in (
        (f"project {project.name}", project.node_types),
        (f"department {department.name}", department.node_types),
    ):
        yield from _allowed_node_type(spec, place, types)
    if (
        isinstance(creation, DistributedCreation)
        and creation.master_spec is not None
        and isinstance(distributed, Distributed)
    ):
        yield from _of_master(_within(distributed.master, project) if distributed.master else ())


def _allowed_node_type(spec: TrainingSpec, place: str, types: Sequence[str]) -> Iterator[Issue]:
    """S040: mandatory where an administrator set which there may be."""
    if not types or spec.node_type in types:
        return
    if spec.node_type is None:
        details = f"is required in {place}: one of {listed_pools(types)}"
        yield fault("spec.nodeType", details, "required", "projectId")
    else:
        details = f"{shown(spec.node_type)} is not possible in {place}; possible are {listed_pools(types)}"
        yield fault("spec.nodeType", details, "options", "projectId")


def _within(spec: TrainingSpec, project: Project) -> Iterator[Issue]:
    yield from check_privileged(spec, project)
    if project.pod_security == "restricted":
        yield from check_restricted(spec)


def _set_by_framework(spec: TrainingSpec, framework: DistributedFramework, kind: ClusterKind) -> Iterator[Issue]:
    """As `_set_by_muster`, of the variables by which its pods find each other."""
    if kind == "simulated":
        return
    taken = rendezvous.names(framework)
    for index, variable in enumerate(spec.environment_variables):
        if variable.name in taken and not variable.exclude:
            details = f"{variable.name} is set by Muster for {framework}; leave it out"
            field = f"spec.environmentVariables[{index}].name"
            yield fault(field, details, "locked", "clusterId", "spec.distributedFramework")


def check_cluster(spec: TrainingSpec, cluster: Cluster) -> Iterator[Issue]:
    """What this cluster does not have: by its kind, and by its node pools (S039)."""
    yield from check_kind(spec, cluster.kind)
    pools = pool_names(cluster)
    has = listed_pools(pools)
    for index, pool in enumerate(spec.node_pools):
        if pool not in pools:
            details = f"cluster {cluster.name} has no node pool {shown(pool)}; it has {has}"
            yield fault(f"spec.nodePools[{index}]", details, "options", "clusterId")


def listed_pools(pools: Sequence[str]) -> str:
    """Names of node pools, or node types, for a sentence."""
    more = len(pools) - MAX_SHOWN_POOLS
    return ", ".join(pools[:MAX_SHOWN_POOLS]) + (f" and {more} more" if more > 0 else "")


def check_kind(spec: TrainingSpec, kind: ClusterKind) -> Iterator[Issue]:
    """What a cluster of this kind does not have, or does itself, whatever its state."""
    yield from _set_by_muster(spec, kind)
    yield from check_container(spec, kind)
    yield from check_storage_kind(spec, kind)
    yield from check_probe_kind(spec, kind)
    yield from check_connections_kind(spec, kind)
    if kind == "kubernetes":
        yield from _no_user_credentials(spec)
        return
    for index, variable in enumerate(spec.environment_variables):
        sources = {"secret": variable.secret, "configMap": variable.config_map, "podFieldRef": variable.pod_field_ref}
        for name, source in sources.items():
            if source is not None and not variable.exclude:
                details = f"is for clusters of kind kubernetes; one of kind {kind} has nothing to read it from"
                yield fault(f"spec.environmentVariables[{index}].{name}", details, "canAdd", "clusterId")


def _no_user_credentials(spec: TrainingSpec) -> Iterator[Issue]:
    for index, variable in enumerate(spec.environment_variables):
        if variable.user_credential is not None and not variable.exclude:
            details = (
                "is not built yet for clusters of kind kubernetes; use a Secret of the project's namespace (secret)"
            )
            yield fault(f"spec.environmentVariables[{index}].userCredential", details, "canAdd", "clusterId")


def _set_by_muster(spec: TrainingSpec, kind: ClusterKind) -> Iterator[Issue]:
    """Variables whose value would be lost. A simulated cluster runs no programs, and loses none."""
    if kind == "simulated":
        return
    names = SET_BY_MUSTER if kind == "kubernetes" else SET_BY_MUSTER | {"CUDA_VISIBLE_DEVICES"}
    if spec.compute.gpu_devices_request or spec.compute.gpu_request_type:
        names |= SET_WITH_DEVICES
    given = {
        f"spec.environmentVariables[{index}].name": variable.name
        for index, variable in enumerate(spec.environment_variables)
        if not variable.exclude
    } | {f"spec.sweep.parameters[{index}].name": one.name for index, one in enumerate(_swept(spec))}
    for field, name in given.items():
        if name in names or name.startswith(PORT_VARIABLE):
            details = f"{name} is set by Muster on a cluster of kind {kind}; choose another name"
            yield fault(field, details, "locked", "clusterId")


def _secrets(spec: TrainingSpec) -> Iterator[Issue]:
    for field, text in _free_texts(spec):
        for kind, pattern in SECRETS:
            if text and pattern.search(text):
                yield fault(
                    field,
                    f"holds what looks like {kind}. What is submitted is kept in the log for ever; "
                    "put it into a credential, let the program read it from there, and revoke this one",
                )


def _free_texts(spec: TrainingSpec) -> Iterator[tuple[str, str | None]]:
    """Texts in which people put what they like, by their field."""
    yield "spec.command", spec.command
    yield "spec.args", spec.args
    yield "spec.workingDir", spec.working_dir
    yield "spec.category", spec.category
    for index, variable in enumerate(spec.environment_variables):
        yield f"spec.environmentVariables[{index}].value", variable.value
        yield f"spec.environmentVariables[{index}].description", variable.description
        for name, source in (("secret", variable.secret), ("configMap", variable.config_map)):
            if source is not None:
                yield f"spec.environmentVariables[{index}].{name}.name", source.name
                yield f"spec.environmentVariables[{index}].{name}.key", source.key
    for index, parameter in enumerate(_swept(spec)):
        yield from ((f"spec.sweep.parameters[{index}].values[{at}]", text) for at, text in enumerate(parameter.values))
    for index, annotation in enumerate(spec.annotations):
        yield f"spec.annotations[{index}].value", annotation.value
    for index, related in enumerate(spec.related_urls):
        yield f"spec.relatedUrls[{index}].url", related.url
    for name, items in (("exposedUrls", spec.exposed_urls), ("ports", spec.ports)):
        for index, item in enumerate(items):
            yield f"spec.{name}[{index}].toolName", item.tool_name
            yield f"spec.{name}[{index}].toolType", item.tool_type


def _compute(spec: TrainingSpec) -> Iterator[Issue]:
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
            yield fault(f"spec.compute.{field}", f"is at most {MAX_CPU_CORES} cores, got {shown(cores)}", "max")
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
        yield fault(field, f"is at most {MAX_GPU_DEVICES}, got {devices}", "max")
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
            f"is a share of one device, more than 0 and at most 1, got {shown(request)}; whole devices are "
            "gpuDevicesRequest without a gpuRequestType",
            "max" if request > 1 else "min",
        )
    if limit is not None and limit > 1:
        yield fault(limit_field, f"is a share of one device, at most 1, got {shown(limit)}", "max")
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


def _scheduling(spec: TrainingSpec) -> Iterator[Issue]:
    pools = spec.node_pools
    for index, pool in enumerate(pools):
        if not pool:
            yield fault(f"spec.nodePools[{index}]", "is empty; name a node pool", "min")
        elif pool in pools[:index]:
            yield fault(f"spec.nodePools[{index}]", f"{shown(pool)} is given twice; leave one out")


def _node_type(spec: TrainingSpec) -> Iterator[Issue]:
    """S040."""
    if spec.node_type is not None:
        yield from check_label_value("spec.nodeType", spec.node_type)


def _node_affinity(spec: TrainingSpec) -> Iterator[Issue]:
    """R14, R15."""
    if spec.node_affinity_required is None:
        return
    terms, field = spec.node_affinity_required.node_selector_terms, "spec.nodeAffinityRequired.nodeSelectorTerms"
    if not any(term.match_expressions for term in terms):
        details = "no term has an expression, and so none matches any node; give one, or leave nodeAffinityRequired out"
        yield fault(field, details, "required")
    if (count := sum(len(term.match_expressions) for term in terms)) > MAX_EXPRESSIONS:
        yield fault(field, f"has {count} expressions in all; at most {MAX_EXPRESSIONS} are possible", "max")
        return
    for at, term in enumerate(terms):
        for number, expression in enumerate(term.match_expressions):
            yield from _expression(f"{field}[{at}].matchExpressions[{number}]", expression)


def _expression(path: str, expression: MatchExpression) -> Iterator[Issue]:
    """R14."""
    yield from check_label_key(f"{path}.key", expression.key)
    field, operator, values = f"{path}.values", expression.operator, expression.values
    match operator:
        case "In" | "NotIn":
            if not values:
                yield fault(field, f"operator {operator} needs at least one value", "required", f"{path}.operator")
            for number, value in enumerate(values):
                yield from check_label_value(f"{field}[{number}]", value)
        case "Exists" | "DoesNotExist":
            if values:
                details = f"operator {operator} takes no values, got {len(values)}; leave them out"
                yield fault(field, details, "canAdd", f"{path}.operator")
        case "Gt" | "Lt":
            if len(values) != 1 or whole_number(values[0]) is None:
                given = shown(values[0]) if len(values) == 1 else f"{len(values)} values"
                details = f"operator {operator} needs one whole number, such as 4, got {given}"
                yield fault(field, details, "required", f"{path}.operator")


def _pod_affinity(spec: TrainingSpec) -> Iterator[Issue]:
    """R16: that both are there, the declaration says."""
    if spec.pod_affinity is not None:
        yield from check_label_key("spec.podAffinity.key", spec.pod_affinity.key)


def _tolerations(spec: TrainingSpec) -> Iterator[Issue]:
    """R17, R37."""
    seen: set[str] = set()
    for index, toleration in enumerate(spec.tolerations):
        path, name = f"spec.tolerations[{index}]", toleration.name
        if name is not None and name in seen:
            yield fault(f"{path}.name", f"{shown(name)} is given twice; leave one out")
        seen |= set() if name is None else {name}
        if not toleration.exclude:
            yield from _toleration(path, toleration)
        elif name is None:
            details = "is required where exclude is true: the name of the item to leave out"
            yield fault(f"{path}.name", details, "required", f"{path}.exclude")


def _toleration(path: str, toleration: Toleration) -> Iterator[Issue]:
    """R17; value goes with Equal (C6: the contract's own text says Exists, which Kubernetes refuses)."""
    examples = {"key": "dedicated", "operator": "Exists or Equal", "effect": "NoSchedule or Any"}
    given = {"key": toleration.key, "operator": toleration.operator, "effect": toleration.effect}
    for name, value in given.items():
        if not value:
            yield fault(f"{path}.{name}", f"is required, such as {examples[name]}", "required")
    if toleration.key:
        yield from check_label_key(f"{path}.key", toleration.key)
    operator = f"{path}.operator"
    if toleration.operator == "Equal" and toleration.value is None:
        details = "is required with operator Equal; with operator Exists every value of the taint is tolerated"
        yield fault(f"{path}.value", details, "required", operator)
    elif toleration.operator == "Exists" and toleration.value is not None:
        details = (
            f"goes with operator Equal only, got {shown(toleration.value)} with Exists; leave it out, or give Equal"
        )
        yield fault(f"{path}.value", details, "canAdd", operator)
    elif toleration.value is not None:
        yield from check_label_value(f"{path}.value", toleration.value)
    if toleration.seconds is not None and toleration.effect != "NoExecute":
        details = "goes with effect NoExecute only: no other effect takes a pod off its node; leave it out"
        yield fault(f"{path}.seconds", details, "canAdd", f"{path}.effect")
    elif toleration.seconds is not None and toleration.seconds > MAX_GRACE_SECONDS:
        yield fault(f"{path}.seconds", f"is at most {MAX_GRACE_SECONDS}, got {shown(toleration.seconds)}", "max")


def _extended_resources(spec: TrainingSpec) -> Iterator[Issue]:
    """R36, R37."""
    seen: set[str] = set()
    for index, item in enumerate(spec.compute.extended_resources):
        path, name = f"spec.compute.extendedResources[{index}]", item.resource
        if name in seen:
            yield fault(f"{path}.resource", f"{shown(name)} is given twice; leave one out")
        else:
            yield from check_extended(f"{path}.resource", name)
        seen.add(name)
        if not item.exclude:
            yield from _pieces(f"{path}.quantity", item.quantity)


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
        yield fault(field, f"is at most {MAX_PIECES}, got {shown(text)}", "max")


def _lifetime(spec: TrainingSpec) -> Iterator[Issue]:
    bounds = (
        ("completions", spec.completions, 1, MAX_COMPLETIONS),
        ("parallelism", spec.parallelism, 1, MAX_PARALLELISM),
        ("backoffLimit", spec.backoff_limit, 0, MAX_BACKOFF_LIMIT),
        ("terminationGracePeriodSeconds", spec.termination_grace_period_seconds, 0, MAX_GRACE_SECONDS),
        (
            "autoDeletionTimeAfterCompletionSeconds",
            spec.auto_deletion_time_after_completion_seconds,
            0,
            MAX_AUTO_DELETION_SECONDS,
        ),
    )
    for name, value, least, most in bounds:
        if not least <= value <= most:
            yield fault(
                f"spec.{name}", f"lies between {least} and {most}, got {value}", "min" if value < least else "max"
            )
    if spec.restart_policy == "Always":
        details = "Always is not possible: what has succeeded is not run again; give OnFailure or Never"
        yield fault("spec.restartPolicy", details, "options")
    total, parallelism = runs_of(spec.sweep) or spec.completions, spec.parallelism
    if parallelism > total >= 1:
        yield fault(
            "spec.parallelism",
            f"{parallelism} is more than the completions, {total}; not more pods run at a time than there are runs",
            "max",
            "spec.completions",
        )


def _swept(spec: TrainingSpec) -> tuple[SweepParameter, ...]:
    return () if spec.sweep is None else spec.sweep.parameters


def _sweep(spec: TrainingSpec) -> Iterator[Issue]:
    sweep, path = spec.sweep, "spec.sweep.parameters"
    if sweep is None:
        return
    seen = {variable.name for variable in spec.environment_variables}
    for index, parameter in enumerate(sweep.parameters):
        field, name = f"{path}[{index}].name", parameter.name
        if not _ENVIRONMENT_NAME.match(name):
            yield fault(field, f"{shown(name)} is not possible: use printable ASCII without `=`")
        elif name in seen:
            details = f"{shown(name)} is given twice, here or as an environment variable; leave one out"
            yield fault(field, details, None, "spec.environmentVariables")
        seen.add(name)
    counts = [len(parameter.values) for parameter in sweep.parameters]
    if sweep.combine == "Rows" and len(set(counts)) > 1:
        told = ", ".join(f"{shown(one.name)} has {len(one.values)}" for one in sweep.parameters)
        yield fault(path, f"rows need as many values of each parameter: {told}", None, "spec.sweep.combine")
        return
    runs = runs_of(sweep)
    if runs > MOST_RUNS:
        details = f"make {runs} runs; at most {MOST_RUNS} are possible in one workload"
        yield fault(path, details, "max", "spec.sweep.combine")
    elif runs and spec.completions not in {1, runs}:
        details = f"the sweep has {runs} runs, got {spec.completions}; leave it out"
        yield fault("spec.completions", details, None, path, "spec.sweep.combine")


def _metadata(spec: TrainingSpec) -> Iterator[Issue]:
    yield from check_marks(spec)
    if len(spec.category) > MAX_CATEGORY_CHARACTERS:
        yield fault(
            "spec.category",
            f"has {len(spec.category)} characters; at most {MAX_CATEGORY_CHARACTERS} are possible",
            "max",
        )


def check_marks(spec: TrainingSpec) -> Iterator[Issue]:
    """Labels and annotations: their keys, each once, and what labels say."""
    for kind, items in (("labels", spec.labels), ("annotations", spec.annotations)):
        seen: set[str] = set()
        for index, item in enumerate(items):
            path = f"spec.{kind}[{index}]"
            if item.name in seen:
                yield fault(f"{path}.name", f"{shown(item.name)} is given twice; leave one out")
            else:
                yield from check_label_key(f"{path}.name", item.name)
            seen.add(item.name)
            if kind == "labels":
                yield from check_label_value(f"{path}.value", item.value)
            else:
                yield from check_stated_load(f"{path}.value", item.name, item.value)


def check_label_key(field: str, key: str) -> Iterator[Issue]:
    if not LABEL_KEY.match(key):
        yield fault(
            field,
            f"{shown(key)} is no Kubernetes key: letters, digits, `-`, `_` and `.`, beginning and ending "
            "with a letter or digit, perhaps after a domain and a slash",
        )


def check_label_value(field: str, value: str) -> Iterator[Issue]:
    if not LABEL_VALUE.match(value):
        yield fault(
            field,
            f"{shown(value)} is no Kubernetes label value: at most 63 letters, digits, `-`, `_` and `.`, "
            "beginning and ending with a letter or digit",
        )


_CHECKS: Final[tuple[Callable[[TrainingSpec], Iterator[Issue]], ...]] = (
    _image,
    _words,
    _working_dir,
    _environment,
    _secrets,
    _compute,
    _extended_resources,
    _scheduling,
    _node_type,
    _node_affinity,
    _pod_affinity,
    _tolerations,
    _lifetime,
    _sweep,
    _metadata,
    check_connections,
    check_home,
    check_probes,
    check_pull_secrets,
    check_related_urls,
    check_security,
    check_storage,
    check_terminal,
)
"""The registry of rules: a new one is a function and a line here."""
