"""`python -m services.cluster_sync`."""

from services.cluster_sync.service import run
from services.runtime.host import main

if __name__ == "__main__":
    main("cluster_sync", run)
