"""What a difference tells of projects, clusters and nodes: every event of theirs is thought of."""

from datetime import UTC, datetime
from typing import get_args

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from events.asset import AssetEvent
from events.budgets import BudgetEvent, BudgetSet, BudgetWarned
from events.cluster import ClusterEvent
from events.node import NodeChanged, NodeEvent, NodeFacts
from events.project import ProjectEvent
from services.api.happenings import sentence
from tests.support.any_events import can_be_read
from tests.support.draws import draws
from tests.support.fuzz import of_struct

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SILENT = {"PodsReserved", "ReservationsReleased"}
"""Of nodes: their workloads tell."""
OF_QUOTAS = {
    "ProjectCreated",
    "ProjectChanged",
    "ProjectDeleted",
    "ProjectMoved",
    "TimeLimitsSet",
    "StartWindowsSet",
    *(kind.__name__ for kind in get_args(BudgetEvent)),
}


@pytest.mark.parametrize(
    "kind", [*get_args(ClusterEvent), *get_args(NodeEvent), *get_args(ProjectEvent), *get_args(AssetEvent)]
)
@given(data=st.data())
@settings(max_examples=draws(10))
def test_each_event_has_a_sentence_or_is_not_told(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    told = kind not in get_args(ProjectEvent) or kind.__name__ in OF_QUOTAS
    assert (sentence(data.draw(of_struct(kind, {}).filter(can_be_read))) is not None) == (
        told and kind.__name__ not in SILENT
    )


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (BudgetSet(at=NOW, per="month", gpu_milli_hours=1_000_000), "budget set to 1000 GPU hours per month"),
        (BudgetWarned(at=NOW, period=NOW, used=81, limit=100), "81 % of the budget is used"),
        (
            NodeChanged(facts=NodeFacts(cpu_milli=1500, memory_bytes=1, gpu_count=2, gpu_model="H100", ready=False)),
            "reports: 1.5 cores, 2 H100 GPU, pool default, not ready",
        ),
    ],
)
def test_a_sentence_has_the_numbers(event: msgspec.Struct, said: str) -> None:
    assert sentence(event) == said
