"""Which workload this is and where it goes: what a creation says beside the spec."""

from typing import Annotated, ClassVar

from events.fields.declare import About, Body, Limits
from events.fields.values import NonEmpty, Uuid
from events.workload.spec import NO_SPEC, TrainingSpec


class TrainingCreation(Body, frozen=True, kw_only=True):
    """The body of POST /api/v1/workloads/trainings."""

    TITLE: ClassVar[str] = "Workload"

    name: Annotated[NonEmpty, About(rows="S010 R38", flag="--name")]
    """Name of the workload, unique among the living workloads of the project; at most 253 characters."""
    use_given_name_as_prefix: Annotated[bool, About(rows="S011 R38", flag="--name-prefix")] = False
    """Whether to add a hyphen and six characters to the name, so that it is always free."""
    project_id: Annotated[str, About(rows="S008", flag="--project")]
    """Id of the project that the workload belongs to."""
    cluster_id: Annotated[Uuid, About(rows="S007", flag="--cluster")]
    """Id of the cluster that runs the workload."""
    spec: Annotated[TrainingSpec, Limits(or_null=True)] = NO_SPEC
    """What is to run, and how."""
