"""Where and in which order a workload runs."""

from typing import Annotated, ClassVar, Final, Literal

from events.fields.declare import About, Body, Item, Limits, Section
from events.fields.values import MAX_LIST_ITEMS, Items, LabelName, LongName, LongText, PoolWord

PriorityClass = Literal["very-low", "low", "medium-low", "medium", "medium-high", "high", "very-high"]
DEFAULT_TRAINING_PRIORITY: Final = "low"
"""Trainings are unattended: people who wait at a workspace go first."""
DEFAULT_WORKSPACE_PRIORITY: Final = "high"
"""The lowest class that is not preempted: nobody shall lose the notebook that they work in."""
DEFAULT_INFERENCE_PRIORITY: Final = "very-high"
"""Somebody waits for every answer, and nobody shall lose a replica to a training."""
type Listed[T] = Annotated[tuple[T, ...], Limits(longest=MAX_LIST_ITEMS, hides_default=True)]
"""A list that may be left out, and not be null."""
Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]


class MatchExpression(Body, frozen=True, kw_only=True, omit_defaults=True):
    """What one label of a node must be."""

    key: Annotated[LabelName, About(rows="S041 R14")]
    """Key of the label. Mandatory."""
    operator: Annotated[Operator, About(rows="S041 R14")]
    """In and NotIn compare with values, Exists and DoesNotExist with none, Gt and Lt with one whole number.
    Mandatory.
    """
    values: Annotated[Listed[LongText], About(rows="S041 R14")] = ()
    """Values of the label, as the operator takes them."""


class NodeSelectorTerm(Body, frozen=True, kw_only=True, omit_defaults=True):
    """A term matches the nodes that match all its expressions."""

    match_expressions: Annotated[Listed[Annotated[MatchExpression, Limits(or_null=True)]], About(rows="S041 R15")] = ()
    """Expressions that must all match. A term without any matches no node."""


class NodeAffinityRequired(Body, frozen=True, kw_only=True, omit_defaults=True):
    """Which nodes are possible, by their labels."""

    node_selector_terms: Annotated[
        Listed[Annotated[NodeSelectorTerm, Limits(or_null=True)]], About(rows="S041 R15")
    ] = ()
    """Terms of which at least one must match."""


class PodAffinity(Section, frozen=True, kw_only=True):
    """Whether the pods of the workload stay together."""

    type: Annotated[Literal["Required", "Preferred"], About(rows="S042 R16")]
    """Required: a pod that has no room beside the others waits. Preferred: it goes elsewhere. Mandatory within
    podAffinity.
    """
    key: Annotated[LabelName, About(rows="S042 S043 R16")]
    """Key of a label of nodes, such as topology.kubernetes.io/zone. Mandatory within podAffinity."""


class Toleration(Item, frozen=True, kw_only=True, omit_defaults=True):
    """Lets pods on nodes with a taint."""

    name: Annotated[LongName | None, About(rows="S044 R37")] = None
    """Name of this item, by which exclude finds it."""
    operator: Annotated[Literal["Equal", "Exists"] | None, About(rows="S044 R17 C6")] = None
    """Exists: any value of the taint. Equal: the one in value. Mandatory."""
    key: Annotated[Annotated[str, Limits(longest=253)] | None, About(rows="S044 R17")] = None
    """Key of the taint. Mandatory."""
    value: Annotated[LongText | None, About(rows="S044 R17 C6")] = None
    """Value of the taint. Only with operator Equal."""
    effect: Annotated[Literal["NoSchedule", "NoExecute", "PreferNoSchedule", "Any"] | None, About(rows="S044 R17")] = (
        None
    )
    """Effect of the taint. Any: every one. Mandatory."""
    seconds: Annotated[Annotated[int, Limits(least=1)] | None, About(rows="S044 R17")] = None
    """How long a pod stays on a node that gets the taint, in seconds. Only with effect NoExecute. A node that has the
    taint already gets no new pod for it. Default: for ever.
    """
    exclude: Annotated[bool, About(rows="S044 R37")] = False
    """Whether to drop the item of this name that a default sets."""


class Scheduling(Section, frozen=True, kw_only=True):
    """Node pools, nodes, priority, preemption."""

    TITLE: ClassVar[str] = "Scheduling"

    node_pools: Annotated[Items[PoolWord], About(rows="S039", flag="--node-pools")] = ()
    """Names of node pools, in the order in which they are tried. Default: the project's order."""
    node_type: Annotated[Annotated[str, Limits(shortest=1)] | None, About(rows="S040", flag="--node-type")] = None
    """Only nodes whose label run.ai/type has this value. Default: any node."""
    node_affinity_required: Annotated[NodeAffinityRequired | None, About(rows="S041 R14 R15")] = None
    """Only nodes whose labels match. Default: any node."""
    pod_affinity: Annotated[PodAffinity | None, About(rows="S042 S043 R16 C11")] = None
    """Place the pods of the workload on nodes that have the same value of one label. Default: on any nodes."""
    tolerations: Annotated[
        Items[Toleration],
        About(rows="S044 R17 C6", flag="--toleration", key="name", example="operator=Exists,key=dedicated,effect=Any"),
    ] = ()
    """Taints of nodes that do not keep its pods away; at most 1000. Default: that of nodes with what it asks for."""
    priority_class: Annotated[
        PriorityClass, Limits(hides_options=True), About(rows="S045 R18", flag="--priority", later=True)
    ] = DEFAULT_TRAINING_PRIORITY
    """Priority: very-low, low, medium-low, medium, medium-high, high or very-high. Default: low; for workspaces
    high, for inferences very-high.
    """
    preemptibility: Annotated[
        Literal["preemptible", "non-preemptible"] | None, About(rows="S046 R19", flag="--preemptibility")
    ] = None
    """Whether the scheduler may preempt it. Default: preemptible if the priority is below high."""
    terminate_after_preemption: Annotated[bool, About(rows="S050", flag="--terminate-after-preemption")] = False
    """Whether the workload ends once it was preempted. Otherwise it waits to run again. Default: no."""
