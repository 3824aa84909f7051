"""Which run of a sweep has which values. Pure."""

from math import prod

from events.workload.fields.sweep import SweepSpec


def runs_of(sweep: SweepSpec | None) -> int:
    """How many runs it has; 0 where there is none."""
    if sweep is None or not sweep.parameters:
        return 0
    counts = [len(parameter.values) for parameter in sweep.parameters]
    return prod(counts) if sweep.combine == "Product" else min(counts)


def values_of(sweep: SweepSpec, index: int) -> dict[str, str]:
    """The values of the run with this index, from 0, by the names of their variables."""
    found: dict[str, str] = {}
    for parameter in reversed(sweep.parameters):
        count = len(parameter.values)
        if not count:
            continue  # nobody decides such a sweep
        # Of a product, the index is a number whose digits are the places of the values.
        found[parameter.name] = parameter.values[index % count]
        index = index // count if sweep.combine == "Product" else index
    return dict(reversed(found.items()))
