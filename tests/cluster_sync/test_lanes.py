"""A cluster whose agent says very much is heard apart from all others."""

from events.subjects import ALL_OBSERVED, observed_filter
from services.cluster_sync.lanes import CALM_SECONDS, MOST_FILTERS, WORDS_AT_ONCE, WORDS_PER_SECOND, Lanes


def lanes_of(*clusters: str) -> Lanes:
    lanes = Lanes()
    lanes.know(clusters)
    return lanes


def test_who_says_too_much_is_heard_apart_until_it_was_calm_for_a_while() -> None:
    lanes = lanes_of("a", "b")
    assert not lanes.said("a", WORDS_AT_ONCE - 1, 0.0)
    assert not lanes.said("b", 10, 0.0)
    assert lanes.said("a", 10, 0.0)
    assert not lanes.said("a", 10, 1.0), "it is loud already"
    assert (lanes.heard_in("quiet"), lanes.heard_in("loud")) == ({"b"}, {"a"})
    assert lanes.calm(CALM_SECONDS - 1) == []
    assert lanes.calm(CALM_SECONDS + 1) == ["a"]
    assert (lanes.heard_in("quiet"), lanes.heard_in("loud")) == ({"a", "b"}, set())


def test_what_an_agent_says_again_and_again_is_not_too_much() -> None:
    lanes = lanes_of("a")
    assert not any(lanes.said("a", WORDS_PER_SECOND // 2, float(second)) for second in range(1_000))


def test_a_flood_that_goes_on_keeps_a_cluster_loud_and_no_longer() -> None:
    lanes = lanes_of("a")
    for second in range(200):
        lanes.said("a", 100_000, float(second))
        assert lanes.calm(float(second)) == []
    assert lanes.calm(199 + 2 * CALM_SECONDS) == ["a"]
    assert not lanes.said("a", 10, 199 + 2 * CALM_SECONDS)


def test_clusters_that_are_not_known_are_heard_nowhere() -> None:
    lanes = lanes_of("a")
    assert not lanes.said("x", 10 * WORDS_AT_ONCE, 0.0)
    lanes.said("a", 10 * WORDS_AT_ONCE, 0.0)
    lanes.know(("b",))
    assert (lanes.heard_in("quiet"), lanes.heard_in("loud")) == ({"b"}, set())


def test_very_many_clusters_are_not_told_one_by_one() -> None:
    few = [f"c{n}" for n in range(MOST_FILTERS)]
    assert lanes_of(*few).filters("quiet") == {observed_filter(cluster) for cluster in few}
    lanes = lanes_of(*few, "a", "b")
    lanes.said("a", 10 * WORDS_AT_ONCE, 0.0)
    assert (lanes.filters("quiet"), lanes.filters("loud")) == ({ALL_OBSERVED}, {observed_filter("a")})
