"""`python -m services.feed`: the service as a process of its own."""

import services.runtime.process.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from services.feed.service import run
from services.runtime.process.host import main

main("feed", run)
