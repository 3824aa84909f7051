"""Addresses of repositories that are cloned over ssh. Pure.

Nothing in one can be taken for an option of ssh or git, or for a word of a shell.
"""

import re
from typing import Final, NamedTuple

SSH_PORT: Final = 22
PRIVATE_KEY: Final = "ssh-privatekey"
"""Key of a Secret or a credential with the private key, where no other is said: as in Kubernetes' own Secrets of type
`kubernetes.io/ssh-auth`.
"""
KNOWN_HOSTS: Final = "known_hosts"
"""Key of the same one that holds the keys of the servers that are believed."""
_USER: Final = r"(?P<user>[A-Za-z0-9_][A-Za-z0-9._-]{0,63})"
_HOST: Final = r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)"
_PATH: Final = r"[A-Za-z0-9._~/+-]*"
_URL: Final = re.compile(rf"ssh://(?:{_USER}@)?{_HOST}(?::(?P<port>[1-9][0-9]{{0,4}}))?/[A-Za-z0-9._~/]{_PATH}\Z")
_SHORT: Final = re.compile(rf"{_USER}@{_HOST}:[A-Za-z0-9._~/]{_PATH}\Z")
_MOST_PORT: Final = 65_535


class SshServer(NamedTuple):
    """Of a repository."""

    user: str
    """Empty: none is named."""
    host: str
    port: int = SSH_PORT


def ssh_server(address: str) -> SshServer | None:
    """Of an address such as `ssh://git@host:22/team/code` or `git@host:team/code`; None where it is no such."""
    if (short := _SHORT.match(address)) is not None:
        return SshServer(short["user"], short["host"])
    found = _URL.match(address)
    if found is None or int(found["port"] or SSH_PORT) > _MOST_PORT:
        return None
    return SshServer(found["user"] or "", found["host"], int(found["port"] or SSH_PORT))
