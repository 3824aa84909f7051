"""Which consumers are to be made and deleted, so that each subscription has one. Pure."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from events.ids import key_of_id


class Plan(NamedTuple):
    make: tuple[str, ...]
    """Subscriptions without a consumer, by id."""
    delete: tuple[str, ...]
    """Consumers of subscriptions that are no more."""


def plan(wanted: Iterable[str], there: AbstractSet[str]) -> Plan:
    """A consumer's name is its subscription's id; consumers with other names are none of ours."""
    subscriptions = frozenset(wanted)
    return Plan(
        make=tuple(sorted(subscriptions - there)),
        delete=tuple(sorted(name for name in there - subscriptions if key_of_id(name) is not None)),
    )
