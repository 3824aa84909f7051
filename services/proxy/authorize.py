"""Who may open an address of the proxy. Pure."""

from events.workload.exposure import Access
from services.runtime.identity.member import Member

_NOBODY_ELSE = "ask whoever submitted the workload"


def objection(access: Access, member: Member) -> str:
    """Why this person may not open it, in words that name nobody else; empty where they may."""
    match access.type:
        case "authenticatedUsers":
            return ""
        case "authorizedUsers":
            names = set(map(_in_any_case, member.names))
            if any(_in_any_case(user) in names for user in access.members):
                return ""
            return f"you are not among the users who may open this address; {_NOBODY_ELSE}"
        case "authorizedGroups":
            if not frozenset(access.members).isdisjoint(member.groups):
                return ""
            return f"you are in none of the groups that may open this address; {_NOBODY_ELSE}"


def _in_any_case(name: str) -> str:
    """E-mail addresses are written in any case, and no two people have ones that differ in it alone. Beyond ASCII they
    may: other letters than `k` and `s` become these in small letters.
    """
    return name.lower() if name.isascii() else name
