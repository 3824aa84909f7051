"""Events as the API gives them."""

from datetime import UTC, datetime

import msgspec

from events.workload.pod import Placement, PodRef, PodRunning, PodsBound
from services.api.schemas import docstrings
from services.api.shown_events import shown, shown_data

FIRST = PodRef(pod_set="main", index=0, attempt=1, try_=0)


def test_people_count_runs_from_1_wherever_an_event_names_one() -> None:
    """Given the first run of a pod, which the log counts from 0."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    running = PodRunning(pod=FIRST, at=at)
    bound = PodsBound(placements=(Placement(pod=FIRST, node_key="k", node_name="n", pool="p"),), token=1)
    told = {"podSet": "main", "index": 0, "attempt": 1, "run": 1}
    assert msgspec.to_builtins(shown_data(running))["pod"] == told
    assert msgspec.to_builtins(shown_data(bound))["placements"][0]["pod"] == told


def test_what_is_given_in_another_way_is_described() -> None:
    assert "count the runs of an attempt from 1" in docstrings(shown(PodRef))["run"]
