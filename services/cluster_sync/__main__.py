"""`python -m services.cluster_sync`."""

import services.runtime.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from services.cluster_sync.service import run
from services.runtime.host import main

if __name__ == "__main__":
    main("cluster_sync", run)
