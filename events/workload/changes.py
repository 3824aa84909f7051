"""What somebody can change of a workload while it lives."""

from datetime import datetime
from typing import Any

from msgspec.structs import replace

from events.event import Event
from events.workload.fields.metadata import Annotation, Label
from events.workload.fields.scheduling import PriorityClass
from events.workload.fields.storage import StorageSpec
from events.workload.spec import Distributed, TrainingSpec
from events.workload.state import Workload
from events.workload.volumes import check_volumes


class WorkloadChanged(Event, frozen=True, kw_only=True):
    """Somebody changed it. Absent fields are unchanged."""

    priority_class: PriorityClass | None = None
    """One of the seven classes."""
    auto_deletion_time_after_completion_seconds: int | None = None
    """Counted from the end of the workload."""
    delete_at: datetime | None = None
    """New time of the auto-deletion, if the workload has already ended."""
    labels: tuple[Label, ...] | None = None
    """All labels that it has from now on. Runs that begin later carry them."""
    annotations: tuple[Annotation, ...] | None = None
    """All annotations that it has from now on, likewise."""
    storage: StorageSpec | None = None
    """All volumes that it has from now on. Only mount paths of claims and Secrets, and rights of files, differ from
    before. Runs that begin later have them.
    """

    master_storage: StorageSpec | None = None
    """All volumes that its master has from now on, likewise: of a distributed training whose master has its own."""

    def __post_init__(self) -> None:
        for storage in (self.storage, self.master_storage):
            if storage is not None:
                check_volumes(storage)


def changeable(name: str, spec: TrainingSpec, distributed: Distributed | None) -> Any:
    """What a workload has now where a change names this."""
    if name != "master_storage":
        return getattr(spec, name)
    return None if distributed is None or distributed.master is None else distributed.master.storage


def after_change(state: Workload, event: WorkloadChanged) -> Workload:
    spec = state.spec
    if event.priority_class is not None:
        spec = replace(spec, priority_class=event.priority_class)
    if event.auto_deletion_time_after_completion_seconds is not None:
        spec = replace(
            spec,
            auto_deletion_time_after_completion_seconds=event.auto_deletion_time_after_completion_seconds,
        )
    distributed = state.distributed
    if event.labels is not None or event.annotations is not None:
        distributed = _master_changed(distributed, state.spec, event)
        spec = _marked(spec, event)
    if event.storage is not None:
        distributed = _masters_volumes_changed(distributed, spec.storage, event.storage)
        spec = replace(spec, storage=event.storage)
    master = None if distributed is None else distributed.master
    if event.master_storage is not None and distributed is not None and master is not None:
        distributed = replace(distributed, master=replace(master, storage=event.master_storage))
    made_from = None if state.made_from is None else state.made_from.after(state.spec, spec)
    state = replace(state, spec=spec, distributed=distributed, made_from=made_from)
    if event.delete_at is None:
        return state
    return replace(state, delete_at=event.delete_at, generation=state.generation + 1)


def _marked(spec: TrainingSpec, event: WorkloadChanged) -> TrainingSpec:
    return replace(
        spec,
        labels=spec.labels if event.labels is None else event.labels,
        annotations=spec.annotations if event.annotations is None else event.annotations,
    )


def _masters_volumes_changed(
    distributed: Distributed | None, before: StorageSpec, after: StorageSpec
) -> Distributed | None:
    """They follow where they are those of the workers; its own stay where they are."""
    master = None if distributed is None else distributed.master
    if distributed is None or master is None or master.storage != before:
        return distributed
    return replace(distributed, master=replace(master, storage=after))


def _master_changed(distributed: Distributed | None, of: TrainingSpec, event: WorkloadChanged) -> Distributed | None:
    """A master's labels and annotations follow where it has those of the workers; of its own it keeps them."""
    master = None if distributed is None else distributed.master
    if distributed is None or master is None:
        return distributed
    marked = _marked(master, event)
    return replace(
        distributed,
        master=replace(
            master,
            labels=marked.labels if master.labels == of.labels else master.labels,
            annotations=marked.annotations if master.annotations == of.annotations else master.annotations,
        ),
    )
