"""A training: the sections put together, and the list of fields."""

from services.api.fields.about import FieldEntry, listed_fields
from services.api.fields.compute import ComputeFields
from services.api.fields.lifetime import LifetimeFields
from services.api.fields.meta import WorkloadCreationMeta
from services.api.fields.metadata import MetadataFields
from services.api.fields.process import ProcessFields
from services.api.fields.scheduling import SchedulingFields


class TrainingSpecFields(MetadataFields, LifetimeFields, SchedulingFields, ProcessFields):
    """The spec of a standard training."""

    compute: ComputeFields | None = None


class TrainingCreationRequest(WorkloadCreationMeta):
    """The body of POST /api/v1/workloads/trainings."""

    spec: TrainingSpecFields | None = None


def training_fields() -> tuple[FieldEntry, ...]:
    """Every field of a training's creation: path, label, help, type, flag, row."""
    return tuple(listed_fields(TrainingCreationRequest))
