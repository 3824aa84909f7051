"""Who may do what on NATS, and the server's configuration that enforces it.

Deny by default: a service is given the subjects it needs and nothing else, so that a stolen credential of one cannot do
the work of another. Pure text: nothing here reads a file or the environment.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from events.subjects import (
    ALL_AUDIT,
    ALL_OBSERVED,
    ALL_SNAPSHOTS,
    ALL_WANTED,
    AUDIT_STREAM,
    EVENTS_STREAM,
    OBSERVED_STREAM,
    SNAPSHOTS_STREAM,
    WANTED_STREAM,
    agent_logs_subject,
    aggregate_filter,
    observed_filter,
    usage_subject,
    wanted_filter,
)
from services.runtime.connection import AGENTS_API, JETSTREAM_API, agent_user, inbox_prefix, logs_inbox
from services.runtime.streams import DERIVED_STREAMS, SERVER_REPORT_SUBJECT, SYNC_TAG

_SYSTEM_REPORT: Final = "$SYS.REQ.SERVER.PING.JSZ"

AGENTS_FILE: Final = "agents.conf"
"""Beside `deploy/nats/nats.conf`: `users: [ … ]` of the account AGENTS."""

_STREAMS: Final = (EVENTS_STREAM, WANTED_STREAM, OBSERVED_STREAM, AUDIT_STREAM, SNAPSHOTS_STREAM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """What one service may publish and subscribe to."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def _read(stream: str) -> tuple[str, ...]:
    """Look at a stream and read single messages."""
    return (
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.STREAM.MSG.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}.>",
    )


def _follow(stream: str) -> tuple[str, ...]:
    """Read a stream through consumers of one's own."""
    return (
        *_read(stream),
        f"$JS.API.CONSUMER.CREATE.{stream}.>",
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.>",
        f"$JS.API.CONSUMER.INFO.{stream}.>",
        f"$JS.API.CONSUMER.DELETE.{stream}.>",
    )


_BOOT: Final = (SERVER_REPORT_SUBJECT, *(f"$JS.API.STREAM.INFO.{stream}" for stream in _STREAMS))
"""What the check at start asks."""

_READ_SNAPSHOTS: Final = _read(SNAPSHOTS_STREAM)
_WRITE_SNAPSHOTS: Final = (*_READ_SNAPSHOTS, ALL_SNAPSHOTS)
"""Only for those who may append anyway: who writes a chain's snapshot decides what others take for its state."""


def _append(*aggregates: str) -> tuple[str, ...]:
    return tuple(aggregate_filter(aggregate) for aggregate in aggregates)


def _answer(*services: str) -> tuple[str, ...]:
    """Answer requests of these services."""
    return tuple(f"{inbox_prefix(service)}.>" for service in services)


def _permission(service: str, *publish: str, subscribe: tuple[str, ...] = ()) -> Permission:
    return Permission(
        publish=tuple(dict.fromkeys((*_BOOT, *publish))), subscribe=(f"{inbox_prefix(service)}.>", *subscribe)
    )


PERMISSIONS: Final[dict[str, Permission]] = {
    "setup": _permission(
        "setup",
        *_append("tenant", "project", "cluster"),
        *_follow(EVENTS_STREAM),
        *_WRITE_SNAPSHOTS,
        *(f"$JS.API.STREAM.CREATE.{stream}" for stream in _STREAMS),
        # To raise the log's limit; the server never lets go of deny_delete and deny_purge by it.
        f"$JS.API.STREAM.UPDATE.{EVENTS_STREAM}",
    ),
    "api": _permission(
        "api",
        "cmd.request.>",
        "agent.*.logs",
        *_follow(EVENTS_STREAM),
        *_follow(AUDIT_STREAM),
        *_READ_SNAPSHOTS,
    ),
    "ownership": _permission(
        "ownership",
        "cmd.admitted.>",
        ALL_AUDIT,
        *_answer("api"),
        *_follow(EVENTS_STREAM),
        *_READ_SNAPSHOTS,
        subscribe=("cmd.request.>",),
    ),
    "commands": _permission(
        "commands",
        *_append("workload", "cluster", "project", "tenant"),
        *_answer("api", "auto_deletion", "cluster_sync", "scheduler", "setup"),
        ALL_AUDIT,
        *_follow(EVENTS_STREAM),
        *_WRITE_SNAPSHOTS,
        subscribe=("cmd.admitted.>", "cmd.system.*.>"),
    ),
    "scheduler": _permission("scheduler", *_append("workload", "node"), *_follow(EVENTS_STREAM), *_WRITE_SNAPSHOTS),
    "cluster_sync": _permission(
        "cluster_sync",
        *_append("workload", "node", "cluster"),
        ALL_WANTED,
        *_follow(EVENTS_STREAM),
        *_follow(OBSERVED_STREAM),
        *_follow(WANTED_STREAM),
        *_WRITE_SNAPSHOTS,
        *(f"$JS.API.STREAM.CREATE.{stream}" for stream in DERIVED_STREAMS),
    ),
    "agent": _permission(
        "agent",
        ALL_OBSERVED,
        "usage.*",
        f"{logs_inbox('*')}.*",
        *_follow(WANTED_STREAM),
        subscribe=("agent.*.logs",),
    ),
    "auto_deletion": _permission("auto_deletion", "cmd.system.auto_deletion.DeleteWorkload", *_read(EVENTS_STREAM)),
    "projector": _permission("projector", *_follow(EVENTS_STREAM), *_READ_SNAPSHOTS, subscribe=("usage.*",)),
    "operator": _permission("operator", *_follow(EVENTS_STREAM), *_follow(AUDIT_STREAM)),
}
"""One line per service; the user's name is the service's."""

_CREATE_CONSUMER: Final = f"CONSUMER.CREATE.{WANTED_STREAM}.*.{ALL_WANTED}"
_PULL: Final = f"CONSUMER.MSG.NEXT.{WANTED_STREAM}.*"
_DELETE_CONSUMER: Final = f"CONSUMER.DELETE.{WANTED_STREAM}.*"


def agent_permission(cluster_id: str) -> Permission:
    """What the agent of one cluster may do, in the account AGENTS.

    A consumer's filter stands in the subject that makes it, and the server holds the request to that. Consumers of
    others have names that cannot be guessed, and nothing here lists them. What streams and servers say of themselves is
    not for it: that names other clusters' pods.
    """
    return Permission(
        publish=(
            observed_filter(cluster_id),
            usage_subject(cluster_id),
            f"{logs_inbox(cluster_id)}.*",
            f"{AGENTS_API}.CONSUMER.CREATE.{WANTED_STREAM}.*.{wanted_filter(cluster_id)}",
            f"{AGENTS_API}.{_PULL}",
            f"{AGENTS_API}.{_DELETE_CONSUMER}",
        ),
        subscribe=(f"{inbox_prefix(agent_user(cluster_id))}.>", agent_logs_subject(cluster_id)),
    )


def writes_snapshots(service: str) -> bool:
    permission = PERMISSIONS.get(service)
    return permission is not None and ALL_SNAPSHOTS in permission.publish


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMember:
    """One of the servers of a cluster."""

    name: str
    route_host: str
    route_port: int
    routes: tuple[str, ...]
    """`nats-route://host:port` of all members."""


def render_nats_config(
    *,
    passwords: Mapping[str, str],
    agents: Mapping[str, str] | None = None,
    agents_file: str = "",
    store_dir: str,
    host: str = "127.0.0.1",
    port: int = 4222,
    monitor_port: int | None = None,
    server_name: str = "muster",
    max_file_store: str = "16GB",
    max_memory_store: str = "1GB",
    member: ClusterMember | None = None,
    all_powerful: str | None = None,
) -> str:
    """The server's whole configuration file.

    `passwords` holds one per service, in clear, as a bcrypt hash, or as `$VARIABLE` of the server's environment;
    `all_powerful` names a user among them who may do everything in the account (tests only). `agents` holds one per
    cluster id that has an agent of its own; instead, `agents_file` names a file beside this one with their users.
    """
    users = [_user(service, permission, passwords[service]) for service, permission in PERMISSIONS.items()]
    if all_powerful is not None:
        users.append(f"      {{ user: {all_powerful}, password: {_text(passwords[all_powerful])} }}")
    return "\n".join(
        [
            "# Rendered by services/runtime/permissions.py: change it there.",
            f"server_name: {_text(server_name)}",
            f"host: {_text(host)}",
            f"port: {port}",
            *([f'http: "127.0.0.1:{monitor_port}"'] if monitor_port is not None else []),
            "max_payload: 1MB",
            "# Worn only by servers that sync every write; the log is placed on no other.",
            f'server_tags: ["{SYNC_TAG}"]',
            "jetstream {",
            f"  store_dir: {_text(store_dir)}",
            "  # Never an interval: with any other value, a power cut loses what was acknowledged.",
            "  sync_interval: always",
            f"  max_file_store: {max_file_store}",
            f"  max_memory_store: {max_memory_store}",
            "  strict: true",
            "  limits { batch { max_msgs: 1000, max_inflight_per_stream: 50, timeout: 10s } }",
            "}",
            *(_cluster(member) if member is not None else []),
            "accounts {",
            "  SYS {",
            f'    exports: [ {{ service: "{_SYSTEM_REPORT}", response_type: stream, accounts: [MUSTER] }} ]',
            "  }",
            *_agents_account(agents or {}, agents_file),
            "  MUSTER {",
            "    jetstream: enabled",
            "    exports: [",
            *(
                f"      {{ {kind}: {_text(theirs)}{options}, accounts: [AGENTS] }}"
                for kind, theirs, _, options in _SHARED
            ),
            "    ]",
            "    # How every server says whether it syncs every write: asked by every service at its start.",
            "    imports: [",
            f'      {{ service: {{ account: SYS, subject: "{_SYSTEM_REPORT}" }}, to: "{SERVER_REPORT_SUBJECT}" }}',
            "    ]",
            "    users: [",
            *users,
            "    ]",
            "  }",
            "}",
            "system_account: SYS",
            "",
        ]
    )


_SHARED: Final = (
    # kind, subject in MUSTER, subject in AGENTS, options of the export
    ("stream", "agent.*.logs", "agent.*.logs", ""),
    ("service", ALL_OBSERVED, ALL_OBSERVED, ""),
    ("service", "usage.*", "usage.*", ""),
    # Answered only where the reader of logs is gone; the server need not remember for long where to send that.
    ("service", f"{logs_inbox('*')}.*", f"{logs_inbox('*')}.*", ', response_threshold: "5s"'),
    ("service", f"{JETSTREAM_API}.{_CREATE_CONSUMER}", f"{AGENTS_API}.{_CREATE_CONSUMER}", ""),
    ("service", f"{JETSTREAM_API}.{_PULL}", f"{AGENTS_API}.{_PULL}", ", response_type: stream"),
    ("service", f"{JETSTREAM_API}.{_DELETE_CONSUMER}", f"{AGENTS_API}.{_DELETE_CONSUMER}", ""),
)
"""All that passes between the services' account and the agents'."""


def _agents_account(agents: Mapping[str, str], agents_file: str) -> list[str]:
    """Agents have an account of their own: an answer goes wherever the request says, and who asks needs no right for
    that. In the services' account, an answer sent to `ev.workload.x` would stand in the log.
    """
    users = [agent_user_block(cluster_id, password) for cluster_id, password in sorted(agents.items())]
    return [
        "  # Agents with a cluster of their own, apart from the services: where an answer goes is for the asker to",
        "  # say, and here no stream listens.",
        "  AGENTS {",
        "    imports: [",
        *(
            f"      {{ {kind}: {{ account: MUSTER, subject: {_text(theirs)} }}, to: {_text(ours)} }}"
            for kind, theirs, ours, _ in _SHARED
        ),
        "    ]",
        *([f"    include {_text(agents_file)}"] if agents_file else ["    users: [", *users, "    ]"]),
        "  }",
    ]


def agent_user_block(cluster_id: str, password: str) -> str:
    """The entry of one agent in the list of users."""
    return _user(agent_user(cluster_id), agent_permission(cluster_id), password)


def _cluster(member: ClusterMember) -> list[str]:
    return [
        "cluster {",
        "  name: muster",
        f"  host: {_text(member.route_host)}",
        f"  port: {member.route_port}",
        f"  routes: [{', '.join(_text(route) for route in member.routes)}]",
        "}",
    ]


def _user(service: str, permission: Permission, password: str) -> str:
    lines = [
        f"      {{ user: {service}, password: {_text(password)}, permissions: {{",
        "        publish: { allow: [",
        *(f"          {_text(subject)}" for subject in permission.publish),
        "        ] }",
        "        subscribe: { allow: [",
        *(f"          {_text(subject)}" for subject in permission.subscribe),
        "        ] }",
        "      } }",
    ]
    return "\n".join(lines)


def _text(value: str) -> str:
    """A quoted string of the configuration language; a `$VARIABLE` stays one."""
    if value.startswith("$MUSTER_"):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def deployed_nats_config() -> str:
    """`deploy/nats/nats.conf`, for compose and for one server elsewhere. The server takes the passwords from its
    environment; each must begin with a letter, since the server reads a value like `12e4` as a number. The users of
    agents stand in a file that its operator writes (`muster cluster agent`).
    """
    passwords = {service: f"$MUSTER_NATS_PASSWORD_{service.upper()}" for service in PERMISSIONS}
    return render_nats_config(
        passwords=passwords,
        agents_file=AGENTS_FILE,
        store_dir="/data",
        host="0.0.0.0",  # noqa: S104
        monitor_port=8222,
    )


if __name__ == "__main__":
    sys.stdout.write(deployed_nats_config())
