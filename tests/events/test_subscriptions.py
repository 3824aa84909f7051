"""Subscriptions of a project: what is decided, and what ends them."""

from typing import Any

import pytest

from events.codec import encode_event
from events.ids import key_of_id, project_key
from events.project import ChangeProject, DeleteProject
from events.subscriptions import MAX_OF_PROJECT, CreateSubscription, DeleteSubscription
from services.runtime.nats.nkeys import KeyPair, new_seed
from tests.events.given import ALICE, NOW, ProjectGiven

KEY = KeyPair(new_seed("user")).public


class Given(ProjectGiven):
    def subscription(self, name: str = "chat", *, from_seq: int = 17) -> CreateSubscription:
        return CreateSubscription(project_id=self.id, name=name, public_key=KEY, from_seq=from_seq)


@pytest.fixture
def given() -> Given:
    return Given()


def test_its_id_leads_to_its_project_and_it_says_who_made_it_and_where_it_begins(given: Given) -> None:
    given.do(given.subscription(), command_id="one")
    (made,) = given.state.subscriptions.values()
    assert key_of_id(made.id) == project_key("vision")
    assert made.id != given.id
    assert (made.name, made.public_key, made.from_seq) == ("chat", KEY, 17)
    assert (made.created_by, made.created_at) == (ALICE.id, NOW)


def test_without_a_name_one_is_chosen_that_the_command_gives_again(given: Given) -> None:
    (first,) = given.do(given.subscription(""), command_id="one")
    (second,) = given.do(given.subscription(""), command_id="two")
    assert first.name.startswith("subscription-")
    assert first.name != second.name
    assert given.do(given.subscription(""), command_id="one") == ()


def test_a_name_is_taken_once_and_free_again_when_its_subscription_is_deleted(given: Given) -> None:
    (made,) = given.do(given.subscription(), command_id="one")
    assert given.refusal(given.subscription(), command_id="two") == "name_taken"
    given.do(DeleteSubscription(project_id=given.id, subscription_id=made.id), command_id="three")
    assert given.state.subscriptions == {}
    (again,) = given.do(given.subscription(), command_id="four")
    assert again.id != made.id


def test_what_is_not_there_cannot_be_deleted(given: Given) -> None:
    assert given.refusal(DeleteSubscription(project_id=given.id, subscription_id=given.id)) == "not_found"


def test_a_project_has_a_limit(given: Given) -> None:
    for number in range(MAX_OF_PROJECT):
        given.do(given.subscription(f"s{number}"), command_id=f"make {number}")
    assert given.refusal(given.subscription(), command_id="one more") == "too_many_subscriptions"


def test_it_outlives_changes_of_its_project_and_ends_with_it(given: Given) -> None:
    given.do(given.subscription(), command_id="one")
    given.do(ChangeProject(project_id=given.id, gpu_quota_milli=1000), command_id="two")
    assert len(given.state.subscriptions) == 1
    given.do(DeleteProject(project_id=given.id), command_id="three")
    assert given.state.subscriptions == {}
    assert given.refusal(given.subscription(), command_id="four") == "not_found"


def test_only_the_public_half_of_the_key_is_stored(given: Given) -> None:
    seed = new_seed("user")
    command = CreateSubscription(project_id=given.id, name="x", public_key=KeyPair(seed).public, from_seq=1)
    (made,) = given.do(command, command_id="one")
    assert seed.encode() not in bytes(encode_event(made).data)


@pytest.mark.parametrize(
    "wrong", [{"public_key": "UABC"}, {"public_key": new_seed("user")}, {"name": "Has Space"}, {"from_seq": 0}]
)
def test_what_no_subscription_can_be_is_no_command(wrong: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"project_id": "p", "name": "chat", "public_key": KEY, "from_seq": 1}
    with pytest.raises(ValueError, match="no "):
        CreateSubscription(**fields | wrong)
