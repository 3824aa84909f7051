"""Agents of Kubernetes clusters below `muster up`: one process for each whose kubeconfig lies in the data folder.

`muster cluster add` and `remove` only write and delete those files; what follows from that is done here, while
everything else runs on undisturbed. Imports the standard library and its neighbours only.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from muster.embedded.datadir import DataDir, Ports
from muster.embedded.environment import agent_environment
from muster.embedded.processes import PYTHON, Child, Family, Spec, StartError, say

LOOK_SECONDS: Final = 1.0
"""How often the folder is looked at."""
STOP_SECONDS: Final = 5.0
"""An agent that leaves has nothing to clean up: pods of its cluster run on."""


class Agents:
    """`let_in` has NATS know exactly the agents whose clusters are in the folder; it may raise StartError."""

    def __init__(
        self,
        data: DataDir,
        ports: Ports,
        family: Family,
        more: Mapping[str, str],
        let_in: Callable[[], Awaitable[None]],
    ) -> None:
        self._data = data
        self._ports = ports
        self._family = family
        self._more = more
        """Of the environment."""
        self._let_in = let_in
        self._known = frozenset(data.connected_clusters())
        """Clusters whose agents NATS knows: at the start, its configuration is written after this."""
        self._stamps: dict[str, int] = {}
        self._children: dict[str, Child] = {}

    async def follow(self) -> None:
        """For ever: begin what is in the folder, end what is not, begin anew what was changed."""
        while True:
            try:
                await self._look()
            except StartError as error:
                say(str(error))
            await asyncio.sleep(LOOK_SECONDS)

    async def stop(self, grace_seconds: float) -> None:
        """End all of them."""
        await asyncio.gather(*(child.stop(grace_seconds) for child in self._children.values()))

    async def _look(self) -> None:
        there = self._data.connected_clusters()
        for cluster_id in [known for known, stamp in self._stamps.items() if there.get(known) != stamp]:
            del self._stamps[cluster_id]
            await self._children.pop(cluster_id).stop(STOP_SECONDS)
        if frozenset(there) != self._known:
            await self._let_in()
            self._known = frozenset(there)
        for cluster_id in there.keys() - self._stamps.keys():
            self._stamps[cluster_id] = there[cluster_id]
            child = self._children[cluster_id] = Child(self._spec(cluster_id), self._family, say)
            child.start()

    def _spec(self, cluster_id: str) -> Spec:
        return Spec(
            name=f"agent-{cluster_id}",
            argv=[*PYTHON, "-m", "services.agent"],
            # Never waited for: its cluster may be away for days, and is then looked for again and again.
            env={**agent_environment(self._data, self._ports, cluster_id, _free_port()), **self._more},
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
