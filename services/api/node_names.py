"""Names of nodes by the key of their subject: a name never changes, and is in the first event of the node."""

from collections import OrderedDict
from typing import Final

from events.aggregate import NODE
from events.commit import Commit
from events.node import NodeRegistered
from services.runtime.log.store import EventReader

KEPT_NAMES: Final = 20_000
"""More than all clusters have that were ever tried."""


class NodeNames:
    """Looked up in the log once each."""

    def __init__(self, store: EventReader) -> None:
        self._store = store
        self._names: OrderedDict[str, str] = OrderedDict()

    async def of(self, commit: Commit) -> str:
        """Of the node that a commit is about."""
        for event in commit.events:
            if isinstance(event, NodeRegistered):
                self._keep(commit.key, event.name)
        name = self._names.get(commit.key)
        if name is None:
            name = (await self._store.load(NODE, commit.key)).state.name
            self._keep(commit.key, name)
        return name

    def _keep(self, key: str, name: str) -> None:
        self._names[key] = name
        if len(self._names) > KEPT_NAMES:
            self._names.popitem(last=False)
