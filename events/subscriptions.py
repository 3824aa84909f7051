"""Subscriptions: programs of others that read a project's public events, each with a key of its own.

A part of the project aggregate: a subscription is its project's, whoever made it, and ends with it. The log holds the
public half of its key, which lets nobody in. What it means on NATS is said here once, for all who must agree on it.
"""

import re
from datetime import datetime
from typing import Final, assert_never

import msgspec

from events.decision import Context, Decision
from events.event import Event
from events.ids import DNS_LABEL, incarnation_id, name_suffix, project_key
from events.refusal import Refusal

MAX_OF_PROJECT: Final = 100
"""Each stands in the project's state, which every service holds in memory."""
MAX_IN_ALL: Final = 1_000
"""Each is a consumer of the stream FEED. A thousand that are idle take 50 MB of a server, and make publishing a fifth
slower."""
PUBLIC_KEY_PATTERN: Final = re.compile(r"^U[A-Z2-7]{55}\Z")
"""The public half of a user's key, as NATS writes it."""
DOMAIN: Final = "feed"
"""Subscribers ask JetStream under `$JS.feed.API`, which clients call the domain."""


def inbox_of(subscription_id: str) -> str:
    """The prefix of the only inboxes that a subscriber may listen on."""
    return f"_INBOX_{subscription_id}"


# -- events ----------------------------------------------------------------------------------------------------------


class SubscriptionCreated(Event, frozen=True, kw_only=True):
    """A program may read the public events of the project."""

    id: str
    """UUID. Also the name of its consumer on the stream FEED."""
    name: str
    """Unique in the project."""
    public_key: str
    """The public half of its key, as NATS writes it. It lets nobody in."""
    from_seq: int
    """Sequence of the log from which on it may read."""
    created_by: str
    """Actor id of who made it."""
    at: datetime
    """When it was decided."""


class SubscriptionDeleted(Event, frozen=True, kw_only=True):
    """It may read nothing any more."""

    id: str
    """Of the subscription."""


SubscriptionEvent = SubscriptionCreated | SubscriptionDeleted

# -- state -----------------------------------------------------------------------------------------------------------


class Subscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    name: str
    public_key: str
    from_seq: int
    created_by: str
    created_at: datetime


type Subscriptions = dict[str, Subscription]
"""By id."""


def evolve_subscriptions(subscriptions: Subscriptions, event: SubscriptionEvent) -> Subscriptions:
    """The subscriptions after one event; the very same where it does not fit them."""
    match event:
        case SubscriptionCreated():
            if event.id in subscriptions:
                return subscriptions
            made = Subscription(
                id=event.id,
                name=event.name,
                public_key=event.public_key,
                from_seq=event.from_seq,
                created_by=event.created_by,
                created_at=event.at,
            )
            return subscriptions | {event.id: made}
        case SubscriptionDeleted():
            if event.id not in subscriptions:
                return subscriptions
            return {id_: subscription for id_, subscription in subscriptions.items() if id_ != event.id}
        case _:
            assert_never(event)


# -- commands and decide ---------------------------------------------------------------------------------------------


class _Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    project_id: str


class CreateSubscription(_Command, frozen=True, kw_only=True):
    public_key: str
    from_seq: int
    """Sequence of the log; whoever asks by time has it looked up first."""
    name: str = ""
    """Empty: one that nobody has is chosen."""

    def __post_init__(self) -> None:
        """Raises ValueError where these cannot be: nobody but the api has looked at them before."""
        if self.name and not DNS_LABEL.match(self.name):
            raise ValueError("no name of a subscription")
        if not PUBLIC_KEY_PATTERN.match(self.public_key):
            raise ValueError("no public key of a user of NATS")
        if self.from_seq < 1:
            raise ValueError("no sequence of the log")


class DeleteSubscription(_Command, frozen=True, kw_only=True):
    subscription_id: str


SubscriptionCommand = CreateSubscription | DeleteSubscription


def decide_on_subscription(
    command: SubscriptionCommand, subscriptions: Subscriptions, project_name: str, context: Context
) -> Decision[SubscriptionEvent]:
    match command:
        case CreateSubscription():
            return _create(command, subscriptions, project_name, context)
        case DeleteSubscription():
            if command.subscription_id not in subscriptions:
                message = f"project {project_name!r} has no subscription {command.subscription_id}"
                return Refusal(code="not_found", message=message)
            return (SubscriptionDeleted(id=command.subscription_id),)
        case _:
            assert_never(command)


def _create(
    command: CreateSubscription, subscriptions: Subscriptions, project_name: str, context: Context
) -> Decision[SubscriptionEvent]:
    made = incarnation_id(project_key(project_name), context.command_id)
    if made in subscriptions:
        return ()
    name = command.name or f"subscription-{name_suffix(context.command_id)}"
    if any(other.name == name for other in subscriptions.values()):
        message = f"project {project_name!r} already has a subscription {name!r}; choose another name, or delete it"
        return Refusal(code="name_taken", field="name", message=message)
    if len(subscriptions) >= MAX_OF_PROJECT:
        message = f"project {project_name!r} has {len(subscriptions)} subscriptions, which is the limit; delete one"
        return Refusal(code="too_many_subscriptions", message=message)
    return (
        SubscriptionCreated(
            id=made,
            name=name,
            public_key=command.public_key,
            from_seq=command.from_seq,
            created_by=context.actor.id,
            at=context.now,
        ),
    )


def too_many_in_all() -> Refusal:
    return Refusal(
        code="too_many_subscriptions",
        message=f"there are {MAX_IN_ALL} subscriptions in all projects together, which is the limit; delete one",
    )
