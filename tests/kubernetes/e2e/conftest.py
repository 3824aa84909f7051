"""One Muster with one Kubernetes cluster for all of these tests; a witness watches from the first moment on."""

from collections.abc import Iterator
from typing import Final

import pytest

from development.kubernetes.checker import Recorder, check_all
from development.kubernetes.stack import KubernetesStack, running_stack
from development.stack import Api
from tests.kubernetes.e2e.looks import FOREIGN

PROXY_URL: Final = "http://apps.test:8083"
"""Where the API says that workloads are reached. A proxy may listen elsewhere."""
ENVIRONMENT: Final = {
    "MUSTER_PROXY_URL": PROXY_URL,
    # A minute of the autoscaler's patience is two seconds.
    "MUSTER_AUTOSCALER_SPEED": "30",
}


@pytest.fixture(scope="session")
def watched() -> Iterator[tuple[KubernetesStack, Recorder]]:
    """At the end nothing is left, and all that was seen is held together once more."""
    with running_stack(agents=0, nodes=3, gpus=4, environment=ENVIRONMENT) as stack, Recorder(stack.plane) as recorder:
        stack.agent(kubernetes_not_ready_seconds=1).start()
        stack.wait_connected()
        yield stack, recorder
        stack.end_all()
        check_all(stack, recorder, stack.acknowledged, foreign_may_go=FOREIGN)


@pytest.fixture(scope="module", autouse=True)
def _clean(watched: tuple[KubernetesStack, Recorder]) -> Iterator[None]:
    """After each module: whatever it did, nothing that happened was wrong."""
    stack, recorder = watched
    yield
    check_all(stack, recorder, stack.acknowledged, foreign_may_go=FOREIGN, at_rest=False)


@pytest.fixture(autouse=True)
def _nothing_is_left(stack: KubernetesStack) -> Iterator[None]:
    """Also where a test failed: the next one finds all nodes empty."""
    before = len(stack.acknowledged)
    yield
    stack.end_all(after=before)


@pytest.fixture
def stack(watched: tuple[KubernetesStack, Recorder]) -> KubernetesStack:
    return watched[0]


@pytest.fixture
def recorder(watched: tuple[KubernetesStack, Recorder]) -> Recorder:
    return watched[1]


@pytest.fixture
def api(stack: KubernetesStack) -> Api:
    return stack.api
