"""Rows about nodes: one declaration per column (projections/columns.py). Pure."""

from datetime import datetime
from typing import Annotated, NamedTuple

import msgspec

from events.node import Node, Reservation
from projections.columns import Column, Folded
from projections.values import clean, fit, indexed, to_json

_Column = Column[Folded[Node]]


class NodeRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node that was ever registered. CPU in thousandths of a core, memory in bytes."""

    key: Annotated[str, _Column(lambda node: node.key, key=True)]
    version: Annotated[int, _Column(lambda node: node.version, often=True)]
    cluster_id: Annotated[str, _Column(lambda node: clean(node.state.cluster_id))]
    name: Annotated[str, _Column(lambda node: clean(node.state.name))]
    present: Annotated[bool, _Column(lambda node: node.state.present)]
    pool: Annotated[str, _Column(lambda node: clean(node.state.facts.pool))]
    ready: Annotated[bool, _Column(lambda node: node.state.facts.ready)]
    unschedulable: Annotated[bool, _Column(lambda node: node.state.facts.unschedulable)]
    cordoned_by: Annotated[str, _Column(lambda node: clean(node.state.cordoned_by))]
    """Actor id; empty where nobody cordoned it here."""
    cordoned_at: Annotated[datetime | None, _Column(lambda node: node.state.cordoned_at)]
    drain: Annotated[str, _Column(lambda node: to_json(node.state.drain or {}), type="json")]
    """JSON: {"by", "at", "force", "ended_at"}; {} where it is not drained."""
    cpu_milli: Annotated[int, _Column(lambda node: fit(node.state.facts.cpu_milli))]
    memory_bytes: Annotated[int, _Column(lambda node: fit(node.state.facts.memory_bytes))]
    gpu_count: Annotated[int, _Column(lambda node: fit(node.state.facts.gpu_count))]
    gpu_model: Annotated[str, _Column(lambda node: clean(node.state.facts.gpu_model))]
    gpu_memory_bytes: Annotated[int, _Column(lambda node: fit(node.state.facts.gpu_memory_bytes))]
    max_pods: Annotated[int, _Column(lambda node: fit(node.state.facts.max_pods))]
    foreign_cpu_milli: Annotated[int, _Column(lambda node: fit(node.state.facts.foreign_cpu_milli))]
    foreign_memory_bytes: Annotated[int, _Column(lambda node: fit(node.state.facts.foreign_memory_bytes))]
    foreign_gpus: Annotated[int, _Column(lambda node: fit(node.state.facts.foreign_gpus))]
    foreign_pods: Annotated[int, _Column(lambda node: fit(node.state.facts.foreign_pods))]
    stand_in: Annotated[bool, _Column(lambda node: node.state.facts.stand_in)]
    labels: Annotated[str, _Column(lambda node: to_json(node.state.facts.labels), type="json")]
    """JSON object."""
    taints: Annotated[str, _Column(lambda node: to_json(node.state.facts.taints), type="json")]
    """JSON: [{"key", "value", "effect"}]."""
    extended: Annotated[str, _Column(lambda node: to_json(node.state.facts.extended), type="json")]
    """JSON object: extended resources by name; likewise the two others."""
    foreign_extended: Annotated[str, _Column(lambda node: to_json(node.state.facts.foreign_extended), type="json")]
    used_extended: Annotated[str, _Column(lambda node: to_json(node.state.used_extended), type="json", often=True)]
    used_cpu_milli: Annotated[int, _Column(lambda node: node.state.used_cpu_milli, often=True)]
    used_memory_bytes: Annotated[int, _Column(lambda node: node.state.used_memory_bytes, often=True)]
    used_device_milli: Annotated[tuple[int, ...], _Column(lambda node: node.state.used_device_milli, often=True)]
    """Reserved share of each device, in thousandths."""
    reserved_pods: Annotated[int, _Column(lambda node: len(node.state.reservations), often=True)]


class Held(NamedTuple):
    """A reservation, and the key of the node that it is on."""

    node_key: str
    reservation: Reservation


_Hold = Column[Held]


class ReservationRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one run of a pod holds of a node.

    Its key is that of its node, too: two nodes may hold the same id, where somebody wrote what no scheduler decides.
    """

    node_key: Annotated[str, _Hold(lambda held: held.node_key, key=True)]
    id: Annotated[str, _Hold(lambda held: indexed(held.reservation.id), key=True)]
    workload_id: Annotated[str, _Hold(lambda held: clean(held.reservation.workload_id))]
    workload_key: Annotated[str, _Hold(lambda held: clean(held.reservation.workload_key))]
    cpu_milli: Annotated[int, _Hold(lambda held: held.reservation.cpu_milli)]
    memory_bytes: Annotated[int, _Hold(lambda held: held.reservation.memory_bytes)]
    devices: Annotated[str, _Hold(lambda held: to_json(held.reservation.devices), type="json")]
    """JSON: [{"device", "milli"}]."""
    gpu_milli: Annotated[int, _Hold(lambda held: fit(sum(share.milli for share in held.reservation.devices)))]
    """Sum of its devices' shares."""
