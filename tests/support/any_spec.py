"""Specs of every kind of workload, drawn from every field: sound ones, and ones of which something small is changed.

What is sound stands here as people would write it; what is changed is changed anywhere, to what nobody would.
"""

import random
from copy import deepcopy
from typing import Any, Final

type Json = dict[str, Any]

ITEMS: Final[Json] = {
    "imagePullSecrets": [{"name": "regcred"}, {"name": "other", "exclude": True}],
    "environmentVariables": [
        {"name": "LR", "value": "0.1", "description": "between 0 and 1"},
        {"name": "TOKEN", "secret": {"name": "tokens", "key": "wandb"}},
        {"name": "MODE", "configMap": {"name": "settings", "key": "mode"}},
        {"name": "IP", "podFieldRef": {"path": "status.podIP"}},
        {"name": "EMPTY"},
    ],
    "labels": [{"name": "team", "value": "vision"}, {"name": "a.b/c"}],
    "annotations": [{"name": "why", "value": "ä, \U0001f600 and\nanother line"}],
    "relatedUrls": [{"url": "https://wandb.example.com/run", "type": "wandb", "name": "board"}],
    "tolerations": [
        {"key": "spot", "operator": "Exists", "effect": "NoExecute", "seconds": 60},
        {"name": "t", "key": "team", "operator": "Equal", "value": "vision", "effect": "Any"},
    ],
    "exposedUrls": [
        {"container": 8888, "toolType": "jupyter", "name": "jupyter"},
        {"container": 6006, "authorizationType": "authorizedUsers", "authorizedUsers": ["ann@example.com"]},
    ],
    "ports": [
        {"container": 9000, "serviceType": "ClusterIP", "name": "metrics"},
        {"container": 9001, "serviceType": "LoadBalancer", "external": 443},
    ],
}
"""Lists, of which some items are taken."""
VOLUMES: Final[Json] = {
    "configMapVolume": [{"configMap": "settings", "mountPath": "/settings", "defaultMode": "0640", "name": "cm"}],
    "emptyDirVolume": [{"path": "/scratch", "sizeLimit": "1Gi", "medium": "Memory"}, {"path": "/tmp/more"}],
    "git": [
        {"repository": "https://git.example.com/a", "path": "/code", "branch": "main"},
        {
            "repository": "https://git.example.com/b",
            "path": "/private",
            "secretRef": {"name": "login", "authenticationMethod": "password"},
        },
        {
            "repository": "https://git.example.com/c",
            "path": "/older",
            "passwordSecret": "login",
            "secretKeyOfUser": "U",
        },
    ],
    "hostPath": [{"path": "/data", "mountPath": "/host", "readOnly": False, "mountPropagation": "HostToContainer"}],
    "nfs": [{"path": "/exports/a", "server": "nfs.example.com", "mountPath": "/nfs", "name": "archive"}],
    "pvc": [
        {"path": "/new", "claimInfo": {"size": "10Gi", "accessModes": {"readWriteMany": True}}, "readOnly": True},
        {"path": "/old", "existingPvc": True, "claimName": "imagenet"},
    ],
    "s3": [{"bucket": "training-sets", "path": "/s3", "url": "https://s3.example.com", "accessKeySecret": "keys"}],
    "secretVolume": [{"secret": "certificates", "mountPath": "/certificates", "defaultMode": "0400"}],
}
_COMMON: Final[dict[str, tuple[Any, ...]]] = {
    "imagePullPolicy": ("Always", "Never", "IfNotPresent"),
    "command": ("python3", "sh -c 'exit 0'"),
    "args": ("train.py --lr 0.1",),
    "workingDir": ("/work",),
    "createHomeDir": (True, False),
    "stdin": (True,),
    "security": (
        {"runAsNonRoot": True, "readOnlyRootFilesystem": True, "seccompProfileType": "RuntimeDefault"},
        {"uidGidSource": "custom", "runAsUid": 1000, "runAsGid": 0, "supplementalGroups": "5,6"},
        {"capabilities": ["NET_ADMIN", "SYSLOG"], "allowPrivilegeEscalation": True, "hostIpc": True},
    ),
    "compute": (
        {"cpuCoreRequest": 0.5, "cpuCoreLimit": 1, "cpuMemoryRequest": "256Mi", "cpuMemoryLimit": "1Gi"},
        {"gpuDevicesRequest": 1, "gpuRequestType": "portion", "gpuPortionRequest": 0.5, "gpuPortionLimit": 1},
        {"gpuDevicesRequest": 1, "gpuRequestType": "memory", "gpuMemoryRequest": "4Gi", "gpuMemoryLimit": "5G"},
        {"gpuDevicesRequest": 2, "largeShmRequest": True, "extendedResources": [{"resource": "a/b", "quantity": "1"}]},
    ),
    "probes": (
        {"readiness": {"handler": {"httpGet": {"port": 8080, "path": "/ready", "scheme": "HTTPS"}}}},
        {"readiness": {"initialDelaySeconds": 0, "periodSeconds": 5, "handler": {"httpGet": {"port": 1}}}},
    ),
    "nodePools": (["default"], []),
    "nodeType": ("a100",),
    "nodeAffinityRequired": (
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}]},
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "age", "operator": "Gt", "values": ["3"]}]}, {}]},
    ),
    "podAffinity": ({"type": "Preferred", "key": "zone"}, {"type": "Required", "key": "rack"}),
    "priorityClass": ("very-low", "high"),
    "preemptibility": ("preemptible", "non-preemptible"),
    "terminateAfterPreemption": (True, False),
    "terminationGracePeriodSeconds": (0, 30),
    "preStop": ({"signal": "SIGUSR1"}, {"command": "touch /saved"}),
    "category": ("research",),
}
_ENDING: Final[dict[str, tuple[Any, ...]]] = {
    "backoffLimit": (0, 6, 100),
    "restartPolicy": ("Never", "OnFailure", "Always"),
    "autoDeletionTimeAfterCompletionSeconds": (0, 3600),
    "checkpoint": ({"path": "/checkpoints", "size": "1Gi"},),
}
_OWN: Final[dict[str, dict[str, tuple[Any, ...]]]] = {
    "Training": {
        "completions": (1, 3),
        "parallelism": (1, 2),
        "sweep": ({"parameters": [{"name": "lr", "values": ["0.1", "0.01"]}]},),
    },
    "Workspace": {"allowOverQuota": (True, False)},
    "Distributed": {
        "numWorkers": (1, 3),
        "minReplicas": (1,),
        "maxReplicas": (4,),
        "slotsPerWorker": (2,),
        "cleanPodPolicy": ("None", "All", "Running"),
        "mpiLauncherCreationPolicy": ("AtStartup", "WaitForWorkersReady"),
        "sshAuthMountPath": ("/root/.ssh",),
    },
    "Inference": {
        "autoscaling": ({"minReplicas": 1, "maxReplicas": 3, "metric": "latency", "metricThreshold": 50},),
        "model": ({"catalog": "HuggingFace", "name": "org/model"},),
    },
}
_NEEDED: Final[dict[str, Json]] = {
    "Training": {},
    "Workspace": {},
    "Distributed": {"distributedFramework": "PyTorch", "numWorkers": 2},
    "Inference": {"servingPort": {"container": 8000}},
}
_NO_INFERENCES: Final = frozenset({"hostPath", "nfs", "s3", "secretVolume"})
_FRAMEWORKS: Final = ("PyTorch", "TensorFlow", "XGBoost", "MPI", "JAX")
_ODD: Final[tuple[Any, ...]] = (
    None,
    "",
    " ",
    "x" * 300,
    "Ä/é",
    "1.2.3",
    "../..",
    -1,
    0,
    1,
    2**31,
    2**63,
    0.5,
    1e308,
    True,
    [],
    [None],
    {},
    {"nobody": 1},
)


def drawn_spec(kind: str, chance: random.Random) -> Json:
    """Sound in most cases, as far as its fields go together."""
    possible = _COMMON | ({} if kind == "Inference" else _ENDING) | _OWN[kind]
    spec: Json = {"image": "python:3.13", **deepcopy(_NEEDED[kind])}
    if kind == "Distributed":
        spec["distributedFramework"] = chance.choice(_FRAMEWORKS)
    for name in chance.sample(sorted(possible), chance.randint(0, 4)):
        spec[name] = deepcopy(chance.choice(possible[name]))
    for name in chance.sample(sorted(ITEMS), chance.randint(0, 2)):
        if kind != "Inference" or name not in {"exposedUrls", "ports"}:
            spec[name] = _some(ITEMS[name], chance)
    if chance.random() < 0.5:
        names = [name for name in sorted(VOLUMES) if kind != "Inference" or name not in _NO_INFERENCES]
        spec["storage"] = {name: _some(VOLUMES[name], chance) for name in chance.sample(names, chance.randint(1, 3))}
    return spec


def _some(items: list[Any], chance: random.Random) -> list[Any]:
    return deepcopy(chance.sample(items, chance.randint(1, len(items))))


def changed(spec: Json, chance: random.Random) -> Json:
    """With something small at some place that is otherwise: another value, nothing, a stranger, or an item twice."""
    spec = deepcopy(spec)
    holders: list[Any] = [spec]
    for holder in holders:
        inside = holder.values() if isinstance(holder, dict) else holder
        holders += [one for one in inside if isinstance(one, dict | list) and one]
    holder: Any = chance.choice(holders)
    key: Any = chance.choice(sorted(holder)) if isinstance(holder, dict) else chance.randrange(len(holder))
    match chance.randrange(6):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder["nobodys"] = chance.choice(_ODD)
        case 2 if isinstance(holder, list):
            holder.append(deepcopy(holder[key]))
        case 3 if isinstance(holder[key], dict):
            holder[key]["exclude"] = chance.choice((True, False, None))
        case _:
            holder[key] = deepcopy(chance.choice(_ODD))
    return spec
