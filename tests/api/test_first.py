"""Whoever submits first after a start waits for nothing that others do not wait for.

Requirement rows: S014; docs/adr/0140.
"""

import pytest

from events.fields.node import tree
from events.workload.kinds import KINDS
from services.api.check import check_creation
from services.api.first import make_first

pytestmark = pytest.mark.anyio


async def test_what_requests_are_held_to_is_made_for_every_kind() -> None:
    tree.cache_clear()
    await make_first()
    made = tree.cache_info().misses
    assert made >= len(KINDS)
    for kind in KINDS.values():
        check_creation(kind.creation, {})
    assert tree.cache_info().misses == made, "the first request makes no tree"
