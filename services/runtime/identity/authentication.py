"""Who is speaking: verifies bearer tokens, for the gate and the api alike (log.md section 6.1).

Holds the rules and a short memory of tokens that passed. Says nothing about what somebody may do: roles are bindings in
the log. No token, and no claim but issuer, subject, names, groups and the ids of a Linux user, ever leaves this
module, not even in a message or a log line.
"""

import base64
import hashlib
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from joserfc import jws
from joserfc.errors import JoseError

from events.actors import ACCOUNT_PREFIX, MAX_SUBJECT_LENGTH, fit_subject
from events.refusal import Refusal
from services.runtime.identity.jwks import LOCAL_KEY_PREFIX, FileKeys, JwksError, KeySource, TrustedKey, UrlKeys
from services.runtime.identity.member import DEFAULT_MEMBER_CLAIMS, NOBODY, Member, MemberClaims, member_claims
from services.runtime.identity.posix_user import DEFAULT_CLAIMS, PosixUser, UserClaims, user_claims
from services.runtime.process.settings import Settings

ALGORITHMS: Final = frozenset({"ES256", "RS256", "EdDSA"})
"""Asymmetric only. A symmetric one would let whoever can verify also sign; `none` lets everybody."""
MAX_TOKEN_BYTES: Final = 8 * 1024
"""Room for an issuer's group claims; longer ones are not even split (log.md 6.1)."""
LEEWAY_SECONDS: Final = 30
"""Between the issuer's clock and ours."""
MAX_LIFETIME_SECONDS: Final = 24 * 3600
"""A stolen token is of use for a day at most."""
REMEMBER_SECONDS: Final = 60.0
"""A verified token is trusted this long without another look at its signature."""
MAX_REMEMBERED: Final = 10_000
"""About 3 MB; the oldest give way."""
_LATEST_TIME: Final = 253_402_300_799
"""The last second of the year 9999: later ones are no dates."""

_SEGMENTS = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_FORBIDDEN_HEADERS: Final = ("jwk", "jku", "x5u", "x5c", "x5t", "x5t#S256")
"""They let a token bring its own key along."""
_TOKEN_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
"""Of `typ`: so that a token made for another purpose (a logout token, a proof) does not count as this one."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who a token speaks for, and until when."""

    iss: str
    sub: str
    expires_at: datetime
    user: PosixUser | str = "your token is no person's, and names no user"
    """Whom pods run as where their workload asks for the token's user; or a sentence that says why there is none."""
    member: Member = NOBODY
    """Names and groups by which others let its holder in."""


class _Refused(Exception):
    """One rule that the token breaks; becomes a Refusal at the edge of this module."""


def authenticator(settings: Settings) -> "Authenticator":
    """The authenticator that the settings ask for. Raises JwksError where they name no keys, or both kinds.

    With MUSTER_JWKS_URL (production) the issuer's keys count and local ones are refused.
    """
    if settings.jwks_url and settings.jwks_file is not None:
        raise JwksError("MUSTER_JWKS_URL (production) and MUSTER_JWKS_FILE (development) are both set; unset one")
    if settings.jwks_url:
        keys: KeySource = UrlKeys(settings.jwks_url)
    elif settings.jwks_file is not None:
        keys = FileKeys(settings.jwks_file)
    else:
        raise JwksError("no keys to verify tokens with: set MUSTER_JWKS_URL, or MUSTER_JWKS_FILE for development")
    return Authenticator(
        keys,
        issuer=settings.issuer,
        audience=settings.audience,
        user_claims=user_claims(settings),
        member_claims=member_claims(settings),
    )


def not_authenticated(message: str) -> Refusal:
    return Refusal(code="not_authenticated", message=message)


class Authenticator:
    """Verifies tokens of one issuer for one audience.

    Args:
        keys: where the issuer's public keys come from; this owns it: `start` and `close` are passed on.
        issuer: the exact `iss`.
        audience: the exact `aud`, or one of them.
        user_claims: where a token says whom its holder's pods run as.
        member_claims: where it says its holder's name and groups.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        keys: KeySource,
        *,
        issuer: str,
        audience: str,
        user_claims: UserClaims = DEFAULT_CLAIMS,
        member_claims: MemberClaims = DEFAULT_MEMBER_CLAIMS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._issuer = issuer
        self._audience = audience
        self._user_claims = user_claims
        self._member_claims = member_claims
        self._clock = clock
        self._remembered: OrderedDict[bytes, tuple[float, Identity]] = OrderedDict()
        self._generation = keys.generation

    async def start(self) -> None:
        await self._keys.start()

    async def close(self) -> None:
        await self._keys.close()

    async def verify(self, token: str) -> Identity | Refusal:
        """The identity that a compact JWT speaks for, or `not_authenticated` with the rule that it breaks."""
        now = self._clock()
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        known = self._recall(digest, now)
        if known is not None:
            return known
        try:
            kid, algorithm = _read_header(token)
            payload = _verified_payload(token, kid, algorithm, await self._keys.key(kid))
            claims = check_claims(payload, issuer=self._issuer, audience=self._audience, now=now)
        except _Refused as refused:
            return not_authenticated(str(refused))
        identity = Identity(
            iss=self._issuer,
            sub=claims["sub"],
            expires_at=datetime.fromtimestamp(claims["exp"], UTC),
            user=self._user_claims.read(claims),
            member=self._member_claims.read(claims),
        )
        self._remember(digest, identity, now)
        return identity

    def _recall(self, digest: bytes, now: float) -> Identity | None:
        if self._generation != self._keys.generation:
            # Keys came or went: what a revoked one signed must not be remembered.
            self._generation = self._keys.generation
            self._remembered.clear()
        known = self._remembered.get(digest)
        if known is None:
            return None
        if known[0] <= now:
            del self._remembered[digest]
            return None
        return known[1]

    def _remember(self, digest: bytes, identity: Identity, now: float) -> None:
        until = min(now + REMEMBER_SECONDS, identity.expires_at.timestamp() + LEEWAY_SECONDS)
        self._remembered[digest] = (until, identity)
        while len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)


def _verified_payload(token: str, kid: str, algorithm: str, key: TrustedKey | None) -> bytes:
    """The payload, where the trusted key made the signature. Raises _Refused."""
    if key is None and kid.startswith(LOCAL_KEY_PREFIX):
        raise _Refused("the token is signed with a local development key that is not trusted here")
    if key is None:
        raise _Refused("the token is signed with a key that is not trusted here; get a new token from the issuer")
    if algorithm != key.algorithm:
        raise _Refused("the token's algorithm is not that of the key it names")
    signed, _, signature = token.rpartition(".")
    # The algorithm's own verification, not the library's reading of a whole token: stricter rules have judged the
    # header already, and the library warns at every use of EdDSA (RFC 9864 gave it a new name; issuers use the old).
    model = jws.JWSRegistry.algorithms[key.algorithm]
    try:
        if not model.verify(signed.encode("ascii"), _decoded(signature), key.key):
            raise _Refused("the token's signature is not valid for the key it names")
        return _decoded(signed.partition(".")[2])
    except (JoseError, ValueError, TypeError) as error:
        raise _Refused("the token's signature cannot be read") from error


def _read_header(token: str) -> tuple[str, str]:
    """(key id, algorithm) that the token names, once its outside is in order. Raises _Refused."""
    if len(token) > MAX_TOKEN_BYTES:
        raise _Refused(f"the token has {len(token)} characters; at most {MAX_TOKEN_BYTES} are read")
    if _SEGMENTS.fullmatch(token) is None:
        raise _Refused("the token is not a signed JWT: three base64url parts with dots between them")
    header = _json_object(token.partition(".")[0], "header")
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise _Refused(f"the token's algorithm is not one of {', '.join(sorted(ALGORITHMS))}")
    if "crit" in header or "b64" in header:
        raise _Refused("the token names extensions (crit) that are not understood here")
    for name in _FORBIDDEN_HEADERS:
        if name in header:
            raise _Refused(f"the token brings its own key along ({name}); only the issuer's published keys count")
    kind = header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.lower() not in _TOKEN_TYPES:
        raise _Refused("the token is of another type (typ) than JWT or at+jwt")
    kid = header.get("kid")
    if not isinstance(kid, str) or not kid:
        raise _Refused("the token does not name its key (kid)")
    return kid, algorithm


def check_claims(payload: bytes, *, issuer: str, audience: str, now: float) -> dict[str, Any]:
    """The claims in a payload whose signature is good. Raises _Refused with the rule that they break."""
    try:
        claims = msgspec.json.decode(payload, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _Refused("the token's claims are not a JSON object") from error
    missing = [name for name in ("exp", "iat", "iss", "aud", "sub") if name not in claims]
    if missing:
        raise _Refused(f"the token lacks {', '.join(missing)}")
    if claims["iss"] != issuer:
        raise _Refused("the token is of another issuer (iss)")
    if claims["aud"] != audience and not (isinstance(claims["aud"], list) and audience in claims["aud"]):
        raise _Refused("the token is meant for another audience (aud)")
    subject = claims["sub"]
    if not isinstance(subject, str) or not fit_subject(subject):
        raise _Refused(
            f"the token's subject (sub) is not 1 to {MAX_SUBJECT_LENGTH} printable characters, or begins with "
            f"{ACCOUNT_PREFIX}, as no person's does"
        )
    expires, issued = _time(claims, "exp"), _time(claims, "iat")
    if now > expires + LEEWAY_SECONDS:
        raise _Refused("the token has expired; get a new one")
    if issued > now + LEEWAY_SECONDS:
        raise _Refused("the token was issued in the future (iat); compare the clocks")
    if "nbf" in claims and _time(claims, "nbf") > now + LEEWAY_SECONDS:
        raise _Refused("the token is not valid yet (nbf); compare the clocks")
    if not 0 < expires - issued <= MAX_LIFETIME_SECONDS:
        raise _Refused(f"the token's lifetime (exp - iat) is not between 1 and {MAX_LIFETIME_SECONDS} seconds")
    return claims


def _time(claims: dict[str, Any], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Refused(f"the token's {name} is not a number of seconds")
    if not math.isfinite(value) or not 0 <= value <= _LATEST_TIME:
        raise _Refused(f"the token's {name} is not a time")
    return float(value)


def _json_object(segment: str, what: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(_decoded(segment), type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _Refused(f"the token's {what} is not a JSON object") from error


def _decoded(segment: str) -> bytes:
    """Base64url without padding; raises ValueError."""
    return base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
