"""Keys as NATS writes them: Ed25519, in base32 with a letter for whose key it is and a checksum.

Only what is needed here: keys of users (U…) and of the account that lets them in (A…).
"""

import base64
import binascii
import re
import secrets
from typing import Final, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

Kind = Literal["user", "account"]

_PREFIXES: Final[dict[Kind, int]] = {"user": 20 << 3, "account": 0}
_SEED: Final = 18 << 3
_CHECKSUM_BYTES: Final = 2
_KEY_BYTES: Final = 32
_BASE32: Final = re.compile(r"[A-Z2-7]{56,58}")


class NkeyError(ValueError):
    """This is no key of that kind."""


class KeyPair:
    """One key that may sign."""

    def __init__(self, seed: str) -> None:
        """Raises NkeyError. The seed is the secret."""
        raw = _decoded(seed)
        kind: Kind | None = next((kind for kind, prefix in _PREFIXES.items() if raw[:2] == _seed_head(prefix)), None)
        if kind is None or len(raw) != _KEY_BYTES + 2:
            raise NkeyError("this is no seed of a user or an account of NATS")
        self.kind: Kind = kind
        self._key = Ed25519PrivateKey.from_private_bytes(raw[2:])
        public = bytes([_PREFIXES[kind]]) + self._key.public_key().public_bytes_raw()
        self.public = _encoded(public)
        """What others may know of it."""

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)


def new_seed(kind: Kind) -> str:
    """The secret of a new key."""
    return _encoded(_seed_head(_PREFIXES[kind]) + secrets.token_bytes(_KEY_BYTES))


def has_signed(public: str, message: bytes, signature: bytes) -> bool:
    """Whether the owner of this key of a user has signed the message."""
    try:
        raw = _decoded(public)
        if raw[0] != _PREFIXES["user"] or len(raw) != _KEY_BYTES + 1:
            return False
        Ed25519PublicKey.from_public_bytes(raw[1:]).verify(signature, message)
    except (NkeyError, InvalidSignature):
        return False
    return True


def _seed_head(prefix: int) -> bytes:
    """The two letters S and whose it is, of five bits each, in two bytes."""
    return bytes([_SEED | prefix >> 5, prefix << 3 & 0xFF])


def _encoded(raw: bytes) -> str:
    checksum = binascii.crc_hqx(raw, 0).to_bytes(_CHECKSUM_BYTES, "little")
    return base64.b32encode(raw + checksum).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    """Raises NkeyError."""
    if not _BASE32.fullmatch(text):
        raise NkeyError("a key of NATS is 56 to 58 letters and digits 2 to 7")
    raw = base64.b32decode(text + "=" * (-len(text) % 8))
    raw, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
    if binascii.crc_hqx(raw, 0).to_bytes(_CHECKSUM_BYTES, "little") != checksum:
        raise NkeyError("the checksum of this key is wrong")
    return raw
