"""The operations that can be asked for anything."""

from typing import Final

from services.api.application import OPERATIONS

WITHOUT_END: Final = "stream_events"
"""Has tests of its own."""
OPERATION_IDS: Final = tuple(one.id for one in OPERATIONS if one.id != WITHOUT_END)
