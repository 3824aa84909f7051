"""A client of Muster's API, with and without `await`.

`Muster` and `AsyncMuster` submit, wait, list, and read logs and events. Every other request of the API is a function of
`muster_client.operations`, which `send` carries out. Nothing of the server is imported.
"""

from muster_client import models, operations
from muster_client.aio import AsyncMuster
from muster_client.errors import (
    Conflict,
    EventsLost,
    Gone,
    InvalidRequest,
    LogsCut,
    MusterError,
    NotAuthenticated,
    NotFound,
    NotPermitted,
    RequestError,
    TooManyRequests,
    Unavailable,
    VersionMoved,
    WaitTimeoutError,
    WorkloadEnded,
)
from muster_client.model import NULL
from muster_client.models import (
    DistributedCreation,
    DistributedSpec,
    InferenceCreation,
    InferenceSpec,
    MasterSpec,
    TrainingCreation,
    TrainingSpec,
    WorkspaceCreation,
    WorkspaceSpec,
)
from muster_client.request import Told
from muster_client.sync import Muster

__all__ = [
    "NULL",
    "AsyncMuster",
    "Conflict",
    "DistributedCreation",
    "DistributedSpec",
    "EventsLost",
    "Gone",
    "InferenceCreation",
    "InferenceSpec",
    "InvalidRequest",
    "LogsCut",
    "MasterSpec",
    "Muster",
    "MusterError",
    "NotAuthenticated",
    "NotFound",
    "NotPermitted",
    "RequestError",
    "Told",
    "TooManyRequests",
    "TrainingCreation",
    "TrainingSpec",
    "Unavailable",
    "VersionMoved",
    "WaitTimeoutError",
    "WorkloadEnded",
    "WorkspaceCreation",
    "WorkspaceSpec",
    "models",
    "operations",
]
