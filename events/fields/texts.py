"""What declarations say to people. Their sentences are the docstrings below the fields, which only the source has: it
is read when somebody asks, for help, OpenAPI and pages, never on the way of a request.
"""

import ast
import inspect
import textwrap
from functools import cache
from typing import Final

from events.fields.declare import Body
from events.fields.node import Node

_ACRONYMS: Final = {"cpu": "CPU", "gpu": "GPU", "id": "id", "config": "Config"}


class UndocumentedError(Exception):
    """A field has no docstring: users read it."""


def help_of(node: Node) -> str:
    """What a field does, its default, its range. Raises UndocumentedError."""
    owners = () if node.owner is None else node.owner.__mro__
    for owner in owners:
        if not issubclass(owner, Body):
            continue
        text = owner.TEXTS.get(node.attribute) if owner.TEXTS else _docstrings(owner).get(node.attribute)
        if text:
            return text
    raise UndocumentedError(f"{node.path or node.name} has no docstring: users read it")


def label_of(node: Node) -> str:
    """Its name in words, as the heading of a form's field."""
    first, *rest = node.attribute.split("_")
    return " ".join([_ACRONYMS.get(first, first.capitalize()), *(_ACRONYMS.get(word, word) for word in rest)])


@cache
def _docstrings(owner: type[Body]) -> dict[str, str]:
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(declared, ast.ClassDef)
    texts: dict[str, str] = {}
    for item, after in zip(declared.body, declared.body[1:], strict=False):
        match item, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.split())
            case _:
                pass
    return texts
