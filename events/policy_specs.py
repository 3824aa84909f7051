"""What may stand in a policy: defaults are fields of a kind's spec, and rules stand in the same tree, one leaf for each
field. Both come from the declarations of the fields, so that a new field can be ruled at once.
"""

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from events.fields.declare import Body, Limits, Section, joined
from events.fields.node import Kind, Node, item_key, tree
from events.fields.values import QUANTITY_PATTERN, Int64, Items, LongText, Quantity, SomeQuantity, Uuid
from events.policy import MOST_IMPOSED
from events.workload.kinds import KINDS
from events.workload.spec import (
    NO_INFERENCES,
    DistributedSpec,
    InferenceSpec,
    TrainingSpec,
    WorkloadSpec,
    WorkspaceSpec,
)


class _FieldRules(Section, frozen=True, kw_only=True):
    required: bool = False
    """Whether it must have a value, from whoever sets it."""
    can_edit: bool | None = None
    """False: its value must stay as the policy has it."""
    locked: bool = False
    """Whether it must stay as the policy has it."""
    blocked: bool = False
    """Whether nobody may give it: only what is there anyway is possible."""


class BooleanRules(_FieldRules, frozen=True, kw_only=True):
    """Rules of a field that is true or false."""


class TextRules(_FieldRules, frozen=True, kw_only=True):
    """Rules of a text."""

    options: Annotated[Items[LongText] | None, Limits(shortest=1)] = None
    """The only values that are possible."""


class WholeNumberRules(_FieldRules, frozen=True, kw_only=True):
    """Rules of a whole number."""

    min: Int64 | None = None
    """The least that is possible."""
    max: Int64 | None = None
    """The most that is possible."""
    step: Annotated[int, Limits(least=1, format="int64")] | None = None
    """Only min, or 0 where there is none, plus a multiple of this."""
    options: Items[Int64] | None = None
    """The only values that are possible."""


class NumberRules(_FieldRules, frozen=True, kw_only=True):
    """Rules of a number."""

    min: float | None = None
    """The least that is possible."""
    max: float | None = None
    """The most that is possible."""
    step: float | None = None
    """Only min, or 0 where there is none, plus a multiple of this. More than 0."""
    options: Items[float] | None = None
    """The only values that are possible."""


class QuantityRules(_FieldRules, frozen=True, kw_only=True):
    """Rules of a quantity, such as 512Mi. Quantities are compared, not their texts."""

    min: Quantity | None = None
    """The least that is possible."""
    max: Quantity | None = None
    """The most that is possible."""
    step: SomeQuantity | None = None
    """Only min, or 0 where there is none, plus a multiple of this. More than 0."""
    options: Items[Quantity] | None = None
    """The only values that are possible."""


class WordsRules(TextRules, frozen=True, kw_only=True):
    """Rules of a list of words. It is one value."""

    can_add: bool | None = None
    """False: only words that the policy has in it are possible."""


class ListRules(_FieldRules, frozen=True, kw_only=True):
    """Rules of a list. It is one value."""

    can_add: bool | None = None
    """False: only items that the policy has in it are possible."""


class ItemsRules(_FieldRules, frozen=True, kw_only=True):
    """Rules of a list that is merged item by item."""

    can_edit: bool | None = None
    """False: the items of the policy must stay as they are. Others may be added."""
    can_add: bool | None = None
    """False: there may be no items beside those of the policy."""
    locked: bool = False
    """Whether the list must stay as the policy has it: no item is changed, dropped or added."""
    locked_items: Items[str] = ()
    """Names of items in the defaults that must stay as they are."""


RULES_OF: Final[dict[Kind, type[Section]]] = {
    "text": TextRules,
    "choice": TextRules,
    "integer": WholeNumberRules,
    "number": NumberRules,
    "boolean": BooleanRules,
}
_OF_OBJECTS: Final[dict[str, str]] = {
    "locked": "Whether all of it must stay as the policy has it.",
    "blocked": "Whether nobody may give any of it: only what is there anyway is possible.",
}


def is_quantity(node: Node) -> bool:
    return node.kind == "text" and node.limits.pattern == QUANTITY_PATTERN


def leaf_rules(node: Node) -> type[Section]:
    """The rules that are possible for a field that holds no others."""
    if is_quantity(node):
        return QuantityRules
    if node.kind == "list":
        if item_key(node) is not None:
            return ItemsRules
        of_words = node.item is not None and node.item.kind in ("text", "choice")
        return WordsRules if of_words else ListRules
    return RULES_OF[node.kind]


def _made(name: str, base: type[Section], fields: list[Any], texts: dict[str, str]) -> Any:
    return msgspec.defstruct(
        name, fields, bases=(base,), module=__name__, namespace={"TEXTS": texts}, frozen=True, kw_only=True
    )


@cache
def _object_rules(struct: type[Body]) -> type[Section]:
    rules = _rules_of(struct)
    texts = {**rules.TEXTS, **_OF_OBJECTS}
    return _made(f"{struct.__name__}Rules", rules, [(name, bool, False) for name in _OF_OBJECTS], texts)


@cache
def _rules_of(struct: type[Body]) -> type[Section]:
    """The rules of every field of an object, without those of the object itself."""
    fields: list[Any] = []
    texts: dict[str, str] = {}
    for node in tree(struct).fields:
        own = _object_rules(node.struct) if node.struct is not None else leaf_rules(node)
        fields.append((node.attribute, own | None, None))
        texts[node.attribute] = f"Rules of {node.name}."
    return _made(f"{struct.__name__}FieldRules", Section, fields, texts)


if TYPE_CHECKING:

    class TrainingDefaults(TrainingSpec, frozen=True, kw_only=True):
        """What a policy can set in a training."""

    class WorkspaceDefaults(WorkspaceSpec, frozen=True, kw_only=True):
        """What a policy can set in a workspace."""

    class DistributedDefaults(DistributedSpec, frozen=True, kw_only=True):
        """What a policy can set in a distributed training."""

    class InferenceDefaults(InferenceSpec, frozen=True, kw_only=True):
        """What a policy can set in an inference."""

    class TrainingRules(Section, frozen=True, kw_only=True):
        """Rules of a training's fields."""

    class WorkspaceRules(Section, frozen=True, kw_only=True):
        """Rules of a workspace's fields."""

    class DistributedRules(Section, frozen=True, kw_only=True):
        """Rules of a distributed training's fields."""

    class InferenceRules(Section, frozen=True, kw_only=True):
        """Rules of an inference's fields."""

    class WorkloadRules(Section, frozen=True, kw_only=True):
        """Rules of the fields of any kind: the form of what is stored."""
else:
    _ONE_RUN = frozenset({"code", "completions", "parallelism"})
    """What a request alone can send, and what only a training has."""
    TrainingDefaults = joined(
        "TrainingDefaults", __name__, *TrainingSpec.PARTS, without=frozenset({"code"}), optional=True
    )
    WorkspaceDefaults = joined("WorkspaceDefaults", __name__, *WorkspaceSpec.PARTS, without=_ONE_RUN, optional=True)
    DistributedDefaults = joined(
        "DistributedDefaults", __name__, *DistributedSpec.PARTS, without=_ONE_RUN, optional=True
    )
    InferenceDefaults = joined(
        "InferenceDefaults",
        __name__,
        *InferenceSpec.PARTS,
        without=_ONE_RUN | NO_INFERENCES,
        optional=True,
    )
    TrainingRules = _rules_of(TrainingSpec)
    WorkspaceRules = _rules_of(WorkspaceSpec)
    DistributedRules = _rules_of(DistributedSpec)
    InferenceRules = _rules_of(InferenceSpec)
    WorkloadRules = _rules_of(WorkloadSpec)


ImposedAssets = Annotated[tuple[Uuid, ...], Limits(longest=MOST_IMPOSED)]


class TrainingPolicySetting(Body, frozen=True, kw_only=True):
    """A policy for trainings."""

    defaults: TrainingDefaults | None = None
    """Fields that a training gets where neither a template, assets nor the request set them."""
    rules: TrainingRules | None = None
    """What may be given, in the tree of the fields."""
    imposed_assets: ImposedAssets | None = None
    """Ids of data sources that every workload has; no request drops or changes one. At most 10."""


class WorkspacePolicySetting(Body, frozen=True, kw_only=True):
    """A policy for workspaces."""

    defaults: WorkspaceDefaults | None = None
    """Fields that a workspace gets where neither a template, assets nor the request set them."""
    rules: WorkspaceRules | None = None
    """What may be given, in the tree of the fields."""
    imposed_assets: ImposedAssets | None = None
    """Ids of data sources that every workload has; no request drops or changes one. At most 10."""


class InferencePolicySetting(Body, frozen=True, kw_only=True):
    """A policy for inferences."""

    defaults: InferenceDefaults | None = None
    """Fields that an inference gets where neither a template, assets nor the request set them."""
    rules: InferenceRules | None = None
    """What may be given, in the tree of the fields."""
    imposed_assets: ImposedAssets | None = None
    """Ids of data sources that every workload has; no request drops or changes one. At most 10."""


class DistributedPolicySetting(Body, frozen=True, kw_only=True):
    """A policy for distributed trainings."""

    defaults: DistributedDefaults | None = None
    """Fields that workers, and a master of its own, get where neither a template, assets nor the request set them."""
    rules: DistributedRules | None = None
    """What may be given, in the tree of the fields; of a master, too."""
    imposed_assets: ImposedAssets | None = None
    """Ids of data sources that every workload has; no request drops or changes one. At most 10."""


POLICIES: Final[dict[str, type[Body]]] = {
    "Training": TrainingPolicySetting,
    "Workspace": WorkspacePolicySetting,
    "Distributed": DistributedPolicySetting,
    "Inference": InferencePolicySetting,
}
"""The body that sets the policy of a kind of workload."""
assert POLICIES.keys() == KINDS.keys(), "every kind of workload can have a policy"
