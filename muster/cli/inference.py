"""`muster inference`: submit, and what it shares with `muster workload`."""

import typer

from muster.cli.command import group
from muster.cli.connections import add_connections
from muster.cli.describe import add_describe
from muster.cli.resubmit import add_resubmit
from muster.cli.submit import Submitted, add_submit
from muster.cli.ways import add_ways
from muster.cli.workload import add_list, add_logs
from muster.cli.workload_acts import add_acts

INFERENCE = Submitted(
    noun="inference",
    kind="Inference",
    summary="Submit an inference.",
    examples="""
        muster inference submit chat -i vllm/vllm-openai -g 1 --serving-port 8000 -- --model Qwen/Qwen2.5-0.5B-Instruct
        muster inference submit busy -i my/server --serving-port 80 --max-replicas 8 --metric latency
        muster inference submit rare -i my/server --serving-port 80 --scale-to-zero-retention 5m
        """,
)


def add_inference(root: typer.Typer) -> None:
    """Declares `muster inference` with its verbs."""
    app = group("inference")
    add_submit(app, INFERENCE)
    add_resubmit(app, "inference")
    add_list(app, "inference", kind="Inference")
    add_describe(app, "inference")
    add_logs(app, "inference")
    add_connections(app, "inference")
    add_acts(app, "inference", kind="Inference")
    add_ways(app, "inference")
    root.add_typer(app, name="inference")
