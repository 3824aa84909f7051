"""Public events: what each looks like, and that the same log always gives the same ones."""

import json
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from events.aggregate import AGGREGATES, LOG, draft
from events.installation import LogRestored
from events.phases import UNBUILT_PHASES
from events.phases import Phase as WorkloadPhase
from events.public.cloudevents import Place, as_json, attributes_of, place_of
from events.public.publish import FeedMessage
from events.public.registry import PUBLIC, PUBLIC_EVENTS
from events.public.workload import PHASE_EVENTS, PLACED_AT_ONCE
from events.subjects import feed_filter, feed_subject, split_feed_subject
from events.workload.commands import PlacePods
from events.workload.pod import Placement, PodRef
from events.workload.spec import TrainingSpec
from tests.projections.happenings import Happenings
from tests.public.given import a_lame_one, an_inference, every_event
from tests.support.any_events import Readers, commits
from tests.support.draws import draws
from tests.support.lives import ALICE, World
from tests.support.public_events import Everything

GOLDENS = Path(__file__).parent / "goldens"
MOST_BYTES = 900_000
"""Below what a message may hold, with its headers."""


def told(world: World) -> list[FeedMessage]:
    return Everything().take(world.commits).told


def name_of(message: FeedMessage) -> str:
    return message.subject.rsplit(".", 1)[1]


@pytest.fixture(scope="module")
def of_every_event() -> dict[str, FeedMessage]:
    """The last of each type, of the first log that has one."""
    return {
        name_of(message): message for world in (a_lame_one(), an_inference(), every_event()) for message in told(world)
    }


@pytest.mark.parametrize("name", sorted(PUBLIC_EVENTS))
def test_a_public_event_is_written_exactly_as_its_golden(name: str, of_every_event: dict[str, FeedMessage]) -> None:
    """Given a log in which each happens. The golden is the contract: it is never changed, only added to."""
    message = of_every_event[name]
    written = {"subject": message.subject, "headers": message.headers, "data": json.loads(message.payload)}
    golden = GOLDENS / f"{name}.json"
    assert golden.exists(), f"write it: {json.dumps(written, indent=2)}"
    assert json.loads(golden.read_text()) == written
    assert msgspec.json.decode(message.payload, type=PUBLIC_EVENTS[name]) is not None


def test_every_golden_is_of_a_public_event() -> None:
    assert {path.stem for path in GOLDENS.iterdir()} == set(PUBLIC_EVENTS)


def test_every_kind_of_aggregate_says_what_of_it_is_public() -> None:
    assert set(PUBLIC) == set(AGGREGATES)


def test_every_phase_that_a_workload_enters_has_its_event() -> None:
    """Creating is told by the submission."""
    assert set(PHASE_EVENTS) == set(WorkloadPhase) - set(UNBUILT_PHASES) - {WorkloadPhase.CREATING}


def test_ids_are_unique_also_where_several_projects_are_told_the_same() -> None:
    messages = told(every_event())
    ids = [message.headers["ce-id"] for message in messages]
    assert len(set(ids)) == len(ids)
    shared = [message for message in messages if name_of(message) == "ClusterRemoved"]
    assert len(shared) == 2
    assert all(m.headers["ce-id"].endswith(m.subject.split(".")[1]) for m in shared)


def test_previous_links_the_events_of_a_project() -> None:
    """So a reader of a project sees that events are missing."""
    last: dict[str, str] = {}
    for message in told(every_event()):
        project_id, _, _ = split_feed_subject(message.subject)
        assert message.headers.get("ce-previous", "") == last.get(project_id, "")
        last[project_id] = message.headers["ce-sequence"]


def test_places_order_as_text_as_they_do_as_numbers() -> None:
    places = [Place(9, 10), Place(10, 2), Place(10, 10), Place(2**40, 0)]
    texts = [place.text() for place in places]
    assert sorted(texts) == texts
    assert [place_of(text) for text in texts] == places
    for wrong in ("", "1", "a.b", "1.2.3", "-1.0"):
        with pytest.raises(ValueError, match="not a place"):
            place_of(wrong)


def test_many_placements_are_told_in_several_events_with_different_ids() -> None:
    world = World()
    cluster_id, project_id = world.cluster(), world.project()
    nodes = [world.node(cluster_id, f"node-{n}") for n in range(2)]
    count = 2 * PLACED_AT_ONCE + 1
    key = world.training("wide", project_id, cluster_id, TrainingSpec(image="i", completions=count, parallelism=count))
    pods = [PodRef(pod_set="main", index=n, attempt=1, try_=0) for n in range(count)]
    world.commits.clear()
    state = world.state("workload", key)
    placements = tuple(Placement(pod=pod, node_key=nodes[0], node_name="node-0", pool="default") for pod in pods)
    draft = world.decide("workload", key, PlacePods(workload_id=state.workload_id, placements=placements))
    assert draft is not None
    everything = Everything()
    everything.chains = dict(world.chains)
    world.append([draft])
    placed = [m for m in everything.take(world.commits).told if name_of(m) == "WorkloadPlaced"]
    assert [len(json.loads(m.payload)["placed"]) for m in placed] == [PLACED_AT_ONCE, PLACED_AT_ONCE, 1]
    assert len({m.headers["ce-id"] for m in placed}) == 3


def test_subjects_of_the_feed() -> None:
    assert feed_subject("p", "", "NodeReady") == "feed.p.-.NodeReady"
    assert split_feed_subject("feed.p.-.NodeReady") == ("p", "", "NodeReady")
    assert split_feed_subject("feed.p.w.PodEnded") == ("p", "w", "PodEnded")
    assert feed_filter("p") == "feed.p.*.*"
    assert feed_filter("p", workload_id="w", event="PodEnded") == "feed.p.w.PodEnded"
    for wrong in ("feed.p.w", "ev.p.w.X", "feed.p..X"):
        with pytest.raises(ValueError, match="not a subject"):
            split_feed_subject(wrong)


def test_one_json_object_says_the_same(of_every_event: dict[str, FeedMessage]) -> None:
    message = of_every_event["WorkloadSubmitted"]
    whole = json.loads(as_json(message.headers, message.payload))
    assert whole.pop("data") == json.loads(message.payload)
    assert whole == attributes_of(message.headers)
    assert whole["specversion"] == "1.0"


@settings(max_examples=draws(60), deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 120))
def test_whatever_deciders_let_happen_every_event_is_unique_and_fits(seed: int, steps: int) -> None:
    happenings = Happenings(seed)
    for _ in range(steps):
        happenings.step()
    messages = told(happenings.world)
    assert len({message.headers["ce-id"] for message in messages}) == len(messages)
    assert [message.place for message in messages] == sorted({message.place for message in messages})
    assert all(len(message.payload) < MOST_BYTES for message in messages)
    for message in messages:
        assert msgspec.json.decode(message.payload, type=PUBLIC_EVENTS[name_of(message)]) is not None


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@settings(
    max_examples=draws(40),
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(log=st.lists(commits(), min_size=8, max_size=24))
def test_no_event_in_any_order_stops_the_feed(log: list[tuple[str, str, tuple[object, ...], None, object]]) -> None:
    """Given anything that can be decoded: the feed goes on, and what it tells can be sent and read."""
    readers, everything = Readers(), Everything()
    for drawn in log:
        commit = readers.commit(*drawn)  # pyright: ignore[reportArgumentType]
        if commit is not None:
            everything.take([readers.take(commit)])
    for message in everything.told:
        split_feed_subject(message.subject)
        assert len(message.payload) < MOST_BYTES
        assert all(value.isascii() and value.isprintable() and " " not in value for value in message.headers.values())
        assert msgspec.json.decode(message.payload, type=PUBLIC_EVENTS[name_of(message)]) is not None


def test_a_restore_is_told_to_every_project_that_the_backup_knows() -> None:
    world = World()
    projects = sorted((world.project(), world.project("other")))
    restored = LogRestored(incarnation=1, seq=2, chain="c", backed_up_at=world.now)
    world.append(
        [draft(LOG, "default", world.chain("log", "default"), (restored,), command_id="r", actor=ALICE, now=world.now)]
    )
    lost = [message for message in told(world) if name_of(message) == "HistoryLost"]
    assert [split_feed_subject(message.subject)[0] for message in lost] == projects
    assert {json.loads(message.payload)["cause"] for message in lost} == {"log_restored"}
    assert {json.loads(message.payload)["fromSequence"] for message in lost} == {3}
