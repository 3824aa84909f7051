"""Some services as one process that waits for no supervisor: `python -m tests.kubernetes.services api commands`."""

import importlib
import sys

from services.runtime.process.host import configure_logging, run_process
from services.runtime.process.settings import Settings


def main(*names: str) -> int:
    settings = Settings()
    configure_logging(settings.log_level)
    return run_process({name: importlib.import_module(f"services.{name}.service").run for name in names}, settings)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
