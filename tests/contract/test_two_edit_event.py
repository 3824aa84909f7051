"""An event of a workload is told in two files: what it is and changes, in `events/workload/life.py`, and its sentence.
Storing, decoding, history, OpenAPI and what the API shows follow.

A copy of the program gets such an event; it is then seen all the way through, in a process of its own. Who decides it
is a command's part.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.edited_copy import SECONDS, Change, edit

pytestmark = pytest.mark.timeout(SECONDS + 60)

LIFE = "events/workload/life.py"
DECLARED = (
    "class WorkloadSuspended(Event, ",
    """class WorkloadPraised(Event, frozen=True, kw_only=True):
    \"\"\"Somebody is pleased with it.\"\"\"

    words: str
    \"\"\"What they said.\"\"\"


class WorkloadSuspended(Event, """,
)
LISTED = ("    | WorkloadSuspended\n", "    | WorkloadPraised\n    | WorkloadSuspended\n")
FOLDED = (
    "        case WorkloadSuspended():\n",
    """        case WorkloadPraised():
            edit.state = replace(state, message=event.words)
        case WorkloadSuspended():
""",
)
SENTENCES = "projections/workloads/sentences.py"
IMPORTED = ("    WorkloadSuspended,\n", "    WorkloadPraised,\n    WorkloadSuspended,\n")
TOLD = (
    "        case WorkloadSuspended():\n",
    """        case WorkloadPraised():
            return f"praised by {_who(actor)}: {event.words}"
        case WorkloadSuspended():
""",
)

SEEN = """
import msgspec
from events.aggregate import WORKLOAD, draft
from events.codec import decode_event, encode_event
from events.workload.life import WorkloadPraised
from projections.fold import fold
from services.api.application import OPERATIONS
from services.api.openapi import document
from services.api.shown_events import shown_event
from tests.scheduler.world import ACTOR, World

# stored, and read again
praised = WorkloadPraised(words="well done")
record = encode_event(praised)
assert (record.type, record.version) == ("WorkloadPraised", 1)
assert decode_event(record) == praised

# folded into its state by whoever follows the log
world = World()
world.cluster()
world.project()
key = world.submit("mine")
world.append(
    draft(WORKLOAD, key, world.chain("workload", key), (praised,), command_id="c", actor=ACTOR, now=world.now)
)
assert world.workload(key).message == "well done"

# a row of the history, with a sentence
_, changes = fold({}, world.commits)
row = changes.history[-1]
assert (row.type, row.message, row.details) == ("WorkloadPraised", "praised by ann: well done", '{"words":"well done"}')

# what others are shown, and its description
assert b'"type":"WorkloadPraised"' in msgspec.json.encode(shown_event(praised))
described = document(OPERATIONS)["components"]["schemas"]
assert described["WorkloadPraisedEvent"]["description"] == "Somebody is pleased with it."
"""


def _tell(folder: Path) -> None:
    edit(folder / LIFE, DECLARED, LISTED, FOLDED)
    edit(folder / SENTENCES, IMPORTED, TOLD)


AN_EVENT = Change(make=_tell, seen=SEEN)


def test_an_event_is_told_in_two_files(seen: Mapping[str, str]) -> None:
    assert not seen["an event"], seen["an event"]
