"""The flags of every `submit`, and the request that they make.

They follow from the declarations of the fields, and are loaded by `submit` alone. What is the command line's own stands
here: durations, NAME=VALUE, lists. Rules are the API's; here a value only gets its field's type.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Literal, cast

from typer._coercion import TypeDescriptor
from typer.core import TyperOption
from typer.models import OptionInfo

from events.fields.node import Node, tree
from events.fields.texts import help_of
from events.workload.fields.creation import Creation, DistributedCreation, TrainingCreation
from events.workload.fields.distribution import Distribution
from events.workload.fields.process import Process
from events.workload.fields.storage import Storage
from events.workload.fields.sweep import Sweep
from events.workload.kinds import KINDS
from muster.cli.coercion import TyperParameter, convert_lightly
from muster.cli.complete import node_pools
from muster.cli.exits import usage
from muster.cli.item_words import alone, field_of, words_of
from muster.cli.typed import Flags
from muster.cli.values import (
    Json,
    Row,
    ValueProblem,
    parse_boolean,
    parse_duration,
    parse_integer,
    parse_number,
    parse_pair,
    parse_values,
    row_of,
    set_field,
)

_NOT_FROM_TABLE: Final = frozenset(
    {
        *("name", "useGivenNameAsPrefix", "projectId", "clusterId", "spec.command", "spec.args", "spec.code"),
        *("templateId", "assets.environmentId", "assets.computeId", "assets.datasourceIds"),
    }
)
"""Told by arguments and flags that `submit` declares itself."""

ENVIRONMENT_FLAG: Final = "--environment"
"""Takes variables, and the name of an environment: Run:ai's tool calls both so, in older and in newer versions.
What has no = is a name (`muster.cli.submit`).
"""
_OF_MASTER: Final = {"spec": "", "masterSpec": "master-"}
"""How flags begin that add to the variables of a spec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where else a variable takes its value from."""

    flag: str
    field: str
    form: str
    told: str

    def called(self, spec: str) -> str:
        return f"--{_OF_MASTER[spec]}{self.flag}"


_SOURCES: Final = (
    _Source(
        flag="environment-credential",
        field="userCredential",
        form="NAME=CREDENTIAL/KEY",
        told="Environment variable whose value is that of a credential of yours.",
    ),
    _Source(
        flag="environment-secret",
        field="secret",
        form="NAME=SECRET/KEY",
        told="Environment variable whose value is in a Secret of the project's namespace. Only on Kubernetes.",
    ),
    _Source(
        flag="environment-config-map",
        field="configMap",
        form="NAME=CONFIGMAP/KEY",
        told="Environment variable whose value is in a ConfigMap of the project's namespace. Only on Kubernetes.",
    ),
    _Source(
        flag="environment-pod-field",
        field="podFieldRef",
        form="NAME=PATH",
        told="Environment variable whose value is a field of the pod, such as status.podIP. Only on Kubernetes.",
    ),
)
_POD_FIELD: Final = "podFieldRef"
_RUN_AI_POD_FIELD: Final = "--env-pod-field-ref"
_VARIABLES: Final = "environmentVariables"
MASTER_SECTION: Final = "Master"
_NO_MASTER: Final = "Run workers only, and no master."
_NO_CLAIMS: Final = "Mount no persistent volume claim in the master. Other volumes of the workers it has."
_SPELLED_OUT: Final = 3
"""So many options stand in the flag's line; more only in its help."""

_CLAIMS: Final = "spec.storage.pvc"
_EXISTING: Final = "existing_pvc"
_EXISTING_FLAG: Final = "--existing-pvc"
_SWEEP: Final = "spec.sweep"
_SWEEP_CSV: Final = "sweep_csv"
_USER_SOURCE: Final = "spec.security.uidGidSource"
_AS_USER: Final = "run_as_user"
_OF_TOKEN: Final = "fromIdpToken"  # noqa: S105 (where user and groups come from)
_RUN_AS_USER: Final = f"Run as the user that your token names: the same as --user-group-source {_OF_TOKEN}."

type Given = Mapping[str, str | bool | Sequence[str] | None]
"""Values of flags, by parameter."""
FlagKind = Literal["text", "integer", "number", "duration", "switch", "list", "names", "pairs", "values", "items"]
"""How a flag's text becomes the field's value. list: comma separated; names: the same, of items that have only a name;
pairs: NAME=VALUE; values: NAME=A,B or NAME=1..5; items: FIELD=VALUE,…; these five repeatable. switch: true where it is
given.
"""

_METAVAR: Final[dict[FlagKind, str]] = {
    "text": "TEXT",
    "integer": "N",
    "number": "X",
    "duration": "DURATION",
    "switch": "",
    "list": "A,B",
    "names": "A,B",
    "pairs": "NAME=VALUE",
    "values": "NAME=A,B|1..5",
    "items": "FIELD=VALUE,…",
}
_MORE_HELP: Final[dict[FlagKind, str]] = {
    "list": " Comma separated.",
    "names": " Comma separated.",
    "pairs": " Repeatable.",
    "values": " Repeatable.",
    "items": " Repeatable.",
    "duration": " Write 30s, 5m, 2h or 7d.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    node: Node
    names: tuple[str, ...]
    field: str
    """Path of the request's field."""
    kind: FlagKind
    metavar: str

    @property
    def parameter(self) -> str:
        """By which its values are kept."""
        return _parameter(self.names[0])

    def called(self, name: str) -> "Flag":
        """As messages shall call it; an empty name: as it is declared."""
        return replace(self, names=(name,)) if name else self


def _parameter(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def flag_of(node: Node) -> Flag:
    """The flag of a field that has one."""
    assert node.about is not None
    kind = _kind(node)
    names = (node.about.flag, *node.about.aliases)
    if node.path.startswith("masterSpec."):
        # As Run:ai calls them, and without short names: those are the workers'.
        names = (f"--master-{node.about.flag.removeprefix('--')}",)
    metavar = "|".join(node.options) if 0 < len(node.options) <= _SPELLED_OUT else _METAVAR[kind]
    return Flag(
        node=node,
        names=names,
        field=node.path,
        kind=kind,
        metavar="SIZE" if node.about.unit == "bytes" else metavar,
    )


def _kind(node: Node) -> FlagKind:
    assert node.about is not None
    if node.about.unit == "seconds":
        return "duration"
    if node.kind == "list":
        return _kind_of_items(node) if node.about.key else "list"
    known: dict[str, FlagKind] = {"integer": "integer", "number": "number", "boolean": "switch"}
    return known.get(node.kind, "text")


def _kind_of_items(node: Node) -> FlagKind:
    """By whether its items are told by their key alone, by it and one more text, or by more."""
    assert node.item is not None
    assert node.about is not None
    first, *more = (field for field in node.item.fields if field.name != "exclude")
    if first.name != node.about.key:
        return "items"
    if not more:
        return "names"
    return "pairs" if more[0].kind == "text" else "values" if more[0].kind == "list" else "items"


_LIVE: Final[dict[str, Callable[..., Any]]] = {"spec.nodePools": node_pools}
"""Where a shell completes what there is."""


@cache
def flags_of(creation: type[Creation]) -> tuple[Flag, ...]:
    """The flags by which such a request is made."""
    kind = next((one.name for one in KINDS.values() if one.creation is creation), "")
    return tuple(
        flag_of(node)
        for node in tree(creation).walk()
        if node.about is not None
        and node.about.flag
        and node.path not in _NOT_FROM_TABLE
        and not node.path.startswith("masterSpec.storage.")
        and kind not in node.about.not_for
    )


FLAGS: Final = flags_of(TrainingCreation)
FLAG_OF_FIELD: Final[dict[str, str]] = {
    **{flag.field: flag.names[0] for kind in KINDS.values() for flag in flags_of(kind.creation)},
    "spec.command": "--command",
    "spec.args": "words after --",
    "spec.code": "--code",
    "spec.podAffinity": "--required-pod-topology-key or --preferred-pod-topology-key",
    "useGivenNameAsPrefix": "--name-prefix",
    "projectId": "--project",
    "clusterId": "--cluster",
    "name": "NAME",
    "masterSpecSameAsWorker": "--no-master",
    "masterSpec.storage.pvc": "--master-no-pvcs",
    "templateId": "--template",
    "assets.environmentId": "--environment",
    "assets.computeId": "--compute",
    "assets.datasourceIds": "--datasource",
}
"""What to correct on the command line when the API names a field."""


def field_options(creation: type[Creation], *, framework: str = "") -> list[TyperOption]:
    """The flags as options of a command, made without typer's detour over a function's signature.

    Args:
        framework: of a distributed training.
    """
    options = [_option(flag) for flag in flags_of(creation)]
    if creation is DistributedCreation:
        if framework != "MPI":  # which always has one: its launcher
            options.append(_switch(["no_master", "--no-master"], _NO_MASTER, Distribution.TITLE))
        options.append(_switch(["master_no_pvcs", "--master-no-pvcs"], _NO_CLAIMS, MASTER_SECTION))
        options += (_of_source("masterSpec", source) for source in _SOURCES)
    options += [*(_of_source("spec", source) for source in _SOURCES), _existing_claims()]
    options.append(_switch([_AS_USER, "--run-as-user"], _RUN_AS_USER, Process.TITLE))
    if creation is TrainingCreation:
        options.append(_sweep_csv())
    for option in options:
        convert_lightly(cast("TyperParameter", option))
    return options


def _sweep_csv() -> TyperOption:
    return TyperOption(
        param_decls=[_SWEEP_CSV, "--sweep-csv"],
        type_descriptor=TypeDescriptor(annotation=str, parameter_info=OptionInfo(), file_annotation=None),
        help="Read the runs from this CSV file: a column for each variable, a row for each run.",
        metavar="FILE",
        rich_help_panel=Sweep.TITLE,
    )


def _of_source(spec: Literal["spec", "masterSpec"], source: _Source) -> TyperOption:
    flag, of_master = source.called(spec), "Of the master. " if spec == "masterSpec" else ""
    names = [flag, *([_RUN_AI_POD_FIELD] if source.field == _POD_FIELD and not of_master else [])]
    section = next(one.section for one in tree(TrainingCreation).walk() if one.path == f"spec.{_VARIABLES}")
    return TyperOption(
        param_decls=[_parameter(flag), *names],
        type_descriptor=TypeDescriptor(annotation=list[str], parameter_info=OptionInfo(), file_annotation=None),
        multiple=True,
        help=f"{of_master}{source.told} Repeatable.",
        metavar=source.form,
        rich_help_panel=MASTER_SECTION if of_master else section,
    )


def _existing_claims() -> TyperOption:
    return TyperOption(
        param_decls=[_EXISTING, _EXISTING_FLAG],
        type_descriptor=TypeDescriptor(annotation=list[str], parameter_info=OptionInfo(), file_annotation=None),
        multiple=True,
        help="Persistent volume claim that is there already: as --pvc with existingPvc. Repeatable.",
        metavar="claimname=CLAIM,path=PATH",
        rich_help_panel=Storage.TITLE,
    )


def _set_existing_claims(request: Row, given: Given, creation: type[Creation], flags: Flags) -> None:
    """Beside those of --pvc, which took the place of what a file said. Raises Problem (usage)."""
    texts = given.get(_EXISTING)
    if not texts or isinstance(texts, (str, bool)):
        return
    declared = next(one for one in flags_of(creation) if one.field == _CLAIMS)
    flag = declared.called(_EXISTING_FLAG)
    try:
        claims: list[Json] = [{**_item(flag, one), "existingPvc": True} for one in texts]
    except ValueProblem as error:
        raise usage(f"{_EXISTING_FLAG}: {error}") from error
    there = row_of(row_of(request, "spec"), "storage").get("pvc") if given.get(declared.parameter) else None
    _add_items(request, _CLAIMS, there, claims, flags=flags, flag=_EXISTING_FLAG)


def _add_items(request: Row, field: str, there: Json, more: list[Json], *, flags: Flags, flag: str) -> None:
    """Behind what another flag gave of a list."""
    before = there if isinstance(there, list) else []
    set_field(request, field, [*before, *more])
    flags |= {f"{field}[{len(before) + index}]": flag for index in range(len(more))}


def _set_user(request: Row, given: Given, flags: Flags) -> None:
    """Raises Problem (usage)."""
    if not given.get(_AS_USER):
        return
    other = given.get("user_group_source")
    if other not in {None, _OF_TOKEN}:
        raise usage(f"--run-as-user and --user-group-source {other} exclude each other", todo="give one of them")
    set_field(request, _USER_SOURCE, _OF_TOKEN)
    flags[_USER_SOURCE] = "--run-as-user"


def _switch(names: list[str], told: str, section: str) -> TyperOption:
    return TyperOption(
        param_decls=names,
        type_descriptor=TypeDescriptor(annotation=bool, parameter_info=OptionInfo(), file_annotation=None),
        is_flag=True,
        default=False,
        help=told,
        rich_help_panel=section,
    )


def _option(flag: Flag) -> TyperOption:
    of_master = "Of the master. " if flag.field.startswith("masterSpec.") else ""
    section = MASTER_SECTION if of_master else flag.node.section
    if flag.kind == "switch":
        return _switch([flag.parameter, *flag.names], of_master + help_of(flag.node), section)
    many = flag.kind in {"list", "names", "pairs", "values", "items"}
    of_type: Any = list[str] if many else str
    # A shell completes from a table that is made of this (muster.cli.reference).
    offered = OptionInfo(
        autocompletion=_LIVE.get(flag.field) or (_offer(flag.node.options) if flag.node.options else None)
    )
    return TyperOption(
        param_decls=[flag.parameter, *flag.names],
        type_descriptor=TypeDescriptor(annotation=of_type, parameter_info=offered, file_annotation=None),
        multiple=many,
        help=of_master + _told(flag, of_master) + _more_help(flag),
        metavar=flag.metavar,
        rich_help_panel=section,
    )


def _told(flag: Flag, of_master: str) -> str:
    """A flag gives the object that its field is in: what is mandatory there only needs no flag."""
    text = _WITHIN.sub("", help_of(flag.node))
    return text.replace(" Mandatory.", " Default: that of the workers.") if of_master else text


_WITHIN: Final = re.compile(r" Mandatory within \w+\.")


def _more_help(flag: Flag) -> str:
    if flag.names[0] == ENVIRONMENT_FLAG:
        return f" Without =: name or id of an environment to take fields from.{_MORE_HELP['pairs']}"
    if flag.kind != "items":
        return _MORE_HELP.get(flag.kind, "")
    assert flag.node.item is not None
    fields = ", ".join(name for name in _fields_of_item(flag.node.item) if name != "exclude")
    return f" Fields: {fields}.{_MORE_HELP['items']}"


def set_fields(
    request: Row,
    given: Given,
    creation: type[Creation] = TrainingCreation,
    typed: Mapping[str, str] | None = None,
) -> Flags:
    """Writes what the flags say into a request; flags win over what a file said. Raises Problem (usage).

    Args:
        typed: by parameter, the name by which its flag was typed.

    Returns:
        by field, the flag that gave it.
    """
    flags: Flags = {}
    for declared in flags_of(creation):
        value = given.get(declared.parameter)
        texts = [value] if isinstance(value, str) else [] if isinstance(value, bool) else list(value or ())
        if not texts and value is not True:
            continue
        flag = declared.called((typed or {}).get(declared.parameter, ""))
        try:
            set_field(request, flag.field, value_of(flag, texts) if texts else True)
        except ValueProblem as error:
            raise usage(f"{flag.names[0]}: {error}", todo=_part_of_a_gpu(flag, texts[-1])) from error
        flags[flag.field] = flag.names[0]
    for spec in _OF_MASTER:
        for source in _SOURCES:
            _set_variables(request, given, spec, source, typed=typed or {}, flags=flags)
    _set_existing_claims(request, given, creation, flags)
    _set_user(request, given, flags)
    if given.get(_SWEEP_CSV):
        flags[_SWEEP] = "--sweep-csv"
    return flags


def _part_of_a_gpu(flag: Flag, text: str) -> str | None:
    """What asks for half a GPU."""
    if not flag.field.endswith("gpuDevicesRequest") or not re.fullmatch(r"0?\.\d+", text):
        return None
    of = "--master-" if flag.field.startswith("masterSpec.") else "--"
    return f"a part of a GPU: {of}gpu-request-type portion {of}gpu-portion-request {text}"


def _set_variables(
    request: Row, given: Given, spec: str, source: _Source, *, typed: Mapping[str, str], flags: Flags
) -> None:
    """Raises Problem (usage)."""
    parameter = _parameter(source.called(spec))
    flag = typed.get(parameter, source.called(spec))
    texts = given.get(parameter)
    if not texts or isinstance(texts, (str, bool)):
        return
    try:
        variables: list[Json] = [_variable(one, source) for one in texts]
    except ValueProblem as error:
        raise usage(f"{flag}: {error}") from error
    # Beside those of other flags, which took the place of what a file said.
    path = f"{spec}.{_VARIABLES}"
    by_flags = any(one == path or one.startswith(f"{path}[") for one in flags)
    there = row_of(request, spec).get(_VARIABLES) if by_flags else None
    _add_items(request, path, there, variables, flags=flags, flag=flag)


def _variable(text: str, source: _Source) -> Row:
    """Raises ValueProblem."""
    name, value = parse_pair(text, "variable", form=source.form)
    if source.field == _POD_FIELD:
        return {"name": name, source.field: {"path": value}}
    holder, slash, key = value.partition("/")
    if not (slash and holder and key):
        what = source.form.partition("=")[2].partition("/")[0].lower()
        raise ValueProblem(f"{text!r} names no key of a {what}; write {source.form}")
    return {"name": name, source.field: {"name": holder, "key": key}}


def value_of(flag: Flag, texts: list[str]) -> Json:
    """The field's value. Raises ValueProblem."""
    text = texts[-1]
    match flag.kind:
        case "text":
            return text
        case "integer":
            return parse_integer(text)
        case "number":
            return parse_number(text)
        case "duration":
            return parse_duration(text)
        case "list":
            return _parts(texts)
        case "names":
            assert flag.node.item is not None
            return [{flag.node.item.fields[0].name: part} for part in _parts(texts)]
        case "switch":
            return parse_boolean(text)
        case "pairs":
            return [_pair(flag, entry) for entry in texts]
        case "values":
            return [_values(flag, entry) for entry in texts]
        case "items":
            return [_item(flag, entry) for entry in texts]


def _parts(texts: list[str]) -> list[Json]:
    return [part.strip() for entry in texts for part in entry.split(",") if part.strip()]


def _pair(flag: Flag, text: str) -> Row:
    if "=" not in text and flag.node.name == "environmentVariables":
        raise ValueProblem(f"{text!r} has no '='; a variable is NAME=VALUE")
    name, value = parse_pair(text, flag.names[0].removeprefix("--"))
    assert flag.node.item is not None
    key, of_value = flag.node.item.fields[:2]
    return {key.name: name, of_value.name: value}


def _values(flag: Flag, text: str) -> Row:
    name, values = parse_pair(text, flag.names[0].removeprefix("--"), form="NAME=A,B or NAME=1..5")
    assert flag.node.item is not None
    key, of_values = flag.node.item.fields[:2]
    return {key.name: name, of_values.name: parse_values(values)}


def _item(flag: Flag, text: str) -> Row:
    """An item in the key=value language. Raises ValueProblem."""
    assert flag.node.item is not None
    fields = _fields_of_item(flag.node.item)
    found: Row = {}
    given: set[str] = set()
    listed = _pair_lists(flag.node.item)
    pairs: dict[str, list[Json]] = {}
    parts = text.split(",")
    for part in parts:
        if "=" not in part:
            _set_alone(found, flag, part, parts, fields)
            continue
        name, value = parse_pair(part, f"part of {flag.names[0]}", form="FIELD=VALUE,FIELD=VALUE")
        name = field_of(flag.node.name, name, parts)
        if (of := next((path for path in listed if name.startswith(f"{path}.")), None)) is not None:
            pairs.setdefault(of, []).append({"key": name.removeprefix(f"{of}."), "value": value})
            continue
        name = next((known for known in fields if known.lower() == name.lower()), name)
        field = fields.get(name)
        if field is None:
            raise ValueProblem(f"{name!r} is no field; those are {', '.join(fields)}")
        if name in given:
            raise ValueProblem(f"{name!r} is given twice in {text!r}")
        given.add(name)
        set_field(found, name, _typed(field, value))
    for path, entries in pairs.items():
        set_field(found, path, entries)
    if flag.node.name == "git" and "secretRef.name" in given and "secretRef.authenticationMethod" not in given:
        set_field(found, "secretRef.authenticationMethod", "password")
    return found


def _set_alone(found: Row, flag: Flag, word: str, parts: Sequence[str], fields: Mapping[str, Node]) -> None:
    """A word that stands alone: a field that is true or false, or one of Run:ai's. Raises ValueProblem."""
    said = alone(flag.node.name, word, parts)
    known = next(
        (name for name, field in fields.items() if name.lower() == word.lower() and field.kind == "boolean"), ""
    )
    if not said and not known:
        words = ", ".join([*fields, *words_of(flag.node.name)])
        raise ValueProblem(f"{word!r} is no FIELD=VALUE; the fields are {words}")
    for name, value in (said or {known: True}).items():
        set_field(found, name, value)


def _pair_lists(node: Node) -> tuple[str, ...]:
    """Lists of keys with values within an item: each entry is a field, as `claimInfo.addedAttrValues.KEY=VALUE`."""
    found: list[str] = []
    for field in node.fields:
        if field.kind == "object":
            found += (f"{field.name}.{path}" for path in _pair_lists(field))
        elif field.item is not None and [one.name for one in field.item.fields] == ["key", "value"]:
            found.append(field.name)
    return tuple(found)


def _fields_of_item(node: Node) -> dict[str, Node]:
    """By name; those of an object within an item as `claimInfo.size`."""
    found: dict[str, Node] = {}
    for field in node.fields:
        if field.kind == "object":
            found |= {f"{field.name}.{name}": inner for name, inner in _fields_of_item(field).items()}
        elif field.kind != "list" or (field.item is not None and field.item.kind == "text"):
            found[field.name] = field
    return found


def _typed(field: Node, text: str) -> Json:
    if field.kind == "boolean":
        if text not in _BOOLEANS:
            raise ValueProblem(f"{field.name} is true or false, not {text!r}")
        return _BOOLEANS[text]
    if field.kind == "list":
        return [part.strip() for part in text.split(";") if part.strip()]
    if field.kind != "integer":
        return text
    try:
        return parse_integer(text)
    except ValueProblem as error:
        raise ValueProblem(f"{field.name}: {error}") from error


_BOOLEANS: Final[dict[str, bool]] = {"true": True, "false": False}


def _offer(options: tuple[str, ...]) -> Callable[[str], list[str]]:
    def offer(incomplete: str) -> list[str]:
        return [option for option in options if option.startswith(incomplete)]

    return offer
