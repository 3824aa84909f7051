"""Roles by subject, as the tenant and projects hold them."""


def with_role[R](roles: dict[str, tuple[R, ...]], subject: str, role: R) -> dict[str, tuple[R, ...]]:
    return roles | {subject: (*roles.get(subject, ()), role)}


def without_role[R](roles: dict[str, tuple[R, ...]], subject: str, role: R) -> dict[str, tuple[R, ...]]:
    """A subject without roles is not kept."""
    kept = tuple(held for held in roles.get(subject, ()) if held != role)
    others = {other: held for other, held in roles.items() if other != subject}
    return others | ({subject: kept} if kept else {})
