"""Runs that differ in values of their environment."""

from typing import Annotated, ClassVar, Final, Literal

from events.fields.declare import About, Item, Limits, Section
from events.fields.values import ItemName

MOST_RUNS: Final = 10_000
"""Of one sweep."""
MOST_PARAMETERS: Final = 20
SweepValue = Annotated[str, Limits(longest=1000)]


class SweepParameter(Item, frozen=True, kw_only=True):
    """A variable, and the values that it has in the runs."""

    name: Annotated[ItemName, About(rows="S061")]
    """Name of the environment variable that holds a run's value. Mandatory."""
    values: Annotated[tuple[SweepValue, ...], Limits(shortest=1, longest=MOST_RUNS), About(rows="S061")]
    """Its values, in order; at most 10,000. Mandatory."""


class SweepSpec(Section, frozen=True, kw_only=True):
    """Which runs there are, by their values."""

    parameters: Annotated[
        tuple[SweepParameter, ...], Limits(longest=MOST_PARAMETERS), About(rows="S061", flag="--sweep", key="name")
    ] = ()
    """Variables that differ from run to run, each with its values: lr=0.1,0.01 or seed=1..5. One run for each
    combination, at most 10,000.
    """
    combine: Annotated[Literal["Product", "Rows"], About(rows="S061", flag="--sweep-combine")] = "Product"
    """Which combinations there are. Product: every value with every other; the last parameter changes fastest. Rows:
    the first value of each, then the second of each, and so on; all have as many. Default: Product.
    """


class Sweep(Section, frozen=True, kw_only=True):
    """Values by run."""

    TITLE: ClassVar[str] = "Sweep"

    sweep: Annotated[SweepSpec | None, About(rows="S061")] = None
    """Runs that differ in their environment. Where it has parameters, there are as many runs as combinations. Default:
    all runs are alike.
    """
