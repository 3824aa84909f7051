"""Answers about webhooks."""

from typing import Literal

from events.webhooks import DisabledBecause
from services.api.answers.forms import Form, Uuid
from services.api.shown_events import Moment


class Webhook(Form, frozen=True, kw_only=True):
    """An address that the public events of one project are posted to."""

    id: Uuid
    """Id of the webhook."""
    name: str
    """Unique in the project."""
    project_id: Uuid
    """Id of the project whose events are posted."""
    project_name: str
    """Name of that project."""
    url: str
    """Where they are posted to."""
    types: list[str]
    """Types of the events, with `*` and `?` for any characters. Empty: all."""
    enabled: bool
    """Whether anything is posted."""
    disabled_because: DisabledBecause | None
    """Why nothing is. `gone`: the receiver answered 410. `failing`: a delivery failed for days, and no other succeeded
    meanwhile. `too_many_waiting`: more than 50,000 events wait. Null: it is enabled."""
    disabled_at: Moment | None
    """Since when. Null: it is enabled."""
    secret_rotated_at: Moment | None
    """When it last got a new secret. Null: it has its first."""
    created_by: str
    """Subject of its creator."""
    created_at: Moment
    """When it was created."""


class Webhooks(Form, frozen=True, kw_only=True):
    """The webhooks that the caller may manage."""

    webhooks: list[Webhook]
    """By project and name."""


class WebhookSecret(Form, frozen=True, kw_only=True):
    """A webhook's secret, shown this once."""

    id: Uuid
    """Id of the webhook."""
    name: str
    """Unique in the project."""
    project_id: Uuid
    """Id of the project whose events are posted."""
    url: str
    """Where they are posted to."""
    secret: str | None
    """With which its receiver checks signatures: `whsec_` and Base64. Null where this request was carried out before,
    and the webhook has got another secret since."""
    message: str
    """What to do with it."""


class WebhookTry(Form, frozen=True, kw_only=True):
    """One request to the receiver."""

    at: Moment
    """When it was sent."""
    status: int | None
    """Status of the answer. Null: there was no answer."""
    error: str
    """Why there was none, or what was wrong with it. Empty: nothing."""
    excerpt: str
    """How an answer began that was no success, at most 200 characters."""
    seconds: float
    """How long it took."""


class WebhookDelivery(Form, frozen=True, kw_only=True):
    """One event for one webhook."""

    number: int
    """Names the delivery."""
    event_id: str
    """Id of the event, as in `webhook-id`."""
    type: str
    """Type of the event."""
    state: Literal["waiting", "delivered", "parked", "failed"]
    """`waiting`: to be tried, or tried again. `parked`: given up until it is asked for again. `failed`: a test."""
    created_at: Moment
    """When it was taken in."""
    due_at: Moment | None
    """When it is tried next. Null: it is not."""
    tries: list[WebhookTry]
    """The oldest first; at most the last 20."""


class WebhookDeliveries(Form, frozen=True, kw_only=True):
    """Deliveries of one webhook."""

    deliveries: list[WebhookDelivery]
    """The newest first."""
    next: int | None
    """Give it as `before` for older ones. Null: there are none."""


class WebhookRedelivered(Form, frozen=True, kw_only=True):
    """What is delivered again."""

    count: int
    """How many deliveries."""
