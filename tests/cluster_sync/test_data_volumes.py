"""What is behind the data volumes of a run is told when it starts, as the log has it then.

Requirement rows: S060; issue section 3.
"""

from typing import Any

import msgspec
import pytest

from events.aggregate import ASSET, PROJECT
from events.asset import DeleteAsset, OfferDataVolume, data_volume_key
from events.cluster_protocol import Sources, SourcesRequest, StartPod
from events.ids import cluster_key, incarnation_id, project_key
from events.project import CreateProject, DeleteProject
from events.subjects import agent_recipes_subject, recipes_subject
from events.workload.fields.storage import DataVolume, StorageSpec
from events.workload.volumes import SharedFolder
from services.cluster_sync import fold
from tests.cluster_sync.given import CLUSTER_ID, PROJECT_ID, World, serving
from tests.cluster_sync.test_wanted import folded

pytestmark = pytest.mark.anyio

OWNER, OTHER = (incarnation_id(project_key(name), f"create-{name}") for name in ("vision", "audio"))
ELSEWHERE = incarnation_id(cluster_key("elsewhere"), "add-elsewhere")


async def offered(world: World, name: str = "sets", **more: Any) -> str:
    """The id of a data volume of a claim of the owner's."""
    usual: dict[str, Any] = {
        "project_id": OWNER,
        "name": name,
        "scope": "tenant",
        "cluster_id": CLUSTER_ID,
        "claim_name": "imagenet",
        "mount_path": "/data",
    }
    command = OfferDataVolume(**usual | more)
    key = command.key
    await world.decide(ASSET, key, command, f"offer {name}")
    return (await world.store.load(ASSET, key)).state.asset_id


async def started(world: World, *data_volumes: str) -> Any:
    """The recipe of a run that has these."""
    volumes = tuple(DataVolume(id=one, mount_path=f"/{index}") for index, one in enumerate(data_volumes))
    await world.create(command="true", storage=StorageSpec(data_volume=volumes))
    await world.bind()
    return await world.recipe(await world.wanted_is(StartPod))


@pytest.fixture
async def shared(world: World) -> World:
    await world.decide(PROJECT, project_key("vision"), CreateProject(name="vision"), "create-vision")
    return world


async def test_a_run_is_told_the_claim_as_it_is_when_it_starts(shared: World) -> None:
    volume = await offered(shared)
    async with serving(shared.server):
        recipe = await started(shared, volume)
        assert recipe.volumes == (
            SharedFolder(
                mount_path="/0", data_volume=volume, claim="imagenet", project_id=OWNER, project_name="vision"
            ),
        )
        assert recipe.no_volume == ""


@pytest.mark.parametrize("why", ["taken back", "for another", "on another cluster", "its project is gone", "never was"])
async def test_a_run_that_cannot_have_one_any_more_is_told_why(shared: World, why: str) -> None:
    """The log may say otherwise than when its workload was submitted."""
    more: dict[str, Any] = {
        "for another": {"scope": "project", "place": OTHER},
        "on another cluster": {"cluster_id": ELSEWHERE},
    }.get(why, {})
    volume = await offered(shared, **more)
    words = {
        "taken back": "data volume 'sets' of project vision is not shared any more: ask who",
        "for another": "data volume 'sets' is not shared with project nlp",
        "on another cluster": "'sets' is no data volume of this cluster",
        "its project is gone": "the project of data volume 'sets' was deleted",
        "never was": "is not shared any more",
    }
    if why == "taken back":
        key = data_volume_key(OWNER, "tenant", "", "sets")
        await shared.decide(ASSET, key, DeleteAsset(asset_id=volume, project_id=OWNER), "take back")
    if why == "its project is gone":
        await shared.decide(PROJECT, project_key("vision"), DeleteProject(project_id=OWNER), "delete-vision")
    async with serving(shared.server):
        recipe = await started(shared, incarnation_id("nobody", "n") if why == "never was" else volume)
        assert words[why] in recipe.no_volume
        assert (volume in recipe.no_volume) is False, "an id says nothing to who reads it"
        assert "ask who shared it, or submit without it" in recipe.no_volume


async def test_the_agent_of_the_cluster_that_has_the_claim_looks_at_it(shared: World) -> None:
    mine = await offered(shared)
    await offered(shared, "elsewhere", cluster_id=ELSEWHERE)
    answers = await shared.nc.subscribe(agent_recipes_subject(CLUSTER_ID))
    async with serving(shared.server):
        await shared.nc.publish(recipes_subject(CLUSTER_ID), msgspec.json.encode(SourcesRequest()))
        (source,) = msgspec.json.decode((await answers.next_msg(timeout=60)).data, type=Sources).sources
    assert (source.asset_id, source.project_id, source.project_name) == (mine, OWNER, "vision")
    assert isinstance(source.volume, SharedFolder)
    assert (source.volume.claim, source.volume.data_volume) == ("imagenet", mine)


def test_the_project_of_the_workloads_is_not_that_of_the_claim() -> None:
    assert len({PROJECT_ID, OWNER, OTHER}) == 3


async def test_those_that_were_taken_back_leave_room_for_what_is_looked_at(
    shared: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are kept for their names alone: whoever offers and takes back over and over fills half of it at most."""
    monkeypatch.setattr(fold, "MAX_SOURCES", 4)
    for number in range(6):
        name = f"v{number}"
        taken_back = DeleteAsset(asset_id=await offered(shared, name), project_id=OWNER)
        await shared.decide(ASSET, data_volume_key(OWNER, "tenant", "", name), taken_back, f"take back {name}")
    assert len((await folded(shared)).sources) == 4 // 2
