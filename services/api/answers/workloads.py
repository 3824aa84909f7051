"""Workloads: what the contract says of a training, what the tables' columns say, pods, history and usage. Pure."""

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union

import msgspec
from msgspec import UNSET, Meta, UnsetType

from events.phases import DesiredPhase, Phase, PodPhase
from events.workload.fields.connections import AuthorizationType
from projections.columns import Column, Public, public_columns
from projections.workloads.project import ENDED_POD_PHASES
from projections.workloads.rows import WorkloadRow as _WorkloadColumns
from services.api.answers.forms import Form, Name, Uuid
from services.api.shown_events import Moment, shown, workload_events


def spec_schema(name: str) -> Meta:
    """The schema of a spec that is made elsewhere, from the declared fields."""
    return Meta(extra_json_schema={"allOf": [{"$ref": f"#/components/schemas/{name}"}], "nullable": True})


EffectiveSpec = Annotated[object, spec_schema("TrainingSpec")]
"""The effective spec, in the fields of the request."""
ConnectionType = Literal["ExternalUrl", "NodePort", "LoadBalancer", "ClusterIP"]
MetricType = Literal["CPU_USAGE_CORES", "CPU_MEMORY_USAGE_BYTES", "GPU_UTILIZATION", "GPU_MEMORY_USAGE_BYTES"]
if TYPE_CHECKING:
    type RunPhase = str
else:
    RunPhase = StrEnum("RunPhase", {phase.upper(): phase for phase in (*PodPhase, *ENDED_POD_PHASES)})
"""What a run of a pod is doing, or how it ended."""


class Training1(Form, frozen=True, kw_only=True):
    """A training, in the contract's form."""

    name: Name
    """Unique among the living workloads of its project."""
    requested_name: str
    """Name in the request, or the given prefix of the name."""
    workload_id: Uuid
    """Id of the workload. A later workload of the same name has another id."""
    project_id: str
    """UUID of its project."""
    department_id: Name | UnsetType = UNSET
    """UUID of the department in which its project stands. Missing where nobody knows it."""
    cluster_id: Uuid
    """Cluster that runs it."""
    created_by: str
    """Subject of the token that submitted it. Whose it is now, `submittedBy` of its row says."""
    created_at: Moment
    """When it was submitted."""
    deleted_at: Moment | None = None
    """When it was deleted."""
    desired_phase: DesiredPhase
    """The phase that its users want."""
    actual_phase: Phase | UnsetType = UNSET
    """Current phase."""
    spec: EffectiveSpec = None
    """The spec, with defaults filled in."""
    not_yet_in_force: tuple[str, ...] = ()
    """Paths of given fields that Muster does not act on yet. Not part of the contract."""
    set_by: dict[str, str] | UnsetType = UNSET
    """Who set each field of the spec, by its path: `request`, `default`, or a template or asset and its name. Only
    where explain is true. Not part of the contract.
    """


class Workspace(Training1, frozen=True, kw_only=True):
    """A workspace."""

    spec: Annotated[object, spec_schema("WorkspaceSpec")] = None
    """The spec, with defaults filled in."""


class Inference(Training1, frozen=True, kw_only=True):
    """An inference."""

    spec: Annotated[object, spec_schema("InferenceSpec")] = None
    """The spec of its replicas and of the whole, with defaults filled in."""


class DistributedTraining(Training1, frozen=True, kw_only=True):
    """A distributed training."""

    spec: Annotated[object, spec_schema("DistributedSpec")] = None
    """The spec of the workers and of the whole, with defaults filled in."""
    master_spec_same_as_worker: bool
    """Whether there is a master that is made as the workers are."""
    master_spec: Annotated[object, spec_schema("MasterSpec")] = None
    """The spec of a master that is made otherwise; null where there is none."""


class AnyWorkload(Training1, frozen=True, kw_only=True):
    """A workload of any kind."""

    spec: Annotated[object, spec_schema("WorkloadSpec")] = None
    """The spec, with defaults filled in, in the fields of a request for its kind."""
    kubernetes_type: str
    """What Run:ai calls its kind, such as TrainingWorkload or InferenceWorkload."""
    master_spec_same_as_worker: bool | UnsetType = UNSET
    """Of a distributed training: whether there is a master that is made as the workers are."""
    master_spec: Annotated[object, spec_schema("MasterSpec")] | UnsetType = UNSET
    """Of a distributed training: the spec of a master that is made otherwise; null where there is none."""


_TYPES: Final[dict[str, Any]] = {
    "text": str,
    "integer": int,
    "number": float,
    "flag": bool,
    "time": Moment,
    "texts": tuple[str, ...],
    "integers": tuple[int, ...],
}


def _type_of(column: Column[Any], public: Public) -> Any:
    kind: Any = float if column.in_thousandths else _TYPES[column.type]
    if public.values:
        kind = public.values if isinstance(public.values, type) else Literal[*public.values]
    described: Any = Annotated[kind, Meta(description=public.help)]
    return described | None if column.null or public.empty_is_null else described


def _columns() -> Iterator[tuple[str, Any]]:
    return ((public.name, _type_of(column, public)) for column, public in public_columns(_WorkloadColumns))


def _workload_fields() -> Iterator[tuple[Any, ...]]:
    """A training's fields, and of the columns those that have other names."""
    training = {field.encode_name: field for field in msgspec.structs.fields(AnyWorkload)}
    yield from ((name, kind) for name, kind in _columns() if name not in training)
    for name, field in training.items():
        default = () if field.default is msgspec.NODEFAULT else (field.default,)
        yield (name, field.type, *default)


if TYPE_CHECKING:

    class WorkloadRow(Form, frozen=True):
        def __init__(self, **values: Any) -> None: ...

    class Workload(Form, frozen=True):
        def __init__(self, **values: Any) -> None: ...

else:
    _HERE: Final = {"module": __name__, "frozen": True, "kw_only": True}
    WorkloadRow = msgspec.defstruct(
        "WorkloadRow", list(_columns()), namespace={"__doc__": "A workload, as lists show it."}, **_HERE
    )
    Workload = msgspec.defstruct(
        "Workload",
        list(_workload_fields()),
        namespace={"__doc__": "A workload, and all that is known of it.", "SHOWS": AnyWorkload},
        **_HERE,
    )


def fields_of(answer: msgspec.Struct) -> dict[str, Any]:
    """Its fields by their names in JSON."""
    names = zip(answer.__struct_fields__, answer.__struct_encode_fields__, strict=True)
    return {shown: getattr(answer, name) for name, shown in names}


class WorkloadKind(Form, frozen=True, kw_only=True):
    """A kind of workload, and what one gets that asks for nothing else (S045)."""

    name: str
    """As lists and filters call it, such as Training."""
    kubernetes_type: str
    """What Run:ai calls it, such as TrainingWorkload; filters take it, too."""
    path: str
    """Where one is submitted."""
    priority_class: str
    """Priority of one that names none; of a project, where one is asked for, as its policies have it."""
    preemptibility: Literal["preemptible", "non-preemptible"]
    """Whether the scheduler may preempt one that names neither a priority nor this. Likewise."""


class WorkloadTypes(Form, frozen=True, kw_only=True):
    """Every kind of workload."""

    workload_types: list[WorkloadKind]
    """In no order that means anything."""


class WorkloadList(Form, frozen=True, kw_only=True):
    """A page of workloads."""

    workloads: list[WorkloadRow]
    """In the order that was asked for."""
    next: int | None
    """The offset of the next page; null on the last one."""


class Count(Form, frozen=True, kw_only=True):
    """How many workloads there are."""

    count: int
    """On all pages."""


class Actor(Form, frozen=True, kw_only=True):
    """Who did something."""

    iss: str
    """Issuer of their tokens; `muster` for a service of Muster."""
    sub: str
    """Subject of their tokens, or the service's name."""
    kind: Literal["user", "service"] | UnsetType = UNSET
    """A person or program with a token, or a service of Muster."""


class HistoryRecord(Form, frozen=True, kw_only=True):
    """One event in the life of a workload, in words."""

    sequence: int
    """Of its commit in the log."""
    index: int
    """Place in its commit."""
    at: Moment
    """When it was decided."""
    phase: Phase
    """After it."""
    reason: str | UnsetType = UNSET
    """Why, as a code, where the event has one."""
    message: str
    """The sentence."""
    actor: Actor
    """Who caused it."""


HISTORY: Final = {
    name: msgspec.defstruct(
        f"{name}Record",
        [("details", shown(event))],
        bases=(HistoryRecord,),
        namespace={"__doc__": event.__doc__},
        module=__name__,
        frozen=True,
        kw_only=True,
        tag_field="type",
        tag=name,
    )
    for name, event in workload_events()
}
"""A record of each event's kind; `details` has the event's fields."""
if TYPE_CHECKING:
    type AnyHistoryRecord = HistoryRecord
else:
    AnyHistoryRecord = Union[tuple(HISTORY.values())]  # noqa: UP007 - of what is registered


class History(Form, frozen=True, kw_only=True):
    """A page of a workload's history, oldest first."""

    records: list[AnyHistoryRecord]
    """One for each event."""
    next: int | None
    """The offset of the next page; null on the last one."""


class Device(Form, frozen=True, kw_only=True):
    """A GPU, or a share of it."""

    device: int
    """Its number on the node, from 0."""
    milli: int
    """Thousandths of it."""


class Pod(Form, frozen=True, kw_only=True):
    """One run of one pod."""

    name: str
    """Name of the pod: its pod set and index, such as `main-0`."""
    pod_set: str
    """Pod set that it belongs to."""
    index: int
    """Number of the pod in its pod set, from 0."""
    values: dict[str, str] | UnsetType = UNSET
    """Of a sweep: the values of this pod's runs, by the names of their variables."""
    attempt: int
    """Attempt of the workload. It rises with each resume."""
    run: int
    """Number of the run of this pod in the attempt, from 1."""
    phase: RunPhase
    """Its phase, or how it ended."""
    node: str | None
    """Node that it is or was on."""
    node_pool: str | None
    """The pool of that node."""
    devices: list[Device]
    """GPUs that it holds or held."""
    not_before: Moment | None
    """When it may run again, while it waits after a failure."""
    bound_at: Moment | None
    """When it got its node."""
    started_at: Moment | None
    """When its process began."""
    finished_at: Moment | None
    """When it ended."""
    exit_code: int | None
    """Exit code of its process."""
    reason: str
    """Code of the reason for the phase. Empty if there is none."""
    message: str
    """The reason for the phase, as a sentence."""


class Pods(Form, frozen=True, kw_only=True):
    """Every run of every pod of a workload."""

    pods: list[Pod]
    """In order of pod set, index, attempt and run."""


class Connection(Form, frozen=True, kw_only=True):
    """How one port of a workload is reached."""

    name: str
    """Of the item in the request, or what stands for it."""
    connection_type: ConnectionType
    """ExternalUrl: by the proxy, in a browser. The others are the service types of `ports`."""
    tool_type: str | UnsetType = UNSET
    """What listens there."""
    tool_name: str | UnsetType = UNSET
    """Name of the tool."""
    container: int
    """Port on which the container listens."""
    external: int | UnsetType = UNSET
    """Port that was asked for."""
    address: str | UnsetType = UNSET
    """The URL, or host and port. Absent where it is not known now."""
    authorization_type: AuthorizationType | UnsetType = UNSET
    """Who may open the URL."""
    authorized_users: tuple[str, ...] | UnsetType = UNSET
    """Those users."""
    authorized_groups: tuple[str, ...] | UnsetType = UNSET
    """Those groups."""
    ready: bool
    """Whether a pod runs that answers there, as far as its cluster tells."""
    message: str | UnsetType = UNSET
    """Why not."""


class Connections(Form, frozen=True, kw_only=True):
    """How what a workload serves is reached."""

    connections: list[Connection]
    """URLs first, then ports."""


class MetricValue(Form, frozen=True, kw_only=True):
    """One point of a series."""

    timestamp: Moment
    """The beginning of the interval."""
    value: float
    """The average over the interval."""


class Measurement(Form, frozen=True, kw_only=True):
    """What one pod used over time."""

    type: MetricType
    """What is measured."""
    pod: str
    """Its name."""
    values: list[MetricValue]
    """Oldest first."""


class Metrics(Form, frozen=True, kw_only=True):
    """What a workload's pods used over time."""

    measurements: list[Measurement]
    """A series for each type and pod."""
