"""Who may do what on NATS: one table. `nats_config` renders the server's configuration that enforces it.

Deny by default: a service is given the subjects it needs and nothing else, so that a stolen credential of one cannot do
the work of another. Pure: nothing here reads a file or the environment.
"""

from dataclasses import dataclass
from typing import Final

from events.aggregate import AGGREGATES
from events.subjects import (
    ALL_AUDIT,
    ALL_CANARIES,
    ALL_KEYS,
    ALL_OBSERVED,
    ALL_REFUSALS,
    ALL_ROOMS,
    ALL_WANTED,
    AUDIT_STREAM,
    EVENTS_STREAM,
    KEYS_STREAM,
    LOG_STATE,
    OBSERVED_STREAM,
    REFUSALS_STREAM,
    SERVER_HEALTH,
    SNAPSHOTS_STREAM,
    WANTED_STREAM,
    agent_logs_subject,
    aggregate_filter,
    chain_snapshots_filter,
    fold_snapshots_filter,
    observed_filter,
    usage_subject,
    wanted_filter,
)
from services.runtime.calls import call, consumer_names
from services.runtime.declared import DECLARED, DERIVED_STREAMS, SERVER_REPORT_SUBJECT
from services.runtime.inboxes import agent_user, inbox_prefix, logs_inbox

_STREAMS: Final = tuple(declared.name for declared in DECLARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """What one service may publish and subscribe to."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def _read(stream: str) -> tuple[str, ...]:
    """Look at a stream and read single messages."""
    return tuple(call(verb, stream) for verb in ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET"))


def _follow(stream: str, user: str, *filters: str) -> tuple[str, ...]:
    """Read a stream through consumers of one's own; where filters are given, of those subjects only."""
    return tuple(
        subject
        for name in consumer_names(user)
        for subject in (
            call("CONSUMER.CREATE", stream, name, *filters),
            call("CONSUMER.MSG.NEXT", stream, name),
            call("CONSUMER.DELETE", stream, name),
            # Only a follower of the log asks how far its consumer is.
            *((call("CONSUMER.INFO", stream, name),) if stream == EVENTS_STREAM else ()),
        )
    )


_BOOT: Final = (SERVER_REPORT_SUBJECT, *(call("STREAM.INFO", stream) for stream in _STREAMS))
"""What the check at start asks."""

_READ_SNAPSHOTS: Final = _read(SNAPSHOTS_STREAM)


def _append(*aggregates: str) -> tuple[str, ...]:
    """Append to aggregates of these kinds, and so also save snapshots of their chains: who writes a chain's snapshot
    decides what others take for its state.
    """
    appended = (aggregate_filter(aggregate) for aggregate in aggregates)
    return (*appended, *map(chain_snapshots_filter, aggregates), *_READ_SNAPSHOTS)


def _answer(*services: str) -> tuple[str, ...]:
    """Answer requests of these services."""
    return tuple(f"{inbox_prefix(service)}.>" for service in services)


def _permission(service: str, *publish: str, subscribe: tuple[str, ...] = ()) -> Permission:
    return Permission(
        publish=tuple(dict.fromkeys((*_BOOT, *publish))), subscribe=(f"{inbox_prefix(service)}.>", *subscribe)
    )


def _log_follower(service: str, *publish: str, subscribe: tuple[str, ...] = ()) -> Permission:
    """One that follows the log, beside what else it does."""
    return _permission(
        service,
        *publish,
        *_read(EVENTS_STREAM),
        *_follow(EVENTS_STREAM, service),
        *_READ_SNAPSHOTS,
        subscribe=subscribe,
    )


PERMISSIONS: Final[dict[str, Permission]] = {
    "setup": _permission(
        "setup",
        *_append("tenant", "project", "cluster"),
        *_read(EVENTS_STREAM),
        *(call("STREAM.CREATE", stream) for stream in _STREAMS),
    ),
    # Only while a migration runs (services/setup/migrate.py): no service has this password.
    "migrate": _permission("migrate", *(call("STREAM.UPDATE", stream) for stream in _STREAMS)),
    "api": _log_follower(
        "api", "cmd.request.>", "agent.*.logs", LOG_STATE, *_read(AUDIT_STREAM), *_read(REFUSALS_STREAM)
    ),
    "ownership": _log_follower(
        "ownership", "cmd.admitted.>", ALL_AUDIT, ALL_REFUSALS, *_answer("api"), subscribe=("cmd.request.>",)
    ),
    "commands": _log_follower(
        "commands",
        *_append("workload", "cluster", "project", "tenant", "void"),
        *_answer("api", "auto_deletion", "cluster_sync", "scheduler", "setup"),
        ALL_KEYS,
        call("STREAM.MSG.GET", KEYS_STREAM),
        ALL_CANARIES,
        SERVER_HEALTH,
        fold_snapshots_filter("commands"),
        subscribe=("cmd.admitted.>", "cmd.system.*.>", LOG_STATE, ALL_ROOMS),
    ),
    "scheduler": _log_follower("scheduler", *_append("workload", "node"), fold_snapshots_filter("scheduler")),
    "cluster_sync": _log_follower(
        "cluster_sync",
        *_append("workload", "node", "cluster"),
        fold_snapshots_filter("cluster_sync"),
        ALL_WANTED,
        *_follow(OBSERVED_STREAM, "cluster_sync"),
        *_follow(WANTED_STREAM, "cluster_sync"),
        *(call("STREAM.CREATE", stream) for stream in DERIVED_STREAMS),
    ),
    "agent": _permission(
        "agent",
        ALL_OBSERVED,
        "usage.*",
        f"{logs_inbox('*')}.*",
        *_follow(WANTED_STREAM, "agent", ALL_WANTED),
        subscribe=("agent.*.logs",),
    ),
    "auto_deletion": _permission("auto_deletion", "cmd.system.auto_deletion.DeleteWorkload"),
    "projector": _log_follower("projector", subscribe=("usage.*",)),
    "operator": _log_follower("operator", *_read(AUDIT_STREAM), *_read(REFUSALS_STREAM)),
    # What looks after a server from beside it (muster/embedded/keeper.py).
    "keeper": Permission(publish=(ALL_ROOMS, ALL_CANARIES, SERVER_HEALTH), subscribe=(f"{inbox_prefix('keeper')}.>",)),
}
"""One entry per service; the user's name is the service's. From this follows also what passes between accounts."""


def agent_permission(cluster_id: str) -> Permission:
    """What the agent of one cluster may do, in the account AGENTS.

    Its consumers have names of its own, and the filter stands in the subject that makes one: the server holds the
    request to both. What streams and servers say of themselves is not for it: that names other clusters' pods.
    """
    user = agent_user(cluster_id)
    return Permission(
        publish=(
            observed_filter(cluster_id),
            usage_subject(cluster_id),
            f"{logs_inbox(cluster_id)}.*",
            *_follow(WANTED_STREAM, user, wanted_filter(cluster_id)),
        ),
        subscribe=(f"{inbox_prefix(user)}.>", agent_logs_subject(cluster_id)),
    )


def saved_chains(service: str) -> frozenset[str]:
    """The kinds of aggregates whose snapshots this service saves: those that it appends to."""
    permission = PERMISSIONS.get(service)
    publish = () if permission is None else permission.publish
    return frozenset(name for name in AGGREGATES if chain_snapshots_filter(name) in publish)
