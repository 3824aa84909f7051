"""Files that a disk has damaged, of streams whose content is made again: a server that stands before them goes on
without them. What must not be lost is never touched.
"""

import re
import shutil
from pathlib import Path
from typing import Final

from services.runtime.nats.declared import DERIVED_STREAMS, store_account

_DAMAGED: Final = re.compile(r"stream '\S+ > (\S+?)' write error: .*corrupt")
"""As NATS says that it cannot read what it would write behind."""


def damaged_stream(why: str) -> str:
    """The stream whose files are damaged, by what a server says of its health; empty where it says nothing of that."""
    found = _DAMAGED.search(why)
    return found[1] if found else ""


def can_go(stream: str) -> bool:
    """Whether what it holds is made again."""
    return stream in DERIVED_STREAMS


def throw_away(store: Path, stream: str) -> None:
    """Take its files away, below the folder of a server that is down."""
    for folder in list(store.rglob(f"{store_account(stream)}/streams/{stream}")):
        shutil.rmtree(folder, ignore_errors=True)
