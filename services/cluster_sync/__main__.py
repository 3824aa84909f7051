"""`python -m services.cluster_sync`."""

import services.runtime.process.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from services.cluster_sync.service import run
from services.runtime.process.host import main

if __name__ == "__main__":
    main("cluster_sync", run)
