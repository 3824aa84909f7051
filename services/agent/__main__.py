"""`python -m services.agent`."""

import services.runtime.process.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from services.agent.service import run
from services.runtime.process.host import main

main("agent", run)
