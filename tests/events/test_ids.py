"""Keys, ids and subjects: from an id follows its subject, and no text of a person enters one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events import subjects
from events.ids import (
    KEY_PATTERN,
    idempotent_command_id,
    incarnation_id,
    key_of_id,
    name_key,
    node_key,
    workload_key,
)

names = st.text(min_size=1, max_size=80)


@given(project=names, name=names, command=names)
def test_an_id_leads_back_to_its_key_and_is_the_same_for_the_same_command(
    project: str, name: str, command: str
) -> None:
    key = workload_key(project, name)
    identifier = incarnation_id(key, command)
    assert key_of_id(identifier) == key
    assert key_of_id(identifier.upper()) == key
    assert identifier == incarnation_id(key, command)
    assert identifier != incarnation_id(key, command + "x")


@given(parts=st.lists(names, min_size=1, max_size=4))
def test_whatever_the_name_the_key_is_fit_for_a_subject(parts: list[str]) -> None:
    key = name_key(*parts)
    assert KEY_PATTERN.match(key)
    assert subjects.split_aggregate_subject(subjects.aggregate_subject("workload", key)) == ("workload", key)


def test_parts_are_not_confused_with_each_other() -> None:
    assert name_key("ab", "c") != name_key("a", "bc")
    assert workload_key("p", "n") != node_key("p", "n")


@pytest.mark.parametrize(
    "foreign",
    [
        "",
        "x",
        "0196b1f0-0000-7000-8000-000000000000",
        "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        "{}",
        "a" * 36,
        "٠" * 32,
        "0196b1f0-0000-8000-c000-000000000000",
        "0196b1f0-0000-8000-8000-00000000000٠",
        "0196b1f0-0000-8000-8000-000000000000\n",
        "{0196b1f0-0000-8000-8000-000000000000}",
        "0196b1f0000080008000000000000000",
    ],
)
def test_an_id_that_is_none_of_ours_has_no_key(foreign: str) -> None:
    assert key_of_id(foreign) is None


def test_an_id_is_known_however_its_letters_are_written() -> None:
    made = incarnation_id(workload_key("p", "n"), "command")
    assert key_of_id(made.upper()) == key_of_id(made) == workload_key("p", "n")


@pytest.mark.parametrize("bad", ["", "a.b", "a*", ">", "a b", "é", "a\n", "x" * 65])
def test_nothing_but_plain_tokens_enters_a_subject(bad: str) -> None:
    for build in (
        lambda: subjects.aggregate_subject("workload", bad),
        lambda: subjects.wanted_subject(bad, "p"),
        lambda: subjects.observed_pod_subject("c", bad),
        lambda: subjects.request_subject(bad),
    ):
        with pytest.raises(ValueError, match="not fit for a subject"):
            build()


@pytest.mark.parametrize("foreign", ["ev.workload", "ev.workload.a.b", "want.c.pod.x", "workload.a.b"])
def test_a_subject_outside_the_log_is_refused(foreign: str) -> None:
    with pytest.raises(ValueError, match="not a subject of the log"):
        subjects.split_aggregate_subject(foreign)


def test_the_same_request_with_the_same_key_is_the_same_command() -> None:
    request = ("a_alice", "POST", "/api/v1/workloads/trainings", "key-1")
    assert idempotent_command_id(*request) == idempotent_command_id(*request)
    for position in range(len(request)):
        other = [*request]
        other[position] += "x"
        assert idempotent_command_id(*other) != idempotent_command_id(*request)
