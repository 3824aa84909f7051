"""What a project and a user may create within an hour, by bytes: pure, and as tables. The counts are tested in
test_handle.py.
"""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.commands.limits import Creation, CreationCounts, CreationLimits, Tally, all_within, over_limit

NOW = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
PROJECT, USER = "MUSTER_PROJECT_MAX_BYTES_PER_HOUR", "MUSTER_USER_MAX_BYTES_PER_HOUR"
MINUTE = int(NOW.timestamp()) // 60
LIMITS = CreationLimits(living=1000, creations_per_hour=1000, project_bytes_per_hour=1000, user_bytes_per_hour=600)


def counted(project: dict[int, int] | None = None, user: dict[int, int] | None = None) -> CreationCounts:
    """What was created, in bytes by how many minutes ago."""
    return CreationCounts(
        project_bytes={"p": {MINUTE - ago: size for ago, size in (project or {}).items()}},
        user_bytes={"ann": {MINUTE - ago: size for ago, size in (user or {}).items()}},
    )


@pytest.mark.parametrize(
    ("counts", "size", "under_way", "setting", "wait_seconds"),
    [
        pytest.param(counted({5: 900}), 100, (), "", 0, id="up to the limit"),
        pytest.param(counted({5: 900}), 101, (), PROJECT, 55 * 60, id="beyond it"),
        pytest.param(counted({60: 900}), 101, (), "", 0, id="an hour later"),
        pytest.param(counted({-1: 900}), 101, (), PROJECT, 61 * 60, id="by a clock that is a little ahead"),
        pytest.param(counted({-3: 900, -60 * 24 * 365: 900}), 101, (), "", 0, id="by a clock that was wrong"),
        pytest.param(
            counted({40: 500, 5: 400}),
            101,
            (),
            PROJECT,
            20 * 60,
            id="what goes first will do",
        ),
        pytest.param(counted(user={5: 600}), 1, (), USER, 55 * 60, id="the user's own limit"),
        pytest.param(counted(), 300, (Creation("p", "bob", 701),), PROJECT, 3600, id="under way here"),
        pytest.param(
            counted(),
            300,
            (Creation("q", "ann", 301),),
            USER,
            3600,
            id="under way elsewhere",
        ),
        pytest.param(counted(), 300, (Creation("q", "bob", 900),), "", 0, id="others' are none of ours"),
    ],
)
def test_bytes_within_an_hour(
    counts: CreationCounts, size: int, under_way: tuple[Creation, ...], setting: str, wait_seconds: int
) -> None:
    refusal = over_limit(counts, LIMITS, Creation("p", "ann", size), NOW, under_way=under_way)
    if not setting:
        assert refusal is None
        return
    assert refusal is not None
    assert (refusal.code, refusal.retry_seconds) == ("too_many_bytes", wait_seconds)
    assert setting in refusal.message
    assert f"this one has {size:,}" in refusal.message


def test_the_accounts_of_a_project_share_what_one_user_may_create() -> None:
    """Whoever makes a hundred of them may create no more."""
    counts = CreationCounts(user_bytes={"service-account:vision": {MINUTE: 500}})
    for name in ("ci", "nightly"):
        refusal = over_limit(counts, LIMITS, Creation("p", f"service-account:vision/{name}", 101), NOW)
        assert refusal is not None
        assert USER in refusal.message
    under_way = (Creation("p", "service-account:vision/ci", 600),)
    assert over_limit(counted(), LIMITS, Creation("p", "service-account:vision/a", 1), NOW, under_way=under_way)
    assert not over_limit(counted(), LIMITS, Creation("q", "service-account:nlp/a", 1), NOW, under_way=under_way)


@given(
    sizes=st.dictionaries(st.integers(0, 70), st.integers(1, 500), max_size=20),
    size=st.integers(1, 600),
)
def test_who_waits_as_long_as_he_is_told_may_create(sizes: dict[int, int], size: int) -> None:
    counts, asked = counted(sizes, sizes), Creation("p", "ann", size)
    refusal = over_limit(counts, LIMITS, asked, NOW)
    now = NOW
    for _ in range(2):  # the project's limit, and then the user's
        if refusal is not None:
            assert refusal.retry_seconds is not None
            now += timedelta(seconds=refusal.retry_seconds)
            refusal = over_limit(counts, LIMITS, asked, now)
    assert refusal is None


ASKED = st.builds(
    Creation,
    project_id=st.sampled_from(["p", "q"]),
    actor=st.sampled_from(["ann", "service-account:p/a", "service-account:p/b"]),
    bytes=st.integers(0, 200),
    labels=st.sampled_from([(), (), ("a",)]),
)


@given(asked=st.lists(ASKED, max_size=8), waiting=st.lists(ASKED, max_size=3), living=st.integers(0, 8))
def test_all_are_within_the_limits_at_once_only_where_each_is_behind_the_others(
    asked: list[Creation], waiting: list[Creation], living: int
) -> None:
    limits = CreationLimits(living=8, creations_per_hour=9, project_bytes_per_hour=700, user_bytes_per_hour=500)
    counts = counted({5: 100}, {5: 50})
    counts.living = {"p": living}
    tally = Tally(waiting)
    each: list[bool] = []
    for creation in asked:
        each.append(over_limit(counts, limits, creation, NOW, under_way=tally.under_way) is None)
        tally.add(creation)
    together = all_within(counts, limits, asked, NOW, under_way=waiting)
    assert together == (all(each) and not any(creation.labels for creation in asked))
