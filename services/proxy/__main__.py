"""`python -m services.proxy`: the service as a process of its own."""

import services.runtime.process.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from services.proxy.service import run
from services.runtime.process.host import main

main("proxy", run)
