"""Code on the cluster follows from the pods that have it: made after the first, deleted before the last is let go."""

import asyncio
import base64
import hashlib
import io
import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from development.kubernetes.control_plane import ControlPlane
from development.kubernetes.proxy import Mode, Proxy, Request, proxied
from services.agent.backends.interface import BackendError
from services.agent.backends.kubernetes.act import code_maps
from services.agent.backends.kubernetes.act.code_manifests import KEY, MAP_BYTES, unpack_command
from services.agent.backends.kubernetes.backend import KubernetesBackend
from services.agent.backends.kubernetes.names import code_map_name
from services.runtime.code.archive import write_archive
from services.runtime.code.limits import KUBERNETES_MAX_BYTES
from tests.kubernetes.given import KeptArchives, KubernetesWatched, open_kubernetes

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]

KEYS = ("abcdefghijkl-main-0", "bcdefghijklm-main-0")
"""Of two workloads."""
WAITS = {"simulation.muster.dev/waiting-reason": "ContainerCreating"}
"""As a pod does whose volumes are not there."""


def archive(folder: Path, content: bytes) -> bytes:
    folder.mkdir()
    (folder / "train.py").write_bytes(content)
    out = io.BytesIO()
    write_archive(folder, ["train.py"], out)
    return out.getvalue()


@pytest.fixture
def code(tmp_path: Path) -> bytes:
    """Of three parts."""
    return archive(tmp_path / "code", os.urandom(2 * MAP_BYTES))


@pytest.fixture
def kept(code: bytes) -> KeptArchives:
    return KeptArchives({hashlib.sha256(code).hexdigest(): code})


def is_of_code(request: Request) -> bool:
    return "/configmaps" in request.path and "/muster-system" not in request.path


@pytest.fixture
async def proxy(control_plane: ControlPlane) -> AsyncIterator[Proxy]:
    async with proxied(control_plane) as made:
        made.only = is_of_code
        yield made


@pytest.fixture
async def cluster(
    control_plane: ControlPlane, proxy: Proxy, kept: KeptArchives, tmp_path: Path
) -> AsyncIterator[KubernetesWatched]:
    config = control_plane.kubeconfig(url=proxy.url)
    opened = await open_kubernetes(control_plane, tmp_path / "agent", kubeconfig=config, archives=kept)
    yield opened
    await opened.close()


async def apply(
    cluster: KubernetesWatched,
    code: bytes,
    index: int = 0,
    *,
    token: int = 1,
    seconds: float = 60,
    waits: bool = False,
) -> None:
    run = cluster.pod(token, pod_key=KEYS[index], code=hashlib.sha256(code).hexdigest(), seconds=seconds)
    annotations = run.annotations | (WAITS if waits else {})
    await cluster.backend.apply(msgspec.structs.replace(run, annotations=annotations))


async def maps(cluster: KubernetesWatched) -> list[dict[str, Any]]:
    path = f"/api/v1/namespaces/{cluster.namespace}/configmaps"
    found = (await asyncio.to_thread(cluster.plane.admin, "GET", path))["items"]
    return [each for each in found if each["metadata"]["name"].startswith("muster-code-")]


async def until_maps(cluster: KubernetesWatched, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(60):
        while len(found := await maps(cluster)) != count:
            await asyncio.sleep(0.05)
    return found


async def test_what_the_pod_mounts_is_there_and_unpacks_to_what_was_sent(
    cluster: KubernetesWatched, code: bytes, kept: KeptArchives, tmp_path: Path
) -> None:
    """What a node does: it puts each ConfigMap where the pod says, then runs what the pod says."""
    await apply(cluster, code)
    (pod,) = await asyncio.to_thread(cluster.pods)
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    there = {each["metadata"]["name"]: each for each in await maps(cluster)}
    parts, folder = tmp_path / "parts", tmp_path / "in-pod"
    parts.mkdir()
    folder.mkdir()
    for source in volumes["code-parts"]["projected"]["sources"]:
        (item,) = source["configMap"]["items"]
        found = there.pop(source["configMap"]["name"])
        assert found["immutable"]
        assert found["metadata"]["labels"]["muster.dev/cluster"] == cluster.project
        (parts / item["path"]).write_bytes(base64.b64decode(found["binaryData"][item["key"]]))
    assert not there
    (container,) = pod["spec"]["initContainers"]
    digest = hashlib.sha256(code).hexdigest()
    assert container["command"] == unpack_command(digest)
    process = await asyncio.create_subprocess_exec(*unpack_command(digest, str(parts), str(folder)))
    assert await process.wait() == 0
    assert (folder / "train.py").read_bytes() == (tmp_path / "code" / "train.py").read_bytes()
    assert [(each.project_id, each.digest) for each in kept.asked] == [(f"id-of-{cluster.project}", digest)]


async def test_pods_of_two_workloads_share_it_and_it_goes_before_the_last_is_let_go(
    cluster: KubernetesWatched, code: bytes, kept: KeptArchives, proxy: Proxy
) -> None:
    for index, key in enumerate(KEYS):
        await apply(cluster, code, index, seconds=0.05)
        await cluster.until("succeeded", key=key)
    assert (len(kept.asked), len(await maps(cluster))) == (1, 3)
    await cluster.backend.forget(KEYS[0], 1)
    assert len(await maps(cluster)) == 3
    proxy.only = lambda request: request.method == "DELETE" and "/pods/" in request.path
    proxy.mode = Mode.ERROR
    with pytest.raises(BackendError):
        await cluster.backend.forget(KEYS[1], 1)
    assert await maps(cluster) == []
    assert len(await asyncio.to_thread(cluster.pods)) == 1
    proxy.mode = Mode.PASS
    await cluster.backend.forget(KEYS[1], 1)
    assert await asyncio.to_thread(cluster.pods) == []


async def test_what_could_not_be_deleted_keeps_no_pod_and_is_deleted_soon(
    cluster: KubernetesWatched, code: bytes, proxy: Proxy
) -> None:
    """An API server that just began refuses what it allows a moment later."""
    await apply(cluster, code, seconds=0.05)
    await cluster.until("succeeded", key=KEYS[0])
    proxy.only = lambda request: request.method == "DELETE" and request.path.endswith("-1") and is_of_code(request)
    proxy.mode = Mode.FORBIDDEN
    await cluster.backend.forget(KEYS[0], 1)
    assert await asyncio.to_thread(cluster.pods) == []
    assert len(await maps(cluster)) == 1
    proxy.mode = Mode.PASS
    await until_maps(cluster, 0)


async def test_what_could_not_be_deleted_is_whole_for_the_next_pod(
    cluster: KubernetesWatched, code: bytes, proxy: Proxy
) -> None:
    await apply(cluster, code, seconds=0.05)
    await cluster.until("succeeded", key=KEYS[0])
    proxy.only = lambda request: request.method == "DELETE" and request.path.endswith("-1") and is_of_code(request)
    proxy.mode = Mode.FORBIDDEN
    await cluster.backend.forget(KEYS[0], 1)
    await apply(cluster, code, 1, waits=True)
    await until_maps(cluster, 3)


async def test_code_of_the_largest_size_is_taken(
    cluster: KubernetesWatched, tmp_path: Path, kept: KeptArchives
) -> None:
    largest = archive(tmp_path / "large", os.urandom(KUBERNETES_MAX_BYTES - 3 * 512))
    assert len(largest) == KUBERNETES_MAX_BYTES
    kept.archives[hashlib.sha256(largest).hexdigest()] = largest
    await apply(cluster, largest)
    assert b"".join(base64.b64decode(each["binaryData"][KEY]) for each in await until_maps(cluster, 8)) == largest


async def test_what_could_not_be_made_with_its_pod_is_made_soon(
    cluster: KubernetesWatched, code: bytes, proxy: Proxy
) -> None:
    proxy.mode = Mode.ERROR
    await apply(cluster, code, waits=True)
    assert (len(await asyncio.to_thread(cluster.pods)), await maps(cluster)) == (1, [])
    proxy.mode = Mode.PASS
    await until_maps(cluster, 3)


async def test_an_agent_that_finds_a_pod_without_its_code_makes_it(
    cluster: KubernetesWatched, code: bytes, kept: KeptArchives, proxy: Proxy, tmp_path: Path
) -> None:
    """The one that made the pod died before it made all of the rest."""
    asked = itertools.count()
    proxy.only = lambda request: is_of_code(request) and next(asked) > 0
    proxy.mode = Mode.ERROR
    await apply(cluster, code, waits=True)
    assert len(await maps(cluster)) == 1
    await cluster.look_away()
    await cluster.backend.close()
    proxy.mode = Mode.PASS
    other = await open_kubernetes(cluster.plane, tmp_path / "other", cluster_id=cluster.project, archives=kept)
    try:
        await until_maps(other, 3)
        await other.backend.delete(KEYS[0], 1, 0)
        await other.until("stopped", key=KEYS[0])
        await other.backend.forget(KEYS[0], 1)
        assert await maps(other) == []
    finally:
        await other.close()


async def test_a_pod_that_is_let_go_before_its_code_was_made_leaves_none(
    cluster: KubernetesWatched, code: bytes, proxy: Proxy
) -> None:
    proxy.mode = Mode.ERROR
    await apply(cluster, code, waits=True)
    proxy.mode = Mode.HOLD
    async with asyncio.timeout(60):
        while not proxy.struck:
            await asyncio.sleep(0.05)
    await cluster.backend.delete(KEYS[0], 1, 0)
    await cluster.until("stopped", key=KEYS[0])
    forgotten = asyncio.create_task(cluster.backend.forget(KEYS[0], 1))
    await asyncio.sleep(0)
    proxy.mode = Mode.PASS
    async with asyncio.timeout(60):
        while await _settled(forgotten):
            forgotten = asyncio.create_task(cluster.backend.forget(KEYS[0], 1))
    assert await asyncio.to_thread(cluster.pods) == []
    assert await maps(cluster) == []


async def _settled(forgotten: asyncio.Task[None]) -> bool:
    """Whether it is to be tried again."""
    try:
        await forgotten
    except BackendError:
        return True
    return False


async def test_an_agent_that_does_not_act_any_more_makes_and_deletes_none(
    cluster: KubernetesWatched, code: bytes, kept: KeptArchives, tmp_path: Path
) -> None:
    """As one that stood still in the middle of it, while another one became the one that acts."""
    late = await open_kubernetes(cluster.plane, tmp_path / "late", cluster_id=cluster.project, archives=kept)
    try:
        assert isinstance(late.backend, KubernetesBackend)
        await apply(cluster, code, waits=True)
        made = await until_maps(cluster, 3)
        await late.until("starting", key=KEYS[0])
        pod = late.backend._view.pods[KEYS[0]]
        with pytest.raises(BackendError, match="another agent of this cluster acts"):
            async with late.backend._code.leaving(pod):
                pass
        assert await maps(cluster) == made
        await cluster.backend.delete(KEYS[0], 1, 0)
        await cluster.until("stopped", key=KEYS[0])
        await cluster.backend.forget(KEYS[0], 1)
        late.backend._view.see_pod(pod)  # as if it had not heard of its end
        with pytest.raises(BackendError, match="another agent of this cluster acts"):
            await late.backend._code.ensure(pod)
        assert await maps(cluster) == []
    finally:
        await late.close()


class JustDeleted(set[tuple[str, str]]):
    """As if order was never made meanwhile."""

    def clear(self) -> None:
        return


async def test_what_is_let_go_after_it_was_made_in_part_leaves_none(
    cluster: KubernetesWatched, code: bytes, proxy: Proxy
) -> None:
    """Though code of the same name was deleted a moment ago."""
    assert isinstance(cluster.backend, KubernetesBackend)
    cluster.backend._code._deleted = JustDeleted({(cluster.namespace, hashlib.sha256(code).hexdigest())})
    asked = itertools.count()
    proxy.only = lambda request: is_of_code(request) and request.method == "POST" and next(asked) > 0
    proxy.mode = Mode.ERROR
    await apply(cluster, code, waits=True)
    assert len(await maps(cluster)) == 1
    pod = cluster.backend._view.pods[KEYS[0]]
    async with cluster.backend._code.leaving(pod):
        assert await maps(cluster) == []


async def test_what_somebody_deleted_is_made_again_when_a_node_misses_it(
    cluster: KubernetesWatched, code: bytes
) -> None:
    await apply(cluster, code, waits=True)
    (pod,) = await asyncio.to_thread(cluster.pods)
    made = await until_maps(cluster, 3)
    space = f"/api/v1/namespaces/{cluster.namespace}"
    for each in made:
        await asyncio.to_thread(cluster.plane.admin, "DELETE", f"{space}/configmaps/{each['metadata']['name']}")
    name = code_map_name(cluster.project, hashlib.sha256(code).hexdigest(), 1)
    about = {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    event = {
        "metadata": {"name": "missing"},
        "involvedObject": {**about, "namespace": cluster.namespace},
        "type": "Warning",
        "reason": "FailedMount",
        "message": f'MountVolume.SetUp failed for volume "code-parts" : configmap "{name}" not found',
    }
    await asyncio.to_thread(cluster.plane.admin, "POST", f"{space}/events", event)
    await until_maps(cluster, 3)
    newest = cluster.newest(key=KEYS[0])
    assert newest is not None
    assert "volume" not in [warning.reason for warning in newest.warnings]


async def test_what_is_there_already_is_taken_as_it_is(cluster: KubernetesWatched, code: bytes) -> None:
    """By its own digest the pod sees whether it is what was sent."""
    space = f"/api/v1/namespaces/{cluster.namespace}"
    await apply(cluster, code, seconds=0.05)
    await cluster.until("succeeded", key=KEYS[0])
    await cluster.backend.forget(KEYS[0], 1)
    theirs = {"metadata": {"name": code_map_name(cluster.project, hashlib.sha256(code).hexdigest(), 1)}, "data": {}}
    await asyncio.to_thread(cluster.plane.admin, "POST", f"{space}/configmaps", theirs)
    await apply(cluster, code, 1, waits=True)
    found = await until_maps(cluster, 3)
    assert [KEY in each.get("binaryData", {}) for each in found] == [True, False, True]


async def test_a_refusal_is_told_on_the_pod_that_waits_and_tried_again(cluster: KubernetesWatched, code: bytes) -> None:
    await apply(cluster, code, seconds=0.05)
    await cluster.until("succeeded", key=KEYS[0])
    await cluster.backend.forget(KEYS[0], 1)
    quotas = f"/api/v1/namespaces/{cluster.namespace}/resourcequotas"
    hard = {"count/configmaps": "0"}
    admin = cluster.plane.admin
    await asyncio.to_thread(admin, "POST", quotas, {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    used = {"status": {"hard": hard, "used": {"count/configmaps": "0"}}}
    await asyncio.to_thread(admin, "PATCH", f"{quotas}/q/status", used)
    await apply(cluster, code, 1, waits=True)
    async with asyncio.timeout(60):
        while not (told := _told(cluster, KEYS[1])):
            await asyncio.sleep(0.05)
    assert "exceeded quota" in told
    assert "an administrator may raise the ResourceQuota" in told
    await asyncio.to_thread(admin, "DELETE", f"{quotas}/q")
    await until_maps(cluster, 3)


def _told(cluster: KubernetesWatched, key: str) -> str:
    newest = cluster.newest(key=key)
    return "" if newest is None else "".join(each.message for each in newest.warnings if each.reason == "code")


async def test_an_image_that_cannot_unpack_it_is_why_the_run_failed(cluster: KubernetesWatched, code: bytes) -> None:
    simulated = {
        "simulation.muster.dev/init-exit-code": "81",
        "simulation.muster.dev/init-message": "the image has no tar",
    }
    await cluster.backend.apply(cluster.pod(code=hashlib.sha256(code).hexdigest(), annotations=simulated))
    end = await cluster.until("failed")
    assert (end.reason, "its image: the image has no tar; use an image" in end.message) == ("bad_code", True), end
    await cluster.backend.forget(KEYS[0], 1)
    assert await maps(cluster) == []


async def test_code_that_is_not_kept_fails_its_run_and_makes_no_pod(
    cluster: KubernetesWatched, kept: KeptArchives
) -> None:
    await apply(cluster, b"another")
    end = await cluster.until("failed", key=KEYS[0])
    assert (end.reason, "is not kept any more" in end.message) == ("bad_code", True)
    assert await asyncio.to_thread(cluster.pods) == []


async def test_who_may_make_pods_elsewhere_reads_no_code_of_the_project_by_its_marks(
    cluster: KubernetesWatched, code: bytes
) -> None:
    """In a namespace of another project of the same cluster, by a copy of the pod's object."""
    await apply(cluster, code, waits=True)
    await until_maps(cluster, 3)
    (pod,) = await asyncio.to_thread(cluster.pods)
    other = f"{cluster.namespace}-b"
    labels = {"muster.dev/cluster": cluster.project, "muster.dev/project": "id-of-b"}
    await asyncio.to_thread(
        cluster.plane.admin, "POST", "/api/v1/namespaces", {"metadata": {"name": other, "labels": labels}}
    )
    await cluster.backend.list_all()
    marks = pod["metadata"]["labels"] | {"muster.dev/pod-key": "cdefghijklmn-main-0"}
    copy = {
        "metadata": {"name": "copy", "labels": marks, "annotations": pod["metadata"]["annotations"]},
        "spec": {"containers": [{"name": "main", "image": "python:3.13"}], "nodeName": pod["spec"]["nodeName"]},
    }
    await asyncio.to_thread(cluster.plane.admin, "POST", f"/api/v1/namespaces/{other}/pods", copy)
    await cluster.until("starting", key="cdefghijklmn-main-0")
    for _ in range(2):
        # The agent makes for each pod in turn what it lacks: the second time it was at the copy in between.
        for each in await maps(cluster):
            path = f"/api/v1/namespaces/{cluster.namespace}/configmaps/{each['metadata']['name']}"
            await asyncio.to_thread(cluster.plane.admin, "DELETE", path)
        await cluster.backend.list_all()
        await until_maps(cluster, 3)
    path = f"/api/v1/namespaces/{other}/configmaps"
    found = (await asyncio.to_thread(cluster.plane.admin, "GET", path))["items"]
    assert [each["metadata"]["name"] for each in found if "code" in each["metadata"]["name"]] == []


async def test_no_project_takes_the_room_of_all_others(
    cluster: KubernetesWatched, code: bytes, kept: KeptArchives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_maps, "PROJECT_MAPS", 3)
    await apply(cluster, code, waits=True)
    small = os.urandom(100)
    kept.archives[hashlib.sha256(small).hexdigest()] = small
    await apply(cluster, small, 1)
    refused = await cluster.until("refused", key=KEYS[1])
    assert (refused.reason, "MiB of code of this project" in refused.message) == ("no_room_for_code", True), refused
    cluster.run |= {"project_name": f"{cluster.project}-b", "project_id": "id-of-b"}
    await apply(cluster, small, 1, token=2)
    await cluster.until("running", key=KEYS[1], token=2)


async def test_the_store_takes_so_much_and_no_more(
    cluster: KubernetesWatched, code: bytes, kept: KeptArchives, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted objects take room there for some time, too."""
    other = archive(tmp_path / "other", b"print('other')")
    kept.archives[hashlib.sha256(other).hexdigest()] = other
    monkeypatch.setattr(code_maps, "STORE_MAPS", 3)
    await apply(cluster, code, seconds=0.05)
    await cluster.until("succeeded", key=KEYS[0])
    await apply(cluster, other, 1)
    refused = await cluster.until("refused", key=KEYS[1])
    assert (refused.reason, "takes at most 1 MiB" in refused.message) == ("no_room_for_code", True), refused
    await cluster.backend.forget(KEYS[0], 1)
    await apply(cluster, other, 1, token=2)
    await cluster.until("refused", key=KEYS[1], token=2)
    monkeypatch.setattr(code_maps, "FREED_SECONDS", 0.0)
    await apply(cluster, other, 1, token=3)
    await until_maps(cluster, 1)


async def test_what_has_no_room_keeps_none_from_others(
    cluster: KubernetesWatched, code: bytes, kept: KeptArchives, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = archive(tmp_path / "other", b"print('other')")
    kept.archives[hashlib.sha256(other).hexdigest()] = other
    monkeypatch.setattr(code_maps, "STORE_MAPS", 2)
    await apply(cluster, code)
    await cluster.until("refused", key=KEYS[0])
    await apply(cluster, other, 1)
    await until_maps(cluster, 1)


async def test_each_look_at_what_nobody_uses_goes_through_the_pods_once_whatever_archives_there_are(
    cluster: KubernetesWatched, kept: KeptArchives, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second, between all else that the agent does."""
    looked = itertools.count()
    for index, key in enumerate(KEYS):
        small = b"print(%d)" % index
        kept.archives[hashlib.sha256(small).hexdigest()] = small
        await apply(cluster, small, index)
        await cluster.until("running", key=key)
    found = code_maps.set_of
    monkeypatch.setattr(code_maps, "set_of", lambda pod: (next(looked), found(pod))[1])
    assert isinstance(cluster.backend, KubernetesBackend)
    await cluster.backend._code.tidy()
    assert next(looked) <= 2 * len(KEYS), "whether each waits, and what each uses"
