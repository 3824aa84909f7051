"""Fences outlive the agent, never go down, and hold whoever else writes them (architecture.md section 6)."""

import asyncio
import re
import secrets
import time
from collections.abc import Callable

import pytest

from development.kubernetes.control_plane import ControlPlane
from services.agent.backends.interface import BackendError
from services.agent.backends.kubernetes.act import fences as module
from services.agent.backends.kubernetes.act.fences import HOUR_SECONDS, KEPT_HOURS, Fences
from services.agent.backends.kubernetes.client import ApiError, KubeClient
from services.agent.backends.kubernetes.names import CLUSTER, fence_map_name
from tests.support.kube import client_of, namespace

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]

CLUSTER_ID = "c0ffee"


@pytest.fixture
def space(control_plane: ControlPlane) -> str:
    return namespace(control_plane, f"fences-{secrets.token_hex(4)}")


def fences_of(client: KubeClient, space: str, shards: int = 2, clock: Callable[[], float] = time.time) -> Fences:
    return Fences(client, namespace=space, cluster_id=CLUSTER_ID, shards=shards, clock=clock)


async def loaded(client: KubeClient, space: str, shards: int = 2) -> dict[str, int]:
    """What an agent that starts now knows."""
    fences = fences_of(client, space, shards)
    await fences.load()
    return dict(fences.tokens)


def maps(control_plane: ControlPlane, space: str) -> dict[str, dict]:
    found = control_plane.admin("GET", f"/api/v1/namespaces/{space}/configmaps", labelSelector=CLUSTER)["items"]
    return {item["metadata"]["name"]: item for item in found}


async def test_a_raised_fence_is_known_to_the_agent_that_starts_next(control_plane: ControlPlane, space: str) -> None:
    async with client_of(control_plane) as client:
        fences = fences_of(client, space)
        await fences.load()
        await fences.raise_to("k1-main-0", 7)
        await fences.raise_to("k1-main-0", 5)
        await fences.raise_to("k2-main-0", 1)
        assert fences.tokens == {"k1-main-0": 7, "k2-main-0": 1}
        assert await loaded(client, space) == fences.tokens


async def test_a_person_can_read_the_map(control_plane: ControlPlane, space: str) -> None:
    async with client_of(control_plane) as client:
        await fences_of(client, space, shards=1).raise_to("k1-main-0", 7)
    [(name, found)] = maps(control_plane, space).items()
    assert name == fence_map_name(CLUSTER_ID, 0)
    assert re.fullmatch(r"7 20\d\d-\d\d-\d\dT\d\dZ", found["data"]["k1-main-0"])


async def test_many_raises_at_once_become_few_patches(control_plane: ControlPlane, space: str) -> None:
    wanted = {f"k{n}-main-0": n + 1 for n in range(500)}
    async with client_of(control_plane) as client:
        fences = fences_of(client, space, shards=1)
        await fences.raise_to("first", 1)
        before = await sent(client)
        await asyncio.gather(*(fences.raise_to(key, token) for key, token in wanted.items()))
        patches = await sent(client) - before
        assert await loaded(client, space, shards=1) == wanted | {"first": 1}
    assert patches <= 2


async def sent(client: KubeClient) -> int:
    """Patches of ConfigMaps that the API server has answered."""
    text = (await client.read("/metrics")).decode()
    lines = re.findall(r"^apiserver_request_total\{([^}]*)\} (\d+)", text, re.MULTILINE)
    return sum(int(n) for labels, n in lines if 'resource="configmaps"' in labels and 'verb="PATCH"' in labels)


async def test_two_agents_at_once_lose_nothing_of_each_others(control_plane: ControlPlane, space: str) -> None:
    async with client_of(control_plane) as client:
        agents = [fences_of(client, space) for _ in range(3)]
        await asyncio.gather(*(agent.load() for agent in agents))

        async def raise_all(agent: Fences, number: int) -> None:
            for turn in range(15):
                await asyncio.gather(
                    agent.raise_to("shared", number + 3 * turn), agent.raise_to(f"own-{number}-{turn}", turn + 1)
                )

        await asyncio.gather(*(raise_all(agent, number) for number, agent in enumerate(agents)))
        own = {f"own-{number}-{turn}": turn + 1 for number in range(3) for turn in range(15)}
        assert await loaded(client, space) == own | {"shared": 2 + 3 * 14}


async def test_what_another_agent_raised_higher_is_taken_over(control_plane: ControlPlane, space: str) -> None:
    async with client_of(control_plane) as client:
        slow, quick = fences_of(client, space), fences_of(client, space)
        await slow.load()
        await slow.raise_to("k1-main-0", 1)
        await quick.raise_to("k1-main-0", 9)
        await slow.raise_to("k1-main-0", 4)
        assert slow.tokens["k1-main-0"] == 9
        assert (await loaded(client, space))["k1-main-0"] == 9


async def test_a_deleted_map_is_made_again_with_all_that_is_known(control_plane: ControlPlane, space: str) -> None:
    async with client_of(control_plane) as client:
        fences = fences_of(client, space, shards=1)
        await fences.raise_to("k1-main-0", 7)
        control_plane.admin("DELETE", f"/api/v1/namespaces/{space}/configmaps/{fence_map_name(CLUSTER_ID, 0)}")
        await fences.raise_to("k2-main-0", 1)
        assert await loaded(client, space, shards=1) == {"k1-main-0": 7, "k2-main-0": 1}


async def test_a_fence_that_somebody_lowered_by_hand_is_put_back(control_plane: ControlPlane, space: str) -> None:
    path = f"/api/v1/namespaces/{space}/configmaps/{fence_map_name(CLUSTER_ID, 0)}"
    async with client_of(control_plane) as client:
        fences = fences_of(client, space, shards=1)
        await fences.raise_to("k1-main-0", 7)
        control_plane.admin("PATCH", path, {"data": {"k1-main-0": "2 2026-01-01T00Z", "odd": "not a fence"}})
        await fences.load()
        assert fences.tokens["k1-main-0"] == 7
        await fences.raise_to("k2-main-0", 1)
        assert await loaded(client, space, shards=1) == {"k1-main-0": 7, "k2-main-0": 1}


async def test_a_missing_namespace_is_made_by_who_may(control_plane: ControlPlane) -> None:
    name = f"fences-{secrets.token_hex(4)}"
    async with client_of(control_plane) as client:
        await fences_of(client, name).load()
        await fences_of(client, name).raise_to("k1-main-0", 1)
        assert await loaded(client, name) == {"k1-main-0": 1}


async def test_who_may_not_make_the_namespace_says_so(control_plane: ControlPlane, space: str) -> None:
    missing = f"fences-{secrets.token_hex(4)}"
    control_plane.apply(may_use_maps(space))
    token = control_plane.service_account_token(space, "agent")
    async with client_of(control_plane, token) as client:
        with pytest.raises(BackendError, match="there is no namespace"):
            await fences_of(client, missing).raise_to("k1-main-0", 1)


def may_use_maps(space: str) -> list[dict]:
    """A service account with the rights on ConfigMaps that fences need, in any namespace."""
    name = f"maps-{space}"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "agent", "namespace": space}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "create", "patch"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": "agent", "namespace": space}],
        },
    ]


async def test_a_fence_that_did_not_move_for_long_is_dropped(control_plane: ControlPlane, space: str) -> None:
    now = 1_800_000_000.0
    async with client_of(control_plane) as client:
        fences = fences_of(client, space, shards=1, clock=lambda: now)
        await fences.raise_to("old", 3)
        now += (KEPT_HOURS - 1) * HOUR_SECONDS
        await fences.raise_to("new", 1)
        assert fences.tokens == {"old": 3, "new": 1}
        now += 2 * HOUR_SECONDS
        await fences.raise_to("newest", 1)
        assert fences.tokens == {"new": 1, "newest": 1}
        assert await loaded(client, space, shards=1) == fences.tokens


async def test_a_full_map_drops_its_oldest(
    control_plane: ControlPlane, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_800_000_000.0
    async with client_of(control_plane) as client:
        fences = fences_of(client, space, shards=1, clock=lambda: now)
        await asyncio.gather(*(fences.raise_to(f"old-{n}", 1) for n in range(20)))
        now += HOUR_SECONDS
        monkeypatch.setattr(module, "MAP_BYTES", 600)
        await asyncio.gather(*(fences.raise_to(f"new-{n}", 1) for n in range(10)))
        kept = await loaded(client, space, shards=1)
    assert {f"new-{n}" for n in range(10)} < kept.keys()
    assert len(kept) < 30
    assert kept == fences.tokens


async def test_a_full_map_is_taken_by_the_api_server(control_plane: ControlPlane, space: str) -> None:
    keys = [f"abcdefghijkl-worker-{n}" for n in range(20_000)]
    async with client_of(control_plane) as client:
        fences = fences_of(client, space, shards=1)
        await fences.raise_to("first", 1)
        for start in range(0, len(keys), 2_000):
            await asyncio.gather(*(fences.raise_to(key, 1_000_000) for key in keys[start : start + 2_000]))
        assert 15_000 < len(fences.tokens) < 20_000
        assert await loaded(client, space, shards=1) == fences.tokens
    [found] = maps(control_plane, space).values()
    assert not found["metadata"].get("managedFields")


async def test_while_the_api_server_is_away_nothing_counts_as_raised(control_plane: ControlPlane, space: str) -> None:
    async with client_of(control_plane) as client:
        fences = fences_of(client, space, shards=1)
        await fences.raise_to("k1-main-0", 1)
    async with client_of(control_plane, url="https://127.0.0.1:1") as away:
        lost = fences_of(away, space, shards=1)
        results = await asyncio.gather(*(lost.raise_to(f"k{n}-main-0", 2) for n in range(50)), return_exceptions=True)
        assert all(isinstance(result, ApiError) and result.unreachable for result in results)
        assert not lost.tokens


async def test_one_who_goes_away_takes_nobody_elses_raise_along(control_plane: ControlPlane, space: str) -> None:
    async with client_of(control_plane) as client:
        fences = fences_of(client, space, shards=1)
        impatient = asyncio.create_task(fences.raise_to("k1-main-0", 1))
        patient = asyncio.create_task(fences.raise_to("k2-main-0", 1))
        await asyncio.sleep(0)
        impatient.cancel()
        await patient
        assert await loaded(client, space, shards=1) == {"k1-main-0": 1, "k2-main-0": 1}
        await fences.close()


async def test_what_another_agent_raised_is_learned_at_a_look(control_plane: ControlPlane, space: str) -> None:
    async with client_of(control_plane) as client:
        fences, other = fences_of(client, space), fences_of(client, space)
        await fences.look("k1-main-0")
        assert fences.tokens == {}
        await other.raise_to("k1-main-0", 7)
        await asyncio.gather(*(fences.look("k1-main-0") for _ in range(20)))
        assert fences.tokens == {"k1-main-0": 7}
        await fences.raise_to("k1-main-0", 8)
        assert await loaded(client, space) == {"k1-main-0": 8}
