"""Who set each field of a workload's spec: what of it is stored, and what is told. Pure.

A value mostly says it itself: one that differs from its default was asked for, and every other is a default. Only where
that is not so, something is stored (docs/adr/0082).
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from itertools import chain, islice, repeat
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

from msgspec.structs import replace

from events.asset_specs import spec_node
from events.fields.declare import Section
from events.fields.node import Node, item_key
from events.workload.fields.distribution import with_distribution_defaults
from events.workload.fields.inference import following as serving_that_follows
from events.workload.fields.storage import DataVolume
from events.workload.kinds.kind import Kind
from events.workload.made_from import MadeFrom, Source
from events.workload.spec import FOLLOWING, Beside, Distributed, Inference, TrainingSpec, what_follows
from services.api.merge import Merged, Place

_LAST_STEP: Final = re.compile(r"(\.\w+|\[\d+\])\Z")


def set_by(kind: Kind, merged: Merged, spec: TrainingSpec, beside: Beside) -> dict[str, tuple[str, ...]]:
    """What is to be stored of who set which field: paths by source. `spec` has its defaults."""
    actual = dict(_given(spec_node(kind.name), merged, ""))
    found: dict[str, list[str]] = {}
    # Of what nobody gave, the value says that it is a default, or follows from what somebody gave.
    for path, count, supposed in _supposed(kind, spec, beside, among=merged.origin.keys()):
        whole = _source_of(path, actual)
        if count is None:
            if whole != supposed:
                found.setdefault(whole, []).append(path)
            continue
        held = actual.get(path)
        of_items = held if isinstance(held, list) else []
        if not of_items and whole == supposed:
            continue  # there may be thousands
        for index, source in enumerate(islice(chain(of_items, repeat(whole)), count)):
            if source != supposed:
                found.setdefault(source, []).append(f"{path}[{index}]")
    return {source: tuple(paths) for source, paths in found.items()}


def explained(kind: Kind, spec: TrainingSpec, beside: Beside, made_from: MadeFrom | None) -> dict[str, str]:
    """Who set each field of the spec, such as `spec.labels[0]`: `request`, `default`, or the asset and its name."""
    told: dict[str, str] = {}
    for path, count, supposed in _supposed(kind, spec, beside):
        told |= {path: supposed} if count is None else {f"{path}[{index}]": supposed for index in range(count)}
    if made_from is not None:
        called = {"template": made_from.template, "environment": made_from.environment, "compute": made_from.compute}
        for source, paths in made_from.set_by.items():
            if source == "data source":
                told |= {path: f"{source} {_name_at(spec, path, made_from)}" for path in paths if path in told}
                continue
            used = called.get(source)
            word = source if used is None else f"{source} {used.name}"
            told |= {path: word for path in paths if path in told}
    return {f"spec.{path}": word for path, word in told.items()}


def sources_of(node: Node, given: Merged, values: Any) -> Iterator[tuple[str, str]]:
    """(path, who set it) of each field of an object of which only what was given says it: that of a master.

    Args:
        values: of all its fields, as answers give them.
    """
    for leaf in _leaves_of(node, "", (), optional=False):
        value = values
        for name in leaf.path.split("."):
            value = None if value is None else value.get(name)
        held = given.at(leaf.path)
        if leaf.by_item and value:
            left = (
                [layer.called for item, layer, _, _ in held if not _is_excluded(item)] if isinstance(held, list) else []
            )
            whole = held.layer.called if isinstance(held, Place) else "default"
            for index, source in enumerate(islice(chain(left, repeat(whole)), len(value))):
                yield f"{leaf.path}[{index}]", source
        else:
            last = held[-1][1] if isinstance(held, list) and held else held.layer if isinstance(held, Place) else None
            yield leaf.path, "default" if last is None else last.called


def _name_at(spec: TrainingSpec, path: str, made_from: MadeFrom) -> str:
    """The name of the data source that a volume at a path such as `storage.git[0]` comes from: it is the volume's, or
    is found by the id of a data volume.
    """
    holder, _, index = path.partition("[")
    volumes = next(leaf for leaf in _leaves("Training") if leaf.path == holder).value(spec)
    volume = volumes[int(index.rstrip("]"))]
    if isinstance(volume, DataVolume):
        return next((used.name for used in made_from.data_sources if used.id == volume.id), "")
    return volume.name or ""


def _supposed(
    kind: Kind, spec: TrainingSpec, beside: Beside, *, among: Collection[str] | None = None
) -> Iterator[tuple[str, int | None, Source]]:
    """(the path of each field, how many items it has where each item is told, who set it as far as its value says it).

    Args:
        among: only below these fields of the spec.
    """
    form = kind.shown(spec, beside)
    following: Section | None = None
    for leaf in _leaves(kind.name):
        if among is not None and leaf.top not in among:
            continue
        own = leaf.value(form)
        if own and leaf.by_item:
            yield leaf.path, len(own), "request"
            continue
        default = leaf.default
        if leaf.path in FOLLOWING:
            following = following or _with_what_follows(kind, spec, beside)
            default = leaf.value(following)
        yield leaf.path, None, "default" if own == default else "request"


def _with_what_follows(kind: Kind, spec: TrainingSpec, beside: Beside) -> Section:
    """The spec as it would be if nobody had given what can follow from other fields."""
    undone = replace(spec, preemptibility=None, compute=replace(spec.compute, gpu_devices_request=0))
    if isinstance(beside, Inference):
        beside = replace(beside, serving=serving_that_follows(beside.serving))
    elif isinstance(beside, Distributed):
        undone_there = replace(beside.distribution, slots_per_worker=None, mpi_launcher_creation_policy=None)
        beside = replace(beside, distribution=with_distribution_defaults(undone_there))
    return kind.shown(what_follows(undone), beside)


class _Leaf(NamedTuple):
    """A field of the spec that holds no others; a list that is merged item by item holds items."""

    path: str
    top: str
    """The first step of it."""
    value: Callable[[Any], Any]
    """Of the spec in the form of its kind; the default where the object that holds it is null."""
    default: Any
    by_item: bool


@cache
def _leaves(kind: str) -> tuple[_Leaf, ...]:
    return tuple(_leaves_of(spec_node(kind), "", (), optional=False))


def _leaves_of(node: Node, path: str, attributes: tuple[str, ...], *, optional: bool) -> Iterator[_Leaf]:
    for field in node.fields:
        here, names = f"{path}.{field.name}" if path else field.name, (*attributes, field.attribute)
        if field.kind == "object":
            yield from _leaves_of(field, here, names, optional=optional or field.default is None)
        else:
            get = _in_optional(names, field.default) if optional else attrgetter(".".join(names))
            yield _Leaf(here, here.partition(".")[0], get, field.default, item_key(field) is not None)


def _in_optional(attributes: tuple[str, ...], default: Any) -> Callable[[Any], Any]:
    def get(form: Any) -> Any:
        for name in attributes:
            if form is None:
                return default
            form = getattr(form, name)
        return form

    return get


def _given(node: Node, merged: Merged, path: str) -> Iterator[tuple[str, Source | list[Source]]]:
    """Who gave what, by path; of lists that are merged, who gave each of the items that are left when the excluded ones
    are dropped. One that is empty says nothing: to clear it takes null.
    """
    for name, held in merged.origin.items():
        here, value = f"{path}.{name}" if path else name, merged.spec.get(name)
        if isinstance(held, Place):
            if value != [] or (field := node.by_name.get(name)) is None or item_key(field) is None:
                yield here, held.layer.source
        elif isinstance(held, dict):
            below = Merged(spec=cast("dict[str, Any]", value), origin=held)
            yield from _given(node.by_name[name], below, here)
        else:
            left: list[Source] = [layer.source for item, layer, _, _ in held if not _is_excluded(item)]
            if held:
                yield here, left or held[-1][1].source


def _is_excluded(item: Any) -> bool:
    """Whoever evaluates a request may give what is no item at all."""
    return isinstance(item, dict) and bool(cast("dict[str, Any]", item).get("exclude"))


def _source_of(path: str, actual: Mapping[str, Source | list[Source]]) -> Source:
    """Of a field, or of the object that it is in, where that was given or cleared as a whole."""
    while path:
        source = actual.get(path)
        if source is not None and not isinstance(source, list):
            return source
        shorter = _LAST_STEP.sub("", path)
        path = shorter if shorter != path else ""
    return "default"
