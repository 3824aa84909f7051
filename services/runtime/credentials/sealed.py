"""Sealing to a public key, so that who seals cannot open: X25519 with a new key each time, HKDF-SHA256, AES-256-GCM.

What is sealed is bound to words that say what it is (`about`): it opens nowhere else.
"""

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES: Final = 32
_INFO: Final = b"muster sealed 1"
_NONCE: Final = bytes(12)
"""Each key seals once."""


class SealError(Exception):
    """It cannot be opened, or sealed to that key; the message holds nothing of what it is."""


def seal(public: bytes, plain: bytes, about: str) -> bytes:
    """The public half of a key of this once, then the cipher. Raises SealError where `public` is no key."""
    once = X25519PrivateKey.generate()
    own = once.public_key().public_bytes_raw()
    try:
        shared = once.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise SealError("that is no public key to seal to") from error
    return own + AESGCM(_key(shared, own, public)).encrypt(_NONCE, plain, about.encode())


def unseal(private: bytes, sealed: bytes, about: str) -> bytes:
    """Raises SealError where it was sealed to another key, as something else, or is damaged."""
    own, cipher = sealed[:KEY_BYTES], sealed[KEY_BYTES:]
    try:
        key = X25519PrivateKey.from_private_bytes(private)
        shared = key.exchange(X25519PublicKey.from_public_bytes(own))
        return AESGCM(_key(shared, own, key.public_key().public_bytes_raw())).decrypt(_NONCE, cipher, about.encode())
    except (InvalidTag, ValueError) as error:
        raise SealError(f"what was sealed as {about} is damaged, or for another key") from error


def new_private() -> bytes:
    return X25519PrivateKey.generate().private_bytes_raw()


def public_of(private: bytes) -> bytes:
    """Raises SealError where it is no key."""
    try:
        return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    except ValueError as error:
        raise SealError("that is no private key") from error


def derived(secret: bytes, about: str) -> bytes:
    """A key for this purpose: always the same, and it tells nothing of the secret."""
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=f"muster {about}".encode()).derive(secret)


def _key(shared: bytes, own: bytes, public: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=own + public, info=_INFO).derive(shared)
