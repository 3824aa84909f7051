"""Whatever the deciders let happen, in whatever batches it arrives: the rows are what the aggregates' fold says."""

import hypothesis.strategies as st
from hypothesis import example, given, settings

from services.projector.expected import Expected
from tests.projections.happenings import Happenings
from tests.support.draws import draws
from tests.support.tables import Tables, differences


@settings(max_examples=draws(150), deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 150), cuts=st.integers(1, 40))
@example(seed=3720, steps=12, cuts=1)  # a pod is warned while another pod of its workload waits
def test_rows_are_what_the_aggregates_fold_says_however_the_log_is_cut(seed: int, steps: int, cuts: int) -> None:
    happenings = Happenings(seed)
    for _ in range(steps):
        happenings.step()
    commits = happenings.world.commits
    tables, expected = Tables(), Expected()
    for start in range(0, len(commits), cuts):
        tables.project(commits[start : start + cuts])
    for commit in commits:
        expected.apply(commit)
    assert differences(expected.tables(), tables.plain()) == []


@settings(max_examples=draws(20), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_event_of_a_workload_has_one_sentence(seed: int) -> None:
    happenings = Happenings(seed)
    for _ in range(80):
        happenings.step()
    tables = Tables()
    tables.project(happenings.world.commits)
    events = sum(len(c.events) for c in happenings.world.commits if c.aggregate == "workload")
    rows = list(tables.rows["history"].values())
    assert len(rows) == events
    assert all(row.message and "\x00" not in row.message and "{" not in row.message for row in rows)
