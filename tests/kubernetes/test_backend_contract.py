"""The contract of all backends, on a real API server (architecture.md section 6)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from development.kubernetes.control_plane import ControlPlane
from tests.agent.given import Watched
from tests.agent.test_backend_contract import *  # noqa: F403 (the tests)
from tests.kubernetes.given import open_kubernetes

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]


@pytest.fixture
async def cluster(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Watched]:
    watched = await open_kubernetes(control_plane, tmp_path)
    yield watched
    await watched.close()
