"""`python -m services.projector`: the projector as a process of its own."""

import services.runtime.process.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from services.projector.service import run
from services.runtime.process.host import main

main("projector", run)
