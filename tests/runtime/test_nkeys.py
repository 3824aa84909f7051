"""Keys of NATS as its own library reads and writes them."""

from typing import Any

import nkeys
import pytest

from services.runtime.nats.nkeys import KeyPair, Kind, NkeyError, has_signed, new_seed


@pytest.mark.parametrize("kind", ["user", "account"])
def test_a_key_is_the_same_to_the_library(kind: Kind) -> None:
    seed = new_seed(kind)
    ours = KeyPair(seed)
    theirs: Any = nkeys.from_seed(bytearray(seed.encode()))
    assert ours.kind == kind
    assert theirs.public_key.decode() == ours.public
    assert theirs.sign(b"nonce") == ours.sign(b"nonce")


def test_only_the_owner_of_a_key_of_a_user_has_signed() -> None:
    one, other, account = KeyPair(new_seed("user")), KeyPair(new_seed("user")), KeyPair(new_seed("account"))
    assert has_signed(one.public, b"nonce", one.sign(b"nonce"))
    for public, signed in (
        (other.public, one.sign(b"nonce")),
        (one.public, one.sign(b"another nonce")),
        (one.public, b""),
        (one.public[:-1] + ("A" if one.public[-1] != "A" else "B"), one.sign(b"nonce")),
        (account.public, account.sign(b"nonce")),
        ("", one.sign(b"nonce")),
        ("U" * 56, one.sign(b"nonce")),
    ):
        assert not has_signed(public, b"nonce", signed), public


@pytest.mark.parametrize("text", ["", "SU", "S" * 58, "U" + "A" * 55, "su" + "a" * 56])
def test_what_is_no_seed_is_refused(text: str) -> None:
    with pytest.raises(NkeyError):
        KeyPair(text)
