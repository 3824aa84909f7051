"""The pods of a gang start beside a part of a node that is kept for others, whatever it has waited for (issue 14
section 2; ADR 0143).
"""

from datetime import timedelta

from events.phases import WaitingReason
from tests.scheduler.test_capacity import FIRM, Lab
from tests.scheduler.test_take_back import gang


def kept_in_part() -> Lab:
    """Four of eight GPUs are kept on n0; n1 has one."""
    lab = Lab("n0", gpu_count=8, pool="gpu")
    lab.node("n1", gpu_count=1, pool="gpu")
    lab.reserve("n0", gpus=4, exact=True, after=timedelta(0))
    lab.settle()
    return lab


def test_a_gang_that_has_waited_starts_beside_it_as_a_fresh_one_does() -> None:
    lab = kept_in_part()
    first = lab.begun("first", gpu_devices_request=4, **FIRM)
    key = gang(lab, "wide", workers=4, **FIRM)
    lab.settle()
    assert not lab.places(key)

    lab.fact(first, "succeeded")
    lab.settle()

    assert len(lab.places(key)) == 4
    assert not lab.check().violations


def test_a_gang_of_a_project_with_a_quota_starts_beside_it() -> None:
    lab = kept_in_part()
    key = gang(lab, "wide", workers=4, project_id=lab.project("bounded", quota=100_000), **FIRM)
    lab.settle()
    assert len(lab.places(key)) == 4


def test_a_gang_that_is_too_wide_for_the_room_beside_it_waits_whole() -> None:
    lab = kept_in_part()
    key = gang(lab, "wide", workers=6, project_id=lab.project("bounded", quota=100_000), **FIRM)
    lab.settle()
    assert not lab.places(key)
    assert "at most 5 of them" in lab.workload(key).message


def test_what_has_room_beside_it_and_waits_for_its_quota_is_told_its_quota() -> None:
    lab = kept_in_part()
    of = lab.project("small", quota=3_000)
    keys = [lab.begun(f"w{n}", project_id=of, **FIRM) for n in range(4)]
    assert [bool(lab.places(key)) for key in keys] == [True, True, True, False]
    assert lab.workload(keys[3]).reason == WaitingReason.QUOTA_USED
    wide = lab.begun("wide", project_id=of, gpu_devices_request=3, **FIRM)
    assert lab.workload(wide).reason == WaitingReason.CAPACITY_RESERVED, "it has no room there either"
