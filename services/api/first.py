"""What the first request of each kind would have to wait for: the trees of their fields, and the types that they are
held to. Made once a process serves, a kind at a time, so that whoever comes first finds it there.
"""

import asyncio
from typing import Any, Final

from events.workload.kinds import KINDS
from services.api.check import FaultyCreation, check_creation
from services.api.explain import explained

_ID: Final = "00000000-0000-4000-8000-000000000001"


async def make_first() -> None:
    """Whatever asks meanwhile waits for one kind at most."""
    for name, kind in KINDS.items():
        checked = check_creation(kind.creation, _body(name))
        assert not isinstance(checked, FaultyCreation), checked.issues
        spec, beside = checked.order()
        explained(kind, kind.with_defaults(spec), beside, None)
        await asyncio.sleep(0)


def _body(kind: str) -> dict[str, Any]:
    """The least that a creation of a kind says."""
    needed: dict[str, dict[str, Any]] = {
        "Distributed": {"distributedFramework": "PyTorch", "numWorkers": 1},
        "Inference": {"servingPort": {"container": 8000}},
    }
    spec = {"image": "a", **needed.get(kind, {})}
    return {"name": "a", "projectId": _ID, "clusterId": _ID, "spec": spec}
