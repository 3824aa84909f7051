"""Fields that a workload has and that nothing acts on yet: its answer lists them (`notYetInForce`). Pure."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from events.fields.node import Node, tree
from events.workload.fields.creation import TrainingCreation
from events.workload.spec import TrainingSpec


def not_yet_in_force(spec: TrainingSpec) -> tuple[str, ...]:
    """Paths of fields with another value than their default, such as `spec.tolerations[0].seconds`."""
    node = tree(TrainingCreation).by_name["spec"]
    return tuple(_given(node, spec, node.name))


def _given(node: Node, value: Any, path: str) -> Iterator[str]:
    if value is None:
        return
    if node.about is not None and not node.about.in_force:
        if value != node.default:
            yield path
    elif node.item is not None:
        fields = _waiting().get(node.item.path, ())
        for index, item in enumerate(value):
            for field in fields:
                if (inner := getattr(item, field.attribute)) is not None:
                    yield from _given(field, inner, f"{path}[{index}].{field.name}")
    else:
        for field in _waiting().get(node.path, ()):
            yield from _given(field, getattr(value, field.attribute), f"{path}.{field.name}")


@cache
def _waiting() -> dict[str, tuple[Node, ...]]:
    """By the path of an object: its fields that nothing acts on yet, and those that hold one."""
    found: dict[str, tuple[Node, ...]] = {}

    def waits(node: Node) -> bool:
        below = tuple(field for field in node.fields if waits(field))
        if below:
            found[node.path] = below
        inside = node.item is not None and waits(node.item)
        return bool(below) or inside or (node.about is not None and not node.about.in_force)

    waits(tree(TrainingCreation))
    return found
