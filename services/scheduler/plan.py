"""The plan: which pods go where, which reservations are over, and why the rest waits. Pure: the same snapshot always
gives the same plan, and a plan that was carried out leaves nothing to plan.

What is decided, and in which order, is the policy's (`policy/registry.py`). It is decided again on what comes of it,
until that changes nothing: so who waits in the end has no right to anything that this plan gives.
"""

from typing import Final

from services.scheduler.planning import Policy
from services.scheduler.policy.registry import POLICY
from services.scheduler.rounds import Rounds
from services.scheduler.snapshot import Plan, Snapshot
from services.scheduler.sound import sound

MAX_PODS_PER_PLAN: Final = 2_000
"""Then what was planned is committed first: about half a second, in which the world moves on."""
MAX_UPDATES_PER_PLAN: Final = 500
"""Two batches: ten thousand workloads that wait must not keep one from starting."""


def plan(snapshot: Snapshot, *, policy: Policy = POLICY, max_pods: int = MAX_PODS_PER_PLAN) -> Plan:
    rounds = Rounds(snapshot, policy, max_pods=max_pods, max_updates=MAX_UPDATES_PER_PLAN)
    return sound(snapshot, rounds.plan(), rounds.kept_for)
