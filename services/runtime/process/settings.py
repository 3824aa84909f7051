"""Every setting of every service, read once from the environment at start and passed down explicitly.

Nothing else reads the environment. Secrets may be given as files, so that they stand in no process listing.
"""

import re
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

_NAMESPACE: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


_ORIGIN: Final = re.compile(r"^https?://[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?(:[1-9][0-9]{0,4})?\Z")
"""As browsers send it: in lower case, without a path."""


class Settings(BaseSettings):
    """Settings; each is the environment variable `MUSTER_<NAME>`. An empty one counts as unset."""

    model_config = SettingsConfigDict(env_prefix="MUSTER_", env_ignore_empty=True, extra="ignore", frozen=True)

    nats_url: str = "nats://127.0.0.1:4222"
    """One or more servers, separated by commas."""
    nats_password: str = ""
    """Of the service's user; better a file."""
    nats_password_file: Path | None = None
    """A file that holds the password; the user's name is the service's."""
    nats_password_dir: Path | None = None
    """A folder with one file per service, where several services share a process."""
    nats_ca_file: Path | None = None
    """Certificate authority of the servers, where the connection is TLS."""

    replicas: Literal[1, 3] = 1
    """Copies of every stream: 3 needs three servers in a cluster."""

    log_max_bytes: int = Field(default=8 * 1024**3, ge=64 * 1024**2, le=2**60)
    """Up to which the event log grows; setup makes the stream so large, `python -m services.setup
    migrate` makes it larger, and nothing makes it smaller. At nine tenths of it nothing new is taken (`log_full`)."""

    postgres_url: str = ""
    """`postgresql://user:password@host:port/database`, as the owner of the tables."""
    postgres_password_file: Path | None = None
    """A file that holds the password, where it shall stand in no environment."""
    postgres_reader_url: str = ""
    """The same as the role that the api reads as; setup makes it. Unset, the api connects as the owner, and gives up
    its rights at the beginning of each transaction."""
    postgres_reader_password_file: Path | None = None
    """A file that holds the reader's password."""

    http_host: str = "127.0.0.1"
    """Where the API listens; loopback unless told otherwise."""
    http_port: int = Field(default=8080, ge=0, le=65535)
    """Of the API; 0 takes a free one."""
    http_certificate_file: Path | None = None
    """The API's certificate, in PEM, with those of the authorities between it and one that clients believe behind it:
    the API then serves https alone (TLS 1.2 or later). Read again when it changes. Plain HTTP where unset."""
    http_key_file: Path | None = None
    """The certificate's private key, in PEM, without a passphrase."""
    requests_per_second: float = Field(default=20.0, gt=0)
    """Of one user in the long run, at each `api` process; more is answered 429 with `Retry-After`."""
    requests_burst: int = Field(default=200, ge=1)
    """Requests that one user may send at once, at each `api` process."""
    follows_per_user: int = Field(default=10, ge=1)
    """Open `logs?follow` and `events?follow` of one user, at each `api` process."""
    http_max_connections: int = Field(default=1_000, ge=1)
    """Connections of clients that an `api` process keeps open; one more is answered 503 and closed."""
    http_max_connections_per_address: int = Field(default=200, ge=1)
    """Of these, from one address (of IPv6, one /64); one more is answered 429 and closed. Behind a proxy, all come from
    the proxy's address: give it as many as `http_max_connections`, and have the proxy bound its clients."""
    http_max_head_seconds: float = Field(default=10.0, gt=0)
    """Within which the head of a request must be there, from its first byte or from the connection on; over https the
    handshake has as long before that."""
    http_max_stalled_seconds: float = Field(default=30.0, gt=0)
    """Within which a client must take at least 16 KiB of what it is sent, or all of it; else it is cut off."""
    cors_origins: str = ""
    """Origins whose pages may read the API's answers in a browser, such as `https://console.example.org`, separated by
    commas; none where unset. Each is exact: scheme, host and port, without wildcards. Cookies are never asked for."""
    project_max_living_workloads: int = Field(default=10_000, ge=1)
    """Of one project: workloads that are neither Completed nor Failed nor deleted. At it, creations are refused
    (`too_many_workloads`)."""
    project_max_creations_per_hour: int = Field(default=5_000, ge=1)
    """Workloads that one project may create within 60 minutes; more are refused (`too_many_creations`)."""
    project_max_bytes_per_hour: int = Field(default=64 * 1024**2, ge=2**20)
    """What the creations of one project may take of the log within 60 minutes, in bytes; more are refused
    (`too_many_bytes`)."""
    user_max_bytes_per_hour: int = Field(default=64 * 1024**2, ge=2**20)
    """The same of one user or program, in whichever projects."""
    code_max_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    """Of one folder that is sent along with a workload (`muster training submit --code`)."""
    code_project_max_bytes: int = Field(default=512 * 1024 * 1024, ge=1024)
    """Of all code of one project that is kept."""
    code_retention_hours: float = Field(default=24.0, ge=1)
    """How long code is kept that no living workload uses."""
    health_host: str = "127.0.0.1"
    """Where health and figures are served."""
    health_port: int | None = Field(default=None, ge=0, le=65535)
    """Where `/healthz`, `/readyz` and, where wanted, `/metrics` are served; none where unset."""
    metrics: bool = False
    """Whether `/metrics` is served, on the health port: it tells how much is done here to whoever reaches that."""

    issuer: str = "muster"
    """Whose tokens are taken."""
    audience: str = "muster"
    """For whom a token must be."""
    jwks_file: Path | None = None
    """Public keys that tokens are checked with, as a file; read again when it changes."""
    jwks_url: str = ""
    """The same by HTTPS, from the issuer."""
    key_file: Path | None = None
    """The local signing key of `muster up` and compose; never in production."""
    admin_subject: str = Field(default="admin", min_length=1, max_length=256)
    """Who setup makes the tenant's administrator where it has none."""
    first_cluster: str = Field(default="", pattern=r"^([1-9][0-9]{0,3}x(0|[1-9][0-9]?))?$")
    """NODESxGPUS: at the first start, setup adds a simulated cluster `simulated` of that size, and a project `default`;
    neither where unset."""

    data_dir: Path | None = None
    """Where services that keep files do so: pods' working folders and logs of the local cluster."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged, to stderr as JSON."""

    facts_per_cluster_minute: int = Field(default=6_000, ge=60)
    """How many facts of one cluster become commits in a minute, in the long run; 20 minutes' worth may come at once. A
    fact of more than 512 bytes counts as several. What is more waits, with the newest word of each pod and node."""
    local_gpus: int = Field(default=0, ge=0, le=64)
    """Stand-in devices that the local cluster declares."""
    local_pods: Literal["isolated", "shared", "shared-accepted"] = "isolated"
    """Whether pods of the local cluster are shut off from Muster's data, keys and processes. Where they are not
    (`shared`), whoever may submit can become anybody: the gate refuses to give roles to others, unless that is
    accepted."""
    local_hidden_folders: str = ""
    """What else the pods of the local cluster do not see, separated by colons: where backups are. `muster up` adds
    where the command line keeps tokens. Copies of the data folder that lie beside it are hidden without that."""
    agent_kinds: str = Field(
        default="local,simulated", pattern=r"^(local|simulated|kubernetes)(,(local|simulated|kubernetes))*$"
    )
    """Kinds of clusters that the agent service runs agents for, separated by commas."""
    agent_cluster: str = Field(default="", pattern=r"^[A-Za-z0-9_-]{0,64}$")
    """Id of the one cluster that the agent service serves, as the NATS user `agent-ID`; unset, all of its kinds."""
    pod_log_max_bytes: int = Field(default=16 * 1024 * 1024, ge=64 * 1024)
    """Of one pod's log; what is older is dropped."""
    pod_log_retention_days: float = Field(default=7.0, ge=0)
    """How long the logs of pods that are gone are kept."""
    pod_logs_total_max_bytes: int = Field(default=1024 * 1024 * 1024, ge=0)
    """Of all logs of pods that are gone; the oldest go first."""

    pod_log_followers: int = Field(default=200, ge=0)
    """Of how many pods on Kubernetes the log is followed at once; those of others are read when asked for, and at their
    end."""
    kubeconfig: Path | None = None
    """How to reach the agent's Kubernetes cluster; unset, the agent runs in that cluster, as its ServiceAccount."""
    kube_context: str = ""
    """Which context of the kubeconfig; its current one where unset."""
    kubernetes_namespace: str = Field(default="muster-system", pattern=_NAMESPACE)
    """Namespace of the agent itself, for its fences, its settings and the pods that hold shared devices."""
    kubernetes_project_namespace: str = Field(default="muster-{project}", pattern=r"^[-a-z0-9]*\{project\}[-a-z0-9]*$")
    """Namespace of a project's pods; `{project}` stands for its name. deploy/kubernetes/policy.yaml names it, too."""
    kubernetes_pod_security: Literal["restricted", "baseline", "privileged"] = "baseline"
    """Pod Security Standard that the agent enforces in namespaces it makes, or the project's where that is stricter;
    existing ones keep theirs. With deploy/kubernetes/policy.yaml, administrators alone make privileged ones."""
    kubernetes_reservation_image: str = "muster"
    """Image of the pods that hold shared devices: this program's own."""
    kubernetes_not_ready_seconds: float = Field(default=5.0, ge=0)
    """How long a node may be not ready until nothing more is placed on it."""
    kubernetes_node_lost_seconds: float = Field(default=3600.0, ge=0)
    """How long a node may be not ready until its pods are said to be unreachable. Their GPUs stay reserved."""
    kubernetes_replace_lost_pods: bool = False
    """Whether unreachable pods are then given up and placed anew: they may still run on the node that is away."""
    kubernetes_watch_silence_seconds: float = Field(default=60.0, gt=0)
    """After that long without a word, a watch is taken for dead, and everything is listed again."""
    kubernetes_call_seconds: float = Field(default=30.0, gt=0)
    """Within which the API server must answer a call."""
    kubernetes_list_again_seconds: float = Field(default=300.0, gt=0)
    """How often everything is listed again, whatever the watch says."""

    failpoint: str = ""
    """For tests only: where the process ends itself as a crash would (services/runtime/process/failpoints.py)."""

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, given: str) -> str:
        """Raises ValueError where one of them is none, or stands for many."""
        for origin in filter(None, map(str.strip, given.split(","))):
            if not _ORIGIN.match(origin):
                raise ValueError(
                    f"{origin!r} is no origin; write scheme, host and port, as https://console.example.org"
                )
        return given

    @property
    def nats_servers(self) -> list[str]:
        return [url.strip() for url in self.nats_url.split(",") if url.strip()]

    @property
    def database_url(self) -> str:
        """`postgres_url` with the password of the file. Raises FileNotFoundError where that is not there."""
        return _with_password(self.postgres_url, self.postgres_password_file)

    @property
    def reader_url(self) -> str:
        """The same of `postgres_reader_url`."""
        return _with_password(self.postgres_reader_url, self.postgres_reader_password_file)

    def password_of(self, service: str) -> str:
        """The service's own NATS password. Raises FileNotFoundError where a file was named that is not there."""
        if self.nats_password_dir is not None:
            return (self.nats_password_dir / service).read_text().strip()
        if self.nats_password_file is not None:
            return self.nats_password_file.read_text().strip()
        return self.nats_password


def _with_password(given: str, file: Path | None) -> str:
    if file is None or not given:
        return given
    url = urlsplit(given)
    user, _, host = url.netloc.rpartition("@")
    password = quote(file.read_text().strip(), safe="")
    return urlunsplit(url._replace(netloc=f"{user.partition(':')[0]}:{password}@{host}"))
