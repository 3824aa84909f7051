"""How an operation of the API is declared: by a decorator on its handler, from which its route, its checks, the OpenAPI
document and the reference pages follow.

    @reads(f"{V1}/things", tag="Things", summary="Things that you may read", query=(MIN_SEQ,), errors=(403,))
    async def list_things(call: Call) -> Answer[answers.Things]:

What it answers stands in the handler's annotation. A module's operations are those declared in it, in their order.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from inspect import get_annotations
from types import ModuleType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, Union, cast, get_args, get_origin

import msgspec
from starlette.responses import Response

from events.fields.declare import Body
from services.api.issues import Issue

if TYPE_CHECKING:
    from services.api.context import Call, Look

MAX_BIGINT: Final = 2**63 - 1
JSON: Final = "application/json"

QueryType = Literal["text", "integer", "boolean", "choice", "texts"]
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Tag = Literal[
    "Trainings",
    "Distributed",
    "Workspaces",
    "Inferences",
    "Workloads",
    "Assets",
    "Policies",
    "Clusters",
    "Organisation",
    "Events",
    "Subscriptions",
    "Webhooks",
    "Log",
    "System",
]
"""A chapter of the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query parameter of an operation."""

    name: str
    help: str
    type: QueryType = "text"
    default: Any = None
    least: int = 0
    most: int = MAX_BIGINT
    options: tuple[str, ...] = ()
    read: Callable[[str], Any] | None = None
    """From a text to the value; raises BadValueError."""


type QueryRules = Callable[[Mapping[str, Any], AbstractSet[str]], Iterable[Issue]]
"""What is wrong with query parameters that are well-formed, of their values and of the names that were given."""

type Handler = Callable[["Call"], Awaitable[Response]]
type LookHandler = Callable[["Look"], Awaitable[Response]]
"""Of what needs no more than the log and the tables: a sandbox can answer it, too."""


def no_query_rules(_: Mapping[str, Any], __: AbstractSet[str]) -> Iterable[Issue]:
    return ()


class Answer[T: msgspec.Struct](Response):
    """A good answer in JSON. The struct is what the OpenAPI document says of it."""

    def __init__(self, body: T, *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(_ENCODER.encode(body), status_code=status, headers=headers, media_type=JSON)


_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One endpoint: all that routing, checks and the OpenAPI document need to know."""

    method: Method
    path: str
    id: str
    handler: Handler
    look: LookHandler | None = None
    """The handler, where it takes a `Look`."""
    summary: str
    tag: Tag
    ok: int = 200
    answers: type[msgspec.Struct] | None = None
    """Of a good answer in JSON; None where it is no JSON (`media` then says what)."""
    media: tuple[str, ...] = (JSON,)
    query: tuple[Query, ...] = ()
    rules: QueryRules = no_query_rules
    """Of the query as a whole."""
    body: type[Body] | None = None
    example: Mapping[str, Any] | None = None
    """Of a body."""
    errors: tuple[int, ...] = ()
    """Beside those that every operation has."""
    headers: tuple[tuple[str, str], ...] = ()
    """Of a good answer, and what each says; beside those that every operation has."""
    public: bool = False
    ticketed: bool = False
    """Whether a ticket in the query will do in place of a token."""
    mutates: bool = False
    large: bool = False
    """Whether a body may have MAX_LARGE_BODY_BYTES. It takes a place among few, and longer than others."""

    @property
    def shown_path(self) -> str:
        """As OpenAPI writes it."""
        return self.path.replace(":uuid}", "}")


def reads(
    path: str,
    *,
    tag: Tag,
    summary: str,
    query: tuple[Query, ...] = (),
    rules: QueryRules = no_query_rules,
    errors: tuple[int, ...] = (),
    media: tuple[str, ...] = (JSON,),
    headers: tuple[tuple[str, str], ...] = (),
    public: bool = False,
    ticketed: bool = False,
) -> Callable[[Handler], Operation]:
    """Declares a handler that changes nothing."""

    def declare(handler: Handler) -> Operation:
        return Operation(
            method="GET",
            path=path,
            id=_name(handler),
            handler=handler,
            look=_look(handler),
            summary=summary,
            tag=tag,
            answers=_answers(handler),
            media=media,
            query=query,
            rules=rules,
            errors=errors,
            headers=headers,
            public=public,
            ticketed=ticketed,
        )

    return declare


def changes(
    method: Method,
    path: str,
    *,
    tag: Tag,
    summary: str,
    id: str = "",  # noqa: A002 - what OpenAPI calls it
    query: tuple[Query, ...] = (),
    body: type[Body] | None = None,
    example: Mapping[str, Any] | None = None,
    errors: tuple[int, ...] = (),
    large: bool = False,
) -> Callable[[Handler], Operation]:
    """Declares a handler that sends a command; it answers 202 once the event is on disk.

    Args:
        id: name of the operation, where it is not the handler's.
        example: a body; who has a body has an example.
    """
    assert (body is None) == (example is None), f"{method} {path}: a body and its example go together"

    def declare(handler: Handler) -> Operation:
        return Operation(
            method=method,
            path=path,
            id=id or _name(handler),
            handler=handler,
            summary=summary,
            tag=tag,
            ok=202,
            answers=_answers(handler),
            query=query,
            body=body,
            example=example,
            errors=errors,
            mutates=True,
            large=large,
        )

    return declare


def examines(
    path: str,
    *,
    tag: Tag,
    summary: str,
    body: type[Body],
    example: Mapping[str, Any],
    query: tuple[Query, ...] = (),
    errors: tuple[int, ...] = (),
) -> Callable[[Handler], Operation]:
    """Declares a handler that is sent what it is asked about, and changes nothing."""

    def declare(handler: Handler) -> Operation:
        return Operation(
            method="POST",
            path=path,
            id=_name(handler),
            handler=handler,
            summary=summary,
            tag=tag,
            answers=_answers(handler),
            query=query,
            body=body,
            example=example,
            errors=(*errors, 408, 413, 415),
        )

    return declare


def operations_in(*modules: ModuleType) -> tuple[Operation, ...]:
    """What is declared in these modules, alone or in a tuple, in their order."""
    return tuple(
        found
        for module in modules
        for value in vars(module).values()
        for found in (cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,))
        if isinstance(found, Operation) and found.handler.__module__ == module.__name__
    )


def _name(handler: Handler) -> str:
    return getattr(handler, "__name__", "")


def _look(handler: Handler) -> "LookHandler | None":
    """The handler, where its annotation says that it takes a `Look`."""
    from services.api.context import Look

    parameter = next(iter(get_annotations(handler).values()))
    return cast("LookHandler", handler) if parameter is Look else None


def _answers(handler: Handler) -> type[msgspec.Struct] | None:
    """The struct in the handler's annotation: it answers `Answer[…]`, or that or something else."""
    annotation = get_annotations(handler)["return"]
    options = get_args(annotation) if get_origin(annotation) in {Union, UnionType} else (annotation,)
    for option in options:
        if get_origin(option) is Answer:
            (struct,) = get_args(option)
            return struct
    return None
