"""Calls of JetStream, as the subjects that services and agents ask on, and the names of the consumers they may make.

Every stream stands in an account of its own, and is asked through imports; the server answers for no streams under
`$JS.API` in an account that has none, so its calls have another prefix here. Pure.
"""

from typing import Final

PREFIX: Final = "$JS.store.API"
"""In the accounts of services and agents; nats-py calls this form `domain="store"`."""
STORE_PREFIX: Final = "$JS.API"
"""The same in the accounts of the streams."""

CONSUMERS: Final = {"api": 64}
"""How many consumers a user may have on one stream at once, where that is not FEW_CONSUMERS. The api has one for each
reader of the log."""
FEW_CONSUMERS: Final = 8
"""A service has one or two; this leaves room for several instances, and for what a killed one leaves behind."""
CONSUMER_SECONDS: Final = 60
"""After which the server drops a consumer that nobody pulls from, whatever its maker wished."""
UNACKNOWLEDGED: Final = 1_000
"""What one consumer may have outstanding; ours acknowledge nothing."""


def call(verb: str, stream: str, *rest: str) -> str:
    """The subject of a call, such as `call("CONSUMER.CREATE", "EVENTS", name)`."""
    return ".".join((PREFIX, verb, stream, *rest))


def consumer_names(user: str) -> tuple[str, ...]:
    """The names that this user's consumers may have, on any stream. Its permissions hold it to them, so that no user
    takes the room of all others, or pulls from a consumer that is not its own.
    """
    return tuple(f"{user}-{number}" for number in range(CONSUMERS.get(user, FEW_CONSUMERS)))
