"""The user and groups on Linux that a token names for its holder's pods (S022, R23): read from its claims."""

from typing import Any, Final, cast

import msgspec

from events.workload.spec import MOST_GROUP_ID
from services.runtime.process.settings import Settings

MAX_GROUPS: Final = 100
"""A token of 8 KiB could hold more; no pod needs them."""


class PosixUser(msgspec.Struct, frozen=True, kw_only=True):
    """Ids, each from 0 to MOST_GROUP_ID."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    """Supplementary ones."""


class UserClaims(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the claims."""

    uid: str = "uid"
    gid: str = "gid"
    groups: str = "groups"

    def read(self, claims: dict[str, Any]) -> PosixUser | str:
        """The user; or a sentence that says which claim is missing or unfit, and repeats no value of it."""
        uid, gid = _number(claims.get(self.uid)), _number(claims.get(self.gid))
        for name, number in ((self.uid, uid), (self.gid, gid)):
            if number is None:
                what = f"is not a whole number from 0 to {MOST_GROUP_ID}" if name in claims else "is missing"
                return f"the claim {name} of your token {what}"
        assert uid is not None
        assert gid is not None
        groups = _numbers(claims.get(self.groups))
        if groups is None:
            what = f"is not a list of up to {MAX_GROUPS} whole numbers from 0 to {MOST_GROUP_ID}"
            return f"the claim {self.groups} of your token {what}"
        return PosixUser(uid=uid, gid=gid, groups=groups)


DEFAULT_CLAIMS: Final = UserClaims()


def user_claims(settings: Settings) -> UserClaims:
    return UserClaims(uid=settings.uid_claim, gid=settings.gid_claim, groups=settings.supplemental_groups_claim)


def _number(value: Any) -> int | None:
    """Issuers give ids as numbers, or as texts of digits."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= len(str(MOST_GROUP_ID)):
        value = int(value)
    fit = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_GROUP_ID
    return cast("int", value) if fit else None


def _numbers(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return ()
    words: list[Any] = [value]
    if isinstance(value, list):
        words = cast("list[Any]", value)
    elif isinstance(value, str):
        words = [word.strip() for word in value.split(",")] if value.strip() else []
    numbers = [number for word in words[: MAX_GROUPS + 1] if (number := _number(word)) is not None]
    return tuple(numbers) if len(numbers) == len(words) <= MAX_GROUPS else None
