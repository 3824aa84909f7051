"""R22: whom a workload's pods run as is the environment's to say, unless it lets requests say otherwise. Pure."""

from typing import Any

import pytest

from events.asset import Asset
from services.api.made_from import check_users

CUSTOM: dict[str, Any] = {"uidGidSource": "custom", "runAsUid": 1000}
USER, SOURCE = "spec.security.runAsUid", "spec.security.uidGidSource"


@pytest.mark.parametrize("override", [False, True])
@pytest.mark.parametrize(
    ("own", "asked", "changed"),
    [
        (CUSTOM, {}, []),
        (CUSTOM, {"security": {}}, []),
        (CUSTOM, {"security": {"runAsNonRoot": True}}, []),
        (CUSTOM, {"security": {"uidGidSource": "custom"}}, []),
        (CUSTOM, {"security": {"runAsUid": 0}}, [USER]),
        (CUSTOM, {"security": {"runAsUid": None}}, [USER]),
        (CUSTOM, {"security": {"runAsUid": None, "uidGidSource": "fromTheImage"}}, [SOURCE, USER]),
        (CUSTOM, {"security": {"runAsUid": None, "uidGidSource": "fromIdpToken"}}, [SOURCE, USER]),
        (CUSTOM, {"security": {"uidGidSource": None}}, [SOURCE]),
        (CUSTOM, {"security": {"runAsGid": None, "supplementalGroups": "5"}}, ["spec.security.supplementalGroups"]),
        (CUSTOM, {"security": None}, ["spec.security"]),
        ({"uidGidSource": "fromIdpToken"}, {"security": {"uidGidSource": "custom", "runAsUid": 0}}, [SOURCE, USER]),
        ({"uidGidSource": "fromIdpToken"}, {"security": None}, ["spec.security"]),
        ({"runAsNonRoot": True}, {"security": None}, []),
        ({"runAsNonRoot": True}, {"security": "root"}, []),
    ],
)
def test_a_request_neither_sets_nor_clears_users_of_an_environment_that_keeps_them(
    own: dict[str, Any], asked: dict[str, Any], changed: list[str], *, override: bool
) -> None:
    environment = Asset(name="e", spec={"security": own, "overrideUidGidInWorkspace": override})
    expected = [] if override and "uidGidSource" in own else changed
    assert [issue.field for issue in check_users(asked, environment)] == expected


@pytest.mark.parametrize("own", [{"security": {"uidGidSource": "fromTheImage"}}, {"security": None}, {}])
@pytest.mark.parametrize("override", [False, True])
def test_where_users_come_from_the_image_no_request_gives_others(own: dict[str, Any], *, override: bool) -> None:
    environment = Asset(name="e", spec={**own, "overrideUidGidInWorkspace": override})
    (*_, issue) = check_users({"security": {"uidGidSource": "custom", "runAsUid": 7}}, environment)
    assert (issue.field, issue.rule) == (USER, "canEdit")
    assert "from the image" in issue.details


def test_an_environment_that_says_nothing_of_users_is_for_the_user_of_a_token_too() -> None:
    assert check_users({"security": {"uidGidSource": "fromIdpToken"}}, Asset(name="e", spec={"image": "i"})) == []
