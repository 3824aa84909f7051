"""Keys of a control plane on loopback: an authority, the API server's certificate, the key that signs tokens."""

import secrets
from pathlib import Path
from typing import Final

from muster.embedded.certificates import authority_in, new_key, server_certificate

TOKEN_BYTES: Final = 24
"""192 bits: not to be guessed."""


def make(folder: Path) -> None:
    """Make ca.crt, ca.key, server.crt, server.key, service-accounts.key and tokens.csv, where they are missing; for us
    only.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (folder / "tokens.csv").exists():
        return  # written last: all of it is there
    authority = authority_in(folder)
    certificate, key = server_certificate(authority, ("localhost",))
    _write(folder / "server.crt", certificate)
    _write(folder / "server.key", key)
    _write(folder / "service-accounts.key", new_key())
    _write(folder / "tokens.csv", f"{secrets.token_hex(TOKEN_BYTES)},admin,admin,system:masters\n".encode())


def admin_token(folder: Path) -> str:
    """The administrator's token among the credentials in `folder`."""
    return (folder / "tokens.csv").read_text().partition(",")[0]


def _write(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
