"""Several services in one process, for `muster up`: `python -m muster.embedded.process control|workers`.

    control   answers requests: api, ownership, commands
    workers   works on the log: scheduler, cluster_sync, agent, auto_deletion, projector

so that planning never delays a request. It imports everything first and then waits for a line on its standard input:
its supervisor starts it together with the servers, and lets it go when they are ready.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from services.runtime.host import Run, configure_logging, run_process
from services.runtime.settings import Settings

GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "control": ("api", "ownership", "commands"),
    "workers": ("scheduler", "cluster_sync", "agent", "auto_deletion", "projector"),
}


def load(group: str) -> dict[str, Run]:
    """The services of a group, imported."""
    return {name: importlib.import_module(f"services.{name}.service").run for name in GROUPS[group]}


def main(group: str) -> int:
    """Import, wait for the word, run until told to stop; the exit code."""
    settings = Settings()
    configure_logging(settings.log_level)
    services = load(group)
    if not sys.stdin.readline():
        return 0  # the supervisor is gone
    return run_process(services, settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
