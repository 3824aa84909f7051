"""The services: one line each, and one for each other user of NATS.

From the table follow the server's users and rights (`nats.nats_config`), what passes between its accounts, the
processes of `muster up`, and what tests expect of docker-compose.yml, of the folders here and of the import contracts.
Pure: nothing here reads a file or the environment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from events.aggregate import AGGREGATES
from events.commands import COMMANDS
from events.subjects import (
    ACTORS_STREAM,
    ALL_ACTORS,
    ALL_AGENT_RECIPES,
    ALL_AUDIT,
    ALL_CANARIES,
    ALL_CODE,
    ALL_CREDENTIALS,
    ALL_EVENTS,
    ALL_FEED,
    ALL_KEYS,
    ALL_LOADS,
    ALL_OBSERVED,
    ALL_RECIPES,
    ALL_REFUSALS,
    ALL_ROOMS,
    ALL_WANTED,
    AUDIT_STREAM,
    CODE_STREAM,
    CREDENTIALS_STREAM,
    EVENTS_STREAM,
    FEED_STREAM,
    KEYS_STREAM,
    LOG_STATE,
    OBSERVED_STREAM,
    REFUSALS_STREAM,
    SERVER_HEALTH,
    WANTED_STREAM,
    WEBHOOKS_ASKED,
    WEBHOOKS_STAND,
    WEBHOOKS_STREAM,
    WHAT_IF,
    WHY,
    chain_snapshots_filter,
    fold_snapshots_filter,
)
from services.runtime.backup.holdings import kept_streams
from services.runtime.nats.calls import call
from services.runtime.nats.declared import DECLARED, DISPOSABLE_STREAMS, SERVER_CONNECTIONS
from services.runtime.nats.inboxes import exec_inbox, inbox_prefix, logs_inbox
from services.runtime.nats.permissions import (
    READ_ONE_ACTOR,
    SERVER_KICK,
    Permission,
    actors,
    answer,
    append,
    follow,
    log_follower,
    manage_feed_consumers,
    permission,
    read,
    read_code,
)

SERVER_UID: Final = 10010
"""Of the NATS server in docker-compose.yml, and its group: it reads every password."""

type Group = Literal["control", "workers", "setup", "none"]
"""Where `muster up` runs a service: in the process that answers requests, in the one that works on the log, once before
them (`setup`), or not at all: a user of NATS that another program borrows.
"""

OPERATOR_UID: Final = 10001
"""Of setup, and of what an operator runs once: they alone read the key that signs tokens."""

ERASED_STREAMS: Final = (ACTORS_STREAM, AUDIT_STREAM, REFUSALS_STREAM)
"""Where people are named."""
_KEPT_STREAMS: Final = (*kept_streams(before_log=True), *kept_streams(before_log=False))
"""What a backup holds beside the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One service, or a user of NATS."""

    rights: Permission
    """On NATS; the user's name is the service's."""
    group: Group = "none"
    uid: int
    """As whom it runs in docker-compose.yml, and who may read its password there."""
    settings: tuple[str, ...] = ()
    """What it reads of `Settings`, beside what every service does."""


SERVICES: Final[dict[str, Service]] = {
    "setup": Service(
        rights=permission(
            "setup",
            *append("tenant", "project", "cluster"),
            *read(EVENTS_STREAM),
            *(call("STREAM.CREATE", declared.name) for declared in DECLARED),
            # The first administrator's id.
            ALL_ACTORS,
            READ_ONE_ACTOR,
        ),
        group="setup",
        uid=OPERATOR_UID,
        settings=(
            *(
                "admin_subject",
                "database_url",
                "feed_retention_days",
                "first_cluster",
                "issuer",
                "jwks_file",
                "jwks_url",
                "key_file",
                "log_level",
            ),
            *("log_max_bytes", "nats_password_dir", "postgres_url", "reader_url", "replicas"),
        ),
    ),
    # Only while a migration runs (services/setup/migrate.py): no service has this password.
    "migrate": Service(
        rights=permission(
            "migrate",
            *(call("STREAM.UPDATE", declared.name) for declared in DECLARED),
            # It is written again from the log (services/setup/feed.py).
            call("STREAM.DELETE", FEED_STREAM),
        ),
        uid=10020,
    ),
    "api": Service(
        rights=log_follower(
            "api",
            "cmd.request.>",
            "agent.*.logs",
            "agent.*.exec",
            *(f"cmd.system.api.{c.type.__name__}" for c in COMMANDS.values() if c.service == "api"),
            LOG_STATE,
            *read(AUDIT_STREAM),
            *read(REFUSALS_STREAM),
            *read(FEED_STREAM),
            *follow(FEED_STREAM, "api"),
            *actors("api"),
            ALL_CODE,
            read_code(ALL_CODE),
            call("STREAM.PURGE", CODE_STREAM),
            # It seals values to a key that it cannot open them with, and cannot read them back.
            ALL_CREDENTIALS,
            call("STREAM.PURGE", CREDENTIALS_STREAM),
            # How far subscribers are.
            call("CONSUMER.INFO", FEED_STREAM, "*"),
            f"{WEBHOOKS_ASKED}.*",
            WHAT_IF,
            WHY,
        ),
        group="control",
        uid=10011,
        settings=(
            *(
                "cors_origins",
                "event_stream_heartbeat_seconds",
                "event_streams",
                "event_streams_per_user",
                "follows_per_user",
                "session_hours",
                "session_idle_minutes",
                "sessions_per_user",
                "requests_burst",
                "requests_per_second",
                "reader_url",
                "database_url",
            ),
            *("http_certificate_file", "http_key_file"),
            *("http_host", "http_port", "http_max_connections", "http_max_connections_per_address"),
            *("http_max_head_seconds", "http_max_stalled_seconds"),
            *("code_max_bytes", "code_project_max_bytes", "code_retention_hours"),
            "credential_public_key_file",
            "proxy_url",
            "subscriber_address",
            "webhook_allow_networks",
        ),
    ),
    "ownership": Service(
        rights=log_follower(
            "ownership",
            "cmd.admitted.>",
            ALL_AUDIT,
            ALL_REFUSALS,
            ALL_ACTORS,
            *actors("ownership"),
            *answer("api"),
            subscribe=("cmd.request.>",),
        ),
        group="control",
        uid=10012,
        settings=("local_pods",),
    ),
    "commands": Service(
        rights=log_follower(
            "commands",
            *append("workload", "node", "cluster", "project", "department", "tenant", "void"),
            *append("prices", "hours", "asset", "policy"),
            *answer("api", "auto_deletion", "autoscaler", "cluster_sync", "scheduler", "setup", "webhooks"),
            ALL_KEYS,
            call("STREAM.MSG.GET", KEYS_STREAM),
            ALL_CANARIES,
            SERVER_HEALTH,
            fold_snapshots_filter("commands"),
            subscribe=("cmd.admitted.>", "cmd.system.*.>", LOG_STATE, ALL_ROOMS),
        ),
        group="control",
        uid=10013,
        settings=(
            *("project_max_bytes_per_hour", "project_max_creations_per_hour", "project_max_living_workloads"),
            "user_max_bytes_per_hour",
        ),
    ),
    "scheduler": Service(
        rights=log_follower(
            "scheduler",
            *append("workload", "node"),
            *answer("api"),
            fold_snapshots_filter("scheduler"),
            subscribe=(WHAT_IF, WHY),
        ),
        settings=("consolidate", "priority_head_start_hours"),
        group="workers",
        uid=10014,
    ),
    "cluster_sync": Service(
        rights=log_follower(
            "cluster_sync",
            *append("workload", "node", "cluster", "asset"),
            fold_snapshots_filter("cluster_sync"),
            ALL_WANTED,
            *follow(OBSERVED_STREAM, "cluster_sync"),
            *follow(WANTED_STREAM, "cluster_sync"),
            *(call("STREAM.CREATE", stream) for stream in DISPOSABLE_STREAMS),
            ALL_AGENT_RECIPES,
            # It opens what a run needs, and seals it to the agent that starts the run.
            call("DIRECT.GET", CREDENTIALS_STREAM, ALL_CREDENTIALS),
            subscribe=(ALL_RECIPES,),
        ),
        group="workers",
        uid=10015,
        settings=("credential_key_file", "facts_per_cluster_minute", "replicas"),
    ),
    "agent": Service(
        rights=permission(
            "agent",
            ALL_OBSERVED,
            "usage.*",
            ALL_RECIPES,
            f"{logs_inbox('*')}.*",
            f"{exec_inbox('*')}.*",
            *follow(WANTED_STREAM, "agent", ALL_WANTED),
            read_code(ALL_CODE),
            subscribe=("agent.*.logs", "agent.*.exec", ALL_AGENT_RECIPES),
        ),
        group="workers",
        uid=10016,
        settings=(
            *("agent_cluster", "agent_kinds", "data_dir", "replicas"),
            *("kube_context", "kubeconfig", "kubernetes_call_seconds", "kubernetes_list_again_seconds"),
            *("kubernetes_data_source_ports", "kubernetes_gpu_metrics", "kubernetes_gpu_metrics_port"),
            *("kubernetes_namespace", "kubernetes_node_lost_seconds", "kubernetes_not_ready_seconds"),
            *("kubernetes_pod_security", "kubernetes_project_namespace", "kubernetes_replace_lost_pods"),
            *("kubernetes_reservation_image", "kubernetes_watch_silence_seconds"),
            *("local_gpus", "local_hidden_folders", "local_pods", "own_ports"),
            *("pod_log_followers", "pod_log_max_bytes", "pod_log_retention_days", "pod_logs_total_max_bytes"),
        ),
    ),
    "auto_deletion": Service(
        rights=permission(
            "auto_deletion",
            *(f"cmd.system.auto_deletion.{c.type.__name__}" for c in COMMANDS.values() if c.service == "auto_deletion"),
        ),
        group="workers",
        uid=10017,
        settings=("database_url",),
    ),
    "autoscaler": Service(
        rights=log_follower(
            "autoscaler",
            fold_snapshots_filter("autoscaler"),
            *(f"cmd.system.autoscaler.{c.type.__name__}" for c in COMMANDS.values() if c.service == "autoscaler"),
            subscribe=(ALL_LOADS,),
        ),
        group="workers",
        uid=10025,
        settings=("autoscaler_speed",),
    ),
    "projector": Service(
        rights=log_follower("projector", subscribe=("usage.*",)),
        group="workers",
        uid=10018,
        settings=("database_url",),
    ),
    "feed": Service(
        rights=log_follower(
            "feed", ALL_FEED, *read(FEED_STREAM), call("STREAM.CREATE", FEED_STREAM), fold_snapshots_filter("feed")
        ),
        group="workers",
        uid=10021,
        settings=("feed_retention_days", "replicas"),
    ),
    # Posts public events to addresses of other people's choice. In docker-compose nobody else can read the key that the
    # keys of webhooks are derived from.
    "webhooks": Service(
        rights=log_follower(
            "webhooks",
            *read(FEED_STREAM),
            WEBHOOKS_STAND,
            call("STREAM.MSG.GET", WEBHOOKS_STREAM),
            *(f"cmd.system.webhooks.{c.type.__name__}" for c in COMMANDS.values() if c.service == "webhooks"),
            *answer("api"),
            subscribe=(f"{WEBHOOKS_ASKED}.*",),
        ),
        group="workers",
        uid=10023,
        settings=("database_url", "own_ports", "webhook_allow_networks", "webhook_key_file"),
    ),
    # Lets subscribers in. The keys that it signs with could let anybody in as anything: in docker-compose nobody else
    # can read them.
    "subscriptions": Service(
        rights=log_follower(
            "subscriptions",
            *manage_feed_consumers(),
            fold_snapshots_filter("subscriptions"),
            SERVER_CONNECTIONS,
            SERVER_KICK,
        ),
        group="control",
        uid=10022,
        settings=("callout_key_dir",),
    ),
    # Lets people in to what workloads serve, and forwards to it.
    "proxy": Service(
        rights=log_follower("proxy", fold_snapshots_filter("proxy"), ALL_LOADS),
        group="control",
        uid=10026,
        settings=(
            *(
                "own_ports",
                "proxy_cluster",
                "proxy_host",
                "proxy_idle_seconds",
                "proxy_max_body_bytes",
                "proxy_max_connections",
            ),
            *("proxy_hold_seconds", "proxy_max_connections_per_address", "proxy_max_connections_per_workload"),
            "proxy_max_held_per_workload",
            *("proxy_pod_networks", "proxy_port", "proxy_session_hours", "proxy_url"),
        ),
    ),
    "operator": Service(
        rights=log_follower("operator", *read(AUDIT_STREAM), *read(REFUSALS_STREAM), READ_ONE_ACTOR), uid=10019
    ),
    # `muster backup`: it reads what a backup holds, and can write nothing.
    "backup": Service(
        rights=permission(
            "backup",
            *read(EVENTS_STREAM),
            *(call("STREAM.MSG.GET", stream) for stream in _KEPT_STREAMS),
        ),
        uid=OPERATOR_UID,
    ),
    # `muster restore`, into streams that it makes itself: no service has this password.
    "restore": Service(
        rights=permission(
            "restore",
            *append("log"),
            *read(EVENTS_STREAM),
            ALL_EVENTS,
            ALL_ACTORS,
            ALL_AUDIT,
            ALL_CODE,
            ALL_CREDENTIALS,
            ALL_KEYS,
            WEBHOOKS_STAND,
            *(call("STREAM.CREATE", stream) for stream in (EVENTS_STREAM, *_KEPT_STREAMS)),
            call("STREAM.UPDATE", EVENTS_STREAM),
        ),
        uid=OPERATOR_UID,
    ),
    # `muster user erase`: no service has this password. It deletes where people are named, and nowhere else.
    "erase": Service(
        rights=permission(
            "erase",
            *(call(verb, stream) for stream in ERASED_STREAMS for verb in ("STREAM.MSG.GET", "STREAM.MSG.DELETE")),
            # Whether the person is an administrator.
            *read(EVENTS_STREAM),
            ALL_ACTORS,
            ALL_AUDIT,
            ALL_REFUSALS,
            # Values of their credentials.
            call("STREAM.PURGE", CREDENTIALS_STREAM),
        ),
        uid=OPERATOR_UID,
    ),
    # `muster credentials rotate-key`: no service has this password.
    "rotate": Service(
        rights=permission("rotate", ALL_CREDENTIALS, call("DIRECT.GET", CREDENTIALS_STREAM, ALL_CREDENTIALS)),
        uid=OPERATOR_UID,
    ),
    # What looks after a server from beside it (muster/embedded/keeper.py).
    "keeper": Service(
        rights=Permission(publish=(ALL_ROOMS, ALL_CANARIES, SERVER_HEALTH), subscribe=(f"{inbox_prefix('keeper')}.>",)),
        uid=SERVER_UID,
    ),
}
"""By name. A service's folder is `services/<name>`."""


def of_group(group: Group) -> Sequence[str]:
    """Names of the services of a group, in the order of the table."""
    return [name for name, service in SERVICES.items() if service.group == group]


def saved_chains(service: str) -> frozenset[str]:
    """The kinds of aggregates whose snapshots this service saves: those that it appends to."""
    known = SERVICES.get(service)
    publish = () if known is None else known.rights.publish
    return frozenset(name for name in AGGREGATES if chain_snapshots_filter(name) in publish)
