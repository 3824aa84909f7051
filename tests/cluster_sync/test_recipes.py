"""What runs are made of is told to the agent that is about to start them, and stands in no stream: however large it is,
WANTED has room for everybody's pods.
"""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.msg import Msg

from events.aggregate import CLUSTER, WORKLOAD
from events.cluster_protocol import RecipeRequest, SettledPod, StartPod, StopPod
from events.ids import cluster_key
from events.project import Project
from events.subjects import WANTED_STREAM, agent_recipes_subject, recipes_subject
from events.workload.commands import DeleteWorkload
from events.workload.fields.metadata import Annotation
from events.workload.fields.process import EnvironmentVariable
from events.workload.pod import DeviceShare
from services.cluster_sync import recipes
from services.cluster_sync.fold import DesiredState
from services.cluster_sync.recipes import Recipes
from services.cluster_sync.reconcile import desired_pod, run_pod, start_pod
from services.runtime.process.buckets import Buckets
from tests.cluster_sync.given import CLUSTER_ID, KEY, POD, World, eventually, serving
from tests.events.given import Story

pytestmark = pytest.mark.anyio

LARGE = (EnvironmentVariable(name="BLOB", value="x" * 400_000),)
PODS = 2_000
WORD_BYTES = 2_048
"""More than any word of WANTED about a run has, with sixteen devices."""


async def answers(world: World, requests: list[RecipeRequest], *, seconds: float) -> list[Msg]:
    """What is said to the cluster's agent, until so many answers have come or the time is over."""
    heard: list[Msg] = []

    async def hear(message: Msg) -> None:
        heard.append(message)

    subscription = await world.nc.subscribe(agent_recipes_subject(CLUSTER_ID), cb=hear)
    for request in requests:
        await world.nc.publish(recipes_subject(CLUSTER_ID), msgspec.json.encode(request))
    try:
        async with asyncio.timeout(seconds):
            while len(heard) < len(requests):
                await asyncio.sleep(0.02)
    except TimeoutError:
        pass
    await subscription.unsubscribe()
    return heard


async def test_once_it_has_started_no_request_is_lost(world: World) -> None:
    """cluster_sync calls itself ready after that: NATS has the subscription by then."""
    await Recipes(world.nc, DesiredState(), on_wait=print, on_unwanted=print).start()
    assert not world.nc.pending_data_size


async def test_two_thousand_pods_of_the_largest_spec_are_told_and_leave_room_for_everybody(world: World) -> None:
    """With their specs in WANTED, 650 of them filled it, and no run of any project started until they had ended."""
    async with serving(world.server):
        await world.create(command="true", completions=PODS, parallelism=PODS, environment_variables=LARGE)
        await world.bind()

        async def told() -> bool:
            return (await world.nc.jetstream().stream_info(WANTED_STREAM)).state.messages > PODS

        await eventually(told, seconds=60)
        stream = (await world.nc.jetstream().stream_info(WANTED_STREAM)).state
        assert stream.bytes < PODS * WORD_BYTES
        for index in (0, PODS // 2, PODS - 1):
            word = await world.wanted(f"{KEY}-main-{index}")
            recipe = await world.recipe(word)
            assert (recipe.pod_key, recipe.token, recipe.node_name) == (word.pod_key, word.token, word.node_name)
            assert recipe.environment == {"BLOB": LARGE[0].value}


@given(value=st.text(max_size=20), size=st.integers(1, 2_000), devices=st.integers(0, 16))
def test_nothing_that_a_person_makes_large_makes_a_word_of_wanted_large(value: str, size: int, devices: int) -> None:
    text = value * size
    state = (
        Story()
        .created(
            working_dir=text,
            args=f"'{text.replace(chr(39), '')}'",
            environment_variables=(EnvironmentVariable(name="A", value=text),),
            annotations=(Annotation(name="a", value=text),),
        )
        .bound()
        .state
    )
    pod = msgspec.structs.replace(
        state.pods["main", 0], devices=tuple(DeviceShare(device=n, milli=1000) for n in range(devices))
    )
    desired = desired_pod(KEY, ("main", 0), state, pod, Project(name=text))
    assert desired is not None
    assert len(msgspec.json.encode(start_pod(desired))) < WORD_BYTES


def test_the_recipe_says_of_the_run_what_its_word_in_wanted_says() -> None:
    state = Story().created(command="true").bound().state
    desired = desired_pod(KEY, ("main", 0), state, state.pods["main", 0], Project(name="nlp"))
    assert desired is not None
    word, recipe = start_pod(desired), run_pod(desired)
    for field in StartPod.__struct_fields__:
        assert getattr(recipe, field) == getattr(word, field), field


@pytest.mark.parametrize("when", ["never was", "of an older run", "told to go", "not one"])
async def test_a_run_that_should_not_be_started_has_no_recipe(world: World, when: str) -> None:
    async with serving(world.server):
        workload_id = await world.create(command="true")
        await world.bind()
        word = await world.wanted_is(StartPod)
        asked = RecipeRequest(pod_key=word.pod_key, token=word.token)
        if when == "never was":
            asked = RecipeRequest(pod_key=f"{KEY}-main-7", token=word.token)
        elif when == "of an older run":
            asked = RecipeRequest(pod_key=POD, token=word.token - 1)
        elif when == "not one":
            asked = RecipeRequest(pod_key="a.b", token=word.token)
        else:
            await world.decide(WORKLOAD, KEY, DeleteWorkload(workload_id=workload_id), "delete")
            await world.wanted_is(StopPod)
        assert await answers(world, [asked], seconds=0.5) == []


async def test_a_word_that_nothing_wants_is_settled_when_its_recipe_is_asked_for(world: World) -> None:
    """WANTED says so of a run that is over; an agent that missed it asks, and does not wait for ever."""
    async with serving(world.server):
        await world.create(command="true")
        await world.bind()
        word = await world.wanted_is(StartPod)
        await world.report(word, "succeeded")
        assert isinstance(await world.wanted_is(SettledPod), SettledPod)
        assert await answers(world, [RecipeRequest(pod_key=POD, token=word.token)], seconds=0.5) == []
        assert isinstance(await world.wanted_is(SettledPod), SettledPod)


async def test_an_answer_goes_to_the_clusters_own_subject_wherever_the_request_says(world: World) -> None:
    async with serving(world.server):
        await world.create(command="true")
        await world.bind()
        word = await world.wanted_is(StartPod)
        before = await world.store.last_seq()
        request = msgspec.json.encode(RecipeRequest(pod_key=POD, token=word.token))
        inbox = await world.nc.subscribe("_INBOX_api.stray")
        for target in ("ev.workload.x", "_INBOX_api.stray"):
            await world.nc.publish(recipes_subject(CLUSTER_ID), request, reply=target)
        assert (await world.recipe(word)).pod_key == POD
        assert await world.store.last_seq() == before
        assert inbox.pending_msgs == 0


async def test_one_that_asks_without_end_is_told_less_and_its_cluster_shows_why(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "recipes_budget", lambda: Buckets(size=1_000_000, per_second=1))
    async with serving(world.server):
        await world.heartbeat()
        await world.create(command="true", environment_variables=LARGE)
        await world.bind()
        word = await world.wanted_is(StartPod)
        asked = RecipeRequest(pod_key=POD, token=word.token)
        assert len(await answers(world, [asked] * 10, seconds=2)) == 3

        async def refused() -> bool:
            chain = await world.store.load(CLUSTER, cluster_key("c"))
            return any("bytes a second" in report.rule for report in chain.state.refused)

        await eventually(refused)
