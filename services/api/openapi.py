"""The OpenAPI document, made from the table of operations and the declared fields. 3.0.3, as the contract. Pure."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from events.asset_specs import AssetSpec
from events.policy_specs import WorkloadRules
from events.workload.spec import TrainingSpec, WorkloadSpec
from services.api.answers import Error, SubmissionErrorV2
from services.api.answers.evaluation import JSON_VALUE
from services.api.body_schemas import body_schemas
from services.api.operations import JSON, MAX_BIGINT, Operation, Query
from services.api.schemas import Schema, answer_schemas, ref

TITLE: Final = "Muster"
VERSION: Final = "1"

ERROR_TEXTS: Final[dict[int, str]] = {
    400: "The request is wrong. complianceIssues lists every problem with its field",
    401: "The token is missing, expired or not trusted",
    403: "The caller's roles or ownership protection do not allow it",
    404: "It does not exist, or the caller may not see it",
    405: "The path does not have this method. The header Allow lists its methods",
    408: "The body arrived too slowly, and nothing was done",
    409: "It conflicts with the current state, for example because the workload has ended, or the Idempotency-Key was "
    "used with another body",
    410: "It existed, and was deleted for good",
    412: "The version in If-Match is no longer the newest",
    413: "The body is larger than 512 KiB; that of a batch, than 16 MiB",
    415: "The body is not application/json",
    429: "Too many requests. Retry-After says when to send the next one",
    431: "The headers and the query are larger than 16 KiB",
    500: "An error in Muster",
    503: "A part of Muster is away, or the outcome is unknown. Repeat the request with the same Idempotency-Key",
}
ALWAYS: Final = (400, 401, 429, 431, 500, 503)
"""Statuses that every operation with a token may have."""
MUTATION_ERRORS: Final = (408, 409, 412, 413, 415)
CONTRACT_EXTENSIONS: Final = frozenset({400, 408, 409, 412, 413, 415, 429, 431, 500})
"""Statuses that Muster adds to those of the contract, which has none for them (C21)."""


def document(operations: Sequence[Operation]) -> Schema:
    """The whole document."""
    bodies = sorted({op.body for op in operations if op.body is not None}, key=lambda body: body.__name__)
    answers = [Error, SubmissionErrorV2, *(op.answers for op in operations if op.answers is not None)]
    paths: dict[str, dict[str, Any]] = {}
    for op in operations:
        paths.setdefault(op.shown_path, {})[op.method.lower()] = _operation(op)
    return {
        "openapi": "3.0.3",
        "info": {
            "title": TITLE,
            "version": VERSION,
            "description": "The control plane of GPU workloads. Lists say how fresh they are in X-Log-Sequence; "
            "a change answers with the sequence that a later read can ask for with min_seq.",
        },
        "paths": paths,
        "components": {
            "schemas": {"JsonValue": JSON_VALUE}
            | answer_schemas(answers)
            | body_schemas((*bodies, TrainingSpec, WorkloadSpec, AssetSpec, WorkloadRules)),
            "securitySchemes": {"bearerAuth": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
        "security": [{"bearerAuth": []}],
        "servers": [{"url": "/"}],
    }


def _operation(op: Operation) -> Schema:
    described: Schema = {
        "operationId": op.id,
        "summary": op.summary,
        "tags": [op.tag],
        "parameters": [*_path_parameters(op.path), *(_query(query) for query in op.query), *_headers(op)],
        "responses": {str(status): schema for status, schema in sorted(_responses(op).items())},
    }
    if not described["parameters"]:
        del described["parameters"]
    if op.public:
        described["security"] = []
    if op.body is not None:
        content = {JSON: {"schema": ref(op.body.__name__), "example": op.example}}
        described["requestBody"] = {"content": content, "required": op.method != "DELETE"}
    return described


def _path_parameters(path: str) -> list[Schema]:
    found: list[Schema] = []
    for part in path.split("/"):
        if part.startswith("{"):
            name, _, kind = part.strip("{}").partition(":")
            schema: Schema = {"type": "string", "format": "uuid"} if kind == "uuid" else {"type": "string"}
            found.append({"in": "path", "name": name, "required": True, "schema": schema})
    return found


def _query(query: Query) -> Schema:
    schema: Schema
    match query.type:
        case "text":
            schema = {"type": "string"}
        case "texts":
            schema = {"type": "array", "items": {"type": "string"}}
        case "boolean":
            schema = {"type": "boolean"}
        case "choice":
            schema = {"type": "string", "enum": list(query.options)}
        case "integer":
            schema = {"type": "integer", "minimum": query.least, "maximum": query.most}
    if query.default is not None:
        schema["default"] = query.default
    return {"in": "query", "name": query.name, "description": query.help, "schema": schema}


def _headers(op: Operation) -> list[Schema]:
    if any(query.name == "lastEventId" for query in op.query):
        return [
            {
                "in": "header",
                "name": "Last-Event-ID",
                "description": "Go on behind the event with this id. It counts more than lastEventId and from.",
                "schema": {"type": "string"},
            }
        ]
    if op.public or not (op.mutates or any(query.name == "min_seq" for query in op.query)):
        return []
    seen: Schema = {
        "in": "header",
        "name": "X-Log-Sequence",
        "description": "From an earlier answer: nothing older is told or decided on, whichever instance answers.",
        "schema": {"type": "integer", "minimum": 0, "maximum": MAX_BIGINT},
    }
    if not op.mutates:
        return [seen]
    return [
        seen,
        {
            "in": "header",
            "name": "Idempotency-Key",
            "description": "The same request with the same key is carried out once, however often it is sent.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
        },
        {
            "in": "header",
            "name": "If-Match",
            "description": "The version, as in X-Version, that must still be the newest.",
            "schema": {"type": "string", "pattern": '^(\\*|(W/)?"?[0-9]{1,18}"?)$'},
        },
    ]


def _responses(op: Operation) -> dict[int, Schema]:
    responses: dict[int, Schema] = {op.ok: _good(op)}
    statuses = op.errors if op.public else {*ALWAYS, *op.errors, *(MUTATION_ERRORS if op.mutates else ())}
    for status in statuses:
        schema = ref("SubmissionErrorV2") if status == HTTPStatus.BAD_REQUEST else ref("Error")
        responses[status] = {"description": ERROR_TEXTS[status], "content": {JSON: {"schema": schema}}}
    return responses


def _good(op: Operation) -> Schema:
    text: Schema = {"type": "string"}
    json = text if op.answers is None else ref(op.answers.__name__)
    headers: Schema = {
        "X-Request-Id": {"schema": {"type": "string"}, "description": "Leads to the log lines of this request."}
    }
    if not op.public:
        headers["X-Log-Sequence"] = {
            "schema": {"type": "integer"},
            "description": "Up to which sequence of the log the answer speaks, or which it made.",
        }
    headers |= {name: {"schema": {"type": "string"}, "description": told} for name, told in op.headers}
    return {
        "description": op.summary,
        "content": {media: {"schema": json if media == JSON else text} for media in op.media},
        "headers": headers,
    }
