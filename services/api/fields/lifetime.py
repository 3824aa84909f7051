"""Section "Runs and lifetime": how often it runs, how it ends, and when its record goes."""

from typing import Annotated

from services.api.fields.about import About, FieldsModel, Int32, Int64, NaturalInt64

SECTION = "Runs and lifetime"


class LifetimeFields(FieldsModel):
    """Runs, retries, grace period, auto-deletion."""

    completions: Annotated[
        Int32 | None,
        About(
            label="Runs",
            help="Pods that must succeed. Default: 1.",
            section=SECTION,
            row="S061 R25",
            flag="--runs",
        ),
    ] = None
    parallelism: Annotated[
        Int32 | None,
        About(
            label="Parallelism",
            help="Pods at a time, at most the runs. Default: 1.",
            section=SECTION,
            row="S062 R25",
            flag="--parallelism",
        ),
    ] = None
    backoff_limit: Annotated[
        Int64 | None,
        About(
            label="Backoff limit",
            help="Retries of failed pods before the workload is Failed, 0 to 100. Default: 6.",
            section=SECTION,
            row="S071 R26 C1",
            flag="--backoff-limit",
        ),
    ] = None
    termination_grace_period_seconds: Annotated[
        NaturalInt64 | None,
        About(
            label="Grace period",
            help="Time a pod has to end by itself; 0 kills at once. Default: 30.",
            section=SECTION,
            row="S049 C2",
            unit="seconds",
            flag="--termination-grace-period",
        ),
    ] = None
    auto_deletion_time_after_completion_seconds: Annotated[
        Int64 | None,
        About(
            label="Auto-deletion",
            help="Time from its end until it is deleted; 0 deletes at once. Default: 30 days.",
            section=SECTION,
            row="S072 R27 C3",
            unit="seconds",
            flag="--auto-deletion-time-after-completion",
        ),
    ] = None
