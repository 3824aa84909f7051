"""Settings of services that work on a data folder, as environment variables."""

import os
from typing import Final

from muster.embedded.datadir import DataDir, Ports
from muster.embedded.providers import postgres

_OF_THE_USER: Final = (
    "MUSTER_LOG_MAX_BYTES",
    "MUSTER_KUBERNETES_",
    "MUSTER_REQUESTS_",
    "MUSTER_PROJECT_MAX_",
    "MUSTER_FOLLOWS_",
    "MUSTER_HTTP_MAX_",
)
"""Beginnings of settings that `muster up` leaves to whoever starts it: no option of its own says the same."""


def service_environment(data: DataDir, ports: Ports) -> dict[str, str]:
    """Our own environment without foreign settings of Muster, and where this folder's servers, secrets and keys are."""
    return _inherited() | {
        "MUSTER_NATS_URL": f"nats://127.0.0.1:{ports.nats}",
        "MUSTER_NATS_PASSWORD_DIR": str(data.nats_secrets),
        "MUSTER_POSTGRES_URL": postgres.url(data, ports.postgres),
        "MUSTER_POSTGRES_READER_URL": postgres.reader_url(data, ports.postgres),
        "MUSTER_KEY_FILE": str(data.key_file),
        "MUSTER_JWKS_FILE": str(data.jwks_file),
        "MUSTER_DATA_DIR": str(data.root),
    }


def agent_environment(data: DataDir, ports: Ports, cluster_id: str, health_port: int) -> dict[str, str]:
    """For the agent of one cluster: what it needs, and none of what the others have."""
    return _inherited() | {
        "MUSTER_AGENT_CLUSTER": cluster_id,
        "MUSTER_KUBECONFIG": str(data.clusters / cluster_id),
        "MUSTER_NATS_URL": f"nats://127.0.0.1:{ports.nats}",
        "MUSTER_NATS_PASSWORD_FILE": str(data.agent_password_file(cluster_id)),
        "MUSTER_DATA_DIR": str(data.root),
        "MUSTER_HEALTH_PORT": str(health_port),
    }


def _inherited() -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if _passes(name)}
    return ours | {
        # One thread pool per core costs memory that idle services do not use.
        "OPENBLAS_NUM_THREADS": "1",
        # Fewer heaps per process: less memory that is free but not given back.
        "MALLOC_ARENA_MAX": "2",
    }


def _passes(name: str) -> bool:
    return not name.startswith("MUSTER_") or name.startswith(_OF_THE_USER)
