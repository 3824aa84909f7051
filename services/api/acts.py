"""Acts that every kind of workload has: one on many, each id a command of its own, and the transfer of one."""

import asyncio
import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET
from msgspec.structs import replace

from events.actors import MAX_SUBJECT_LENGTH, STRANGER, fit_account, fit_subject, is_account
from events.aggregate import Chain
from events.authorize import Permission, authorize, heir_refusal
from events.commit import Actor
from events.decision import Context
from events.fields.declare import Body, Limits
from events.fields.values import Uuid
from events.ids import item_command_id, key_of_id
from events.refusal import Refusal
from events.workload.commands import DeleteWorkload, ResumeWorkload, SuspendWorkload, TransferWorkload, UndoAct
from events.workload.decide import decide
from events.workload.state import Workload
from services.api.answers import HttpResponse, WorkloadActOutcome, WorkloadActOutcomes
from services.api.context import Call
from services.api.errors import ApiError, bad_request, not_found, refused
from services.api.issues import Issue, shown
from services.api.kinds import act, load_workload
from services.api.operations import Answer, changes
from services.api.paths import ACTS, TRANSFER
from services.api.places import find_cluster

MOST_IDS: Final = 100
AT_ONCE: Final = 10
"""Commands of one request on their way at the same time."""

type Act = Literal["delete", "suspend", "resume", "transfer"]
_COMMANDS: Final[dict[str, Any]] = {
    "delete": DeleteWorkload,
    "suspend": SuspendWorkload,
    "resume": ResumeWorkload,
}
_DONE: Final = {
    "delete": "is being deleted",
    "suspend": "is being suspended",
    "resume": "is being resumed",
    "transfer": "has the new owner",
}
_ALREADY: Final = {
    "delete": "is deleted already",
    "suspend": "is suspended already",
    "resume": "is not suspended",
    "transfer": "has that owner already",
}


class WorkloadActs(Body, frozen=True, kw_only=True):
    """The body of POST /api/v1/workloads/batch."""

    action: Act
    """What is done to each workload: delete, suspend, resume or transfer."""
    ids: Annotated[tuple[Uuid, ...], Limits(shortest=1, longest=MOST_IDS)]
    """Ids of the workloads, each once; at most 100."""
    owner: Annotated[str, Limits(shortest=1, longest=MAX_SUBJECT_LENGTH)] | None = None
    """With transfer, and only then: subject of who is to own them."""
    dry_run: bool = False
    """Whether only to tell what would become of each: from rights, ownership and its state. What only the decision
    itself knows, such as a budget that is used up, is not looked at.
    """


@changes(
    "POST",
    ACTS,
    tag="Workloads",
    summary="Delete, suspend, resume or transfer up to 100 workloads of any kinds. The answer says what became of each",
    body=WorkloadActs,
    example={"action": "suspend", "ids": ["7d1c2b3a-0000-8000-8000-000000000000"], "dryRun": True},
    errors=(403,),
)
async def act_on_workloads(call: Call) -> Answer[WorkloadActOutcomes]:
    """Each is done once, however often the request comes with the same Idempotency-Key."""
    given = call.fields(WorkloadActs, _act_rules)
    if call.expected_version() is not None:
        call.faults.append(Issue(field="If-Match", details="several workloads have no version; leave it out"))
    if call.faults:
        raise bad_request([])
    batch_id = call.command_id()
    places = asyncio.Semaphore(AT_ONCE)

    async def one(index: int, workload_id: str) -> WorkloadActOutcome:
        async with places:
            try:
                if key_of_id(workload_id) is None:
                    raise not_found(f"there is no workload {workload_id}")
                command = _command(given, workload_id)
                if given.dry_run:
                    changed = await rehearsed(call, command)
                else:
                    changed = (await call.send(command, command_id=item_command_id(batch_id, index))).changed
            except ApiError as error:
                details = UNSET if error.details is None else error.details
                return WorkloadActOutcome(id=workload_id, code=error.status, message=error.message, details=details)
        words = _DONE if changed else _ALREADY
        told = f"workload {workload_id} {words[given.action]}"
        return WorkloadActOutcome(id=workload_id, code=202, message=told, changed=changed)

    outcomes = await asyncio.gather(*(one(index, id_.lower()) for index, id_ in enumerate(given.ids)))
    answer = WorkloadActOutcomes(
        dry_run=given.dry_run,
        changed=sum(outcome.changed for outcome in outcomes),
        refused=sum(outcome.code != _ACCEPTED for outcome in outcomes),
        items=[*outcomes],
    )
    return Answer(answer, status=202)


_ACCEPTED: Final = 202
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


type _Command = DeleteWorkload | SuspendWorkload | ResumeWorkload | TransferWorkload


def _command(given: WorkloadActs, workload_id: str) -> _Command:
    if given.action == "transfer":
        return TransferWorkload(workload_id=workload_id, subject=given.owner or "")
    return _COMMANDS[given.action](workload_id=workload_id)


def _act_rules(given: WorkloadActs) -> list[Issue]:
    issues: list[Issue] = []
    if given.action == "transfer" and given.owner is None:
        issues.append(Issue(field="owner", details="says who is to own them; give it with transfer", rule="required"))
    elif given.action != "transfer" and given.owner is not None:
        issues.append(Issue(field="owner", details=f"goes with transfer, got {given.action}; leave it out"))
    elif given.owner is not None:
        issues += _owner_rules(given.owner)
    return [*issues, *_ids_fit(given)]


def _owner_rules(owner: str) -> list[Issue]:
    if fit_subject(owner) or fit_account(owner):
        return []
    return [Issue(field="owner", details=f"must be a subject that a token can have, got {shown(owner)}")]


def _ids_fit(given: WorkloadActs) -> list[Issue]:
    seen: set[str] = set()
    issues: list[Issue] = []
    for index, workload_id in enumerate(given.ids):
        if _UUID.fullmatch(workload_id) is None:
            issues.append(Issue(field=f"ids[{index}]", details=f"must be a UUID, got {shown(workload_id)}"))
        if workload_id.lower() in seen:
            issues.append(Issue(field=f"ids[{index}]", details="is given twice; leave one out"))
        seen.add(workload_id.lower())
    return issues


async def rehearsed(call: Call, command: _Command | UndoAct) -> bool:
    """Whether it would change anything. Raises ApiError where it would be refused."""
    chain: Chain[Workload] = await load_workload(call, command.workload_id)
    state = chain.state
    if refusal := authorize(call.grants, Permission.OPERATE, state.project_id):
        raise refused(refusal, creation=False)
    cluster = await find_cluster(call, state.cluster_id)
    context = Context(
        now=datetime.now(UTC),
        actor=Actor(id=call.actor),
        command_id="",
        version=chain.version,
        protected=cluster is None or cluster.ownership_protection,
        override=call.grants.allows(Permission.OVERRIDE_OWNERSHIP, state.project_id),
    )
    if isinstance(command, TransferWorkload):
        command = replace(command, actor=_actor_of(call, command.subject))
    decision = decide(command, state, context)
    if isinstance(decision, Refusal):
        raise refused(decision, creation=False)
    if decision and isinstance(command, TransferWorkload):
        heir = call.api.directory.grants(command.actor)
        if refusal := heir_refusal(command.subject, heir, state.project_id):
            raise refused(refusal, creation=False)
    return bool(decision)


def _actor_of(call: Call, subject: str) -> str:
    """Id of a person with tokens of the caller's issuer, or of an account, as far as it is known here."""
    if is_account(subject):
        return subject
    actors, issuer = call.api.actors, call.identity.iss
    known = (id_ for id_, name in actors.subjects.items() if name == subject and actors.person(id_).issuer == issuer)
    return next(known, STRANGER)


class WorkloadTransfer(Body, frozen=True, kw_only=True):
    """The body of POST /api/v1/workloads/{workloadId}/transfer."""

    owner: Annotated[str, Limits(shortest=1, longest=MAX_SUBJECT_LENGTH)]
    """Subject of who is to own it, or id of a service account: somebody who may submit workloads in its project."""


@changes(
    "POST",
    TRANSFER,
    tag="Workloads",
    summary="Give a workload to another owner. Only its owner, or an administrator, may",
    body=WorkloadTransfer,
    example={"owner": "bob"},
    errors=(403, 404),
)
async def transfer_workload(call: Call) -> Answer[HttpResponse]:
    """What it runs and its past stay as they are. A repeated request changes nothing."""
    given = call.fields(WorkloadTransfer, lambda body: _owner_rules(body.owner))
    command = TransferWorkload(workload_id=call.id, subject=given.owner)
    return await act(call, command, "has the new owner", "has that owner already")
