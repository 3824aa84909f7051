"""A field is one line of a section, and one of the pod template where pods feel it: everything else follows. A field
that steers the scheduler is one line of a section, one of the pod request, and its rule: a module and a line.

A copy of the program gets such a field by these edits; it is then seen all the way through, in a process of its own.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.edited_copy import SECONDS, Change, edit

pytestmark = pytest.mark.timeout(SECONDS + 60)

SECTION = "events/workload/fields/lifetime.py"
DECLARED = '''
    restart_note: Annotated[
        ShortText, About(rows="S999", unit="words", flag="--restart-note", aliases=("-r",))
    ] = "none"
    """What operators should know before they start it again. Default: none."""
'''
KIND = "events/workload/kinds/training.py"
TEMPLATE = ("annotations={", 'annotations={"restart-note": spec.restart_note} | {')

SEEN = """
from datetime import UTC, datetime
import msgspec
from events.codec import decode_event, encode_event
from events.fields.node import tree
from events.workload.fields.creation import TrainingCreation
from events.workload.kinds import KINDS
from events.workload.spec import with_defaults
from events.workload.life import WorkloadCreated
from muster.cli import reference, training_flags
from services.api.application import OPERATIONS
from services.api.check import FaultyCreation, check_training
from services.api.openapi import document

def body(**spec):
    return {"name": "n", "projectId": "p", "clusterId": "c", "spec": {"image": "i", **spec}}

# request: its type and bounds, absent and null, and the flag that sets it
faulty = check_training(body(restartNote="x" * 251))
assert isinstance(faulty, FaultyCreation) and [i.field for i in faulty.issues] == ["spec.restartNote"], faulty
for absent in (body(), body(restartNote=None)):
    assert check_training(absent).spec.restart_note == "none"
request = body()
training_flags.set_fields(request, {"restart_note": "call Ada"})
spec = check_training(request).spec
assert spec.restart_note == "call Ada"

# event: stored, and read again, also from one that was stored before there was such a field
made = WorkloadCreated(workload_id="w", name="n", requested_name="n", kind="Training", project_id="p", cluster_id="c",
                       owner="a", at=datetime(2026, 1, 1, tzinfo=UTC), spec=with_defaults(spec))
record = encode_event(made)
assert b'"restartNote":"call Ada"' in bytes(record.data)
assert decode_event(record) == made
old = msgspec.structs.replace(record, data=msgspec.Raw(bytes(record.data).replace(b'"restartNote":"call Ada",', b"")))
assert decode_event(old).spec.restart_note == "none"

# OpenAPI, help and page
schema = document(OPERATIONS)["components"]["schemas"]["TrainingSpec"]["properties"]["restartNote"]
assert schema["maxLength"] == 250 and schema["x-muster"]["flag"] == "--restart-note"
assert schema["description"].startswith("What operators should know")
assert "| `--restart-note`, `-r` `TEXT` | What operators should know" in reference.reference_page()
from tools.reference import api_page
assert "`spec.restartNote`" in api_page()

# pods
(pod_set,) = KINDS["Training"].pod_sets(made.spec)
assert pod_set.template.annotations["restart-note"] == "call Ada"
"""

COMPUTE = "events/workload/fields/compute.py"
ASKED = (
    "    gpu_devices_request: Annotated[",
    """    spare_cores: Annotated[NaturalInt32, About(rows="S999", unit="cores", flag="--spare-cores")] = 0
    \"\"\"CPU cores that must stay free on its node. Default: none.\"\"\"
    gpu_devices_request: Annotated[""",
)
REQUEST = "events/workload/spec.py"
IN_REQUEST = ("    gpu_devices: int = 0\n", "    gpu_devices: int = 0\n    spare_cores: int = 0\n")
TURNED = ("    return PodRequest(\n", "    return PodRequest(\n        spare_cores=compute.spare_cores,\n")
RULE = "services/scheduler/policy/filters/spare_cores.py"
RULED = '''"""A node keeps as many cores free as its pods want to have spared."""

from typing import Final

from services.scheduler.policy.rules import Check, Filter
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans


def full(view: View) -> Booleans:
    asked = view.request
    return view.room.cpu[view.rows] < asked.cpu_milli + asked.spare_cores * 1000


FILTER: Final = Filter(
    name="spare_cores",
    asks=lambda request: request.spare_cores > 0,
    full=Check(refuses=full, words=lambda view: f"without {view.request.spare_cores} cores to spare"),
)
'''
REGISTRY = "services/scheduler/policy/registry.py"
IMPORTED = ("    pods,\n", "    pods,\n    spare_cores,\n")
REGISTERED = ("        cpu.FILTER,\n", "        cpu.FILTER,\n        spare_cores.FILTER,\n")

STEERED = """
from muster.cli import reference, training_flags
from services.api.check import check_training
from tests.scheduler.world import World

# request, flag, help
request = {"name": "n", "projectId": "p", "clusterId": "c", "spec": {"image": "i"}}
training_flags.set_fields(request, {"cpu_core_request": "1", "spare_cores": "2"})
compute = check_training(request).spec.compute
assert compute.spare_cores == 2
assert "| `--spare-cores` `N` | CPU cores that must stay free" in reference.reference_page()

# the log and the scheduler: where it binds a pod, and why a workload waits
world = World()
world.cluster()
world.project()
world.node("small", cpu_milli=2_000)
asks = {"cpu_core_request": compute.cpu_core_request}
waits = world.submit("waits", spare_cores=compute.spare_cores, **asks)
world.settle()
assert world.places(waits) == {}
assert "1 without 2 cores to spare" in world.workload(waits).message, world.workload(waits).message
world.node("large", cpu_milli=8_000)
goes = world.submit("goes", **asks)
world.settle()
assert world.places(waits)[0][0] == "large"
assert world.places(goes)[0][0] == "small", "who wants nothing spared goes where the least is left"
"""


def _declare(folder: Path) -> None:
    section = folder / SECTION
    declared = section.read_text().replace("import Int32,", "import ShortText, Int32,")
    section.write_text(declared.rstrip() + "\n" + DECLARED)
    edit(folder / KIND, TEMPLATE)


def _steer(folder: Path) -> None:
    edit(folder / COMPUTE, ASKED)
    edit(folder / REQUEST, IN_REQUEST, TURNED)
    (folder / RULE).write_text(RULED)
    edit(folder / REGISTRY, IMPORTED, REGISTERED)


OF_THE_POD = Change(make=_declare, seen=SEEN)
OF_THE_SCHEDULER = Change(make=_steer, seen=STEERED)


def test_a_field_that_reaches_the_pod_is_two_edits(seen: Mapping[str, str]) -> None:
    assert not seen["a field of the pod"], seen["a field of the pod"]


def test_a_field_that_steers_the_scheduler_is_two_edits_beside_its_rule(seen: Mapping[str, str]) -> None:
    assert not seen["a field of the scheduler"], seen["a field of the scheduler"]
