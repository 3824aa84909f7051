"""Memory without a unit: `--cpu-memory-request 4` is four bytes, as in Kubernetes, and nobody means that."""

from collections.abc import Iterator
from typing import Final

from muster.cli.exits import usage
from muster.cli.values import Json, Row

_SIZES: Final = frozenset(
    {"cpuMemoryRequest", "cpuMemoryLimit", "gpuMemoryRequest", "gpuMemoryLimit", "size", "sizeLimit"}
)
LEAST_MEANT: Final = 1024 * 1024
"""Below a mebibyte a number alone is a forgotten unit; 0 means none."""


def check_units(request: Row, where: str = "") -> None:
    """Raises Problem (usage) for a size that is a few bytes. The API takes it, as every quantity."""
    from muster.cli.training_flags import FLAG_OF_FIELD

    for path, value in _sizes(request, ""):
        if value.isdecimal() and 0 < int(value) < LEAST_MEANT:
            flag = FLAG_OF_FIELD.get(path)
            said = f"--file: {where}: {path}" if where else flag or path
            raise usage(
                f"{said}: {value} is {value} bytes", todo=f"write {value}Gi or {value}Mi, or a number that is larger"
            )


def _sizes(value: Json, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, below in value.items():
            at = f"{path}.{key}" if path else str(key)
            if key in _SIZES and isinstance(below, str):
                yield at, below
            elif key in _HOLD_SIZES:
                yield from _sizes(below, at)
    elif isinstance(value, list):
        for below in value:
            yield from _sizes(below, path)


_HOLD_SIZES: Final = frozenset({"spec", "masterSpec", "compute", "storage", "pvc", "claimInfo", "emptyDirVolume"})
"""Elsewhere a field of such a name is another one."""
