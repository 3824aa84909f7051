"""Runs the benchmarks: `python -m benchmarks [--short] [NAME…]`. A missed goal is printed, not an error.

`kubernetes` needs what `make kube-tools` builds; where that is not there, it is left out unless it is named.
"""

import argparse
import importlib
import os
import sys

from benchmarks.report import Report
from development.kubernetes.simulated.programs import ToolsMissingError, find_tools
from development.limits import UNLIMITED

BENCHMARKS = (
    "store",
    "http",
    "request",
    "batch",
    "projector",
    "feed",
    "listeners",
    "memory",
    "width",
    "scheduler",
    "fairness",
    "bindings",
    "peers",
    "placement",
    "restart",
    "backup",
    "kubernetes",
)
"""In the order in which they run; one module each."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--short", action="store_true", help="a quick look: small counts, rough figures")
    parser.add_argument("names", nargs="*", help=f"which of {', '.join(BENCHMARKS)} (default: all)")
    arguments = parser.parse_args()
    names = arguments.names or list(BENCHMARKS)
    if "kubernetes" in names and (missing := _missing_tools()):
        if arguments.names:
            sys.exit(missing)
        print(f"kubernetes is left out: {missing}")
        names.remove("kubernetes")
    print(f"{os.cpu_count()} cores; goals are for two cores with everything on them")
    print("limits on use, raised for one user who sends all: " + ", ".join(f"{k} {v:,}" for k, v in UNLIMITED.items()))
    print(f"load at the start: {os.getloadavg()[0]:.1f}\n")
    report = Report()
    for name in names:
        importlib.import_module(f"benchmarks.{name}").run(report, short=arguments.short)
    report.keep()
    missed = [figure.name for figure in report.figures if not figure.met]
    print(f"\n{len(report.figures)} figures, {len(missed)} missed: out/bench.json")


def _missing_tools() -> str:
    """What is missing for a Kubernetes control plane, and what to do; empty where all is there."""
    try:
        find_tools()
    except ToolsMissingError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
