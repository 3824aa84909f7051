"""`python -m services.subscriptions`: the service as a process of its own."""

import services.runtime.process.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from services.runtime.process.host import main
from services.subscriptions.service import run

main("subscriptions", run)
