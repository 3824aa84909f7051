"""Texts of items are held to their patterns, all at once, wherever the list stands."""

from typing import Annotated, Any

import msgspec
import pytest

from events.fields.declare import Body, Item, Limits
from events.fields.node import tree
from services.api.check import check, fits

WORD = Annotated[str, Limits(pattern=r"^[a-z]+$", words="must be small letters")]


class Word(Item, frozen=True, kw_only=True, omit_defaults=True):
    word: WORD
    other: WORD | None = None


class Holder(Item, frozen=True, kw_only=True, omit_defaults=True):
    words: tuple[Word, ...] = ()


class Sentence(Body, frozen=True, kw_only=True):
    holder: Holder | None = None
    holders: tuple[Holder, ...] = ()
    named: dict[str, Holder] = msgspec.field(default_factory=dict[str, Holder])


def words(*texts: str) -> dict[str, Any]:
    return {"words": [{"word": text} for text in texts]}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"holder": words("a", "B")}, "holder.words[1].word"),
        ({"holder": words("a", "b\nc")}, "holder.words[1].word"),
        ({"holder": words("", "b")}, "holder.words[0].word"),
        ({"holder": {"words": [{"word": "a", "other": "B"}]}}, "holder.words[0].other"),
        ({"holders": [words("a"), words("b", "C")]}, "holders[1].words[1].word"),
        ({"named": {"a": words("b"), "B": words("C")}}, "named"),
    ],
)
def test_a_text_that_is_not_of_its_pattern_is_found_in_any_list(wrong: dict[str, Any], field: str) -> None:
    node = tree(Sentence)
    right = {"holder": words("a"), "holders": [words("a"), {}], "named": {"A": words("b")}}
    assert fits(node, right)
    assert fits(node, {"holder": None})
    assert not fits(node, right | wrong)
    issues = check(Sentence, right | wrong)
    assert isinstance(issues, list)
    assert [issue.field.startswith(field) for issue in issues] == [True]
