"""`python -m services.scheduler`."""

import services.runtime.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from services.runtime.host import main
from services.scheduler.service import run

main("scheduler", run)
