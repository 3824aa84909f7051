"""`muster` without its commands: what stands before the first word."""

from typing import TYPE_CHECKING

import typer

from muster.cli.command import (
    CaFileOption,
    Connection,
    ContextOption,
    DebugOption,
    MusterGroup,
    NoColorOption,
    QuietOption,
    TokenOption,
    UrlOption,
)
from muster.cli.nouns import EPILOG, EXAMPLES, SUMMARY, WIDEST, root_help

if TYPE_CHECKING:
    from typer._click.core import Context as ClickContext
    from typer._click.formatting import HelpFormatter


class RootGroup(MusterGroup):
    """All first words, whether their commands are loaded or not."""

    def format_help(self, ctx: "ClickContext", formatter: "HelpFormatter") -> None:  # noqa: ARG002 - the library's
        formatter.write(root_help(formatter.width + 2))


def root_app() -> typer.Typer:
    """The application, without a command."""
    app = typer.Typer(
        cls=RootGroup,
        add_completion=False,
        rich_markup_mode=None,
        no_args_is_help=True,
        epilog=EPILOG,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST},
    )

    def root(
        ctx: typer.Context,
        *,
        context: ContextOption = None,
        url: UrlOption = None,
        token: TokenOption = None,
        ca_file: CaFileOption = None,
        debug: DebugOption = False,
        quiet: QuietOption = False,
        no_color: NoColorOption = False,
    ) -> None:
        ctx.obj = Connection(
            context=context, url=url, token=token, ca_file=ca_file, debug=debug, quiet=quiet, no_color=no_color
        )

    root.__doc__ = SUMMARY
    root.examples = EXAMPLES  # pyright: ignore[reportFunctionMemberAccess]
    app.callback()(root)
    return app
