"""What undoing an act did, or would do. Pure."""

from typing import Literal

from msgspec import UNSET, UnsetType

from services.api.answers.forms import Form
from services.api.shown_events import Moment


class UndoneAct(Form, frozen=True, kw_only=True):
    """What somebody did to a workload."""

    sequence: int
    """Sequence of its commit in the log."""
    at: Moment
    """When it was decided."""
    type: str
    """Type of its event, such as WorkloadSuspended."""
    message: str
    """The sentence of the history."""


class ChangedMark(Form, frozen=True, kw_only=True):
    """A label or an annotation."""

    name: str
    """Its name."""
    value: str
    """Its value."""


class VolumePlaces(Form, frozen=True, kw_only=True):
    """Where pods find volumes."""

    pvc: list[str]
    """Paths of its claims, in their order."""
    secret_volume: list[str]
    """Mount paths of its Secrets, likewise."""


class ChangedValues(Form, frozen=True, kw_only=True):
    """ChangedValues of what can change while a workload lives; those alone that are meant."""

    priority_class: str | UnsetType = UNSET
    """Priority class."""
    auto_deletion_time_after_completion_seconds: int | UnsetType = UNSET
    """How long after its end it is deleted by itself."""
    labels: list[ChangedMark] | UnsetType = UNSET
    """All labels."""
    annotations: list[ChangedMark] | UnsetType = UNSET
    """All annotations."""
    storage: VolumePlaces | UnsetType = UNSET
    """Where pods find its volumes."""
    master_storage: VolumePlaces | UnsetType = UNSET
    """Where its master finds its own."""


class Undo(Form, frozen=True, kw_only=True):
    """What undoing does, or would do."""

    dry_run: bool
    """Whether nothing was done, and this is what would be."""
    undoes: UndoneAct
    """What is taken back."""
    action: Literal["suspend", "resume", "change", "resubmit"]
    """What is done instead. A deleted workload is not brought back: submit it again as a new one."""
    changed: bool
    """False where that act was undone before."""
    now: ChangedValues = ChangedValues()
    """Of a change: what is taken back."""
    then: ChangedValues = ChangedValues()
    """Of a change: the values from before it."""
    message: str
    """A sentence for people."""
