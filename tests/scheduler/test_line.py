"""Whose question to the scheduler has its turn (S048)."""

from services.scheduler.line import MOST_ASKED, WAITS_SECONDS, Line

TOOK = 0.5
SLOT = 4 * TOOK
"""An answer, and the rest after it."""


def test_of_ones_questions_the_last_comes_first() -> None:
    line = Line[str]()
    for number in range(3):
        line.come(f"q{number}", "a", now=number / 10)
    assert [line.next(0.3, TOOK) for _ in range(4)] == ["q2", "q1", "q0", None]


def test_those_who_ask_have_their_turns_however_many_questions_one_has() -> None:
    line = Line[str]()
    line.come("a0", "a", now=0.0)
    line.come("b0", "b", now=0.1)
    for number in range(1, 5):
        line.come(f"a{number}", "a", now=0.2)
    assert [line.next(0.3, TOOK) for _ in range(3)] == ["a1", "b0", "a2"]


def test_nobody_is_answered_who_would_have_gone() -> None:
    line = Line[str]()
    line.come("early", "a", now=0.0)
    line.come("late", "b", now=1.0)
    assert [line.next(1.6, TOOK), line.next(1.6, TOOK)] == ["late", None]


def test_a_slow_answer_does_not_end_all_others() -> None:
    line = Line[str]()
    line.come("q", "a", now=100.0)
    assert line.next(100.1, took=60.0) == "q"


def test_of_too_many_the_first_are_dropped() -> None:
    line = Line[int]()
    for number in range(MOST_ASKED + 3):
        line.come(number, str(number), now=0.0)
    found = [line.next(0.1, 0.0) for _ in range(MOST_ASKED + 1)]
    assert sorted(each for each in found if each is not None) == [*range(3, MOST_ASKED + 3)]
    assert found[-1] is None


def test_where_all_ask_again_and_again_each_turn_is_for_somebody_who_still_waits_and_all_get_theirs() -> None:
    """Eight people with four questions each, at an answer of half a second: an asker gives up after two."""
    line = Line[tuple[str, float]]()
    answered = dict.fromkeys("abcdefgh", 0)
    asked: list[tuple[float, str]] = [(number / 16, who) for number, who in enumerate("abcdefgh" * 4)]
    turn = 0.0
    while turn < 100:
        turn += SLOT
        for at, who in sorted(each for each in asked if each[0] <= turn):
            asked.remove((at, who))
            line.come((who, at), who, now=at)
            asked.append((at + WAITS_SECONDS + 0.1, who))
        found = line.next(turn, TOOK)
        assert found is not None
        who, at = found
        assert turn + TOOK <= at + WAITS_SECONDS
        answered[who] += 1
    assert min(answered.values()) >= 5, answered
