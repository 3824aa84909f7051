"""Rules of the fields that say where a pod may run. Pure."""

from collections.abc import Iterator
from typing import Final

from events.fields.at_once import each_once
from events.workload.fields.scheduling import MatchExpression, Toleration
from events.workload.needs import whole_number
from events.workload.spec import MAX_AUTO_DELETION_SECONDS, TrainingSpec
from services.api.issues import Issue, fault, shown
from services.api.label_rules import KEYS, check_label_key, check_label_value

MAX_EXPRESSIONS: Final = 1_000
"""Of all terms together: the scheduler compares each with the labels of every node."""
MAX_TOLERATED_SECONDS: Final = MAX_AUTO_DELETION_SECONDS
"""How long a toleration may hold."""


def check_pools(spec: TrainingSpec) -> Iterator[Issue]:
    pools = spec.node_pools
    if all(pools) and each_once(pools):
        return
    for index, pool in enumerate(pools):
        if not pool:
            yield fault(f"spec.nodePools[{index}]", "is empty; name a node pool", "min")
        elif pool in pools[:index]:
            yield fault(f"spec.nodePools[{index}]", f"{shown(pool)} is given twice; leave one out")


def check_node_type(spec: TrainingSpec) -> Iterator[Issue]:
    """S040."""
    if spec.node_type is not None:
        yield from check_label_value("spec.nodeType", spec.node_type)


def check_node_affinity(spec: TrainingSpec) -> Iterator[Issue]:
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


def check_pod_affinity(spec: TrainingSpec) -> Iterator[Issue]:
    """R16: that both are there, the declaration says."""
    if spec.pod_affinity is not None:
        yield from check_label_key("spec.podAffinity.key", spec.pod_affinity.key)


def check_tolerations(spec: TrainingSpec) -> Iterator[Issue]:
    """R17, R37."""
    tolerations = spec.tolerations
    named = [toleration.name for toleration in tolerations if toleration.name is not None]
    sound = each_once(named) and KEYS.match([toleration.key or "" for toleration in tolerations])
    alike = {(one.operator, one.effect, one.value, one.seconds, one.exclude) for one in tolerations}
    if sound and all(_is_plain(*shared) for shared in alike):
        return
    seen: set[str] = set()
    for index, toleration in enumerate(tolerations):
        one = toleration
        if sound and _is_plain(one.operator, one.effect, one.value, one.seconds, one.exclude):
            continue
        path, name = f"spec.tolerations[{index}]", toleration.name
        if name is not None and name in seen:
            yield fault(f"{path}.name", f"{shown(name)} is given twice; leave one out")
        seen |= set() if name is None else {name}
        if not toleration.exclude:
            yield from _toleration(path, toleration)
        elif name is None:
            details = "is required where exclude is true: the name of the item to leave out"
            yield fault(f"{path}.name", details, "required", f"{path}.exclude")


def _is_plain(
    operator: str | None,
    effect: str | None,
    value: str | None,
    seconds: int | None,
    exclude: bool,  # noqa: FBT001 (of a tuple)
) -> bool:
    """Whether nothing is wrong with such a toleration but perhaps its name or its key."""
    return operator == "Exists" and bool(effect) and value is seconds is None and not exclude


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
    elif toleration.seconds is not None and toleration.seconds > MAX_TOLERATED_SECONDS:
        yield fault(
            f"{path}.seconds", f"must be at most {MAX_TOLERATED_SECONDS}, got {shown(toleration.seconds)}", "max"
        )
