"""Pairs of keys for ssh that nobody keeps: derived from a seed of the key file and from what they are for."""

from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from services.runtime.credentials.sealed import derived

_PURPOSE: Final = "ssh 1"


def ssh_pair(seed: bytes, about: str) -> tuple[str, str]:
    """(private key, public key), as OpenSSH reads them, each with a line end. The pair is the same each time; how the
    private key is written is not, since OpenSSH puts random bytes into it.
    """
    private = Ed25519PrivateKey.from_private_bytes(derived(seed, f"{_PURPOSE} {about}"))
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return (
        private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode(),
        f"{public.decode()}\n",
    )
