"""The end of a cluster: refused while workloads live there, unless it is forced."""

import pytest

from development.commands import CommandPath, carry_out, code, training
from events.aggregate import WORKLOAD
from events.cluster import RemoveCluster
from events.envelope import Refused
from events.ids import key_of_id
from events.workload.commands import DeleteWorkload
from services.auto_deletion.due import Due, command
from services.runtime.nats.bus import CommandClient
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from tests.commands.test_project_deletion import reasons

pytestmark = pytest.mark.anyio


async def test_a_cluster_is_removed_once_nothing_lives_there_or_by_force_and_what_lived_ends_with_the_reason(
    path: CommandPath, place: tuple[str, str]
) -> None:
    project, cluster = place
    made = [await path.accepted("ada", training(f"w{n}", project, cluster), f"k{n}") for n in range(7)]
    refused = await path.send("root", RemoveCluster(cluster_id=cluster), "r1")
    assert isinstance(refused, Refused)
    assert refused.refusal.code == "cluster_not_empty"
    assert refused.refusal.message.startswith("7 workloads live on the cluster (w")
    assert refused.refusal.message.count("w") > 5, "it names some"
    assert code(await path.send("ada", RemoveCluster(cluster_id=cluster, force=True), "r2")) == "not_permitted"

    connection = await connect(path.server.settings("auto_deletion"), "auto_deletion")
    client = CommandClient(Requests(connection))
    stray = command(Due(made[0].id, None, "cluster"))
    assert code(await client.send_system("auto_deletion", stray)) == "not_permitted", "its cluster is there"
    for one in made[2:]:
        await path.accepted("ada", DeleteWorkload(workload_id=one.id), f"d{one.id}")
    await path.accepted("root", RemoveCluster(cluster_id=cluster, force=True), "r3")
    assert code(await client.send_system("auto_deletion", stray)) == "admitted"
    assert await reasons(path, made[0].id) == ["cluster_removed"]
    assert (await path.store.load(WORKLOAD, key_of_id(made[0].id) or "")).state.deleted_at is not None
    await connection.close()
    assert code(await path.send("ada", training("late", project, cluster), "k8")) == "unknown_cluster"


async def test_an_empty_cluster_is_removed_and_what_comes_in_at_that_moment_is_deleted_with_the_reason(
    path: CommandPath, place: tuple[str, str]
) -> None:
    """As it stands in the log where the creation was decided before the removal and stored after it."""
    project, cluster = place
    made = await path.accepted("ada", training("through", project, cluster), "k1")
    await carry_out(path.store, "r", RemoveCluster(cluster_id=cluster))
    connection = await connect(path.server.settings("auto_deletion"), "auto_deletion")
    stray = command(Due(made.id, None, "cluster"))
    answer = await CommandClient(Requests(connection)).send_system("auto_deletion", stray)
    await connection.close()
    assert code(answer) == "admitted"
    assert await reasons(path, made.id) == ["cluster_removed"]
