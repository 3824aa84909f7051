"""What a submission would be, field by field. Pure."""

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from events.why import KeptBy
from services.api.answers.forms import Form
from services.api.answers.outcomes import ComplianceIssue
from services.api.shown_events import Moment

JSON_VALUE: Final[dict[str, Any]] = {"description": "The value of any field: any JSON value."}
"""One that says more would contain itself, and generators of clients lose their way in it, written out or not."""
Value = Annotated[object, Meta(extra_json_schema={"allOf": [{"$ref": "#/components/schemas/JsonValue"}]})]


class EvaluatedField(Form, frozen=True, kw_only=True):
    """A field of a spec, or an item of one of its lists."""

    field: str
    """Path, such as `spec.labels[0]`, in the spec with all that policies, a template and assets set. That of a master
    with a spec of its own begins with masterSpec."""
    value: Value
    """What it would be."""
    default: Value
    """What it would be if neither a template, assets nor the request set it."""
    set_by: str
    """Who sets it: `request`, `default`, `tenant policy`, `department policy`, `project policy`, or a template or asset
    and its name."""
    locked: bool
    """Whether a policy lets nobody change it: also where it is blocked."""
    blocked: bool
    """Whether a policy lets nobody give it."""
    required: bool
    """Whether it must have a value."""
    can_add: bool | UnsetType = UNSET
    """Of a list: whether a policy lets items be added."""
    min: Value | UnsetType = UNSET
    """The least that is possible. Absent where there is no bound; likewise those below."""
    max: Value | UnsetType = UNSET
    """The most that is possible."""
    step: Value | UnsetType = UNSET
    """Between two values that are possible."""
    options: list[Value] | UnsetType = UNSET
    """The only values that are possible."""
    instructions: str | UnsetType = UNSET
    """Of an environment variable: what is said of it for people."""
    issues: list[ComplianceIssue]
    """What is wrong with it."""


class WouldRun(Form, frozen=True, kw_only=True):
    """Pods of one pod set that would get the same node."""

    pod_set: str
    """Pod set, such as `main`."""
    cluster: str
    """Name of its cluster."""
    node: str
    """Name of the node."""
    node_pool: str
    """The pool of that node."""
    pods: int
    """How many of them."""
    gpus: float
    """GPUs that they would hold there together."""


class WouldEnd(Form, frozen=True, kw_only=True):
    """A workload of the same project whose pods would be told to end for it."""

    workload_id: str
    """Id of the workload."""
    name: str
    """Its name."""
    pods: int
    """How many of its pods."""
    rule: str
    """By which rule, such as preempted."""


class PlaceKept(Form, frozen=True, kw_only=True):
    """Whose place may not be taken, or not yet, though the workload that waits would have a right to it."""

    workload_id: str | None
    """Id of the workload. Null of those that you may not see; likewise its name."""
    name: str | None
    """Its name."""
    workloads: int
    """How many workloads: more than one only of those that you may not see."""
    until: Moment | None
    """From then on its place may be taken; of several, the first. Null: never."""
    rule: KeptBy
    """minimum_runtime: what runs may run for the minimum of its project or department. gave_up_a_place: it gave up a
    place, and keeps the next one for ten minutes. got_its_place: the workload that waits had given up its own for it.
    """
    message: str
    """The rule in words."""


class Outlook(Form, frozen=True, kw_only=True):
    """What the scheduler would do with it now, beside everything that waits. Another moment may have another answer."""

    outcome: Literal["runs", "waits", "never", "unknown"]
    """runs: all pods that begin with it have room. waits: some, or all, wait. never: it cannot be placed as it is,
    however much becomes free. unknown: the scheduler did not answer, or did not find out.
    """
    placed: list[WouldRun]
    """Where pods would run, at most 100 nodes."""
    more_nodes: int
    """Nodes beyond them."""
    waiting_pods: int
    """Pods that would wait."""
    reason: str | None
    """Code of why they would wait, such as insufficient_gpu."""
    message: str | None
    """The same in a sentence, with numbers; or why it is not known."""
    evicted: list[WouldEnd]
    """Who would be told to end for it; at most 100. It would start once they have ended."""
    evicted_pods_elsewhere: int
    """Pods of other projects that would be told to end for it, and of workloads beyond those."""
    kept: list[PlaceKept]
    """Whose places it could not take yet, and until when."""


class Evaluation(Form, frozen=True, kw_only=True):
    """What a submission would be, and all that is wrong with it."""

    accepted: bool
    """Whether a submission of the same would be accepted now."""
    fields: list[EvaluatedField]
    """Every field of the spec, and of a master's own spec where there is one."""
    issues: list[ComplianceIssue]
    """Everything that is wrong with the request, by its own paths."""
    not_yet_in_force: tuple[str, ...]
    """Paths of given fields that Muster does not act on yet."""
    placement: Outlook | UnsetType = UNSET
    """Where it would run, and why it would wait. Only where placement is true, and a submission would be accepted."""
