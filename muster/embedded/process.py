"""Several services in one process, for `muster up`: `python -m muster.embedded.process control|workers`.

    control   answers requests
    workers   works on the log

so that planning never delays a request; which service runs where stands in the table of services. It imports
everything first and then waits for a line on its standard input: its supervisor starts it together with the servers,
and lets it go when they are ready. `set up` has `control` do the work of `python -m services.setup` first: a program of
its own would import the same once more (docs/adr/0039).
"""

import importlib
import sys
from typing import Final, cast

import services.runtime.process.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from muster.embedded.datadir import DataDir
from muster.embedded.tables import look
from services.runtime.process.host import Run, configure_logging, log, run_loop, run_process
from services.runtime.process.settings import Settings
from services.runtime.services import Group, of_group

SET_UP: Final = "set up"
"""What the supervisor says to `control` instead of `go`, until that was ready once: a later start has nothing to wait
for, and Postgres may be away."""
NOT_BEGUN: Final = 2
"""The exit code where that line never came."""
SETUP_FAILED: Final = 3
"""The exit code then: what setup met does not pass by itself, since it waits for what does."""


def load(group: Group) -> dict[str, Run]:
    """The services of a group, imported."""
    return {name: importlib.import_module(f"services.{name}.service").run for name in of_group(group)}


def main(group: Group) -> int:
    """Import, wait for the word, run until told to stop; the exit code."""
    settings = Settings()
    configure_logging(settings.log_level)
    services = load(group)
    setup = importlib.import_module("services.setup.program") if group == "control" else None
    word = sys.stdin.readline().strip()
    if not word:
        # The supervisor is gone, or somebody started this by hand, who is to be told why it does nothing.
        log.error("not_begun", reason="standard input ended before a line came: write `go` to it", group=group)
        return NOT_BEGUN
    if setup is not None and word == SET_UP:
        if setup.main(()):
            return SETUP_FAILED
        if settings.data_dir is not None:
            run_loop(look(settings.database_url, DataDir(root=settings.data_dir)))
    return run_process(services, settings)


if __name__ == "__main__":
    sys.exit(main(cast("Group", sys.argv[1])))
