"""Schemas of what the API answers, as OpenAPI 3.0 has them. Those of the contract are as the contract has them."""

from typing import Any, Final

from events.phases import DesiredPhase, Phase
from projections.columns import Column, Public, Type, public_columns
from projections.workloads.rows import WorkloadRow

type Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_INTEGER: Final[Schema] = {"type": "integer"}
_NUMBER: Final[Schema] = {"type": "number"}
_FLAG: Final[Schema] = {"type": "boolean"}
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_UUID: Final[Schema] = {"type": "string", "format": "uuid"}
_TEXTS: Final[Schema] = {"type": "array", "items": _TEXT}
_OBJECT: Final[Schema] = {"type": "object"}


def _null(schema: Schema) -> Schema:
    return {**schema, "nullable": True}


def _object(*required: str, **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    return schema | {"required": list(required)} if required else schema


def _list(name: str, item: Schema, **beside: Schema) -> Schema:
    return _object(name, *beside, **{name: {"type": "array", "items": item}}, **beside)


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_CODE: Final[Schema] = {"type": "integer", "minimum": 100, "maximum": 599}
_RULES: Final = ["min", "max", "step", "options", "required", "canEdit", "canAdd", "locked", "blocked"]
_ISSUE: Final = _object("details", "field", details=_TEXT, field=_TEXT, rule=_null({"type": "string", "enum": _RULES}))
_NEXT: Final = _null(_INTEGER)

_TYPES: Final[dict[Type, Schema]] = {
    "text": _TEXT,
    "integer": _INTEGER,
    "number": _NUMBER,
    "flag": _FLAG,
    "time": _TIME,
    "texts": _TEXTS,
    "integers": {"type": "array", "items": _INTEGER},
    "json": _OBJECT,
}


def _of_column(column: Column[Any], public: Public) -> Schema:
    schema = _NUMBER if column.in_thousandths else _TYPES[column.type]
    described = schema | {"description": public.help}
    return _null(described) if column.null or public.empty_is_null else described


_WORKLOAD_ROW: Final = _object(
    "id",
    "name",
    "phase",
    **{public.name: _of_column(column, public) for column, public in public_columns(WorkloadRow)},
)
_DEVICE: Final = _object("device", "milli", device=_INTEGER, milli=_INTEGER)

SCHEMAS: Final[dict[str, Schema]] = {
    "Error": {"type": "object", **_object("code", "message", code=_CODE, details=_TEXT, message=_TEXT)},
    "HttpResponse": _object("code", "message", code=_CODE, message=_TEXT),
    "SubmissionErrorV2": {
        "allOf": [
            ref("Error"),
            {
                "type": "object",
                "nullable": True,
                "properties": {"complianceIssues": {"type": "array", "items": _ISSUE}},
            },
        ]
    },
    "Training1": {
        "allOf": [ref("WorkloadMeta1"), _object(spec={"allOf": [ref("TrainingSpecFields")], "nullable": True})]
    },
    "WorkloadMeta1": _object(
        "name",
        "requestedName",
        "workloadId",
        "projectId",
        "clusterId",
        "createdBy",
        "createdAt",
        "desiredPhase",
        name={"type": "string", "minLength": 1},
        requestedName=_TEXT,
        workloadId=_UUID,
        projectId=_TEXT,
        departmentId={"type": "string", "minLength": 1},
        clusterId=_UUID,
        createdBy=_TEXT,
        createdAt=_TIME,
        deletedAt=_null(_TIME),
        desiredPhase={"type": "string", "enum": [phase.value for phase in DesiredPhase]},
        actualPhase={"type": "string", "enum": [phase.value for phase in Phase]},
    ),
    "WorkloadRow": _WORKLOAD_ROW,
    "Workload": {"allOf": [ref("Training1"), _WORKLOAD_ROW]},
    "WorkloadList": _list("workloads", ref("WorkloadRow"), next=_NEXT),
    "Count": _object("count", count=_INTEGER),
    "History": _list(
        "records",
        _object(
            "sequence",
            "index",
            "at",
            "type",
            "phase",
            "message",
            "actor",
            sequence=_INTEGER,
            index=_INTEGER,
            at=_TIME,
            type=_TEXT,
            phase=_TEXT,
            reason=_TEXT,
            message=_TEXT,
            actor=ref("Actor"),
            details=_OBJECT,
        ),
        next=_NEXT,
    ),
    "Actor": _object("iss", "sub", iss=_TEXT, sub=_TEXT, kind={"type": "string", "enum": ["user", "service"]}),
    "Pods": _list(
        "pods",
        _object(
            "name",
            "phase",
            name=_TEXT,
            podSet=_TEXT,
            index=_INTEGER,
            attempt=_INTEGER,
            run=_INTEGER,
            phase=_TEXT,
            node=_null(_TEXT),
            nodePool=_null(_TEXT),
            devices={"type": "array", "items": _DEVICE},
            notBefore=_null(_TIME),
            boundAt=_null(_TIME),
            startedAt=_null(_TIME),
            finishedAt=_null(_TIME),
            exitCode=_null(_INTEGER),
            reason=_TEXT,
            message=_TEXT,
        ),
    ),
    "Metrics": _list(
        "measurements",
        _object(
            "type",
            "pod",
            "values",
            type=_TEXT,
            pod=_TEXT,
            values={"type": "array", "items": _object("timestamp", "value", timestamp=_TIME, value=_NUMBER)},
        ),
    ),
    "Created": _object("id", "name", id=_UUID, name=_TEXT),
    "Cluster": _object(
        "id",
        "name",
        "kind",
        "status",
        "ownershipProtection",
        id=_UUID,
        name=_TEXT,
        kind={"type": "string", "enum": ["local", "simulated", "kubernetes"]},
        status={"type": "string", "enum": ["Connected", "Disconnected", "WaitingToConnect"]},
        statusChangedAt=_null(_TIME),
        problem=_null(_TEXT | {"description": "Why it is disconnected, where its agent is heard and says so."}),
        refusedReports={
            "type": "array",
            "description": "What its agent says and is not taken, one for each rule that is broken.",
            "items": _object(
                "about",
                "name",
                "field",
                "rule",
                "value",
                about={"type": "string", "enum": ["node", "pod", "cluster"]},
                name=_null(_TEXT),
                field=_null(_TEXT),
                rule=_TEXT,
                value=_TEXT,
            ),
        },
        ownershipProtection=_FLAG,
        ownershipProtectionSource={"type": "string", "enum": ["cluster", "administrator", "default"]},
        createdAt=_null(_TIME),
        nodes=_null(_INTEGER),
        agentVersion=_null(_TEXT),
    ),
    "Clusters": _list("clusters", ref("Cluster")),
    "NodePools": _list(
        "nodePools",
        _object(
            "clusterId",
            "name",
            clusterId=_UUID,
            clusterName=_TEXT,
            name=_TEXT,
            labelKey=_null(_TEXT),
            labelValue=_null(_TEXT),
        ),
    ),
    "Nodes": _list("nodes", _OBJECT),
    "Project": _object(
        "id",
        "name",
        id=_UUID,
        name=_TEXT,
        createdAt=_null(_TIME),
        gpuQuota=_null(_NUMBER),
        nodePools=_TEXTS,
        podSecurity=_null(_TEXT),
        use=_null(
            _object(
                workloads=_OBJECT,
                pods=_INTEGER,
                gpuAllocated=_NUMBER,
                gpuAllocatedNonPreemptible=_NUMBER,
                cpuAllocatedCores=_NUMBER,
                cpuMemoryAllocatedBytes=_INTEGER,
            )
        ),
    ),
    "Projects": _list("projects", ref("Project")),
    "AccessRules": _list(
        "accessRules",
        _object(
            "subjectId", "roleName", "scopeType", subjectId=_TEXT, roleName=_TEXT, scopeType=_TEXT, scopeId=_null(_TEXT)
        ),
    ),
    "Me": _object("issuer", "subject", issuer=_TEXT, subject=_TEXT, tenantRoles=_TEXTS, projectRoles=_OBJECT),
    "Events": _list("events", _OBJECT, next=_NEXT),
    "Audit": _list(
        "records",
        _object(
            "sequence",
            "at",
            "outcome",
            "command",
            "commandId",
            sequence=_INTEGER,
            at=_TIME,
            outcome={"type": "string", "enum": ["refused", "admitted", "unreadable"]},
            command=_TEXT,
            commandId=_TEXT,
            actor=ref("Actor"),
            target=_TEXT,
            projectId=_TEXT,
            code=_TEXT,
            message=_TEXT,
            correlationId=_TEXT,
        ),
        searchedBackTo=_null(_TIME),
    ),
    "ProjectionStatus": _object(
        "schema",
        "sequence",
        "logSequence",
        "lag",
        schema=_TEXT,
        sequence=_INTEGER,
        logSequence=_INTEGER,
        lag=_INTEGER,
        halted=_null(_TEXT),
        rebuilding=_null(_object(schema=_TEXT, sequence=_null(_INTEGER), targetSequence=_null(_INTEGER))),
    ),
    "Streams": _list(
        "streams",
        _object(
            "name",
            "bytes",
            "maxBytes",
            "fullness",
            "nearlyFull",
            name=_TEXT,
            bytes=_INTEGER,
            maxBytes=_INTEGER,
            fullness=_NUMBER,
            nearlyFull=_FLAG,
        ),
    ),
    "Health": _object("status", status=_TEXT, alarms={"type": "object", "additionalProperties": _TEXT}),
}
"""By name; the request bodies are added from the field registry."""
