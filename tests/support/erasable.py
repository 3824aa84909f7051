"""A log that a test can tear holes into."""

from nats.aio.client import Client


async def erasable_log(client: Client) -> None:
    """Make the log anew, without the settings that protect it."""
    js = client.jetstream()
    await js.delete_stream("EVENTS")
    await js.add_stream(name="EVENTS", subjects=["ev.>"], allow_direct=True, allow_atomic=True)
