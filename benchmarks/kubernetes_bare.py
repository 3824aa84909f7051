"""The bare baseline: pods created by kubernetes-asyncio alone, as its documentation has it; a process of its own.

Usage: python -m benchmarks.kubernetes_bare '{"kubeconfig": "…", "body": {…}, "nodes": […], "count": 5, "at_once": 2}'.
Each pod is `body` with a name of its own and, where nodes are given, the next of them as its node. Prints one line of
JSON. With `"delete_in": NAMESPACE` it takes away all pods there instead.
"""

import asyncio
import copy
import json
import sys
import time
from typing import Any

import uvloop
from kubernetes_asyncio import client, config


async def create(api: client.CoreV1Api, plan: dict[str, Any]) -> None:
    numbers = iter(range(plan["count"]))
    namespace, nodes = plan["body"]["metadata"]["namespace"], plan["nodes"]

    async def loop() -> None:
        for number in numbers:
            body = copy.deepcopy(plan["body"])
            body["metadata"]["name"] += f"-{number}"
            if nodes:
                body["spec"]["nodeName"] = nodes[number % len(nodes)]
            await api.create_namespaced_pod(namespace, body)

    await asyncio.gather(*(loop() for _ in range(plan["at_once"])))


async def delete(api: client.CoreV1Api, plan: dict[str, Any]) -> None:
    namespace = plan["delete_in"]
    names = iter([pod.metadata.name for pod in (await api.list_namespaced_pod(namespace)).items])

    async def loop() -> None:
        for name in names:
            await api.delete_namespaced_pod(name, namespace, grace_period_seconds=0)

    await asyncio.gather(*(loop() for _ in range(plan["at_once"])))


async def run(plan: dict[str, Any]) -> dict[str, float]:
    await config.load_kube_config(plan["kubeconfig"])
    async with client.ApiClient() as api_client:
        api = client.CoreV1Api(api_client)
        began, started = time.time(), time.perf_counter()
        await (delete(api, plan) if "delete_in" in plan else create(api, plan))
        return {"began": began, "seconds": time.perf_counter() - started, "cpu_seconds": time.process_time()}


def main() -> None:
    # uvloop, as Muster's own processes run on.
    print(json.dumps(uvloop.run(run(json.loads(sys.argv[1])))))


if __name__ == "__main__":
    main()
