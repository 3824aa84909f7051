"""Four workloads in two projects, as commits and in the tables: for tests that only read."""

import asyncpg

from development.servers import PostgresServer
from events.workload.commands import DeleteWorkload, PlacePods
from events.workload.fields.connections import ExposedUrl, Port
from events.workload.fields.metadata import Label
from events.workload.fields.storage import EmptyDirVolume, NfsVolume, PvcVolume, StorageSpec
from events.workload.spec import ComputeSpec, TrainingSpec
from projections.migrate import prepare
from services.projector.engine import Engine, open_pool
from services.projector.writer import Writer
from services.runtime.log.memory import MemoryEventStore
from tests.support.lives import FIRST, SCHEDULER, World


def labels(**given: str) -> tuple[Label, ...]:
    return tuple(Label(name=key, value=value) for key, value in given.items())


def small_world() -> World:
    """Four workloads: `alpha` runs, `beta` completed, `gamma_50%` of another project waits, `old` is deleted."""
    world = World()
    cluster_id, project_id = world.cluster(), world.project()
    other = world.project("other")
    node = world.node(cluster_id, "node-1")
    gpu = ComputeSpec(gpu_devices_request=2, cpu_core_request=0.5, cpu_memory_request="1Gi")
    alpha = world.training(
        "alpha",
        project_id,
        cluster_id,
        TrainingSpec(
            image="Repo/Train:1", compute=gpu, priority_class="high", labels=labels(team="vision", stage="dev", old="")
        ),
    )
    world.later(10)
    beta = world.training(
        "beta",
        project_id,
        cluster_id,
        TrainingSpec(
            image="b",
            node_pools=("fast", "slow"),
            labels=labels(team="nlp"),
            exposed_urls=(ExposedUrl(container=8888),),
            ports=(Port(container=6006, service_type="ClusterIP", tool_name="board"),),
            storage=StorageSpec(
                pvc=(PvcVolume(name="corpus", path="/data", existing_pvc=True, claim_name="c"),),
                nfs=(NfsVolume(path="/exports", server="nfs", mount_path="/shared"),),
                empty_dir_volume=(EmptyDirVolume(path="/scratch"),),
            ),
        ),
    )
    world.later(10)
    gamma = world.training(
        "gamma_50%", other, cluster_id, TrainingSpec(image="", category="Explore\\d", labels=labels(team="vision"))
    )
    world.later(10)
    old = world.training("old", project_id, cluster_id)
    world.do("workload", old, DeleteWorkload(workload_id=world.state("workload", old).workload_id))
    world.place([(alpha, FIRST, node, 0), (beta, FIRST, node, 1)])
    for key in (alpha, beta):
        world.later(5)
        world.report(key, FIRST, "running")
    world.later(5)
    world.report(beta, FIRST, "succeeded")
    waiting = PlacePods(
        workload_id=world.state("workload", gamma).workload_id,
        waiting_reason="insufficient_gpu",
        waiting_message="3 nodes of pool default have no free GPU",
    )
    world.do("workload", gamma, waiting, SCHEDULER)
    return world


WORLD = small_world()
PROJECTS = {
    name: WORLD.state(*key).project_id
    for key in WORLD.chains
    for name in [WORLD.state(*key).name]
    if key[0] == "project"
}


async def fill(server: PostgresServer, database: str, reader_url: str) -> None:
    """A new database with the tables of WORLD."""
    connection = await asyncpg.connect(server.url())
    await connection.execute(f'CREATE DATABASE "{database}"')
    await connection.close()
    await prepare(server.url(database), reader_url)
    pool = await open_pool(server.url(database))
    writer = Writer(pool, "muster_v1")
    engine = Engine(MemoryEventStore(), writer, await writer.checkpoint())
    await engine.apply(WORLD.commits)
    await engine.flush()
    await pool.close()
