"""A device that several pods share is held by one reservation pod, from the first user to the last (kubernetes.md 1).

On a simulated node the pod is said to be given the device `GPU-<its uid>`. On a node that is not there, nothing happens
to a pod but what a test does.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from development.kubernetes.control_plane import ControlPlane
from development.kubernetes.simulated.admin import AdminError
from services.agent.backends.interface import BackendError
from services.agent.backends.kubernetes.act.objects import Pod
from services.agent.backends.kubernetes.act.reservations import NoDeviceError, Reservations
from services.agent.backends.kubernetes.client import KubeClient
from services.agent.backends.kubernetes.names import (
    CLUSTER,
    DEVICE_PROBLEM,
    GPU_RESERVATION,
    RESERVATIONS,
    VISIBLE_DEVICES,
    reservation_name,
)
from tests.support.kube import client_of, namespace

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]

CLUSTER_ID = "c0ffee"
SYSTEM = "reservations"


class Site:
    """One node of its own, our objects on it, and the agents' informer."""

    def __init__(self, control_plane: ControlPlane, client: KubeClient) -> None:
        self.admin = control_plane.admin
        self.client = client
        self.node = f"gpu-{secrets.token_hex(4)}"
        self.agents: list[Reservations] = []
        self.acts = True
        """Whether these agents may act; false: another agent of the cluster does."""

    def agent(self, *, wait_seconds: float = 60.0, unused_seconds: float = 0.0) -> Reservations:
        reservations = Reservations(
            self.client,
            namespace=SYSTEM,
            cluster_id=CLUSTER_ID,
            image="muster",
            acts=lambda: self.acts,
            wait_seconds=wait_seconds,
            unused_seconds=unused_seconds,
        )
        self.agents.append(reservations)
        return reservations

    def reservations(self) -> list[Pod]:
        path = f"/api/v1/namespaces/{SYSTEM}/pods"
        return self._pods(path, GPU_RESERVATION)

    def users(self) -> list[Pod]:
        return self._pods("/api/v1/pods", f"{CLUSTER}={CLUSTER_ID},!{GPU_RESERVATION}")

    def _pods(self, path: str, selector: str) -> list[Pod]:
        items = self.admin("GET", path, labelSelector=selector, fieldSelector=f"spec.nodeName={self.node}")["items"]
        return [msgspec.convert(item, Pod) for item in items]

    def name(self, device: int) -> str:
        return reservation_name(CLUSTER_ID, self.node, device)

    def path(self, device: int) -> str:
        return f"/api/v1/namespaces/{SYSTEM}/pods/{self.name(device)}"

    def start_user(self, *names: str) -> str:
        """A pod that shares devices; its path."""
        name = f"user-{secrets.token_hex(4)}"
        meta = {"name": name, "labels": {CLUSTER: CLUSTER_ID}, "annotations": {RESERVATIONS: ",".join(names)}}
        spec = {"nodeName": self.node, "containers": [{"name": "main", "image": "x"}]}
        spec |= {"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
        self.admin("POST", f"/api/v1/namespaces/{SYSTEM}/pods", {"metadata": meta, "spec": spec})
        return f"/api/v1/namespaces/{SYSTEM}/pods/{name}"

    def end(self, path: str) -> None:
        self.admin("PATCH", f"{path}/status", {"status": {"phase": "Succeeded"}})

    async def tidy_until(self, agent: Reservations, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not reached():
                await agent.tidy(self.users())
                await asyncio.sleep(0.05)

    def say(self, annotations: dict[str, str]) -> None:
        """What the program of the reservation pod of device 0 would."""
        self.admin("PATCH", self.path(0), {"metadata": {"annotations": annotations}})

    def refuse(self) -> None:
        """What the node's kubelet would, where it has no device left."""
        status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no devices left"}
        self.admin("PATCH", f"{self.path(0)}/status", {"status": status})

    async def watch(self) -> None:
        known: dict[str, str] = {}
        while True:
            found = self.reservations()
            there = {pod.metadata.uid: pod.metadata.name for pod in found}
            for agent in self.agents:
                for uid in known.keys() - there.keys():
                    agent.see_gone(known[uid], uid)
                for pod in found:
                    agent.see(pod)
            known = there
            await asyncio.sleep(0.05)


@asynccontextmanager
async def site_of(control_plane: ControlPlane, *, simulated: bool = True) -> AsyncGenerator[Site]:
    with contextlib.suppress(AdminError):
        namespace(control_plane, SYSTEM)
    async with client_of(control_plane) as client:
        site = Site(control_plane, client)
        if simulated:
            control_plane.add_nodes([site.node])
        informer = asyncio.create_task(site.watch())
        yield site
        informer.cancel()
        await asyncio.gather(informer, return_exceptions=True)


async def test_those_who_share_a_device_get_the_same_one(control_plane: ControlPlane) -> None:
    async with site_of(control_plane) as site:
        agent = site.agent()

        async def held() -> tuple[str, ...]:
            async with agent.hold(site.node, [0]) as held:
                assert held.names == (site.name(0),)
                return held.devices

        told = await asyncio.gather(*(held() for _ in range(10)))
        [pod] = site.reservations()
        assert set(told) == {(f"GPU-{pod.metadata.uid}",)}
        assert pod.spec.containers[0].resources.limits["nvidia.com/gpu"] == "1"


async def test_each_logical_device_has_a_reservation_of_its_own(control_plane: ControlPlane) -> None:
    async with site_of(control_plane) as site, site.agent().hold(site.node, [1, 0]) as held:
        assert held.names == (site.name(1), site.name(0))
        assert len(set(held.devices)) == 2


async def test_two_agents_at_once_make_one_reservation(control_plane: ControlPlane) -> None:
    async with site_of(control_plane) as site:
        one, other = site.agent(), site.agent()
        async with one.hold(site.node, [0]) as first, other.hold(site.node, [0]) as second:
            assert first == second
        assert len(site.reservations()) == 1


async def test_an_agent_that_starts_anew_uses_what_is_there(control_plane: ControlPlane) -> None:
    async with site_of(control_plane) as site:
        async with site.agent().hold(site.node, [0]) as before:
            site.start_user(*before.names)
        async with site.agent().hold(site.node, [0]) as after:
            assert after == before


async def test_the_reservation_goes_with_its_last_user(control_plane: ControlPlane) -> None:
    async with site_of(control_plane) as site:
        agent = site.agent()
        async with agent.hold(site.node, [0]) as held:
            first, last = site.start_user(*held.names), site.start_user(*held.names)
        site.end(first)
        for _ in range(5):
            await agent.tidy(site.users())
        [pod] = site.reservations()
        assert pod.metadata.deletion_timestamp is None
        site.end(last)
        await site.tidy_until(agent, lambda: not site.reservations())


async def test_while_a_pod_is_being_created_its_reservation_stays(control_plane: ControlPlane) -> None:
    async with site_of(control_plane) as site:
        agent = site.agent()
        async with agent.hold(site.node, [0]):
            for _ in range(5):
                await agent.tidy([])
            [pod] = site.reservations()
            assert pod.metadata.deletion_timestamp is None


async def test_a_user_that_the_informer_has_not_told_of_yet_keeps_its_reservation(control_plane: ControlPlane) -> None:
    async with site_of(control_plane) as site:
        agent = site.agent()
        async with agent.hold(site.node, [0]) as held:
            site.start_user(*held.names)
        for _ in range(5):
            await agent.tidy([])
        [pod] = site.reservations()
        assert pod.metadata.deletion_timestamp is None


async def test_a_used_reservation_that_somebody_deletes_is_made_again(control_plane: ControlPlane) -> None:
    async with site_of(control_plane) as site:
        agent = site.agent()
        async with agent.hold(site.node, [0]) as before:
            site.start_user(*before.names)
        site.admin("DELETE", site.path(0))
        await site.tidy_until(
            agent, lambda: any(f"GPU-{p.metadata.uid}" not in before.devices for p in site.reservations())
        )
        async with agent.hold(site.node, [0]) as after:
            assert after.names == before.names
            assert after.devices != before.devices


async def test_a_used_reservation_that_was_gone_before_the_agent_started_is_made_again(
    control_plane: ControlPlane,
) -> None:
    async with site_of(control_plane) as site:
        site.start_user(site.name(3))
        await site.tidy_until(site.agent(), lambda: [p.metadata.name for p in site.reservations()] == [site.name(3)])


async def hold_once(agent: Reservations, node: str) -> tuple[str, ...]:
    async with agent.hold(node, [0]) as held:
        return held.devices


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not reached():
            await asyncio.sleep(0.05)


async def test_a_reservation_that_was_refused_is_made_again(control_plane: ControlPlane) -> None:
    async with site_of(control_plane, simulated=False) as site:
        holding = asyncio.create_task(hold_once(site.agent(), site.node))
        await until(lambda: bool(site.reservations()))
        [refused] = site.reservations()
        site.refuse()
        await until(lambda: any(pod.metadata.uid != refused.metadata.uid for pod in site.reservations()))
        site.say({VISIBLE_DEVICES: "GPU-1"})
        assert await holding == ("GPU-1",)


async def test_where_the_node_has_no_device_the_wait_ends_with_its_words(control_plane: ControlPlane) -> None:
    async with site_of(control_plane, simulated=False) as site:
        holding = asyncio.create_task(hold_once(site.agent(wait_seconds=3.0), site.node))
        while not holding.done():
            if any(not pod.ended for pod in site.reservations()):
                with contextlib.suppress(AdminError):
                    site.refuse()
            await asyncio.sleep(0.05)
        with pytest.raises(NoDeviceError, match="UnexpectedAdmissionError: no devices left"):
            await holding


async def test_a_reservation_that_says_nothing_ends_the_wait_in_words(control_plane: ControlPlane) -> None:
    async with site_of(control_plane, simulated=False) as site:
        with pytest.raises(BackendError, match=f"device 0 of node {site.node}.*did not say which device"):
            await hold_once(site.agent(wait_seconds=1.0), site.node)


async def test_a_reservation_that_was_given_no_device_says_why(control_plane: ControlPlane) -> None:
    async with site_of(control_plane, simulated=False) as site:
        agent = site.agent()
        holding = asyncio.create_task(hold_once(agent, site.node))
        await until(lambda: bool(site.reservations()))
        site.say({DEVICE_PROBLEM: "NVIDIA_VISIBLE_DEVICES is empty"})
        with pytest.raises(BackendError, match="NVIDIA_VISIBLE_DEVICES is empty"):
            await holding


async def test_another_pod_under_the_name_is_left_alone_and_named(control_plane: ControlPlane) -> None:
    async with site_of(control_plane) as site:
        spec = {"nodeName": site.node, "containers": [{"name": "x", "image": "x"}]}
        body = {"metadata": {"name": site.name(0)}, "spec": spec}
        site.admin("POST", f"/api/v1/namespaces/{SYSTEM}/pods", body)
        with pytest.raises(BackendError, match="that Muster did not make has that name"):
            await hold_once(site.agent(), site.node)
        assert site.admin("GET", site.path(0))["metadata"].get("deletionTimestamp") is None


async def test_a_device_is_vacated_at_once_where_nobody_shares_it(control_plane: ControlPlane) -> None:
    async with site_of(control_plane) as site:
        agent = site.agent(unused_seconds=1000.0)
        await agent.vacate(site.node, [0])
        async with agent.hold(site.node, [0, 1]) as held:
            user = site.start_user(held.names[0])
        with pytest.raises(BackendError, match="still being shared"):
            await agent.vacate(site.node, [0])
        site.end(user)
        await agent.vacate(site.node, [0])
        assert [pod.metadata.name for pod in site.reservations()] == [site.name(1)]


async def test_a_device_that_is_asked_for_while_it_is_given_up_is_held_anew(control_plane: ControlPlane) -> None:
    async with site_of(control_plane) as site:
        agent = site.agent()
        before = await hold_once(agent, site.node)
        await asyncio.gather(agent.vacate(site.node, [0]), asyncio.sleep(0))
        after = await hold_once(agent, site.node)
        assert before != after
        [pod] = site.reservations()
        assert after == (f"GPU-{pod.metadata.uid}",)


async def test_an_agent_that_may_not_act_makes_none(control_plane: ControlPlane) -> None:
    """The device may be another's by now."""
    async with site_of(control_plane) as site:
        agent = site.agent()
        site.acts = False
        with pytest.raises(BackendError, match="another agent of this cluster acts"):
            async with agent.hold(site.node, [0]):
                pytest.fail("nobody holds it")
        site.start_user(site.name(0))
        await agent.tidy(site.users())
        assert site.reservations() == []
        site.acts = True
        await site.tidy_until(agent, lambda: len(site.reservations()) == 1)
