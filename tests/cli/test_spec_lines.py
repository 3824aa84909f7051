"""What `describe` says of a spec: nothing that a field says is lost, and items are as the flags of submit take them."""

from copy import deepcopy
from typing import Any

import pytest

from events.workload.fields.creation import TrainingCreation
from muster.cli.spec_lines import lines_of
from muster.cli.training_flags import flags_of, value_of
from tests.support.any_spec import ITEMS, VOLUMES

LISTS: dict[str, list[dict[str, Any]]] = {
    **{f"spec.{name}": items for name, items in ITEMS.items()},
    **{f"spec.storage.{name}": items for name, items in VOLUMES.items()},
}
FLAGS = {flag.field: flag for flag in flags_of(TrainingCreation) if flag.kind == "items" and flag.field in LISTS}


@pytest.mark.parametrize("field", FLAGS)
def test_an_item_is_shown_as_its_flag_takes_it(field: str) -> None:
    """S018, S029, S031, S032, S044, S055."""
    *above, name = field.split(".")
    spec: dict[str, Any] = {name: deepcopy(LISTS[field])}
    for step in reversed(above[1:]):
        spec = {step: spec}
    lines = lines_of(spec)
    assert [path for path, _ in lines] == [f"{field.removeprefix('spec.')}[{at}]" for at in range(len(LISTS[field]))]
    assert value_of(FLAGS[field], [text for _, text in lines]) == LISTS[field]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"image": "i", "tty": False}, [("image", "i"), ("tty", "no")]),
        ({"labels": [{"name": "a", "value": "b"}, {"name": "c"}]}, [("labels", "a=b, c")]),
        ({"imagePullSecrets": [{"name": "a"}, {"name": "b"}]}, [("imagePullSecrets", "a, b")]),
        (
            {"environmentVariables": [{"name": "A", "value": "1", "description": "one"}]},
            [("environmentVariables", "A=1")],
        ),
        (
            {
                "environmentVariables": [
                    {"name": "A", "value": "1"},
                    {"name": "S", "secret": {"name": "s", "key": "k"}},
                    {"name": "P", "podFieldRef": {"path": "status.podIP"}},
                ]
            },
            [
                ("environmentVariables[0]", "name=A,value=1"),
                ("environmentVariables[1]", "name=S,secret.name=s,secret.key=k"),
                ("environmentVariables[2]", "name=P,podFieldRef.path=status.podIP"),
            ],
        ),
        (
            {"compute": {"extendedResources": [{"resource": "rdma/hca", "quantity": "2"}]}},
            [("compute.extendedResources", "rdma/hca=2")],
        ),
        (
            {
                "nodeAffinityRequired": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]},
                        {"matchExpressions": [{"key": "x", "operator": "Exists"}, {"key": "y", "operator": "Exists"}]},
                    ]
                }
            },
            [("nodeAffinityRequired.nodeSelectorTerms", "zone In a,b or x Exists and y Exists")],
        ),
        (
            {"sweep": {"parameters": [{"name": "lr", "values": ["1", "2"]}], "combine": "Rows"}},
            [("sweep.parameters", "lr=1,2"), ("sweep.combine", "Rows")],
        ),
    ],
)
def test_what_a_spec_says_is_shown_by_its_paths(spec: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert lines_of(spec) == expected
