"""A real Kubernetes control plane, one per session. Where its programs are missing, tests fail: none skips."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from development.kubernetes.control_plane import ControlPlane


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """API server, etcd, controller manager and kwok, without nodes: each test adds its own, under names of its own."""
    plane = ControlPlane(Path(tmp_path_factory.mktemp("control-plane")))
    plane.start()
    yield plane
    plane.stop()
