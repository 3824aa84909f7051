"""`muster workspace`: submit, and what it shares with `muster workload`."""

import typer

from muster.cli.command import group
from muster.cli.connections import add_connections
from muster.cli.describe import add_describe
from muster.cli.resubmit import add_resubmit
from muster.cli.submit import Submitted, add_submit
from muster.cli.ways import add_ways
from muster.cli.workload import add_list, add_logs
from muster.cli.workload_acts import add_acts

WORKSPACE = Submitted(
    noun="workspace",
    kind="Workspace",
    summary="Submit a workspace.",
    examples="""
        muster workspace submit notebook -i jupyter/scipy-notebook -g 1
        muster workspace submit shell -i python:3.13 --command -- python -m http.server 8888
        muster workspace submit spare -i jupyter/scipy-notebook -g 2 --allow-over-quota
        """,
)


def add_workspace(root: typer.Typer) -> None:
    """Declares `muster workspace` with its verbs."""
    app = group("workspace")
    add_submit(app, WORKSPACE)
    add_resubmit(app, "workspace")
    add_list(app, "workspace", kind="Workspace")
    add_describe(app, "workspace")
    add_logs(app, "workspace")
    add_connections(app, "workspace")
    add_acts(app, "workspace", kind="Workspace")
    add_ways(app, "workspace")
    root.add_typer(app, name="workspace")
