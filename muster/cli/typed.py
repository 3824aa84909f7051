"""Which flag gave which field of a request: what a message about that field names. Where a flag has several names, the
one that was typed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typer._click.core import Parameter

type Flags = dict[str, str]
"""By the field's path in the request, or that of an item of a list."""

_LAST_STEP: Final = re.compile(r"(\.[^.\[\]]+|\[\d+\])\Z")


def long_names(parameters: Iterable["Parameter"], words: Sequence[str]) -> dict[str, str]:
    """By parameter, the long name by which it was typed first."""
    of = {name: one.name or "" for one in parameters for name in one.opts if name.startswith("--")}
    found: dict[str, str] = {}
    for word in words:
        name = word.partition("=")[0]
        if name in of:
            found.setdefault(of[name], name)
    return found


def flag_of(path: str, flags: Mapping[str, str]) -> str:
    """The flag that gave this field, or what it is in; empty where none did."""
    here, before = path, ""
    while here != before:
        if here in flags:
            return flags[here]
        here, before = _LAST_STEP.sub("", here), here
    return ""


def taken_over(flags: Flags) -> None:
    """Of a master, what flags of its own do not say is the workers'."""
    own = {_step(path) for path in flags if path.startswith("masterSpec.")}
    for path, flag in [*flags.items()]:
        of_master = f"masterSpec.{path.removeprefix('spec.')}"
        if path.startswith("spec.") and (_step(of_master) not in own or path.startswith("spec.compute.")):
            flags.setdefault(of_master, flag)


def _step(path: str) -> str:
    return re.split(r"[.\[]", path)[1]
