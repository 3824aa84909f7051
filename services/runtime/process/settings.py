"""Every setting of every service, read once from the environment at start and passed down explicitly.

Nothing else reads the environment. Secrets may be given as files, so that they stand in no process listing.
"""

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from events.ids import key_of_id
from events.workload.exposure import proxy_address

_NAMESPACE: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


_ORIGIN: Final = re.compile(r"^https?://[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?(:[1-9][0-9]{0,4})?\Z")
"""As browsers send it: in lower case, without a path."""


class Settings(BaseSettings):
    """Settings; each is the environment variable `MUSTER_<NAME>`. An empty one counts as unset."""

    model_config = SettingsConfigDict(env_prefix="MUSTER_", env_ignore_empty=True, extra="ignore", frozen=True)

    nats_url: str = "nats://127.0.0.1:4222"
    """Addresses of the NATS servers, separated by commas."""
    nats_password: str = ""
    """Password of the service's NATS user. A file is safer."""
    nats_password_file: Path | None = None
    """File that holds that password. The name of the NATS user is the name of the service."""
    nats_password_dir: Path | None = None
    """Folder with one password file per service, for a process that runs several services."""
    nats_ca_file: Path | None = None
    """Certificate authority of the NATS servers, for TLS."""

    replicas: Literal[1, 3] = 1
    """Copies of every stream. 3 needs a cluster of three NATS servers."""

    log_max_bytes: int = Field(default=8 * 1024**3, ge=64 * 1024**2, le=2**60)
    """Size limit of the event log. Setup creates the stream with it, and `python -m services.setup migrate` makes the
    stream larger. Nothing makes it smaller. At 90 % of it new work is refused (`log_full`)."""

    feed_retention_days: int = Field(default=30, ge=1, le=3650)
    """How many days public events are kept. After a change, run `python -m services.setup migrate`."""

    postgres_url: str = ""
    """`postgresql://user:password@host:port/database`, as the owner of the tables."""
    postgres_password_file: Path | None = None
    """File that holds the password, to keep it out of the environment."""
    postgres_reader_url: str = ""
    """The same URL with the role that the api reads with, which setup creates. If unset, the api connects as the owner
    and drops its rights at the beginning of each transaction."""
    postgres_reader_password_file: Path | None = None
    """File that holds the reader's password."""

    http_host: str = "127.0.0.1"
    """Address that the API listens on."""
    http_port: int = Field(default=8080, ge=0, le=65535)
    """Port of the API. 0 takes a free port."""
    http_certificate_file: Path | None = None
    """The API's certificate in PEM, followed by the certificates of intermediate authorities. With it the API serves
    only https (TLS 1.2 or later). It is read again when it changes. If unset, the API serves plain HTTP."""
    http_key_file: Path | None = None
    """The private key of that certificate, in PEM, without a passphrase."""
    consolidate: bool = True
    """Whether the scheduler moves single preemptible pods to another node, to make room in one piece for a gang or a
    pod of several GPUs that waits though enough is free in all. A pod that is moved begins again from its last
    checkpoint."""
    requests_per_second: float = Field(default=20.0, gt=0)
    """Requests per second of one user in the long run, for each `api` process. More are answered 429 with
    `Retry-After`."""
    requests_burst: int = Field(default=200, ge=1)
    """Requests that one user may send at once, for each `api` process."""
    follows_per_user: int = Field(default=10, ge=1)
    """Open `logs?follow` and `events?follow` requests of one user, for each `api` process."""
    sessions_per_user: int = Field(default=10, ge=1)
    """Open ways into pods (`exec`, `attach`, `port-forward`) of one user, for each `api` process."""
    session_hours: float = Field(default=8.0, gt=0, le=24)
    """After so long, a way into a pod ends."""
    session_idle_minutes: float = Field(default=30.0, gt=0, le=1440)
    """After so long in which nothing went through it, a way into a pod ends."""
    event_streams_per_user: int = Field(default=20, ge=1)
    """Open streams of public events (`events/stream`) of one user, for each `api` process."""
    event_streams: int = Field(default=1_000, ge=1)
    """Open streams of public events of all users, for each `api` process. One more is answered 503."""
    event_stream_heartbeat_seconds: float = Field(default=15.0, ge=1, le=60)
    """After so long without an event, a stream of public events sends a comment, so that nothing between takes the
    connection for dead."""
    http_max_connections: int = Field(default=1_000, ge=1)
    """Client connections that an `api` process keeps open. One more is answered 503 and closed. With https, as many
    more can be in their TLS handshake. One more of those is closed without an answer."""
    http_max_connections_per_address: int = Field(default=200, ge=1)
    """Client connections from one address (for IPv6, one /64). One more is answered 429 and closed. Behind a proxy all
    connections come from one address: set this to `MUSTER_HTTP_MAX_CONNECTIONS`, and limit clients in the proxy."""
    http_max_head_seconds: float = Field(default=10.0, gt=0)
    """Time in which the head of a request must arrive, from the opening of the connection or from its first byte. Over
    https, the handshake has the same time before that."""
    http_max_stalled_seconds: float = Field(default=30.0, gt=0)
    """Time in which a client must read at least 16 KiB of its answer, or all of it. Otherwise the connection is
    closed."""
    cors_origins: str = ""
    """Origins whose pages may read answers of the API in a browser, separated by commas, such as
    `https://console.example.org`. If unset, none may. Each is scheme, host and port, without wildcards. The API uses no
    cookies."""
    project_max_living_workloads: int = Field(default=10_000, ge=1)
    """Workloads of one project that are not Completed, Failed or Deleted. More are refused (`too_many_workloads`)."""
    project_max_creations_per_hour: int = Field(default=5_000, ge=1)
    """Workloads that one project may create in 60 minutes. More are refused (`too_many_creations`)."""
    project_max_bytes_per_hour: int = Field(default=64 * 1024**2, ge=2**20)
    """Bytes of the log that what is created and changed in one project may use in 60 minutes: workloads, assets and
    policies. More are refused (`too_many_bytes`)."""
    user_max_bytes_per_hour: int = Field(default=64 * 1024**2, ge=2**20)
    """Bytes of the log that the same of one user or program may use in 60 minutes, in all projects together. Each
    suspension, resumption and transfer counts as 2,048 of them."""
    code_max_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    """Size limit of one folder that is sent with a workload (`muster training submit --code`)."""
    code_project_max_bytes: int = Field(default=512 * 1024 * 1024, ge=1024)
    """Size limit of all stored code of one project."""
    priority_head_start_hours: float = Field(default=24.0, ge=0, le=8760)
    """What a rank of priority is worth: within a project, a workload goes before one of a rank more once it has waited
    for longer by more than this. With 0 only the waiting time counts; with 8760 (a year) the priority hardly ever
    gives way."""
    code_retention_hours: float = Field(default=24.0, ge=1)
    """How long code is kept that no living workload uses."""
    health_host: str = "127.0.0.1"
    """Address that health and figures are served on."""
    health_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of `/healthz`, `/readyz` and, with `MUSTER_METRICS`, `/metrics`. If unset, none of them is served."""
    metrics: bool = False
    """Whether `/metrics` is served on the health port. Everybody who can reach that port can read the figures."""

    issuer: str = "muster"
    """Issuer whose tokens are accepted."""
    audience: str = "muster"
    """Audience that a token must name."""
    jwks_file: Path | None = None
    """File with the public keys that check tokens. It is read again when it changes."""
    jwks_url: str = ""
    """HTTPS address of those keys, at the issuer."""
    uid_claim: str = Field(default="uid", min_length=1)
    """Claim of a token with the user id of pods whose `uidGidSource` is `fromIdpToken`: a number, or a text of
    digits."""
    gid_claim: str = Field(default="gid", min_length=1)
    """Claim with their group id, likewise."""
    supplemental_groups_claim: str = Field(default="groups", min_length=1)
    """Claim with their supplementary group ids: a list of numbers, or a comma separated text. It may be missing."""
    user_name_claim: str = Field(default="email", min_length=1)
    """Claim of a token by which `authorizedUsers` of an exposed URL names its holder, beside the subject. An `email`
    that the issuer calls unverified (`email_verified` false) does not count."""
    groups_claim: str = Field(default="groups", min_length=1)
    """Claim of a token with the groups of its holder, for `authorizedGroups`: a list of texts, or a comma separated
    text."""
    key_file: Path | None = None
    """Signing key for local tokens, for `muster up` and docker-compose. Never use it in production."""
    admin_subject: str = Field(default="admin", min_length=1, max_length=256)
    """User whom setup makes administrator if there is none."""
    first_cluster: str = Field(default="", pattern=r"^([1-9][0-9]{0,3}x(0|[1-9][0-9]?))?$")
    """NODESxGPUS: at the first start, setup adds a simulated cluster `simulated` of that size and a project `default`.
    If unset, it adds neither."""

    subscriber_url: str = ""
    """Address of the NATS server for subscribers, as the answer that creates a subscription shows it. If unset, the
    first address of `nats_url`."""
    callout_key_dir: Path | None = None
    """Folder with the two keys of the service `subscriptions`: `issuer`, with which it lets subscribers in, and
    `responder`, as which it connects to NATS. `muster up` and docker-compose make them."""

    credential_key_file: Path | None = None
    """File with the keys that open the values of credentials, for the service `cluster_sync` alone. Keys for ssh of MPI
    trainings are derived from it, too. Without it no run that needs a credential starts, and no MPI training on
    Kubernetes. `muster up` and docker-compose make it. A backup holds it."""
    credential_public_key_file: Path | None = None
    """File with the public half of the newest of them, to which the API seals values. If unset, credentials cannot be
    made."""

    webhook_key_file: Path | None = None
    """File from which the keys of all webhooks are derived: at least 32 random bytes, for the service `webhooks` alone.
    Another file gives every webhook another key. `muster up` and docker-compose make it."""
    webhook_allow_networks: str = ""
    """Networks that webhooks may post to beside public addresses, in CIDR form, separated by commas, such as
    `10.20.0.0/16`. Plain http:// is possible there, too. Everybody who administers a project can then reach what
    listens there. `muster up` allows this machine's loopback if unset."""

    proxy_url: str = ""
    """Address at which people reach the service `proxy`, such as `https://apps.example.com`: exposed URLs are names
    before this domain, so `*.apps.example.com` must lead there. If unset, no workload can expose a URL. `muster up`
    uses `http://localhost` with its own port."""
    proxy_host: str = "127.0.0.1"
    """Address that the proxy listens on. It speaks plain HTTP: with `https` in `MUSTER_PROXY_URL`, TLS ends before
    it."""
    proxy_port: int = Field(default=8083, ge=0, le=65535)
    """Port that the proxy listens on."""
    proxy_pod_networks: str = ""
    """Networks of the pods of Kubernetes clusters, in CIDR form, separated by commas, such as `10.244.0.0/16`; with the
    id of a cluster and `=` before it, that of the pods of this cluster alone. With several clusters, give all their
    ids: else the agent of one can name addresses of another. The proxy forwards to no other address, whatever an agent
    reports. If unset, it reaches pods of the local cluster only."""
    proxy_cluster: str = ""
    """Id of the only cluster whose workloads this proxy serves, for one that runs beside the pods. If unset, it serves
    all clusters."""
    proxy_max_connections: int = Field(default=2_000, ge=1)
    """Client connections that a proxy keeps open. One more is answered 503 and closed."""
    proxy_max_connections_per_address: int = Field(default=500, ge=1)
    """Client connections of a proxy from one address (for IPv6, one /64). One more is answered 429 and closed. Behind
    an ingress all connections come from one address: set this to `MUSTER_PROXY_MAX_CONNECTIONS`, and limit clients in
    the ingress."""
    proxy_max_connections_per_workload: int = Field(default=500, ge=1)
    """Requests and tunnels to one workload at once, for each proxy. One more is answered 503."""
    proxy_hold_seconds: float = Field(default=120.0, gt=0, le=3600)
    """How long a request waits for a replica of an inference to come up, before it is answered 503."""
    proxy_max_held_per_workload: int = Field(default=100, ge=1)
    """Requests that wait for replicas of one inference at once, for each proxy. One more is answered 503."""
    proxy_max_body_bytes: int = Field(default=1024**3, ge=1024)
    """Size limit of one request to a workload."""
    proxy_idle_seconds: float = Field(default=600.0, gt=0)
    """How long a request or a tunnel may stand still in both directions."""
    proxy_session_hours: float = Field(default=12.0, gt=0, le=24)
    """How long a browser stays signed in to one exposed URL, if its user's token lasts that long."""

    data_dir: Path | None = None
    """Folder for files of services: working folders and logs of the pods of the local cluster."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged. The log is JSON on stderr."""

    facts_per_cluster_minute: int = Field(default=6_000, ge=60)
    """Facts of one cluster that become commits per minute, in the long run. Up to 20 minutes' worth may come at once. A
    fact of more than 512 bytes counts as several. Further facts wait, and only the newest of each pod and node is
    kept."""
    autoscaler_speed: float = Field(default=1.0, ge=1, le=100)
    """How many times faster than usual the time windows of the autoscaler pass, for demonstrations and tests: with 60,
    an inference that is to be scaled to zero after a minute is after a second."""
    local_gpus: int = Field(default=0, ge=0, le=64)
    """Stand-in GPUs that the local cluster declares."""
    local_pods: Literal["isolated", "shared", "shared-accepted"] = "isolated"
    """Whether pods of the local cluster are isolated from Muster's data, keys and processes. With `shared`, anybody who
    may submit can act as any user, so roles for other people are refused. `shared-accepted` allows them."""
    local_hidden_folders: str = ""
    """Further folders that pods of the local cluster cannot see, such as backups, separated by colons. `muster up` adds
    the folder where the command line keeps tokens. Copies beside the data folder are always hidden."""
    agent_kinds: str = Field(
        default="local,simulated", pattern=r"^(local|simulated|kubernetes)(,(local|simulated|kubernetes))*$"
    )
    """Kinds of clusters that the agent service serves, separated by commas."""
    agent_cluster: str = Field(default="", pattern=r"^[A-Za-z0-9_-]{0,64}$")
    """Id of the one cluster that the agent service serves, as the NATS user `agent-ID`. If unset, it serves all
    clusters of its kinds."""
    pod_log_max_bytes: int = Field(default=16 * 1024 * 1024, ge=64 * 1024)
    """Size limit of the log of one pod. Older lines are dropped."""
    pod_log_retention_days: float = Field(default=7.0, ge=0)
    """How long the logs of pods that are gone are kept."""
    pod_logs_total_max_bytes: int = Field(default=1024 * 1024 * 1024, ge=0)
    """Size limit of all logs of pods that are gone. The oldest are deleted first."""

    pod_log_followers: int = Field(default=200, ge=0)
    """Number of pods on Kubernetes whose logs are followed at the same time. Other logs are read on request and when
    the pod ends."""
    kubeconfig: Path | None = None
    """File with the address and credentials of the agent's Kubernetes cluster. If unset, the agent runs in that cluster
    and uses its ServiceAccount."""
    kube_context: str = ""
    """Context of the kubeconfig. If unset, its current context."""
    kubernetes_namespace: str = Field(default="muster-system", pattern=_NAMESPACE)
    """Namespace of the agent, its fences, its settings and the reservation pods."""
    kubernetes_project_namespace: str = Field(default="muster-{project}", pattern=r"^[-a-z0-9]*\{project\}[-a-z0-9]*$")
    """Namespace of a project's pods. `{project}` stands for the project's name. If you change it, change
    deploy/kubernetes/policy.yaml too."""
    kubernetes_pod_security: Literal["restricted", "baseline", "privileged"] = "baseline"
    """Pod Security Standard of namespaces that the agent creates, unless the project's is stricter. Existing namespaces
    keep theirs. With deploy/kubernetes/policy.yaml only administrators can create privileged ones."""
    kubernetes_reservation_image: str = "muster"
    """Image of reservation pods, and of init containers that fetch buckets (S3): the image of Muster."""
    kubernetes_data_source_ports: str = Field(default="443,2049", pattern=r"^([0-9]{1,5}(,[0-9]{1,5}){0,19})?$")
    """Ports on which the agent sees whether servers of data sources (Git, S3, NFS) answer, separated by commas. Its
    network policy must let it through to them; empty: it looks at none."""
    kubernetes_gpu_metrics: str = Field(
        default="gpu-operator/app=nvidia-dcgm-exporter", pattern=r"^([-a-z0-9]{1,63}/[-A-Za-z0-9_.=/,]{1,253})?$"
    )
    """Where the pods of NVIDIA's DCGM exporter are, as NAMESPACE/LABEL=VALUE. What pods use of whole GPUs is read from
    the exporter of their node. Whoever makes pods in that namespace is believed; if empty, none is asked."""
    kubernetes_gpu_metrics_port: int = Field(default=9400, ge=1, le=65_535)
    """Port of the exporters. The network policy of the agent must let it through."""
    kubernetes_not_ready_seconds: float = Field(default=5.0, ge=0)
    """How long a node may be not ready before no new pod is placed on it."""
    kubernetes_node_lost_seconds: float = Field(default=3600.0, ge=0)
    """How long a node may be not ready before its pods become Unknown. Their GPUs stay reserved."""
    kubernetes_replace_lost_pods: bool = False
    """Whether pods of a lost node are then placed on other nodes. The old ones may still run, so a program may run
    twice."""
    kubernetes_watch_silence_seconds: float = Field(default=60.0, gt=0)
    """A watch without any message for so long counts as broken, and everything is listed again."""
    kubernetes_call_seconds: float = Field(default=30.0, gt=0)
    """Time in which the API server must answer a call."""
    kubernetes_list_again_seconds: float = Field(default=300.0, gt=0)
    """How often everything is listed again, even if the watch works."""

    failpoint: str = ""
    """For tests only: a point where the process ends itself as if it had crashed
    (services/runtime/process/failpoints.py)."""

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

    @field_validator("proxy_url")
    @classmethod
    def _is_a_proxy(cls, given: str) -> str:
        """Raises ValueError where it is no address of a proxy."""
        proxy_address(given)
        return given

    @field_validator("proxy_pod_networks")
    @classmethod
    def _are_pod_networks(cls, given: str) -> str:
        """Raises ValueError where one of them is none."""
        for part in filter(None, map(str.strip, given.split(","))):
            cluster_id, named, network = part.rpartition("=")
            if named and key_of_id(cluster_id.strip().lower()) is None:
                raise ValueError(f"{cluster_id!r} is no id of a cluster: write ID=10.20.0.0/16, or 10.20.0.0/16 alone")
            cls._are_networks(network)
        return given

    @field_validator("webhook_allow_networks")
    @classmethod
    def _are_networks(cls, given: str) -> str:
        """Raises ValueError where one of them is none."""
        for part in filter(None, map(str.strip, given.split(","))):
            try:
                ip_network(part)
            except ValueError as error:
                raise ValueError(f"{part!r} is no network in CIDR form, such as 10.20.0.0/16: {error}") from None
        return given

    @property
    def nats_servers(self) -> list[str]:
        return [url.strip() for url in self.nats_url.split(",") if url.strip()]

    @property
    def own_ports(self) -> frozenset[int]:
        """Ports of Muster's own servers, as far as these settings name them."""
        urls = (*self.nats_servers, self.postgres_url, self.postgres_reader_url)
        named = (urlsplit(url).port for url in urls if url)
        return frozenset(port for port in (*named, self.http_port, self.health_port, self.proxy_port) if port)

    @property
    def subscriber_address(self) -> str:
        """`subscriber_url`, or where services find NATS."""
        return self.subscriber_url or self.nats_servers[0]

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
