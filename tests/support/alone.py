"""`muster up` without one of the services of its workers, which then runs in a process of its own, as a container does:
killing that one takes nothing else with it.

    python -m tests.support.alone scheduler …   `muster up …` without the scheduler

It starts itself as its workers, too: `python -m tests.support.alone scheduler muster.embedded.process workers`.
"""

import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import override

from muster.embedded import process
from muster.embedded.datadir import DataDir
from muster.embedded.processes import PYTHON, Spec
from muster.embedded.up import Options, Up, main
from services.runtime.process.host import Run
from services.runtime.services import Group

WORKERS = ("muster.embedded.process", "workers")


class Without(Up):
    """`muster up`, without a service."""

    def __init__(self, options: Options, data: DataDir, *, service: str) -> None:
        super().__init__(options, data)
        self.service = service

    @override
    def _group(self, name: str, ready: Callable[[int], Awaitable[bool]]) -> Spec:
        spec = super()._group(name, ready)
        if name != "workers":
            return spec
        return replace(spec, argv=[*PYTHON, "-m", "tests.support.alone", self.service, *WORKERS])


def workers_without(service: str) -> int:
    """The workers' process, as of `muster.embedded.process`."""
    load = process.load

    def others(group: Group) -> dict[str, Run]:
        return {name: run for name, run in load(group).items() if name != service}

    process.load = others
    return process.main("workers")


if __name__ == "__main__":
    left_out, rest = sys.argv[1], sys.argv[2:]
    if tuple(rest) == WORKERS:
        sys.exit(workers_without(left_out))
    sys.exit(main(rest, lambda options, data: Without(options, data, service=left_out)))
