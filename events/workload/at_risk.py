"""Work of a workload that is lost if its pods end now: what they did since it was saved last."""

from datetime import datetime
from typing import Final

from events.event import Event
from events.workload.pod import Pod, PodRef
from events.workload.spec import WHOLE_GPU_MILLI
from events.workload.state import Workload


class CheckpointSaved(Event, frozen=True, kw_only=True):
    """A newer file was found in the folder that outlives its pods. Not each one is told: the first of a run, and then
    one in some minutes; and the last one when a run has ended.
    """

    pod: PodRef
    """The run whose agent found it."""
    at: datetime
    """When the file was changed last."""


MOST_MILLI_SECONDS: Final = 2**62
"""That are counted of one workload: more than any cluster has, whatever a clock says."""


def milli_seconds_at_risk(state: Workload, pod: Pod, now: datetime) -> int:
    """What a pod has done that ends with it, since its workload saved its work last, or since it began: thousandths of
    a GPU times seconds.
    """
    return seconds_at_risk(state, pod, now) * sum(share.milli for share in pod.devices)


def gpu_hours_at_risk(state: Workload, now: datetime) -> float | None:
    """Of all its pods; None of an inference, whose replicas have nothing to lose."""
    if state.inference is not None:
        return None
    milli = sum(milli_seconds_at_risk(state, pod, now) for pod in state.pods.live.values())
    return milli / (WHOLE_GPU_MILLI * 3600)


def seconds_at_risk(state: Workload, pod: Pod, now: datetime) -> int:
    if pod.running_since is None:
        return 0
    since = pod.running_since if state.checkpoint_at is None else max(pod.running_since, state.checkpoint_at)
    return max(int((now - since).total_seconds()), 0)
