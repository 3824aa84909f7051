"""The request in a file of YAML or JSON. Imports a parser, so only who reads a file imports this."""

import sys
from collections.abc import Hashable, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Final, override

import yaml

from events.nearest import did_you_mean
from events.workload.kinds import KINDS
from muster.cli.exits import usage
from muster.cli.unreadable import unreadable
from muster.cli.values import Json, Row

_MERGE: Final = "tag:yaml.org,2002:merge"


def read_request(file: str, kind: str = "Training") -> Row:
    """The request that a file holds (`-`: standard input), as the API takes one of this kind. Raises Problem."""
    documents = read_documents(file)
    if len(documents) > 1:
        raise usage(
            f"--file: {file} holds {len(documents)} documents, and `submit` submits one",
            todo=f"muster apply -f {file}",
        )
    document = documents[0] if documents else None
    return _request_in(document, file, kind)


def read_documents(file: str, *, flag: str = "--file") -> list[Json]:
    """What a file holds: the documents of YAML that are not empty, or one JSON value. Raises Problem."""
    if file != "-" and Path(file).is_dir():
        raise usage(
            f"{flag}: {file} is a folder, and this reads one file",
            todo=f"`muster apply -f {quote(file)}` takes the workloads of a folder",
        )
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        documents: list[Json] = list(yaml.load_all(text, _OnceLoader))
    except OSError as error:
        raise unreadable(f"{flag}: {file}", error, todo="give the path of a file, or -") from error
    except UnicodeDecodeError as error:
        raise unreadable(f"{flag}: {file}", error, todo="write YAML or JSON, in UTF-8") from error
    except _TwiceError as error:
        raise usage(f"{flag}: {file} {error}", todo="leave one of them out") from error
    except yaml.YAMLError as error:
        raise usage(f"{flag}: {file} is neither YAML nor JSON: {_fault(error)}") from error
    return [document for document in documents if document is not None]


def _request_in(document: Json, file: str, kind: str) -> Row:
    """Raises Problem."""
    if isinstance(document, dict) and "kind" in document:
        said = document.pop("kind")
        if said != kind:
            raise usage(
                f"--file: {file} is of kind {said!r}, and this submits {with_article(kind)}",
                todo=line_that_submits(document, said, file) if said in KINDS else f"kinds: {', '.join(KINDS)}",
            )
    if not isinstance(document, dict):
        raise usage(
            f"--file: {file} does not hold a request",
            todo="it needs the fields name and spec; --dry-run=client prints an example",
        )
    if other := other_kind(document, kind):
        raise usage(
            f"--file: {file} holds {with_article(other)}, and this submits {with_article(kind)}",
            todo=line_that_submits(document, other, file),
        )
    known = list(KINDS[kind].creation.__struct_encode_fields__)
    for key in document:
        if key not in known:
            # Here: a file with a wrong field is rare, and the fields are many to import.
            from muster.cli.training_flags import FLAG_OF_FIELD

            below = f"spec.{key}" in FLAG_OF_FIELD
            todo = f"it stands in spec: spec.{key}" if below else did_you_mean(str(key), known)
            raise usage(f"--file: {file}: unknown field {key!r}", todo=todo)
    return document


def with_article(kind: str) -> str:
    return f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}"


def other_kind(document: Row, kind: str = "") -> str:
    """The kind that has fields of a document which this one does not have; empty where it has all, or no kind has."""
    fitting = fitting_kinds(document)
    return "" if kind in fitting or not fitting else fitting[0]


def fitting_kinds(document: Row) -> list[str]:
    """Those that have all fields of a document."""
    spec = document.get("spec")
    given = {*document, *(f"spec.{name}" for name in (spec if isinstance(spec, dict) else ()))}
    return [name for name in KINDS if given <= _fields_of(name)]


def _fields_of(kind: str) -> frozenset[str]:
    """Of a request and of its spec, by path."""
    from events.fields.node import tree

    top = tree(KINDS[kind].creation)
    return frozenset({*top.by_name, *(one.path for one in top.by_name["spec"].fields)})


def line_that_submits(document: Row, kind: str, file: str) -> str:
    """Of a file that holds one of this kind, or that fits it."""
    noun = {"Workspace": "workspace", "Inference": "inference"}.get(kind, "training")
    spec = document.get("spec")
    framework = spec.get("distributedFramework") if isinstance(spec, dict) else None
    if kind != "Distributed":
        return f"muster {noun} submit -f {quote(file)}"
    others = "" if framework else " (or tensorflow, xgboost, mpi, jax)"
    return f"muster training {str(framework or 'pytorch').lower()} submit -f {quote(file)}{others}"


def read_document(file: str, known: Sequence[str], *, what: str, flag: str = "--file") -> Row:
    """An object with no other fields than these that a file holds. Raises Problem."""
    documents = read_documents(file, flag=flag)
    document = documents[0] if len(documents) == 1 else None
    if not isinstance(document, dict):
        raise usage(f"{flag}: {file} does not hold {what}", todo=f"it has the fields {' and '.join(known)}")
    for key in document:
        if key not in known:
            raise usage(f"{flag}: {file}: unknown field {key!r}", todo=did_you_mean(str(key), known))
    return document


class _OnceLoader(yaml.SafeLoader):
    """Of a key that stands twice YAML's own would take the last without a word."""

    @override
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            # Before what `<<` merges comes in: that may be said otherwise.
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if key.value in seen:
                    raise _TwiceError(f"line {key.start_mark.line + 1}: {key.value!r} stands there twice")
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


class _TwiceError(Exception):
    """The message says what, and where."""


def _fault(error: yaml.YAMLError) -> str:
    """Where the parser stood and what it met, as one sentence."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    met = ", ".join(part for name in ("context", "problem") if (part := getattr(error, name, None)))
    return f"line {mark.line + 1}, column {mark.column + 1}: {met}"
