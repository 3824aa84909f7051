"""Policies and credentials: values of somebody's credentials go where their owner says, not where a policy does. Pure.

A credential is found by its name among those of whoever submits. A policy that names one would take a value of
everybody's who submits there; one that sets what runs beside such a value could read it. So a policy names none, and
what a project's or a department's sets of what runs is refused where the request has values. A tenant's policy may set
what runs: whoever sets it is trusted with the whole installation.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from services.api.issues import Issue, fault
from services.api.merge import Layer, Merged, Origin, Place

NAMES: Final = ("userCredential", "credential")
"""Fields that name a credential of whoever submits: of variables, images, repositories, and of a model."""
_RUNS: Final = ("image", "command", "args", "workingDir", "environmentVariables", "storage", "model")
"""What decides which program finds the values. A model may bring code of its own."""
_OF_PLACES: Final = ("project policy", "department policy")
NOT_LENT: Final = "names a credential of whoever submits, and a policy gives nobody's away; let people name theirs"


def named_in(value: Any, path: str = "") -> Iterator[Issue]:
    """What of a policy's defaults names a credential."""
    if isinstance(value, Mapping):
        for name, inner in cast("Mapping[str, Any]", value).items():
            here = f"{path}.{name}" if path else name
            if name in NAMES and inner:
                yield fault(here, NOT_LENT, "canAdd")
            else:
                yield from named_in(inner, here)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, inner in enumerate(cast("Sequence[Any]", value)):
            yield from named_in(inner, f"{path}[{index}]")


def lent(named: Sequence[str], specs: Mapping[str, Merged | None]) -> Iterator[Issue]:
    """What policies set of a workload that has values of credentials.

    Args:
        named: fields that name a credential, such as `spec.environmentVariables[0].userCredential.name`.
        specs: what was merged, by `spec` and `masterSpec`.
    """
    own = ""
    for field in named:
        whole, _, path = field.partition(".")
        merged = specs.get(whole)
        found = None if merged is None else merged.place(path)
        if found is not None and found[0].layer.source.endswith("policy"):
            yield fault(field, f"{NOT_LENT}: exclude it, or give your own")
        else:
            own = own or field
    if not own:
        return
    for whole, merged in specs.items():
        if merged is None:
            continue
        for name in _RUNS:
            for path, layer in _layers(name, merged.origin.get(name)):
                if layer.source in _OF_PLACES and _is_set(merged, path):
                    details = f"decides what runs with values of your credentials ({own}): give your own, or name none"
                    yield fault(f"{whole}.{path}", details, None, own)


def _layers(path: str, origin: Origin | None) -> Iterator[tuple[str, Layer]]:
    """Where each value, or item of a list, comes from."""
    if isinstance(origin, Place):
        yield path, origin.layer
    elif isinstance(origin, dict):
        for name, inner in origin.items():
            yield from _layers(f"{path}.{name}", inner)
    elif isinstance(origin, list):
        yield from ((f"{path}[{index}]", layer) for index, (_, layer, _, _) in enumerate(origin))


def _is_set(merged: Merged, path: str) -> bool:
    """Whether it is more than a null, which clears nothing that could run."""
    name = path.split(".", maxsplit=1)[0].partition("[")[0]
    return merged.spec.get(name) is not None
