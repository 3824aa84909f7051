"""`python -m services.scheduler`."""

import services.runtime.process.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from services.runtime.process.host import main
from services.scheduler.service import run

main("scheduler", run)
