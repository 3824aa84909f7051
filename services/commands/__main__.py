"""`python -m services.commands`."""

import services.runtime.process.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from services.commands.service import run
from services.runtime.process.host import main

main("commands", run)
