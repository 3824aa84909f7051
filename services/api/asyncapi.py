"""The AsyncAPI 3 document of the public events, made from their declarations. Pure."""

import inspect
from typing import Any, Final

import msgspec

from events.public.cloudevents import CONTENT_TYPE, PREFIX, SPEC_VERSION, schema_of, type_of
from events.public.registry import PUBLIC, PUBLIC_EVENTS
from events.public.shape import OfWorkload, PublicEvent
from events.subjects import NO_WORKLOAD
from services.api.schemas import REF_TEMPLATE, Schema, docstrings

VERSION: Final = "1.0.0"
"""Of the contract: the second number rises where something is added. The first one never does."""
HEADERS: Final[dict[str, str]] = {
    "specversion": "Version of CloudEvents.",
    "id": "Unique. The same event has the same id, however often it is sent.",
    "source": "`/projects/PROJECT_ID`.",
    "type": "The type of the event, with the version of its shape.",
    "subject": "Id of the workload. Absent if the event is about no workload.",
    "time": "When it was decided, RFC 3339, UTC.",
    "datacontenttype": "Of the body.",
    "dataschema": "Names the schema of the body.",
    "sequence": "The place in the log: SEQUENCE.NUMBER with leading zeros, so that places sort as text.",
    "previous": "`sequence` of the project's event before it. Absent in the first one.",
}
_OPTIONAL: Final = frozenset({"subject", "previous"})
_DESCRIPTION: Final = (
    "What other programs may subscribe to, as CloudEvents in the binary mode of NATS: attributes are headers, "
    "percent-encoded, and the body is the data. At least once, in the order of the log within a project. Types keep "
    "their meaning and their fields; types and fields are added, so ignore those that you do not know."
)


def document() -> Schema:
    """The whole document."""
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Muster public events", "version": VERSION, "description": _DESCRIPTION},
        "defaultContentType": CONTENT_TYPE,
        "channels": {name: _channel(name, event) for name, event in PUBLIC_EVENTS.items()},
        "operations": {
            f"send{name}": {
                "action": "send",
                "channel": {"$ref": f"#/channels/{name}"},
                "messages": [{"$ref": f"#/channels/{name}/messages/{name}"}],
            }
            for name in PUBLIC_EVENTS
        },
        "components": {
            "messages": {name: _message(name, event) for name, event in PUBLIC_EVENTS.items()},
            "schemas": event_schemas(),
        },
    }


def event_schemas() -> dict[str, Schema]:
    """JSON Schemas of all data, by the name of the event or of a part of one."""
    _, found = msgspec.json.schema_components(list(PUBLIC_EVENTS.values()), ref_template=REF_TEMPLATE)
    structs = {struct.__name__: struct for struct in _structs(tuple(PUBLIC_EVENTS.values()))}
    for name, schema in found.items():
        struct = structs[name]
        schema.pop("title", None)
        schema["description"] = said(struct)
        told = docstrings(struct)
        for field, wire in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True):
            schema["properties"][wire]["description"] = told[field]
    return found


def said(struct: type) -> str:
    """What a struct is, in a paragraph."""
    return " ".join(inspect.cleandoc(struct.__doc__ or "").split())


def _structs(roots: tuple[type[msgspec.Struct], ...]) -> list[type[msgspec.Struct]]:
    found: list[type[msgspec.Struct]] = []

    def walk(info: Any) -> None:
        match info:
            case msgspec.inspect.StructType():
                if info.cls not in found:
                    found.append(info.cls)
                    for field in info.fields:
                        walk(field.type)
            case msgspec.inspect.ListType():
                walk(info.item_type)
            case msgspec.inspect.UnionType():
                for part in info.types:
                    walk(part)
            case _:
                pass

    for root in roots:
        walk(msgspec.inspect.type_info(root))
    return found


def _channel(name: str, event: type[PublicEvent]) -> Schema:
    of_workload = issubclass(event, OfWorkload)
    parameters = {"projectId": {"description": "Id of the project."}}
    if of_workload:
        parameters["workloadId"] = {"description": "Id of the workload."}
    return {
        "address": f"feed.{{projectId}}.{'{workloadId}' if of_workload else NO_WORKLOAD}.{name}",
        "messages": {name: {"$ref": f"#/components/messages/{name}"}},
        "parameters": parameters,
    }


def _message(name: str, event: type[PublicEvent]) -> Schema:
    fixed = {
        "specversion": SPEC_VERSION,
        "type": type_of(event),
        "datacontenttype": CONTENT_TYPE,
        "dataschema": schema_of(event),
    }
    properties = {
        f"{PREFIX}{header}": {"type": "string", "description": text}
        | ({"const": fixed[header]} if header in fixed else {})
        for header, text in HEADERS.items()
    }
    return {
        "name": name,
        "summary": said(event),
        "tags": [{"name": aggregate} for aggregate, public in PUBLIC.items() if event in public.events],
        "contentType": CONTENT_TYPE,
        "headers": {
            "type": "object",
            "properties": properties,
            "required": [f"{PREFIX}{header}" for header in HEADERS if header not in _OPTIONAL],
        },
        "payload": {"$ref": f"#/components/schemas/{name}"},
    }
