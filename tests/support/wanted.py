"""Reading WANTED as an agent does."""

from nats.aio.client import Client

from events.subjects import WANTED_STREAM
from services.runtime.log.latest import Latest
from services.runtime.nats.requests import Requests


def wanted_of(client: Client, subject_filter: str) -> Latest:
    return Latest(client, Requests(client), WANTED_STREAM, subject_filter, held_to_filter=True)
