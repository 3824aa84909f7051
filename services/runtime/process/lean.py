"""What programs that run services import first: it keeps out two libraries that nobody here uses.

nats-py imports aiohttp for websockets, structlog and httpx import rich for terminals, wherever these are installed, as
they are for Kubernetes and for the command line: a third of what a process cost until it served (docs/adr/0039).
Afterwards aiohttp can be had: the agent of a Kubernetes cluster needs it.
"""

import sys

# Who imported it already goes on with it: its modules import more of it later.
if "rich" not in sys.modules:
    sys.modules["rich"] = None  # pyright: ignore[reportArgumentType] (as if it were not installed)
if "aiohttp" not in sys.modules:
    sys.modules["aiohttp"] = None  # pyright: ignore[reportArgumentType]
    import nats.aio.client  # noqa: F401  # pyright: ignore[reportUnusedImport]

    del sys.modules["aiohttp"]
