"""Persistent volume claims that bear a cluster's marks, whatever they are for."""

import msgspec

from services.agent.backends.kubernetes.act.objects import Claim
from services.agent.backends.kubernetes.client import FORBIDDEN, ApiError, KubeClient

type ClaimName = tuple[str, str]
"""Namespace and name."""


async def marked_claims(client: KubeClient, selector: str) -> dict[ClaimName, Claim] | None:
    """Those in all namespaces; None for an agent that may not list them: it has the rights of an older version.

    Raises ApiError.
    """
    try:
        answer = await client.read("/api/v1/persistentvolumeclaims", labelSelector=selector)
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        return None
    found = msgspec.json.decode(answer, type=_ClaimList).items
    return {(one.metadata.namespace, one.metadata.name): one for one in found}


def claim_path(name: ClaimName) -> str:
    return f"/api/v1/namespaces/{name[0]}/persistentvolumeclaims/{name[1]}"


class _ClaimList(msgspec.Struct, frozen=True):
    items: tuple[Claim, ...] = ()
