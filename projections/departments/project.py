"""The row of a department. Pure."""

from collections.abc import Iterator

from events.department import Department
from projections.changes import Change, Put
from projections.columns import Folded, row_maker
from projections.departments.rows import DepartmentRow

_department = row_maker(DepartmentRow, Folded[Department])


def project(_: Folded[Department], after: Folded[Department]) -> Iterator[Change]:
    """What changes in the tables."""
    if after.state.department_id:
        yield Put("departments", _department(after))
