"""Paths of the API that several operations share."""

from typing import Final

V1: Final = "/api/v1"
WORKLOADS: Final = f"{V1}/workloads"
WORKLOAD: Final = f"{WORKLOADS}/{{workloadId:uuid}}"
TRAININGS: Final = f"{WORKLOADS}/trainings"
TRAINING: Final = f"{TRAININGS}/{{workloadId:uuid}}"
CLUSTERS: Final = f"{V1}/clusters"
CLUSTER: Final = f"{CLUSTERS}/{{clusterId:uuid}}"
NODE_POOLS: Final = f"{V1}/node-pools"
NODES: Final = f"{V1}/nodes"
PROJECTS: Final = f"{V1}/org-unit/projects"
PROJECT: Final = f"{PROJECTS}/{{projectId:uuid}}"
RULES: Final = f"{V1}/authorization/access-rules"
EVENTS: Final = f"{V1}/events"
