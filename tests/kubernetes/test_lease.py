"""One agent of a cluster acts at a time; another is ready to (a real API server keeps the Lease)."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from development.kubernetes.control_plane import ControlPlane
from development.kubernetes.proxy import Mode, Request, proxied
from services.agent.backends.kubernetes.act.lease import DURATION_SECONDS, HELD_SECONDS, Identity, Lease
from services.agent.backends.kubernetes.backend import KubernetesBackend
from services.agent.backends.kubernetes.client import CALLS, ApiError, KubeClient, Timeouts
from services.agent.backends.kubernetes.connect import connect
from tests.kubernetes.given import open_kubernetes

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]

NAMESPACE = "muster-system-leases"


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def client_of(plane: ControlPlane, kubeconfig: Path | None = None) -> AsyncGenerator[KubeClient]:
    client = await connect(kubeconfig or plane.kubeconfig(), None, timeouts=Timeouts(call_seconds=5))
    try:
        yield client
    finally:
        await client.close()
        await asyncio.sleep(0.25)


def lease(client: KubeClient, cluster_id: str, identity: str, clock: Callable[[], float]) -> Lease:
    return Lease(client, namespace=NAMESPACE, cluster_id=cluster_id, identity=identity, clock=clock)


async def test_the_second_waits_until_the_first_has_been_silent_for_as_long_as_the_lease_lasts(
    control_plane: ControlPlane,
) -> None:
    """By then the first one has stopped acting, whatever it was doing: its own clock says so."""
    clock = Clock()
    async with client_of(control_plane) as client:
        first, second = (lease(client, "silent", name, clock) for name in ("one", "two"))
        await first._turn()
        await second._turn()
        assert (first.held(), second.held(), second.other) == (True, False, "one")
        clock.now += HELD_SECONDS
        assert not first.held()
        clock.now += DURATION_SECONDS - HELD_SECONDS
        await second._turn()
        assert not second.held()
        clock.now += 0.1
        await second._turn()
        assert second.held()
        await first._turn()
        assert (first.held(), first.other) == (False, "two")


async def test_a_lease_that_is_renewed_is_not_taken_however_long_one_waits(control_plane: ControlPlane) -> None:
    clock = Clock()
    async with client_of(control_plane) as client:
        first, second = (lease(client, "renewed", name, clock) for name in ("one", "two"))
        for _ in range(10):
            await first._turn()
            await second._turn()
            clock.now += HELD_SECONDS / 2
        assert (first.held(), second.held(), first.term) == (True, False, 1)


async def test_who_stood_still_and_finds_it_still_his_lists_everything_again(control_plane: ControlPlane) -> None:
    """The term says so: in between somebody else may have acted."""
    clock = Clock()
    async with client_of(control_plane) as client:
        only = lease(client, "still", "one", clock)
        await only._turn()
        clock.now += 100
        assert not only.held()
        await only._turn()
        assert (only.held(), only.term) == (True, 2)


async def test_a_renewal_counts_from_when_it_was_asked_for_however_long_the_answer_takes(
    control_plane: ControlPlane,
) -> None:
    """The API server may have stored it at once: from then on others count."""
    clock, asked_at = Clock(), 1000.0
    async with (
        proxied(control_plane) as proxy,
        client_of(control_plane, control_plane.kubeconfig(url=proxy.url)) as client,
    ):
        only = lease(client, "slow", "one", clock)
        await only._turn()

        def takes_long(request: Request) -> bool:
            if request.method == "PATCH":
                clock.now = asked_at + HELD_SECONDS - 2
            return False

        proxy.only = takes_long
        await only._turn()
        assert only.held()
        clock.now = asked_at + HELD_SECONDS
        assert not only.held()


async def test_it_is_renewed_while_more_calls_than_may_be_under_way_wait_for_an_answer(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """As where thousands of pods are made at once: without it, nothing would be made at all."""
    async with proxied(control_plane) as proxy:
        agent = await open_kubernetes(control_plane, tmp_path, kubeconfig=control_plane.kubeconfig(url=proxy.url))
        backend = agent.backend
        assert isinstance(backend, KubernetesBackend)
        proxy.only = lambda request: "/configmaps/waits" in request.path
        proxy.mode = Mode.HOLD
        path = "/api/v1/namespaces/default/configmaps/waits"
        waiting = [asyncio.create_task(backend._client.has(path)) for _ in range(2 * CALLS)]
        async with asyncio.timeout(60):
            while proxy.struck[Mode.HOLD] < CALLS:
                await asyncio.sleep(0.02)
            await backend._lease._turn()
        assert backend._lease.held()
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        proxy.mode = Mode.PASS
        await agent.close()


async def test_while_it_is_held_a_renewal_is_one_call(control_plane: ControlPlane) -> None:
    clock = Clock()
    async with (
        proxied(control_plane) as proxy,
        client_of(control_plane, control_plane.kubeconfig(url=proxy.url)) as client,
    ):
        only, other = (lease(client, "one-call", name, clock) for name in ("one", "two"))
        await only._turn()
        proxy.requests.clear()
        for _ in range(3):
            await only._turn()
        assert [method for (method, _), count in proxy.requests.items() for _ in range(count)] == ["PATCH"] * 3
        clock.now += DURATION_SECONDS
        await other._turn()
        clock.now += DURATION_SECONDS + 0.1
        await other._turn()
        only._held_until = clock.now + 1
        await only._turn()
        assert (only.held(), only.other, other.held()) == (False, "two", True)


async def test_of_many_that_ask_at_once_one_gets_it(control_plane: ControlPlane) -> None:
    clock = Clock()
    async with client_of(control_plane) as client:
        many = [lease(client, "asked", f"agent-{number}", clock) for number in range(20)]
        for _ in range(3):
            await asyncio.gather(*(one._turn() for one in many))
            assert sum(one.held() for one in many) == 1
            clock.now += DURATION_SECONDS + 1


async def test_who_leaves_in_good_order_keeps_nobody_waiting(control_plane: ControlPlane) -> None:
    async with client_of(control_plane) as client:
        first = Lease(client, namespace=NAMESPACE, cluster_id="left", identity="one")
        await first.start()
        assert first.held()
        await first.close()
        second = Lease(client, namespace=NAMESPACE, cluster_id="left", identity="two")
        await second.start()
        assert second.held()
        await second.close()


async def test_an_api_server_that_does_not_answer_ends_the_acting(control_plane: ControlPlane) -> None:
    clock = Clock()
    async with (
        proxied(control_plane) as proxy,
        client_of(control_plane, control_plane.kubeconfig(url=proxy.url)) as client,
    ):
        only = lease(client, "away", "one", clock)
        await only._turn()
        proxy.mode = Mode.TOO_MANY
        with pytest.raises(ApiError):
            await only._turn()
        clock.now += HELD_SECONDS
        assert not only.held()
        assert only.other == "", "it goes on to speak for its cluster: nobody else does"


def test_an_identity_outlives_its_process_and_belongs_to_one(tmp_path: Path) -> None:
    first = Identity(tmp_path)
    beside = Identity(tmp_path)
    assert beside.name != first.name
    first.close()
    again = Identity(tmp_path)
    assert again.name == first.name
    for one in (beside, again):
        one.close()


def test_a_folder_that_was_copied_to_another_machine_gives_no_claim_to_the_lease(tmp_path: Path) -> None:
    """Both would take it by turns, without a wait in between."""
    (tmp_path / "identity").write_text("another-machine-with-a-long-name-0011aabb")
    copied = Identity(tmp_path)
    assert copied.name.startswith(f"{socket.gethostname()}-")
    assert (tmp_path / "identity").read_text() == copied.name
    copied.close()
