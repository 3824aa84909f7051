"""`python -m services.projector`: the projector as a process of its own."""

import services.runtime.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from services.projector.service import run
from services.runtime.host import main

main("projector", run)
