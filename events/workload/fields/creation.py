"""Which workload this is and where it goes: what a creation says beside the spec, and what of it is stored."""

from typing import Annotated, ClassVar, Final, Literal

from msgspec.structs import replace

from events.fields.declare import About, Body, Limits, Section
from events.fields.values import NonEmpty, Uuid
from events.workload.spec import (
    NO_DISTRIBUTED_SPEC,
    NO_INFERENCE_SPEC,
    NO_SPEC,
    NO_WORKLOAD_SPEC,
    NO_WORKSPACE_SPEC,
    OF_WORKERS,
    Beside,
    Distributed,
    DistributedSpec,
    Inference,
    InferenceSpec,
    MasterSpec,
    TrainingSpec,
    WorkloadSpec,
    WorkspaceSpec,
    distribution_of,
    first_replicas,
    serving_of,
    stored,
)

KindName = Literal["Training", "Distributed", "Workspace", "Inference"]
"""Every registered kind."""


MOST_DATA_SOURCES: Final = 100
"""Of one workload: each is read from the log when the workload is submitted."""


class AssetChoice(Section, frozen=True, kw_only=True):
    """Assets whose fields go into the spec. What the request says itself goes before them."""

    environment_id: Annotated[Uuid | None, About(rows="S015 R39", flag="--environment")] = None
    """Id of an environment."""
    compute_id: Annotated[Uuid | None, About(rows="S034 R39", flag="--compute")] = None
    """Id of a compute resource."""
    datasource_ids: Annotated[
        tuple[Uuid, ...], Limits(longest=MOST_DATA_SOURCES), About(rows="S053 R39", flag="--datasource")
    ] = ()
    """Ids of data sources, each a volume of every pod; at most 100."""


class Creation(Body, frozen=True, kw_only=True):
    """What the creation of any kind says."""

    TITLE: ClassVar[str] = "Workload"

    name: Annotated[NonEmpty, About(rows="S010 R38", flag="--name")]
    """Name of the workload, unique among the living workloads of the project; at most 253 characters."""
    use_given_name_as_prefix: Annotated[bool, About(rows="S011 R38", flag="--name-prefix")] = False
    """Whether to add a hyphen and six characters to the name, so that it is always free."""
    project_id: Annotated[str, About(rows="S008", flag="--project")]
    """Id of the project that the workload belongs to."""
    cluster_id: Annotated[Uuid, About(rows="S007", flag="--cluster")]
    """Id of the cluster that runs the workload. With 00000000-0000-0000-0000-000000000000 the scheduler chooses one of
    those that can run it, when it starts.
    """
    template_id: Annotated[Uuid | None, About(rows="S009 R39", flag="--template")] = None
    """Id of a template, whose fields go into the spec. What assets and the request say goes before them."""
    assets: Annotated[AssetChoice | None, About(rows="S009 S015 S034 S053 R39")] = None
    """Environment, compute resource and data sources, whose fields go into the spec."""

    def order(self) -> tuple[TrainingSpec, Beside]:
        """What of it is stored, before defaults that depend on other fields. Each kind says it."""
        raise NotImplementedError


class TrainingCreation(Creation, frozen=True, kw_only=True):
    """The body of POST /api/v1/workloads/trainings."""

    spec: Annotated[TrainingSpec, Limits(or_null=True)] = NO_SPEC
    """What is to run, and how."""

    def order(self) -> tuple[TrainingSpec, None]:
        return self.spec, None


class WorkspaceCreation(Creation, frozen=True, kw_only=True):
    """The body of POST /api/v1/workloads/workspaces."""

    spec: Annotated[WorkspaceSpec, Limits(or_null=True)] = NO_WORKSPACE_SPEC
    """What is to run, and how."""

    def order(self) -> tuple[TrainingSpec, None]:
        spec = stored(self.spec)
        # Who may go beyond the quota is preempted first, and nothing else is told apart by it.
        return (replace(spec, preemptibility="preemptible") if self.spec.allow_over_quota else spec), None


class DistributedCreation(Creation, frozen=True, kw_only=True):
    """The body of POST /api/v1/workloads/distributed."""

    spec: Annotated[DistributedSpec, Limits(or_null=True)] = NO_DISTRIBUTED_SPEC
    """What is to run in each worker, and how."""
    master_spec_same_as_worker: Annotated[bool | None, About(rows="S064 S066")] = None
    """Whether there is a master that is made as the workers are. Default: true, unless masterSpec is given. False
    without masterSpec: there are workers only.
    """
    master_spec: Annotated[MasterSpec | None, About(rows="S066")] = None
    """What is to run in the master, where that is not what the workers run. Of these fields it takes nothing over from
    spec but volumes and probes, where it names none; code and everything else holds for both.
    """

    def order(self) -> tuple[TrainingSpec, Distributed]:
        workers = stored(self.spec)
        if self.master_spec is not None:
            # What a master's spec does not have, such as where pods may go, holds for the whole workload.
            given = self.master_spec
            taken = {name: getattr(workers, name) for name in OF_WORKERS if getattr(given, name) is None}
            master = replace(stored(given, workers), **taken)
        else:
            master = None if self.master_spec_same_as_worker is False else workers
        return workers, Distributed(distribution=distribution_of(self.spec), master=master)


class InferenceCreation(Creation, frozen=True, kw_only=True):
    """The body of POST /api/v1/workloads/inferences."""

    spec: Annotated[InferenceSpec, Limits(or_null=True)] = NO_INFERENCE_SPEC
    """What is to run in each replica, and how many there are."""

    def order(self) -> tuple[TrainingSpec, Inference]:
        serving = serving_of(self.spec)
        return stored(self.spec), Inference(serving=serving, replicas=first_replicas(serving))


MOST_CREATIONS: Final = 1_000
"""Of one batch: as many commits as one atomic step of the log holds."""


class AnyCreation(Creation, frozen=True, kw_only=True):
    """One item of a batch: the body with which a workload of its kind is created alone, and its kind."""

    kind: KindName
    """Kind of the workload: Training, Distributed, Workspace or Inference."""
    spec: Annotated[WorkloadSpec, Limits(or_null=True)] = NO_WORKLOAD_SPEC
    """What is to run, and how, in the fields of this kind."""
    master_spec_same_as_worker: bool | None = None
    """Of a distributed training: whether there is a master that is made as the workers are."""
    master_spec: MasterSpec | None = None
    """Of a distributed training: what is to run in the master, where that is not what the workers run."""


class BatchCreation(Body, frozen=True, kw_only=True):
    """The body of POST /api/v1/workloads:batch."""

    TITLE: ClassVar[str] = "Batch"

    items: Annotated[tuple[AnyCreation, ...], Limits(shortest=1, longest=MOST_CREATIONS)]
    """The workloads to create, of any kinds, in up to 50 projects; each at most 512 KiB."""
    all_or_nothing: bool = False
    """Whether nothing is created unless everything is."""
