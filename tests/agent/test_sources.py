"""Variables whose values only Kubernetes knows, on the clusters that are none."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from events.cluster_protocol import EnvironmentSource
from tests.agent.given import OPENERS

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("kind", sorted(OPENERS))
async def test_a_run_with_a_variable_from_a_secret_fails_and_says_which(kind: str, tmp_path: Path) -> None:
    """S020."""
    cluster = await OPENERS[kind](tmp_path)
    source = EnvironmentSource(name="TOKEN", kind="secret", object_name="wandb", key="token")
    await cluster.backend.apply(replace(cluster.pod(), environment_from=(source,)))
    end = await cluster.until("failed")
    assert end.reason == "no_such_source"
    assert "TOKEN" in end.message
    assert end.started_at is None
    await cluster.close()
