"""`muster training`: submit, and what it shares with `muster workload`."""

from typing import TYPE_CHECKING

import typer

from muster.cli.command import MusterGroup
from muster.cli.describe import add_describe
from muster.cli.distributed import add_frameworks
from muster.cli.nouns import NOUNS
from muster.cli.resubmit import add_resubmit
from muster.cli.submit import Submitted, add_submit
from muster.cli.ways import add_ways
from muster.cli.workload import add_list, add_logs
from muster.cli.workload_acts import add_acts

if TYPE_CHECKING:
    from typer._click.core import Command, Context

STANDARD = Submitted(
    noun="training",
    kind="Training",
    summary="Submit a training.",
    examples="""
        muster training submit hello -i python:3.13 -- python -c 'print(6 * 7)'
        muster training submit half -i pytorch -g 1 --gpu-request-type portion --gpu-portion-request 0.5 -- train.py
        muster training submit sweep -i python:3.13 --runs 5 --parallelism 2 -e LR=0.1 --command -- python sweep.py
        muster training submit mine -i python:3.13 --code . -- python train.py
        muster training submit --name-prefix nightly -f training.yaml --wait --timeout 2h
        muster training submit hello -f - --dry-run=client -o json < training.yaml
        """,
)


class TrainingGroup(MusterGroup):
    """`muster training standard VERB` is `muster training VERB`, as Run:ai has it."""

    def get_command(self, ctx: "Context", cmd_name: str) -> "Command | None":
        return self if cmd_name == "standard" else super().get_command(ctx, cmd_name)


def add_training(root: typer.Typer) -> None:
    """Declares `muster training` with its verbs."""
    app = typer.Typer(
        cls=TrainingGroup,
        help=f"{NOUNS['training'].summary} `training standard` is the same.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    add_submit(app, STANDARD)
    add_resubmit(app, "training")
    add_list(app, "training", kind="Training")
    add_describe(app, "training")
    add_logs(app, "training")
    add_acts(app, "training", kind="Training")
    add_ways(app, "training")
    add_frameworks(app)
    root.add_typer(app, name="training")
