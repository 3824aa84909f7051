"""`python -m services.ownership`."""

import services.runtime.process.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from services.ownership.service import run
from services.runtime.process.host import main

main("ownership", run)
