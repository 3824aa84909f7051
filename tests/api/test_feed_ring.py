"""The ring that all readers of public events share, beside a list of everything."""

from hypothesis import given
from hypothesis import strategies as st

from events.public.cloudevents import Place
from services.api.feed_ring import Entry, Ring, Wanted

PROJECTS = ("a", "b", "c")
TYPES = ("X", "Y")
ALL = Wanted()


def entry(seq: int, project: str = "a", *, workload: str = "", kind: str = "X", size: int = 1) -> Entry:
    return Entry(Place(seq, 0), f"{seq}", project, workload, kind, b"x" * size)


EVENTS = st.lists(st.tuples(st.sampled_from(PROJECTS), st.sampled_from(TYPES), st.sampled_from(("", "w"))), max_size=40)
SCOPES = st.none() | st.frozensets(st.sampled_from(PROJECTS))
WANTED = st.builds(Wanted, st.sampled_from(("", "w")), st.frozensets(st.sampled_from(TYPES)))


@given(EVENTS, st.integers(1, 10), st.integers(0, 45), SCOPES, WANTED)
def test_what_it_covers_it_has_whole_and_in_order(
    events: list[tuple[str, str, str]], most: int, place: int, projects: frozenset[str] | None, wanted: Wanted
) -> None:
    """Given any events, and a reader of any projects anywhere: either all that they want is here, or it says so."""
    everything = [entry(at, project, workload=w, kind=kind) for at, (project, kind, w) in enumerate(events, start=4)]
    ring = Ring(Place(3, 0), most_events=most)
    for one in everything:
        ring.add([one])
    missing = [
        one
        for one in everything
        if one.place > Place(place, 0) and (projects is None or one.project_id in projects) and wanted.takes(one)
    ]
    if ring.covers(Place(place, 0), projects):
        assert place >= 3
        assert ring.behind(Place(place, 0), projects, wanted) == missing
    else:
        kept = everything[-most:]
        assert place < 3 or any(
            one.place > Place(place, 0) and (projects is None or one.project_id in projects)
            for one in everything
            if one not in kept
        )


def test_what_comes_again_is_passed_by() -> None:
    ring = Ring(Place(0, 0))
    ring.add([entry(1), entry(2)])
    ring.add([entry(2), entry(1), entry(3)])
    assert [one.place.seq for one in ring.behind(Place(0, 0), None, ALL)] == [1, 2, 3]
    assert (ring.end, ring.end_id) == (Place(3, 0), "3")


def test_many_bytes_give_way_as_many_events_do_but_the_newest_stays() -> None:
    ring = Ring(Place(0, 0), most_bytes=100)
    ring.add([entry(1, size=40), entry(2, size=40), entry(3, size=40)])
    assert [one.place.seq for one in ring.behind(Place(1, 0), None, ALL)] == [2, 3]
    assert not ring.covers(Place(0, 0), None)
    ring.add([entry(4, size=1_000)])
    assert [one.place.seq for one in ring.behind(Place(3, 0), None, ALL)] == [4]


def test_a_reader_of_a_quiet_project_is_not_behind_because_others_are_loud() -> None:
    ring = Ring(Place(0, 0), most_events=10)
    ring.add([entry(1, "quiet")])
    ring.add([entry(seq, "loud") for seq in range(2, 1_000)])
    assert not ring.covers(Place(0, 0), frozenset({"quiet"}))
    assert ring.covers(Place(1, 0), frozenset({"quiet"}))
    assert not ring.covers(Place(1, 0), frozenset({"quiet", "loud"}))
    ring.add([entry(1_000, "quiet")])
    assert [one.place.seq for one in ring.behind(Place(1, 0), frozenset({"quiet"}), ALL)] == [1_000]
