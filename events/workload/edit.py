"""A workload while the events of a commit are folded into it."""

from msgspec.structs import replace

from events.phases import nodes_unreachable
from events.workload.pods import PodsEdit
from events.workload.state import Workload


class Edit:
    """A workload while the events of a commit are folded into it: one copy, which changes in place."""

    __slots__ = ("_before", "fitted", "names_unseen", "pods", "state")

    def __init__(self, before: Workload) -> None:
        self._before = before
        self.state = before
        """Everything but the pods, which are those of `pods`."""
        self.pods = PodsEdit(before.pods)
        self.fitted = False
        """Whether any event did anything."""
        self.names_unseen = False
        """Whether the message is to name the nodes that do not answer, as they are in the end."""

    def settle(self) -> None:
        """Say which nodes do not answer, where that was left for later: once for a commit, not for each of its pods."""
        if self.names_unseen:
            self.names_unseen = False
            self.state = replace(self.state, message=nodes_unreachable(self.pods.unseen))

    def value(self) -> Workload:
        """The workload as it is now; the very one it began with where no event fitted. Must be the last call."""
        if not self.fitted:
            return self._before
        self.settle()
        return replace(self.state, pods=self.pods.value())
