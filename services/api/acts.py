"""One act on many workloads: each id is a command of its own, with its own answer."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET

from events.aggregate import Chain
from events.authorize import Permission, authorize
from events.commit import Actor
from events.decision import Context
from events.fields.declare import Body, Limits
from events.fields.values import Uuid
from events.ids import item_command_id, key_of_id
from events.refusal import Refusal
from events.workload.commands import DeleteWorkload, ResumeWorkload, SuspendWorkload
from events.workload.decide import decide
from events.workload.state import Workload
from services.api.answers import WorkloadActOutcome, WorkloadActOutcomes
from services.api.context import Call
from services.api.errors import ApiError, bad_request, not_found, refused
from services.api.issues import Issue
from services.api.kinds import load_workload
from services.api.operations import Answer, changes
from services.api.paths import ACTS
from services.api.places import find_cluster

MOST_IDS: Final = 100
AT_ONCE: Final = 10
"""Commands of one request on their way at the same time."""

type Act = Literal["delete", "suspend", "resume"]
_COMMANDS: Final[dict[str, Any]] = {
    "delete": DeleteWorkload,
    "suspend": SuspendWorkload,
    "resume": ResumeWorkload,
}
_DONE: Final = {"delete": "is being deleted", "suspend": "is being suspended", "resume": "is being resumed"}
_ALREADY: Final = {"delete": "is deleted already", "suspend": "is suspended already", "resume": "is not suspended"}


class WorkloadActs(Body, frozen=True, kw_only=True):
    """The body of POST /api/v1/workloads/batch."""

    action: Act
    """What is done to each workload: delete, suspend or resume."""
    ids: Annotated[tuple[Uuid, ...], Limits(shortest=1, longest=MOST_IDS)]
    """Ids of the workloads, each once; at most 100."""
    dry_run: bool = False
    """Whether only to tell what would become of each: from rights, ownership and its state. What only the decision
    itself knows, such as a budget that is used up, is not looked at.
    """


@changes(
    "POST",
    ACTS,
    tag="Workloads",
    summary="Delete, suspend or resume up to 100 workloads of any kinds. The answer says what became of each",
    body=WorkloadActs,
    example={"action": "suspend", "ids": ["7d1c2b3a-0000-8000-8000-000000000000"], "dryRun": True},
    errors=(403,),
)
async def act_on_workloads(call: Call) -> Answer[WorkloadActOutcomes]:
    """Each is done once, however often the request comes with the same Idempotency-Key."""
    given = call.fields(WorkloadActs, _each_once)
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
                if given.dry_run:
                    changed = await _rehearsed(call, given.action, workload_id)
                else:
                    command = _COMMANDS[given.action](workload_id=workload_id)
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


def _each_once(given: WorkloadActs) -> list[Issue]:
    seen: set[str] = set()
    issues: list[Issue] = []
    for index, workload_id in enumerate(given.ids):
        if workload_id.lower() in seen:
            issues.append(Issue(field=f"ids[{index}]", details="is given twice; leave one out"))
        seen.add(workload_id.lower())
    return issues


async def _rehearsed(call: Call, action: Act, workload_id: str) -> bool:
    """Whether it would change anything. Raises ApiError where it would be refused."""
    chain: Chain[Workload] = await load_workload(call, workload_id)
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
    decision = decide(_COMMANDS[action](workload_id=workload_id), state, context)
    if isinstance(decision, Refusal):
        raise refused(decision, creation=False)
    return bool(decision)
