"""What holds for any calendar (issue 14 section 2; ADR 0143): nothing is over-committed, who may not use what is kept
is not placed there, who may is let in, and planning again changes nothing.
"""

from contextlib import suppress
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from events.ids import cluster_key
from events.maintenance import PlanMaintenance
from events.phases import Phase
from events.workload.fields.metadata import Label
from services.scheduler.fold import SchedulingState
from services.scheduler.simulation.ledger import RefusedError
from tests.scheduler.test_capacity import Lab
from tests.scheduler.test_maintenance import FIRM, HOUR, fresh
from tests.scheduler.test_quotas import department
from tests.support.draws import draws

GPUS = 4
LABELS = {"use": "demo"}

NODES = st.sampled_from(({"nodes": ("n0",)}, {"nodes": ("n1", "n2")}, {"node_pools": ("gpu",)}))
COUNTS = st.sampled_from(({}, {"gpus": 2}, {"gpus": 5, "exact": True}, {"gpus": 2, "exact": True}, {"node_count": 1}))
HOLDERS = st.sampled_from(("project", "department", "labels", "project with labels"))
ENTRY = st.fixed_dictionaries(
    {"of": NODES, "count": COUNTS, "holder": HOLDERS, "after": st.integers(0, 6), "lasts": st.integers(1, 4)}
)
PODS = st.fixed_dictionaries(
    {
        "project": st.sampled_from(("default", "owner", "kin")),
        "gpus": st.integers(0, GPUS),
        "firm": st.booleans(),
        "demo": st.booleans(),
        "grace": st.sampled_from((0, 30, 3600)),
    }
)


def _lab(entries: list[dict[str, Any]], maintained: list[int]) -> tuple[Lab, dict[str, str]]:
    lab = Lab("n0", "n1", "n2", gpu_count=GPUS, pool="gpu")
    where = department(lab, "ai")
    projects = {"default": lab.project_id, "owner": lab.owner, "kin": lab.project("kin", **where)}
    for number, each in enumerate(entries):
        nobody: dict[str, Any] = {"project_id": "", "project_name": ""}
        holder: dict[str, Any] = {
            "project": {},
            "department": nobody | where,
            "labels": nobody | {"workload_labels": LABELS},
            "project with labels": {"workload_labels": LABELS},
        }[each["holder"]]
        of = dict(each["of"])
        with suppress(RefusedError):  # where two would have the same nodes for themselves
            lab.reserve(
                *of.pop("nodes", ()),
                name=f"r{number}",
                after=each["after"] * HOUR / 2,
                lasts=each["lasts"] * HOUR,
                **of,
                **each["count"],
                **holder,
            )
    for number, hours in enumerate(maintained):
        starts = lab.now + hours * HOUR
        command = PlanMaintenance(
            cluster_id=lab.cluster_id,
            name=f"m{number}",
            nodes=(f"n{number}",),
            starts_at=starts,
            ends_at=starts + HOUR,
            new=True,
        )
        lab.do("cluster", cluster_key("local"), command)
    return lab, projects


def _submit(lab: Lab, projects: dict[str, str], number: int, each: dict[str, Any]) -> str:
    labels = {"labels": (Label(name="use", value="demo"),)} if each["demo"] else {}
    return lab.submit(
        f"w{number}",
        project_id=projects[each["project"]],
        gpu_devices_request=each["gpus"],
        termination_grace_period_seconds=each["grace"],
        **labels,
        **(FIRM if each["firm"] else {}),
    )


def _assert_kept(lab: Lab, keys: list[str], before: dict[str, Any]) -> None:
    """What was placed just now is where nothing is kept for others, on no device of theirs, and has its grace."""
    snapshot = lab.fold.snapshot(lab.now)
    rows = {name: row for row, name in enumerate(snapshot.nodes.names)}
    state = lab.fold
    for key in keys:
        placed = lab.places(key)
        if not placed or key in before:
            continue
        node, shares = placed[0]
        of = lab.workload(key)
        calendar = lab.chain("cluster", cluster_key("local")).state.reserved
        project = next(c.state for c in state.projects.values() if c.state.project_id == of.project_id)
        labels = {each.name: each.value for each in of.spec.labels}
        for closing in snapshot.nodes.closings:
            if closing.left_seconds or not closing.rows[rows[node]] or closing.holder is None:
                continue
            entry = next(each for each in calendar if each.id == closing.holder.reservation)
            if entry.is_for(of.project_id, project.department_id) and entry.fits_labels(labels):
                continue
            kept = closing.parts.get(rows[node])
            assert kept is not None, f"{of.name} on {node}, which is kept: {closing.called}"
            assert not {device for device, _ in shares} & set(kept), f"{of.name} has what is kept: {closing.called}"


@settings(max_examples=draws(40), deadline=None)
@given(
    st.lists(ENTRY, max_size=4),
    st.lists(st.integers(1, 5), max_size=2),
    st.lists(st.lists(PODS, max_size=4), min_size=1, max_size=5),
)
def test_whatever_is_planned_is_kept_for_those_who_may_use_it(
    entries: list[dict[str, Any]], maintained: list[int], pods: list[list[dict[str, Any]]]
) -> None:
    lab, projects = _lab(entries, maintained)
    keys: list[str] = []
    for step, more in enumerate(pods):
        keys += [_submit(lab, projects, len(keys) + n, each) for n, each in enumerate(more)]
        before = {key: placed for key in keys if (placed := lab.places(key))}
        lab.settle()
        assert lab.plan().empty, "planning again changes nothing"
        _assert_kept(lab, keys, before)
        kept, restored = lab.fold.snapshot(lab.now), SchedulingState()
        restored.restore(lab.fold.seq, lab.fold.chains, beside=lab.fold.beside())
        for fold in (fresh(lab), restored):
            of = fold.snapshot(lab.now)
            assert of.must_leave == kept.must_leave
            assert [each.called for each in of.nodes.closings] == [each.called for each in kept.nodes.closings]
            assert [each.parts for each in of.nodes.closings] == [each.parts for each in kept.nodes.closings]
        for key in keys:
            for (name, index), pod in lab.workload(key).pods.live.items():
                assert name
                if pod.phase == "Stopping":
                    lab.fact(key, "stopped", index=index)
                elif step % 2 and lab.workload(key).phase is Phase.PENDING:
                    lab.fact(key, "running", index=index)
        lab.now += timedelta(minutes=30)
    assert not lab.check().violations


@settings(max_examples=draws(30), deadline=None)
@given(st.lists(ENTRY, min_size=1, max_size=3), st.lists(PODS, max_size=6))
def test_who_may_use_what_is_reserved_gets_in_when_it_begins(
    entries: list[dict[str, Any]], others: list[dict[str, Any]]
) -> None:
    """GIVEN others that give way, WHEN a reservation of whole nodes begins, THEN one that it is for has one at once."""
    first = entries[0] | {"of": {"nodes": ("n0",)}, "count": {}, "holder": "project", "after": 4}
    lab, projects = _lab([first], [])
    for number, each in enumerate(others):
        _submit(lab, projects, number, each | {"project": "default", "firm": False})
    lab.settle()
    lab.now += 2 * HOUR
    for _ in range(3):
        lab.settle()
        for key in list(lab.fold.workloads):
            for (_, index), pod in lab.workload(key).pods.live.items():
                if pod.phase == "Stopping":
                    lab.fact(key, "stopped", index=index)
    own = lab.submit("own", project_id=lab.owner, gpu_devices_request=GPUS, node_pools=("gpu",))
    lab.settle()
    assert lab.places(own)
    assert not lab.check().violations
