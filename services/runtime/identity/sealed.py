"""Sealed texts: what one process hands out and any of its kind opens again, and nobody else can read or change."""

import asyncio
import base64
import binascii
import hashlib
import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES: Final = 12


class BadSealError(Exception):
    """It was not sealed here for this purpose, or was changed."""


class Seal:
    """Seals and opens.

    Args:
        secret: what all processes share that open each other's, and nobody else has; empty: only this one opens its
            own.
        purpose: nothing that is sealed with the same secret for another one can be opened.
    """

    def __init__(self, secret: str, purpose: bytes) -> None:
        self._secret = secret.encode() or os.urandom(32)
        self._purpose = purpose
        self._cipher: AESGCM | None = None
        self._deriving = asyncio.Lock()

    async def close(self, plain: bytes) -> str:
        """The sealed text, in the letters of URLs and cookies."""
        nonce = os.urandom(NONCE_BYTES)
        sealed = (await self._sealing()).encrypt(nonce, plain, self._purpose)
        return base64.urlsafe_b64encode(nonce + sealed).rstrip(b"=").decode()

    async def open(self, given: str) -> tuple[bytes, bytes]:
        """(its nonce, which no other one has; what was sealed). Raises BadSealError."""
        try:
            raw = base64.urlsafe_b64decode(given.encode("ascii") + b"=" * (-len(given) % 4))
            nonce = raw[:NONCE_BYTES]
            return nonce, (await self._sealing()).decrypt(nonce, raw[NONCE_BYTES:], self._purpose)
        except (ValueError, binascii.Error, InvalidTag) as error:
            raise BadSealError("it was not sealed here") from error

    async def _sealing(self) -> AESGCM:
        async with self._deriving:
            if self._cipher is None:
                # Slow by intention, some 50 ms: a person may have chosen the password.
                key = await asyncio.to_thread(
                    hashlib.scrypt, self._secret, salt=self._purpose, n=2**14, r=8, p=1, maxmem=2**26, dklen=32
                )
                self._cipher = AESGCM(key)
            return self._cipher
