"""Answers about subscriptions."""

from services.api.answers.forms import Form, Uuid
from services.api.shown_events import Moment


class _Reader(Form, frozen=True, kw_only=True):
    id: Uuid
    """Id of the subscription."""
    name: str
    """Unique in the project."""
    project_id: Uuid
    """Id of the project whose events it reads."""
    url: str
    """Address of the NATS server."""
    domain: str
    """Domain of JetStream: what clients ask for the stream in."""
    inbox_prefix: str
    """Prefix of the only inboxes that its reader may listen on."""
    stream: str
    """Name of the stream."""
    consumer: str
    """Name of its durable pull consumer."""
    subjects: list[str]
    """Subjects that it reads."""
    from_sequence: int
    """Sequence of the log from which on it may read."""


class Subscription(_Reader, frozen=True, kw_only=True):
    """A program that reads the public events of one project."""

    project_name: str
    """Name of that project."""
    pending: int | None
    """Events that its reader was not sent yet. Null: not known now."""
    unacknowledged: int | None
    """Events that its reader was sent and has not acknowledged. Null: not known now."""
    last_delivered_at: Moment | None
    """When its reader was last sent an event. Null: never, or not known now."""
    created_by: str
    """Subject of its creator."""
    created_at: Moment
    """When it was created."""


class Subscriptions(Form, frozen=True, kw_only=True):
    """The subscriptions that the caller may manage."""

    subscriptions: list[Subscription]
    """By project and name."""


class SubscriptionKey(_Reader, frozen=True, kw_only=True):
    """All that a reader needs, with its seed, shown this once."""

    seed: str | None
    """The secret with which its reader signs in; null where this request was carried out before, since no seed is
    kept."""
    message: str
    """What to do with it."""
