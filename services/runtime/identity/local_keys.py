"""The signing key of one machine: made once by `muster up` or compose, kept in a file that only its owner reads.

For development. In production the JWKS of a real issuer takes its place, and what this signs is refused.
"""

import os
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey

from events.actors import MAX_SUBJECT_LENGTH, fit_subject
from services.runtime.identity.authentication import MAX_LIFETIME_SECONDS
from services.runtime.identity.jwks import LOCAL_KEY_PREFIX

KEY_MODE: Final = 0o600
"""Whoever can read the key can speak for anybody."""
JWKS_MODE: Final = 0o644
"""Public: every service reads it, perhaps as another user."""
KEY_ID_CHARACTERS: Final = 16
"""Of the key's RFC 7638 thumbprint: 96 bits tell any number of keys apart."""
DEFAULT_TTL_SECONDS: Final = 12 * 3600
"""A working day, and less than the day that a token may live."""
NO_CLAIMS: Final[Mapping[str, object]] = MappingProxyType({})


class LocalKeyError(Exception):
    """The key file is not fit for use; the message says what to do."""


def load_or_create_key(path: Path) -> ECKey:
    """The key in the file; made first where there is none. Any number of processes may do so at once.

    Raises LocalKeyError where the file is not a key of ours, or others may read it.
    """
    if not path.exists():
        _create(path)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise LocalKeyError(f"{path} has mode {mode:o}: others may read this key; run: chmod 600 {path}")
    try:
        fields = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        key = ECKey.import_key(fields)
    except (msgspec.MsgspecError, JoseError, ValueError, TypeError, KeyError) as error:
        why = type(error).__name__
        raise LocalKeyError(f"{path} does not hold a key of Muster ({why}); move it away to get a new one") from error
    if not key.is_private or key.curve_name != "P-256" or not _kid(key).startswith(LOCAL_KEY_PREFIX):
        raise LocalKeyError(f"{path} does not hold a private ES256 key of Muster; move it away to get a new one")
    return key


def write_jwks(key: ECKey, path: Path) -> None:
    """Publish the public part, as a JWKS that services verify with; the file is replaced whole or not at all."""
    public = key.as_dict(private=False) | {"kid": _kid(key), "use": "sig", "alg": "ES256"}
    temporary = _write_beside(path, msgspec.json.encode({"keys": [public]}), JWKS_MODE)
    temporary.replace(path)


def sign_token(
    key: ECKey,
    *,
    subject: str,
    issuer: str,
    audience: str,
    ttl_seconds: int = DEFAULT_TTL_SECONDS,
    claims: Mapping[str, object] = NO_CLAIMS,
    now: float | None = None,
) -> str:
    """A bearer token for `subject`. `claims`: further ones. Raises ValueError, in a sentence, where a verifier would
    refuse it.
    """
    if not 0 < ttl_seconds <= MAX_LIFETIME_SECONDS:
        raise ValueError(f"a token lives 1 to {MAX_LIFETIME_SECONDS} seconds (24 h), not {ttl_seconds}")
    if not fit_subject(subject):
        rule = f"a user is named by 1 to {MAX_SUBJECT_LENGTH} printable characters"
        raise ValueError(f"{rule}, and not as a service account is, not {subject!r}")
    issued = int(time.time() if now is None else now)
    own = {"iss": issuer, "aud": audience, "sub": subject, "iat": issued, "exp": issued + ttl_seconds}
    if taken := sorted({*own, "nbf"} & claims.keys()):
        raise ValueError(f"the claim {taken[0]} is set by Muster; leave it out")
    return jwt.encode({"alg": "ES256", "typ": "JWT", "kid": _kid(key)}, {**claims, **own}, key, algorithms=["ES256"])


def _create(path: Path) -> None:
    key = ECKey.generate_key("P-256")
    fields = key.as_dict(private=True) | {"kid": LOCAL_KEY_PREFIX + key.thumbprint()[:KEY_ID_CHARACTERS]}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _write_beside(path, msgspec.json.encode(fields), KEY_MODE)
    try:
        # A link fails where the name is taken: of several processes one wins, and all read the winner's key.
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()


def _write_beside(path: Path, content: bytes, mode: int) -> Path:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return Path(name)


def _kid(key: ECKey) -> str:
    return key.kid or ""
