"""`python -m services.api`: one api as a process of its own."""

import services.runtime.process.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from services.api.service import run
from services.runtime.process.host import main

main("api", run)
