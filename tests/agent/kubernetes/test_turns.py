"""Which checkpoint folders of a cluster are looked at next, and what pods whose looks hang take from the others."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from services.agent.backends.kubernetes.read import turns
from services.agent.backends.kubernetes.read.turns import AT_ONCE, ONE_SECONDS, Asks, Folder, Turns

type There = dict[Folder, Asks]

BAD = "muster-bad"
GOOD = "muster-good"


def folder(name: object) -> Folder:
    return (str(name), "main")


def looks(
    there: Callable[[int], There], *, seconds: int, hangs: Callable[[Folder, Asks], float]
) -> Iterator[tuple[int, Folder]]:
    """Those of so many seconds: a round a second, which lasts as long as the slowest look of it."""
    kept, now = Turns(), 0
    while now < seconds:
        live = there(now)
        chosen = kept.next(live, float(now))
        assert len(chosen) <= AT_ONCE
        yield from ((now, each) for each in chosen)
        took = {each: hangs(each, live[each]) for each in chosen}
        for each, lasts in took.items():
            if lasts >= ONE_SECONDS:
                kept.hung(each, live[each].project, now + ONE_SECONDS)
            else:
                kept.looked(each, live[each].project, took=lasts, now=now + lasts)
        now += max(1, int(min(ONE_SECONDS, max(took.values(), default=0.0))))


def bad_hangs(_: Folder, asks: Asks) -> float:
    return ONE_SECONDS if asks.project == BAD else 0.1


def test_a_folder_whose_pod_runs_anew_again_and_again_is_left_alone_ever_longer() -> None:
    """Given a pod with a look that hangs, which is not there for a moment every 15 s."""
    asked = [
        now
        for now, _ in looks(
            lambda now: {folder("a"): Asks(BAD)} if now % 15 < 13 else {}, seconds=4000, hangs=bad_hangs
        )
    ]
    assert len(asked) == 4  # after 400 s, then 800 s, then 1600 s
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert gaps[0] >= 400
    assert all(later >= 1.9 * earlier for earlier, later in pairwise(gaps))


def test_new_workloads_whose_looks_hang_leave_others_their_turns() -> None:
    """Given a project that has four new workloads every 12 s, all of which hang, and three workloads of another."""
    others = {folder(f"good-{n}"): Asks(GOOD) for n in range(3)}

    def there(now: int) -> There:
        return {folder(f"{now // 12}-{n}"): Asks(BAD) for n in range(4)} | others

    seen = list(looks(there, seconds=3600, hangs=bad_hangs))
    bad = [now for now, each in seen if each not in others]
    assert len(bad) <= AT_ONCE + 3600 // 60
    for each in others:
        at = [now for now, one in seen if one == each]
        assert max(later - earlier for earlier, later in pairwise(at)) <= 60 + 2 * ONE_SECONDS


@pytest.mark.parametrize("lasts", [turns.SLOW_SECONDS - 1, turns.SLOW_SECONDS + 1, ONE_SECONDS - 1])
def test_looks_that_are_slow_but_done_leave_others_their_turns(lasts: float) -> None:
    """Given a project with two hundred workloads whose looks are each as slow, and one workload of another."""
    there = {folder(n): Asks(BAD) for n in range(200)} | {folder("good"): Asks(GOOD)}
    seen = looks(lambda _: there, seconds=1200, hangs=lambda _, asks: lasts if asks.project == BAD else 0.1)
    at = [now for now, each in seen if each == folder("good")]
    assert max(later - earlier for earlier, later in pairwise(at)) <= 60 + 2 * ONE_SECONDS


def test_the_other_folders_of_a_doubted_project_are_looked_at_one_at_a_time() -> None:
    """Given a project with one workload that hangs and ten that do not."""
    there = {folder(n): Asks(BAD) for n in range(11)}
    seen = list(looks(lambda _: there, seconds=1200, hangs=lambda each, _: ONE_SECONDS if each == folder(0) else 0.1))
    for n in range(1, 11):
        assert len([now for now, each in seen if each == folder(n)]) >= 10


def test_a_project_is_not_doubted_any_more_after_a_while() -> None:
    kept = Turns()
    there = {folder(n): Asks(GOOD) for n in range(4)}
    kept.hung(folder("gone"), GOOD, 0.0)
    assert kept.next(there, turns.REST_SECONDS - 1) == []
    assert len(kept.next(there, turns.REST_SECONDS)) == 1
    assert len(kept.next(there, turns.DOUBTED_SECONDS)) == 4


def test_who_ends_comes_first() -> None:
    kept = Turns()
    there = {folder(n): Asks(GOOD) for n in range(9)} | {folder("last"): Asks(GOOD, ends=True)}
    assert kept.next(there, 0.0)[0] == folder("last")
    for n, each in enumerate(there):
        kept.looked(each, GOOD, took=0.1, now=float(n))
    assert kept.next(there, 9.0 + turns.ENDING_SECONDS) == [folder("last")]
