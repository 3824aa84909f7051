"""Why the read models give no answer."""

from typing import Final

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from projections.postgres import CUT_OFF

STATEMENT_TIMEOUT_SECONDS: Final = 5
"""No list is worth more of Postgres' time (log.md section 4.3)."""
_DOWN_STATES: Final = ("08", "53", "57P", "58")
"""Classes of SQLSTATE: the connection, resources, an operator or a crash, the system below. How a server says in words
that it recovers from a crash differs from one moment to the next.
"""


class ProjectionsUnavailableError(Exception):
    """Postgres is away, or not set up: ask again later."""


class QueryTimeoutError(Exception):
    """Postgres took too long: ask for less."""


class QueriesBusyError(Exception):
    """More is asked at once than there are connections, or than one asker may have: ask again later. The message says
    which.
    """


class TooManyRowsError(Exception):
    """A statement has more rows than are read at once."""


def named(error: Exception) -> Exception:
    """What to raise for what the driver raised; the same where it says nothing of the read models' state."""
    said = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    if "statement timeout" in said:
        return QueryTimeoutError(f"the read models took longer than {STATEMENT_TIMEOUT_SECONDS} s; ask for less")
    # What the driver says itself, while a connection is made, comes as it is.
    away = isinstance(error, (OperationalError, InterfaceError, OSError, TimeoutError, *CUT_OFF))
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    state = str(getattr(error.orig if isinstance(error, DBAPIError) else error, "sqlstate", None) or "")
    down = state.startswith(_DOWN_STATES)
    refused = any(word in said for word in ("does not exist", "connection", "permission denied"))
    if away or lost or down or refused:
        return ProjectionsUnavailableError(f"the read models cannot be asked now: {said or type(error).__name__}")
    return error
