"""Events as people and programs read them over HTTP: the newest version of each, in camelCase, without keys that only
Muster can read; where an event has such a key only, the id or name that it stands for is given beside it. Pure.

Every form follows from the event's own struct, so that a new event or field is here by itself.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Union, cast, get_args, get_origin

import msgspec

from events.codec import EVENTS_OF, REGISTRY, newest_of
from events.commit import Commit
from events.ids import key_of_id, node_key
from events.node import PodsReserved, ReservationsReleased
from events.workload.pod import PodRef

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
"""RFC 3339."""
HIDDEN: Final = frozenset({"node_key", "workload_key", "token_hash"})
"""Keys of subjects in the log: names and ids stand beside them. The hash of a token helps nobody who reads it."""

FOR_PEOPLE: Final[dict[type, dict[str, str]]] = {PodRef: {"try_": "run"}}
"""Fields that are given in another way, and the attributes that give it: people count runs from 1."""


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


@cache
def shown(owner: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """A struct of the log as the API gives it."""
    fields = [field for field in msgspec.structs.fields(owner) if field.name not in HIDDEN]
    for_people = FOR_PEOPLE.get(owner, {})
    names = {field.name: for_people.get(field.name, field.name) for field in fields}
    return msgspec.defstruct(
        f"{owner.__name__}Data",
        [(names[field.name], _shown_type(field.type), *_default(field)) for field in fields],
        namespace={"__doc__": owner.__doc__, "SHOWS": owner},
        module=__name__,
        frozen=True,
        kw_only=True,
        omit_defaults=True,
        rename={names[field.name]: camel(for_people.get(field.name, field.encode_name)) for field in fields},
    )


def _default(field: msgspec.structs.FieldInfo) -> tuple[Any, ...]:
    if field.default_factory is not msgspec.NODEFAULT:
        return (msgspec.field(default_factory=field.default_factory),)
    if isinstance(field.default, msgspec.Struct):
        kind = shown(type(field.default))
        return (msgspec.convert(field.default, kind, from_attributes=True),)
    return () if field.default is msgspec.NODEFAULT else (field.default,)


def _shown_type(kind: Any) -> Any:
    whole = kind
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return shown(kind)
    if kind is datetime:
        return Moment
    parts: Any = tuple(part if part is ... else _shown_type(part) for part in get_args(kind))
    generic: Any = Union if _is_union(kind) else _CONTAINERS.get(get_origin(kind))
    return whole if generic is None else generic[parts]


_CONTAINERS: Final[dict[Any, Any]] = {tuple: tuple, list: list, dict: dict}


def _is_union(kind: Any) -> bool:
    return get_origin(kind) is Union or type(kind).__name__ == "UnionType"


_EVENTS: Final = {
    event: msgspec.defstruct(
        f"{name}Event",
        [("version", int), ("data", shown(event))],
        namespace={"__doc__": event.__doc__},
        module=__name__,
        frozen=True,
        kw_only=True,
        tag_field="type",
        tag=name,
    )
    for (name, _), event in REGISTRY.items()
}
_VERSIONS: Final = {event: version for (_, version), event in REGISTRY.items()}

if TYPE_CHECKING:
    type ShownEvent = msgspec.Struct
else:
    ShownEvent = Union[tuple(_EVENTS.values())]  # noqa: UP007 - of what is registered
"""Any event: `type` says which."""


def shown_data(event: msgspec.Struct) -> msgspec.Struct:
    return msgspec.convert(event, shown(type(event)), from_attributes=True)


def shown_event(event: msgspec.Struct) -> ShownEvent:
    kind = type(event)
    return _EVENTS[kind](version=_VERSIONS[kind], data=shown_data(event))


def workload_events() -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Names and structs of what can stand in a workload's history, in order of registration."""
    return ((name, event) for (name, _), event in REGISTRY.items() if event in EVENTS_OF["workload"])


def workload_ids(commit: Commit) -> list[str]:
    """The workloads that a commit concerns: its own, or those whose pods get or lose something of a node."""
    if commit.aggregate == "workload":
        about = commit.record.about.id
        return [] if about is None else [about]
    found: dict[str, None] = {}
    for event in commit.events:
        match event:
            case PodsReserved():
                found.update((reservation.workload_id, None) for reservation in event.reservations)
            case ReservationsReleased():
                found.update((id_.partition("/")[0], None) for id_ in event.ids)
            case _:
                pass
    return list(found)


def stored_event(name: str, data: Any, *, cluster_id: str) -> msgspec.Struct:
    """The event of the log that `data`, as decoded JSON, shows. Keys follow from what stands beside them, with the
    cluster that the commit is about. What nobody can know again, such as the hash of a token, is empty.

    Raises msgspec.ValidationError, and KeyError where no event is called so.
    """
    event = newest_of(name)
    return _stored(msgspec.convert(data, shown(event), strict=False), cluster_id)


def _stored(value: Any, cluster_id: str) -> Any:
    match value:
        case msgspec.Struct():
            owner: type[msgspec.Struct] | None = getattr(type(value), "SHOWS", None)
            if owner is None:
                return value  # a default, as the log has it
            return owner(**{field.name: _field(owner, field.name, value, cluster_id) for field in _fields(owner)})
        case tuple():
            return tuple(_stored(item, cluster_id) for item in cast("Iterable[Any]", value))
        case list():
            return [_stored(item, cluster_id) for item in cast("Iterable[Any]", value)]
        case dict():
            entries = cast("dict[Any, Any]", value)
            return {key: _stored(item, cluster_id) for key, item in entries.items()}
        case _:
            return value


@cache
def _fields(owner: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(owner)


def _field(owner: type[msgspec.Struct], name: str, value: Any, cluster_id: str) -> Any:
    if owner is PodRef and name == "try_":
        return value.run - 1
    if name not in HIDDEN:
        return _stored(getattr(value, name), cluster_id)
    match name:
        case "node_key":
            return node_key(cluster_id, value.node_name)
        case "workload_key":
            return key_of_id(value.workload_id) or ""
        case _:
            return ""
