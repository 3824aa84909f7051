"""How often a workload runs, how it ends, and when its record goes."""

from typing import Annotated, ClassVar, Final, Literal

from events.fields.declare import About, Section
from events.fields.values import Int32, Int64, NaturalInt64

DEFAULT_BACKOFF_LIMIT: Final = 6
"""Retries before Failed (C1)."""
DEFAULT_AUTO_DELETION_SECONDS: Final = 30 * 24 * 3600
"""Thirty days after the end (C3)."""
DEFAULT_GRACE_SECONDS: Final = 30
"""Kubernetes' default termination grace period."""


class Lifetime(Section, frozen=True, kw_only=True):
    """Runs, retries, grace period, auto-deletion."""

    TITLE: ClassVar[str] = "Runs and lifetime"

    completions: Annotated[Int32, About(rows="S061 R25", flag="--runs", aliases=("--completions",))] = 1
    """Number of pods that must succeed. Default: 1."""
    parallelism: Annotated[Int32, About(rows="S062 R25", flag="--parallelism")] = 1
    """Number of pods at a time, at most the number of runs. Default: 1."""
    backoff_limit: Annotated[Int64, About(rows="S071 R26 C1", flag="--backoff-limit")] = DEFAULT_BACKOFF_LIMIT
    """Number of failed pods to retry before the workload fails, 0 to 100. Default: 6."""
    restart_policy: Annotated[
        Literal["Always", "Never", "OnFailure"] | None, About(rows="S026", flag="--restart-policy")
    ] = None
    """Whether a pod that failed is run again. OnFailure, the default: as often as backoffLimit says. Never: not once,
    and backoffLimit is 0. Always is not possible: what has succeeded is not run again.
    """
    termination_grace_period_seconds: Annotated[
        NaturalInt64, About(rows="S049 C2", unit="seconds", flag="--termination-grace-period")
    ] = DEFAULT_GRACE_SECONDS
    """Time that a pod has to end by itself, at most an hour; 0 kills it at once. Default: 30 seconds."""
    auto_deletion_time_after_completion_seconds: Annotated[
        Int64, About(rows="S072 R27 C3", unit="seconds", flag="--auto-deletion-time-after-completion", later=True)
    ] = DEFAULT_AUTO_DELETION_SECONDS
    """Time from the end of the workload until it is deleted; 0 deletes it at once. Default: 30 days."""
