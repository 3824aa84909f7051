"""Bearer tokens: what is taken, and a table of attacks that are refused (log.md section 6.1; R rows S085)."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from events.refusal import Refusal
from services.runtime.identity import authentication
from services.runtime.identity.authentication import Authenticator, Identity
from services.runtime.identity.jwks import JwksError, TrustedKey, parse_jwks

pytestmark = pytest.mark.anyio

NOW = 1_800_000_000
EC = ECKey.generate_key("P-256", {"kid": "ec"})
RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
ED = OKPKey.generate_key("Ed25519", {"kid": "ed"})
STRANGER = ECKey.generate_key("P-256", {"kid": "ec"})
SIGNERS = ["HS256", "RS256", "PS256", "ES256", "EdDSA"]


class StaticKeys:
    def __init__(self, *keys: Any) -> None:
        self.generation = 0
        self.asked: list[str] = []
        self._keys = parse_jwks(jwks(*keys), local_allowed=True)

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def key(self, kid: str) -> TrustedKey | None:
        self.asked.append(kid)
        return self._keys.get(kid)

    def replace(self, *keys: Any) -> None:
        self._keys = parse_jwks(jwks(*keys), local_allowed=True)
        self.generation += 1


def jwks(*keys: Any) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=False) | {"use": "sig"} for key in keys]}).encode()


def b64(value: bytes | dict[str, Any]) -> str:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def claims(**changes: Any) -> dict[str, Any]:
    """Good claims, changed; a value of `...` leaves the claim out."""
    good = {"iss": "muster", "aud": "muster", "sub": "ada", "iat": NOW - 60, "exp": NOW + 3600}
    return {name: value for name, value in (good | changes).items() if value is not ...}


def token(payload: Any = None, *, key: Any = EC, **header: Any) -> str:
    head = {"alg": "ES256", "typ": "JWT", "kid": "ec"} | header
    return handmade({name: value for name, value in head.items() if value is not ...}, payload, key)


def handmade(header: dict[str, Any] | bytes, payload: Any = None, key: Any = EC) -> str:
    """Properly signed by `key` over whatever the header says, also over nonsense."""
    content = payload if isinstance(payload, bytes) else json.dumps(claims() if payload is None else payload).encode()
    signing_input = f"{b64(header)}.{b64(content)}"
    name = header.get("alg") if isinstance(header, dict) else None
    algorithm = name if name in SIGNERS else {"EC": "ES256", "RSA": "RS256", "OKP": "EdDSA"}[key.key_type]
    return f"{signing_input}.{b64(jws.JWSRegistry.algorithms[algorithm].sign(signing_input.encode(), key))}"


def signed(**changes: Any) -> str:
    return token(claims(**changes))


def authenticator(keys: StaticKeys | None = None, clock: Callable[[], float] = lambda: NOW) -> Authenticator:
    return Authenticator(keys or StaticKeys(EC, RSA, ED), issuer="muster", audience="muster", clock=clock)


def confused_with_public_key() -> str:
    """HS256 with the published public key as the secret: the classic confusion of algorithms."""
    head = b64({"alg": "HS256", "typ": "JWT", "kid": "ec"})
    body = b64(claims())
    mac = hmac.new(EC.as_pem(private=False), f"{head}.{body}".encode(), hashlib.sha256).digest()
    return f"{head}.{body}.{b64(mac)}"


def other_payload() -> str:
    head, _, signature = token().split(".")
    return f"{head}.{b64(claims(sub='mallory'))}.{signature}"


def der_signature() -> str:
    """ES256 signatures are two numbers of 32 bytes; a DER one must not pass."""
    head, body, _ = token().split(".")
    return f"{head}.{body}.{b64(b'0E' + bytes(69))}"


GOOD = {
    "ES256": token(),
    "RS256": token(key=RSA, alg="RS256", kid="rsa"),
    "EdDSA": token(key=ED, alg="EdDSA", kid="ed"),
    "audience in a list": signed(aud=["other", "muster"]),
    "typ at+jwt": token(typ="at+jwt"),
    "no typ": token(typ=...),
    "expired within the leeway": signed(exp=NOW - 29),
    "issued within the leeway": signed(iat=NOW + 29),
    "not before, long past": signed(nbf=NOW - 60),
    "times with fractions": signed(iat=NOW - 0.5, exp=NOW + 0.5),
    "other claims are ignored": signed(roles=["administrator"], email="ada@example.org"),
}

ATTACKS: dict[str, tuple[str, str]] = {
    "empty": ("", "not a signed JWT"),
    "no token at all": ("Bearer", "not a signed JWT"),
    "two segments": (token().rsplit(".", 1)[0], "not a signed JWT"),
    "empty signature": (token().rsplit(".", 1)[0] + ".", "not a signed JWT"),
    "encrypted (five segments)": ("a.b.c.d.e", "not a signed JWT"),
    "a line break inside": (token()[:20] + "\n" + token()[20:], "not a signed JWT"),
    "padding": (token() + "==", "not a signed JWT"),
    "not ASCII": ("é." + token().split(".", 1)[1], "not a signed JWT"),
    "a lone surrogate": ("\ud800" + token(), "not a signed JWT"),
    "nine kilobytes": (signed(junk="x" * 9000), "at most 8192"),
    "header is not JSON": (handmade(b"hello"), "header is not a JSON object"),
    "header is a list": (handmade(b"[1]"), "header is not a JSON object"),
    "header is deeply nested": (handmade(b"[" * 3000), "header is not a JSON object"),
    "alg none": (f"{b64({'alg': 'none', 'kid': 'ec'})}.{b64(claims())}.AA", "algorithm"),
    "alg nOnE": (f"{b64({'alg': 'nOnE', 'kid': 'ec'})}.{b64(claims())}.AA", "algorithm"),
    "no alg": (handmade({"typ": "JWT", "kid": "ec"}), "algorithm"),
    "alg is a list": (handmade({"alg": ["ES256"], "kid": "ec"}), "algorithm"),
    "HS256 with the public key": (confused_with_public_key(), "algorithm"),
    "HS256 with a known secret": (token(key=OctKey.import_key("s" * 32), alg="HS256"), "algorithm"),
    "PS256, which is not on the list": (token(key=RSA, alg="PS256", kid="rsa"), "algorithm"),
    "alg of another key": (token(alg="RS256", kid="ec", key=RSA), "not that of the key"),
    "alg EdDSA for the EC key": (token(key=ED, alg="EdDSA", kid="ec"), "not that of the key"),
    "two algs in the header": (
        handmade(b'{"alg":"none","alg":"ES256","alg":"EdDSA","kid":"ec"}'),
        "not that of the key",
    ),
    "signed by a stranger under our key's id": (token(key=STRANGER), "signature"),
    "payload changed": (other_payload(), "signature"),
    "DER signature": (der_signature(), "signature"),
    "all-zero signature (psychic)": (token().rsplit(".", 1)[0] + "." + b64(bytes(64)), "signature"),
    "unknown key": (token(kid="nobody"), "key that is not trusted"),
    "local key where none is trusted": (token(kid="local-abc"), "local development key"),
    "no key id": (token(kid=...), "does not name its key"),
    "key id is a number": (handmade({"alg": "ES256", "kid": 7}), "does not name its key"),
    "key id with a path": (token(kid="../../ec"), "key that is not trusted"),
    "brings its key (jwk)": (token(jwk=STRANGER.as_dict(private=False)), "brings its own key"),
    "brings an address (jku)": (token(jku="https://evil.example/jwks"), "brings its own key"),
    "brings a certificate address (x5u)": (token(x5u="https://evil.example/cert"), "brings its own key"),
    "brings a certificate (x5c)": (token(x5c=["AA"]), "brings its own key"),
    "unknown crit": (handmade({"alg": "ES256", "kid": "ec", "crit": ["exp2"], "exp2": 1}), "crit"),
    "empty crit": (handmade({"alg": "ES256", "kid": "ec", "crit": []}), "crit"),
    "b64 false": (handmade({"alg": "ES256", "kid": "ec", "b64": False, "crit": ["b64"]}), "crit"),
    "a logout token": (token(typ="logout+jwt"), "another type"),
    "typ is a number": (handmade({"alg": "ES256", "kid": "ec", "typ": 1}), "another type"),
    "claims are not JSON": (token(b"hello"), "claims are not a JSON object"),
    "claims are a list": (token([1]), "claims are not a JSON object"),
    "claims hold NaN": (token(b'{"exp": NaN}'), "claims are not a JSON object"),
    "no exp": (signed(exp=...), "lacks exp"),
    "no iat": (signed(iat=...), "lacks iat"),
    "no iss": (signed(iss=...), "lacks iss"),
    "no aud": (signed(aud=...), "lacks aud"),
    "no sub": (signed(sub=...), "lacks sub"),
    "expired": (signed(exp=NOW - 31), "expired"),
    "issued in the future": (signed(iat=NOW + 31), "future"),
    "not valid yet": (signed(nbf=NOW + 31), "not valid yet"),
    "lives longer than a day": (signed(exp=NOW + 86_400, iat=NOW - 1), "lifetime"),
    "ends before it begins": (signed(iat=NOW + 20, exp=NOW + 10), "lifetime"),
    "exp as text": (signed(exp=str(NOW + 3600)), "not a number"),
    "exp is true": (signed(exp=True), "not a number"),
    "exp is null": (signed(exp=None), "not a number"),
    "exp beyond all dates": (signed(exp=1e300), "not a time"),
    "iat before all dates": (signed(iat=-1), "not a time"),
    "another issuer": (signed(iss="evil"), "another issuer"),
    "issuer with a slash more": (signed(iss="muster/"), "another issuer"),
    "issuer in a list": (signed(iss=["muster"]), "another issuer"),
    "another audience": (signed(aud="other"), "another audience"),
    "audience contains ours as a part": (signed(aud="muster-admin"), "another audience"),
    "audience is an object": (signed(aud={"muster": 1}), "another audience"),
    "no subject": (signed(sub=""), "subject"),
    "subject is a number": (signed(sub=7), "subject"),
    "subject with a line break": (signed(sub="ada\nbob"), "subject"),
    "subject far too long": (signed(sub="a" * 257), "subject"),
}


@pytest.mark.parametrize("good", GOOD.values(), ids=GOOD.keys())
async def test_a_proper_token_names_its_subject(good: str) -> None:
    identity = await authenticator().verify(good)

    assert isinstance(identity, Identity)
    assert (identity.iss, identity.sub) == ("muster", "ada")


@pytest.mark.parametrize(("attack", "rule"), ATTACKS.values(), ids=ATTACKS.keys())
async def test_an_attack_is_refused_by_the_rule_it_breaks(attack: str, rule: str) -> None:
    refusal = await authenticator().verify(attack)

    assert isinstance(refusal, Refusal)
    assert refusal.code == "not_authenticated"
    assert rule in refusal.message


async def test_a_refusal_repeats_nothing_of_the_token() -> None:
    for attack, _ in ATTACKS.values():
        refusal = await authenticator().verify(attack)
        assert isinstance(refusal, Refusal)
        assert not any(len(part) > 8 and part in refusal.message for part in attack.split("."))
        assert "evil" not in refusal.message


async def test_a_verified_token_is_remembered_for_a_minute_and_then_verified_again() -> None:
    keys, now = StaticKeys(EC), [float(NOW)]
    subject = authenticator(keys, lambda: now[0])
    good = token()

    await subject.verify(good)
    now[0] += authentication.REMEMBER_SECONDS - 1
    await subject.verify(good)
    assert keys.asked == ["ec"]

    now[0] += 2
    await subject.verify(good)
    assert keys.asked == ["ec", "ec"]


async def test_a_remembered_token_dies_when_it_expires() -> None:
    now = [float(NOW)]
    subject = authenticator(clock=lambda: now[0])
    short = signed(exp=NOW + 5)

    assert isinstance(await subject.verify(short), Identity)
    now[0] += 5 + authentication.LEEWAY_SECONDS + 1
    assert isinstance(await subject.verify(short), Refusal)


async def test_a_remembered_token_dies_with_its_key() -> None:
    keys = StaticKeys(EC, RSA)
    subject = authenticator(keys)
    good = token()
    assert isinstance(await subject.verify(good), Identity)

    keys.replace(RSA)

    assert isinstance(await subject.verify(good), Refusal)


async def test_a_refusal_is_not_remembered() -> None:
    keys = StaticKeys(RSA)
    subject = authenticator(keys)
    early = token()
    assert isinstance(await subject.verify(early), Refusal)

    keys.replace(RSA, EC)

    assert isinstance(await subject.verify(early), Identity)


async def test_the_memory_of_tokens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "MAX_REMEMBERED", 3)
    keys = StaticKeys(EC)
    subject = authenticator(keys)
    tokens = [signed(sub=f"user-{number}") for number in range(5)]

    for each in tokens:
        await subject.verify(each)
    keys.asked.clear()
    await subject.verify(tokens[-1])
    assert keys.asked == []
    await subject.verify(tokens[0])
    assert keys.asked == ["ec"]


async def test_an_identity_tells_when_its_token_ends() -> None:
    identity = await authenticator().verify(token())

    assert isinstance(identity, Identity)
    assert identity.expires_at == datetime.fromtimestamp(NOW + 3600, UTC)


UNUSABLE = {
    "for encryption": EC.as_dict(private=False) | {"use": "enc"},
    "for signing only": EC.as_dict(private=False) | {"key_ops": ["sign"]},
    "another curve": ECKey.generate_key("P-384", {"kid": "x"}).as_dict(private=False),
    "another algorithm": RSA.as_dict(private=False) | {"alg": "PS256"},
    "without an id": {k: v for k, v in EC.as_dict(private=False).items() if k != "kid"},
    "of a kind nobody knows": {"kty": "NEW", "kid": "x"},
}


@pytest.mark.parametrize("key", UNUSABLE.values(), ids=UNUSABLE.keys())
async def test_a_key_for_another_purpose_is_left_out(key: dict[str, Any]) -> None:
    assert parse_jwks(json.dumps({"keys": [key]}).encode(), local_allowed=True) == {}


BROKEN = {
    "not JSON": b"<html>",
    "no keys": b"{}",
    "a private key": json.dumps({"keys": [EC.as_dict(private=True)]}).encode(),
    "a shared secret": json.dumps({"keys": [OctKey.generate_key(256).as_dict(private=True)]}).encode(),
    "a point that is not on the curve": json.dumps(
        {"keys": [EC.as_dict(private=False) | {"x": b64(bytes(32)), "y": b64(bytes(32))}]}
    ).encode(),
    "a short RSA key": json.dumps({"keys": [RSA.as_dict(private=False) | {"n": b64(b"\xff" * 128)}]}).encode(),
    "one id twice": jwks(EC, STRANGER),
    "too large": b" " * (300 * 1024),
}


@pytest.mark.parametrize("payload", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.filterwarnings("ignore:Key size should be")
async def test_a_broken_jwks_is_refused_whole(payload: bytes) -> None:
    with pytest.raises(JwksError):
        parse_jwks(payload, local_allowed=True)


async def test_an_issuers_jwks_cannot_bring_in_a_local_key() -> None:
    local = ECKey.generate_key("P-256", {"kid": "local-1"})

    assert list(parse_jwks(jwks(local, RSA), local_allowed=False)) == ["rsa"]
