"""How a command of `muster` is declared: shared options, the session it gets, and help that begins with examples."""

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer
from typer.core import TyperCommand, TyperGroup

from muster.cli.coercion import TyperParameter, convert_lightly
from muster.cli.complete import context_names, several_columns
from muster.cli.contexts import (
    Context,
    Contexts,
    ContextsError,
    Target,
    UnknownContextError,
    config_file,
    read_contexts,
    resolve,
)
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.nouns import NOUNS
from muster.cli.output import Column, Format, Output, Style
from muster.cli.style import FORMATS, formats, style_of

if TYPE_CHECKING:
    from typer._click.core import Command, Parameter
    from typer._click.core import Context as ClickContext
    from typer._click.formatting import HelpFormatter
    from typer.core import TyperOption

    from muster.cli.client import Api
    from muster.cli.outage import Patience

CONNECTION_PANEL: Final = "Connection and talk"
OUTPUT_PANEL: Final = "Output"
_SENTENCE: Final = 200
"""Characters of a command's summary in a list: all of it."""
_WAIT: Final = "--wait="
_WORDS: Final = "muster.words"
_FIELDS: Final = "muster.fields"
_TYPED: Final = "muster.typed"
"""Keys in a click context's meta."""

ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        help="Context to use. [env MUSTER_CONTEXT]",
        rich_help_panel=CONNECTION_PANEL,
        autocompletion=context_names,
    ),
]
UrlOption = Annotated[
    str | None, typer.Option("--url", help="URL of the API. [env MUSTER_URL]", rich_help_panel=CONNECTION_PANEL)
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        help="Bearer token. Others on this machine can see it here: MUSTER_TOKEN is safer. [env MUSTER_TOKEN]",
        rich_help_panel=CONNECTION_PANEL,
    ),
]
CaFileOption = Annotated[
    str | None,
    typer.Option(
        "--ca-file",
        metavar="FILE",
        help="Trust the certificates of this authority (a PEM file), and no others. [env MUSTER_CA_FILE]",
        rich_help_panel=CONNECTION_PANEL,
    ),
]
DebugOption = Annotated[
    bool, typer.Option("--debug", help="Show request ids and stack traces.", rich_help_panel=CONNECTION_PANEL)
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only errors on stderr.", rich_help_panel=CONNECTION_PANEL)
]
NoColorOption = Annotated[
    bool, typer.Option("--no-color", help="Print no colours. [env NO_COLOR]", rich_help_panel=CONNECTION_PANEL)
]
FormatOption = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="FORMAT",
        help=f"{', '.join(FORMATS)}. wide shows more columns, and cuts nothing to fit the terminal. "
        "jsonpath='{.name}' takes parts of the JSON, as kubectl does.",
        rich_help_panel=OUTPUT_PANEL,
        autocompletion=formats,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Same as -o json.", rich_help_panel=OUTPUT_PANEL)]
YamlOption = Annotated[bool, typer.Option("--yaml", help="Same as -o yaml.", rich_help_panel=OUTPUT_PANEL)]
ColumnsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--columns",
        metavar="A,B",
        help="Show only these columns. Repeatable.",
        rich_help_panel=OUTPUT_PANEL,
        autocompletion=several_columns,
    ),
]
NoHeadersOption = Annotated[
    bool, typer.Option("--no-headers", help="Leave out the heading line.", rich_help_panel=OUTPUT_PANEL)
]
UtcOption = Annotated[
    bool, typer.Option("--utc", help="Show exact times (RFC 3339, UTC) instead of ages.", rich_help_panel=OUTPUT_PANEL)
]
LocalOption = Annotated[
    bool, typer.Option("--local", help="Show exact times in this machine's zone.", rich_help_panel=OUTPUT_PANEL)
]
ZoneOption = Annotated[
    str | None,
    typer.Option(
        "--tz",
        metavar="ZONE",
        help="Show exact times in this zone, such as Europe/Paris.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
DefaultColumnsOption = Annotated[
    bool,
    typer.Option(
        "--set-default-columns",
        help="Show the columns of --columns in every table of this command from now on; without --columns, the usual "
        "ones again.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
SortOption = Annotated[
    str | None,
    typer.Option(
        "--sort",
        metavar="A,-B",
        help="Put the rows in the order of these columns; - before one: the greatest first.",
        rich_help_panel=OUTPUT_PANEL,
        autocompletion=several_columns,
    ),
]

_CONNECTION: Final[dict[str, Any]] = {
    "context": ContextOption,
    "url": UrlOption,
    "token": TokenOption,
    "ca_file": CaFileOption,
    "debug": DebugOption,
    "quiet": QuietOption,
    "no_color": NoColorOption,
}
_OUTPUT: Final[dict[str, Any]] = {
    "output": FormatOption,
    "json": JsonOption,
    "yaml": YamlOption,
    "columns": ColumnsOption,
    "no_headers": NoHeadersOption,
    "utc": UtcOption,
    "local": LocalOption,
    "tz": ZoneOption,
}
_TABLE: Final[dict[str, Any]] = {"sort": SortOption, "set_default_columns": DefaultColumnsOption}
_TABLES: Final = frozenset({"list", "pods", "history", "top", "usage"})
"""Commands that show a table above all; what shows one thing, follows or acts has neither order nor usual columns."""
_PAST: Final[dict[str, Any]] = {
    "as_of": Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="MOMENT",
            help="Show it as it was then: a time (2030-01-31T12:00:00Z), a time ago (2h, 7d) or a sequence of the log.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ]
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The shared flags, as given before or after the command's name."""

    context: str | None = None
    url: str | None = None
    token: str | None = None
    ca_file: str | None = None
    debug: bool = False
    quiet: bool = False
    no_color: bool = False

    def over(self, outer: "Connection") -> "Connection":
        """These flags; where one was not given, the outer one."""
        return Connection(
            context=self.context or outer.context,
            url=self.url or outer.url,
            token=self.token or outer.token,
            ca_file=self.ca_file or outer.ca_file,
            debug=self.debug or outer.debug,
            quiet=self.quiet or outer.quiet,
            no_color=self.no_color or outer.no_color,
        )


@dataclass(kw_only=True)
class Session:
    """What a command works with."""

    connection: Connection = field(default_factory=Connection)
    out: Output
    as_of: str | None = None
    """The moment of the past that --as-of asks for, as the API takes it."""
    typed: dict[str, str] = field(default_factory=dict[str, str])
    """Of a command with many flags: by parameter, the long name that was typed."""

    @cached_property
    def contexts(self) -> Contexts:
        return _contexts_or_problem(lambda: read_contexts(config_file(os.environ)))

    @cached_property
    def target(self) -> Target:
        """Which Muster. Its URL may be empty: `api` insists on one."""
        flags = self.connection
        return _contexts_or_problem(
            lambda: resolve(
                self.contexts,
                os.environ,
                context=flags.context,
                url=flags.url,
                token=flags.token,
                ca_file=flags.ca_file,
            )
        )

    @property
    def context(self) -> Context:
        """The context's own entry, for what is to be written back."""
        return self.contexts.contexts.get(self.target.name, Context())

    @cached_property
    def token(self) -> str:
        """What shows the API who asks; empty where there is none. Raises Problem where the keyring does not give it."""
        target = self.target
        if not target.in_keyring:
            return target.token
        from muster.cli.keyrings import KeyringError, kept

        todo = "`muster login` keeps a token; MUSTER_TOKEN goes before it"
        try:
            token = kept(target.name, self.context.url)
        except KeyringError as error:
            why = (f"that of context {target.name} is in the keyring, and {error}",)
            raise Problem("there is no token", why=why, todo=todo, code=ExitCode.DENIED) from error
        if not token:
            why = (f"the keyring has that of context {target.name} no more",)
            raise Problem("there is no token", why=why, todo=todo, code=ExitCode.DENIED)
        return token

    @cached_property
    def api(self) -> "Api":
        from muster.cli.client import Api

        if not self.target.url:
            raise Problem(
                "no Muster to talk to",
                why=("there is no context, and MUSTER_URL is not set",),
                todo="start one here with `muster up`, or name one with `muster context add NAME --url URL`",
                code=ExitCode.UNREACHABLE,
            )
        api = Api(self.target.url, self.token, ca_file=self.target.ca_file, talk=self.out.talk, as_of=self.as_of)
        if self.as_of:
            self.out.now = api.moment
        return api

    def patience(self, timeout: str | None = None, *, waits: bool = True, flags: str = "--watch") -> "Patience":
        """With a server that is away while this command waits; `timeout`: of --timeout. Raises Problem (usage)."""
        from muster.cli.options import timeout_seconds
        from muster.cli.outage import Patience

        if waits and self.as_of:
            raise usage(f"{flags} and --as-of cannot be used together", todo="the past does not change: leave one out")

        seconds = timeout_seconds(timeout, waits=waits, flags=flags)
        return Patience(self.api, self.out, timeout_seconds=seconds)

    def close(self) -> None:
        """Ends the connection, where there was need of one."""
        if "api" in self.__dict__:
            self.api.close()

    def project(self, given: str | None) -> str | None:
        """The project of the flag, else the default one."""
        return given or self.target.project or None


def command(
    app: typer.Typer,
    name: str,
    *,
    examples: str,
    output: bool = True,
    past: bool = False,
    takes_words: bool = False,
    draws: bool = False,
    more: "Callable[[], list[TyperOption]] | None" = None,
    columns: "Sequence[Column] | Callable[[], Sequence[Column]]" = (),
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Declares a command on `app`: the function gets a Session first, then its own options by name. One of
    them that is named as a shared option takes its place.

    It answers an exit code; None is 0. The first paragraph of its docstring is the summary.

    Args:
        output: whether it has data to print, and so -o and its relatives.
        past: whether it can show the past, and so takes --as-of.
        draws: whether it has a picture for -o png.
        takes_words: whether words may follow `--`; the function gets them as `words`.
        more: makes further options when the command runs or explains itself; the function gets their values as
            further keywords.
        columns: of what it prints, for a shell to complete, --sort and --set-default-columns.
    """

    def declare(function: Callable[..., int | None]) -> Callable[..., int | None]:
        own = list(inspect.signature(function).parameters.values())[1:]
        # A flag that means something else to this command is said before the command's name: `muster --context …`.
        named = {one.name for one in own}
        flags = _CONNECTION | (_OUTPUT if output else {}) | (_PAST if past else {})
        flags |= _TABLE if columns and name in _TABLES else {}
        shared = {key: flag for key, flag in flags.items() if key not in named}

        def run(ctx: typer.Context, **given: Any) -> None:
            session = _session(ctx, given, shared, columns)
            if session.out.style.format is Format.PNG and not draws:
                raise usage(f"`{ctx.command_path}` draws no picture", todo="`muster usage -o png > usage.png` does")
            own_values = {key: value for key, value in given.items() if key not in shared}
            if takes_words:
                own_values["words"] = ctx.meta.get(_WORDS, [])
            if more is not None:
                own_values |= ctx.meta[_FIELDS]
                session.typed = ctx.meta[_TYPED]
            try:
                code = function(session, **own_values)
            finally:
                session.close()
            if code:
                raise typer.Exit(int(code))

        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
            *(one.replace(kind=keyword) for one in own if one.kind is not inspect.Parameter.VAR_KEYWORD),
            *(_shared_parameter(key, annotation) for key, annotation in shared.items()),
        ]
        run.__signature__ = inspect.Signature(parameters)
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__doc__, run.__name__ = function.__doc__, function.__name__
        run.examples = examples  # pyright: ignore[reportFunctionMemberAccess]
        run.columns = columns  # pyright: ignore[reportFunctionMemberAccess]
        run.takes_words = takes_words  # pyright: ignore[reportFunctionMemberAccess]
        run.more = more  # pyright: ignore[reportFunctionMemberAccess]
        app.command(name, cls=MusterCommand)(run)
        return function

    return declare


def group(noun: str) -> typer.Typer:
    """A noun with its verbs; its summary stands in NOUNS."""
    return typer.Typer(cls=MusterGroup, help=NOUNS[noun].summary, no_args_is_help=True, rich_markup_mode=None)


class MusterCommand(TyperCommand):
    """Help in the order people read: what it does, examples, then options by topic. Values without pydantic."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        _convert_all(self.params)

    @cached_property
    def more(self) -> "list[TyperOption]":
        """Options that are made only now: what they are made of takes time to import."""
        make = getattr(self.callback, "more", None)
        return [] if make is None else make()

    def get_params(self, ctx: "ClickContext") -> "list[Parameter]":
        return [*super().get_params(ctx), *self.more]

    def invoke(self, ctx: "ClickContext") -> Any:
        ctx.meta[_FIELDS] = {name: ctx.params.pop(name) for option in self.more if (name := option.name)}
        return super().invoke(ctx)

    def get_help_option(self, ctx: "ClickContext") -> "TyperOption | None":
        return _light(super().get_help_option(ctx))

    def parse_args(self, ctx: "ClickContext", args: list[str]) -> list[str]:
        # The parser would mix the words after -- with the arguments before it; an optional NAME makes that ambiguous.
        if getattr(self.callback, "takes_words", False) and "--" in args:
            at = args.index("--")
            ctx.meta[_WORDS] = args[at + 1 :]
            args = args[:at]
        if any("--wait-for" in one.opts for one in self.params):
            # --wait takes no value, so that a word behind it is an argument; with '=' it is the other flag.
            args = [f"--wait-for={one[len(_WAIT) :]}" if one.startswith(_WAIT) else one for one in args]
        if self.more:
            from muster.cli.typed import long_names

            ctx.meta[_TYPED] = long_names(self.get_params(ctx), args)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: "ClickContext") -> list[str]:
        words = ["[-- WORDS...]"] if getattr(self.callback, "takes_words", False) else []
        return [*super().collect_usage_pieces(ctx), *words]

    def format_help(self, ctx: "ClickContext", formatter: "HelpFormatter") -> None:
        self.format_help_text(ctx, formatter)
        write_examples(formatter, examples_of(self.callback))
        formatter.write_paragraph()
        self.format_usage(ctx, formatter)
        self.format_options(ctx, formatter)
        self.format_epilog(ctx, formatter)

    def format_options(self, ctx: "ClickContext", formatter: "HelpFormatter") -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
            panels.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        for title in sorted(panels, key=_panel_order):
            with formatter.section(title):
                formatter.write_dl(panels[title])


class MusterGroup(TyperGroup):
    """A noun; the root shows examples first, too."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        _convert_all(self.params)

    def get_help_option(self, ctx: "ClickContext") -> "TyperOption | None":
        return _light(super().get_help_option(ctx))

    def resolve_command(self, ctx: "ClickContext", args: list[str]) -> "tuple[str | None, Command | None, list[str]]":
        """Raises Problem for a word that is no command, with the line that was probably meant."""
        is_flag = args[0].startswith("-")
        if ctx.resilient_parsing or is_flag or self.get_command(ctx, args[0]) is not None:
            return super().resolve_command(ctx, args)
        from muster.cli.completion_data import COMMANDS
        from muster.cli.mistakes import tree_of, unknown_command

        # What stands below a noun's verbs has none of its own: `training pytorch`.
        before = ctx.command_path.split()[:2]
        raise unknown_command(before, args, tree_of(COMMANDS))

    def format_help(self, ctx: "ClickContext", formatter: "HelpFormatter") -> None:
        self.format_help_text(ctx, formatter)
        write_examples(formatter, examples_of(self.callback))
        formatter.write_paragraph()
        self.format_usage(ctx, formatter)
        self.format_commands(ctx, formatter)
        self.format_epilog(ctx, formatter)

    def format_commands(self, ctx: "ClickContext", formatter: "HelpFormatter") -> None:
        # As the library does it, but with whole sentences: they wrap.
        listed = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        shown = [(name, found) for name, found in listed if found is not None and not found.hidden]
        with formatter.section("Commands"):
            formatter.write_dl([(name, found.get_short_help_str(_SENTENCE)) for name, found in shown])


def _convert_all(parameters: "Sequence[Parameter]") -> None:
    for parameter in parameters:
        convert_lightly(cast("TyperParameter", parameter))


def _light[P](option: P) -> P:
    """The option --help is made when it is first asked for, so it is converted apart from the others."""
    if option is not None:
        convert_lightly(cast("TyperParameter", option))
    return option


def examples_of(callback: Callable[..., Any] | None) -> str:
    return str(getattr(callback, "examples", ""))


def write_examples(formatter: "HelpFormatter", examples: str) -> None:
    if not examples:
        return
    formatter.write_paragraph()
    formatter.write("Examples:\n")
    for line in examples.strip().splitlines():
        formatter.write(f"  {line.strip()}\n" if line.strip() else "\n")


def _panel_order(title: str) -> tuple[int, str]:
    """Arguments, plain options, the command's topics in their order, then what every command has."""
    known = {"Arguments": 0, "Options": 1, OUTPUT_PANEL: 8, CONNECTION_PANEL: 9}
    return known.get(title, 2), "" if title not in known else title


def _shared_parameter(name: str, annotation: Any) -> inspect.Parameter:
    default: object = None
    if annotation is FormatOption:
        default = Format.TABLE
    elif annotation.__origin__ is bool:
        default = False
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _session(
    ctx: typer.Context,
    given: dict[str, Any],
    shared: dict[str, Any],
    columns: "Sequence[Column] | Callable[[], Sequence[Column]]",
) -> Session:
    """Of the shared flags alone: a command's own may have the same names. Raises Problem (usage)."""
    outer = ctx.find_root().obj
    connection = Connection(**{key: given[key] for key in _CONNECTION if key in shared})
    connection = connection.over(outer) if isinstance(outer, Connection) else connection
    style = Style()
    if "output" in shared:
        words = ctx.command_path.removeprefix("muster ").replace("training standard", "training")
        flags = {key: given[key] for key in shared}
        style = style_of(flags, command=words, columns=lambda: columns() if callable(columns) else columns)
    style = replace(style, quiet=connection.quiet, color=not connection.no_color)
    return Session(connection=connection, out=Output(style), as_of=_as_of(given.get("as_of")))


def _as_of(given: str | None) -> str | None:
    """Raises Problem (usage) for what is no moment."""
    if given is None:
        return None
    from muster.cli.options import moment_option

    return moment_option("--as-of", given)


def _contexts_or_problem[Result](act: Callable[[], Result]) -> Result:
    try:
        return act()
    except UnknownContextError as error:
        todo = "`muster context list` shows what there is"
        raise Problem(str(error), todo=todo, code=ExitCode.NOT_FOUND) from error
    except ContextsError as error:
        raise usage(str(error), todo="`muster context list` shows what there is") from error
