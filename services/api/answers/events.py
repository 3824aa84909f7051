"""Answers about public events."""

from typing import Any

from msgspec import UNSET, UnsetType

from services.api.answers.forms import Form
from services.api.shown_events import Moment


class EventTicket(Form, frozen=True, kw_only=True):
    """Opens one stream of public events."""

    ticket: str
    """What the stream is given as the parameter `ticket`."""
    expires_at: Moment
    """Until when the stream must be opened."""


class EventEnvelope(Form, frozen=True, kw_only=True):
    """A public event, as a CloudEvent in its JSON form."""

    specversion: str
    """Version of CloudEvents."""
    id: str
    """Unique. The same event has the same id, however often it is told."""
    source: str
    """`/projects/PROJECT_ID`."""
    type: str
    """`muster.TYPE.v1`."""
    subject: str | UnsetType = UNSET
    """Id of the workload. Missing if the event is about no workload."""
    time: Moment
    """When it was decided."""
    datacontenttype: str
    """Of the data."""
    dataschema: str
    """Names the schema of the data; /asyncapi.json has it."""
    sequence: str
    """The place in the log: SEQUENCE.NUMBER."""
    previous: str | UnsetType = UNSET
    """`sequence` of the project's event before it. Missing in the first one."""
    data: dict[str, Any]
    """What happened. Its fields depend on the type."""


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
