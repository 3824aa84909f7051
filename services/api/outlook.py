"""Where a workload would run that is evaluated, as the scheduler says it now."""

from datetime import UTC, datetime
from typing import Final

import msgspec

from events.codec import UNDECODABLE
from events.subjects import WHAT_IF
from events.what_if import WhatIf, WhatIfAsked
from events.workload.spec import Distributed, Inference, beside_with_defaults
from services.api.answers.evaluation import Outlook, WouldEnd, WouldRun
from services.api.asking import UNREADABLE, ask_scheduler, asker
from services.api.context import Call
from services.api.kept import place_kept
from services.api.kinds import Examined, named_cluster
from services.runtime.nats.requests import UnansweredError

ASKED_SECONDS: Final = 2.0
"""A plan takes some milliseconds; where the scheduler is busy longer, an evaluation does not wait for it."""
MOST_BYTES: Final = 900_000
"""Of a question: what the server takes as one message."""

_ANSWER: Final = msgspec.json.Decoder(WhatIf)


async def outlook(call: Call, of: Examined) -> Outlook:
    """Args: of, a request that would be accepted."""
    kind, asked = of.kind, of.checked
    spec, beside = asked.order()
    beside = beside_with_defaults(beside)
    question = msgspec.json.encode(
        WhatIfAsked(
            kind=kind.name,
            name=asked.name,
            project_id=asked.project_id,
            cluster_id=named_cluster(asked),
            among=of.among,
            spec=kind.with_defaults(spec),
            distributed=beside if isinstance(beside, Distributed) else None,
            inference=beside if isinstance(beside, Inference) else None,
            at=datetime.now(UTC),
            asker=asker(call),
        )
    )
    if len(question) > MOST_BYTES:
        return _unknown("it is too large to be asked about; submit it, and look at its phase")
    try:
        found = _ANSWER.decode(await ask_scheduler(call, WHAT_IF, question, seconds=ASKED_SECONDS))
    except UnansweredError as error:
        return _unknown(f"{error}, or submit it")
    except UNDECODABLE:
        return _unknown(UNREADABLE)
    return Outlook(
        outcome=found.outcome,
        placed=[
            WouldRun(
                pod_set=one.pod_set,
                cluster=one.cluster,
                node=one.node,
                node_pool=one.node_pool,
                pods=one.pods,
                gpus=one.gpu_milli / 1000,
            )
            for one in found.placed
        ],
        more_nodes=found.more,
        waiting_pods=found.waiting_pods,
        reason=found.reason or None,
        message=found.message or None,
        evicted=[
            WouldEnd(workload_id=one.workload_id, name=one.name, pods=one.pods, rule=one.rule) for one in found.evicted
        ],
        evicted_pods_elsewhere=found.evicted_elsewhere,
        kept=[*map(place_kept, found.kept)],
    )


def _unknown(why: str) -> Outlook:
    return Outlook(
        outcome="unknown",
        placed=[],
        more_nodes=0,
        waiting_pods=0,
        reason=None,
        message=why,
        evicted=[],
        evicted_pods_elsewhere=0,
        kept=[],
    )
