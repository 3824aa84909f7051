"""`make up-kubernetes`: `muster up` with a real Kubernetes API server beside it, whose nodes are simulated.

    python -m development.kubernetes.up --nodes 4 [options of muster up]

As `muster up`, it imports the standard library and its neighbours only.
"""

import argparse
import asyncio
import dataclasses
import functools
import sys
from collections.abc import Sequence
from typing import Final

from development.kubernetes.simulated import children
from development.kubernetes.simulated.programs import ToolsMissingError
from muster.embedded.datadir import DataDir
from muster.embedded.processes import Spec, say
from muster.embedded.up import SERVERS_STOP_SECONDS, Options, Up, main

DEFAULT_NODES: Final = 4
MOST_NODES: Final = 1000
"""Of each of which a lease is renewed every few seconds."""


class UpWithKubernetes(Up):
    """One run of everything, and of a cluster with this many nodes of 8 GPUs."""

    def __init__(self, nodes: int, options: Options, data: DataDir) -> None:
        self.nodes = nodes
        self.cluster = children.cluster(data)
        super().__init__(options, data)

    async def _start_more(self) -> None:
        cluster, fds = self.cluster, self.data.inherited_fds
        folder, nodes = str(cluster.folder), str(self.nodes)
        await self._unless_stopped(self.family.run_once(self._step("prepare", folder)))
        etcd = self._add(self.servers, children.etcd(cluster, fds))
        await etcd.wait_ready(self.stop)
        api_server = self._add(self.servers, children.api_server(cluster, fds))
        await api_server.wait_ready(self.stop)
        await self._unless_stopped(self.family.run_once(self._step("fill", folder, nodes)))
        self._add(self.servers, children.controller_manager(cluster, fds))
        kwok = self._add(self.servers, children.kwok(cluster, fds))
        show = self._step("kubelets", "show", folder)
        keep = children.keep_kubelets(
            kwok, (etcd, api_server), lambda: self.family.run_once(show), stop_seconds=SERVERS_STOP_SECONDS
        )
        self.helpers.append(asyncio.create_task(keep, name="kubelets"))
        say(f"  kubernetes     {cluster.url}, {nodes} simulated node(s); kubectl --kubeconfig {cluster.kubeconfig}")

    async def _connect_more(self) -> None:
        connect = self._step("connect", *self._place())
        await self._as_administrator(connect, "the cluster `kubernetes` was not connected")

    def _step(self, module: str, *arguments: str) -> Spec:
        spec = self._python(f"kubernetes-{module}", f"development.kubernetes.simulated.{module}", *arguments)
        return dataclasses.replace(spec, env={**spec.env, **children.IMPORTABLE})


def run(arguments: Sequence[str]) -> int:
    """Run until told to stop; the exit code."""
    parser = argparse.ArgumentParser(prog="make up-kubernetes", add_help=False, allow_abbrev=False)
    parser.add_argument("--nodes", type=int, default=DEFAULT_NODES)
    given, others = parser.parse_known_args(arguments)
    if not 1 <= given.nodes <= MOST_NODES:
        parser.error(f"--nodes is 1 to {MOST_NODES}, not {given.nodes}")
    try:
        return main(others, functools.partial(UpWithKubernetes, given.nodes))
    except ToolsMissingError as error:
        say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
