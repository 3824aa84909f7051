"""What only a workspace has."""

from typing import Annotated, ClassVar

from events.fields.declare import About, Section


class OverQuota(Section, frozen=True, kw_only=True):
    """Whether a workspace keeps to its project's quota."""

    TITLE: ClassVar[str] = "Scheduling"

    allow_over_quota: Annotated[bool, About(rows="S048", flag="--allow-over-quota")] = False
    """Whether it may use GPUs beyond the project's quota. The scheduler may then preempt it: it is preemptible.
    Default: false.
    """
