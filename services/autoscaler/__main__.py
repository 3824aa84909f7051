"""`python -m services.autoscaler`: the service as a process of its own."""

import services.runtime.process.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from services.autoscaler.service import run
from services.runtime.process.host import main

main("autoscaler", run)
