"""Deciding on policies, given, when, then."""

from typing import Any

import pytest

from events.aggregate import POLICY
from events.ids import key_of_id
from events.policy import MAX_POLICY_BYTES, DeletePolicy, Policy, PolicyDeleted, PolicySet, SetPolicy, policy_key
from events.refusal import Refusal
from tests.events.given import NOW, context

DEFAULTS = {"image": "python:3.13", "security": None}
RULES = {"compute": {"blocked": True}}


class Given:
    """A policy with a life behind it."""

    def __init__(self, *commands: Any) -> None:
        self.state: Policy = POLICY.initial
        for number, command in enumerate(commands):
            self.do(command, f"c{number}")

    def when(self, command: Any, command_id: str = "c") -> Any:
        return POLICY.decide(command, self.state, context(now=NOW, command_id=command_id))

    def do(self, command: Any, command_id: str = "c") -> tuple[Any, ...]:
        events = self.when(command, command_id)
        assert not isinstance(events, Refusal), events
        self.state = POLICY.after(self.state, events)
        return events


def put(**more: Any) -> SetPolicy:
    given: dict[str, Any] = {"workload_type": "Training", "defaults": DEFAULTS, "rules": RULES}
    return SetPolicy(**given | more)


@pytest.mark.parametrize(("project", "scope"), [(None, "tenant"), ("p", "project")])
def test_what_was_given_is_kept_with_its_nulls(project: str | None, scope: str) -> None:
    given = Given()
    (event,) = given.do(put(project_id=project))
    assert isinstance(event, PolicySet)
    assert (event.defaults, event.rules, event.at) == (DEFAULTS, RULES, NOW)
    assert key_of_id(event.policy_id) == policy_key("Training", project or "")
    assert (given.state.exists, given.state.scope) == (True, scope)


def test_it_is_one_until_it_is_deleted() -> None:
    given = Given(put())
    first = given.state.policy_id
    assert given.when(put()) == ()
    given.do(put(rules={}), "again")
    assert (given.state.policy_id, given.state.rules) == (first, {})
    assert [type(event) for event in given.do(DeletePolicy(workload_type="Training"))] == [PolicyDeleted]
    assert not given.state.exists
    given.do(put(), "anew")
    assert given.state.policy_id != first


def test_there_must_be_one_to_be_deleted() -> None:
    for given in (Given(), Given(put(), DeletePolicy(workload_type="Training"))):
        refused = given.when(DeletePolicy(workload_type="Training"))
        assert isinstance(refused, Refusal)
        assert refused.code == "not_found"


def test_one_that_is_too_large_is_refused() -> None:
    refused = Given().when(put(defaults={"image": "x" * MAX_POLICY_BYTES}))
    assert isinstance(refused, Refusal)
    assert f"{MAX_POLICY_BYTES:,}" in refused.message


def test_events_that_do_not_fit_change_nothing() -> None:
    state = Policy()
    assert POLICY.evolve(state, PolicyDeleted(workload_type="Training", at=NOW)) is state
    lost = PolicySet(policy_id="", workload_type="Training", set_by="a", at=NOW, defaults={}, rules={})
    assert POLICY.evolve(state, lost) is state
