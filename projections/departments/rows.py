"""The row of a department: one declaration per column (projections/columns.py). Pure."""

from datetime import datetime
from typing import Annotated

import msgspec

from events.department import Department
from projections.columns import Column, Folded
from projections.values import clean

_Column = Column[Folded[Department]]


class DepartmentRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One incarnation of a department's name. The default department has none before it was changed."""

    id: Annotated[str, _Column(lambda department: clean(department.state.department_id), key=True)]
    version: Annotated[int, _Column(lambda department: department.version, often=True)]
    name: Annotated[str, _Column(lambda department: clean(department.state.name))]
    created_at: Annotated[datetime, _Column(lambda department: department.state.created_at)]
    deleted_at: Annotated[datetime | None, _Column(lambda department: department.state.deleted_at)]
