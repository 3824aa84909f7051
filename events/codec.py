"""How events and commits become bytes and come back: an explicit registry, and upcasters one step at a time.

The registered names and versions are the storage format. To change a shape: register the new struct under the
next version, write the upcaster from the one before, and add its golden payload; old ones stay in the tests for ever.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, get_args

import msgspec

from events import cluster, node, project, service_accounts, tenant, void
from events.commit import Commit, CommitRecord, EventRecord
from events.subjects import split_aggregate_subject
from events.workload import pod
from events.workload import state as workload

type Fields = dict[str, Any]

UNDECODABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""Everything that a decoder raises at bytes that it cannot read: two of the three are not msgspec's own, for text that
is not UTF-8 and for brackets without end.
"""

REGISTRY: Final[dict[tuple[str, int], type[msgspec.Struct]]] = {
    ("WorkloadCreated", 1): workload.WorkloadCreated,
    ("WorkloadQueued", 1): workload.WorkloadQueued,
    ("WorkloadWaiting", 1): workload.WorkloadWaiting,
    ("PodsBound", 1): pod.PodsBound,
    ("PodStarting", 1): pod.PodStarting,
    ("PodRunning", 1): pod.PodRunning,
    ("PodUnreachable", 1): pod.PodUnreachable,
    ("PodWarned", 1): pod.PodWarned,
    ("PodSucceeded", 1): pod.PodSucceeded,
    ("PodFailed", 1): pod.PodFailed,
    ("PodInterrupted", 1): pod.PodInterrupted,
    ("PodStopped", 1): pod.PodStopped,
    ("WorkloadSuspended", 1): workload.WorkloadSuspended,
    ("WorkloadStopped", 1): workload.WorkloadStopped,
    ("WorkloadResumed", 1): workload.WorkloadResumed,
    ("WorkloadCompleted", 1): workload.WorkloadCompleted,
    ("WorkloadFailed", 1): workload.WorkloadFailed,
    ("WorkloadChanged", 1): workload.WorkloadChanged,
    ("WorkloadDeletionRequested", 1): workload.WorkloadDeletionRequested,
    ("WorkloadDeleted", 1): workload.WorkloadDeleted,
    ("NodeRegistered", 1): node.NodeRegistered,
    ("NodeChanged", 1): node.NodeChanged,
    ("NodeRemoved", 1): node.NodeRemoved,
    ("PodsReserved", 1): node.PodsReserved,
    ("ReservationsReleased", 1): node.ReservationsReleased,
    ("NodeCordoned", 1): node.NodeCordoned,
    ("NodeUncordoned", 1): node.NodeUncordoned,
    ("ClusterAdded", 1): cluster.ClusterAdded,
    ("ClusterConnected", 1): cluster.ClusterConnected,
    ("ClusterDisconnected", 2): cluster.ClusterDisconnected,
    ("ClusterReportsRefused", 1): cluster.ClusterReportsRefused,
    ("OwnershipProtectionSet", 1): cluster.OwnershipProtectionSet,
    ("OwnershipProtectionUnset", 1): cluster.OwnershipProtectionUnset,
    ("NodePoolSet", 1): cluster.NodePoolSet,
    ("NodePoolRemoved", 1): cluster.NodePoolRemoved,
    ("ClusterRemoved", 1): cluster.ClusterRemoved,
    ("ProjectCreated", 1): project.ProjectCreated,
    ("ProjectChanged", 1): project.ProjectChanged,
    ("ProjectRoleGranted", 1): project.ProjectRoleGranted,
    ("ProjectRoleRevoked", 1): project.ProjectRoleRevoked,
    ("ProjectDeleted", 1): project.ProjectDeleted,
    ("ServiceAccountCreated", 1): service_accounts.ServiceAccountCreated,
    ("ServiceAccountRotated", 1): service_accounts.ServiceAccountRotated,
    ("ServiceAccountUsed", 1): service_accounts.ServiceAccountUsed,
    ("ServiceAccountDeleted", 1): service_accounts.ServiceAccountDeleted,
    ("TenantRoleGranted", 1): tenant.TenantRoleGranted,
    ("TenantRoleRevoked", 1): tenant.TenantRoleRevoked,
    ("MessageVoided", 1): void.MessageVoided,
}
"""The newest version of every event."""

UPCASTERS: Final[dict[tuple[str, int], Callable[[Fields], Fields]]] = {
    # Before an agent could speak of a problem, silence was the only reason.
    ("ClusterDisconnected", 1): lambda fields: fields | {"reason": ""},
}
"""From a stored (type, version) to the fields of the next version."""


EVENTS_OF: Final[dict[str, frozenset[Any]]] = {
    "workload": frozenset(get_args(workload.WorkloadEvent)),
    "node": frozenset(get_args(node.NodeEvent)),
    "cluster": frozenset(get_args(cluster.ClusterEvent)),
    "project": frozenset(get_args(project.ProjectEvent)),
    "tenant": frozenset(get_args(tenant.TenantEvent)),
    "void": frozenset({void.VoidEvent}),
}
"""Which events may stand on the subjects of which kind of aggregate."""


EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)
"""Times in between can be told in every zone, compared and subtracted."""


class UnknownEventError(Exception):
    """The log holds an event that this version of Muster does not know: stop, never skip."""


def _types(type_: object) -> tuple[object, ...]:
    """Of a field: its type, or the members of its union."""
    return get_args(type_) or (type_,)


_NAMES: Final = {struct: (name, version) for (name, version), struct in REGISTRY.items()}
_VERSIONS: Final = dict(REGISTRY.keys())
_DECODERS: Final = {key: msgspec.json.Decoder(struct) for key, struct in REGISTRY.items()}
_ENCODER: Final = msgspec.json.Encoder()
_MOMENTS: Final = {
    struct: tuple(field.name for field in msgspec.structs.fields(struct) if datetime in _types(field.type))
    for struct in REGISTRY.values()
}
"""Fields of an event that are times."""
_COMMIT_DECODER: Final = msgspec.json.Decoder(CommitRecord)


def encode_event(event: msgspec.Struct) -> EventRecord:
    name, version = _NAMES[type(event)]
    return EventRecord(type=name, version=version, data=msgspec.Raw(_ENCODER.encode(event)))


def newest_of(name: str) -> type[msgspec.Struct]:
    """The newest struct of an event. Raises KeyError."""
    return REGISTRY[name, _VERSIONS[name]]


def decode_event(record: EventRecord) -> Any:
    """The event as its newest struct. Raises UnknownEventError."""
    decoder = _DECODERS.get((record.type, record.version))
    if decoder is not None:
        return decoder.decode(record.data)
    newest = _VERSIONS.get(record.type, 0)
    if record.version > newest:
        raise UnknownEventError(f"{record.type} version {record.version} (known: {newest or 'none'})")
    fields: Fields = msgspec.json.decode(record.data)
    for version in range(record.version, newest):
        upcast = UPCASTERS.get((record.type, version))
        if upcast is None:
            raise UnknownEventError(f"{record.type} version {version} has no upcaster")
        fields = upcast(fields)
    return msgspec.convert(fields, REGISTRY[record.type, newest])


def encode_commit(record: CommitRecord) -> bytes:
    return _ENCODER.encode(record)


def decode_commit(subject: str, seq: int, payload: bytes) -> Commit:
    """A stored message of the log. Raises UnknownEventError, msgspec.DecodeError, ValueError (a foreign subject, a
    record without events, or a time that cannot be compared with others).
    """
    aggregate, key = split_aggregate_subject(subject)
    known = EVENTS_OF.get(aggregate)
    if known is None:
        raise UnknownEventError(f"no aggregate is called {aggregate!r}")
    record = _COMMIT_DECODER.decode(payload)
    events = tuple(decode_event(event) for event in record.events)
    if not events:
        raise ValueError("a commit without events")
    check_moment("occurred_at", record.occurred_at)
    for event in events:
        if type(event) not in known:
            raise UnknownEventError(f"{type(event).__name__} is no event of a {aggregate}")
        for name in _MOMENTS[type(event)]:
            check_moment(name, getattr(event, name))
    return Commit(aggregate=aggregate, key=key, seq=seq, record=record, events=events)


def check_moment(name: str, moment: datetime | None) -> None:
    """Raises ValueError where a time has no zone, or cannot be told in every zone."""
    if moment is not None and (moment.tzinfo is None or not EARLIEST <= moment <= LATEST):
        raise ValueError(f"{name} is {moment.isoformat()}: a time has a zone, and is between {EARLIEST} and {LATEST}")
