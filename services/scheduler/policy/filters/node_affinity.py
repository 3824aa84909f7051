"""A node's labels match the workload's required node affinity (S041, R14, R15), as Kubernetes reads it."""

from typing import Final

import numpy as np

from events.workload.fields.scheduling import MatchExpression, NodeSelectorTerm
from events.workload.needs import whole_number
from services.scheduler.node_labels import NodeLabels
from services.scheduler.policy.rules import Check, Filter
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans


def refuses(view: View) -> Booleans:
    labels, terms = view.room.nodes.labels, view.request.node_terms or ()
    return ~labels.answer(terms, lambda: matching(labels, terms, len(view.room.nodes.keys)))[view.rows]


def matching(labels: NodeLabels, terms: tuple[NodeSelectorTerm, ...], count: int) -> Booleans:
    """Which of all nodes match any of the terms. A term without expressions matches none."""
    matched = np.zeros(count, dtype=np.bool_)
    for term in terms:
        if term.match_expressions:
            all_of = np.ones(count, dtype=np.bool_)
            for each in term.match_expressions:
                all_of &= satisfying(labels, each)
            matched |= all_of
    return matched


def satisfying(labels: NodeLabels, expression: MatchExpression) -> Booleans:
    """Which nodes satisfy one expression. Those without the label satisfy NotIn, as they satisfy DoesNotExist."""
    numbers, _, number_of = labels.column(expression.key)
    match expression.operator:
        case "Exists":
            return numbers >= 0
        case "DoesNotExist":
            return numbers < 0
        case "In" | "NotIn":
            # The last one stands for nodes without the label, whose number is -1.
            within = np.zeros(len(number_of) + 1, dtype=np.bool_)
            within[[number_of[value] for value in expression.values if value in number_of]] = True
            return within[numbers] if expression.operator == "In" else ~within[numbers]
        case "Gt" | "Lt":
            bound = whole_number(expression.values[0]) if expression.values else None
            if bound is None:
                return np.zeros(len(numbers), dtype=np.bool_)
            wholes, are = labels.wholes(expression.key)
            return are & (wholes > bound if expression.operator == "Gt" else wholes < bound)


FILTER: Final = Filter(
    name="node_affinity",
    asks=lambda request: request.node_terms is not None,
    barred=Check(refuses=refuses, words=lambda _: "whose labels do not match nodeAffinityRequired"),
)
