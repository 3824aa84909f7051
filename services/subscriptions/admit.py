"""What a server asks when somebody signs in who is no user in its file, and what it is answered: JSON Web Tokens as
NATS writes them. Pure.
"""

import base64
import binascii
from collections.abc import Callable
from typing import Any, Final

import msgspec

from events.subscriptions import Subscription
from services.runtime.nats.nkeys import KeyPair, has_signed
from services.runtime.nats.permissions import subscriber_permission

ACCOUNT: Final = "SUBS"
"""In which subscribers are (nats_config.py)."""
_HEADER: Final = {"typ": "JWT", "alg": "ed25519-nkey"}
_PARTS: Final = 3


class UnreadableRequestError(ValueError):
    """This is nothing that a server asks."""


class _Server(msgspec.Struct, frozen=True):
    id: str


class _Client(msgspec.Struct, frozen=True):
    id: int
    host: str = ""
    nonce: str = ""


class _Options(msgspec.Struct, frozen=True):
    nkey: str = ""
    sig: str = ""
    user: str = ""


class _Asked(msgspec.Struct, frozen=True):
    server_id: _Server
    user_nkey: str
    client_info: _Client
    connect_opts: _Options


class _Claims(msgspec.Struct, frozen=True):
    nats: _Asked


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody signs in."""

    server_id: str
    connection_id: int
    """On that server."""
    user: str
    """The key that the server gives the connection; the answer names it."""
    key: str
    """The public key that they say is theirs; empty where they name none."""
    nonce: str
    signature: bytes

    host: str
    name: str
    """Of the user that they say they are; empty where they name none."""

    @property
    def who(self) -> str:
        """Whom a limit counts."""
        return self.key or self.name or self.host


def read_sign_in(token: bytes) -> SignIn:
    """Raises UnreadableRequestError. The token's own signature is not looked at: it is the server's, and in the account
    where it is asked nobody else may ask.
    """
    parts = token.split(b".")
    if len(parts) != _PARTS:
        raise UnreadableRequestError("a token has three parts")
    try:
        asked = msgspec.json.decode(_decoded(parts[1]), type=_Claims).nats
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnreadableRequestError(str(error)) from error
    try:
        signature = _decoded(asked.connect_opts.sig.encode())
    except ValueError:
        signature = b""
    return SignIn(
        server_id=asked.server_id.id,
        connection_id=asked.client_info.id,
        user=asked.user_nkey,
        key=asked.connect_opts.nkey,
        nonce=asked.client_info.nonce,
        signature=signature,
        host=asked.client_info.host,
        name=asked.connect_opts.user,
    )


def subscriber_of(sign_in: SignIn, find: Callable[[str], Subscription | None]) -> Subscription | None:
    """The subscription that this is; None where there is none with that key, or they have not the key."""
    subscription = find(sign_in.key) if sign_in.key else None
    if subscription is None or not sign_in.nonce:
        return None
    return subscription if has_signed(sign_in.key, sign_in.nonce.encode(), sign_in.signature) else None


def admission(sign_in: SignIn, subscription: Subscription, issuer: KeyPair, now: int) -> bytes:
    """The answer that lets them in: they may read through their own consumer. It never expires: clients would close for
    good, and whoever is deleted is cut off.
    """
    rights = subscriber_permission(subscription.id)
    user = {
        "pub": {"allow": list(rights.publish)},
        "sub": {"allow": list(rights.subscribe)},
        # The server heeds no such limits in this answer: its file has those of the account (nats_config.py).
        **dict.fromkeys(("subs", "data", "payload"), -1),
        "type": "user",
        "version": 2,
    }
    token = _signed({"sub": sign_in.user, "aud": ACCOUNT, "name": subscription.id, "nats": user}, issuer, now)
    return _answer(sign_in, {"jwt": token.decode()}, issuer, now)


def refusal(sign_in: SignIn, issuer: KeyPair, now: int) -> bytes:
    """The answer that lets them not in. Why, the server tells nobody but its log."""
    return _answer(sign_in, {"error": "no subscription has this key"}, issuer, now)


def _answer(sign_in: SignIn, said: dict[str, str], issuer: KeyPair, now: int) -> bytes:
    claims = {"sub": sign_in.user, "aud": sign_in.server_id}
    return _signed({**claims, "nats": {**said, "type": "authorization_response", "version": 2}}, issuer, now)


def _signed(claims: dict[str, Any], issuer: KeyPair, now: int) -> bytes:
    body = _encoded(_HEADER) + b"." + _encoded({"iss": issuer.public, "iat": now, **claims})
    return body + b"." + base64.urlsafe_b64encode(issuer.sign(body)).rstrip(b"=")


def _encoded(value: dict[str, Any]) -> bytes:
    return base64.urlsafe_b64encode(msgspec.json.encode(value)).rstrip(b"=")


def _decoded(text: bytes) -> bytes:
    """Of either alphabet of Base64: clients differ. Raises ValueError."""
    try:
        return base64.urlsafe_b64decode(text.translate(_TO_URL) + b"=" * (-len(text) % 4))
    except binascii.Error as error:
        raise ValueError(str(error)) from error


_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
