"""What entries of a cluster's calendar share: which nodes they are about, and which times they can have. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol

from events.node import Node
from events.refusal import Refusal

DEFAULT_LEAD_SECONDS: Final = 24 * 3600
"""For so long before it begins nothing is let in that could still run then."""
MOST_LEAD: Final = timedelta(days=60)
MOST_AHEAD: Final = timedelta(days=366)
LONGEST: Final = timedelta(days=366)
SHORTEST: Final = timedelta(minutes=1)
MOST_NODES_NAMED: Final = 1_000
MOST_POOLS_NAMED: Final = 20
MOST_LABELS_NAMED: Final = 10
KEPT_AFTER_END: Final = timedelta(days=30)
"""So long one that is over can be seen in the list."""


class AboutNodes(Protocol):
    """Nodes to which all fits that is said of them."""

    @property
    def nodes(self) -> tuple[str, ...]: ...
    @property
    def node_pools(self) -> tuple[str, ...]: ...
    @property
    def labels(self) -> dict[str, str]: ...


class Asked(AboutNodes, Protocol):
    """An entry as somebody wants it."""

    @property
    def starts_at(self) -> datetime: ...
    @property
    def ends_at(self) -> datetime: ...
    @property
    def lead_seconds(self) -> int: ...


def is_about(entry: AboutNodes, node: Node) -> bool:
    return (
        (not entry.nodes or node.name in entry.nodes)
        and (not entry.node_pools or node.facts.pool in entry.node_pools)
        and entry.labels.items() <= node.facts.labels.items()
    )


def forgotten[T: Asked](over: Sequence[T], now: datetime, room: int) -> list[T]:
    """Of entries that are over, those that no list has any more: that are over for long, and those that were over first
    where there is room for fewer.
    """
    last_first = sorted(over, key=lambda each: each.ends_at, reverse=True)
    return [each for index, each in enumerate(last_first) if index >= room or now - each.ends_at > KEPT_AFTER_END]


def check(asked: Asked) -> None:
    """Raises ValueError where an entry cannot be so: nobody but the api has looked at it before."""
    if asked.starts_at.tzinfo is None or asked.ends_at.tzinfo is None:
        raise ValueError("a time without a zone")
    if not (asked.nodes or asked.node_pools or asked.labels):
        raise ValueError("no nodes")
    if not 0 <= asked.lead_seconds <= MOST_LEAD.total_seconds():
        raise ValueError("no such lead")
    most = (asked.nodes, MOST_NODES_NAMED), (asked.node_pools, MOST_POOLS_NAMED), (asked.labels, MOST_LABELS_NAMED)
    if any(len(given) > limit for given, limit in most):
        raise ValueError("too many are named")


def wrong(
    asked: Asked, pools: Sequence[str], cluster: str, now: datetime, *, comes_again: bool = False
) -> Refusal | None:
    """What holds for all entries.

    Args:
        pools: names of the node pools that there are.
        cluster: name of the cluster.
        comes_again: whether its first time may be over.
    """
    if asked.ends_at <= asked.starts_at:
        return invalid("endsAt", f"must be after startsAt, {told(asked.starts_at)}; got {told(asked.ends_at)}")
    if asked.ends_at - asked.starts_at < SHORTEST:
        return invalid("endsAt", f"must be at least a minute after startsAt, got {told(asked.ends_at)}")
    if asked.ends_at <= now and not comes_again:
        return invalid("endsAt", f"must be a time to come; now it is {told(now)}, got {told(asked.ends_at)}")
    if asked.starts_at > now + MOST_AHEAD:
        return invalid("startsAt", f"must be at most {MOST_AHEAD.days} days from now, got {told(asked.starts_at)}")
    unknown = sorted(set(asked.node_pools) - set(pools))
    if unknown:
        return invalid("nodePools", f"cluster {cluster!r} has no node pool {unknown[0]!r}; it has {', '.join(pools)}")
    return None


def invalid(field: str, message: str) -> Refusal:
    return Refusal(code="invalid", field=field, message=message)


def told(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
