"""What only the Kubernetes backend must do: names, finalizers, other people's hands, doubtful answers, restarts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from development.kubernetes.control_plane import ControlPlane
from events.cluster import StorageClass
from events.cluster_protocol import EnvironmentSource
from events.workload.pod import DeviceShare
from services.agent.backends.interface import BackendError
from services.agent.backends.kubernetes import names
from tests.agent.given import KEY
from tests.kubernetes.given import KubernetesWatched, open_kubernetes

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]

Opened = Callable[..., Awaitable[KubernetesWatched]]


@pytest.fixture
async def opened(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Opened]:
    """Opens backends, and closes them; those of one cluster id are agents of one cluster."""
    watched: list[KubernetesWatched] = []

    async def one(**more: Any) -> KubernetesWatched:
        watched.append(await open_kubernetes(control_plane, tmp_path / str(len(watched)), **more))
        return watched[-1]

    yield one
    for each in watched:
        await each.close()


async def admin(cluster: KubernetesWatched, method: str, path: str, body: Any = None, **query: Any) -> Any:
    return await asyncio.to_thread(cluster.plane.admin, method, path, body, **query)


async def the_pod(cluster: KubernetesWatched) -> dict[str, Any]:
    pods = await asyncio.to_thread(cluster.pods)
    assert len(pods) == 1
    return pods[0]


def path_of(pod: dict[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.05)


async def no_pods(cluster: KubernetesWatched) -> bool:
    return not await asyncio.to_thread(cluster.pods)


async def test_an_object_stays_until_its_end_is_settled_and_is_gone_then(opened: Opened) -> None:
    cluster = await opened()
    await cluster.backend.apply(cluster.pod(seconds=0.05))
    await cluster.until("succeeded")
    assert (await the_pod(cluster))["metadata"]["finalizers"] == [names.FINALIZER]
    await cluster.backend.forget(KEY, 1)
    await eventually(lambda: no_pods(cluster))


async def test_the_next_try_has_the_same_name_and_waits_for_the_former_to_be_let_go(opened: Opened) -> None:
    cluster = await opened()
    await cluster.backend.apply(cluster.pod(1, seconds=0.05, exit_code=3))
    await cluster.until("failed")
    first = await the_pod(cluster)
    await cluster.backend.apply(cluster.pod(2))
    await cluster.until("running", token=2)
    second = await the_pod(cluster)
    assert second["metadata"]["name"] == first["metadata"]["name"]
    assert second["metadata"]["uid"] != first["metadata"]["uid"]


async def test_a_newer_run_is_not_started_while_an_older_one_lives(opened: Opened) -> None:
    """Never two live pods of one rank: the older one is told to go first."""
    cluster = await opened()
    await cluster.backend.apply(cluster.pod(1, stubborn=True, grace_seconds=1))
    await cluster.until("running")
    with pytest.raises(BackendError, match="earlier run"):
        await cluster.backend.apply(cluster.pod(2))
    assert (await the_pod(cluster))["metadata"]["labels"][names.TOKEN] == "1"
    await cluster.backend.delete(KEY, 1, 1)
    await cluster.until("stopped")
    await cluster.backend.apply(cluster.pod(2))
    await cluster.until("running", token=2)
    assert (await the_pod(cluster))["metadata"]["labels"][names.TOKEN] == "2"


@pytest.mark.parametrize("grace_seconds", [30, 0])
async def test_a_pod_deleted_by_hand_is_interrupted_and_its_object_still_tells_its_end(
    opened: Opened, grace_seconds: int
) -> None:
    cluster = await opened()
    await cluster.backend.apply(cluster.pod())
    await cluster.until("running")
    pod = await the_pod(cluster)
    await admin(cluster, "DELETE", path_of(pod), gracePeriodSeconds=grace_seconds)
    end = await cluster.until("interrupted", "failed", "stopped")
    assert (end.kind, end.reason) == ("interrupted", "deleted")
    assert (await the_pod(cluster))["metadata"]["uid"] == pod["metadata"]["uid"]


@pytest.mark.parametrize("by_us", [True, False])
async def test_a_pod_whose_node_settles_its_deletion_late_is_stopped_and_not_failed(
    opened: Opened, by_us: bool
) -> None:
    """A node settles a deletion seconds after the containers ended, and overwrites when it was asked for."""
    cluster = await opened()
    annotations = {"simulation.muster.dev/settle-seconds": "2"}
    await cluster.backend.apply(cluster.pod(annotations=annotations))
    await cluster.until("running")
    if by_us:
        await cluster.backend.delete(KEY, 1, 5)
    else:
        await admin(cluster, "DELETE", path_of(await the_pod(cluster)))
    end = await cluster.until("interrupted", "failed", "stopped", "succeeded")
    assert end.kind == ("stopped" if by_us else "interrupted")


async def test_an_object_that_somebody_took_away_by_force_counts_as_deleted(opened: Opened) -> None:
    cluster = await opened()
    await cluster.backend.apply(cluster.pod())
    await cluster.until("running")
    path = path_of(await the_pod(cluster))
    await admin(cluster, "PATCH", path, {"metadata": {"finalizers": None}})
    await admin(cluster, "DELETE", path, gracePeriodSeconds=0)
    end = await cluster.until("interrupted")
    assert end.reason == "deleted"
    assert [pod.kind for pod in (await cluster.backend.list_all()).pods] == ["interrupted"]
    await cluster.backend.forget(KEY, 1)
    assert not (await cluster.backend.list_all()).pods


async def test_what_ended_and_was_deleted_while_no_agent_lived_is_found_and_never_started_again(
    opened: Opened,
) -> None:
    first = await opened()
    await first.backend.apply(first.pod())
    await first.until("running")
    path = path_of(await the_pod(first))
    await first.close()
    await admin(first, "DELETE", path)
    second = await opened(cluster_id=first.project)
    await second.until("interrupted") if second.newest() else None
    await eventually(lambda: _listed_as(second, "interrupted"))
    await second.backend.apply(second.pod())
    assert (await the_pod(second))["metadata"]["labels"][names.TOKEN] == "1"
    assert await _listed_as(second, "interrupted")


async def _listed_as(cluster: KubernetesWatched, kind: str) -> bool:
    return [pod.kind for pod in (await cluster.backend.list_all()).pods] == [kind]


async def test_fences_outlive_the_agent(opened: Opened) -> None:
    first = await opened()
    await first.backend.apply(first.pod(4, seconds=0.05))
    await first.until("succeeded", token=4)
    await first.backend.forget(KEY, 4)
    await first.backend.delete("other-main-0", 7, 0)
    second = await opened(cluster_id=first.project)
    assert second.backend.fences()[KEY] == 5
    assert second.backend.fences()["other-main-0"] == 8


async def test_of_two_agents_one_starts_runs_and_both_see_them(opened: Opened) -> None:
    first = await opened()
    second = await opened(cluster_id=first.project)
    assert (first.backend.standby(), bool(second.backend.standby())) == ("", True)
    with pytest.raises(BackendError, match="another agent of this cluster acts"):
        await second.backend.apply(second.pod())
    await first.backend.apply(first.pod())
    await first.until("running")
    await second.until("running")
    await the_pod(first)


async def test_a_foreign_pod_with_our_name_is_left_alone_and_the_run_refused(opened: Opened) -> None:
    cluster = await opened()
    run = cluster.pod()
    foreign = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": names.pod_name(run)},
        "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": cluster.node},
    }
    await admin(cluster, "POST", "/api/v1/namespaces", {"metadata": {"name": cluster.namespace}})
    made = await admin(cluster, "POST", f"/api/v1/namespaces/{cluster.namespace}/pods", foreign)
    await cluster.backend.apply(run)
    end = await cluster.until("refused")
    assert end.reason == "name_taken"
    assert run.workload_name in end.message
    await cluster.backend.delete(KEY, 1, 0)
    await cluster.backend.forget(KEY, 1)
    assert (await the_pod(cluster))["metadata"]["uid"] == made["metadata"]["uid"]


async def test_a_namespace_keeps_the_level_of_security_that_its_administrator_chose(opened: Opened) -> None:
    cluster = await opened()
    labels = {names.ENFORCE: "baseline"}
    await admin(cluster, "POST", "/api/v1/namespaces", {"metadata": {"name": cluster.namespace, "labels": labels}})
    await cluster.backend.apply(cluster.pod())
    await cluster.until("running")
    namespace = await admin(cluster, "GET", f"/api/v1/namespaces/{cluster.namespace}")
    assert namespace["metadata"]["labels"][names.ENFORCE] == "baseline"
    assert namespace["metadata"]["labels"][names.CLUSTER] == cluster.project
    assert "runAsNonRoot" not in (await the_pod(cluster))["spec"]["securityContext"]


async def test_a_pod_that_is_deleted_without_grace_is_killed_at_once_and_its_end_is_seen(opened: Opened) -> None:
    cluster = await opened()
    await cluster.backend.apply(cluster.pod(grace_seconds=0))
    await cluster.until("running")
    await cluster.backend.delete(KEY, 1, 0)
    assert (await cluster.until("stopped")).exit_code == 137
    assert (await the_pod(cluster))["metadata"]["finalizers"] == [names.FINALIZER]


async def test_a_namespace_is_made_as_the_cluster_says_or_stricter_for_a_project_that_wants_that(
    opened: Opened,
) -> None:
    for asked, level in ((None, "baseline"), ("restricted", "restricted")):
        cluster = await opened()
        await cluster.backend.apply(cluster.pod(pod_security=asked))
        await cluster.until("running")
        namespace = await admin(cluster, "GET", f"/api/v1/namespaces/{cluster.namespace}")
        assert namespace["metadata"]["labels"][names.ENFORCE] == level
        assert ("runAsNonRoot" in (await the_pod(cluster))["spec"]["securityContext"]) == (level == "restricted")


async def test_a_project_that_becomes_stricter_has_stricter_pods_in_a_namespace_that_stays_as_it_is(opened: Opened):
    cluster = await opened()
    await cluster.backend.apply(cluster.pod(seconds=0.05))
    await cluster.until("succeeded")
    await cluster.backend.forget(KEY, 1)
    await cluster.backend.apply(cluster.pod(2, pod_security="restricted"))
    await cluster.until("running", token=2)
    made = await the_pod(cluster)
    assert made["spec"]["securityContext"]["runAsNonRoot"] is True
    assert made["metadata"]["annotations"][names.RESTRICTED_BY] == "project"
    namespace = await admin(cluster, "GET", f"/api/v1/namespaces/{cluster.namespace}")
    assert namespace["metadata"]["labels"][names.ENFORCE] == "baseline"


async def test_a_namespace_whose_label_an_administrator_tightens_is_looked_at_again(opened: Opened) -> None:
    cluster = await opened()
    await cluster.backend.apply(cluster.pod(seconds=0.05))
    await cluster.until("succeeded")
    await cluster.backend.forget(KEY, 1)
    stricter = {"metadata": {"labels": {names.ENFORCE: "restricted"}}}
    await admin(cluster, "PATCH", f"/api/v1/namespaces/{cluster.namespace}", stricter)
    with contextlib.suppress(BackendError):  # or it has looked already
        await cluster.backend.apply(cluster.pod(2))
    await cluster.backend.apply(cluster.pod(2))
    await cluster.until("running", token=2)
    assert (await the_pod(cluster))["metadata"]["annotations"][names.RESTRICTED_BY] == "namespace"


async def test_a_namespace_of_another_cluster_of_muster_is_not_used(opened: Opened) -> None:
    cluster = await opened()
    labels = {names.CLUSTER: "somebody-else"}
    await admin(cluster, "POST", "/api/v1/namespaces", {"metadata": {"name": cluster.namespace, "labels": labels}})
    with pytest.raises(BackendError, match="belongs to another cluster"):
        await cluster.backend.apply(cluster.pod())
    assert await no_pods(cluster)


async def test_several_pods_of_a_workload_share_a_service_that_goes_with_the_last(opened: Opened) -> None:
    cluster = await opened()
    keys = ["abcdefghijkl-main-0", "abcdefghijkl-main-1"]
    for index, key in enumerate(keys):
        ref = msgspec.structs.replace(cluster.pod().pod, index=index)
        await cluster.backend.apply(cluster.pod(pod_key=key, pod=ref, pods=2, seconds=0.05))
    for key in keys:
        await cluster.until("succeeded", key=key)
    services = f"/api/v1/namespaces/{cluster.namespace}/services"
    [service] = (await admin(cluster, "GET", services))["items"]
    assert service["spec"]["clusterIP"] == "None"
    pods = await asyncio.to_thread(cluster.pods)
    assert {pod["spec"]["hostname"] for pod in pods} == {"main-0", "main-1"}
    assert {pod["spec"]["subdomain"] for pod in pods} == {service["metadata"]["name"]}
    await cluster.backend.forget(keys[0], 1)
    assert (await admin(cluster, "GET", services))["items"]
    await cluster.backend.forget(keys[1], 1)
    assert not (await admin(cluster, "GET", services))["items"]


async def test_two_runs_share_a_device_that_one_reservation_pod_holds_until_the_last_is_gone(opened: Opened) -> None:
    cluster = await opened()
    half = (DeviceShare(device=1, milli=500),)
    keys = ["abcdefghijkl-main-0", "bbcdefghijkl-main-0"]
    for key in keys:
        await cluster.backend.apply(cluster.pod(pod_key=key, devices=half))
        await cluster.until("running", key=key)
    reservations = f"/api/v1/namespaces/muster-system-{cluster.project}/pods"
    [reservation] = (await admin(cluster, "GET", reservations))["items"]
    device = reservation["metadata"]["annotations"][names.VISIBLE_DEVICES]
    for pod in await asyncio.to_thread(cluster.pods):
        environment = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
        assert environment["NVIDIA_VISIBLE_DEVICES"] == device
        assert environment["GPU_PORTION"] == "0.5"
        assert "nvidia.com/gpu" not in pod["spec"]["containers"][0]["resources"]["requests"]
    for key in keys:
        await cluster.backend.delete(key, 1, 1)
        await cluster.until("stopped", key=key)
        await cluster.backend.forget(key, 1)

    async def given_up() -> bool:
        return not (await admin(cluster, "GET", reservations))["items"]

    await eventually(given_up)


async def test_secrets_and_config_maps_are_named_and_never_read(opened: Opened) -> None:
    cluster = await opened()
    sources = (
        EnvironmentSource(name="TOKEN", kind="secret", object_name="s", key="k"),
        EnvironmentSource(name="MODE", kind="config_map", object_name="c", key="k"),
    )
    await cluster.backend.apply(cluster.pod(environment_from=sources))
    await cluster.until("running")
    environment = {one["name"]: one for one in (await the_pod(cluster))["spec"]["containers"][0]["env"]}
    assert environment["TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "s", "key": "k"}
    assert environment["MODE"]["valueFrom"]["configMapKeyRef"] == {"name": "c", "key": "k"}


async def test_a_node_that_is_deleted_has_lost_its_runs_and_gives_their_names_free(opened: Opened) -> None:
    cluster = await opened()
    await cluster.backend.apply(cluster.pod())
    await cluster.until("running")
    await admin(cluster, "DELETE", f"/api/v1/nodes/{cluster.node}")
    end = await cluster.until("interrupted")
    assert end.reason == "node_lost"
    other = cluster.node.replace("-n0", "-n1")
    await cluster.backend.apply(cluster.pod(2, node_name=other))
    await cluster.until("running", token=2)
    assert (await the_pod(cluster))["spec"]["nodeName"] == other


async def test_a_node_that_is_cordoned_tainted_or_changed_is_told_at_once(opened: Opened) -> None:
    cluster = await opened()
    body = {"spec": {"unschedulable": True, "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}}
    await admin(cluster, "PATCH", f"/api/v1/nodes/{cluster.node}", body)

    async def told() -> bool:
        facts = next(node.facts for node in (await cluster.backend.list_all()).nodes if node.name == cluster.node)
        return facts.unschedulable and ("k", "v", "NoSchedule") in {(t.key, t.value, t.effect) for t in facts.taints}

    await eventually(told)


async def test_what_others_request_on_a_node_is_reported_and_ours_is_not(opened: Opened) -> None:
    cluster = await opened()
    await cluster.backend.apply(cluster.pod(cpu_milli=1000, memory_bytes=2**20))
    await cluster.until("running")
    requests = {"cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": "1"}
    resources = {"requests": requests, "limits": {"nvidia.com/gpu": "1"}}
    foreign = {
        "metadata": {"name": f"foreign-{cluster.project}"},
        "spec": {"nodeName": cluster.node, "containers": [{"name": "c", "image": "i", "resources": resources}]},
    }
    await admin(cluster, "POST", "/api/v1/namespaces/default/pods", {"apiVersion": "v1", "kind": "Pod"} | foreign)

    async def foreign_use(expected: tuple[int, int, int, int]) -> bool:
        facts = next(node.facts for node in (await cluster.backend.list_all()).nodes if node.name == cluster.node)
        use = (facts.foreign_cpu_milli, facts.foreign_memory_bytes, facts.foreign_gpus, facts.foreign_pods)
        return use == expected

    await eventually(lambda: foreign_use((1500, 2**30, 1, 1)))
    path = f"/api/v1/namespaces/default/pods/foreign-{cluster.project}"
    await admin(cluster, "DELETE", path, gracePeriodSeconds=0)
    await eventually(lambda: foreign_use((0, 0, 0, 0)))


async def test_the_clusters_own_word_on_ownership_protection_is_reported(opened: Opened) -> None:
    """S084, C14."""
    cluster = await opened()
    assert (await cluster.backend.settings()).ownership_protection is None
    namespace = f"muster-system-{cluster.project}"
    body = {"metadata": {"name": "muster-agent"}, "data": {"workloadOwnershipProtection": "true"}}
    await admin(cluster, "POST", f"/api/v1/namespaces/{namespace}/configmaps", body)
    assert (await cluster.backend.settings()).ownership_protection is True


async def test_ownership_protection_is_also_read_from_the_namespace_of_run_ai_s_settings(opened: Opened) -> None:
    """S084: a ConfigMap of whatever name in the namespace runai-public."""
    cluster = await opened()
    await admin(cluster, "POST", "/api/v1/namespaces", {"metadata": {"name": "runai-public"}})
    assert (await cluster.backend.settings()).ownership_protection is None
    maps = "/api/v1/namespaces/runai-public/configmaps"
    for word, expected in (("false", False), ("true", True)):
        body = {"metadata": {"name": "runai-public"}, "data": {"workloadOwnershipProtection": word}}
        await admin(cluster, "POST", maps, body)
        assert (await cluster.backend.settings()).ownership_protection is expected
        await admin(cluster, "DELETE", f"{maps}/runai-public")
    await admin(cluster, "DELETE", "/api/v1/namespaces/runai-public")


async def test_storage_classes_are_told_with_the_attributes_that_their_claims_may_have(opened: Opened) -> None:
    """R29."""
    cluster = await opened()
    marks = {"storageclass.kubernetes.io/is-default-class": "true", "muster.dev/claim-attributes": "tier, iops,,"}
    classes = "/apis/storage.k8s.io/v1/storageclasses"
    for name, annotations in (("fast", marks), ("also", {})):
        body = {"metadata": {"name": name, "annotations": annotations}, "provisioner": "example.com/none"}
        await admin(cluster, "POST", classes, body)
    assert (await cluster.backend.settings()).storage_classes == (
        StorageClass(name="also"),
        StorageClass(name="fast", default=True, attributes=("tier", "iops")),
    )
    for name in ("fast", "also"):
        await admin(cluster, "DELETE", f"{classes}/{name}")


async def test_an_image_that_cannot_be_pulled_is_told_in_words_while_the_pod_waits(opened: Opened) -> None:
    cluster = await opened()
    waiting = {"simulation.muster.dev/waiting-reason": "ImagePullBackOff"}
    await cluster.backend.apply(cluster.pod(annotations=waiting))

    async def warned() -> bool:
        newest = cluster.newest()
        return newest is not None and newest.kind == "starting" and bool(newest.warnings)

    await eventually(warned)
    newest = cluster.newest()
    assert newest is not None
    assert "image" in newest.warnings[0].message
