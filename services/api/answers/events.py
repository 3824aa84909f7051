"""Answers about public events."""

from typing import TYPE_CHECKING, Final, Union

import msgspec
from msgspec import UNSET, UnsetType

from events.public.cloudevents import type_of
from events.public.registry import PUBLIC_EVENTS
from services.api.answers.forms import Form
from services.api.shown_events import Moment


class EventTicket(Form, frozen=True, kw_only=True):
    """Opens one stream of public events."""

    ticket: str
    """What the stream is given as the parameter `ticket`."""
    expires_at: Moment
    """Until when the stream must be opened."""


class _CloudEvent(Form, frozen=True, kw_only=True):
    """A public event, as a CloudEvent in its JSON form."""

    specversion: str
    id: str
    source: str
    subject: str | UnsetType = UNSET
    time: Moment
    datacontenttype: str
    dataschema: str
    sequence: str
    previous: str | UnsetType = UNSET


_CLOUD_EVENTS: Final = tuple(
    msgspec.defstruct(
        f"{name}PublicEvent",
        [("data", event)],
        bases=(_CloudEvent,),
        namespace={"__doc__": event.__doc__},
        module=__name__,
        frozen=True,
        kw_only=True,
        tag_field="type",
        tag=type_of(event),
    )
    for name, event in PUBLIC_EVENTS.items()
)

if TYPE_CHECKING:
    type EventEnvelope = msgspec.Struct
else:
    EventEnvelope = Union[_CLOUD_EVENTS]  # noqa: UP007 - of what is registered
"""Any public event: `type` says which."""


class EventRow(Form, frozen=True, kw_only=True):
    """A public event, and names of what it is about."""

    event: EventEnvelope
    """As every reader gets it."""
    project_name: str | None
    """Name of the project. Null if it is not known any more."""
    actor: str
    """Subject of who caused it."""


class EventRows(Form, frozen=True, kw_only=True):
    """A page of public events, newest first."""

    events: list[EventRow]
    """Those that match."""
    next: str | None
    """`before` of the next page, even if this page is not full. Null at the end."""
    gone: bool
    """Whether events before the last one here may no longer be kept."""
