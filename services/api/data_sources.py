"""Data sources, from which workloads take volumes: five operations on each kind, alike.

What people say of one is a volume without its name; it is stored as the part of a workload's spec that it becomes.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from events.article import with_article
from events.asset import CALLED, DATA_SOURCES, DataSourceKind
from events.asset_specs import SOURCES
from events.fields.declare import Body
from services.api import answers
from services.api.asset_core import LIST, AssetPlace, change, create, delete, listed, read
from services.api.context import MIN_SEQ, Call, Look, read_answer
from services.api.moments import AS_OF, MOMENT_HEADERS
from services.api.operations import Answer, Operation, changes, reads
from services.api.paths import data_source_path, data_sources_path

_PLACE: Final = "Which it is to be, and who can use it."
_SPEC: Final = "Where the data is, and where pods find it."
_EXAMPLES: Final[dict[DataSourceKind, dict[str, Any]]] = {
    "pvc": {"existingPvc": True, "claimName": "imagenet", "path": "/data"},
    "git": {"repository": "https://git.example.com/team/code", "branch": "main", "path": "/code"},
    "nfs": {"server": "nfs.example.com", "path": "/exports/data", "mountPath": "/data"},
    "s3": {"bucket": "training-sets", "path": "/data", "accessKeySecret": "object-store"},
    "host-path": {"path": "/mnt/data", "mountPath": "/data"},
    "config-map": {"configMap": "settings", "mountPath": "/etc/settings"},
    "data-volume": {
        "projectId": "7b0e9f2a-6f0e-4c55-9c6b-2f2f6b3f1a10",
        "clusterId": "3f1a102f-9c6b-4c55-8f0e-7b0e9f2a6f0e",
        "claimName": "imagenet",
        "mountPath": "/data",
    },
    "secret": {"secret": "certificates", "mountPath": "/etc/certificates"},
}


def _body(name: str, fields: list[tuple[str, Any] | tuple[str, Any, Any]], doc: str) -> type[Body]:
    texts = {"meta": _PLACE, "spec": _SPEC}
    made: Any = msgspec.defstruct(
        name, fields, bases=(Body,), module=__name__, namespace={"TEXTS": texts}, frozen=True, kw_only=True
    )
    made.__doc__ = doc
    return made


def _named(handler: Any, name: str) -> Any:
    handler.__name__ = name
    return handler


def _reads(kind: DataSourceKind) -> Iterator[Operation]:
    called, word = CALLED[kind], kind.replace("-", "_")
    one = with_article(called)

    async def list_them(call: Look) -> Answer[answers.DataSources]:
        page, following, seq, headers = await listed(call, kind)
        rows = [answers.DataSource(**found.source_fields) for found in page]
        return read_answer(answers.DataSources(data_sources=rows, next=following), seq, headers)

    async def get_one(call: Look) -> Answer[answers.DataSource]:
        found, headers = await read(call, kind)
        return Answer(answers.DataSource(**found.source_fields), headers=headers)

    yield reads(
        data_sources_path(kind),
        tag="Assets",
        summary=f"List the {called}s that you can use",
        query=LIST,
        headers=MOMENT_HEADERS,
        errors=(403,),
    )(_named(list_them, f"list_{word}_data_sources"))
    yield reads(
        data_source_path(kind),
        tag="Assets",
        summary=f"Get {one} in its newest state, or as of a moment",
        query=(AS_OF, MIN_SEQ),
        errors=(403, 404),
        headers=MOMENT_HEADERS,
    )(_named(get_one, f"get_{word}_data_source"))


def _changes(kind: DataSourceKind) -> Iterator[Operation]:
    called, word = CALLED[kind], kind.replace("-", "_")
    one = with_article(called)
    _, spec = SOURCES[kind]
    creation = _body(f"{spec.__name__}Creation", [("meta", AssetPlace), ("spec", spec)], f"A{one[1:]} to be made.")
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [("spec", spec), ("meta", AssetPlace | None, None)]
    changed = _body(f"{spec.__name__}Change", fields, f"What {one} is to say.")

    async def create_one(call: Call) -> Answer[answers.DataSource]:
        made, headers = await create(call, kind, creation)
        return Answer(answers.DataSource(**made.source_fields), status=202, headers=headers)

    async def set_one(call: Call) -> Answer[answers.DataSource]:
        found, headers = await change(call, kind, changed)
        return Answer(answers.DataSource(**found.source_fields), status=202, headers=headers)

    async def delete_one(call: Call) -> Answer[answers.HttpResponse]:
        return await delete(call, kind)

    yield changes(
        "POST",
        data_sources_path(kind),
        tag="Assets",
        summary=f"Create {one}",
        body=creation,
        example={"meta": {"name": "data", "scope": "tenant"}, "spec": _EXAMPLES[kind]},
        errors=(403,),
    )(_named(create_one, f"create_{word}_data_source"))
    yield changes(
        "PUT",
        data_source_path(kind),
        tag="Assets",
        summary=f"Set what {one} says. Workloads that were made from it stay as they are",
        body=changed,
        example={"spec": _EXAMPLES[kind]},
        errors=(403, 404),
    )(_named(set_one, f"set_{word}_data_source"))
    yield changes(
        "DELETE",
        data_source_path(kind),
        tag="Assets",
        summary=f"Delete {one}. Its data, and workloads that were made from it, stay as they are",
        errors=(403, 404),
    )(_named(delete_one, f"delete_{word}_data_source"))


OPERATIONS: Final = tuple(one for kind in DATA_SOURCES for one in (*_reads(kind), *_changes(kind)))
"""All of them."""
