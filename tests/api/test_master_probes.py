"""The probes of a master: what its workers are asked, or its own; and fields that a master has not. Pure.

Requirement rows: S027, S066, R21.
"""

from typing import Any

import msgspec
import pytest

from events.aggregate import Chain
from events.asset_specs import spec_node
from events.cluster import Cluster
from events.policy import Policy
from events.project import Project
from events.workload.fields.creation import DistributedCreation
from events.workload.kinds import KINDS
from events.workload.kinds.distributed import shown_master
from events.workload.spec import Distributed, TrainingSpec, beside_with_defaults, with_defaults
from services.api.check import FaultyCreation, check_creation
from services.api.merge import Layer, merged
from services.api.policies_in_force import InForce, broken_rules, master_layers, master_node, rules_of
from services.api.rules import check_placed, check_within
from tests.api.test_kinds import distributed

KIND = KINDS["Distributed"]


def probe(port: int = 8080, **more: Any) -> dict[str, Any]:
    return {"readiness": {"handler": {"httpGet": {"port": port, **more}}}}


def asked(workers: Any, master: dict[str, Any], *, framework: str = "PyTorch") -> dict[str, Any]:
    return distributed(
        framework=framework, spec={"probes": workers}, masterSpec={"image": "m", "command": "mpirun x", **master}
    )


def taken(data: dict[str, Any]) -> DistributedCreation:
    checked = check_creation(DistributedCreation, data)
    assert isinstance(checked, DistributedCreation), checked
    return checked


def stored(data: dict[str, Any]) -> tuple[TrainingSpec, Distributed]:
    spec, beside = taken(data).order()
    found = beside_with_defaults(beside)
    assert isinstance(found, Distributed)
    return with_defaults(spec), found


def refused(data: dict[str, Any]) -> dict[str, str]:
    checked = check_creation(DistributedCreation, data)
    assert isinstance(checked, FaultyCreation), f"taken: {checked}"
    return {issue.field: issue.details for issue in checked.issues}


MASTERS: list[tuple[dict[str, Any], int | None]] = [
    ({}, 2222),
    ({"probes": None}, 2222),
    ({"probes": {}}, None),
    ({"probes": {"readiness": None}}, None),
    ({"probes": probe(80)}, 80),
]


@pytest.mark.parametrize(("master", "port"), MASTERS, ids=["none", "null", "nothing", "null within", "its own"])
@pytest.mark.parametrize("framework", ["PyTorch", "MPI"])
def test_a_master_is_asked_what_it_names_or_what_its_workers_are(
    framework: str, master: dict[str, Any], port: int | None
) -> None:
    spec, beside = stored(asked(probe(2222), master, framework=framework))
    found = {one.name: one.template.readiness for one in KIND.pod_sets(spec, beside)}
    assert {name: ready and ready.port for name, ready in found.items()} == {"master": port, "worker": 2222}


@pytest.mark.parametrize(("master", "port"), MASTERS, ids=["none", "null", "nothing", "null within", "its own"])
def test_what_is_shown_of_its_probes_makes_the_master_again(master: dict[str, Any], port: int | None) -> None:
    spec, beside = stored(asked(probe(2222), master))
    same, own = shown_master(spec, beside)
    assert not same
    assert own is not None
    assert (own.probes is None) == (port == 2222)
    again = distributed(spec=msgspec.to_builtins(KIND.shown(spec, beside)), masterSpec=msgspec.to_builtins(own))
    assert stored(again) == (spec, beside)


def test_what_is_wrong_with_a_probe_is_told_once_and_of_who_has_it() -> None:
    handler = "probes.readiness.handler"
    assert refused(asked({"readiness": {}}, {})).keys() == {f"spec.{handler}"}
    assert refused(asked({}, {"probes": {"readiness": {}}})).keys() == {f"masterSpec.{handler}"}
    for data, whose in (
        (asked(probe(host="db.example.com"), {}), "spec"),
        (asked({}, {"probes": probe(host="db.example.com")}), "masterSpec"),
    ):
        field = f"{whose}.{handler}.httpGet.host"
        creation = taken(data)
        assert [issue.field for issue in check_placed(creation, Cluster(name="c", kind="local"))] == [field]
        assert [issue.field for issue in check_within(creation, Project(name="p"))] == [field]
        assert list(check_within(creation, Project(name="p", privileged=True))) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"probes": None}, {}),
        ({"probes": {}}, {"probes": probe()}),
        ({"probes": probe(1)}, {"probes": probe()}),
    ],
)
def test_defaults_of_policies_reach_only_probes_of_its_own(given: dict[str, Any], expected: dict[str, Any]) -> None:
    policy = Layer(source="project policy", name="", spec={"probes": probe(), "nodePools": ["a"]})
    (layer,) = master_layers([policy], master_node(KIND), given)
    assert layer.spec == expected


SLOW = {"probes": {"readiness": {"periodSeconds": 30, "handler": {"httpGet": {"port": 1}}}}}


@pytest.mark.parametrize(
    ("spec", "master", "whose"), [({}, SLOW, "masterSpec"), (SLOW, {}, "spec"), ({}, {"probes": {}}, "")]
)
def test_rules_of_policies_hold_for_who_has_the_probe(spec: dict[str, Any], master: dict[str, Any], whose: str) -> None:
    policy = Policy(policy_id="probes", rules={"probes": {"readiness": {"periodSeconds": {"max": 10}}}})
    in_force = InForce(
        workload_type="Distributed",
        chains={"tenant": Chain(state=policy, version=1)},
        rules=rules_of("Distributed", [policy]),
        ever=True,
    )
    data = distributed(spec=spec, masterSpec={"image": "m", **master})
    given = [Layer(source="request", name="", spec=data[part]) for part in ("spec", "masterSpec")]
    whole, own = merged(spec_node("Distributed"), given[:1]), merged(master_node(KIND), given[1:])
    found = [issue.field for issue in broken_rules(KIND, in_force, taken(data), whole, own)]
    assert found == ([f"{whose}.probes.readiness.periodSeconds"] if whose else [])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ports", [{"container": 80, "serviceType": "ClusterIP"}]),
        ("exposedUrls", [{"container": 80}]),
        ("nodePools", ["a"]),
        ("backoffLimit", 1),
        ("category", "x"),
        ("code", "a" * 64),
        ("numWorkers", 2),
        ("checkpoint", {"path": "/saved"}),
    ],
)
def test_what_holds_for_the_whole_training_is_refused_in_its_master_and_said_where_it_goes(
    field: str, value: Any
) -> None:
    assert refused(asked({}, {field: value})) == {
        f"masterSpec.{field}": f"holds for the whole training; give it as spec.{field}"
    }
