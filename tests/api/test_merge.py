"""Layers of a spec made into one, and who set what: tables, and what holds for any of them."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.asset_specs import spec_node
from events.workload.kinds import KINDS
from events.workload.made_from import AssetUsed, MadeFrom, Source
from services.api.check import FaultyCreation, check_creation
from services.api.explain import explained, set_by
from services.api.merge import Layer, Merged, alone, merged

NODE = spec_node("Training")
KIND = KINDS["Training"]
SOURCES: tuple[Source, ...] = ("template", "environment", "request")
type Json = dict[str, Any]


def layered(*specs: Json) -> Merged:
    """The last is the request's; those before it a template's and an environment's."""
    sources = SOURCES[-len(specs) :] if len(specs) != 2 else ("template", "request")
    return merged(
        NODE,
        [
            Layer(source=source, name="" if source == "request" else source[0], spec=spec)
            for source, spec in zip(sources, specs, strict=True)
        ],
    )


A1, A2, A_GONE = {"name": "a", "value": "1"}, {"name": "a", "value": "2"}, {"name": "a", "exclude": True}
B = {"name": "b", "value": "3"}
GIT = {"name": "code", "path": "/c", "repository": "https://a.example/b"}
GIT_2 = {"path": "/c", "repository": "https://a.example/c"}


@pytest.mark.parametrize(
    ("below", "above", "together"),
    [
        ({"image": "t"}, {}, {"image": "t"}),
        ({"image": "t"}, {"image": "r"}, {"image": "r"}),
        ({"image": "t"}, {"image": None}, {"image": None}),
        ({"image": None}, {"image": "r"}, {"image": "r"}),
        # objects field by field, null and all
        (
            {"compute": {"cpuCoreRequest": 1, "cpuMemoryRequest": "1Gi"}},
            {"compute": {"cpuCoreRequest": 2, "cpuMemoryRequest": None}},
            {"compute": {"cpuCoreRequest": 2, "cpuMemoryRequest": None}},
        ),
        ({"compute": {"cpuCoreRequest": 1}}, {"compute": None}, {"compute": None}),
        ({"compute": None}, {"compute": {"cpuCoreRequest": 1}}, {"compute": {"cpuCoreRequest": 1}}),
        # lists of items by their key
        ({"labels": [A1, B]}, {"labels": [A2]}, {"labels": [A2, B]}),
        ({"labels": [A1]}, {"labels": [B]}, {"labels": [A1, B]}),
        ({"labels": [A1]}, {"labels": []}, {"labels": [A1]}),
        ({"labels": [A1]}, {"labels": None}, {"labels": None}),
        ({"labels": None}, {"labels": [A1]}, {"labels": [A1]}),
        ({"labels": [A1, B]}, {"labels": [A_GONE]}, {"labels": [A_GONE, B]}),
        ({"labels": [A1, None]}, {"labels": [None, B]}, {"labels": [A1, B]}),
        (
            {"compute": {"extendedResources": [{"resource": "a/b", "quantity": "1"}]}},
            {"compute": {"extendedResources": [{"resource": "a/b", "quantity": "2"}]}},
            {"compute": {"extendedResources": [{"resource": "a/b", "quantity": "2"}]}},
        ),
        # an item is taken whole: two sources of one variable would contradict each other
        (
            {"environmentVariables": [{"name": "K", "value": "1", "description": "d"}]},
            {"environmentVariables": [{"name": "K", "configMap": {"name": "m", "key": "k"}}]},
            {"environmentVariables": [{"name": "K", "configMap": {"name": "m", "key": "k"}}]},
        ),
        # items without a key stay beside each other
        (
            {"tolerations": [{"key": "x", "operator": "Exists", "effect": "Any"}]},
            {"tolerations": [{"key": "x", "operator": "Exists", "effect": "Any"}]},
            {"tolerations": [{"key": "x", "operator": "Exists", "effect": "Any"}] * 2},
        ),
        # volumes by their path; one is dropped by its name, too
        ({"storage": {"git": [GIT]}}, {"storage": {"git": [GIT_2]}}, {"storage": {"git": [GIT_2]}}),
        (
            {"storage": {"git": [GIT]}},
            {"storage": {"git": [{"name": "code", "exclude": True}, {"name": "x", "exclude": True}]}},
            {
                "storage": {
                    "git": [{"name": "code", "path": "/c", "exclude": True}, {"name": "x", "exclude": True}],
                }
            },
        ),
        # what is given twice in one place is still there, for the rule that refuses it
        ({"labels": [A1]}, {"labels": [A2, A2]}, {"labels": [A2, A2]}),
        # other lists are values
        ({"nodePools": ["a", "b"]}, {"nodePools": ["c"]}, {"nodePools": ["c"]}),
        ({"nodePools": ["a"]}, {"nodePools": []}, {"nodePools": []}),
        # what is no field is for the check
        ({}, {"nonsense": 1, "compute": 3, "labels": "x"}, {"nonsense": 1, "compute": 3, "labels": "x"}),
        ({"labels": "x", "compute": 3}, {"labels": [B], "compute": {}}, {"labels": [B], "compute": {}}),
    ],
)
def test_two_layers_make_one(below: Json, above: Json, together: Json) -> None:
    assert layered(below, above).spec == together


def test_assets_go_before_a_template_and_the_request_before_both() -> None:
    whole = layered({"image": "t", "command": "t", "args": "t"}, {"image": "e", "command": "e"}, {"image": "r"}).spec
    assert whole == {"image": "r", "command": "e", "args": "t"}


def test_a_fault_is_told_at_its_own_place() -> None:
    whole = layered({"labels": [A1]}, {"labels": [None, B], "compute": {"cpuCoreLimit": -1}})
    for path, layer, own in (
        ("labels[0].value", "template", "labels[0].value"),
        ("labels[1].value", "request", "labels[1].value"),
        ("compute.cpuCoreLimit", "request", "compute.cpuCoreLimit"),
    ):
        found = whole.place(path)
        assert found is not None
        assert (found[0].layer.source, found[1]) == (layer, own)
    assert whole.place("image") is None
    assert whole.place("labels[7].name") is None


WHOLE: dict[str, Json] = {
    "annotations": {"name": "a", "value": "1"},
    "compute.extendedResources": {"resource": "a/b", "quantity": "1"},
    "environmentVariables": {"name": "A", "value": "1"},
    "exposedUrls": {"name": "lab", "container": 8888},
    "imagePullSecrets": {"name": "a"},
    "labels": {"name": "a", "value": "1"},
    "ports": {"name": "lab", "container": 8888, "serviceType": "ClusterIP"},
    "relatedUrls": {"name": "board", "url": "https://wandb.example.com", "type": "wandb"},
    "storage.configMapVolume": {"mountPath": "/a", "configMap": "a"},
    "storage.dataVolume": {"mountPath": "/a", "id": "7b0e9f2a-6f0e-4c55-9c6b-2f2f6b3f1a10"},
    "storage.emptyDirVolume": {"path": "/a"},
    "storage.git": {"path": "/a", "repository": "https://git.example.com/a"},
    "storage.hostPath": {"mountPath": "/a", "path": "/b"},
    "storage.nfs": {"mountPath": "/a", "path": "/b", "server": "c"},
    "storage.pvc": {"path": "/a", "claimInfo": {"size": "1Gi"}},
    "storage.s3": {"path": "/a", "bucket": "abc"},
    "storage.secretVolume": {"mountPath": "/a", "secret": "a"},
    "tolerations": {"name": "a", "key": "k", "operator": "Exists", "effect": "Any"},
}
"""By list whose items say exclude: one that a policy adds, in whose first field stands what tells items apart."""
NEEDED: dict[str, Json] = {
    "Distributed": {"distributedFramework": "PyTorch"},
    "Inference": {"servingPort": {"container": 1}},
}


def lists_of(kind: str) -> set[str]:
    found = (field for field in spec_node(kind).walk() if field.item is not None and "exclude" in field.item.by_name)
    return {field.path.removeprefix("spec.").removesuffix("[]") for field in found}


def test_every_list_whose_items_say_exclude_is_among_those_below() -> None:
    assert lists_of("Training") == {*WHOLE}
    assert all(lists_of(kind) <= {*WHOLE} for kind in KINDS)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_a_policy_adds_to_a_list_a_request_drops_by_exclude(kind: str) -> None:
    """S075, R37: every list that has it, of every kind."""
    for path in sorted(lists_of(kind)):
        item, (above, _, name) = WHOLE[path], path.rpartition(".")
        key = next(iter(item))

        def made(*asked: Json, at: str = path, above: str = above, name: str = name) -> list[Any]:
            layers = [Layer(source="project policy", name="", spec=NEEDED.get(kind, {}) | {"image": "i"})]
            for source, one in zip(("project policy", "request"), asked, strict=False):
                layers.append(Layer(source=source, name="", spec={above: {name: [one]}} if above else {name: [one]}))
            spec = merged(spec_node(kind), layers).spec
            request = {"name": "n", "projectId": "p", "clusterId": "c", "spec": spec}
            checked = check_creation(KINDS[kind].creation, request)
            if isinstance(checked, FaultyCreation):
                return [issue.field for issue in checked.issues]
            shown = msgspec.to_builtins(KINDS[kind].with_defaults(checked.order()[0]))
            return [*(shown[above] if above else shown)[name]]

        if kind == "Inference" and made(item) == [f"spec.{path}"]:
            continue  # it has none of these volumes
        assert [one[key] for one in made(item)] == [item[key]], path
        assert made(item, {key: item[key], "exclude": True}) == [], path


# -- who set what ----------------------------------------------------------------------------------------------------


def told(*specs: Json) -> dict[str, str]:
    """Who set each field, as it is told of what was stored."""
    whole = layered(*specs)
    checked = check_creation(KIND.creation, {"name": "n", "projectId": "p", "clusterId": "c", "spec": whole.spec})
    assert not isinstance(checked, FaultyCreation), checked
    spec, distributed = checked.order()
    spec = KIND.with_defaults(spec)
    used = MadeFrom(
        template=AssetUsed(id="i", name="nightly", version=1),
        environment=AssetUsed(id="j", name="torch", version=2),
        set_by=set_by(KIND, whole, spec, distributed),
    )
    return explained(KIND, spec, distributed, used)


def test_every_field_says_who_set_it() -> None:
    found = told(
        {"image": "t", "priorityClass": "high", "labels": [A1, B], "nodePools": ["a"], "backoffLimit": 1},
        {"image": "e", "environmentVariables": [{"name": "K", "value": "1"}]},
        {
            "labels": [A_GONE, {"name": "c"}],
            "priorityClass": None,
            "completions": 1,
            "backoffLimit": 6,
            "environmentVariables": [{"name": "L", "value": "1"}],
            "compute": {"gpuRequestType": "portion", "gpuPortionRequest": 0.5},
        },
    )
    expected = {
        "image": "environment torch",
        "priorityClass": "request",
        "labels[0]": "template nightly",
        "labels[1]": "request",
        "nodePools": "template nightly",
        "completions": "request",
        "backoffLimit": "request",
        "environmentVariables[0]": "environment torch",
        "environmentVariables[1]": "request",
        "compute.gpuPortionRequest": "request",
        "compute.gpuDevicesRequest": "default",
        "preemptibility": "default",
        "parallelism": "default",
        "annotations": "default",
    }
    assert {path: found[f"spec.{path}"] for path in expected} == expected


@pytest.mark.parametrize(
    "given",
    [
        {"image": "i"},
        {"image": "i", "priorityClass": "very-high", "labels": [A1], "security": {"runAsNonRoot": True}},
        {"image": "i", "compute": {"gpuRequestType": "memory", "gpuMemoryRequest": "1Gi"}},
    ],
)
def test_what_values_say_themselves_is_not_stored(given: Json) -> None:
    checked = check_creation(KIND.creation, {"name": "n", "projectId": "p", "clusterId": "c", "spec": given})
    assert not isinstance(checked, FaultyCreation)
    order, distributed = checked.order()
    own = alone(NODE, Layer(source="request", name="", spec=given))
    assert set_by(KIND, own, KIND.with_defaults(order), distributed) == {}
    assert set_by(KIND, layered(given), KIND.with_defaults(order), distributed) == {}


# -- what holds for any layers ---------------------------------------------------------------------------------------

_WORDS = st.sampled_from(["a", "b", "c"])
_LABELS = st.lists(
    st.fixed_dictionaries({"name": _WORDS}, optional={"value": _WORDS, "exclude": st.booleans()}),
    max_size=3,
    unique_by=lambda label: label["name"],
)


def _maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


_SPECS = st.fixed_dictionaries(
    {},
    optional={
        "image": _WORDS,
        "command": _maybe(_WORDS),
        "completions": _maybe(st.integers(1, 3)),
        "nodePools": _maybe(st.lists(_WORDS, max_size=2, unique=True)),
        "labels": _maybe(_LABELS),
        "annotations": _maybe(_LABELS),
        "priorityClass": _maybe(st.sampled_from(["low", "high"])),
        "createHomeDir": _maybe(st.booleans()),
        "compute": _maybe(
            st.fixed_dictionaries(
                {}, optional={"cpuCoreRequest": _maybe(st.integers(0, 2)), "largeShmRequest": st.booleans()}
            )
        ),
        "security": _maybe(
            st.fixed_dictionaries({}, optional={"runAsNonRoot": _maybe(st.booleans()), "seccompProfileType": st.none()})
        ),
    },
)


def said(layers: tuple[Json, ...], *path: str) -> tuple[bool, Any]:
    """(whether any layer says something of a field, what the highest of them says): a second, plainer telling."""
    found: tuple[bool, Any] = (False, None)
    for layer in layers:
        here: Any = layer
        for step in path:
            if here is None:
                break
            if step not in here:
                break
            here = here[step]
        else:
            found = (True, here)
            continue
        if here is None:
            found = (True, None)
    return found


def setter(layers: tuple[Json, ...], path: tuple[str, ...]) -> str:
    """Who set a field. What is cleared as a whole and then given anew, has its defaults from nobody."""
    found, name = "default", path[-1]
    for source, layer in zip(SOURCES, layers, strict=True):
        holder = layer
        if len(path) > 1 and path[0] in layer:
            if layer[path[0]] is None:
                found, holder = source, {}
            else:
                cleared = said(layers[: SOURCES.index(source)], path[0]) == (True, None)
                found, holder = ("default" if cleared else found), layer[path[0]]
        elif len(path) > 1:
            continue
        if name in holder:
            found = source
    return found


def items(layers: tuple[Json, ...], name: str) -> dict[str, str]:
    """What is left of a list of labels: value by name."""
    left: dict[str, str] = {}
    for layer in layers:
        if name not in layer:
            continue
        if layer[name] is None:
            left = {}
        for item in layer[name] or ():
            left[item["name"]] = "" if item.get("exclude") else "=" + item.get("value", "")
    return {key: value.removeprefix("=") for key, value in left.items() if value}


@given(_SPECS, _SPECS, _SPECS)
def test_what_is_read_back_is_what_was_merged(template: Json, environment: Json, request: Json) -> None:
    layers = (template | {"image": "t"}, environment, request)
    whole = layered(*layers)
    checked = check_creation(KIND.creation, {"name": "n", "projectId": "p", "clusterId": "c", "spec": whole.spec})
    assert not isinstance(checked, FaultyCreation), checked
    order, distributed = checked.order()
    spec = KIND.with_defaults(order)
    shown: Json = msgspec.to_builtins(spec)
    for path, default in {
        ("image",): None,
        ("command",): None,
        ("completions",): 1,
        ("priorityClass",): "low",
        ("createHomeDir",): False,
        ("compute", "cpuCoreRequest"): 0.0,
        ("compute", "largeShmRequest"): False,
        ("security", "runAsNonRoot"): False,
    }.items():
        _, value = said(layers, *path)
        held: Any = shown
        for step in path:
            held = held[step]
        assert held == (default if value is None else value), path
    assert list(shown["nodePools"]) == (said(layers, "nodePools")[1] or [])
    for name in ("labels", "annotations"):
        assert {item["name"]: item.get("value", "") for item in shown[name]} == items(layers, name)
    used = MadeFrom(set_by=set_by(KIND, whole, spec, distributed))
    who = explained(KIND, spec, distributed, used)
    for path in (("command",), ("completions",), ("compute", "cpuCoreRequest"), ("nodePools",)):
        assert who["spec." + ".".join(path)] == setter(layers, path), path
