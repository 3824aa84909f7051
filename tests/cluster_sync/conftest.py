"""A log with one cluster and one project."""

from collections.abc import AsyncIterator

import pytest

from development.servers import EVERYTHING, NatsServer
from events.aggregate import CLUSTER, PROJECT
from events.cluster import AddCluster
from events.ids import cluster_key, project_key
from events.project import CreateProject
from services.runtime.nats.connection import connect
from tests.cluster_sync.given import World


@pytest.fixture
async def world(fresh_log: NatsServer) -> AsyncIterator[World]:
    nc = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    made = World(fresh_log, nc)
    await made.decide(CLUSTER, cluster_key("c"), AddCluster(name="c", kind="kubernetes"), "add-c")
    await made.decide(PROJECT, project_key("nlp"), CreateProject(name="nlp"), "create-nlp")
    yield made
    await nc.close()
