"""A workspace: one pod in which somebody works, such as a notebook. It ends when its process does."""

from typing import Final

from events.workload.fields.creation import WorkspaceCreation
from events.workload.fields.scheduling import DEFAULT_WORKSPACE_PRIORITY
from events.workload.fields.workspace import OverQuota
from events.workload.kinds.kind import Kind
from events.workload.kinds.training import all_succeeded, backoff_limit, pod_sets
from events.workload.spec import Beside, TrainingSpec, WorkspaceSpec, shown, with_defaults


def shown_spec(spec: TrainingSpec, _: Beside) -> WorkspaceSpec:
    return shown(WorkspaceSpec, spec, OverQuota(allow_over_quota=spec.preemptibility == "preemptible"))


WORKSPACE: Final = Kind(
    name="Workspace",
    kubernetes_name="InteractiveWorkload",
    collection="workspaces",
    priority=DEFAULT_WORKSPACE_PRIORITY,
    creation=WorkspaceCreation,
    shown=shown_spec,
    with_defaults=with_defaults,
    # It has no completions and no parallelism: both are 1 in what is stored.
    pod_sets=pod_sets,
    completed=all_succeeded,
    backoff_limit=backoff_limit,
)
