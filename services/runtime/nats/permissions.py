"""Rights on NATS: the words that the table of services is written with, and what the agent of one cluster may do.

Deny by default: a service is given the subjects it needs and nothing else, so that a stolen credential of one cannot do
the work of another. Pure: nothing here reads a file or the environment.
"""

from dataclasses import dataclass
from typing import Final

from events.subjects import (
    ACTORS_STREAM,
    CODE_STREAM,
    EVENTS_STREAM,
    FEED_STREAM,
    SNAPSHOTS_STREAM,
    WANTED_STREAM,
    agent_exec_subject,
    agent_logs_subject,
    agent_recipes_subject,
    aggregate_filter,
    chain_snapshots_filter,
    code_filter,
    observed_filter,
    recipes_subject,
    usage_subject,
    wanted_filter,
)
from events.subscriptions import DOMAIN, inbox_of
from services.runtime.nats.calls import call, consumer_names
from services.runtime.nats.declared import DECLARED, SERVER_REPORT_SUBJECT
from services.runtime.nats.inboxes import agent_user, exec_inbox, inbox_prefix, logs_inbox

_STREAMS: Final = tuple(declared.name for declared in DECLARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """What one service may publish and subscribe to."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def read(stream: str) -> tuple[str, ...]:
    """To look at a stream and read single messages."""
    return tuple(call(verb, stream) for verb in ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET"))


def follow(stream: str, user: str, *filters: str) -> tuple[str, ...]:
    """To read a stream through consumers of one's own; where filters are given, of those subjects only."""
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

READ_ONE_ACTOR: Final = call("STREAM.MSG.GET", ACTORS_STREAM)
"""Whom one id means, or which one somebody has, as the stream's leader has it."""
_READ_SNAPSHOTS: Final = read(SNAPSHOTS_STREAM)


def read_code(subjects: str) -> str:
    """To read code by its subject."""
    return call("DIRECT.GET", CODE_STREAM, subjects)


def actors(user: str) -> tuple[str, ...]:
    """To know whom the ids in the log mean."""
    return (READ_ONE_ACTOR, *follow(ACTORS_STREAM, user))


def append(*aggregates: str) -> tuple[str, ...]:
    """To append to aggregates of these kinds, and so also save snapshots of their chains: who writes a chain's snapshot
    decides what others take for its state.
    """
    appended = (aggregate_filter(aggregate) for aggregate in aggregates)
    return (*appended, *map(chain_snapshots_filter, aggregates), *_READ_SNAPSHOTS)


def answer(*services: str) -> tuple[str, ...]:
    """To answer requests of these services."""
    return tuple(f"{inbox_prefix(service)}.>" for service in services)


def permission(service: str, *publish: str, subscribe: tuple[str, ...] = ()) -> Permission:
    """Of a service: what every one may, and this."""
    return Permission(
        publish=tuple(dict.fromkeys((*_BOOT, *publish))), subscribe=(f"{inbox_prefix(service)}.>", *subscribe)
    )


def log_follower(service: str, *publish: str, subscribe: tuple[str, ...] = ()) -> Permission:
    """Of a service that follows the log, beside what else it does."""
    return permission(
        service,
        *publish,
        *read(EVENTS_STREAM),
        *follow(EVENTS_STREAM, service),
        *_READ_SNAPSHOTS,
        subscribe=subscribe,
    )


SERVER_KICK: Final = "muster.servers.*.kick"
"""Where the server with this id cuts a connection; imported from the system account (nats_config.py)."""


def manage_feed_consumers() -> tuple[str, ...]:
    """To make and delete any consumer of FEED, and to look at all of them."""
    return (
        call("STREAM.MSG.GET", FEED_STREAM),
        call("CONSUMER.CREATE", FEED_STREAM, "*", "feed", "*", "*", "*"),
        call("CONSUMER.DELETE", FEED_STREAM, "*"),
        call("CONSUMER.LIST", FEED_STREAM),
        call("CONSUMER.RESET", FEED_STREAM, "*"),
    )


def subscriber_permission(subscription_id: str) -> Permission:
    """What a subscriber may do, in the account SUBS: read through its own consumer, whose name is its id, and put that
    back as far as it may read. Nothing that names another consumer, and no inbox but its own.
    """
    asked = (
        f"$JS.{DOMAIN}.API.CONSUMER.{verb}.{FEED_STREAM}.{subscription_id}" for verb in ("MSG.NEXT", "INFO", "RESET")
    )
    return Permission(
        publish=(*asked, f"$JS.ACK.{FEED_STREAM}.{subscription_id}.>"),
        subscribe=(f"{inbox_of(subscription_id)}.>",),
    )


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
            recipes_subject(cluster_id),
            f"{logs_inbox(cluster_id)}.*",
            f"{exec_inbox(cluster_id)}.*",
            *follow(WANTED_STREAM, user, wanted_filter(cluster_id)),
            read_code(code_filter(cluster_id)),
        ),
        subscribe=(
            f"{inbox_prefix(user)}.>",
            agent_logs_subject(cluster_id),
            agent_exec_subject(cluster_id),
            agent_recipes_subject(cluster_id),
        ),
    )
