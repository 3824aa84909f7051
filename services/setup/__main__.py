"""`python -m services.setup`: does its work, says what it did, and ends. With `migrate`, changes streams instead; with
`rebuild-feed`, deletes FEED, which is written again.
"""

import sys

import services.runtime.process.lean  # noqa: F401  # pyright: ignore[reportUnusedImport] (before any library)
from services.setup.program import main

sys.exit(main(sys.argv[1:]))
