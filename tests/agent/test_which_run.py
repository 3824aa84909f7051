"""Which run of a pod is meant, and what is said where there is none."""

import pytest

from events.cluster_protocol import LogsRequest
from events.workload.pod import PodRef
from services.agent.backends.interface import LogsUnavailableError
from services.agent.backends.which_run import which_run

RUNS = {7: PodRef(pod_set="main", index=3, attempt=1, try_=0), 9: PodRef(pod_set="main", index=3, attempt=1, try_=1)}


def test_a_run_that_is_not_kept_is_told_by_the_pod_s_name_as_people_know_it() -> None:
    request = LogsRequest(workload_id="w", pod_key="iwpaarn4un7f-main-3", attempt=4)
    with pytest.raises(LogsUnavailableError, match="no log of attempt 4 of pod main-3 is kept; kept are") as raised:
        which_run(request, RUNS)
    assert raised.value.no_such_run
