"""`python -m services.auto_deletion`: the service as a process of its own."""

import services.runtime.process.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from services.auto_deletion.service import run
from services.runtime.process.host import main

main("auto_deletion", run)
