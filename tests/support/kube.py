"""Calls of a test's control plane, as one that has a certain token."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, Configuration

from development.kubernetes.control_plane import ControlPlane
from services.agent.backends.kubernetes.client import KubeClient, Timeouts


@asynccontextmanager
async def client_of(
    control_plane: ControlPlane, token: str | None = None, *, url: str | None = None
) -> AsyncGenerator[KubeClient]:
    """The administrator's where no token is given; through a proxy at `url`."""
    configuration = Configuration()
    kubeconfig = control_plane.kubeconfig(token, url=url)
    await config.load_kube_config(str(kubeconfig), client_configuration=configuration)
    client = KubeClient(ApiClient(configuration), timeouts=Timeouts())
    try:
        yield client
    finally:
        await client.close()
        # Streams that were left early say goodbye to the server before their sockets are closed.
        await asyncio.sleep(0.1)


def namespace(control_plane: ControlPlane, name: str) -> str:
    """Make it."""
    control_plane.admin("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return name
