"""Where answers are sent: each user's own inbox, and how one is known. Pure."""

import re
from typing import Final

_INBOX_REST: Final = re.compile(r"(\.[A-Za-z0-9_-]{1,64}){1,2}")


def inbox_prefix(service: str) -> str:
    """Where replies to a service arrive; its permissions let no other service listen there."""
    return f"_INBOX_{service}"


def agent_user(cluster_id: str) -> str:
    """The user of the agent that serves this cluster alone; also the name of its password's file."""
    return f"agent-{cluster_id}"


def is_inbox(subject: str, of: str) -> bool:
    """Whether answers may be sent there: an inbox as clients of this prefix make them, and nothing that only looks so.
    Who asks says where the answer goes, and needs no right for that: a service that answered anywhere would write to
    the log in its own name what another one wishes.
    """
    return subject.startswith(f"{of}.") and _INBOX_REST.fullmatch(subject.removeprefix(of)) is not None


def exec_inbox(cluster_id: str) -> str:
    """Likewise, what comes out of this cluster's pods through sessions."""
    return f"{inbox_prefix('api')}.exec.{cluster_id}"


def logs_inbox(cluster_id: str) -> str:
    """Below it the api takes the lines that this cluster's agent sends; no agent may write anywhere else to the api."""
    return f"{inbox_prefix('api')}.logs.{cluster_id}"
