"""Two thousand pods of a production trace on its own 1,213 nodes, through the API (section 6, 6 and 8)."""

from pathlib import Path

import pytest

from tests.e2e.test_openb import DOUBLED, TRACE, all_run

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not TRACE.exists(), reason="needs the openb trace beside the project (shared/data/openb)"),
]


@pytest.mark.parametrize("doubled", [(), DOUBLED], ids=["single", "doubled"])
def test_two_thousand_pods_of_the_trace_all_complete_and_no_node_is_ever_over_capacity(
    tmp_path: Path, doubled: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    all_run(tmp_path, 500 if request.config.option.short else 2000, doubled)
