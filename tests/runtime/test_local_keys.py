"""The local signing key: made once, for its owner only."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from joserfc.jwk import ECKey

from services.runtime.identity.jwks import parse_jwks
from services.runtime.identity.local_keys import LocalKeyError, load_or_create_key, sign_token, write_jwks


def test_the_key_is_made_once_and_found_again(tmp_path: Path) -> None:
    first = load_or_create_key(tmp_path / "keys" / "signing.json")
    second = load_or_create_key(tmp_path / "keys" / "signing.json")

    assert first.as_dict(private=True) == second.as_dict(private=True)
    assert [path.name for path in (tmp_path / "keys").iterdir()] == ["signing.json"]


def test_of_many_that_make_it_at_once_one_wins(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: load_or_create_key(tmp_path / "key"), range(32)))

    assert len({key.thumbprint() for key in keys}) == 1


def test_what_is_published_holds_no_secret(tmp_path: Path) -> None:
    key = load_or_create_key(tmp_path / "key")
    write_jwks(key, tmp_path / "jwks.json")

    published = (tmp_path / "jwks.json").read_bytes()
    assert list(parse_jwks(published, local_allowed=True)) == [key.kid]
    assert str(key.as_dict(private=True)["d"]).encode() not in published


def test_a_key_that_others_may_read_is_refused_with_what_to_do(tmp_path: Path) -> None:
    load_or_create_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o640)

    with pytest.raises(LocalKeyError, match="chmod 600"):
        load_or_create_key(tmp_path / "key")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"-----BEGIN", str(ECKey.generate_key("P-256").as_dict(private=False)).encode()]
)
def test_a_file_that_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    (tmp_path / "key").chmod(0o600)

    with pytest.raises(LocalKeyError, match="move it away"):
        load_or_create_key(tmp_path / "key")


@pytest.mark.parametrize(
    ("subject", "ttl"), [("", 60), ("a" * 300, 60), ("ada\n", 60), ("ada", 0), ("ada", -1), ("ada", 90_000)]
)
def test_what_a_verifier_would_refuse_is_not_signed(tmp_path: Path, subject: str, ttl: int) -> None:
    key = load_or_create_key(tmp_path / "key")

    with pytest.raises(ValueError, match=r"a token lives|a user is named"):
        sign_token(key, subject=subject, issuer="muster", audience="muster", ttl_seconds=ttl)


@pytest.mark.parametrize("name", ["sub", "exp", "nbf"])
def test_no_further_claim_stands_for_one_of_ours(tmp_path: Path, name: str) -> None:
    key = load_or_create_key(tmp_path / "key")

    with pytest.raises(ValueError, match=f"the claim {name} is set by Muster"):
        sign_token(key, subject="ada", issuer="muster", audience="muster", claims={name: "root"})
