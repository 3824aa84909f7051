"""Values of credentials on the cluster: one Secret for each pod that needs some, made after the pod, gone before it.

Requirement rows: S018, S020, S057, S067, R10.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from development.kubernetes.control_plane import ControlPlane
from development.kubernetes.proxy import Mode, Proxy, Request, proxied
from events.cluster_protocol import EnvironmentSource, Login, Registry, RepositoryKey, RunPod, SealedValues
from events.workload.commands import PodWarning
from events.workload.pod_sets import Container
from events.workload.volumes import ClonedFolder, ConfigFiles, FolderLogin
from services.agent.backends.interface import BackendError
from services.agent.backends.kubernetes.backend import KubernetesBackend
from services.agent.backends.kubernetes.names import secret_name
from tests.agent.given import KEY
from tests.kubernetes.given import KubernetesWatched, open_kubernetes

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]

MARK = "marker-7d03b2"
VALUES = SealedValues(
    environment={"TOKEN": f"{MARK}-token"},
    registries=(Registry(url="https://registry.example.com", user="ann", password=f"{MARK}-registry"),),
    logins={"/src": Login(user="ann", password=f"{MARK}-git")},
    keys={"/lib": RepositoryKey(private=f"{MARK}-key\n", known_hosts=f"{MARK}-hosts\n")},
)
BY_SSH = ClonedFolder(
    mount_path="/lib", repository="ssh://git@git.example.com/lib", login=FolderLogin(name="keys", credential=True)
)
CLONED = ClonedFolder(
    mount_path="/src", repository="https://git.example.com/code", login=FolderLogin(name="mine", credential=True)
)
WAITS = {"simulation.muster.dev/waiting-reason": "ContainerCreating"}
"""As a pod does whose Secret is not there."""


def is_of_secrets(request: Request) -> bool:
    return "/secrets" in request.path


@pytest.fixture
async def proxy(control_plane: ControlPlane) -> AsyncIterator[Proxy]:
    async with proxied(control_plane) as made:
        made.only = is_of_secrets
        yield made


@pytest.fixture
async def cluster(control_plane: ControlPlane, proxy: Proxy, tmp_path: Path) -> AsyncIterator[KubernetesWatched]:
    config = control_plane.kubeconfig(url=proxy.url)
    opened = await open_kubernetes(control_plane, tmp_path / "agent", kubeconfig=config)
    yield opened
    await opened.close()


def run_of(cluster: KubernetesWatched, token: int = 1, *, waits: bool = False, **more: Any) -> RunPod:
    run = cluster.pod(token, **more)
    return msgspec.structs.replace(run, annotations=run.annotations | (WAITS if waits else {}))


async def objects(cluster: KubernetesWatched, kind: str) -> list[dict[str, Any]]:
    path = f"/api/v1/namespaces/{cluster.namespace}/{kind}"
    return (await asyncio.to_thread(cluster.plane.admin, "GET", path))["items"]


async def until_secrets(cluster: KubernetesWatched, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(60):
        while len(found := await objects(cluster, "secrets")) != count:
            await asyncio.sleep(0.05)
    return found


def opened(secret: dict[str, Any]) -> dict[str, str]:
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


def told_of(cluster: KubernetesWatched) -> tuple[PodWarning, ...]:
    newest = cluster.newest()
    return () if newest is None else newest.warnings


async def end(cluster: KubernetesWatched, token: int = 1) -> None:
    await cluster.backend.delete(KEY, token, 0)
    await cluster.until("stopped", token=token)
    await cluster.backend.forget(KEY, token)


async def test_a_pod_refers_to_its_values_which_stand_in_its_secret_alone_and_go_with_it(
    cluster: KubernetesWatched,
) -> None:
    await cluster.backend.apply(run_of(cluster, volumes=(CLONED, BY_SSH)), VALUES)
    (pod,), (secret,) = await objects(cluster, "pods"), await objects(cluster, "secrets")
    data = opened(secret)
    (main,), (clone, by_ssh) = pod["spec"]["containers"], pod["spec"]["initContainers"]

    def told(container: dict[str, Any]) -> dict[str, str]:
        references = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in container["env"] if "valueFrom" in one}
        assert {one["name"] for one in references.values()} == {secret["metadata"]["name"]}
        return {name: data[one["key"]] for name, one in references.items()}

    assert told(main) == {"TOKEN": f"{MARK}-token"}
    assert told(clone) == {"MUSTER_GIT_USER": "ann", "MUSTER_GIT_PASSWORD": f"{MARK}-git"}
    assert told(by_ssh) == {"MUSTER_GIT_KEY": f"{MARK}-key\n", "MUSTER_GIT_KNOWN_HOSTS": f"{MARK}-hosts\n"}
    # The memory in which the key is a file for a while is with that container alone.
    has_memory = [each["name"] for each in (main, clone, by_ssh) if "/dev/shm" in str(each["volumeMounts"])]
    assert has_memory == [by_ssh["name"]]
    assert pod["spec"]["imagePullSecrets"] == [{"name": secret["metadata"]["name"]}]
    assert secret["type"] == "kubernetes.io/dockerconfigjson"
    auths = json.loads(data[".dockerconfigjson"])["auths"]
    assert auths["https://registry.example.com"]["auth"] == base64.b64encode(f"ann:{MARK}-registry".encode()).decode()
    assert secret["immutable"]
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [pod["metadata"]["uid"]]
    for kind in ("pods", "configmaps", "services", "events", "persistentvolumeclaims"):
        assert MARK not in json.dumps(await objects(cluster, kind)), kind
    assert cluster.backend.lacking() == []
    await end(cluster)
    assert (await objects(cluster, "pods"), await objects(cluster, "secrets")) == ([], [])


async def test_each_run_has_its_own_and_one_that_needs_none_has_none(cluster: KubernetesWatched) -> None:
    await cluster.backend.apply(run_of(cluster), SealedValues(environment={"TOKEN": "one"}))
    (first,) = await objects(cluster, "secrets")
    assert first["type"] == "Opaque"
    await end(cluster)
    await cluster.backend.apply(run_of(cluster, 2), SealedValues(environment={"TOKEN": "two"}))
    (second,) = await objects(cluster, "secrets")
    assert (opened(first), opened(second)) == ({"variable.TOKEN": "one"}, {"variable.TOKEN": "two"})
    await end(cluster, 2)
    await cluster.backend.apply(run_of(cluster, 3))
    assert await objects(cluster, "secrets") == []


@pytest.mark.parametrize("again", [True, False], ids=["wanted", "deleted"])
async def test_an_agent_that_finds_a_pod_without_its_secret_brings_it_or_leaves_nothing(
    cluster: KubernetesWatched, proxy: Proxy, tmp_path: Path, again: bool
) -> None:
    """The one that made the pod died before it made the Secret."""
    proxy.mode = Mode.ERROR
    run = run_of(cluster, waits=True)
    await cluster.backend.apply(run, VALUES)
    assert (len(await objects(cluster, "pods")), await objects(cluster, "secrets")) == (1, [])
    await cluster.look_away()
    await cluster.backend.close()
    other = await open_kubernetes(cluster.plane, tmp_path / "other", cluster_id=cluster.project)
    try:
        async with asyncio.timeout(60):
            while not other.backend.lacking():  # it says nothing where it stood still for a moment
                await asyncio.sleep(0.05)
        assert other.backend.lacking() == [(KEY, 1)]
        if again:
            await other.backend.apply(run, VALUES)
            (secret,) = await objects(other, "secrets")
            assert opened(secret)["variable.TOKEN"] == f"{MARK}-token"
            assert other.backend.lacking() == []
        await end(other)
        assert (await objects(other, "pods"), await objects(other, "secrets")) == ([], [])
    finally:
        await other.close()


async def test_an_agent_that_did_not_make_the_secret_deletes_it_before_its_pod_is_let_go(
    cluster: KubernetesWatched, tmp_path: Path
) -> None:
    """The one that made both died. Before it is sure of what is in it, a waiting pod's is made anew."""
    run = run_of(cluster, waits=True)
    await cluster.backend.apply(run, VALUES)
    (before,) = await objects(cluster, "secrets")
    await cluster.look_away()
    await cluster.backend.close()
    other = await open_kubernetes(cluster.plane, tmp_path / "other", cluster_id=cluster.project)
    try:
        assert other.backend.lacking() == [(KEY, 1)]
        await other.backend.apply(run, SealedValues(environment={"TOKEN": "newer"}))
        (after,) = await objects(other, "secrets")
        assert (after["metadata"]["name"], opened(after)) == (before["metadata"]["name"], {"variable.TOKEN": "newer"})
        await end(other)
        assert (await objects(other, "pods"), await objects(other, "secrets")) == ([], [])
    finally:
        await other.close()


async def test_a_secret_that_could_not_be_deleted_keeps_no_pod_and_is_deleted_soon(
    cluster: KubernetesWatched, proxy: Proxy
) -> None:
    await cluster.backend.apply(run_of(cluster), VALUES)
    proxy.only = lambda request: request.method == "DELETE" and is_of_secrets(request)
    proxy.mode = Mode.FORBIDDEN
    await end(cluster)
    assert await objects(cluster, "pods") == []
    proxy.mode = Mode.PASS
    await until_secrets(cluster, 0)


async def test_kubernetes_itself_deletes_the_secret_of_a_pod_that_somebody_took_away(
    cluster: KubernetesWatched,
) -> None:
    """And nobody of Muster is there to do it."""
    await cluster.backend.apply(run_of(cluster), VALUES)
    (pod,) = await objects(cluster, "pods")
    await cluster.look_away()
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod['metadata']['name']}"
    await asyncio.to_thread(cluster.plane.admin, "PATCH", path, {"metadata": {"finalizers": None}})
    await asyncio.to_thread(cluster.plane.admin, "DELETE", path, {"gracePeriodSeconds": 0})
    await until_secrets(cluster, 0)


async def test_what_somebody_deleted_is_missed_by_the_node_and_brought_again(cluster: KubernetesWatched) -> None:
    run = run_of(cluster, waits=True)
    await cluster.backend.apply(run, VALUES)
    (pod,), (secret,) = await objects(cluster, "pods"), await objects(cluster, "secrets")
    space, name = f"/api/v1/namespaces/{cluster.namespace}", secret["metadata"]["name"]
    await asyncio.to_thread(cluster.plane.admin, "DELETE", f"{space}/secrets/{name}")
    about = {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    event = {
        "metadata": {"name": "missing"},
        "involvedObject": {**about, "namespace": cluster.namespace},
        "type": "Warning",
        "reason": "Failed",
        "message": f'Error: secret "{name}" not found',
        "lastTimestamp": (datetime.now(UTC) + timedelta(seconds=2)).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    await asyncio.to_thread(cluster.plane.admin, "POST", f"{space}/events", event)
    async with asyncio.timeout(60):
        while cluster.backend.lacking() != [(KEY, 1)]:
            await asyncio.sleep(0.05)
    await cluster.backend.apply(run, VALUES)
    assert len(await objects(cluster, "secrets")) == 1
    assert cluster.backend.lacking() == []


async def test_a_refusal_is_told_on_the_pod_without_a_value_and_tried_again(
    cluster: KubernetesWatched, proxy: Proxy
) -> None:
    proxy.mode = Mode.FORBIDDEN
    run = run_of(cluster, waits=True)
    await cluster.backend.apply(run, VALUES)
    async with asyncio.timeout(60):
        while "no_credentials" not in [one.reason for one in told_of(cluster)]:
            await asyncio.sleep(0.05)
    newest = cluster.newest()
    assert newest is not None
    assert "roles.yaml" in newest.warnings[-1].message
    assert MARK not in str(newest)
    with pytest.raises(BackendError) as refused:
        await cluster.backend.apply(run, VALUES)
    assert MARK not in str(refused.value)
    proxy.mode = Mode.PASS
    async with asyncio.timeout(60):
        while cluster.backend.lacking() != [(KEY, 1)]:
            await asyncio.sleep(0.05)
    await cluster.backend.apply(run, VALUES)
    assert len(await objects(cluster, "secrets")) == 1


async def test_values_of_another_projects_run_reach_no_pod(cluster: KubernetesWatched) -> None:
    """Whoever may make pods in one namespace gives them the marks of a run that is another project's."""
    run = run_of(cluster, waits=True)
    await cluster.backend.apply(run, VALUES)
    assert isinstance(cluster.backend, KubernetesBackend)
    cluster.backend._secrets._there.clear()
    (secret,) = await objects(cluster, "secrets")
    name = f"/api/v1/namespaces/{cluster.namespace}/secrets/{secret['metadata']['name']}"
    await asyncio.to_thread(cluster.plane.admin, "DELETE", name)
    await cluster.backend.apply(msgspec.structs.replace(run, project_id="another"), VALUES)
    assert await objects(cluster, "secrets") == []


NAME = secret_name("c", KEY, 7)
NAMES: dict[str, dict[str, Any]] = {
    "variable": {"environment_from": (EnvironmentSource(name="A", kind="secret", object_name=NAME, key="k"),)},
    "volume": {"volumes": (ConfigFiles(mount_path="/a", object_name=NAME, secret=True),)},
    "pull": {"container": Container(pull_secrets=("registry", NAME))},
    "git": {"volumes": (ClonedFolder(mount_path="/a", repository="https://a/b", login=FolderLogin(name=NAME)),)},
}


async def test_a_run_that_names_the_secret_of_another_one_is_not_made(cluster: KubernetesWatched) -> None:
    for token, (what, names_it) in enumerate(NAMES.items(), 1):
        await cluster.backend.apply(run_of(cluster, token, **names_it))
        failed = await cluster.until("failed", token=token)
        assert (failed.reason, NAME in failed.message) == ("no_credentials", True), what
        await cluster.backend.forget(KEY, token)
    assert await objects(cluster, "pods") == []
