"""`muster completion`: the scripts that have a shell ask for completions (muster.cli.complete)."""

from typing import Annotated

import typer

from muster.cli.command import Session, command
from muster.cli.complete import SHELLS, shells
from muster.cli.exits import usage
from muster.cli.nouns import COMPLETE_VARIABLE


def add_completion(app: typer.Typer) -> None:
    """Declares `muster completion`."""

    @command(
        app,
        "completion",
        output=False,
        examples="""
        source <(muster completion bash)                      # this shell
        muster completion bash > ~/.local/share/bash-completion/completions/muster
        muster completion zsh > ~/.zfunc/_muster
        muster completion fish > ~/.config/fish/completions/muster.fish
        """,
    )
    def completion(
        session: Session,
        shell: Annotated[str, typer.Argument(help="Your shell: bash, zsh or fish.", autocompletion=shells)],
    ) -> None:
        """Print a shell script that completes commands, flags and names."""
        # The only maker of these scripts; the library's own option for it would stand in every help.
        from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage]

        if shell not in SHELLS:
            raise usage(f"no completion for the shell {shell!r}", todo="shells: " + ", ".join(SHELLS))
        script = get_completion_script(prog_name="muster", complete_var=COMPLETE_VARIABLE, shell=shell)
        session.out.write(script + "\n")
