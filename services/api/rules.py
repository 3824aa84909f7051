"""Rules of a workload's spec that a schema cannot say (requirements.md section 16), as decided there. Pure.

Every rule names the field at fault, and the fields it looked at.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from events.cluster import Cluster, ClusterKind, pool_names
from events.department import NEVER_CHANGED, Department
from events.fields.at_once import Lines, each_once
from events.project import Project
from events.workload import rendezvous
from events.workload.exposure import PORT_VARIABLE
from events.workload.fields.creation import Creation, DistributedCreation, InferenceCreation, WorkspaceCreation
from events.workload.fields.distribution import MOST_WORKERS, DistributedFramework, Distribution
from events.workload.fields.metadata import Annotation, Label
from events.workload.fields.process import EnvironmentVariable
from events.workload.fields.sweep import MOST_RUNS, SweepParameter
from events.workload.spec import (
    MAX_AUTO_DELETION_SECONDS,
    MAX_GRACE_SECONDS,
    PRIORITY_RANK,
    Distributed,
    Inference,
    TrainingSpec,
    WorkspaceSpec,
    preemptibility_of,
)
from events.workload.sweeps import runs_of
from services.api.compute_rules import check_compute, check_extended_resources
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
from services.api.inference_rules import STATED, check_inference, check_stated_load
from services.api.issues import Issue, fault, shown
from services.api.label_rules import KEYS, VALUES, check_label_key, check_label_value
from services.api.master_volumes import check_claims_of_both, of_master
from services.api.mpi_rules import check_launcher, check_mpi, check_ssh, taken_variables
from services.api.placing_rules import (
    check_node_affinity,
    check_node_type,
    check_pod_affinity,
    check_pools,
    check_tolerations,
)
from services.api.probe_rules import check_probe_kind, check_probes
from services.api.saving_rules import check_saving
from services.api.storage_rules import check_secret_name, check_storage, check_storage_kind

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
MAX_SHOWN_POOLS: Final = 20
"""In one sentence."""

_NAME_PATTERN: Final = r"[ -<>-~]++"
"""Of an environment variable; Kubernetes since 1.34: printable ASCII but `=`."""
_ENVIRONMENT_NAME: Final = re.compile(rf"{_NAME_PATTERN}\Z")
_ENVIRONMENT_NAMES: Final = Lines(_NAME_PATTERN)
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
_POD_LABEL_OR_ANNOTATION: Final = re.compile(r"^metadata\.(?:labels|annotations)\['([^']{1,317})'\]\Z")
SECRETS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    ("a signed token (JWT)", re.compile(r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}")),
    ("a private key (PEM)", re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----")),
    ("an AWS access key", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("an NVIDIA API key", re.compile(r"\bnvapi-[A-Za-z0-9_-]{20,}")),
)
"""Named patterns only (log.md section 6.6): plain values stay legal, nothing is guessed from entropy."""
_MARKS_OF_SECRETS: Final = (b"eyJ", b"-----BEGIN ", b"AKIA", b"ASIA", b"nvapi-")
"""Each of those patterns begins with one of them."""


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


def check_given(spec: Mapping[str, Any], path: str = "spec", *, runs: int = 0) -> Iterator[Issue]:
    """What only the spec as it was given shows: a value that is the default, too, and contradicts another one.

    Args:
        runs: of its sweep; 0 where it has none.
    """
    yield from _given_devices(spec, path)
    if spec.get("restartPolicy") == "Never" and spec.get("backoffLimit"):
        details = f"{shown(spec['backoffLimit'])} retries contradict restartPolicy Never; leave one of them out"
        yield fault(f"{path}.backoffLimit", details, "max", f"{path}.restartPolicy")
    if spec.get("completions") == 1 and 1 < runs <= MOST_RUNS:
        yield _other_runs(runs, 1)
    if spec.get("allowOverQuota") is False and (why := _preemptible_by(spec)):
        details = (
            f"false contradicts {why}: what may be preempted goes beyond the quota; give preemptibility "
            "non-preemptible, or leave allowOverQuota out"
        )
        yield fault(f"{path}.allowOverQuota", details, "options", f"{path}.preemptibility", f"{path}.priorityClass")


def _preemptible_by(spec: Mapping[str, Any]) -> str:
    """What of a workspace makes it preemptible; empty where nothing does."""
    said, priority = spec.get("preemptibility"), spec.get("priorityClass")
    if said is not None:
        return "preemptibility preemptible" if said == "preemptible" else ""
    if priority in PRIORITY_RANK and preemptibility_of(priority) == "preemptible":
        return f"priorityClass {priority}, which makes it preemptible"
    return ""


def _given_devices(spec: Mapping[str, Any], path: str) -> Iterator[Issue]:
    """No devices at all, beside a share of each."""
    compute: Mapping[str, Any] = spec.get("compute") or {}
    kind = compute.get("gpuRequestType")
    if compute.get("gpuDevicesRequest") == 0 and kind is not None:
        yield fault(
            f"{path}.compute.gpuDevicesRequest",
            f"0 devices and gpuRequestType {kind!r} contradict each other: give at least 1, or no gpuRequestType",
            "min",
            f"{path}.compute.gpuRequestType",
        )


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
            yield from check_mpi(creation, beside)
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
        details = f"must be between 1 and {MOST_WORKERS}, got {workers}"
        yield fault("spec.numWorkers", details, "min" if workers < 1 else "max")
    framework = "spec.distributedFramework"
    for name, count in (("minReplicas", least), ("maxReplicas", most)):
        if count is not None and distribution.distributed_framework != "PyTorch":
            details = f"is for elastic PyTorch; {distribution.distributed_framework} has as many workers as numWorkers"
            yield fault(f"spec.{name}", details, "canAdd", framework)
    if least is not None and not 1 <= least <= workers:
        details = f"must be between 1 and numWorkers, {workers}, got {least}"
        yield fault("spec.minReplicas", details, "min" if least < 1 else "max", "spec.numWorkers", framework)
    if most is not None and not workers <= most <= MOST_WORKERS:
        details = f"must be between numWorkers, {workers}, and {MOST_WORKERS}, got {most}"
        yield fault("spec.maxReplicas", details, "min" if most < workers else "max", "spec.numWorkers", framework)


def _master(creation: DistributedCreation, master: TrainingSpec | None) -> Iterator[Issue]:
    if creation.master_spec is None or master is None:
        return
    if creation.master_spec_same_as_worker:
        details = "is given beside masterSpecSameAsWorker true; leave one of them out"
        yield fault("masterSpec", details, "canAdd", "masterSpecSameAsWorker")
    yield from of_master(check_spec(master), creation)
    yield from check_claims_of_both(creation)


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
    variables = spec.environment_variables
    names = [variable.name for variable in variables]
    well_named = each_once(names) and _ENVIRONMENT_NAMES.match(names)
    others = {
        at
        for at, one in enumerate(variables)
        if one.secret is not None
        or one.config_map is not None
        or one.pod_field_ref is not None
        or one.user_credential is not None
    }
    if well_named and not others:
        return
    seen: set[str] = set()
    for index, variable in enumerate(variables):
        if well_named and index not in others:
            continue
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
    if variable.secret is not None:
        yield from check_secret_name(f"{path}.secret.name", variable.secret.name)
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
SET_WITH_PORTIONS: Final = frozenset({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"})
"""Those of a workload that shares devices."""
OF_MPS: Final = "CUDA_MPS_"
"""So begins all that CUDA reads of MPS. A workload that shares devices sets none: another server has other limits."""


def check_placed(creation: Creation, cluster: Cluster) -> Iterator[Issue]:
    """What this cluster does not have of what a creation orders."""
    spec, distributed = creation.order()
    yield from check_cluster(spec, cluster)
    if not isinstance(distributed, Distributed):
        return
    framework = distributed.distribution.distributed_framework
    yield from _set_by_framework(spec, framework, cluster.kind)
    if isinstance(creation, DistributedCreation) and creation.master_spec is not None and distributed.master:
        yield from of_master(check_cluster(distributed.master, cluster), creation)
        yield from of_master(_set_by_framework(distributed.master, framework, cluster.kind), creation)
    yield from check_ssh(distributed.distribution, cluster.kind)
    if isinstance(creation, DistributedCreation) and distributed.master and framework == "MPI":
        yield from check_launcher(creation, distributed.master, cluster.kind)


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
        yield from of_master(_within(distributed.master, project) if distributed.master else (), creation)


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
    taken = rendezvous.names(framework) | taken_variables(framework, kind)
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
        return
    for index, variable in enumerate(spec.environment_variables):
        sources = {"secret": variable.secret, "configMap": variable.config_map, "podFieldRef": variable.pod_field_ref}
        for name, source in sources.items():
            if source is not None and not variable.exclude:
                details = f"is for clusters of kind kubernetes; one of kind {kind} has nothing to read it from"
                yield fault(f"spec.environmentVariables[{index}].{name}", details, "canAdd", "clusterId")


def _set_by_muster(spec: TrainingSpec, kind: ClusterKind) -> Iterator[Issue]:
    """Variables whose value would be lost. A simulated cluster runs no programs, and loses none."""
    if kind == "simulated":
        return
    names = SET_BY_MUSTER if kind == "kubernetes" else SET_BY_MUSTER | {"CUDA_VISIBLE_DEVICES"}
    if spec.compute.gpu_devices_request or spec.compute.gpu_request_type:
        names |= SET_WITH_DEVICES
    shares = bool(spec.compute.gpu_request_type)
    if shares:
        names |= SET_WITH_PORTIONS
    given = {
        f"spec.environmentVariables[{index}].name": variable.name
        for index, variable in enumerate(spec.environment_variables)
        if not variable.exclude
    } | {f"spec.sweep.parameters[{index}].name": one.name for index, one in enumerate(_swept(spec))}
    for field, name in given.items():
        if name in names or name.startswith(PORT_VARIABLE):
            details = f"{name} is set by Muster on a cluster of kind {kind}; choose another name"
            yield fault(field, details, "locked", "clusterId")
        elif shares and name.startswith(OF_MPS):
            details = (
                f"{name} cannot be set by a workload that shares devices: variables that begin with {OF_MPS} say how "
                "CUDA limits it, which Muster does; leave it out, or ask for whole devices"
            )
            yield fault(field, details, "locked", "clusterId", "spec.compute.gpuRequestType")


def _secrets(spec: TrainingSpec) -> Iterator[Issue]:
    if not _may_hold_secrets(spec):
        return
    for field, text in _free_texts(spec):
        for kind, pattern in SECRETS:
            if text and pattern.search(text):
                yield fault(
                    field,
                    f"holds what looks like {kind}. What is submitted is kept in the log for ever; "
                    "put it into a credential, let the program read it from there, and revoke this one",
                )


def _may_hold_secrets(spec: TrainingSpec) -> bool:
    """Whether any of its free texts has the mark of one. JSON writes no character of these marks otherwise."""
    plain = (spec.command, spec.args, spec.working_dir, spec.category, spec.sweep, spec.pre_stop)
    variables = spec.environment_variables
    given = ([one.value for one in variables], [one.description for one in variables if one.description])
    others = [variable for variable in variables if variable.secret or variable.config_map]
    texts = ([one.value for one in spec.annotations], [one.url for one in spec.related_urls])
    written = msgspec.json.encode((plain, given, others, spec.exposed_urls, spec.ports, texts))
    return any(mark in written for mark in _MARKS_OF_SECRETS)


def _free_texts(spec: TrainingSpec) -> Iterator[tuple[str, str | None]]:
    """Texts in which people put what they like, by their field."""
    yield "spec.command", spec.command
    yield "spec.args", spec.args
    yield "spec.workingDir", spec.working_dir
    yield "spec.category", spec.category
    if spec.pre_stop is not None:
        yield "spec.preStop.command", spec.pre_stop.command
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
                f"spec.{name}", f"must be between {least} and {most}, got {value}", "min" if value < least else "max"
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
        yield _other_runs(runs, spec.completions)


def _other_runs(runs: int, completions: int) -> Issue:
    details = f"the sweep has {runs} runs, got {completions}; leave it out"
    return fault("spec.completions", details, None, "spec.sweep.parameters", "spec.sweep.combine")


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
        if _are_marks(items):
            continue
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


def _are_marks(items: Sequence[Label] | Sequence[Annotation]) -> bool:
    names = [item.name for item in items]
    return (
        each_once(names)
        and KEYS.match(names)
        and STATED.isdisjoint(names)
        and VALUES.match([item.value for item in items] if items and isinstance(items[0], Label) else [])
    )


_CHECKS: Final[tuple[Callable[[TrainingSpec], Iterator[Issue]], ...]] = (
    _image,
    _words,
    _working_dir,
    _environment,
    _secrets,
    check_compute,
    check_extended_resources,
    check_pools,
    check_node_type,
    check_node_affinity,
    check_pod_affinity,
    check_tolerations,
    _lifetime,
    _sweep,
    _metadata,
    check_connections,
    check_home,
    check_probes,
    check_pull_secrets,
    check_related_urls,
    check_saving,
    check_security,
    check_storage,
    check_terminal,
)
"""The registry of rules: a new one is a function and a line here."""
