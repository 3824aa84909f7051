"""One-shot of docker-compose, before everything else: passwords and certificates, made at the first start.

Runs as root, because each password is for one service's user and for the server's. What is there already stays; only
the server's certificate is made anew, since the names in it may have changed.
"""

import os
import secrets
import sys
from pathlib import Path
from typing import Final

from services.runtime.services import SERVER_UID, SERVICES

SECRET_BYTES: Final = 24
"""192 bits: not to be guessed."""


def main(root: Path, names: tuple[str, ...]) -> None:
    """Make everything below `root`; `names` are those by which agents of other machines call the server."""
    passwords = root / "nats"
    for user, service in SERVICES.items():
        _secret(passwords / user, service.uid, SERVER_UID, 0o440)
    # Whoever mounts its folder may read it.
    _secret(root / "postgres" / "password", 0, 0, 0o444)
    _secret(root / "postgres-reader" / "password", 0, 0, 0o444)
    tls, authority, public = root / "tls", root / "authority", root / "public"
    if (tls / "server.key").exists() and not (authority / "ca.key").exists():
        _write(public / "ca.crt", (tls / "ca.crt").read_bytes(), 0, 0, 0o444)  # certificates that were given
        return
    # Imports a library that takes longer than all the rest.
    from muster.embedded.certificates import authority_in, server_certificate

    ca = authority_in(authority)
    certificate, key = server_certificate(ca, ("nats", "localhost", *names))
    _write(tls / "server.crt", certificate, SERVER_UID, SERVER_UID, 0o444)
    _write(tls / "server.key", key, SERVER_UID, SERVER_UID, 0o400)
    _write(public / "ca.crt", (authority / "ca.crt").read_bytes(), 0, 0, 0o444)


def _secret(path: Path, owner: int, group: int, mode: int) -> None:
    # NATS takes it from an environment variable, and reads a value that looks like a number as one.
    value = path.read_bytes() if path.exists() else f"p{secrets.token_hex(SECRET_BYTES)}".encode()
    _write(path, value, owner, group, mode)


def _write(path: Path, content: bytes, owner: int, group: int, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)
        if os.geteuid() == 0:
            os.fchown(file.fileno(), owner, group)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), tuple(os.environ.get("MUSTER_NATS_NAMES", "").replace(",", " ").split()))
