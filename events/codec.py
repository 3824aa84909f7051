"""How events and commits become bytes and come back: by name and version, and upcasters one step at a time.

The names and versions of events are the storage format: a name stays for ever. To change a shape: give the struct the
next version, write the upcaster from the one before, and add its golden payload; old ones stay in the tests for ever.
"""

from collections.abc import Buffer, Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, get_args

import msgspec

from events import asset, cluster, department, hours, installation, node, policy, prices, project, tenant, void
from events.commit import Commit, CommitRecord, EventRecord
from events.subjects import split_aggregate_subject
from events.workload import life as workload
from events.workload.spec import TrainingSpec

type Fields = dict[str, Any]

UNDECODABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""Everything that a decoder raises at bytes that it cannot read: two of the three are not msgspec's own, for text that
is not UTF-8 and for brackets without end.
"""

EVENTS_OF: Final[dict[str, tuple[type[msgspec.Struct], ...]]] = {
    "workload": get_args(workload.WorkloadEvent),
    "node": get_args(node.NodeEvent),
    "cluster": get_args(cluster.ClusterEvent),
    "project": get_args(project.ProjectEvent),
    "department": get_args(department.DepartmentEvent),
    "tenant": get_args(tenant.TenantEvent),
    "void": (void.VoidEvent,),
    "log": (installation.LogEvent,),
    "prices": get_args(prices.PriceEvent),
    "hours": (hours.HoursMeasured,),
    "asset": get_args(asset.AssetEvent),
    "policy": get_args(policy.PolicyEvent),
}
"""Which events may stand on the subjects of which kind of aggregate."""

VERSIONS: Final[dict[type[msgspec.Struct], int]] = {
    cluster.ClusterDisconnected: 2,
    project.ProjectCreated: 2,
    project.ProjectChanged: 2,
    asset.AssetCreated: 2,
    policy.PolicySet: 2,
    policy.PolicyDeleted: 2,
}
"""Of events whose shape has changed; every other has version 1."""

REGISTRY: Final[dict[tuple[str, int], type[msgspec.Struct]]] = {
    (event.__name__, VERSIONS.get(event, 1)): event for events in EVENTS_OF.values() for event in events
}
"""The newest version of every event."""

UPCASTERS: Final[dict[tuple[str, int], Callable[[Fields], Fields]]] = {
    # Before an agent could speak of a problem, silence was the only reason.
    ("ClusterDisconnected", 1): lambda fields: fields | {"reason": ""},
    # Before there were departments, every project stood in what is the default one now, and no node type was asked of
    # its workloads: what the newest shape says where it says nothing.
    ("ProjectCreated", 1): lambda fields: fields,
    ("ProjectChanged", 1): lambda fields: fields,
    # Likewise nothing was for a department.
    ("AssetCreated", 1): lambda fields: fields,
    ("PolicySet", 1): lambda fields: fields,
    ("PolicyDeleted", 1): lambda fields: fields,
}
"""From a stored (type, version) to the fields of the next version."""


EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)
"""Times in between can be told in every zone, compared and subtracted."""


class UnwritableError(ValueError):
    """An event holds what nobody could read again: it is not written."""


class UnknownEventError(Exception):
    """The log holds an event that this version of Muster does not know: stop, never skip."""


def _types(type_: object) -> tuple[object, ...]:
    """Of a field: its type, or the members of its union."""
    return get_args(type_) or (type_,)


_NAMES: Final = {struct: (name, version) for (name, version), struct in REGISTRY.items()}
_VERSIONS: Final = dict(REGISTRY.keys())
_DECODERS: Final = {key: msgspec.json.Decoder(struct) for key, struct in REGISTRY.items()}
_NEWEST_OF: Final = {
    aggregate: {_NAMES[event]: _DECODERS[_NAMES[event]].decode for event in events}
    for aggregate, events in EVENTS_OF.items()
}
"""What decodes nearly all events, by the kind of aggregate that they are of."""
_ENCODER: Final = msgspec.json.Encoder()
_SHARED_SPECS: Final = 256
"""Specs of workloads that are remembered, by what was read: workloads of a sweep have the very same object, of which
much more is found out only once."""
_SHARED_BYTES: Final = 16 * 1024
"""Longer ones are not remembered: 4 MB of all."""
_MOMENTS: Final = {
    struct: tuple(field.name for field in msgspec.structs.fields(struct) if datetime in _types(field.type))
    for struct in REGISTRY.values()
}
"""Fields of an event that are times."""
_COMMIT_DECODER: Final = msgspec.json.Decoder(CommitRecord)


def encode_event(event: msgspec.Struct) -> EventRecord:
    """Raises UnwritableError at a time that `decode_commit` would refuse."""
    name, version = _NAMES[type(event)]
    for field in _MOMENTS[type(event)]:
        try:
            check_moment(field, getattr(event, field))
        except ValueError as error:
            raise UnwritableError(f"{name}: {error}") from error
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


def _unread(field: msgspec.structs.FieldInfo) -> tuple[str, Any] | tuple[str, Any, Any]:
    read_as = msgspec.Raw if field.name == "spec" else field.type
    return (field.name, read_as) if field.required else (field.name, read_as, field.default)


_CREATED_FIELDS: Final = msgspec.structs.fields(workload.WorkloadCreated)
_CREATED_DECODER: Final = msgspec.json.Decoder(
    msgspec.defstruct("Created", map(_unread, _CREATED_FIELDS), kw_only=True)
)
_SPEC_DECODER: Final = msgspec.json.Decoder(TrainingSpec)
_known_spec: Final = lru_cache(_SHARED_SPECS)(_SPEC_DECODER.decode)


def decode_created(data: Buffer | str, /) -> workload.WorkloadCreated:
    """As any event is decoded; those that say the same of their spec share it."""
    found: Any = _CREATED_DECODER.decode(data)
    raw = bytes(found.spec)
    fields = msgspec.structs.asdict(found)
    fields["spec"] = _known_spec(raw) if len(raw) <= _SHARED_BYTES else _SPEC_DECODER.decode(raw)
    return workload.WorkloadCreated(**fields)


_NEWEST_OF["workload"][_NAMES[workload.WorkloadCreated]] = decode_created


def encode_commit(record: CommitRecord) -> bytes:
    return _ENCODER.encode(record)


def decode_commit(subject: str, seq: int, payload: bytes) -> Commit:
    """A stored message of the log. Raises UnknownEventError, msgspec.DecodeError, ValueError (a foreign subject, a
    record without events, or a time that cannot be compared with others).
    """
    aggregate, key = split_aggregate_subject(subject)
    newest = _NEWEST_OF.get(aggregate)
    if newest is None:
        raise UnknownEventError(f"no aggregate is called {aggregate!r}")
    record = _COMMIT_DECODER.decode(payload)
    if not record.events:
        raise ValueError("a commit without events")
    _settle_moment(record, "occurred_at")
    events: list[Any] = []
    for stored in record.events:
        decode = newest.get((stored.type, stored.version))
        event = _event_of(aggregate, stored) if decode is None else decode(stored.data)
        for name in _MOMENTS[type(event)]:
            _settle_moment(event, name)
        events.append(event)
    return Commit(aggregate=aggregate, key=key, seq=seq, record=record, events=tuple(events))


def _event_of(aggregate: str, stored: EventRecord) -> Any:
    """One that is not of the newest shape, or of another kind of aggregate. Raises UnknownEventError."""
    event = decode_event(stored)
    if type(event) not in EVENTS_OF[aggregate]:
        raise UnknownEventError(f"{type(event).__name__} is no event of a {aggregate}")
    return event


def _settle_moment(struct: msgspec.Struct, name: str) -> None:
    """Check a time of what was just decoded, and make it UTC as all others are: what reads times from text, such as
    Postgres, knows fewer zones than there can be. Raises ValueError.
    """
    moment: datetime | None = getattr(struct, name)
    if moment is None or (moment.tzinfo is UTC and EARLIEST <= moment <= LATEST):
        return
    check_moment(name, moment)
    if moment.tzinfo is not UTC:
        msgspec.structs.force_setattr(struct, name, moment.astimezone(UTC))


def check_moment(name: str, moment: datetime | None) -> None:
    """Raises ValueError where a time has no zone, or cannot be told in every zone."""
    if moment is not None and (moment.tzinfo is None or not EARLIEST <= moment <= LATEST):
        raise ValueError(f"{name} is {moment.isoformat()}: a time has a zone, and is between {EARLIEST} and {LATEST}")
