"""`GET /workloads/{id}/explain`: the scheduler's account of a workload, with what the log and the history say of it."""

from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import UNSET

from events.actors import mentioned, with_names
from events.codec import UNDECODABLE
from events.subjects import WHY
from events.why import Change, Estimate, NodeCount, Option, Place, Step, Why, WhyAsked
from events.workload.at_risk import gpu_hours_at_risk
from events.workload.lost_cluster import cluster_lost
from projections.history_query import HistoryQuery
from services.api import answers
from services.api.answers import explanation
from services.api.asking import UNREADABLE, ask_scheduler, asker
from services.api.context import MIN_SEQ, Call, read_answer, sequence_headers
from services.api.errors import ApiError
from services.api.kept import place_kept
from services.api.kinds import load_workload, newest_workload
from services.api.operations import Answer, reads
from services.api.paths import WORKLOAD
from services.runtime.nats.requests import UnansweredError

ASKED_SECONDS: Final = 2.0
"""It tries some forty plans, of some milliseconds each; where the scheduler is busy longer, the log alone answers."""

_ANSWER: Final = msgspec.json.Decoder(Why)


@reads(
    f"{WORKLOAD}/explain",
    tag="Workloads",
    summary="Get why a workload waits and what would let it start, why it runs where it does, or why it was evicted",
    query=(MIN_SEQ,),
    errors=(404,),
)
async def explain_workload(call: Call) -> Answer[answers.Explanation]:
    """Who may read the workload may ask. Workloads of projects that the asker may not read are counted, not named."""
    chain, headers = await newest_workload(call)
    state = chain.state
    found = await _asked(call, chain.version)
    eviction, fresh = await _eviction(call, chain.version)
    told = answers.Explanation(
        id=state.workload_id,
        name=state.name,
        phase=state.phase,
        phase_reason=state.reason or None,
        phase_message=await _named(call, state.message) or None,
        outcome=found.outcome,
        reason=found.reason or None,
        message=found.message or None,
        waiting_pods=found.waiting_pods,
        ahead=found.ahead,
        nodes=[*map(_nodes, found.nodes)],
        holders=[
            explanation.CapacityHolder(
                workload_id=each.workload_id,
                name=each.name,
                project_id=each.project_id,
                pods=each.pods,
                gpus=each.gpu_milli / 1000,
                cpu_cores=each.cpu_milli / 1000,
                memory_bytes=each.memory_bytes,
            )
            for each in found.holders
        ],
        other_holders=explanation.OtherHolders(
            workloads=found.others.workloads, pods=found.others.pods, gpus=found.others.gpu_milli / 1000
        ),
        kept=[*map(place_kept, found.kept)],
        keeps_its_place=None if found.own is None else place_kept(found.own),
        changes=[*map(_change, found.changes)],
        places=[*map(_place, found.places)],
        eviction=eviction,
        estimate=None if found.estimate is None else _estimate(found.estimate),
        no_estimate=found.no_estimate or None,
        work_at_risk=gpu_hours_at_risk(state, datetime.now(UTC)),
        checkpoint_at=state.checkpoint_at,
    )
    return read_answer(told, chain.version, sequence_headers(chain.version) | headers | fresh)


async def _asked(call: Call, seq: int) -> Why:
    readable = call.grants.readable_projects
    question = WhyAsked(
        workload_id=call.id,
        seq=seq,
        readable=None if readable is None else tuple(sorted(readable)),
        at=datetime.now(UTC),
        asker=asker(call),
    )
    try:
        found = await ask_scheduler(call, WHY, msgspec.json.encode(question), seconds=ASKED_SECONDS)
        # A person's name may hold what JSON escapes.
        subjects = await call.api.actors.subjects_of(mentioned(found.decode()))
        return _ANSWER.decode(with_names(found.decode(), lambda id_: msgspec.json.encode(subjects[id_]).decode()[1:-1]))
    except UnansweredError as error:
        return Why(outcome="unknown", message=str(error))
    except UNDECODABLE:
        return Why(outcome="unknown", message=UNREADABLE)


async def _eviction(call: Call, version: int) -> tuple[explanation.EvictionExplained | None, dict[str, str]]:
    """(The last one, headers as of `Call.fresh`)."""
    headers = await call.fresh(version)
    asked = HistoryQuery(types=("PodsEvicted", "ClusterLeft"), newest_first=True)
    page = await call.queries.history(call.id, asked, limit=1)
    if not page.rows:
        return None, headers
    row = page.rows[0]
    details: dict[str, Any] = row["details"]
    try:
        beneficiary = (await load_workload(call, details.get("beneficiary", ""))).state
    except ApiError:  # whoever asks may not see it
        beneficiary = None
    actors = await call.api.actors.subjects_of((row["actor_id"],))
    return explanation.EvictionExplained(
        at=row["at"],
        by=actors[row["actor_id"]],
        rule=row["reason"],
        message=details["message"] if "message" in details else _cluster_lost(details),
        pods=details["pods"] if isinstance(details["pods"], int) else len(details["pods"]),
        gpu_hours_at_risk=details.get("gpu_seconds_at_risk", 0) / 3600,
        for_workload_id=None if beneficiary is None else beneficiary.workload_id,
        for_workload=None if beneficiary is None else beneficiary.name,
    ), headers


def _cluster_lost(details: dict[str, Any]) -> str:
    since = datetime.fromisoformat(details["lost_since"])
    return cluster_lost(details["name"], since, details["seconds"], details.get("problem", ""))


async def _named(call: Call, text: str) -> str:
    """With names in the place of people's ids, as of who cordoned a node."""
    subjects = await call.api.actors.subjects_of(mentioned(text))
    return with_names(text, subjects.__getitem__)


def _estimate(estimate: Estimate) -> explanation.StartEstimate:
    return explanation.StartEstimate(
        earliest=estimate.earliest,
        latest=estimate.latest,
        latest_known=estimate.latest_known,
        measured=estimate.measured,
        typical_error_percent=round(100 * estimate.typical_error, 1),
    )


def _nodes(count: NodeCount) -> explanation.NodesCounted:
    return explanation.NodesCounted(
        pods=count.pods,
        ground=count.ground,
        nodes=count.nodes,
        message=count.message,
        cluster=count.cluster or UNSET,
    )


def _change(change: Change) -> explanation.LettingChange:
    return explanation.LettingChange(message=change.message, steps=[*map(_step, change.steps)], waits=change.waits)


def _step(step: Step) -> explanation.ChangeStep:
    ends = step.act == "end_workloads"
    valued = step.act in {"change_workload", "set_quota", "set_limit", "add_node"}
    return explanation.ChangeStep(
        act=step.act,
        field=step.field or UNSET,
        value=step.value if valued else UNSET,
        of=step.of or UNSET,
        node_pool=step.pool or UNSET,
        cluster=step.cluster or UNSET,
        workloads=list(step.workloads) if ends else UNSET,
        hidden_workloads=step.hidden if ends else UNSET,
    )


def _place(place: Place) -> explanation.PlaceExplained:
    return explanation.PlaceExplained(
        pod_set=place.pod_set,
        node=place.node,
        node_pool=place.node_pool,
        pods=place.pods,
        rank=place.rank or None,
        chosen=None if place.chosen is None else _option(place.chosen),
        others=[*map(_option, place.others)],
        refused=[*map(_nodes, place.refused)],
    )


def _option(option: Option) -> explanation.NodeOption:
    scores = [explanation.NodeScore(name=each.name, value=each.value) for each in option.scores]
    return explanation.NodeOption(node=option.node, node_pool=option.node_pool, scores=scores)
