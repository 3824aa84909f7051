"""Sweeps: which run has which values."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from events.workload.fields.sweep import SweepParameter, SweepSpec
from events.workload.kinds.training import pod_sets
from events.workload.spec import TrainingSpec, with_defaults
from events.workload.sweeps import runs_of, values_of

PARAMETERS = st.lists(st.lists(st.text(max_size=3), min_size=1, max_size=4, unique=True), min_size=1, max_size=4).map(
    lambda lists: tuple(SweepParameter(name=f"p{n}", values=tuple(values)) for n, values in enumerate(lists))
)


@given(PARAMETERS)
def test_a_product_has_every_combination_once_and_the_last_parameter_changes_fastest(
    parameters: tuple[SweepParameter, ...],
) -> None:
    sweep = SweepSpec(parameters=parameters)
    names = [parameter.name for parameter in parameters]
    expected = [dict(zip(names, row, strict=True)) for row in product(*(parameter.values for parameter in parameters))]
    assert [values_of(sweep, index) for index in range(runs_of(sweep))] == expected


@given(st.integers(1, 5), st.integers(1, 4))
def test_rows_take_the_values_of_one_place(rows: int, columns: int) -> None:
    parameters = tuple(
        SweepParameter(name=f"p{n}", values=tuple(f"{n}.{row}" for row in range(rows))) for n in range(columns)
    )
    sweep = SweepSpec(parameters=parameters, combine="Rows")
    assert runs_of(sweep) == rows
    assert [values_of(sweep, row) for row in range(rows)] == [
        {f"p{n}": f"{n}.{row}" for n in range(columns)} for row in range(rows)
    ]


def test_a_sweep_sets_the_number_of_runs_and_the_pods_of_others_are_alike() -> None:
    sweep = SweepSpec(parameters=(SweepParameter(name="lr", values=("1", "2", "3")),))
    spec = with_defaults(TrainingSpec(image="i", parallelism=2, sweep=sweep))
    (pods,) = pod_sets(spec)
    assert (spec.completions, pods.count, pods.at_once) == (3, 3, 2)
    assert [pods.values(index) for index in range(3)] == [{"lr": "1"}, {"lr": "2"}, {"lr": "3"}]
    (plain,) = pod_sets(TrainingSpec(image="i"))
    assert plain.values(0) == {}


def test_what_nobody_decides_stops_no_reader() -> None:
    empty = SweepSpec(parameters=(SweepParameter(name="lr", values=()),))
    assert (runs_of(empty), values_of(empty, 3)) == (0, {})
