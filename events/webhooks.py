"""Webhooks: addresses of others that a project's public events are posted to.

A part of the project aggregate: a webhook is its project's, whoever made it, and ends with it. The log holds the number
of its key and never a key: what signs is derived from the number by the service `webhooks`, which alone can.
"""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, Literal, assert_never

import msgspec
from msgspec.structs import replace

from events.decision import Context, Decision
from events.event import Event
from events.ids import DNS_LABEL, incarnation_id, name_suffix, project_key
from events.refusal import Refusal

MAX_OF_PROJECT: Final = 100
"""Each stands in the project's state, which every service holds in memory."""
MAX_IN_ALL: Final = 1_000
"""Every event is held against all webhooks of its project, and each waits for its receiver apart."""
MAX_URL: Final = 2_048
MAX_TYPES: Final = 50
MAX_TYPE: Final = 80
TYPE_PATTERN: Final = re.compile(r"^[A-Za-z0-9*?]{1,80}\Z")
"""The name of a type, or what stands for several: `*` for any characters, `?` for any one."""
OLD_KEY_SIGNS: Final = timedelta(hours=24)
"""After a rotation, deliveries are signed with the key before it, too."""

DisabledBecause = Literal["by_request", "gone", "failing", "too_many_waiting"]
"""`gone`: the receiver answered 410. `failing`: a delivery was tried for days, and no other succeeded meanwhile."""

# -- events ----------------------------------------------------------------------------------------------------------


class WebhookCreated(Event, frozen=True, kw_only=True):
    """Public events of the project are posted to an address from now on."""

    id: str
    """UUID."""
    name: str
    """Unique in the project."""
    url: str
    """Where events are posted to."""
    types: tuple[str, ...] = ()
    """Types of the events, with `*` and `?` for any characters. Empty: all."""
    created_by: str
    """Actor id of who made it."""
    at: datetime
    """When it was decided."""


class WebhookChanged(Event, frozen=True, kw_only=True):
    """Its settings after a change."""

    id: str
    """Of the webhook."""
    url: str
    """As in WebhookCreated."""
    types: tuple[str, ...] = ()
    """As in WebhookCreated."""


class WebhookKeyRotated(Event, frozen=True, kw_only=True):
    """It got a new key. For a day, deliveries are signed with the key before it, too."""

    id: str
    """Of the webhook."""
    number: int
    """Of the new key; the first has 1."""
    at: datetime
    """When it was decided."""


class WebhookDisabled(Event, frozen=True, kw_only=True):
    """Nothing is posted to it any more, until it is enabled."""

    id: str
    """Of the webhook."""
    reason: DisabledBecause
    """Why."""
    at: datetime
    """When it was decided."""


class WebhookEnabled(Event, frozen=True, kw_only=True):
    """Events from now on are posted to it again."""

    id: str
    """Of the webhook."""


class WebhookDeleted(Event, frozen=True, kw_only=True):
    """Nothing is posted to it any more, and its deliveries are forgotten."""

    id: str
    """Of the webhook."""


WebhookEvent = WebhookCreated | WebhookChanged | WebhookKeyRotated | WebhookDisabled | WebhookEnabled | WebhookDeleted

# -- state -----------------------------------------------------------------------------------------------------------


class Webhook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    name: str
    url: str
    types: tuple[str, ...] = ()
    key_number: int = 1
    key_rotated_at: datetime | None = None
    disabled: DisabledBecause | None = None
    disabled_at: datetime | None = None
    created_by: str
    created_at: datetime

    def takes(self, type_: str) -> bool:
        """Whether events of this type are posted to it."""
        return not self.types or any(fits(type_, pattern) for pattern in self.types)

    def signing_keys(self, now: datetime) -> tuple[int, ...]:
        """Numbers of the keys that sign now, the newest first."""
        rotated = self.key_rotated_at
        if rotated is None or now - rotated >= OLD_KEY_SIGNS:
            return (self.key_number,)
        return (self.key_number, self.key_number - 1)


def fits(type_: str, pattern: str) -> bool:
    """Whether a pattern stands for this type. Not by a regular expression: to make one takes milliseconds, a webhook
    can have 50 of them, and the library keeps thousands.
    """
    at = place = 0
    star, taken = -1, 0
    while at < len(type_):
        if place < len(pattern) and pattern[place] == "*":
            star, taken, place = place, at, place + 1
        elif place < len(pattern) and pattern[place] in {"?", type_[at]}:
            at, place = at + 1, place + 1
        elif star >= 0:
            # The last star takes one more; the stars before it need never take more than they did.
            taken += 1
            at, place = taken, star + 1
        else:
            return False
    return not pattern[place:].strip("*")


type Webhooks = dict[str, Webhook]
"""By id."""


def evolve_webhooks(webhooks: Webhooks, event: WebhookEvent) -> Webhooks:
    """The webhooks after one event; the very same where it does not fit them."""
    known = webhooks.get(event.id)
    if isinstance(event, WebhookCreated):
        return webhooks if known is not None else webhooks | {event.id: _made(event)}
    if known is None:
        return webhooks
    match event:
        case WebhookChanged():
            after = replace(known, url=event.url, types=event.types)
        case WebhookKeyRotated():
            after = replace(known, key_number=event.number, key_rotated_at=event.at)
        case WebhookDisabled():
            after = replace(known, disabled=event.reason, disabled_at=event.at)
        case WebhookEnabled():
            after = replace(known, disabled=None, disabled_at=None)
        case WebhookDeleted():
            return {id_: webhook for id_, webhook in webhooks.items() if id_ != event.id}
        case _:
            assert_never(event)
    return webhooks | {event.id: after}


def _made(event: WebhookCreated) -> Webhook:
    return Webhook(
        id=event.id,
        name=event.name,
        url=event.url,
        types=event.types,
        created_by=event.created_by,
        created_at=event.at,
    )


# -- commands and decide ---------------------------------------------------------------------------------------------


class _Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    project_id: str


class CreateWebhook(_Command, frozen=True, kw_only=True):
    url: str
    types: tuple[str, ...] = ()
    name: str = ""
    """Empty: one that nobody has is chosen."""

    def __post_init__(self) -> None:
        """Raises ValueError where these cannot be: nobody but the api has looked at them before."""
        if self.name and not DNS_LABEL.match(self.name):
            raise ValueError("no name of a webhook")
        _check(self.url, self.types)


class ChangeWebhook(_Command, frozen=True, kw_only=True):
    """Set what is given; None leaves it as it is."""

    webhook_id: str
    url: str | None = None
    types: tuple[str, ...] | None = None
    enabled: bool | None = None

    def __post_init__(self) -> None:
        """Raises ValueError, as of CreateWebhook."""
        _check("https://-" if self.url is None else self.url, self.types or ())


class RotateWebhookKey(_Command, frozen=True, kw_only=True):
    webhook_id: str


class DisableWebhook(_Command, frozen=True, kw_only=True):
    """By the service that posts to it, which cannot."""

    webhook_id: str
    reason: DisabledBecause


class DeleteWebhook(_Command, frozen=True, kw_only=True):
    webhook_id: str


WebhookCommand = CreateWebhook | ChangeWebhook | RotateWebhookKey | DisableWebhook | DeleteWebhook


def _check(url: str, types: Iterable[str]) -> None:
    """Raises ValueError where it is no address, or no list of types, whatever the api made of it."""
    if not url.startswith(("https://", "http://")) or len(url) > MAX_URL or not url.isprintable() or " " in url:
        raise ValueError("no address of a webhook")
    patterns = tuple(types)
    if len(patterns) > MAX_TYPES or not all(map(TYPE_PATTERN.match, patterns)):
        raise ValueError("no types of a webhook")


def decide_on_webhook(
    command: WebhookCommand, webhooks: Webhooks, project_name: str, context: Context
) -> Decision[WebhookEvent]:
    if isinstance(command, CreateWebhook):
        return _create(command, webhooks, project_name, context)
    webhook = webhooks.get(command.webhook_id)
    if webhook is None:
        message = f"project {project_name!r} has no webhook {command.webhook_id}"
        return Refusal(code="not_found", message=message)
    match command:
        case ChangeWebhook():
            return _change(command, webhook, context)
        case RotateWebhookKey():
            return (WebhookKeyRotated(id=webhook.id, number=webhook.key_number + 1, at=context.now),)
        case DisableWebhook():
            if webhook.disabled is not None:
                return ()
            return (WebhookDisabled(id=webhook.id, reason=command.reason, at=context.now),)
        case DeleteWebhook():
            return (WebhookDeleted(id=webhook.id),)
        case _:
            assert_never(command)


def _create(command: CreateWebhook, webhooks: Webhooks, project_name: str, context: Context) -> Decision[WebhookEvent]:
    made = incarnation_id(project_key(project_name), context.command_id)
    if made in webhooks:
        return ()
    name = command.name or f"webhook-{name_suffix(context.command_id)}"
    if any(other.name == name for other in webhooks.values()):
        message = f"project {project_name!r} already has a webhook {name!r}; choose another name, or delete it"
        return Refusal(code="name_taken", field="name", message=message)
    if len(webhooks) >= MAX_OF_PROJECT:
        message = f"project {project_name!r} has {len(webhooks)} webhooks, which is the limit; delete one"
        return Refusal(code="too_many_webhooks", message=message)
    return (
        WebhookCreated(
            id=made,
            name=name,
            url=command.url,
            types=command.types,
            created_by=context.actor.id,
            at=context.now,
        ),
    )


def _change(command: ChangeWebhook, webhook: Webhook, context: Context) -> Decision[WebhookEvent]:
    events: list[WebhookEvent] = []
    url = webhook.url if command.url is None else command.url
    types = webhook.types if command.types is None else command.types
    if (url, types) != (webhook.url, webhook.types):
        events.append(WebhookChanged(id=webhook.id, url=url, types=types))
    if command.enabled is True and webhook.disabled is not None:
        events.append(WebhookEnabled(id=webhook.id))
    if command.enabled is False and webhook.disabled is None:
        events.append(WebhookDisabled(id=webhook.id, reason="by_request", at=context.now))
    return tuple(events)


def too_many_in_all() -> Refusal:
    return Refusal(
        code="too_many_webhooks",
        message=f"there are {MAX_IN_ALL} webhooks in all projects together, which is the limit; delete one",
    )
