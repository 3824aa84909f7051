"""A training: the sections put together, what the contract has beyond them, and the list of fields."""

from typing import Final

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


UNBUILT_FIELDS: Final[dict[str, frozenset[str]]] = {
    "": frozenset({"templateId"}),
    "spec": frozenset(
        {
            "createHomeDir",
            "exposedUrls",
            "imagePullPolicy",
            "imagePullSecrets",
            "nodeAffinityRequired",
            "nodeType",
            "podAffinity",
            "ports",
            "probes",
            "relatedUrls",
            "restartPolicy",
            "security",
            "stdin",
            "storage",
            "terminateAfterPreemption",
            "tolerations",
            "tty",
        }
    ),
    "spec.compute": frozenset({"extendedResources", "largeShmRequest"}),
    "spec.environmentVariables[]": frozenset({"userCredential", "exclude"}),
    "spec.labels[]": frozenset({"exclude"}),
    "spec.annotations[]": frozenset({"exclude"}),
}
"""Fields of the contract that Muster does not carry out yet, by the path of their object: refused by name, never
ignored. A test holds this and the models together against the contract."""


def training_fields() -> tuple[FieldEntry, ...]:
    """Every field of a training's creation: path, label, help, type, flag, row."""
    return tuple(listed_fields(TrainingCreationRequest))
