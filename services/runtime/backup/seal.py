"""Encryption of what a backup keeps beside the log: scrypt makes the key, AES-256-GCM seals, in pieces.

A sealed file is a random prefix of 7 bytes, then pieces. The nonce of a piece is the prefix, its number, and whether it
is the last, so that no piece can be left out, moved or cut off; the name of the file is authenticated with each.
"""

import os
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from services.runtime.backup.archive import BackupError, Sealing

SCRYPT_N: Final = 2**17
"""128 MiB and half a second for each guess of a passphrase."""
SCRYPT_R: Final = 8
SCRYPT_P: Final = 1
MOST_N: Final = 2**20
"""That a manifest may ask for: 1 GiB."""
SALT_BYTES: Final = 16
KEY_BYTES: Final = 32
PREFIX_BYTES: Final = 7
PIECE_BYTES: Final = 1024**2
TAG_BYTES: Final = 16
SHORTEST: Final = 12
"""Characters of a passphrase: below that, trying is cheap."""
_CHECK: Final = "check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealer:
    """The key of one backup."""

    sealing: Sealing
    key: bytes

    def seal(self, name: str, data: bytes) -> bytes:
        return _seal(self.key, name, data)

    def unseal(self, name: str, data: bytes) -> bytes:
        """Raises BackupError where it is not what was sealed under that name."""
        return _unseal(self.key, name, data)


def new_sealer(passphrase: bytes) -> Sealer:
    """Of a new backup. Raises BackupError where the passphrase is too short."""
    if len(passphrase) < SHORTEST:
        raise BackupError(f"the passphrase has {len(passphrase)} characters; give at least {SHORTEST}")
    salt = os.urandom(SALT_BYTES)
    key = _derive(passphrase, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P)
    check = _seal(key, _CHECK, b"").hex()
    return Sealer(sealing=Sealing(salt=salt.hex(), n=SCRYPT_N, r=SCRYPT_R, p=SCRYPT_P, check=check), key=key)


def sealer_of(sealing: Sealing, passphrase: bytes) -> Sealer:
    """Of a backup that is there. Raises BackupError where it was made with another passphrase."""
    if sealing.n > MOST_N or sealing.r > SCRYPT_R or sealing.p > SCRYPT_P:
        raise BackupError("manifest.json asks for more memory to make a key than any version of Muster does")
    try:
        key = _derive(passphrase, bytes.fromhex(sealing.salt), sealing.n, sealing.r, sealing.p)
        _unseal(key, _CHECK, bytes.fromhex(sealing.check))
    except (BackupError, ValueError) as error:
        raise BackupError("the passphrase, or key file, is not the one that this backup was made with") from error
    return Sealer(sealing=sealing, key=key)


def _derive(passphrase: bytes, salt: bytes, n: int, r: int, p: int) -> bytes:
    return Scrypt(salt=salt, length=KEY_BYTES, n=n, r=r, p=p).derive(passphrase)


def _seal(key: bytes, name: str, data: bytes) -> bytes:
    prefix, cipher = os.urandom(PREFIX_BYTES), AESGCM(key)
    starts = range(0, max(len(data), 1), PIECE_BYTES)
    pieces = [
        cipher.encrypt(
            _nonce(prefix, number, last=number == len(starts) - 1), data[start : start + PIECE_BYTES], name.encode()
        )
        for number, start in enumerate(starts)
    ]
    return prefix + b"".join(pieces)


def _unseal(key: bytes, name: str, data: bytes) -> bytes:
    prefix, cipher = data[:PREFIX_BYTES], AESGCM(key)
    starts = range(PREFIX_BYTES, max(len(data), PREFIX_BYTES + 1), PIECE_BYTES + TAG_BYTES)
    try:
        pieces = [
            cipher.decrypt(
                _nonce(prefix, number, last=number == len(starts) - 1),
                data[start : start + PIECE_BYTES + TAG_BYTES],
                name.encode(),
            )
            for number, start in enumerate(starts)
        ]
    except (InvalidTag, ValueError) as error:
        raise BackupError(f"what was sealed as {name} is damaged, or is something else") from error
    return b"".join(pieces)


def _nonce(prefix: bytes, number: int, *, last: bool) -> bytes:
    return prefix + number.to_bytes(4, "big") + bytes([last])
