"""Public keys that tokens are verified with: parsing a JWKS, and keeping one from a file or a URL fresh.

Nothing here looks at a token. A key that cannot verify (of another kind or use, too short, a secret one) is no key.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import msgspec
import structlog
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey

from events.codec import UNDECODABLE

LOCAL_KEY_PREFIX: Final = "local-"
"""Ids of keys that `muster up` and compose make for themselves begin so: an issuer's JWKS may not bring one in."""
MIN_RSA_BITS: Final = 2048
"""NIST SP 800-57: shorter ones are no longer acceptable for signatures."""
MAX_JWKS_BYTES: Final = 256 * 1024
"""Hundreds of keys; a larger answer is not a JWKS."""
FETCH_SECONDS: Final = 2.0
"""A fetch that a request waits for must leave it time to be answered within the api's five seconds."""
REFRESH_SECONDS: Final = 120.0
"""A revoked key dies within five minutes (log.md 6.1): two failed refreshes in a row still fit."""
UNKNOWN_KEY_REFETCH_SECONDS: Final = 30.0
"""Tokens with made-up key ids make us ask the issuer at most this often."""
FILE_CHECK_SECONDS: Final = 1.0
"""How often the file is looked at: a rotation counts after a second, and a request costs no system call."""
FIRST_FETCH_SECONDS: Final = 30.0
"""How long a service waits for the issuer when it starts."""

log = structlog.get_logger(__name__)

type PublicKey = ECKey | RSAKey | OKPKey


class JwksError(Exception):
    """It is not a JWKS, or it holds what must not be there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedKey:
    kid: str
    algorithm: str
    """The only one this key is used with: it follows from the key, never from a token."""
    key: PublicKey


class KeySource(Protocol):
    """Where keys come from; `generation` rises whenever they change."""

    generation: int

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def key(self, kid: str) -> TrustedKey | None: ...


class _Jwk(msgspec.Struct, frozen=True):
    kty: str
    kid: str = ""
    use: str | None = None
    alg: str | None = None
    crv: str | None = None
    key_ops: tuple[str, ...] | None = None
    d: str | None = None
    k: str | None = None


class _Jwks(msgspec.Struct, frozen=True):
    keys: tuple[msgspec.Raw, ...]


def parse_jwks(payload: bytes, *, local_allowed: bool) -> dict[str, TrustedKey]:
    """The usable keys by id. Raises JwksError; keys for other purposes are left out without a word."""
    if len(payload) > MAX_JWKS_BYTES:
        raise JwksError(f"{len(payload)} bytes; at most {MAX_JWKS_BYTES} are read")
    try:
        entries = [_fields(raw) for raw in msgspec.json.decode(payload, type=_Jwks).keys]
    except UNDECODABLE as error:
        raise JwksError(f"not a JWKS: {error}") from error
    trusted: dict[str, TrustedKey] = {}
    for jwk, fields in entries:
        if jwk.d is not None or jwk.k is not None:
            raise JwksError(f"key {jwk.kid!r} is a secret one; publish only the public part")
        if jwk.kid.startswith(LOCAL_KEY_PREFIX) and not local_allowed:
            log.warning("jwks_local_key_left_out", kid=jwk.kid)
            continue
        key = _trusted(jwk, fields)
        if key is not None:
            if key.kid in trusted:
                raise JwksError(f"two keys have the id {key.kid!r}")
            trusted[key.kid] = key
    return trusted


def _fields(raw: msgspec.Raw) -> tuple[_Jwk, dict[str, Any]]:
    return msgspec.json.decode(raw, type=_Jwk), msgspec.json.decode(raw, type=dict[str, Any])


def _trusted(jwk: _Jwk, fields: dict[str, Any]) -> TrustedKey | None:
    if not jwk.kid or jwk.use not in {None, "sig"} or (jwk.key_ops is not None and "verify" not in jwk.key_ops):
        return None
    try:
        match jwk.kty, jwk.crv:
            case "EC", "P-256":
                algorithm, key = "ES256", ECKey.import_key(fields)
            case "OKP", "Ed25519":
                algorithm, key = "EdDSA", OKPKey.import_key(fields)
            case "RSA", _:
                algorithm, key = "RS256", RSAKey.import_key(fields)
            case _:
                return None
        # The key is only parsed when it is first used: a broken one must be found here, not by somebody's request.
        bits = key.raw_value.key_size if isinstance(key, RSAKey) else None
        _ = key.raw_value
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise JwksError(f"key {jwk.kid!r} cannot be read: {type(error).__name__}") from error
    if bits is not None and bits < MIN_RSA_BITS:
        raise JwksError(f"key {jwk.kid!r} has {bits} bits; at least {MIN_RSA_BITS} are needed")
    if jwk.alg is not None and jwk.alg != algorithm:
        return None
    return TrustedKey(kid=jwk.kid, algorithm=algorithm, key=key)


class FileKeys:
    """Keys of a file on this machine, read again when it changes. A file that cannot be read changes nothing."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.generation = 0
        self._path = path
        self._clock = clock
        self._keys: Mapping[str, TrustedKey] = {}
        self._seen: tuple[int, int, int] | None = None
        self._checked_at = float("-inf")

    async def start(self) -> None:
        """Raises JwksError where the file is missing or holds no JWKS."""
        try:
            self._read()
        except OSError as error:
            raise JwksError(f"the JWKS file {self._path} cannot be read: {error.strerror}") from error

    async def close(self) -> None:
        self._keys = {}

    async def key(self, kid: str) -> TrustedKey | None:
        now = self._clock()
        if now - self._checked_at >= FILE_CHECK_SECONDS:
            self._checked_at = now
            try:
                self._read()
            except (OSError, JwksError) as error:
                log.error("jwks_file_not_taken_over", path=str(self._path), error=str(error))  # noqa: TRY400
        return self._keys.get(kid)

    def _read(self) -> None:
        stat = self._path.stat()
        seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if seen == self._seen:
            return
        self._keys = parse_jwks(self._path.read_bytes(), local_allowed=True)
        self._seen = seen
        self.generation += 1


class UrlKeys:
    """Keys of an issuer, fetched in the background. What could not be fetched leaves the last good keys in place."""

    def __init__(self, url: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        parts = urlsplit(url)
        loopback = parts.scheme == "http" and parts.hostname in {"127.0.0.1", "::1", "localhost"}
        if parts.scheme != "https" and not loopback:
            raise JwksError(f"MUSTER_JWKS_URL is {url!r}; it must begin with https:// (http:// only on loopback)")
        self.generation = 0
        self._url = url
        self._clock = clock
        self._keys: Mapping[str, TrustedKey] = {}
        self._payload = b""
        self._asked_at = float("-inf")
        self._fetching = asyncio.Lock()
        import httpx  # a tenth of a second, for those alone who have an issuer to ask

        # No redirects: the issuer's keys come from the address that was configured, or not at all.
        self._client = httpx.AsyncClient(timeout=FETCH_SECONDS, follow_redirects=False)
        self._refresher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises JwksError where the issuer did not answer for FIRST_FETCH_SECONDS."""
        give_up_at, wait = self._clock() + FIRST_FETCH_SECONDS, 0.25
        while not await self._fetch():
            if self._clock() + wait > give_up_at:
                raise JwksError(f"no JWKS could be fetched from {self._url} for {FIRST_FETCH_SECONDS:.0f} s")
            await asyncio.sleep(wait)
            wait = min(wait * 2, 4.0)
        self._refresher = asyncio.create_task(self._refresh())

    async def close(self) -> None:
        if self._refresher is not None:
            self._refresher.cancel()
            await asyncio.gather(self._refresher, return_exceptions=True)
        await self._client.aclose()

    async def key(self, kid: str) -> TrustedKey | None:
        key = self._keys.get(kid)
        if key is not None or kid.startswith(LOCAL_KEY_PREFIX):
            return key
        async with self._fetching:
            # Whoever waited for the lock finds what the one before fetched.
            if kid not in self._keys and self._clock() - self._asked_at >= UNKNOWN_KEY_REFETCH_SECONDS:
                await self._fetch()
        return self._keys.get(kid)

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            async with self._fetching:
                await self._fetch()

    async def _fetch(self) -> bool:
        import httpx

        self._asked_at = self._clock()
        try:
            async with asyncio.timeout(FETCH_SECONDS), self._client.stream("GET", self._url) as response:
                response.raise_for_status()
                payload = b""
                async for part in response.aiter_bytes():
                    payload += part
                    if len(payload) > MAX_JWKS_BYTES:
                        break
            keys = parse_jwks(payload, local_allowed=False)
        except (httpx.HTTPError, JwksError, TimeoutError) as error:
            log.error("jwks_not_fetched", url=self._url, error=f"{type(error).__name__}: {error}")  # noqa: TRY400
            return False
        if payload != self._payload:
            self._keys, self._payload = keys, payload
            self.generation += 1
        return True
