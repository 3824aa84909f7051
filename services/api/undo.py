"""Taking back what was done to a workload, by its history. There the act is looked up; whether what it did still
stands, the workload itself decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, get_args

import msgspec
from msgspec import UNSET

from events.aggregate import WORKLOAD
from events.authorize import Permission, authorize
from events.fields.declare import Body, Limits
from events.ids import key_of_id
from events.phases import DesiredPhase
from events.refusal import Refusal
from events.workload.changes import changeable
from events.workload.commands import Changeable, UndoAct
from events.workload.fields.storage import StorageSpec
from events.workload.life import ActUndone, UndoableAct, WorkloadDeletionRequested
from events.workload.state import Workload
from projections.history_query import HistoryQuery
from projections.values import MAX_BIGINT
from services.api.acts import rehearsed
from services.api.answers import ChangedValues, Undo, UndoneAct
from services.api.answers.undo import ChangedMark, VolumePlaces
from services.api.context import Call, sequence_headers
from services.api.errors import bad_request, refused, unavailable
from services.api.issues import Issue
from services.api.kinds import load_workload
from services.api.operations import Answer, changes
from services.api.paths import UNDO
from services.api.policies_in_force import forbidden_changes
from services.api.shown_rows import history_record, people_in

PAGE: Final = 500
MOST_ACTS: Final = 10_000
"""Of one workload that are looked at: people suspend and change one some dozen times."""
_DELETED: Final = WorkloadDeletionRequested.__name__
_UNDONE: Final = ActUndone.__name__
_UNDOABLE: Final[tuple[str, ...]] = get_args(UndoableAct)
_TOGGLES: Final = frozenset({"WorkloadSuspended", "WorkloadResumed"})
_TYPES: Final = (*_UNDOABLE, _DELETED, _UNDONE)
_ACTIONS: Final[dict[str, Any]] = {
    "WorkloadSuspended": "resume",
    "WorkloadResumed": "suspend",
    "WorkloadChanged": "change",
    _DELETED: "resubmit",
}
_SAID: Final = {
    "resume": "it is being resumed",
    "suspend": "it is being suspended",
    "change": "it is as it was before the change",
    "resubmit": "submit it again as a new workload: what is deleted stays so",
}

type Row = Mapping[Any, Any]


class WorkloadUndo(Body, frozen=True, kw_only=True):
    """The body of POST /api/v1/workloads/{workloadId}/undo."""

    sequence: Annotated[int, Limits(least=1, most=MAX_BIGINT)] | None = None
    """Sequence of the act, as the history gives it. With dryRun it may be left out: then the newest act is meant that
    stands.
    """
    dry_run: bool = False
    """Whether only to tell what would be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acts:
    """What was done to one workload, oldest first, and what was taken back of it. Pure."""

    rows: Sequence[Row]
    """Of its history: acts, undoings and its deletion."""

    def undoings(self) -> dict[int, list[int]]:
        """By the sequence of an act, those of the commits that took it back."""
        found: dict[int, list[int]] = {}
        for row in self.rows:
            if row["type"] == _UNDONE:
                found.setdefault(int(row["details"]["sequence"]), []).append(row["seq"])
        return found

    def undone(self) -> set[int]:
        """Sequences of what was taken back, and stands so: what took it back was not itself taken back."""
        undoings, gone = self.undoings(), set[int]()
        # Whatever takes back comes later, so newest first.
        for seq in sorted(undoings, reverse=True):
            if any(by not in gone for by in undoings[seq]):
                gone.add(seq)
        return gone

    def standing(self) -> list[Row]:
        """Acts that stand, oldest first; those that take back others are none of them."""
        gone = self.undone() | {row["seq"] for row in self.rows if row["type"] == _UNDONE}
        return [row for row in self.rows if row["seq"] not in gone]

    def at(self, sequence: int) -> Row | None:
        """The act of one commit."""
        return next((row for row in self.rows if row["seq"] == sequence and row["type"] != _UNDONE), None)

    def overtaking(self, act: Row) -> Row | None:
        """The newest later act that stands and touched the same thing."""
        later = (row for row in reversed(self.standing()) if row["seq"] > act["seq"])
        return next((row for row in later if _touches(row) & _touches(act)), None)


def _touches(row: Row) -> frozenset[str]:
    if row["type"] == "WorkloadChanged":
        return frozenset(row["details"]) - {"delete_at"}
    return frozenset({"whether it runs"})


@changes(
    "POST",
    UNDO,
    tag="Workloads",
    summary="Take back a suspension, resumption or change of a workload, or tell what that would do",
    body=WorkloadUndo,
    example={"dryRun": True},
    errors=(403, 404),
)
async def undo_act(call: Call) -> Answer[Undo]:
    """It is refused where a later act changed the same thing, and tells which. What was undone before stays so."""
    given = call.fields(WorkloadUndo, _undo_rules)
    chain = await load_workload(call, call.id)
    state = chain.state
    if refusal := authorize(call.grants, Permission.OPERATE, state.project_id):
        raise refused(refusal, creation=False)
    acts = await _acts_of(call, chain.version)
    act = _chosen(acts, given.sequence, state)
    told = await _told(call, act)
    action = _ACTIONS[act["type"]]
    if act["seq"] in acts.undone():
        answer = Undo(dry_run=given.dry_run, undoes=told, action=action, changed=False, message="it was undone before")
        return Answer(answer, status=202, headers=sequence_headers(chain.version))
    if action == "resubmit":
        if not given.dry_run:
            message = f"workload {call.id} is deleted, and stays so; submit it again as a new workload"
            raise refused(Refusal(code="workload_deleted", message=message), creation=False)
        answer = Undo(dry_run=True, undoes=told, action=action, changed=True, message=_SAID[action])
        return Answer(answer, status=202, headers=sequence_headers(chain.version))
    await _not_overtaken(call, acts, act)
    command = await _command(call, act, state)
    if given.dry_run:
        seq, changed = chain.version, await rehearsed(call, command)
    else:
        reply = await call.send(command)
        seq, changed = reply.seq, reply.changed
    answer = Undo(
        dry_run=given.dry_run,
        undoes=told,
        action=action,
        changed=changed,
        now=_values(command.made),
        then=_values(command.before),
        message=_SAID[action] if changed else "it is like that already",
    )
    return Answer(answer, status=202, headers=sequence_headers(seq))


def _undo_rules(given: WorkloadUndo) -> list[Issue]:
    if given.sequence is not None or given.dry_run:
        return []
    details = "says which act is taken back; ask with dryRun first, or take it from the history"
    return [Issue(field="sequence", details=details, rule="required")]


async def _acts_of(call: Call, version: int) -> Acts:
    """Raises 409 where nobody can look at all of them."""
    if await call.fresh(version):
        raise unavailable("the history is behind the log, so what can be undone is not known now; try again")
    rows: list[Row] = []
    asked = HistoryQuery(types=_TYPES, end=version)
    while len(rows) < MOST_ACTS:
        page = await call.queries.history(call.id, asked, offset=len(rows), limit=PAGE)
        rows += page.rows
        if page.next is None:
            return Acts(rows=rows)
    raise _nothing(f"more than {MOST_ACTS} acts of this workload are in its history; set it to what you want")


def _chosen(acts: Acts, sequence: int | None, state: Workload) -> Row:
    """Raises 409 where there is no such act."""
    if sequence is None:
        standing = acts.standing()
        if not standing:
            raise _nothing("nobody suspended, resumed or changed this workload, or all of it was undone")
        return standing[-1]
    act = acts.at(sequence)
    if act is None:
        kinds = "a suspension, a resumption or a change"
        raise _nothing(f"sequence {sequence} is no act of this workload that can be undone: {kinds}")
    if state.desired is DesiredPhase.DELETED and act["type"] != _DELETED:
        message = f"workload {state.workload_id} is deleted, so nothing of it can be undone but that; submit it again"
        raise refused(Refusal(code="workload_deleted", message=message), creation=False)
    return act


async def _told(call: Call, act: Row) -> UndoneAct:
    await call.api.actors.subjects_of(people_in(act))
    record = history_record(act, call.api.actors.person)
    return UndoneAct(sequence=act["seq"], at=act["at"], type=act["type"], message=record.message)


async def _not_overtaken(call: Call, acts: Acts, act: Row) -> None:
    """Raises 409."""
    later = acts.overtaking(act)
    if later is None:
        return
    told = await _told(call, later)
    message = (
        f"commit {act['seq']} cannot be undone alone, since a later act changed the same thing: {told.message} "
        f"(sequence {told.sequence}); undo that one first"
    )
    raise refused(Refusal(code="act_overtaken", message=message), creation=False)


async def _command(call: Call, act: Row, state: Workload) -> UndoAct:
    """Raises 400 where policies forbid what was before."""
    sequence = act["seq"]
    if act["type"] in _TOGGLES:
        return UndoAct(workload_id=call.id, sequence=sequence, act=act["type"], attempt=state.attempt)
    made = msgspec.convert({name: act["details"][name] for name in _touches(act)}, Changeable)
    key = key_of_id(call.id) or ""
    was = (await call.api.store.load(WORKLOAD, key, sequence - 1)).state
    before = Changeable(**{name: changeable(name, was.spec, was.distributed) for name in _touches(act)})
    back = {name: getattr(before, name) for name in _touches(act)}
    if issues := await forbidden_changes(call, state, back):
        raise bad_request([replace(issue, field="sequence") for issue in issues])
    return UndoAct(workload_id=call.id, sequence=sequence, act=act["type"], made=made, before=before)


def _values(of: Changeable) -> ChangedValues:
    def marks(given: Sequence[Any] | None) -> Any:
        return UNSET if given is None else [ChangedMark(name=one.name, value=one.value) for one in given]

    seconds = of.auto_deletion_time_after_completion_seconds
    return ChangedValues(
        priority_class=UNSET if of.priority_class is None else of.priority_class,
        auto_deletion_time_after_completion_seconds=UNSET if seconds is None else seconds,
        labels=marks(of.labels),
        annotations=marks(of.annotations),
        storage=UNSET if of.storage is None else _places(of.storage),
        master_storage=UNSET if of.master_storage is None else _places(of.master_storage),
    )


def _places(storage: StorageSpec) -> VolumePlaces:
    return VolumePlaces(
        pvc=[one.path or "" for one in storage.pvc],
        secret_volume=[one.mount_path or "" for one in storage.secret_volume],
    )


def _nothing(message: str) -> Exception:
    return refused(Refusal(code="nothing_to_undo", message=message), creation=False)
