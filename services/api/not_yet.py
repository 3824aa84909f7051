"""Fields that a workload has and that nothing acts on yet: its answer lists them (`notYetInForce`). Pure."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from events.fields.node import Node, tree
from events.workload.fields.creation import TrainingCreation
from events.workload.kinds.distributed import growth_ahead
from events.workload.spec import Beside, Distributed, TrainingSpec


def not_yet_in_force(spec: TrainingSpec, beside: Beside = None) -> tuple[str, ...]:
    """Paths of fields with another value than their default, such as `spec.tolerations[0].seconds`."""
    node = tree(TrainingCreation).by_name["spec"]
    ahead = growth_ahead(beside.distribution) if isinstance(beside, Distributed) else ()
    return (*_given(node, spec, node.name), *ahead)


def _given(node: Node, value: Any, path: str) -> Iterator[str]:
    if node.path not in _waiting_paths() or value is None:
        return
    if node.about is not None and not node.about.in_force:
        if value != node.default:
            yield path
    elif node.item is not None:
        for index, item in enumerate(value):
            yield from _given(node.item, item, f"{path}[{index}]")
    else:
        for field in node.fields:
            yield from _given(field, getattr(value, field.attribute), f"{path}.{field.name}")


@cache
def _waiting_paths() -> frozenset[str]:
    """Of the fields that nothing acts on yet, and of all that hold one."""
    found: set[str] = set()

    def look(node: Node) -> bool:
        parts = (*node.fields, *(() if node.item is None else (node.item,)))
        below = [look(part) for part in parts]
        waits = any(below) or (node.about is not None and not node.about.in_force)
        if waits:
            found.add(node.path)
        return waits

    look(tree(TrainingCreation))
    return frozenset(found)
