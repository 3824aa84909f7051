"""Settings of services that work on a data folder, as environment variables; and which of them `muster up` takes."""

import os
from collections.abc import Mapping
from typing import Final

from muster.embedded.datadir import DataDir, Ports
from muster.embedded.providers import postgres

PREFIX: Final = "MUSTER_"
LOOPBACK: Final = "127.0.0.0/8,::1/128"
"""Where webhooks of `muster up` may post to unless told otherwise: pods of the local cluster reach it anyway."""
SET_BY_UP: Final[Mapping[str, str]] = {
    "MUSTER_NATS_URL": "",
    "MUSTER_NATS_PASSWORD": "",
    "MUSTER_NATS_PASSWORD_FILE": "",
    "MUSTER_NATS_PASSWORD_DIR": "",
    "MUSTER_NATS_CA_FILE": "",
    "MUSTER_REPLICAS": "",
    "MUSTER_POSTGRES_URL": "",
    "MUSTER_POSTGRES_PASSWORD_FILE": "",
    "MUSTER_POSTGRES_READER_URL": "",
    "MUSTER_POSTGRES_READER_PASSWORD_FILE": "",
    "MUSTER_HTTP_HOST": "",
    "MUSTER_HTTP_PORT": "--port",
    "MUSTER_HTTP_CERTIFICATE_FILE": "",
    "MUSTER_HTTP_KEY_FILE": "",
    "MUSTER_PROXY_HOST": "",
    "MUSTER_PROXY_PORT": "",
    "MUSTER_HEALTH_HOST": "",
    "MUSTER_HEALTH_PORT": "",
    "MUSTER_ISSUER": "",
    "MUSTER_AUDIENCE": "",
    "MUSTER_JWKS_FILE": "",
    "MUSTER_JWKS_URL": "",
    "MUSTER_KEY_FILE": "",
    "MUSTER_CALLOUT_KEY_DIR": "",
    "MUSTER_WEBHOOK_KEY_FILE": "",
    "MUSTER_DATA_DIR": "--data-dir",
    "MUSTER_LOCAL_PODS": "--accept-shared-pods",
    "MUSTER_AGENT_KINDS": "",
    "MUSTER_AGENT_CLUSTER": "",
    "MUSTER_KUBECONFIG": "",
    "MUSTER_KUBE_CONTEXT": "",
    "MUSTER_FAILPOINT": "",
}
"""Settings that `muster up` does not take from whoever starts it, each with its option that says the same, if any. It
takes all others."""
NO_SETTINGS: Final = frozenset(
    {
        # The command line's own. MUSTER_DATA_DIR it reads, too.
        *("MUSTER_URL", "MUSTER_CA_FILE", "MUSTER_TOKEN", "MUSTER_CONTEXT", "MUSTER_PROJECT", "MUSTER_DATA_DIR"),
        "MUSTER_BACKUP_PASSPHRASE",
        # Of tools/.
        *("MUSTER_PYTHON", "MUSTER_KUBE_TOOLS"),
        # What Muster tells a pod: it may run one of its own.
        *("MUSTER_WORKLOAD_ID", "MUSTER_WORKLOAD_NAME", "MUSTER_PROJECT_ID", "MUSTER_POD_SET", "MUSTER_POD_INDEX"),
        *(
            "MUSTER_ATTEMPT",
            "MUSTER_RUN",
            "MUSTER_RUN_ID",
            "MUSTER_NODE_NAME",
            "MUSTER_POD_NAME",
            "MUSTER_POD_NAMESPACE",
        ),
    }
)
"""Variables that begin like settings and are none: nothing is said of them, and no service gets them."""


def service_environment(data: DataDir, ports: Ports) -> dict[str, str]:
    """Our own environment, and where this folder's servers, secrets and keys are."""
    return (
        {"MUSTER_WEBHOOK_ALLOW_NETWORKS": LOOPBACK, "MUSTER_PROXY_URL": f"http://localhost:{ports.proxy}"}
        | _inherited()
        | {
            "MUSTER_NATS_URL": f"nats://127.0.0.1:{ports.nats}",
            "MUSTER_NATS_PASSWORD_DIR": str(data.nats_secrets),
            "MUSTER_POSTGRES_URL": postgres.url(data, ports.postgres),
            "MUSTER_POSTGRES_READER_URL": postgres.reader_url(data, ports.postgres),
            "MUSTER_CALLOUT_KEY_DIR": str(data.callout),
            "MUSTER_WEBHOOK_KEY_FILE": str(data.webhook_key_file),
            "MUSTER_KEY_FILE": str(data.key_file),
            "MUSTER_JWKS_FILE": str(data.jwks_file),
            "MUSTER_DATA_DIR": str(data.root),
            "MUSTER_PROXY_PORT": str(ports.proxy),
        }
    )


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


def given_settings(environ: Mapping[str, str]) -> list[str]:
    """Names of variables there that begin as settings do, whatever their case, and may be meant for us."""
    return sorted(name for name in environ if name.upper().startswith(PREFIX) and name not in NO_SETTINGS)


def is_taken(name: str) -> bool:
    """Whether services get this variable from whoever starts `muster up`."""
    return not name.upper().startswith(PREFIX) or (name.isupper() and name not in SET_BY_UP and name not in NO_SETTINGS)


def _inherited() -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if is_taken(name)}
    return ours | {
        # One thread pool per core costs memory that idle services do not use.
        "OPENBLAS_NUM_THREADS": "1",
        # Fewer heaps per process: less memory that is free but not given back.
        "MALLOC_ARENA_MAX": "2",
    }
