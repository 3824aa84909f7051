"""`python -m services.ownership`."""

import services.runtime.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from services.ownership.service import run
from services.runtime.host import main

main("ownership", run)
