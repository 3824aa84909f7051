"""`muster up`: everything on this machine."""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from muster.cli.command import Session, command


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_PortOption = Annotated[
    int | None,
    typer.Option("--port", metavar="N", min=0, max=65535, help="Port of the API; 0 takes a free one. Default: 8080."),
]
_GpusOption = Annotated[
    int | None,
    typer.Option(
        "--gpus",
        metavar="N",
        min=0,
        max=64,
        help="Number of stand-in GPUs on the cluster `local`, if this machine has no GPU. Default: 0.",
    ),
]


def add_up(app: typer.Typer) -> None:
    """Declares `muster up`: the supervisor takes this process's place, so that it does not carry the command line."""

    @command(
        app,
        "up",
        output=False,
        examples="""
        muster up
        muster up --gpus 2 --port 9000
        muster up --demo --data-dir /tmp/muster
        """,
    )
    def up(
        session: Session,
        *,
        data_dir: Annotated[
            Path | None,
            typer.Option(
                "--data-dir",
                metavar="DIR",
                help="Folder for its data. Default: muster in XDG_DATA_HOME. [env MUSTER_DATA_DIR]",
            ),
        ] = None,
        port: _PortOption = None,
        gpus: _GpusOption = None,
        demo: Annotated[
            bool, typer.Option("--demo", help="Add a simulated cluster of 32 nodes × 8 GPUs, and some workloads.")
        ] = False,
        accept_shared_pods: Annotated[
            bool,
            typer.Option(
                "--accept-shared-pods",
                help="Allow roles for other people even if this machine cannot keep pods away from Muster's keys.",
            ),
        ] = False,
        context: Annotated[
            str | None,
            typer.Option(
                "--context", metavar="NAME", help="Context to save this Muster and its token under. Default: local."
            ),
        ] = None,
        log_level: Annotated[
            LogLevel | None,
            typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error. Default: info."),
        ] = None,
    ) -> None:
        """Run everything on this machine, for development, until Ctrl-C."""
        given = {
            "--data-dir": data_dir,
            "--port": port,
            "--gpus": gpus,
            "--context": context,
            "--log-level": log_level,
        }
        options = [f"{flag}={value}" for flag, value in given.items() if value is not None]
        options += ["--demo"] if demo else []
        options += ["--accept-shared-pods"] if accept_shared_pods else []
        session.out.stdout.flush()
        # Our own interpreter, with arguments that were checked; no shell is wanted, and nothing from this folder (-P).
        os.execv(sys.executable, [sys.executable, "-P", "-m", "muster.embedded.up", *options])  # noqa: S606
