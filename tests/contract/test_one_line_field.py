"""A field is one line of a section, and one of the pod template where pods feel it: everything else follows.

A copy of the program gets such a field by two edits; it is then seen all the way through, in a process of its own.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("events", "projections", "services", "muster", "tools")

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
from events.workload.state import WorkloadCreated
from muster.cli import reference, training_flags
from services.api.application import OPERATIONS
from services.api.check import FaultyTraining, check_training
from services.api.openapi import document

def body(**spec):
    return {"name": "n", "projectId": "p", "clusterId": "c", "spec": {"image": "i", **spec}}

# request: its type and bounds, absent and null, and the flag that sets it
faulty = check_training(body(restartNote="x" * 251))
assert isinstance(faulty, FaultyTraining) and [i.field for i in faulty.issues] == ["spec.restartNote"], faulty
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
print("seen")
"""


def test_a_field_that_reaches_the_pod_is_two_edits(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    section, kind = tmp_path / SECTION, tmp_path / KIND
    declared = section.read_text().replace("import Int32,", "import ShortText, Int32,")
    section.write_text(declared.rstrip() + "\n" + DECLARED)
    assert TEMPLATE[0] in kind.read_text()
    kind.write_text(kind.read_text().replace(*TEMPLATE))
    ran = subprocess.run(
        [sys.executable, "-c", SEEN],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert (ran.stdout, ran.returncode) == ("seen\n", 0), ran.stderr
