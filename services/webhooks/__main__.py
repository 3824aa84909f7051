"""`python -m services.webhooks`: the service as a process of its own."""

import services.runtime.process.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from services.runtime.process.host import main
from services.webhooks.service import run

main("webhooks", run)
