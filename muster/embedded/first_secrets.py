"""One-shot of docker-compose, before everything else: passwords and certificates, made at the first start.

Runs as root, because each password is for one service's user and for the server's. What is there already stays; only
certificates are made anew, since the names in them may have changed.
"""

import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from muster.embedded.nats_server import PUBLIC_KEY
from services.runtime.services import OPERATOR_UID, SERVER_UID, SERVICES

if TYPE_CHECKING:
    from services.runtime.nats.nkeys import Kind

SECRET_BYTES: Final = 24
"""192 bits: not to be guessed."""
_GIVEN: Final = {
    "server.crt": "the certificate of the server",
    "server.key": "the key of the certificate",
    "ca.crt": "the certificate of the authority that signed it",
}
"""Files of a certificate that is somebody's own, and what they are."""


def main(root: Path, nats_names: tuple[str, ...], http_name: str = "") -> None:
    """Make everything below `root`. The names are those by which agents of other machines call NATS, and clients the
    API, which gets a certificate where a folder for it is there. Raises SystemExit where a given certificate lacks a
    file, and for a name that leads nowhere.
    """
    passwords = root / "nats"
    for user, service in SERVICES.items():
        _secret(passwords / user, service.uid, SERVER_UID, 0o440)
    _callout_key(root, "issuer", "account")
    _callout_key(root, "responder", "user")
    _webhook_key(root / "webhooks")
    _credential_keys(root / "credentials", root / "credential-public")
    # Whoever mounts its folder may read it.
    _secret(root / "postgres" / "password", 0, 0, 0o444)
    _secret(root / "postgres-reader" / "password", 0, 0, 0o444)
    public = root / "public"
    _certify(root, "tls", public / "ca.crt", ("nats", "localhost", *nats_names), SERVER_UID)
    if (root / "api-tls").is_dir():
        if http_name == "localhost":
            sys.exit(
                "MUSTER_HTTP_NAME: in the other containers localhost is not the API. Leave it empty: the certificate "
                "that is made is for https://localhost too"
            )
        names = ("api", "localhost", *filter(None, (http_name,)))
        _certify(root, "api-tls", public / "api-ca.crt", names, SERVICES["api"].uid)


def _webhook_key(folder: Path) -> None:
    """For `webhooks`, and for who makes a backup, or puts one back: then it is made readable again here."""
    _secret(folder / "key", SERVICES["webhooks"].uid, OPERATOR_UID, 0o440)
    if os.geteuid() == 0:
        os.chown(folder, OPERATOR_UID, OPERATOR_UID)


def _credential_keys(folder: Path, public: Path) -> None:
    """For `cluster_sync`, and for who makes a backup, or puts one back; the public half is for the API."""
    import msgspec

    # Imports a library that takes longer than all the rest.
    from services.runtime.credentials.keys import new_ring, read_ring

    path = folder / "keys"
    ring = read_ring(path) if path.exists() else new_ring()
    _write(path, msgspec.json.encode(ring), SERVICES["cluster_sync"].uid, OPERATOR_UID, 0o440)
    _write(public / "key", ring.public.hex().encode(), 0, OPERATOR_UID, 0o444)
    if os.geteuid() == 0:
        os.chown(folder, OPERATOR_UID, OPERATOR_UID)
        os.chown(public, OPERATOR_UID, OPERATOR_UID)


def _callout_key(root: Path, name: str, kind: "Kind") -> None:
    """One of the keys of `subscriptions`, which nobody else can read; its public half is for the server."""
    # Imports a library that takes longer than all the rest.
    from services.runtime.nats.nkeys import KeyPair, new_seed

    owner = SERVICES["subscriptions"].uid
    path = root / "callout" / name
    seed = path.read_text() if path.exists() else new_seed(kind)
    _write(path, seed.encode(), owner, owner, 0o400)
    _write(root / "nats" / f"callout_{name}{PUBLIC_KEY}", KeyPair(seed).public.encode(), 0, SERVER_UID, 0o440)


def _certify(root: Path, name: str, ca_file: Path, names: tuple[str, ...], owner: int) -> None:
    """A certificate and its key in the folder `name`, and the authority's where others see it."""
    folder, authority = root / name, root / "authority"
    if _is_given(folder, authority):
        for missing, what in _GIVEN.items():
            if not (folder / missing).exists():
                sys.exit(f"{folder} holds a certificate of yours, but no {missing}: add {what}")
        _write(ca_file, (folder / "ca.crt").read_bytes(), 0, 0, 0o444)
        return
    # Imports a library that takes longer than all the rest.
    from muster.embedded.certificates import authority_in, server_certificate

    ca = authority_in(authority)
    certificate, key = server_certificate(ca, names)
    _write(folder / "server.crt", certificate, owner, owner, 0o444)
    _write(folder / "server.key", key, owner, owner, 0o400)
    _write(ca_file, (authority / "ca.crt").read_bytes(), 0, 0, 0o444)


def _is_given(folder: Path, authority: Path) -> bool:
    """Whether the certificate in the folder is somebody's own: our authority has not signed it."""
    if not any((folder / name).exists() for name in ("server.crt", "server.key")):
        return False
    if not (authority / "ca.key").exists():
        return True
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    try:
        ours = x509.load_pem_x509_certificate((authority / "ca.crt").read_bytes())
        x509.load_pem_x509_certificate((folder / "server.crt").read_bytes()).verify_directly_issued_by(ours)
    except (OSError, ValueError, TypeError, InvalidSignature):
        return True
    return False


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
    main(
        Path(sys.argv[1]),
        tuple(os.environ.get("MUSTER_NATS_NAMES", "").replace(",", " ").split()),
        os.environ.get("MUSTER_HTTP_NAME", ""),
    )
