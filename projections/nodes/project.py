"""What the events of a node make of its rows: the node itself, and the reservations on it. Pure."""

from typing import assert_never

import msgspec
from msgspec.structs import replace

from events.aggregate import BrokenChainError
from events.commit import Commit
from events.node import (
    MOST_RESERVED,
    NodeChanged,
    NodeEvent,
    NodeFacts,
    NodeRegistered,
    NodeRemoved,
    PodsReserved,
    Reservation,
    ReservationsReleased,
    holdable,
)
from projections.rows import NodeRow, ReservationRow
from projections.values import clean, fit, indexed, to_json


class NodeEntry(msgspec.Struct, frozen=True):
    row: NodeRow | None = None
    reservations: dict[str, ReservationRow] = {}
    """By id."""


def begin_commit(entry: NodeEntry, commit: Commit) -> NodeEntry:
    """The entry at the commit's version. Raises BrokenChainError where it does not follow the one before."""
    if entry.row is None:
        return entry
    at = entry.row.version
    if at != commit.record.parent_seq:
        raise BrokenChainError(
            f"node {commit.key}: commit {commit.seq} follows {commit.record.parent_seq}, but its row is at {at}"
        )
    return NodeEntry(replace(entry.row, version=commit.seq), entry.reservations)


def evolve(entry: NodeEntry, event: NodeEvent, commit: Commit) -> NodeEntry:
    """The entry after one more event."""
    row = entry.row
    if isinstance(event, NodeRegistered):
        if not event.cluster_id:
            return entry
        row = _with_facts(row or _new_row(commit), event.facts)
        named = replace(row, cluster_id=clean(event.cluster_id), name=clean(event.name), present=True)
        return NodeEntry(named, entry.reservations)
    if row is None:
        return entry  # nobody lists a node that was never registered
    match event:
        case NodeChanged():
            return NodeEntry(_with_facts(row, event.facts), entry.reservations)
        case NodeRemoved():
            return NodeEntry(replace(row, present=False), entry.reservations)
        case PodsReserved():
            return _reserved(row, entry.reservations, event, commit.key)
        case ReservationsReleased():
            return _released(row, entry.reservations, event)
        case _:
            assert_never(event)


def _new_row(commit: Commit) -> NodeRow:
    return NodeRow(
        key=commit.key,
        version=commit.seq,
        cluster_id="",
        name="",
        present=True,
        pool="",
        ready=False,
        unschedulable=False,
        cpu_milli=0,
        memory_bytes=0,
        gpu_count=0,
        gpu_model="",
        gpu_memory_bytes=0,
        max_pods=0,
        foreign_cpu_milli=0,
        foreign_memory_bytes=0,
        foreign_gpus=0,
        foreign_pods=0,
        stand_in=False,
        labels="{}",
        taints="[]",
    )


def _with_facts(row: NodeRow, facts: NodeFacts) -> NodeRow:
    return replace(
        row,
        pool=clean(facts.pool),
        ready=facts.ready,
        unschedulable=facts.unschedulable,
        cpu_milli=fit(facts.cpu_milli),
        memory_bytes=fit(facts.memory_bytes),
        gpu_count=fit(facts.gpu_count),
        gpu_model=clean(facts.gpu_model),
        gpu_memory_bytes=fit(facts.gpu_memory_bytes),
        max_pods=fit(facts.max_pods),
        foreign_cpu_milli=fit(facts.foreign_cpu_milli),
        foreign_memory_bytes=fit(facts.foreign_memory_bytes),
        foreign_gpus=fit(facts.foreign_gpus),
        foreign_pods=fit(facts.foreign_pods),
        stand_in=facts.stand_in,
        labels=to_json(facts.labels),
        taints=to_json(facts.taints),
    )


def _reserved(row: NodeRow, held: dict[str, ReservationRow], event: PodsReserved, key: str) -> NodeEntry:
    held = dict(held)
    milli = list(row.used_device_milli)
    cpu, memory = row.used_cpu_milli, row.used_memory_bytes
    for reservation in event.reservations:
        id_ = indexed(reservation.id)
        more = max(cpu + reservation.cpu_milli, memory + reservation.memory_bytes)
        if id_ in held or more > MOST_RESERVED or not holdable(reservation):
            continue
        held[id_] = _reservation_row(reservation, key)
        cpu += reservation.cpu_milli
        memory += reservation.memory_bytes
        for share in reservation.devices:
            milli.extend([0] * (share.device + 1 - len(milli)))
            milli[share.device] += share.milli
    return NodeEntry(_using(row, held, cpu, memory, milli), held)


def _released(row: NodeRow, held: dict[str, ReservationRow], event: ReservationsReleased) -> NodeEntry:
    held = dict(held)
    milli = list(row.used_device_milli)
    cpu, memory = row.used_cpu_milli, row.used_memory_bytes
    for id_ in event.ids:
        gone = held.pop(indexed(id_), None)
        if gone is None:
            continue
        cpu -= gone.cpu_milli
        memory -= gone.memory_bytes
        devices: list[dict[str, int]] = msgspec.json.decode(gone.devices)
        for share in devices:
            milli[share["device"]] -= share["milli"]
    return NodeEntry(_using(row, held, cpu, memory, milli), held)


def _using(row: NodeRow, held: dict[str, ReservationRow], cpu: int, memory: int, milli: list[int]) -> NodeRow:
    return replace(
        row,
        used_cpu_milli=cpu,
        used_memory_bytes=memory,
        used_device_milli=tuple(milli),
        reserved_pods=len(held),
    )


def _reservation_row(reservation: Reservation, key: str) -> ReservationRow:
    return ReservationRow(
        id=indexed(reservation.id),
        node_key=key,
        workload_id=clean(reservation.workload_id),
        workload_key=clean(reservation.workload_key),
        cpu_milli=reservation.cpu_milli,
        memory_bytes=reservation.memory_bytes,
        devices=to_json(reservation.devices),
    )
