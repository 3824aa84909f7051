"""Tokens in the keyring of this machine's system, where there is one.

Each is under the name and the URL of its context, so that it goes to no other Muster. A keyring is somebody else's
program: it may be absent, locked, or never answer, so every question has a deadline.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from muster.cli.contexts import IN_KEYRING, Context

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

SERVICE: Final = "muster"
ANSWER_SECONDS: Final = 60.0
"""A locked keyring asks its user for a password first."""
RECOMMENDED: Final = 1
"""Priority from which the library takes a keyring for one: those below keep nothing, or keep it for everybody."""


class KeyringError(Exception):
    """The keyring cannot do it; the message says why."""


def with_token(name: str, context: Context, token: str) -> tuple[Context, str]:
    """(the context with this token, why that is not in the keyring; empty where it is)."""
    try:
        _asked(lambda: _put(_found(), _account(name, context.url), token))
    except KeyringError as error:
        return replace(context, token=token, token_in=""), str(error)
    return replace(context, token="", token_in=IN_KEYRING), ""


def kept(name: str, url: str, *, seconds: float | None = None) -> str:
    """The token of a context; empty where the keyring has none. Raises KeyringError."""
    return _asked(lambda: _found().get_password(SERVICE, _account(name, url)), seconds=seconds) or ""


def forget(name: str, url: str) -> None:
    """Take the token of a context out; nothing where it is not there. Raises KeyringError."""

    def drop() -> None:
        keyring, account = _found(), _account(name, url)
        if keyring.get_password(SERVICE, account) is not None:
            keyring.delete_password(SERVICE, account)

    _asked(drop)


def _account(name: str, url: str) -> str:
    return f"{name} {url}"


def _found() -> "KeyringBackend":
    """Raises KeyringError where there is none that protects anything."""
    import keyring

    found = keyring.get_keyring()
    if found.priority < RECOMMENDED:
        raise KeyringError("this system has no keyring")
    return found


def _put(keyring: "KeyringBackend", account: str, token: str) -> None:
    keyring.set_password(SERVICE, account, token)  # pyright: ignore[reportUnknownMemberType] - says no type of its answer
    if keyring.get_password(SERVICE, account) != token:
        raise KeyringError("the keyring of this system kept nothing")


def _asked[T](work: Callable[[], T], *, seconds: float | None = None) -> T:
    """Raises KeyringError: with whatever the keyring raises, and where it does not answer."""
    limit = ANSWER_SECONDS if seconds is None else seconds
    done: list[T] = []
    wrong: list[BaseException] = []

    def ask() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001 - a keyring may raise anything, and it is told below
            wrong.append(error)

    # Nobody can end a call into a keyring, so one that hangs is left behind, and does not keep this program.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(limit)
    if done:
        return done[0]
    if not wrong:
        raise KeyringError(f"the keyring of this system did not answer within {limit:g} s")
    if isinstance(wrong[0], KeyringError):
        raise wrong[0]
    raise KeyringError(f"the keyring of this system says: {wrong[0] or type(wrong[0]).__name__}") from wrong[0]
