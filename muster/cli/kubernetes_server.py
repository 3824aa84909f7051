"""What `muster cluster add --kubeconfig` asks of the cluster itself. Imported where it is used: it loads much."""

import asyncio
from pathlib import Path
from typing import Any, Final

import msgspec

from muster.cli.agent_manifests import NAMESPACE, preparation
from muster.cli.exits import ExitCode, Problem, usage
from services.agent.backends.kubernetes.client import ApiError, KubeClient, Timeouts
from services.agent.backends.kubernetes.connect import ConnectError, connect

CONNECT_SECONDS: Final = 5.0
CHECK_SECONDS: Final = 20.0
"""For one question to the API server; a credential plugin may have to ask somebody first."""
NEEDED: Final = (
    # verb, resource, and the namespace where not all
    ("list", "nodes", ""),
    ("watch", "nodes", ""),
    ("create", "namespaces", ""),
    ("list", "pods", ""),
    ("watch", "pods", ""),
    ("create", "pods", ""),
    ("patch", "pods", ""),
    ("delete", "pods", ""),
    ("get", "pods/log", ""),
    ("create", "services", ""),
    ("list", "events", ""),
    ("create", "configmaps", ""),
    ("delete", "configmaps", ""),
    ("patch", "configmaps", NAMESPACE),
)
"""Rights without which the agent cannot work; deploy/kubernetes/roles.yaml has them all."""
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_WHERE: Final = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
}


def check(kubeconfig: Path, kube_context: str) -> str:
    """The version of an API server that lets this user do what an agent must. Raises Problem."""
    return asyncio.run(_checked(kubeconfig, kube_context))


def prepare(kubeconfig: Path, kube_context: str) -> str:
    """Makes what pods that hold shared devices need; the refusal, where that was refused. Raises Problem."""
    return asyncio.run(_prepared(kubeconfig, kube_context))


async def _open(kubeconfig: Path, kube_context: str) -> KubeClient:
    """Raises Problem."""
    try:
        timeouts = Timeouts(connect_seconds=CONNECT_SECONDS, call_seconds=CHECK_SECONDS)
        return await connect(kubeconfig, kube_context, timeouts=timeouts)
    except ConnectError as error:
        raise usage(str(error), todo="check --kubeconfig and --context") from error


async def _checked(kubeconfig: Path, kube_context: str) -> str:
    """The version of an API server that lets this user do what an agent must. Raises Problem."""
    client = await _open(kubeconfig, kube_context)
    try:
        version = msgspec.json.decode(await client.read("/version"))
        reviews = await asyncio.gather(*(client.create(_REVIEWS, _review(*right)) for right in NEEDED))
    except ApiError as error:
        raise Problem(
            "the cluster's API server does not take this kubeconfig",
            why=(str(error),),
            todo="try it with `kubectl get nodes`, with the same kubeconfig and context",
            code=ExitCode.UNREACHABLE if error.unreachable else ExitCode.DENIED,
        ) from error
    finally:
        await client.close()
    lacking = [
        f"{verb} {resource}" + (f" in {namespace}" if namespace else "")
        for (verb, resource, namespace), review in zip(NEEDED, reviews, strict=True)
        if not msgspec.json.decode(review)["status"]["allowed"]
    ]
    if lacking:
        raise Problem(
            "the kubeconfig's user may not do there what an agent must",
            why=(f"not allowed: {', '.join(lacking)}",),
            todo="deploy/kubernetes/roles.yaml lists all that is needed",
            code=ExitCode.DENIED,
        )
    return str(version["gitVersion"])


def _review(verb: str, resource: str, namespace: str) -> dict[str, Any]:
    kind, _, part = resource.partition("/")
    attributes = {"verb": verb, "resource": kind, "subresource": part, "namespace": namespace}
    return {"spec": {"resourceAttributes": attributes}}


async def _prepared(kubeconfig: Path, kube_context: str) -> str:
    client = await _open(kubeconfig, kube_context)
    try:
        for manifest in preparation():
            metadata = manifest["metadata"]
            path = _WHERE[manifest["kind"]].format(metadata.get("namespace"))
            await client.patch(f"{path}/{metadata['name']}", manifest, kind="apply")
    except ApiError as error:
        return str(error)
    finally:
        await client.close()
    return ""
