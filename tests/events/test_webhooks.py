"""Webhooks of a project: what is decided, what ends them, which events they take, and which keys sign."""

from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from msgspec.structs import replace

from events.codec import encode_event
from events.ids import key_of_id, project_key
from events.project import DeleteProject
from events.webhooks import (
    MAX_OF_PROJECT,
    OLD_KEY_SIGNS,
    ChangeWebhook,
    CreateWebhook,
    DeleteWebhook,
    DisableWebhook,
    RotateWebhookKey,
    Webhook,
    fits,
)
from tests.events.given import ALICE, NOW, ProjectGiven

URL = "https://example.com/muster"


class Given(ProjectGiven):
    def webhook(self, name: str = "chat", command_id: str = "one") -> Webhook:
        self.do(CreateWebhook(project_id=self.id, name=name, url=URL), command_id=command_id)
        return next(webhook for webhook in self.state.webhooks.values() if not name or webhook.name == name)

    def now(self, webhook: Webhook) -> Webhook:
        return self.state.webhooks[webhook.id]


@pytest.fixture
def given() -> Given:
    return Given()


def test_its_id_leads_to_its_project_and_it_says_who_made_it(given: Given) -> None:
    made = given.webhook()
    assert key_of_id(made.id) == project_key("vision")
    assert made.id != given.id
    assert (made.name, made.url, made.types, made.disabled) == ("chat", URL, (), None)
    assert (made.created_by, made.created_at, made.key_number) == (ALICE.id, NOW, 1)


def test_without_a_name_one_is_chosen_that_the_command_gives_again(given: Given) -> None:
    first = given.webhook("", "one")
    assert first.name.startswith("webhook-")
    assert given.do(CreateWebhook(project_id=given.id, url=URL), command_id="one") == ()


def test_a_name_is_taken_once_and_free_again_when_its_webhook_is_deleted(given: Given) -> None:
    made = given.webhook()
    again = CreateWebhook(project_id=given.id, name="chat", url=URL)
    assert given.refusal(again, command_id="two") == "name_taken"
    given.do(DeleteWebhook(project_id=given.id, webhook_id=made.id))
    assert given.state.webhooks == {}
    given.do(again, command_id="two")
    assert given.refusal(DeleteWebhook(project_id=given.id, webhook_id=made.id)) == "not_found"


def test_a_project_has_so_many_and_no_more(given: Given) -> None:
    for number in range(MAX_OF_PROJECT):
        given.webhook("", f"make-{number}")
    assert given.refusal(CreateWebhook(project_id=given.id, url=URL), command_id="more") == "too_many_webhooks"


def test_it_ends_with_its_project(given: Given) -> None:
    given.webhook()
    given.do(DeleteProject(project_id=given.id))
    assert given.state.webhooks == {}


def test_a_change_sets_what_is_given_and_nothing_twice(given: Given) -> None:
    made = given.webhook()

    def change(**what: Any) -> tuple[Any, ...]:
        return given.do(ChangeWebhook(project_id=given.id, webhook_id=made.id, **what))

    change(types=("Pod*",))
    assert given.now(made) == replace(made, types=("Pod*",))
    assert change(types=("Pod*",)) == ()
    change(url="https://example.com/new", types=())
    assert given.now(made) == replace(made, url="https://example.com/new")
    assert change(enabled=True) == ()


def test_what_was_disabled_can_be_enabled_and_each_once(given: Given) -> None:
    made = given.webhook()
    gone = DisableWebhook(project_id=given.id, webhook_id=made.id, reason="gone")
    given.do(gone)
    assert (given.now(made).disabled, given.now(made).disabled_at) == ("gone", NOW)
    assert given.do(gone) == ()
    assert given.do(ChangeWebhook(project_id=given.id, webhook_id=made.id, enabled=False)) == ()
    given.do(ChangeWebhook(project_id=given.id, webhook_id=made.id, enabled=True))
    assert (given.now(made).disabled, given.now(made).disabled_at) == (None, None)
    given.do(ChangeWebhook(project_id=given.id, webhook_id=made.id, enabled=False))
    assert given.now(made).disabled == "by_request"


def test_for_a_day_after_a_rotation_both_keys_sign_and_the_log_holds_neither(given: Given) -> None:
    made = given.webhook()
    assert made.signing_keys(NOW) == (1,)
    (rotated,) = given.do(RotateWebhookKey(project_id=given.id, webhook_id=made.id))
    assert b"whsec" not in bytes(encode_event(rotated).data)
    assert given.now(made).signing_keys(NOW) == (2, 1)
    assert given.now(made).signing_keys(NOW + OLD_KEY_SIGNS) == (2,)
    given.do(RotateWebhookKey(project_id=given.id, webhook_id=made.id))
    assert given.now(made).signing_keys(NOW + timedelta(hours=1)) == (3, 2)


@pytest.mark.parametrize(
    ("types", "takes", "leaves"),
    [
        ((), ("WorkloadFailed", "PodEnded"), ()),
        (("WorkloadFailed",), ("WorkloadFailed",), ("WorkloadCompleted", "workloadfailed")),
        (("Workload*",), ("WorkloadFailed", "WorkloadCompleted"), ("PodEnded",)),
        (("Pod*", "NodeRead?"), ("PodEnded", "NodeReady"), ("NodeNotReady", "WorkloadFailed")),
    ],
)
def test_it_takes_the_types_that_it_names(
    given: Given, types: tuple[str, ...], takes: tuple[str, ...], leaves: tuple[str, ...]
) -> None:
    webhook = replace(given.webhook(), types=types)
    assert [type_ for type_ in (*takes, *leaves) if webhook.takes(type_)] == [*takes]


@pytest.mark.parametrize(
    "bad",
    [
        {"url": "ftp://example.com/"},
        {"url": "https://example.com/a b"},
        {"url": "https://example.com/\r\nx: y"},
        {"url": "https://example.com/" + "x" * 2_048},
        {"url": URL, "types": ("a" * 81,)},
        {"url": URL, "types": ("Work load",)},
        {"url": URL, "name": "Not A Name"},
    ],
)
def test_what_the_api_lets_nobody_send_is_no_command(given: Given, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no (name|address|types) of a webhook|no address|no types"):
        CreateWebhook(project_id=given.id, **bad)


@hypothesis.given(st.text("abXY", max_size=12), st.text("abXY*?", max_size=14))
def test_a_pattern_stands_for_what_a_shell_would_take_it_for(type_: str, pattern: str) -> None:
    assert fits(type_, pattern) == fnmatchcase(type_, pattern)
