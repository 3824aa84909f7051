"""`python -m services.commands`."""

import services.runtime.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from services.commands.service import run
from services.runtime.host import main

main("commands", run)
