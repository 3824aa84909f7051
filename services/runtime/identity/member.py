"""Names and groups of a token's holder, by which workloads' owners let people in (S028): read from its claims."""

from typing import Any, Final, cast

import msgspec

from services.runtime.process.settings import Settings

MAX_GROUPS: Final = 1_000
"""A token of 8 KiB holds fewer names; further ones do not count."""
_EMAIL: Final = "email"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    names: tuple[str, ...] = ()
    """The subject, and what the claim for names says."""
    groups: tuple[str, ...] = ()


NOBODY: Final = Member()


class MemberClaims(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the claims."""

    name: str = _EMAIL
    groups: str = "groups"

    def read(self, claims: dict[str, Any]) -> Member:
        """What is unfit counts as missing: whom nobody lets in needs no names."""
        name = claims.get(self.name)
        # An address that nobody has confirmed is whatever its holder typed.
        believed = self.name != _EMAIL or claims.get("email_verified", True) is True
        names = (claims["sub"], name) if isinstance(name, str) and name and believed else (claims["sub"],)
        return Member(names=names, groups=_texts(claims.get(self.groups)))


DEFAULT_MEMBER_CLAIMS: Final = MemberClaims()


def member_claims(settings: Settings) -> MemberClaims:
    return MemberClaims(name=settings.user_name_claim, groups=settings.groups_claim)


def _texts(value: Any) -> tuple[str, ...]:
    words: list[Any] = cast("list[Any]", value) if isinstance(value, list) else []
    if isinstance(value, str):
        words = value.split(",")
    texts = (word.strip() for word in words if isinstance(word, str))
    return tuple(filter(None, texts))[:MAX_GROUPS]
