"""The entry point of `muster`: the commands put together, and how each of them ends."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from muster.cli.exits import ExitCode, Problem
from muster.cli.nouns import COMPLETE_VARIABLE, NOUNS, root_help
from muster.cli.report import report

if TYPE_CHECKING:
    from typer import Typer
    from typer.core import TyperGroup


def main() -> None:
    """Runs the command line of this process."""
    try:
        _main(sys.argv[1:])
    except KeyboardInterrupt:
        # While modules are imported; later the library ends the command so itself.
        sys.exit(ExitCode.INTERRUPTED)


def _main(arguments: list[str]) -> None:
    if (asked := os.environ.get(COMPLETE_VARIABLE)) is not None:
        from muster.cli.complete import answer

        sys.stdout.write(answer(os.environ, asked.rpartition("_")[2]) + "\n")
        return
    if arguments in (["--help"], ["-h"]):
        # The library that reads all other arguments takes longer to import than this takes in all.
        from shutil import get_terminal_size

        sys.stdout.write(root_help(get_terminal_size().columns))
        return
    sys.exit(run(command_line(*arguments), arguments))


def command_line(*words: str) -> "TyperGroup":
    """All commands, as click groups; or only those that stand behind the words with which a line begins, as far as
    they name some, and none where the first is a mistake: to declare all takes longer than most commands.
    """
    from typer.main import get_command

    from muster.cli.root import RootGroup, root_app

    app, words = root_app(), _from_the_noun(words)
    declared = [noun for word, noun in NOUNS.items() if not words or word == words[0]]
    for module, add in dict.fromkeys((noun.module, noun.add) for noun in declared):
        getattr(import_module(f"muster.cli.{module}"), add)(app)
    _leave_out(app, words)
    built = get_command(app)
    assert isinstance(built, RootGroup)
    return built


def _from_the_noun(words: tuple[str, ...]) -> tuple[str, ...]:
    """Without the flags of the connection that stand before it; nothing where another flag does."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        from muster.cli.complete import NO_VALUE
        from muster.cli.completion_data import SHARED_FLAGS

        flag, given, _ = words[at].partition("=")
        if flag not in SHARED_FLAGS:
            return ()
        at += 1 if given or SHARED_FLAGS[flag][1] == NO_VALUE else 2
    return words[at:]


def _leave_out(app: "Typer", words: Sequence[str]) -> None:
    """Of a group, all but what its next word names; nothing where that is a flag, a mistake or another name of it."""
    if not words:
        return
    commands = [command for command in app.registered_commands if command.name == words[0]]
    groups = [group for group in app.registered_groups if group.name == words[0]]
    if commands or groups:
        app.registered_commands, app.registered_groups = commands, groups
    for group in groups:
        if group.typer_instance is not None:
            _leave_out(group.typer_instance, words[1:])


def run(commands: "TyperGroup", arguments: list[str]) -> int:
    """Runs one command and answers its exit code; every way to end passes here."""
    debug = "--debug" in arguments
    from typer import Abort
    from typer._click.exceptions import ClickException, NoArgsIsHelpError

    try:
        code: object = commands.main(args=arguments, prog_name="muster", standalone_mode=False)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except NoArgsIsHelpError as asked:
        asked.show()
        return asked.exit_code
    except ClickException as error:
        from muster.cli.mistakes import problem_of

        problem = problem_of(error, arguments)
        report(problem, sys.stderr, debug=debug)
        return problem.code
    except Abort:
        sys.stderr.write("muster: nothing was done\n")
        return ExitCode.FAILURE
    except Problem as problem:
        report(problem, sys.stderr, debug=debug)
        return problem.code
    except Exception as error:
        if debug:
            raise
        sys.stderr.write(f"muster: internal error: {type(error).__name__}: {error}\n")
        sys.stderr.write("  → run it again with --debug for the stack trace, and report it\n")
        return ExitCode.FAILURE
    return code if isinstance(code, int) else ExitCode.OK


if __name__ == "__main__":
    main()
