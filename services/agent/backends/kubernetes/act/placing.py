"""What a pod says of its node. The scheduler has chosen it already; the kubelet and Kubernetes' own controllers read it
again: who tolerates no taint is evicted, and who does not match is not admitted. Pure.
"""

from collections.abc import Iterator
from typing import Any

from events.cluster_protocol import RunPod
from events.workload.fields.scheduling import MatchExpression, Toleration
from events.workload.needs import NODE_TYPE_LABEL
from services.agent.backends.kubernetes import names

Manifest = dict[str, Any]

PREFERRED_WEIGHT = 100
"""The most there is."""


def tolerations(run: RunPod) -> list[Manifest]:
    """The workload's, and those of the taints that keep nodes for what it asks for."""
    asked = ({"key": each.resource, "operator": "Exists"} for each in run.extended)
    return [*(_toleration(each) for each in run.tolerations), *asked]


def affinity(run: RunPod, cluster_id: str) -> Manifest:
    """Of the pod's spec: nothing, or its affinity."""
    found: Manifest = {}
    if terms := list(_terms(run)):
        found["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    if run.pod_affinity is not None:
        marks = {names.CLUSTER: cluster_id, names.WORKLOAD_KEY: names.workload_key_of(run.pod_key)}
        beside = {"labelSelector": {"matchLabels": marks}, "topologyKey": run.pod_affinity.key}
        found["podAffinity"] = (
            {"requiredDuringSchedulingIgnoredDuringExecution": [beside]}
            if run.pod_affinity.type == "Required"
            else {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": PREFERRED_WEIGHT, "podAffinityTerm": beside}
                ]
            }
        )
    return {"affinity": found} if found else {}


def _terms(run: RunPod) -> Iterator[Manifest]:
    """Node type and node affinity as one: each term holds the type, too."""
    typed = MatchExpression(key=NODE_TYPE_LABEL, operator="In", values=(run.node_type,))
    every = (typed,) if run.node_type else ()
    if run.node_terms is None:
        terms = (every,) if every else ()
    else:
        # A term without expressions matches no node: with the type in it, it would.
        terms = ((*every, *term.match_expressions) for term in run.node_terms if term.match_expressions)
    yield from ({"matchExpressions": [_expression(each) for each in term]} for term in terms)


def _expression(expression: MatchExpression) -> Manifest:
    values = {"values": list(expression.values)} if expression.values else {}
    return {"key": expression.key, "operator": expression.operator, **values}


def _toleration(toleration: Toleration) -> Manifest:
    """For ever, also where it is for a time: when that is over is decided with the log, and by nobody beside it."""
    return {
        "key": toleration.key,
        "operator": toleration.operator,
        **({"value": toleration.value} if toleration.operator == "Equal" else {}),
        **({"effect": toleration.effect} if toleration.effect != "Any" else {}),
    }
