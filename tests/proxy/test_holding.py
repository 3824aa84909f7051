"""Requests to inferences: held until a replica is up, spread over those that answer, and counted. S068, S069."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from events.ids import workload_key
from events.load import InferenceLoad
from events.workload.commands import CreateWorkload, PlacePods, PodFact, ScaleInference, SuspendWorkload
from events.workload.exposure import label_of
from events.workload.fields.inference import Autoscaling, Serving, ServingPort
from events.workload.pod import PodAddress, PodRef, PortAddress
from events.workload.spec import Inference, TrainingSpec
from services.proxy.forward import ClientGoneError, UnreachableError
from services.proxy.holding import Holding
from services.proxy.replicas import InTurn, NoReplicaError
from services.proxy.routes import Route, Target
from tests.proxy.given import Given
from tests.support.lives import SCHEDULER

pytestmark = pytest.mark.anyio
PORT = 8000


class Inferred(Given):
    """With one inference, of no replica that runs yet."""

    def __init__(self, **port: Any) -> None:
        super().__init__()
        scaling = Autoscaling(max_replicas=4, scale_to_zero_retention_seconds=60)
        serving = Serving(serving_port=ServingPort(container=PORT, **port), autoscaling=scaling)
        command = CreateWorkload(
            kind="Inference",
            name="chat",
            requested_name="chat",
            project_id=self.project,
            cluster_id=self.cluster,
            spec=TrainingSpec(image="i"),
            inference=Inference(serving=serving, replicas=1),
        )
        self.key = workload_key(self.project, "chat")
        assert self.world.do("workload", self.key, command) is None
        self.workload_id: str = self.world.state("workload", self.key).workload_id
        self.follow()

    @property
    def route(self) -> Route:
        (url,) = self.world.state("workload", self.key).exposed_urls
        route = self.routes.find(label_of(url, "chat", self.workload_id))
        assert route is not None
        return route

    def scale(self, replicas: int, was: int) -> None:
        self.world.do("workload", self.key, PlacePods(workload_id=self.workload_id), SCHEDULER)
        command = ScaleInference(
            workload_id=self.workload_id, replicas=replicas, was=was, reason="load", message="for a test"
        )
        assert self.world.do("workload", self.key, command, SCHEDULER) is None
        self.follow()

    def up(self, index: int, port: int) -> None:
        pod = PodRef(pod_set="replica", index=index, attempt=1, try_=0)
        self.world.place([(self.key, pod, self.node, index)])
        address = PodAddress(host="127.0.0.1", ports=(PortAddress(container=PORT, port=port),))
        self.report(self.key, PodFact(pod=pod, kind="running", at=self.world.now, address=address))


def holding(given: Inferred, **bounds: Any) -> Holding:
    limits: dict[str, Any] = {"takes": answers, "most": 10, "most_held": 3, "hold_seconds": 20.0} | bounds
    return Holding(given.routes, InTurn(given.routes, most=10), **limits)


async def answers(_: Target) -> bool:
    """A replica that takes connections as soon as it runs."""
    return True


async def warm(of: Holding, given: Inferred) -> None:
    """Its replicas are known to take connections, and nothing is counted yet."""
    async with of.one(given.route):
        await asyncio.sleep(0.01)
    load(of, given)


def load(of: Holding, given: Inferred) -> InferenceLoad:
    ((told,),) = (report.loads for report in of.reports([given.workload_id]))
    return told


@contextlib.asynccontextmanager
async def asking(of: Holding, route: Route, *, count: int) -> AsyncGenerator[list[asyncio.Task[Target]]]:
    """So many requests, each of which ends as soon as it has a pod."""

    async def one() -> Target:
        async with of.one(route) as target:
            return target

    tasks = [asyncio.create_task(one()) for _ in range(count)]
    await asyncio.sleep(0)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_inference_has_one_address_at_its_serving_port_for_whom_it_lets_in() -> None:
    given = Inferred(authorized_users=("ann",))
    route = given.route
    assert (route.container, route.serves) == (PORT, True)
    assert (route.access.type, route.access.members) == ("authorizedUsers", ("ann",))
    assert given.routes.inferences() == [given.workload_id]


async def test_requests_wait_for_the_first_replica_and_are_counted_while_they_do() -> None:
    given = Inferred()
    given.scale(0, 1)
    asked: list[str] = []
    held = holding(given, on_held=lambda: asked.append("now"), clock=lambda: 0.0)
    async with asking(held, given.route, count=2) as requests:
        assert load(held, given) == InferenceLoad(workload_id=given.workload_id, arrived=2, held=2)
        assert asked == ["now", "now"], "the autoscaler hears of it at once"
        given.scale(1, 0)
        held.moved(given.routes.moved())
        await asyncio.sleep(0)
        assert not any(request.done() for request in requests), "it starts"
        given.up(0, 4001)
        held.moved(given.routes.moved())
        assert [await request for request in requests] == [Target("127.0.0.1", 4001)] * 2
    assert load(held, given) == InferenceLoad(workload_id=given.workload_id, answered=2)


async def test_who_waits_looks_again_where_their_own_workload_has_changed_and_not_at_every_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands may wait, and the log moves all the time."""
    given = Inferred()
    given.routes.moved()
    looks = 0

    def looking(route: Route) -> bool:
        nonlocal looks
        looks += 1
        return may_come(route)

    may_come = given.routes.may_come
    monkeypatch.setattr(given.routes, "may_come", looking)
    held = holding(given)
    async with asking(held, given.route, count=2):
        before = looks
        for number in range(5):
            key = given.workload(f"another-{number}")
            assert given.workload_id not in (given.routes.moved() or ())
            given.runs(key, 4100 + number)
            held.moved(given.routes.moved())
            await asyncio.sleep(0)
        assert looks == before
        given.scale(2, 1)
        held.moved(given.routes.moved())
        await asyncio.sleep(0)
        assert looks == before + 2
        held.moved(None)
        await asyncio.sleep(0)
        assert looks == before + 4


async def test_no_more_wait_than_may_and_none_for_ever() -> None:
    given = Inferred()
    held = holding(given, hold_seconds=0.2)
    async with asking(held, given.route, count=4) as requests:
        with pytest.raises(NoReplicaError, match="3 requests wait for a replica of chat"):
            await requests[3]
        for request in requests[:3]:
            with pytest.raises(NoReplicaError, match=r"no replica of chat answered within 0\.2 s: it is Creating"):
                await request
    assert load(held, given).held == 0


async def test_who_goes_while_waiting_takes_no_place_and_is_no_load() -> None:
    """Clients that give up and ask again would fill the places, and have a replica work on what nobody reads."""
    given, went = Inferred(), asyncio.Event()
    held = holding(given, most_held=1)

    async def one() -> None:
        async with held.one(given.route, went.wait):
            pass

    request = asyncio.create_task(one())
    await asyncio.sleep(0)
    assert load(held, given).held == 1
    went.set()
    with pytest.raises(ClientGoneError):
        await request
    assert load(held, given).held == 0
    given.up(0, 4001)
    went.clear()
    held.moved(given.routes.moved())
    async with held.one(given.route, went.wait) as target:
        assert target.port == 4001


async def test_nobody_waits_for_one_that_is_suspended() -> None:
    given = Inferred()
    held = holding(given)
    async with asking(held, given.route, count=1) as (request,):
        assert given.world.do("workload", given.key, SuspendWorkload(workload_id=given.workload_id)) is None
        given.follow()
        held.moved(given.routes.moved())
        with pytest.raises(NoReplicaError, match="is Stopped"):
            await request
    with pytest.raises(NoReplicaError, match="is Stopped"):
        async with held.one(given.route):
            pass


async def test_the_replica_that_works_on_the_fewest_requests_gets_the_next_one() -> None:
    given = Inferred()
    given.scale(2, 1)
    given.up(0, 4001)
    given.up(1, 4002)
    held = holding(given, most=3)
    await warm(held, given)
    async with contextlib.AsyncExitStack() as under_way:
        ports = [(await under_way.enter_async_context(held.one(given.route))).port for _ in range(3)]
        assert sorted(ports[:2]) == [4001, 4002]
        with pytest.raises(NoReplicaError, match="3 requests to workload chat are under way"):
            await under_way.enter_async_context(held.one(given.route))
        told = load(held, given)
        assert (told.arrived, told.in_flight, told.answered) == (4, 3, 0)
    async with held.one(given.route), held.one(given.route) as second:
        assert second.port in {4001, 4002}
    assert load(held, given).answered == 5


async def test_a_replica_that_is_told_to_go_gets_no_more() -> None:
    given = Inferred()
    given.scale(2, 1)
    given.up(0, 4001)
    given.up(1, 4002)
    given.scale(1, 2)
    held = holding(given)
    async with contextlib.AsyncExitStack() as under_way:
        ports = {(await under_way.enter_async_context(held.one(given.route))).port for _ in range(5)}
    assert ports == {4001}


async def test_a_replica_that_runs_and_takes_no_connections_yet_is_waited_for() -> None:
    """It loads its model."""
    given = Inferred()
    given.scale(2, 1)
    given.up(0, 4001)
    loaded: set[int] = set()

    async def takes(target: Target) -> bool:
        return target.port in loaded

    held = holding(given, takes=takes)
    async with asking(held, given.route, count=1) as (request,):
        await asyncio.sleep(0.05)
        assert (request.done(), load(held, given).held) == (False, 1)
        given.up(1, 4002)
        loaded.add(4002)
        held.moved(given.routes.moved())
        assert (await request).port == 4002
    async with held.one(given.route) as target:
        assert target.port == 4002
    loaded.add(4001)
    await held.close()


async def test_a_replica_that_takes_no_connections_any_more_is_looked_at_again() -> None:
    given = Inferred()
    given.up(0, 4001)
    looked: list[int] = []

    async def takes(target: Target) -> bool:
        looked.append(target.port)
        return True

    held = holding(given, takes=takes)
    await warm(held, given)
    with pytest.raises(UnreachableError):
        async with held.one(given.route):
            raise UnreachableError("connection refused")
    assert load(held, given).arrived == 0, "it comes again, for another one"
    async with held.one(given.route):
        pass
    assert looked == [4001, 4001]


async def test_a_request_that_no_replica_answered_is_no_answer() -> None:
    given = Inferred()
    given.up(0, 4001)
    held = holding(given)
    with pytest.raises(OSError, match="broken"):
        async with held.one(given.route):
            raise OSError("broken")
    told = load(held, given)
    assert (told.arrived, told.answered, told.in_flight) == (1, 0, 0)


async def test_how_long_replicas_take_is_measured_from_when_they_have_the_request() -> None:
    given = Inferred()
    times = iter((0.0, 10.0, 10.25, 12.0))
    held = Holding(
        given.routes,
        InTurn(given.routes, most=1),
        takes=answers,
        most=1,
        most_held=1,
        hold_seconds=20,
        clock=lambda: next(times),
    )
    given.up(0, 4001)
    async with held.one(given.route):
        pass
    ((told,),) = (report.loads for report in held.reports([given.workload_id]))
    assert (told.answered, told.milliseconds) == (1, 250)


async def test_of_very_many_inferences_several_reports_tell() -> None:
    given = Inferred()
    reports = holding(given).reports([f"w{number}" for number in range(2500)])
    assert [len(report.loads) for report in reports] == [1000, 1000, 500]
    assert all(report.seconds > 0 for report in reports)
